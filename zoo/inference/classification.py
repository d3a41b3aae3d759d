"""A trained image classifier, which preprocesses images like the training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from zoo.data.image_decoding import (
    LARGEST,
    UNREADABLE,
    FilePixels,
    decode,
    middle_square,
    open_header,
    prepare_published,
    published_way,
)
from zoo.data.pixels import ArrayPixels, Images, Split, resize_images
from zoo.errors import UsageError
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import Trained
from zoo.io import limits
from zoo.registry import current_path

if TYPE_CHECKING:
    from zoo.tasks.task import Task

Resize: TypeAlias = Literal["crop", "stretch"]
Picture: TypeAlias = str | Path | Image.Image | np.ndarray
# how data modules resize images of another size in training; other modules require one size
TRAINING_RESIZE: dict[str, Resize] = {
    "zoo.data.image_sources.ImageFolder": "crop",
    "zoo.data.image_sources.TorchvisionImages": "crop",
    "zoo.data.image_sources.NpzImages": "stretch",
    "zoo.data.digits.Digits": "stretch",
}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ROWS = 64


class Guess(NamedTuple):
    """The name of a class and its probability according to the model."""

    label: str
    probability: float


class TrainedClassification(Trained):
    """An image classifier with the names of its classes and its normalisation."""

    files = ("images.json",)
    explained_inputs = "zoo.explain.inside:image_inputs"

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        path = place.file("images.json")
        self.names, self.mean, self.std, self.size, self.channels = prepare_image(path)
        self.prepare = published_way(path)
        self.mode = MODES[self.channels]
        self.check_entries("num_classes", len(self.names), path.name)
        self.resize = resize_of_training(place.config)

    def extra(self) -> dict[str, Any]:
        """The resizing of training, for an export's config.json."""
        return {"resize": self.resize}

    def classify(
        self, images: Picture | Sequence[Picture], top: int = 5, resize: Resize | None = None
    ) -> list[list[Guess]]:
        """The ``top`` most probable classes of each image: a path, a PIL image, or a uint8 array (H, W) or (H, W, C).

        Images are converted to grey or colour like the training images. Images of another size are resized as in
        training, or as ``resize`` says: "crop" scales the short side and keeps the centre, "stretch" scales both sides.
        Raises UsageError for images of another size without any resizing, and for unreadable ones.
        """
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}.")
        if resize not in (None, "crop", "stretch"):
            raise UsageError(f"resize must be crop or stretch, got {resize!r}.")
        several = [images] if isinstance(images, (str, Path, Image.Image, np.ndarray)) else list(images)
        guesses: list[list[Guess]] = []
        for begin in range(0, len(several), ROWS):
            part = enumerate(several[begin : begin + ROWS], begin + 1)
            pixels = torch.cat([self._pixels(image, number, resize) for number, image in part])
            best, place = self.probabilities(self.normal(pixels)).topk(min(top, len(self.names)), -1)
            for row, classes in zip(best.tolist(), place.tolist(), strict=True):
                guesses.append([Guess(self.names[label], value) for value, label in zip(row, classes, strict=True)])
        return guesses

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Class probabilities (B, classes) in float64 of normalised images (B, C, H, W)."""
        return self.require_finite(self.net(images.to(self.device)).double().softmax(-1)[:, : len(self.names)].cpu())

    def pixels(self, image: Picture, resize: Resize | None = None) -> Tensor:
        """An image as the model sees it before it is normalised: (1, C, size, size) in uint8. Raises UsageError."""
        return self._pixels(image, 1, resize)

    def normal(self, pixels: Tensor) -> Tensor:
        """Images (B, C, H, W) in uint8, normalised as in evaluation: (B, C, H, W) in float32."""
        split = Split(ArrayPixels(pixels), np.zeros(len(pixels)))
        return Images(split, self.mean, self.std, "none", None).batch(np.arange(len(pixels)), 0)["images"]

    def _pixels(self, picture: Picture, number: int, resize: Resize | None) -> Tensor:
        """One image as (1, C, size, size) in uint8."""
        name = str(picture) if isinstance(picture, (str, Path)) else f"image {number}"
        image = open_image(picture, name)
        if resize is None and self.prepare is not None:
            picture = decode(image, self.mode, name)
            try:
                return prepare_published(picture, self.prepare, self.size, name)[None]
            except UsageError as error:
                raise UsageError(f"{error}\nResize it: --resize crop, --resize stretch") from error
        way = resize or self.resize
        right = image.size == (self.size, self.size)
        if not right and way is None:
            raise UsageError(
                f"{name} is {image.width} × {image.height} pixels, and this model needs {self.size} × {self.size}.\n"
                "Resize it: --resize crop keeps the middle square, --resize stretch keeps everything."
            )
        if way == "crop" and self.channels == 3:
            return FilePixels(1, self.size, lambda _: image, None).fetch(np.array([0]))  # the same code as in training
        decoded = decode(image, self.mode, name)
        if way == "crop":
            return middle_square(decoded, self.size)[None]
        array = np.array(decoded)
        pixels = torch.from_numpy(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1).copy())[None]
        return pixels if right else resize_images(pixels, self.size)


def prepare_image(path: Path) -> tuple[list[str], Tensor, Tensor, int, int]:
    """Class names, mean (C,), standard deviation (C,), size and channels C in an images.json.

    Raises UsageError if it is invalid.
    """
    content = limits.read_json(path)
    try:
        if not isinstance(content, dict):
            raise TypeError("no object")
        names, size, channels = content["names"], content["image_size"], content["channels"]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError("'names' must list the classes")
        if type(size) is not int or not 1 <= size <= LARGEST or channels not in MODES:
            raise ValueError(f"'image_size' must be from 1 to {LARGEST}, 'channels' 1, 3 or 4")
        mean, std = (torch.tensor(content[key], dtype=torch.float32) for key in ("mean", "std"))
        if any(stat.shape != (channels,) or not stat.isfinite().all() for stat in (mean, std)) or (std <= 0).any():
            raise ValueError("'mean' and 'std' must be numbers, one for each channel")
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(f"{path} is not what a run writes: {type(error).__name__} {error}") from error
    return names, mean, std, size, int(channels)


def resize_of_training(config: Mapping[str, Any]) -> Resize | None:
    """How the data module of a run or an export resizes images of another size; None if it does not."""
    if "resize" in config:
        return config["resize"]
    data = config.get("data") or {}
    is_resized = (data.get("init_args") or {}).get("image_size")
    return TRAINING_RESIZE.get(current_path(str(data["class_path"]))) if is_resized else None


def open_image(picture: Picture, name: str) -> Image.Image:
    """An image; files are not decoded yet. Raises UsageError if it is not an image, or has more than 8 bits."""
    if isinstance(picture, (str, Path)):
        path = Path(picture).expanduser()
        if not path.is_file():
            raise UsageError(f"no image file {name!r}." + (" It is a folder." if path.is_dir() else ""))
        image = open_header(str(path))
    elif isinstance(picture, Image.Image):
        image = picture
        try:
            image.load()  # what is decoded already is not shrunk while it is decoded: the image is the caller's
        except UNREADABLE as error:
            raise UsageError(f"{name} cannot be read as an image: {error}") from error
    else:
        array = np.asarray(picture)
        if array.dtype != np.uint8 or not array.size or not (array.ndim == 2 or array.shape[2:] in ((1,), (3,), (4,))):
            shape = f"{array.dtype} {array.shape}"
            raise UsageError(f"{name} is an array of {shape}: uint8 (H, W) or (H, W, C) with C 1, 3 or 4 is right.")
        image = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    if image.mode.startswith(("I", "F")):
        raise UsageError(f"{name} has more than 8 bits per pixel (mode {image.mode}). Convert it to 8 bits first.")
    return image
