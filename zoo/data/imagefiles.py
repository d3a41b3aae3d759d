"""Images that stay on disk and are decoded when they are needed."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from zoo.data.cache import digest
from zoo.data.pixels import Pixels
from zoo.errors import UsageError

MOST_PIXELS = 64 * 10**6  # a file of kilobytes can unpack to gigabytes
# without PostScript, which Pillow hands to Ghostscript, and the rarely tested others
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
# what Pillow raises for damaged files of one format or another
UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


class FilePixels(Pixels):
    """RGB squares: the short side is made `size` long, and the middle kept."""

    channels = 3

    def __init__(self, count: int, size: int, image: Callable[[int], Image.Image], identity: object) -> None:
        """`image(i)` opens an image; `identity` is JSON that agrees where the images do."""
        self.count, self.size, self.image, self.identity = count, size, image, identity

    def fetch(self, indices: np.ndarray) -> Tensor:
        """The images of numbers ``indices`` (n,), (n, C, H, W) of uint8, read and decoded now."""
        return torch.stack([self._one(int(i)) for i in indices])

    def digest(self) -> str:
        """SHA-256 of the files' identity, their number and the size of images."""
        return digest([self.identity, self.count, self.size])

    def _one(self, index: int) -> Tensor:
        image = self.image(index)
        try:
            image.draft("RGB", (self.size, self.size))  # lets JPEG leave out what is not needed
            colours = upright(image).convert("RGB")
        except UNREADABLE as error:
            name = getattr(image, "filename", "") or f"image {index}"
            raise UsageError(f"{name} cannot be read as an image: {error}") from error
        return middle_square(colours, self.size)


def middle_square(image: Image.Image, size: int) -> Tensor:
    """The middle (C, size, size) of an image whose short side is made ``size`` long: torchvision's resize and crop."""
    width, height = image.size
    short = min(width, height)
    if short != size:
        wide, high = int(size * width / short), int(size * height / short)
        if wide * high > MOST_PIXELS:  # of a thin image, which would have to be enlarged as a whole
            x, y = max(0, width - width * size / wide) / 2, max(0, height - height * size / high) / 2
            image = image.resize((size, size), Image.Resampling.BILINEAR, (x, y, width - x, height - y))
        else:
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
    x, y = round((image.width - size) / 2), round((image.height - size) / 2)
    square = image.crop((x, y, x + size, y + size))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def upright(image: Image.Image) -> Image.Image:
    """The image as a camera's orientation mark in its EXIF data says it is to be seen, as every viewer shows it."""
    if orientation(image) is None:
        return image
    image.load()  # which turns some formats already
    way = orientation(image)
    return image if way is None else image.transpose(way)


def orientation(image: Image.Image) -> Image.Transpose | None:
    """How an image that is stored on its side, upside down or mirrored must be turned; None for an upright one."""
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data raise whatever they lead to: viewers ignore them
        return None


class Files:
    """Opens the images of a list of paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)

    def __call__(self, index: int) -> Image.Image:
        return open_header(self.paths[index])


class Items:
    """The images of some items of a data set of torchvision."""

    def __init__(self, dataset: Any, part: np.ndarray) -> None:
        self.dataset, self.part = dataset, part

    def __call__(self, index: int) -> Image.Image:
        return self.dataset[int(self.part[index])][0]


def open_header(path: str) -> Image.Image:
    """The image, its size known and nothing decoded. Raises UsageError when it is no image, or a huge one."""
    try:
        with warnings.catch_warnings():  # Pillow's own limit is higher and only a warning
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
    except UNREADABLE as error:
        reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise UsageError(f"{path} cannot be read as an image ({', '.join(FORMATS)}): {reason}") from error
    if image.width * image.height > MOST_PIXELS:
        raise UsageError(
            f"{path} has {image.width} × {image.height} pixels, more than {MOST_PIXELS // 10**6} million: "
            "shrink it or take it out"
        )
    if image.mode.startswith(("I", "F")):  # to RGB they would all become white
        raise UsageError(f"{path} has more than 8 bits per pixel (mode {image.mode}). Convert it to 8 bits first.")
    return image
