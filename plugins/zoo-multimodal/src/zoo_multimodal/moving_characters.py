"""Clips without files: characters that move or turn, a few frames of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image

from zoo.data.cache import cached_entry, write_arrays
from zoo.data.glyphs import EVALUATION_SIZE, NOISE, SEED, SMALLEST, stamp
from zoo.data.image_data import ArrayPixels, ImageData, Split
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

MOTIONS = ("right", "down", "left", "up", "clockwise", "counterclockwise")
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1), (0, 0), (0, 0))  # columns and rows per unit of speed
TURNS = (0, 0, 0, 0, 1, -1)
PIXELS = (1.0, 2.0)  # of a move, per frame
DEGREES = (12.0, 30.0)  # of a turn, per frame
TIMES = 0.9  # size of the font, in sides of a frame: a character fits into a frame at any angle


class ClipPixels(ArrayPixels):
    """Clips in memory: uint8 (N, F, C, H, W)."""

    def __init__(self, clips: np.ndarray) -> None:
        super().__init__(torch.from_numpy(clips))
        self.channels, self.size = clips.shape[2], clips.shape[3]


class MovingCharacters(ImageData):
    """Synthetic grey clips of a character that moves or turns; the class is its motion, one of six.

    A character that leaves a frame comes in on the other side. It starts anywhere at any angle, so that a single frame
    says nothing of the class: ``frames`` 1 is the baseline. `size` training, 1,000 validation and 1,000 test clips are
    drawn one after the other by a seed fixed for all, so none is in two splits.
    """

    gives = "clips"

    def __init__(
        self,
        characters: str = "1234579",
        frames: int = 6,
        image_size: int = 16,
        size: int = 6000,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            characters: what moves: any characters that the font has, but not those that look alike when turned a bit.
            frames: frames of a clip.
            image_size: height and width of a frame in pixels.
            size: number of training clips.
            batch_size: clips per batch and process.
        """
        super().__init__(image_size, batch_size, "none", num_workers, seed)
        at_least(SMALLEST, image_size=image_size)
        at_least(1, size=size, frames=frames, characters=len(characters))
        at_most(MOST_SAMPLES, size=size)
        if any(map(str.isspace, characters)):
            raise UsageError(f"characters are {characters!r}: none may be blank.")
        self.characters, self.frames, self.side, self.clips = characters, frames, image_size, size

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits, rendered once and cached, and the names of the motions."""
        options = {"characters": self.characters, "frames": self.frames, "side": self.side, "size": self.clips}
        entry = cached_entry("clips", {"format": 1, **options, "pillow": PIL.__version__}, self._render)
        with np.load(entry / "clips.npz") as arrays:
            clips, labels = arrays["clips"], arrays["labels"]
        first, second = EVALUATION_SIZE, 2 * EVALUATION_SIZE
        edges = {"test": slice(first), "val": slice(first, second), "train": slice(second, None)}
        return {name: Split(ClipPixels(clips[part]), labels[part]) for name, part in edges.items()}, list(MOTIONS)

    def sizes(self) -> dict[str, int]:
        """The number of motions, the frames of a clip, their height and width in pixels, and their channels."""
        return {**super().sizes(), "frames": self.frames}

    def _render(self, folder: Path) -> None:
        draw = np.random.default_rng(SEED)
        count = self.clips + 2 * EVALUATION_SIZE
        labels = draw.permutation(np.arange(count) % len(MOTIONS))
        stamps = [stamp(character, self.side, TIMES) for character in self.characters]
        clips = np.empty((count, self.frames, 1, self.side, self.side), np.float32)
        for clip, label in zip(clips, labels, strict=True):
            canvas = stamps[draw.integers(len(stamps))]
            clip[:, 0] = move(canvas, self.side, self.frames, int(label), draw.random(5))
        clips *= draw.uniform(0.6, 1, (count, 1, 1, 1, 1))
        clips += draw.normal(0, NOISE, clips.shape).astype(np.float32)
        write_arrays(folder / "clips.npz", clips=clips.clip(0, 255).astype(np.uint8), labels=labels)


def move(canvas: Image.Image, side: int, frames: int, motion: int, draws: np.ndarray) -> np.ndarray:
    """(frames, side, side): the middle of a canvas twice as large, in motion.

    ``draws`` (5,) in [0, 1): where it starts, column and row, its angle, its size and its speed.
    """
    column, row, angle, size, speed = draws
    step = (PIXELS[0] + speed * (PIXELS[1] - PIXELS[0])) * np.array(STEPS[motion])
    turn = (DEGREES[0] + speed * (DEGREES[1] - DEGREES[0])) * TURNS[motion]
    place = np.array([column, row]) * side
    return np.stack(
        [
            place_glyph(canvas, side, place + frame * step, 360 * angle + frame * turn, 0.85 + 0.3 * size)
            for frame in range(frames)
        ]
    )


def place_glyph(canvas: Image.Image, side: int, place: np.ndarray, angle: float, size: float) -> np.ndarray:
    """(side, side): the middle of a canvas at a place (column, row) of a frame without edges, turned by degrees."""
    radians = np.deg2rad(angle)
    turn = np.array([[np.cos(radians), np.sin(radians)], [-np.sin(radians), np.cos(radians)]])  # clockwise on a screen
    matrix = turn / size  # of a frame's point to the canvas's
    whole = np.floor(place)
    start = side - matrix @ (side / 2 + place - whole)
    rows = (*matrix[0], start[0], *matrix[1], start[1])
    frame = canvas.transform((side, side), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR)
    column, line = (whole - side // 2).astype(int)
    return np.roll(np.asarray(frame), (line, column), (0, 1))
