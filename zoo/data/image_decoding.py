"""Images that stay on disk and are decoded when they are needed."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from zoo.data.cache import digest
from zoo.data.pixels import Pixels
from zoo.errors import UsageError
from zoo.io import limits

MOST_PIXELS = 64 * 10**6  # a file of kilobytes can unpack to gigabytes
LARGEST = 8192  # pixels a side
# without PostScript, which Pillow hands to Ghostscript, and the rarely tested others
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# how an image is turned by its EXIF orientation; Pillow's exif_transpose gives up where another entry is odd
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
# names of interpolations, and Pillow's numbers of them
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
# what Pillow raises for damaged files of one format or another
UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


class FilePixels(Pixels):
    """RGB squares: the short side is made `size` long, and the middle kept; or the ``way`` of a published model."""

    channels = 3
    way: Mapping[str, Any] | None = None

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
        name = getattr(image, "filename", "") or f"image {index}"
        # a side that is no multiple of 8 would weigh too much in its last row or column
        if self.way is None and not (image.width % 8 or image.height % 8):
            image.draft("RGB", (2 * self.size, 2 * self.size))  # lets JPEG leave out what is not needed
        colours = decode(image, "RGB", name)
        if self.way is None:
            return middle_square(colours, self.size)
        return prepare_published(colours, self.way, self.size, name)


def published_way(path: Path) -> dict[str, Any] | None:
    """How a published model's library prepares images, by an images.json; None for a model that was trained here.

    Raises UsageError if it is invalid.
    """
    content = limits.read_json(path)
    way = content.get("prepare") if isinstance(content, dict) else None
    if way is None:
        return None

    def pair(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 1 <= n <= LARGEST for n in value)

    try:
        right = way["library"] in ("timm", "transformers") and way["interpolation"] in INTERPOLATIONS
        right = right and (way["crop"] is None or pair(way["crop"]))
        side = way["resize"]
        right = right and (side is None or pair(side) or (type(side) is int and 1 <= side <= LARGEST))
    except (KeyError, TypeError):
        right = False
    if not right:
        raise UsageError(f"{path} is not what an import writes: 'prepare' is {way!r:.100}")
    return dict(way)


def middle_square(image: Image.Image, size: int) -> Tensor:
    """The middle (C, size, size) of an image whose short side is made ``size`` long: torchvision's resize and crop."""
    width, height = image.size
    short = min(width, height)
    if short != size:
        wide, high = int(size * width / short), int(size * height / short)
        if wide * high > MOST_PIXELS:  # a thin image would have to be enlarged as a whole
            x, y = max(0, width - width * size / wide) / 2, max(0, height - height * size / high) / 2
            image = image.resize((size, size), Image.Resampling.BILINEAR, (x, y, width - x, height - y))
        else:
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
    x, y = round((image.width - size) / 2), round((image.height - size) / 2)
    square = np.array(image.crop((x, y, x + size, y + size)))
    return torch.from_numpy(square.reshape(size, size, -1)).permute(2, 0, 1).contiguous()


def prepare_published(image: Image.Image, way: Mapping[str, Any], side: int, name: str = "an image") -> Tensor:
    """An image as ``library`` of ``way`` prepares it for a published model: (C, side, side) of uint8.

    ``resize`` is the length of the short side, or height and width; ``crop`` the height and width that are cut out of
    the middle; either may be None. Raises UsageError that names an image which is so thin that it would be huge, or
    becomes another size.
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    picture: Any = image
    if way["library"] == "transformers":
        picture = functional.pil_to_tensor(image)
    if (size := way["resize"]) is not None:
        short, long = sorted(image.size)
        if isinstance(size, int) and size * size * long / short > MOST_PIXELS:
            raise UsageError(f"{name} of {image.width} × {image.height} pixels is too thin to be resized to {size}.")
        kind = way["interpolation"]
        exact = kind == "nearest" and way["library"] == "transformers"
        mode = InterpolationMode("nearest-exact" if exact else kind)
        picture = functional.resize(picture, [size] if isinstance(size, int) else size, mode, antialias=True)
    if way["library"] == "timm":
        picture = functional.pil_to_tensor(functional.center_crop(picture, way["crop"]))
    elif way["crop"] is not None:
        high, wide = way["crop"]
        missing = max(0, high - picture.shape[1]), max(0, wide - picture.shape[2])
        sides = [missing[1] // 2, missing[0] // 2, (missing[1] + 1) // 2, (missing[0] + 1) // 2]
        picture = functional.pad(picture, sides)
        begin = [(length - part) // 2 for length, part in zip(picture.shape[1:], (high, wide), strict=True)]
        picture = functional.crop(picture, *begin, high, wide)
    if (size := tuple(picture.shape[1:])) != (side, side):
        raise UsageError(
            f"{name} becomes {size[1]} × {size[0]} pixels as this model's own library prepares it, and the model needs "
            f"{side} × {side}."
        )
    return picture


def decode(image: Image.Image, mode: str, name: str) -> Image.Image:
    """The image in the ``mode`` L, RGB or RGBA as viewers show it: turned as its EXIF data say, and, in L and RGB,
    over white where it is transparent. Raises UsageError for a damaged file.
    """
    try:
        image.load()  # which turns some formats already
        with contextlib.suppress(Exception):  # damaged EXIF data raise whatever they lead to: viewers ignore them
            way = image.getexif().get(ExifTags.Base.Orientation)
            image = image.transpose(TURNS[way]) if way in TURNS else image
        if mode != "RGBA" and image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        return image.convert(mode)
    except UNREADABLE as error:
        raise UsageError(f"{name} cannot be read as an image: {error}") from error


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


class Packed:
    """Opens some images of those whose files stand one after the other in a file, cut at ``edges`` (N + 1,)."""

    def __init__(self, path: Path, edges: np.ndarray, part: np.ndarray) -> None:
        self.path, self.edges, self.part = path, edges, part

    def __call__(self, index: int) -> Image.Image:
        begin, end = (int(edge) for edge in self.edges[self.part[index] : self.part[index] + 2])
        with self.path.open("rb") as file:
            file.seek(begin)
            return open_header(io.BytesIO(file.read(end - begin)), f"image {index}")


def open_header(source: str | io.BytesIO, path: str = "") -> Image.Image:
    """The image, its size known and nothing decoded. Raises UsageError when it is no image, or a huge one."""
    path = path or str(source)
    try:
        with warnings.catch_warnings():  # Pillow's own limit is higher and only a warning
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(source, formats=FORMATS)
    except UNREADABLE as error:
        if isinstance(source, str):
            limits.refuse_other_file(source)
        else:
            limits.refuse_other_kind(path, source.getvalue())
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
