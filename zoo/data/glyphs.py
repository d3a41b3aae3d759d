"""Images without files: characters drawn, distorted and made noisy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont

from zoo.data.augment import Augment
from zoo.data.cache import cached_entry, write_arrays
from zoo.data.image_data import ImageData, Split, square_images
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

SEED = 20170612  # fixed seed of the images
EVALUATION_SIZE = 1000  # validation images, and as many test images
SMALLEST = 7
NOISE = 20.0  # standard deviation, of 255
TIMES = (1.7, 1.9, 2.2)  # sizes of the font, in sides of the image, on a canvas twice as large as the image
UNKNOWN = "\U0010ffff"


class Glyphs(ImageData):
    """Synthetic grey images of characters in Pillow's own font: easy, and no measure of real recognition.

    Each is turned by up to 20°, sheared, stretched, moved, and covered with noise. `size` training, 1,000 validation
    and 1,000 test images are drawn one after the other by a seed fixed for all, so none is in two splits.
    """

    def __init__(
        self,
        characters: str = "0123456789",
        image_size: int = 14,
        size: int = 10000,
        batch_size: int = 64,
        augment: Augment = "none",
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            characters: the classes: any characters that the font has.
            size: number of training images.
        """
        super().__init__(image_size, batch_size, augment, num_workers, seed)
        at_least(SMALLEST, image_size=image_size)
        at_least(1, size=size)
        at_most(MOST_SAMPLES, size=size)
        if len(characters) < 2 or len(set(characters)) < len(characters) or any(map(str.isspace, characters)):
            raise UsageError(f"characters are {characters!r}: two or more are needed, all different and none blank")
        self.characters, self.side, self.size = characters, image_size, size

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits, rendered once and cached, and the names of the classes."""
        options = {"characters": self.characters, "side": self.side, "size": self.size, "pillow": PIL.__version__}
        entry = cached_entry("glyphs", {"format": 1, **options}, self._render)
        with np.load(entry / "glyphs.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        edges = {
            "test": slice(EVALUATION_SIZE),
            "val": slice(EVALUATION_SIZE, 2 * EVALUATION_SIZE),
            "train": slice(2 * EVALUATION_SIZE, None),
        }
        splits = {
            name: Split(square_images(images[part], None, "Glyphs"), labels[part]) for name, part in edges.items()
        }
        return splits, list(self.characters)

    def _render(self, folder: Path) -> None:
        draw = np.random.default_rng(SEED)
        count = self.size + 2 * EVALUATION_SIZE
        labels = draw.permutation(np.arange(count) % len(self.characters))
        stamps = [[stamp(character, self.side, times) for times in TIMES] for character in self.characters]
        images = np.empty((count, self.side, self.side), np.float32)
        for i, label in enumerate(labels):
            images[i] = distort(stamps[label][draw.integers(len(TIMES))], self.side, draw)
        images *= draw.uniform(0.6, 1, (count, 1, 1))
        images += draw.normal(0, NOISE, images.shape)
        write_arrays(folder / "glyphs.npz", images=images.clip(0, 255).astype(np.uint8), labels=labels)


def stamp(character: str, side: int, times: float) -> Image.Image:
    """The character in the middle of a canvas twice as large as the image. Raises UsageError if the font lacks it."""
    font = ImageFont.load_default(side * times)
    canvas, unknown = (Image.new("L", (2 * side, 2 * side)) for _ in range(2))
    ImageDraw.Draw(canvas).text((side, side), character, fill=255, font=font, anchor="mm")
    ImageDraw.Draw(unknown).text((side, side), UNKNOWN, fill=255, font=font, anchor="mm")
    if canvas == unknown:
        raise UsageError(f"Pillow's font has no glyph for {character!r}: Latin letters, digits and punctuation work")
    return canvas


def distort(canvas: Image.Image, side: int, draw: np.random.Generator) -> np.ndarray:
    """(side, side) uint8: the canvas seen through a random affine map."""
    angle, shear = draw.uniform(-20, 20) * np.pi / 180, draw.uniform(-0.25, 0.25)
    turn = np.array([[np.cos(angle), -np.sin(angle) + shear], [np.sin(angle), np.cos(angle)]])
    matrix = 2 * turn / draw.uniform(0.85, 1.2, 2)  # maps a point of the image to one of the canvas
    moved = (draw.uniform(-0.1, 0.1, 2) + 0.5) * side
    start = side - matrix @ moved
    rows = (*matrix[0], start[0], *matrix[1], start[1])
    return np.asarray(canvas.transform((side, side), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR))
