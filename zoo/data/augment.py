"""Augmentation of training images, a function of (seed, epoch, sample) only, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.batches import uniforms

Augment: TypeAlias = Literal["none", "shift", "crop-flip", "randaugment"]
MARGIN = 8  # images move by up to an eighth of their size


def none(images: Tensor, draws: np.ndarray) -> Tensor:
    """The images (B, C, H, W) unchanged."""
    return images


def shift(images: Tensor, draws: np.ndarray) -> Tensor:
    """Each image (B, C, H, W) moved by up to an eighth of its size, padded with black; ``draws`` (B, 4) in [0, 1)."""
    count, _, height, width = images.shape
    most = max(1, height // MARGIN), max(1, width // MARGIN)
    padded = F.pad(images, (most[1], most[1], most[0], most[0]))
    top = torch.from_numpy((draws[:, 0] * (2 * most[0] + 1)).astype(np.int64))
    left = torch.from_numpy((draws[:, 1] * (2 * most[1] + 1)).astype(np.int64))
    rows = (top[:, None] + torch.arange(height))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width))[:, None, None, :]
    image, channel = torch.arange(count)[:, None, None, None], torch.arange(images.shape[1])[:, None, None]
    return padded[image, channel, rows, columns]


def crop_flip(images: Tensor, draws: np.ndarray) -> Tensor:
    """Images (B, C, H, W) shifted at random, and flipped horizontally with probability 1/2; the same shape.

    ``draws`` (B, >= 3) are random numbers in [0, 1).
    """
    mirrored = torch.from_numpy(draws[:, 2] < 0.5)
    return shift(torch.where(mirrored[:, None, None, None], images.flip(-1), images), draws)


def randaugment(images: Tensor, draws: np.ndarray) -> Tensor:
    """`crop_flip`, then two operations of RandAugment (Cubuk et al. 2020) at torchvision's default strength.

    Images (B, C, H, W) of uint8 to the same shape; ``draws`` (B, 4) are random numbers in [0, 1).
    """
    from torchvision.transforms import RandAugment

    change = RandAugment()
    result = []
    with torch.random.fork_rng(devices=[]):  # torchvision draws from the global state
        for image, draw in zip(crop_flip(images, draws), draws[:, 3], strict=True):
            torch.manual_seed(int(draw * 2**53))
            result.append(change(image))
    return torch.stack(result)


WAYS: dict[str, Callable[[Tensor, np.ndarray], Tensor]] = {
    "none": none,
    "shift": shift,
    "crop-flip": crop_flip,
    "randaugment": randaugment,
}


def augment(images: Tensor, way: str, seed: int, epoch: int, indices: np.ndarray) -> Tensor:
    """uint8 images (B, C, H, W), augmented in one of WAYS."""
    return images if way == "none" else WAYS[way](images, uniforms(seed, epoch, indices, 4))
