"""Your own labelled texts: a class, a tab and a text per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.data.batches import generator, sample_sentence
from zoo.data.data import require_fraction
from zoo.data.labelled import CHOICE, LabelledText, TextLabels
from zoo.data.read import missing_file, read_lines
from zoo.errors import UsageError
from zoo.io import atomic_files

RECIPES = "topics-tiny"


class LabelledFiles(TextLabels):
    """``train.tsv``, and perhaps ``val.tsv`` and ``test.tsv``, in a folder: on each line a class, a tab and a text.

    Every name may end in ``.gz``. Without a validation file, `val_fraction` of the training texts is set aside; without
    a test file, test is validation.
    """

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        max_length: int = 128,
        batch_size: int = 32,
        val_fraction: float = 0.1,
        labels: int | None = None,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: folder with train.tsv and perhaps val.tsv and test.tsv.
            tokenizer: a run's folder or a tokenizer.json whose tokenizer is used, instead of one that
                is learned here.
            vocab_size: size of the byte-level BPE vocabulary that is learned from the training texts.
            max_length: tokens of a text that are read; the rest is cut off.
            batch_size: texts per batch and process.
            val_fraction: share of the training texts that validates where there is no val.tsv.
            labels: number of training texts that are used; all unless given.
            seed: of the order; the run's unless given.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, labels, seed)
        require_fraction(val_fraction=val_fraction)
        self.path, self.val_fraction = Path(path).expanduser(), val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write one .tsv file of random texts per split; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            draw = generator(seed, number)
            lines = [f"{'cat' if draw.random() < 0.5 else 'dog'}\t{sample_sentence(draw)}" for _ in range(60)]
            text = "cat\ta\ndog\tb\n" * (split == "train") + "\n".join(lines) + "\n"
            atomic_files.write_text(folder / f"{split}.tsv", text)
        return {"path": str(folder)}

    def texts(self) -> dict[str, list[LabelledText]]:
        """The labelled texts of each split. Raises UsageError without training texts."""
        files = {split: self._file(split) for split in ("train", "val", "test")}
        if files["train"] is None:
            raise missing_file(f"{self.path / 'train.tsv'} (or .gz)", RECIPES)
        splits = {split: read_table(file) for split, file in files.items() if file is not None}
        if len({one.label for one in splits["train"]}) < 2:
            raise UsageError(f"{files['train']} has a single class: there is nothing to tell apart")
        return splits if "val" in splits else splits | split_validation(splits["train"], self.val_fraction)

    def _file(self, split: str) -> Path | None:
        names = (self.path / f"{split}.tsv", self.path / f"{split}.tsv.gz")
        return next((file for file in names if file.is_file()), None)


def read_table(file: Path) -> list[LabelledText]:
    """The lines of a table. Raises UsageError that names the first line without a class or a text."""
    rows = []
    for number, line in enumerate(read_lines(file, RECIPES), 1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip() or not text.strip():
            raise UsageError(f"{file}:{number} must hold a class, a tab and a text")
        rows.append(LabelledText(text, label.strip()))
    if not rows:
        raise UsageError(f"{file} is empty: it must hold a class, a tab and a text per line")
    return rows


def split_validation(texts: list[LabelledText], fraction: float) -> dict[str, list[LabelledText]]:
    """Training and validation texts, drawn by a fixed seed."""
    count = max(1, round(len(texts) * fraction))
    if count >= len(texts):
        raise UsageError(f"{len(texts)} texts are too few to set some aside for validation")
    order = generator(CHOICE).permutation(len(texts))
    validation = set(order[:count].tolist())
    return {
        "train": [text for number, text in enumerate(texts) if number not in validation],
        "val": [text for number, text in enumerate(texts) if number in validation],
    }
