"""Captioned images without files: coloured shapes, drawn and described."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from torch import Tensor

from zoo.data.batches import BatchDataset
from zoo.data.cache import cached_entry, digest, write_json
from zoo.data.data import Data
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most
from zoo_multimodal.captions import KINDS, PAD, PLACES, WORDS, Words, caption, encode, longest, wordings
from zoo_multimodal.drawing import picture, random_scene

SEED = 20210226  # of the images, the same for everybody
EVALUATION_SIZE = 500  # validation images, and as many test images
SMALLEST = 16
CHANNELS = 3
FORMAT = 1


class Captioned(BatchDataset):
    """Images with their captions; ``prompts`` are added to each batch where they are given."""

    def __init__(self, images: np.ndarray, captions: list[str], kinds: np.ndarray, length: int, prompts: Tensor | None):
        self.images, self.captions = torch.from_numpy(images), encode(captions, length)
        self.bytes = torch.tensor([len(text.encode()) for text in captions])
        self.kinds, self.prompts = torch.from_numpy(kinds), prompts

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """What a model of images and texts needs, and what a causal language model of the captions alone needs.

        ``images`` (B, 3, H, W) float32 in [-1, 1]; ``captions`` (B, T) long with begin and end, padded on the right;
        ``valid`` (B, T) bool, False at padding; ``labels`` (B,) the kind of a lone thing, else -1; ``inputs`` and
        ``targets`` (B, T - 1), the caption and its next tokens, -100 at padding; ``bytes`` (B,) of each caption.
        """
        rows = torch.from_numpy(indices)
        captions = self.captions[rows]
        targets = captions[:, 1:]
        result = {
            "images": normal(self.images[rows]), "captions": captions, "valid": captions != PAD,
            "labels": self.kinds[rows], "inputs": captions[:, :-1], "bytes": self.bytes[rows],
            "targets": targets.masked_fill(targets == PAD, -100),
        }  # fmt: skip
        return result if self.prompts is None else result | {"prompts": self.prompts}


class CaptionedShapes(Data):
    """Drawn shapes with captions: "a small red ring at the top left and a large blue cross at the bottom right".

    Six colours, five shapes, two sizes, four places. `size` training, 500 validation and 500 test images are drawn by a
    seed fixed for all. Five kinds, a colour with a shape, are in the test images alone: "red circle", "green square",
    "blue triangle", "yellow cross", "purple ring". Evaluation batches hold ``prompts`` (30, 8, T), the captions of
    every kind, for classification by the nearest caption.
    """

    gives = "images with texts"

    def __init__(
        self,
        objects: int = 2,
        image_size: int = 32,
        size: int = 10000,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """Up to `objects` shapes in an image of `image_size` pixels a side."""
        super().__init__(batch_size, num_workers, seed)
        at_least(1, objects=objects, size=size)
        at_most(MOST_SAMPLES, size=size)
        at_least(SMALLEST, image_size=image_size)
        if objects > len(PLACES):
            raise UsageError(f"objects is {objects}: there are {len(PLACES)} corners, one for each")
        self.objects, self.side, self.size = objects, image_size, size
        self.tokenizer = Words()

    def load(self) -> None:
        """Draw the images once, cache them, and make the splits."""
        key = {"objects": self.objects, "side": self.side, "size": self.size, "pillow": PIL.__version__}
        entry = cached_entry("captioned-shapes", {"format": FORMAT, **key}, self._draw)
        with np.load(entry / "shapes.npz") as arrays:
            images, kinds, texts = arrays["images"], arrays["kinds"], arrays["captions"].tolist()
        self._fingerprint = digest(
            {
                "images": hashlib.sha256(images.tobytes()).hexdigest(),
                "captions": texts,
                "held": EVALUATION_SIZE,
                "format": FORMAT,
            }
        )
        length = longest(self.objects)
        prompts = torch.stack([encode(wordings(kind), length) for kind in range(len(KINDS))])
        edges = {
            "test": slice(EVALUATION_SIZE),
            "val": slice(EVALUATION_SIZE, 2 * EVALUATION_SIZE),
            "train": slice(2 * EVALUATION_SIZE, None),
        }
        self.datasets = {
            name: Captioned(images[part], texts[part], kinds[part], length, None if name == "train" else prompts)
            for name, part in edges.items()
        }

    def _draw(self, folder: Path) -> None:
        draw = np.random.default_rng(SEED)
        count = self.size + 2 * EVALUATION_SIZE
        images = np.empty((count, CHANNELS, self.side, self.side), np.uint8)
        scenes = [random_scene(self.objects, number < EVALUATION_SIZE, draw) for number in range(count)]
        for number, scene in enumerate(scenes):
            images[number] = picture(scene, self.side, draw)
        kinds = np.array([scene[0].kind if len(scene) == 1 else -1 for scene in scenes])
        np.savez(folder / "shapes.npz", images=images, kinds=kinds, captions=[caption(scene) for scene in scenes])

    def sizes(self) -> dict[str, int]:
        """The sizes of vocabulary, captions, images, channels and classes."""
        length = longest(self.objects)
        return {"vocab_size": len(WORDS), "max_length": length, "image_size": self.side, "channels": CHANNELS}

    def save(self, folder: Path) -> None:
        """captions.json: the words, in the order of their numbers."""
        write_json(folder / "captions.json", {"words": list(WORDS), "max_length": longest(self.objects)})


def normal(images: Tensor) -> Tensor:
    """uint8 in 0 to 255 to float32 in -1 to 1; elementwise."""
    return images.float().div_(127.5).sub_(1)


def pixels(images: Tensor) -> Tensor:
    """The way back: float in -1 to 1 to uint8; elementwise."""
    return images.float().add(1).mul(127.5).round().clamp(0, 255).byte()
