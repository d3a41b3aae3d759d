"""Scenes without files: drawn shapes with their classes and boxes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from torch import Tensor

from zoo.data.batches import BatchDataset, uniforms
from zoo.data.cache import cached_entry, digest, write_json
from zoo.data.data import Data
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most
from zoo_vision.setloss import NOTHING
from zoo_vision.shapes import KINDS, picture, random_things

SEEDS = {"train": 20200526, "val": 20200527, "test": 20200528}  # of the scenes, the same for everybody
EVALUATION_SIZE = 500  # validation scenes, and as many test scenes
SMALLEST, MOST = 32, 12
CHANNELS = 3
MEAN, STD = 0.5, 0.25
FORMAT = 1


class Scenes(BatchDataset):
    """Images with what they show; ``seed`` is None where they must not be turned and mirrored."""

    def __init__(self, images: np.ndarray, classes: np.ndarray, boxes: np.ndarray, seed: int | None):
        self.images, self.classes = torch.from_numpy(images), torch.from_numpy(classes.astype(np.int64))
        self.boxes, self.seed = torch.from_numpy(boxes.astype(np.float32)), seed

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``images`` (B, 3, H, W) float32 around 0, ``classes`` (B, M) with -1 where there is nothing more, ``boxes``
        (B, M, 4): centre x, centre y, width, height in shares of the image, 0 where there is nothing.
        """
        rows = torch.from_numpy(indices)
        images, boxes = self.images[rows].permute(0, 3, 1, 2), self.boxes[rows]
        if self.seed is not None:
            images, boxes = moved(images, boxes, torch.from_numpy(uniforms(self.seed, epoch, indices, 3)) < 0.5)
        result = {"images": normal(images), "classes": self.classes[rows]}
        return result | {"boxes": boxes * (result["classes"] != NOTHING)[..., None]}


class DrawnScenes(Data):
    """Colour images of drawn shapes, with the class and the box of each: circle, ring, square, triangle, star, cross.

    Kinds, sizes, turns, colours and the shaded ground are random; shapes overlap, and each shows at least 60 % of
    itself. Boxes are those of whole shapes. Training, 500 validation and 500 test scenes are drawn by seeds of their
    own, fixed for all. With `augment` training scenes are turned by quarters and mirrored at random.
    """

    gives = "images with boxes"

    def __init__(
        self,
        objects: int = 5,
        image_size: int = 64,
        size: int = 10000,
        batch_size: int = 32,
        augment: bool = True,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """One to `objects` shapes in an image of `image_size` pixels a side; `size` scenes to train on."""
        super().__init__(batch_size, num_workers, seed)
        at_least(1, objects=objects, size=size)
        at_most(MOST_SAMPLES, size=size)
        at_least(SMALLEST, image_size=image_size)
        if objects > MOST:
            raise UsageError(f"objects is {objects}: {MOST} shapes at most have room in an image")
        self.objects, self.image_size, self.size, self.augment = objects, image_size, size, augment
        self.names, self.mean, self.std = list(KINDS), [MEAN] * CHANNELS, [STD] * CHANNELS

    def load(self) -> None:
        """Draw the scenes once, cache them, and make the splits."""
        prints = {}
        for split, seed in SEEDS.items():
            count = self.size if split == "train" else EVALUATION_SIZE
            key = {"objects": self.objects, "side": self.image_size, "count": count, "seed": seed}
            entry = cached_entry("scenes", {"format": FORMAT, "pillow": PIL.__version__, **key}, Painter(**key))
            with np.load(entry / "scenes.npz") as file:
                arrays = file["images"], file["classes"], file["boxes"]
            prints[split] = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
            turned = self.seed if split == "train" and self.augment else None
            self.datasets[split] = Scenes(*arrays, turned)
        self._fingerprint = digest(prints)

    def sizes(self) -> dict[str, int]:
        """The number of classes, the height and width of an image in pixels, and its channels."""
        return {"num_classes": len(KINDS), "image_size": self.image_size, "channels": CHANNELS}

    def save(self, folder: Path) -> None:
        """images.json: the classes' names, and how an image is normalised."""
        content = {"names": self.names, "mean": self.mean, "std": self.std}
        write_json(folder / "images.json", {**content, "image_size": self.image_size, "channels": CHANNELS})


class Painter:
    """Draws so many scenes by a seed, into a folder."""

    def __init__(self, objects: int, side: int, count: int, seed: int):
        self.objects, self.side, self.count, self.seed = objects, side, count, seed

    def __call__(self, folder: Path) -> None:
        draw = np.random.default_rng(self.seed)
        images = np.empty((self.count, self.side, self.side, CHANNELS), np.uint8)
        classes = np.full((self.count, self.objects), NOTHING, np.int8)
        boxes = np.zeros((self.count, self.objects, 4), np.float32)
        for number in range(self.count):
            things = random_things(self.objects, self.side, draw)
            images[number] = picture(things, self.side, draw)
            classes[number, : len(things)] = [thing.kind for thing in things]
            edges = np.array([thing.box() for thing in things]) / self.side
            boxes[number, : len(things)] = np.hstack([(edges[:, :2] + edges[:, 2:]) / 2, edges[:, 2:] - edges[:, :2]])
        np.savez(folder / "scenes.npz", images=images, classes=classes, boxes=boxes)


def moved(images: Tensor, boxes: Tensor, flips: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, H) and their boxes (B, M, 4), mirrored from left to right, from top to bottom, and at the
    diagonal, where ``flips`` (B, 3) says so: all eight ways to turn and mirror a square.
    """
    ways: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (lambda image: image.flip(-1), lambda box: torch.cat([1 - box[..., :1], box[..., 1:]], -1)),
        (lambda image: image.flip(-2), lambda box: torch.cat([box[..., :1], 1 - box[..., 1:2], box[..., 2:]], -1)),
        (lambda image: image.mT, lambda box: box[..., [1, 0, 3, 2]]),
    ]
    for yes, (image, box) in zip(flips.T, ways, strict=True):
        images = torch.where(yes[:, None, None, None], image(images), images)
        boxes = torch.where(yes[:, None, None], box(boxes), boxes)
    return images, boxes


def normal(images: Tensor) -> Tensor:
    """uint8 to float32 around 0; elementwise."""
    return images.float().div_(255).sub_(MEAN).div_(STD)
