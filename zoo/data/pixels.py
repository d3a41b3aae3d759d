"""Images as tensors, and their normalisation: what training and classification share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.augment import Augment, augment
from zoo.data.batches import BatchDataset

SAMPLED = 2000  # images that mean and deviation are computed from where they must be decoded one by one


class Pixels(ABC):
    """The images of a split: square, all of one size."""

    count: int
    channels: int
    size: int

    @abstractmethod
    def fetch(self, indices: np.ndarray) -> Tensor:
        """uint8 (B, C, H, W)."""

    @abstractmethod
    def digest(self) -> str:
        """Equal where the images are."""

    def sample(self) -> np.ndarray:
        """The images that stand for the split's brightness."""
        return np.unique(np.linspace(0, self.count - 1, SAMPLED).astype(np.int64))


class ArrayPixels(Pixels):
    """Images in memory: uint8 (N, C, H, W)."""

    def __init__(self, images: Tensor) -> None:
        self.images = images.contiguous()
        self.count, self.channels, self.size = images.shape[0], images.shape[1], images.shape[2]

    def fetch(self, indices: np.ndarray) -> Tensor:
        """The images of numbers ``indices`` (n,), (n, C, H, W) of uint8."""
        return self.images[torch.from_numpy(indices)]

    def digest(self) -> str:
        """SHA-256 of all pixels and their shape."""
        return hashlib.sha256(self.images.numpy().tobytes() + str(tuple(self.images.shape)).encode()).hexdigest()

    def sample(self) -> np.ndarray:
        """The numbers of all images: they are in memory."""
        return np.arange(self.count)


@dataclass(frozen=True)
class Split:
    """Images and the number of the class of each."""

    pixels: Pixels
    labels: np.ndarray


class Images(BatchDataset):
    """Normalised images with their labels; `seed` is None where they must not be augmented."""

    def __init__(self, split: Split, mean: Tensor, std: Tensor, augment: Augment, seed: int | None) -> None:
        self.pixels, self.labels = split.pixels, torch.from_numpy(split.labels.astype(np.int64))
        self.augment, self.seed = augment, seed
        self.normalise(mean, std)

    def normalise(self, mean: Tensor, std: Tensor) -> None:
        """Give images the mean 0 and the deviation 1 per channel where they have ``mean`` and ``std``, both (C,)."""
        self.scale, self.shift = (1 / (255 * std)).view(-1, 1, 1), (mean / std).view(-1, 1, 1)

    def __len__(self) -> int:
        return self.pixels.count

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``images`` (B, C, H, W) float32 of mean 0 and deviation 1 over the training split; ``labels`` (B,)."""
        images = self.pixels.fetch(indices)
        if self.seed is not None:
            images = augment(images, self.augment, self.seed, epoch, indices)
        normal = images.float().mul_(self.scale).sub_(self.shift)
        return {"images": normal, "labels": self.labels[torch.from_numpy(indices)]}


def resize_images(images: Tensor, size: int) -> Tensor:
    """uint8 (B, C, H, W) to (B, C, size, size), smoothed."""
    larger = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
    return larger.round().clamp(0, 255).byte()
