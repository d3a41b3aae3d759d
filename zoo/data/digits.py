"""Handwritten digits without a download, from scikit-learn."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from zoo.data.augment import Augment
from zoo.data.cache import cached_entry, write_arrays
from zoo.data.image_data import ImageData, Split, square_images, stratified_split
from zoo.errors import UsageError

SPLIT = (20170612,)  # fixed seed of the split


class Digits(ImageData):
    """1,797 grey images of 8 × 8 pixels (Alpaydin and Kaynak 1998), from scikit-learn.

    A fifth of each class, drawn by a seed fixed for all, is the validation split, and the test split is the same:
    report several seeds, since one of its 360 images is 0.3 percent.
    """

    def __init__(
        self,
        batch_size: int = 32,
        augment: Augment = "none",
        image_size: int | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """`image_size` resizes; None leaves the images as they are."""
        super().__init__(image_size, batch_size, augment, num_workers, seed)

    def read(self) -> tuple[dict[str, Split], list[str]]:
        """The splits and the names of the classes. Raises UsageError without scikit-learn."""
        try:
            release = version("scikit-learn")
        except PackageNotFoundError as error:
            raise UsageError(
                "the data set Digits needs scikit-learn: pip install 'zoo-transformers[digits]'.\n"
                "Recipes that do without: vit-glyphs"
            ) from error
        entry = cached_entry("digits", {"format": 1, "scikit-learn": release}, _extract)
        with np.load(entry / "digits.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        train, val = stratified_split(labels, 0.2, SPLIT)
        parts = {"train": train, "val": val}
        splits = {
            name: Split(square_images(images[part], self.image_size, "Digits"), labels[part])
            for name, part in parts.items()
        }
        return splits, [str(number) for number in range(10)]


def _extract(folder: Path) -> None:
    from sklearn.datasets import load_digits  # only here: it imports scipy, which takes a second

    images, labels = load_digits(return_X_y=True)
    grey = (np.asarray(images) * 15).astype(np.uint8).reshape(-1, 8, 8)  # 0…16 become 0…240, without rounding
    write_arrays(folder / "digits.npz", images=grey, labels=np.asarray(labels, dtype=np.int64))
