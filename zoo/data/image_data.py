"""Labelled images: the part that all image data share."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from zoo.data.augment import WAYS, Augment
from zoo.data.cache import cached_entry, digest, write_json
from zoo.data.data import Data, at_least
from zoo.data.image_decoding import FilePixels, published_way
from zoo.data.pixels import ArrayPixels, Images, Pixels, Split, resize_images
from zoo.errors import UsageError


class ImageData(Data):
    """Labelled images in batches, normalised by the training images' mean and deviation per channel."""

    gives = "images"
    names: list[str]
    mean: list[float]
    std: list[float]
    way: dict[str, Any] | None = None  # of a published model, to prepare images

    def __init__(
        self, image_size: int | None, batch_size: int, augment: Augment, num_workers: int, seed: int | None
    ) -> None:
        """
        Args:
            image_size: height and width that images are resized to; as they are where null is allowed.
            batch_size: images per batch and process.
            augment: how training images are changed at random.
        """
        super().__init__(batch_size, num_workers, seed)
        if augment not in WAYS:
            raise UsageError(f"augment is {augment!r}: it must be one of {', '.join(WAYS)}")
        if image_size is not None:
            at_least(1, image_size=image_size)
        self.image_size = image_size
        self.augment: Augment = augment

    @abstractmethod
    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits "train", "val" and perhaps "test", and the names of the classes."""

    def load(self) -> None:
        """Read the splits, check their labels, and measure mean and deviation of the training pixels once."""
        splits, self.names = self.read()
        for name, split in splits.items():
            check_labels(name, split, len(self.names))
        self._fingerprint = digest(
            {name: [s.pixels.digest(), _labels_digest(s)] for name, s in splits.items()} | {"names": self.names}
        )
        train = splits["train"].pixels
        if self.augment == "randaugment" and train.channels not in (1, 3):
            raise UsageError(
                f"augment is 'randaugment', which changes images of 1 or 3 channels, and these have {train.channels}: "
                "--data.augment crop-flip"
            )

        def measure(folder: Path) -> None:
            mean, std = moments(train)
            write_json(folder / "moments.json", {"mean": mean, "std": std})

        entry = cached_entry("moments", {"format": 2, "train": train.digest()}, measure)
        moments_of_pixels = json.loads((entry / "moments.json").read_text("utf-8"))
        self.mean, self.std = moments_of_pixels["mean"], moments_of_pixels["std"]
        self.image_size, self.channels = train.size, train.channels
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        rows = {
            name: Images(split, mean, std, self.augment, self.seed if name == "train" else None)
            for name, split in splits.items()
        }
        self.datasets = {"test": rows["val"], **rows}

    def sizes(self) -> dict[str, int]:
        """The number of classes, the height and width of an image in pixels, and its channels."""
        self.ready()
        assert self.image_size is not None
        return {"num_classes": len(self.names), "image_size": self.image_size, "channels": self.channels}

    def save(self, folder: Path) -> None:
        """images.json: the classes' names, and how an image is normalised."""
        self.ready()
        content = {"names": self.names, "mean": self.mean, "std": self.std}
        own = {} if self.way is None else {"prepare": self.way}
        write_json(folder / "images.json", {**content, "image_size": self.image_size, "channels": self.channels, **own})

    def adopt(self, folder: Path) -> None:
        """Normalise by an images.json of equal channels; prepare files as it says of a published model of this size."""
        self.ready()
        path = folder / "images.json"
        if not path.is_file():
            return
        try:
            content = json.loads(path.read_text("utf-8"))
            mean, std = ([float(value) for value in content[name]] for name in ("mean", "std"))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is damaged: it has no mean and std of numbers") from error
        if len(mean) != self.channels:
            return
        self.mean, self.std, way = mean, std, published_way(path)
        if way is not None and (way["crop"] or way["resize"]) != [self.image_size] * 2:
            way = None
        for images in self.datasets.values():
            cast(Images, images).normalise(torch.tensor(mean), torch.tensor(std))
            if isinstance(pixels := cast(Images, images).pixels, FilePixels):
                pixels.way = self.way = way


def moments(pixels: Pixels) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, of values in [0, 1]."""
    counts = np.zeros((pixels.channels, 256))
    sample = pixels.sample()
    for part in np.array_split(sample, -(-len(sample) // 256)):
        images = pixels.fetch(part).numpy()
        counts += [np.bincount(images[..., c, :, :].ravel(), minlength=256) for c in range(pixels.channels)]
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
    return mean.tolist(), np.where(std < 1 / 255, 1.0, std).tolist()  # a constant channel is only centred


def square_images(images: np.ndarray, size: int | None, where: str) -> ArrayPixels:
    """Images (N, H, W) or (N, H, W, C) of uint8, resized to `size` where given. Raises UsageError for other arrays."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(f"{where}: images are {images.dtype} {images.shape}: uint8 (N, H, W) or (N, H, W, C) is right")
    array = images[..., None] if images.ndim == 3 else images
    count, height, width, channels = array.shape
    if channels not in (1, 3, 4) or not (height and width):
        raise UsageError(f"{where}: images are {images.shape}: the last of (N, H, W, C) must be 1, 3 or 4 channels")
    if not count:
        raise UsageError(f"{where} has no images")
    if height != width and size is None:
        raise UsageError(f"{where}: images are {height} × {width}: give image_size to make them square")
    tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    if size is None or (height, width) == (size, size):
        return ArrayPixels(tensor)
    parts = [resize_images(part, size) for part in tensor.split(256)]
    return ArrayPixels(torch.cat(parts))


def check_labels(where: str, split: Split, classes: int) -> None:
    """Raise UsageError unless there is one label in range for each image."""
    labels = split.labels
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(f"{where}: labels are {labels.dtype} {labels.shape}: integers (N,) are right")
    if len(labels) != split.pixels.count:
        raise UsageError(f"{where}: {split.pixels.count} images but {len(labels)} labels: they must agree")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise UsageError(
            f"{where}: the label of image {wrong[0]} is {labels[wrong[0]]}: "
            f"with {classes} classes labels run from 0 to {classes - 1}"
        )


def stratified_split(labels: np.ndarray, fraction: float, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rest and of a random `fraction` of each class, both in the order of the data."""
    draw = np.random.default_rng(seed)
    selected = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        selected[draw.permutation(members)[: round(len(members) * fraction)]] = True
    return np.flatnonzero(~selected), np.flatnonzero(selected)


def _labels_digest(split: Split) -> str:
    return hashlib.sha256(split.labels.astype(np.int64).tobytes()).hexdigest()
