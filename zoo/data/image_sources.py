"""Labelled images from files: torchvision's data sets, folders of images, and arrays."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import logging
import math
import os
import re
import time
import unicodedata
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from zoo.data.augment import Augment
from zoo.data.cache import cached_entry
from zoo.data.data import require_fraction, split_by_content, tell_repeated
from zoo.data.image_data import ImageData, Split, square_images, stratified_split
from zoo.data.image_decoding import UNREADABLE, FilePixels, Files, Items, Packed, open_header
from zoo.data.source_files import (
    VAL_NAMES,
    count_kinds,
    file_state,
    find_place,
    list_folder,
    missing_file,
    tell_left_out,
    tell_unused,
)
from zoo.data.table_files import Row, Tables, choose_columns, is_columnar, is_table, label_of
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.registry import suggest

RECIPES = "vit-tiny, vit-glyphs"
COLUMNS = {"image": ["image", "file_name"], "label": ["label"]}  # as the library datasets calls them
SPLIT = (20170612,)
# files up to this sum are decoded once before training; of more, the headers alone are read
DECODED_BYTES = 256 * 2**20
# also .gif and .pnm, which torchvision passes over without a word
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
UNSETTLED = 2 * 10**9  # nanoseconds after a change in which another one may carry the same time
SAMPLED_IDENTITY = 16  # images whose pixels tell one root of a data set of torchvision from another
SPLIT_ALIKE = re.compile(r"(train|training|val|valid|validation|dev|test|testing)([ _-]?(set|data|images|split))?")
log = logging.getLogger(__name__)
# without data sets of torchvision that are not labelled images, are several under one name, read videos, or unpack
# unverified archives
LABELLED = (
    "CIFAR10", "CIFAR100", "CLEVRClassification", "Country211", "DTD", "FER2013", "FGVCAircraft", "FashionMNIST",
    "Flowers102", "Food101", "GTSRB", "Imagenette", "KMNIST", "LFWPeople", "MNIST", "OxfordIIITPet", "PCAM",
    "Places365", "QMNIST", "RenderedSST2", "STL10", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
# what torchvision calls them; of three the labels of the test images are not published, and their validation tests
SPLITS = {
    "OxfordIIITPet": {"train": "trainval"}, "Places365": {"train": "train-standard", "test": "val"},
    "Imagenette": {"test": "val"}, "CLEVRClassification": {"test": "val"},
}  # fmt: skip


class ImageFolder(ImageData):
    """Folders of images: ``path/train/CLASS/…``, ``path/val/CLASS/…`` and perhaps ``path/test/CLASS/…``.

    Without a folder train, path/CLASS/… are the training images. Without one of val, valid, validation or dev,
    `val_fraction` of each class validates, images of equal content on one side. Images become RGB squares: the short
    side is made `image_size` long and the middle kept. Every header is checked once before training. An image is
    turned as its EXIF orientation says, as viewers show it. Links are followed; hidden files and those of other endings
    are left out, counted and named. Mean and deviation come from 2,000 training images, evenly over the classes. The
    fingerprint covers the files' names and contents. The test split is the validation split when there is no test
    folder.

    Of tables, which are Parquet, folders of the library datasets, CSV or JSON lines, the columns `image` and `label`
    are read: an image is its file's bytes, or the path of the file from the table's folder on. The cache keeps a copy.
    """

    def __init__(
        self,
        path: str,
        image_size: int = 224,
        batch_size: int = 64,
        augment: Augment = "none",
        num_workers: int = 0,
        seed: int | None = None,
        bad: Literal["error", "skip"] = "error",
        val_fraction: float = 0.1,
        columns: dict[str, str] | None = None,
    ) -> None:
        """
        Args:
            path: folder with train/, perhaps val/ and test/, and in these a folder for each class; or tables.
            bad: what happens where an image cannot be read: an error, or it is left out and counted.
            val_fraction: share of the training images that validates where there are no validation images.
            columns: names of the columns `image` and `label` in tables, where they have others.
        """
        super().__init__(image_size, batch_size, augment, num_workers, seed)
        self.path, self.side, self.bad, self.val_fraction = find_place(path), image_size, bad, val_fraction
        self.columns = columns
        require_fraction(val_fraction=val_fraction)
        choose_columns(columns, COLUMNS)
        if bad not in ("error", "skip"):
            raise UsageError(f"bad is {bad!r}: it must be error or skip")

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a folder of random images with two classes per split; the options that read it."""
        for number, split in enumerate(("train", "val", "test")):
            for label, images in enumerate(np.split(sample_images(16, (12, 10, 3), seed, number), 2)):
                place = folder / split / "ab"[label]
                place.mkdir(parents=True)
                for count, image in enumerate(images):
                    Image.fromarray(image).save(place / f"{count}.png")
        return {"path": str(folder), "image_size": 8}

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits and the names of the classes. Raises UsageError for a missing split or class."""
        if self.columns or is_columnar(self.path, is_image) or (self.path.is_file() and is_table(self.path.name)):
            columns = choose_columns(self.columns, COLUMNS)
            return self._read_tables(Tables({"train": str(self.path)}, columns, RECIPES, names_files=True))
        files: dict[str, list[tuple[str, int]]] = {}
        names: list[str] = []
        for name, folder in self._folders().items():
            members = class_files(folder)
            names = names or sorted(members)
            if sorted(members) != names:
                more, less = set(members) - set(names), set(names) - set(members)
                differences = [
                    f"{', '.join(sorted(s)[:5])} only in {w}" for s, w in ((less, "train"), (more, name)) if s
                ]
                raise UsageError(f"{self.path}: the classes of train and {name} differ: {'; '.join(differences)}")
            if len(names) == 1:
                raise UsageError(f"{folder} has a single class, {names[0]}: there is nothing to tell apart.")
            files[name] = [(str(path), number) for number, label in enumerate(names) for path in members[label]]
        contents: dict[str, str] = {}
        for name in files:
            files[name], digests = self._readable(files[name])
            contents |= digests
        if "val" not in files:
            samples = files["train"]
            validates = split_by_content(
                [contents[path] for path, _ in samples], self.val_fraction, SPLIT, [label for _, label in samples]
            )
            pairs = list(zip(samples, validates, strict=True))
            files |= {split: [sample for sample, out in pairs if out == (split == "val")] for split in ("train", "val")}
        tell_repeated({name: [contents[path] for path, _ in samples] for name, samples in files.items()}, "images")
        return {name: self._split(samples, contents) for name, samples in files.items()}, names

    def _read_tables(self, tables: Tables) -> tuple[dict[str, Split], list[str]]:
        """The splits and the names of the classes of tables, whose images are copied to the cache once."""
        key = {"format": 1, "files": tables.digests(), "columns": list(tables.columns.names.items()), "bad": self.bad}
        homes = [str(file.parent.absolute()) for files in tables.splits.values() for file in files]

        def find(folder: Path) -> None:
            files = (image_file(row) for split in tables.splits for row in tables.rows(split))
            outside = [str(file) for file in files if isinstance(file, Path)]
            atomic_files.write_bytes(folder / "outside.json", json.dumps(outside).encode())

        places = cached_entry("image-paths", {**key, "homes": homes}, find)
        outside = json.loads((places / "outside.json").read_text("utf-8"))
        tables.tell_unused(map(Path, outside))
        key["outside"] = [[place, *file_state(place)] for place in outside]

        def pack(folder: Path) -> None:
            about = {split: pack_images(tables, split, folder / f"{split}.bin", self.bad) for split in tables.splits}
            atomic_files.write_bytes(folder / "images.json", json.dumps(about).encode())

        entry = cached_entry("image-tables", key, pack)
        about = json.loads((entry / "images.json").read_text("utf-8"))
        present = set(about["train"]["labels"])
        names = sorted(present, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
        if len(names) < 2:
            raise UsageError(f"{self.path} has a single class, {', '.join(names)}: there is nothing to tell apart.")
        tell_repeated({split: one["digests"] for split, one in about.items()}, "images")
        splits, numbers = {}, {name: number for number, name in enumerate(names)}
        for split, one in about.items():
            if strange := set(one["labels"]) - present:
                raise UsageError(f"the {split} split has the label {min(strange)!r}, which no training image has")
            labels = np.array([numbers[label] for label in one["labels"]], np.int64)
            parts = {split: np.arange(len(labels))}
            if split == "train" and "val" not in about:
                validates = split_by_content(one["digests"], self.val_fraction, SPLIT, one["labels"])
                parts = {"train": np.flatnonzero(~validates), "val": np.flatnonzero(validates)}
            edges = np.array(one["edges"], np.int64)
            for name, part in parts.items():
                contents = [one["digests"][number] for number in part]
                images = Packed(entry / f"{split}.bin", edges, part)
                pixels = FilePixels(len(part), self.side, images, contents)
                splits[name] = Split(pixels, labels[part])
        return splits, names

    def _folders(self) -> dict[str, Path]:
        """The folder of each split that has one."""
        inside = {entry.name: entry for entry in self.path.iterdir() if entry.is_dir()} if self.path.is_dir() else {}
        for name in [name for name in inside if name.lower() in ("train", *VAL_NAMES, "test")]:
            if inside.setdefault(name.lower(), inside[name]) == inside[name]:  # Train as train, where that is none
                inside[name.lower()] = inside.pop(name)
        splits = {"train": ["train"], "val": [name for name in VAL_NAMES if name in inside], "test": ["test"]}
        if len(splits["val"]) > 1:
            raise UsageError(f"{self.path} has {' and '.join(splits['val'])}, and one folder of images can validate.")
        folders = {split: inside[names[0]] for split, names in splits.items() if names and names[0] in inside}
        alike = sorted(name for name in inside if SPLIT_ALIKE.fullmatch(name.lower()))
        if not folders and alike:
            raise UsageError(
                f"{self.path}: folders that look like splits would be read as classes: {', '.join(alike)}.\n"
                "Name the folders of splits train, val and test, and those of classes otherwise."
            )
        if not folders and any(not name.startswith(".") for name in inside):
            return {"train": self.path}
        if "train" not in folders:
            raise missing_file(self.path, RECIPES, "a folder with a folder of images for each class")
        tell_unused(self.path, folders.values())
        return folders

    def _split(self, samples: list[tuple[str, int]], contents: dict[str, str]) -> Split:
        paths = [path for path, _ in samples]
        files = [[str(Path(path).relative_to(self.path)), contents[path]] for path in paths]
        pixels = FilePixels(len(paths), self.side, Files(paths), files)
        return Split(pixels, np.array([label for _, label in samples], np.int64))

    def _readable(self, samples: list[tuple[str, int]]) -> tuple[list[tuple[str, int]], dict[str, str]]:
        """The samples whose images can be read, and a digest of each file's content.

        Raises UsageError for the others unless they may be left out.
        """
        paths = [path for path, _ in samples]
        states = [file_state(path) for path in paths]
        whole = sum(state[0] for state in states) <= DECODED_BYTES

        def check() -> dict[str, dict[str, str]]:
            wrong = {path: why for path in paths if (why := image_problem(path, whole))}
            return {"wrong": wrong, "contents": {path: content_digest(path) for path in paths if path not in wrong}}

        def write_checked(folder: Path) -> None:  # in ASCII, as a file's name may be no UTF-8
            atomic_files.write_bytes(folder / "checked.json", json.dumps(check()).encode())

        key = {"format": 4, "files": [[path, *state] for path, state in zip(paths, states, strict=True)]}
        if any(state[2] > time.time_ns() - UNSETTLED for state in states):
            checked = check()  # a file that changes again within a tick of the clock would look as it does now
        else:
            entry = cached_entry("headers", key, write_checked)
            checked = json.loads((entry / "checked.json").read_text("utf-8"))
        wrong, contents = checked["wrong"], checked["contents"]
        if not wrong:
            return samples, contents
        problem = next(iter(wrong.values()))
        if self.bad == "error":
            more = f"\n{len(wrong)} of {len(samples)} images are like this." if len(wrong) > 1 else ""
            raise UsageError(f"{problem}{more}\nLeave such images out: --data.bad skip")
        folder = os.path.commonpath([os.path.dirname(os.path.dirname(path)) for path in paths])
        if len(wrong) == len(samples):
            raise UsageError(f"{folder}: none of its {len(samples)} images can be read. The first: {problem}")
        log.warning("%s: %d of %d images are left out. The first: %s", folder, len(wrong), len(samples), problem)
        return [sample for sample in samples if sample[0] not in wrong], contents


def pack_images(tables: Tables, split: str, path: Path, bad: str) -> dict[str, list[Any]]:
    """Write the image files of a split one after the other to ``path``: where they begin and end, digests, labels.

    Raises UsageError that names a row without an image or a label, unless such images are left out.
    """
    edges, digests, labels, wrong = [0], [], [], []
    with path.open("wb") as file:
        for row in tables.rows(split):
            label, place = label_of(row, "label"), image_file(row)
            content = place.read_bytes() if isinstance(place, Path) else place
            try:
                with open_header(io.BytesIO(content), row.place) as image:
                    image.load()
            except (UsageError, *UNREADABLE) as error:
                problem = str(error) if isinstance(error, UsageError) else f"{row.place} is no whole image: {error}"
                if bad == "error":
                    raise UsageError(f"{problem}\nLeave such images out: --data.bad skip") from error
                wrong.append(problem)
                continue
            file.write(content)
            edges.append(file.tell())
            digests.append(hashlib.blake2b(content, digest_size=12).hexdigest())
            labels.append(label)
    if not labels:
        raise UsageError(
            f"{tables.splits[split][0]}: none of its {len(wrong)} images can be read. The first: {wrong[0]}"
        )
    if wrong:
        count = len(wrong) + len(labels)
        log.warning("the %s split: %d of %d images are left out. The first: %s", split, len(wrong), count, wrong[0])
    return {"edges": edges, "digests": digests, "labels": labels}


def image_file(row: Row) -> bytes | Path:
    """The file of a row's image: its bytes, or where it is. Raises UsageError for another value."""
    value = row.values["image"]
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or not value:
        raise UsageError(f"{row.place}: the image must be a file's bytes, or its path.")
    if not (row.folder / value).is_file():
        raise UsageError(f"{row.place}: the image {row.folder / value} is not there.")
    return row.folder / value


def sample_images(count: int, shape: tuple[int, ...], *seed: int) -> np.ndarray:
    """Noise (count, *shape) of uint8, for files that data is tried with."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def is_image(name: str) -> bool:
    """By the end of its name."""
    return name.lower().endswith(ENDINGS)


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, a folder in ``folder``, whose name is read as Unicode's composed form.

    Files that belong to no class, or are no images, are counted and named. Raises UsageError for a class without any.
    """
    top = list_folder(folder, lambda name: False, depth=0)
    members: dict[str, list[Path]] = {}
    others = {path: kind for path, kind in top.others.items() if kind != "a folder"}
    for place in top.others.keys() - others.keys():
        if place.name.encode(errors="replace").decode() != place.name:
            raise UsageError(f"{folder}: the name of the class {place.name!a} is not UTF-8: rename the folder.")
        inside = list_folder(place, is_image)
        members.setdefault(unicodedata.normalize("NFC", place.name), []).extend(inside.files)
        others |= inside.others
    empty = [name for name, files in sorted(members.items()) if not files]
    if empty or not members:
        content = f"It holds {count_kinds(others)}, which are not read. " if others else ""
        what = f"there is no image of the class {', '.join(empty[:5])}" if members else "there is no folder of a class"
        raise UsageError(
            f"{folder}: {what}.\n{content}Each class is a folder of images whose names end in {' '.join(ENDINGS)}"
        )
    tell_left_out(
        folder, dict(sorted(others.items())), f"images lie in a class's folder and end in {' '.join(ENDINGS)}"
    )
    return {name: sorted(files, key=lambda path: (str(path.parent), path.name)) for name, files in members.items()}


def content_digest(path: str) -> str:
    """A digest of all bytes of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()


def image_problem(path: str, whole: bool) -> str:
    """Why an image cannot be read, by its header or as a whole; nothing where it can."""
    try:
        with open_header(path) as image:
            if whole:
                image.load()
    except UsageError as error:
        return str(error)
    except UNREADABLE as error:
        return f"{path} cannot be read as an image: {error}"
    return ""


class NpzImages(ImageData):
    """NumPy archives with ``images`` uint8 (N, H, W[, C]), ``labels`` (N,) and perhaps ``names`` of the classes.

    The test split is the validation split unless `test` is given.
    """

    def __init__(
        self,
        train: str,
        val: str,
        test: str | None = None,
        image_size: int | None = None,
        batch_size: int = 64,
        augment: Augment = "none",
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            train: archive of the training images.
            val: archive of the validation images.
            test: archive of the test images; the validation images unless given.
        """
        super().__init__(image_size, batch_size, augment, num_workers, seed)
        self.files = {"train": train, "val": val} | ({"test": test} if test else {})

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write one .npz file of random images per split; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            labels = np.random.default_rng((seed, number)).permutation(np.arange(24) % 3)
            file = io.BytesIO()
            np.savez(file, images=sample_images(24, (8, 8), seed, number), labels=labels)
            atomic_files.write_bytes(folder / f"{split}.npz", file.getvalue())
        return {split: str(folder / f"{split}.npz") for split in ("train", "val", "test")}

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits and the names of the classes. Raises UsageError for files of different sizes."""
        splits, names = {}, []
        for name, file in self.files.items():
            arrays = _npz(find_place(file))
            splits[name] = Split(square_images(arrays["images"], self.image_size, file), arrays["labels"])
            if name == "train":
                names = class_names(arrays, file)
            elif names and (others := class_names(arrays, file)) and others != names:
                raise UsageError(
                    f"{file}: the names of the classes are {', '.join(others):.150}, but those of "
                    f"{self.files['train']} are {', '.join(names):.150}.\n"
                    "Give both the same names in the same order, and number the labels so."
                )
            pixels, train_pixels = splits[name].pixels, splits["train"].pixels
            if (pixels.size, pixels.channels) != (train_pixels.size, train_pixels.channels):
                raise UsageError(
                    f"{file}: images of size {pixels.size} with {pixels.channels} channels, but {self.files['train']} "
                    f"has {train_pixels.size} with {train_pixels.channels}"
                )
        return splits, names or class_numbers(splits["train"].labels, self.files["train"])


def class_names(arrays: dict[str, np.ndarray], where: str) -> list[str]:
    """The array ``names`` as text; bytes are read as UTF-8. Empty where there is no such array."""
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in arrays.get("names", ())]
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: the names of the classes are bytes that are not UTF-8: {error.object!r}") from error


def class_numbers(labels: np.ndarray, where: str) -> list[str]:
    """The names of classes that have none, their numbers. Raises UsageError where there are gaps between them.

    A class that no image has would be trained all the same: numbers such as 1000000 would make a million of them.
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return []  # check_labels says what is wrong
    present = np.unique(labels[labels >= 0])
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if len(gaps):
        raise UsageError(
            f"{where}: labels run to {present[-1]}, and no image has the label {gaps[0]}: there are {len(present)} "
            f"classes with images.\nNumber them from 0 to {len(present) - 1}, or add an array 'names' of all classes."
        )
    return [str(number) for number in present]


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        _check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("images", "labels", "names") if name in archive.files}
            present = archive.files
    except FileNotFoundError as error:
        raise missing_file(str(path), RECIPES) from error
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a whole .npz archive of plain arrays: {error}") from error
    for name in ("images", "labels"):
        if name not in arrays:
            raise UsageError(f"{path} has no array {name!r}, only {', '.join(present) or 'nothing'}")
    return arrays


def _check_archive(path: Path) -> None:
    """Raise ValueError for arrays whose size contradicts their header, before allocating memory."""
    members = limits.zip_members(path)
    with zipfile.ZipFile(path) as archive:
        for name, info in members.items():
            with archive.open(name) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                size, have = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
            if dtype.hasobject:
                raise ValueError(f"{name} holds Python objects")
            if size != have:
                raise ValueError(f"{name} says {dtype} {shape}, {size} bytes, and holds {have}")


class TorchvisionImages(ImageData):
    """A data set of torchvision by its class name, such as CIFAR10, MNIST or FashionMNIST, from files on disk.

    Nothing is downloaded. `val_fraction` of each class of the training images, drawn by a seed fixed for all, is the
    validation split; the test split is torchvision's.
    """

    def __init__(
        self,
        name: str,
        path: str,
        image_size: int | None = None,
        batch_size: int = 64,
        augment: Augment = "none",
        val_fraction: float = 0.1,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            name: class of torchvision.datasets, such as CIFAR10.
            path: folder that holds the files.
            val_fraction: share of the training images that validates.
        """
        super().__init__(image_size, batch_size, augment, num_workers, seed)
        require_fraction(val_fraction=val_fraction)
        self.dataset, self.path, self.val_fraction = name, find_place(path), val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """MNIST's four files, of a few images."""
        place = folder / "MNIST" / "raw"
        place.mkdir(parents=True)
        for number, (split, count) in enumerate((("train", 60), ("t10k", 20))):
            images = sample_images(count, (28, 28), seed, number)
            labels = np.random.default_rng((seed, number)).permutation(np.arange(count) % 10).astype(np.uint8)
            for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
                sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
                atomic_files.write_bytes(place / name, bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
        return {"name": "MNIST", "path": str(folder)}

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits, validation cut from the training images, and the names of the classes."""
        train, test = self._open("train"), self._open("test")
        labels = _labels(train)
        train_part, val_part = stratified_split(labels, self.val_fraction, SPLIT)
        splits = {
            "train": self._split(train, labels, train_part, "train"),
            "val": self._split(train, labels, val_part, "train"),
            "test": self._split(test, _labels(test), np.arange(len(test)), "test"),
        }
        names = [str(name) for name in getattr(train, "classes", ())]
        return splits, names or class_numbers(labels, self.dataset)

    def _split(self, dataset: Any, labels: np.ndarray, part: np.ndarray, split: str) -> Split:
        data = np.asarray(getattr(dataset, "data", ()))
        if data.dtype == np.uint8 and data.ndim in (3, 4) and len(data) == len(labels):
            if data.ndim == 4 and data.shape[1] in (1, 3) and data.shape[3] not in (1, 3):
                data = data.transpose(0, 2, 3, 1)  # SVHN and STL10 put channels first
            return Split(square_images(data[part], self.image_size, self.dataset), labels[part])
        if self.image_size is None:
            raise UsageError(f"the images of {self.dataset} may differ in size: give image_size")
        items = Items(dataset, part)
        some = np.unique(np.linspace(0, len(part) - 1, SAMPLED_IDENTITY).astype(np.int64)).tolist() if len(part) else []
        digests = [hashlib.sha256(items(int(index)).convert("RGB").tobytes()).hexdigest()[:16] for index in some]
        identity = [self.dataset, split, len(labels), part.tolist(), digests]  # another root may hold other images
        return Split(FilePixels(len(part), self.image_size, items, identity), labels[part])

    def _open(self, split: str) -> Any:
        from torchvision import datasets

        if self.dataset not in LABELLED:
            raise UsageError(
                f"torchvision has no data set {self.dataset!r:.80} of labelled images that zoo reads."
                f"{suggest(self.dataset, LABELLED)} It may be {', '.join(LABELLED)}; for others: ImageFolder, NpzImages"
            )
        cls = getattr(datasets, self.dataset)
        options = inspect.signature(cls).parameters
        if "train" in options:
            arguments: dict[str, Any] = {"train": split == "train"}
        elif "split" in options:
            arguments = {"split": SPLITS.get(self.dataset, {}).get(split, split)}
        else:
            raise UsageError(f"torchvision's {self.dataset} has no train and test split: use ImageFolder or NpzImages")
        arguments |= {"download": False} if "download" in options else {}
        try:
            return cls(str(self.path), **arguments)
        except (RuntimeError, OSError) as error:
            raise missing_file(f"the {split} split of the data set {self.dataset} in {self.path}", RECIPES) from error
        except ValueError as error:  # it has splits of other names, or files that are damaged
            raise UsageError(
                f"torchvision does not give the {split} split of its {self.dataset} in {self.path}: "
                f"{' '.join(str(error).split())}\nUse ImageFolder or NpzImages"
            ) from error


def _labels(dataset: Any) -> np.ndarray:
    """The labels of a data set of torchvision, which have several names there."""
    for name in ("targets", "labels", "_labels"):
        labels = getattr(dataset, name, None)
        if labels is not None and len(labels) == len(dataset):
            labels = np.asarray(labels)
            return labels if labels.ndim == 1 else labels[:, 0]  # of QMNIST, whose class is the first of eight
    return np.array([dataset[i][1] for i in range(len(dataset))])
