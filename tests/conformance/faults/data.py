"""Wrong data: splits that overlap, fingerprints that do not follow the content, and samples that do not load."""

import hashlib
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import get_worker_info
from zoo_scale.document_files import DocumentFiles
from zoo_scale.text_stream import RowReader, TextRows, TextStream
from zoo_text.data.labelled import LabelledText, TextLabels
from zoo_text.data.labelledfiles import LabelledFiles

from faults import planted
from zoo.data.image_data import ArrayPixels, ImageData, Split
from zoo.data.image_sources import ImageFolder, NpzImages
from zoo.data.text import Corpus, TextData, TextFiles
from zoo.errors import UsageError


def sentence(draw: random.Random) -> str:
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=4)) for _ in range(12))


class Sentences(TextLabels):
    """Random texts of two classes."""

    def __init__(self, batch_size: int = 8, shift: int = 0, noisy: bool = False, seed: int | None = None) -> None:
        super().__init__(None, 300, 64, batch_size, None, seed)
        self.shift, self.noisy = shift, noisy

    def texts(self):
        draw = random.Random(self.shift + 100 * self.noisy)
        rows = [LabelledText(sentence(draw), draw.choice(["cat", "dog"])) for _ in range(120)]
        return {"train": rows[:80], "val": rows[80:100], "test": rows[100:]}


class Noise(ImageData):
    """Random images of two classes."""

    def __init__(self, batch_size: int = 8, shift: int = 0, seed: int | None = None) -> None:
        super().__init__(None, batch_size, "none", 0, seed)
        self.shift = shift

    def read(self):
        draw = np.random.default_rng(self.shift)
        images = torch.from_numpy(draw.integers(0, 256, (90, 1, 6, 6), dtype=np.uint8))
        labels = np.arange(90) % 2
        parts = {"train": slice(0, 60), "val": slice(60, 75), "test": slice(75, 90)}
        return {name: Split(ArrayPixels(images[part]), labels[part]) for name, part in parts.items()}, ["a", "b"]


class Story(TextData):
    """A random text for a language model."""

    def __init__(self, batch_size: int = 4, shift: int = 0, seed: int | None = None) -> None:
        super().__init__("chars", 100, 32, batch_size, 0.2, 0, seed)
        self.shift = shift

    def source(self):
        return {"story": [type(self).__name__, self.shift]}

    def documents(self):
        draw = random.Random(self.shift)
        texts = [sentence(draw) for _ in range(60)]
        return Corpus({"train": texts[:50], "val": texts[50:]}, False)


@planted(splits_are_apart="of val stand in the training data")
class ValidatesWithTraining(Sentences):
    """The validation texts are training texts."""

    def texts(self):
        splits = super().texts()
        return {**splits, "val": splits["train"][:20]}


@planted(splits_are_apart="of test stand in the training data")
class TestsWithTraining(Sentences):
    """The test texts are training texts."""

    def texts(self):
        splits = super().texts()
        return {**splits, "test": splits["train"][-20:]}


@planted(splits_are_apart="2 of 20")
class TenthOfValidation(Sentences):
    """A tenth of the validation texts is trained with."""

    def texts(self):
        splits = super().texts()
        return {**splits, "train": splits["train"] + splits["val"][:2]}


@planted(splits_are_apart="of val stand in the training data")
class DrawsWithReplacement(Noise):
    """Training images are drawn out of all of them."""

    def read(self):
        splits, names = super().read()
        everything = torch.cat([split.pixels.images for split in splits.values()])
        picked = np.random.default_rng(0).integers(0, 90, 60)
        return {**splits, "train": Split(ArrayPixels(everything[picked]), picked % 2)}, names


@planted(splits_are_apart="of val stand in the training data")
class LabelsChanged(Noise):
    """Validation images are training images under other labels."""

    def read(self):
        splits, names = super().read()
        train = splits["train"].pixels.images
        return {**splits, "val": Split(ArrayPixels(train[:15]), np.ones(15, np.int64))}, names


@planted(splits_are_apart="of val stand in the training data")
class ValidatesOnItsEnd(Story):
    """The end of a text is set aside for validation, and trained with all the same."""

    def documents(self):
        splits = super().documents().splits
        return Corpus({"train": splits["train"] + splits["val"], "val": splits["val"]}, False)


@planted(fingerprint_follows_content="with --shift")
class FingerprintOfItsName(Sentences):
    """The fingerprint is that of the class."""

    def fingerprint(self):
        return hashlib.sha256(type(self).__name__.encode()).hexdigest()


@planted(fingerprint_follows_content="with --noisy True")
class FingerprintOfOneOption(Sentences):
    """The fingerprint covers one option and not the other."""

    def fingerprint(self):
        return hashlib.sha256(str(self.shift).encode()).hexdigest()


@planted(fingerprint_follows_content="with --shift")
class FingerprintOfSizes(Noise):
    """The fingerprint covers how many images there are."""

    def fingerprint(self):
        self.ready()
        return hashlib.sha256(str({name: len(rows) for name, rows in self.datasets.items()}).encode()).hexdigest()


@planted(fingerprint_follows_content="with --shift")
class FingerprintOfLabels(Noise):
    """The fingerprint covers the labels alone."""

    def fingerprint(self):
        self.ready()
        return hashlib.sha256(b"".join(rows.labels.numpy().tobytes() for rows in self.datasets.values())).hexdigest()


@planted(fingerprint_follows_content="another folder")
class FingerprintOfThePath(LabelledFiles):
    """The fingerprint covers where the files are."""

    def fingerprint(self):
        return hashlib.sha256((str(self.path) + super().fingerprint()).encode()).hexdigest()


@planted(fingerprint_follows_content="another folder")
class FingerprintOfTheTime(LabelledFiles):
    """The fingerprint covers when the files were written."""

    def fingerprint(self):
        times = [file.stat().st_mtime_ns for file in sorted(self.path.iterdir())]
        return hashlib.sha256((str(times) + super().fingerprint()).encode()).hexdigest()


class _Files(LabelledFiles):
    """Labelled texts whose fingerprint covers some of their content."""

    def lines(self) -> list[str]:
        return [line for file in sorted(self.path.iterdir()) for line in file.read_text().splitlines()]

    def covered(self, lines):
        return lines

    def fingerprint(self):
        options = str((self.max_length, self.vocab_size, self.limit))
        return hashlib.sha256((options + "\n".join(self.covered(self.lines()))).encode()).hexdigest()


@planted(fingerprint_follows_content="the last line")
class FingerprintOfTheStart(_Files):
    """The fingerprint covers the first hundred lines."""

    def covered(self, lines):
        return lines[:100]


@planted(fingerprint_follows_content="column 1")
class FingerprintOfTexts(_Files):
    """The fingerprint leaves out the labels."""

    def covered(self, lines):
        return [line.partition("\t")[2] for line in lines]


@planted(fingerprint_follows_content="column 2")
class FingerprintOfClasses(_Files):
    """The fingerprint leaves out the texts."""

    def covered(self, lines):
        return [line.partition("\t")[0] for line in lines]


@planted(fingerprint_follows_content="test.tsv changed")
class FingerprintOfValidation(_Files):
    """The fingerprint covers what is validated with."""

    def lines(self):
        return (self.path / "val.tsv").read_text().splitlines()


@planted(fingerprint_follows_content="0.txt changed")
class FingerprintOfTraining(TextFiles):
    """The fingerprint covers the training text."""

    def fingerprint(self):
        folder = Path(self.paths["train"])
        return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(folder.iterdir()))).hexdigest()


@planted(fingerprint_follows_content="png changed")
class FingerprintOfNames(ImageFolder):
    """The fingerprint covers the names of the files."""

    def fingerprint(self):
        names = [str(file.relative_to(self.path)) for file in sorted(self.path.rglob("*.png"))]
        return hashlib.sha256("".join(names).encode()).hexdigest()


@planted(fingerprint_follows_content="the array labels")
class FingerprintOfImages(NpzImages):
    """The fingerprint leaves out the labels of an archive."""

    def fingerprint(self):
        arrays = [np.load(file)["images"].tobytes() for file in self.files.values()]
        return hashlib.sha256(b"".join(arrays)).hexdigest()


@planted(fingerprint_follows_content="the array images")
class FingerprintOfArchiveLabels(NpzImages):
    """The fingerprint leaves out the images of an archive."""

    def fingerprint(self):
        arrays = [np.load(file)["labels"].tobytes() for file in self.files.values()]
        return hashlib.sha256(b"".join(arrays)).hexdigest()


@planted(splits_and_sizes="raised UsageError", order_is_repeatable="raised UsageError", resumes="raised UsageError")
class CannotBeLoaded(Sentences):
    """Loading raises an error of the user's kind."""

    def texts(self):
        raise UsageError("there is nothing here")


@planted(splits_and_sizes="raised AttributeError", what_it_says_of_itself="raised AttributeError")
class LoadingIsWrong(Sentences):
    """Loading raises a programming error."""

    def texts(self):
        return super().texts()["train"]


@planted(splits_and_sizes="raised UsageError")
class RefusesItsDefaults(Noise):
    """It refuses the options that it has by default."""

    def __init__(self, batch_size: int = 8, shift: int = 0, seed: int | None = None) -> None:
        super().__init__(batch_size, shift, seed)
        if batch_size == 8:
            raise UsageError("batch_size 8 is not allowed")


class _Fetches(Noise):
    """Images that a subclass fetches in a way of its own."""

    def load(self):
        super().load()
        for rows in self.datasets.values():
            rows.batch = self.fetching(rows, rows.batch)

    def fetching(self, rows, batch):
        return batch


@planted(every_sample_loads="raised IndexError")
class LastSampleIsMissing(_Fetches):
    """The last sample cannot be loaded."""

    def fetching(self, rows, batch):
        def fetch(indices, epoch):
            if len(rows) - 1 in indices:
                raise IndexError("no such image")
            return batch(indices, epoch)

        return fetch


@planted(every_sample_loads="not finite")
class OneImageIsNaN(_Fetches):
    """One image is divided by zero."""

    def fetching(self, rows, batch):
        def fetch(indices, epoch):
            images = batch(indices, epoch)
            images["images"][indices == 13] = float("nan")
            return images

        return fetch


class Tale(TextStream):
    """Random texts that are streamed."""


class SpoiledRows(TextRows):
    """Rows of a stream whose class a data module replaces."""

    reader: type = RowReader

    def open(self, shard, epoch):
        return self.reader(self, shard, epoch)


def spoil(data, rows):
    """Give the stream of a data module another class."""
    data.streams["train"].__class__ = rows


class RestartingReader(RowReader):
    def load_state_dict(self, state_dict):
        pass


class RestartingRows(SpoiledRows):
    reader = RestartingReader


@planted(resumes="repeats some or leaves some out")
class RestartsItsShards(Tale):
    """After a resume every shard begins with its first sample."""

    def load(self):
        super().load()
        spoil(self, RestartingRows)


class WindowReader(RowReader):
    def load_state_dict(self, state_dict):
        super().load_state_dict({**state_dict, "row_count": 0})


class WindowRows(SpoiledRows):
    reader = WindowReader


@planted(resumes="repeats some or leaves some out")
class RepeatsItsWindow(Tale):
    """After a resume the samples of the window that were given come again."""

    def load(self):
        super().load()
        spoil(self, WindowRows)


class OverlappingRows(TextRows):
    def shard_units(self, shard, epoch):
        return super().shard_units(shard // 2 * 2, epoch)


@planted(processes_share="stand in two shards")
class SharesItsShards(Tale):
    """Two shards read the same files, so that two processes train with the same samples."""

    def load(self):
        super().load()
        spoil(self, OverlappingRows)


class CountingRows(TextRows):
    def open(self, shard, epoch):
        worker = get_worker_info()
        return super().open(worker.id if worker else shard, epoch)


@planted(workers_change_nothing="two loading processes give other batches")
class RepeatsInWorkers(Tale):
    """A loading process reads the shard of its own number, whichever it is given."""

    def load(self):
        super().load()
        spoil(self, CountingRows)


class WholeRowsReader(RowReader):
    def __next__(self):
        sample = super().__next__()
        return sample if int(sample["targets"][-1]) >= 0 else super().__next__()


class WholeRows(SpoiledRows):
    reader = WholeRowsReader


@planted(an_epoch_is_complete="what is left at the end of a shard belongs to the epoch")
class DropsTheLastRow(Tale):
    """The last row of a shard, which is not full, is left out."""

    def load(self):
        super().load()
        spoil(self, WholeRows)


class HeavyRows(TextRows):
    def blank(self):
        return {**super().blank(), "targets": torch.zeros(self.length, dtype=torch.int64)}


@planted(a_blank_sample_weighs_nothing="must be negative throughout")
class TrainsOnBlanks(Tale):
    """The sample of a process that has run out is trained on."""

    def load(self):
        super().load()
        spoil(self, HeavyRows)


@planted(memory_is_a_window="hold a window of them")
class HoldsItsFiles(Tale):
    """All texts are in memory."""

    def load(self):
        super().load()
        files = self.files["train"]
        self.texts = [document.text for unit in files.units() for document in files.read(unit)]


@planted(fingerprint_follows_content="the fingerprint did not")
class CoversFirstFile(Tale):
    """The fingerprint is that of the first file."""

    def fingerprint(self):
        self.ready()
        return self.files["train"].digests[0]


@planted(splits_are_apart="of val stand in the training data")
class StreamsItsValidation(Tale):
    """The files that validate are trained with too."""

    def load(self):
        super().load()
        rows = self.streams["train"]
        files = DocumentFiles([*self.files["train"].paths, *self.files["val"].paths], self.files["train"].form)
        self.streams["train"] = TextRows(files, self.tokenizer, rows.length, rows.seed, self.options, 0.0)
