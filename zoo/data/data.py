"""The base class of data modules."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from zoo.data.batches import BatchDataset, Batches, Loader, Plan, RowPlan, generator
from zoo.data.batches import log_once as log_once
from zoo.data.streams import Stream, StreamLoader
from zoo.errors import UsageError
from zoo.value_checks import at_least, at_most

MOST_WORKERS = 1024  # processes that load


class Data(LightningDataModule, ABC):
    """A data set with its splits, their order, and the sizes that a model needs.

    Build the Trainer with ``use_distributed_sampler=False``: the loaders deal batches to the processes themselves.
    Every process must use the same seed, which is torch's initial seed unless given.
    """

    kind: ClassVar[str] = "data"
    gives: ClassVar[str] = "something else"  # what its samples are, in the words of `learns_from` of tasks
    # the command that makes these data anew with a run's tokenizer, where it is no option of theirs
    tokenizing_command: ClassVar[str] = ""
    # share of the validation and test samples that may stand in the training data, as repeated texts do; 1: all of them
    twins: ClassVar[float] = 0.05
    _fingerprint: str

    def __init__(self, batch_size: int = 1, num_workers: int = 0, seed: int | None = None) -> None:
        """
        Args:
            batch_size: samples per batch and process.
            num_workers: processes that load batches; 0 loads in the training process.
            seed: of order and augmentation; the run's unless given.
        """
        super().__init__()
        at_least(1, batch_size=batch_size)
        at_least(0, num_workers=num_workers)
        at_most(MOST_WORKERS, num_workers=num_workers)
        self.batch_size, self.num_workers = batch_size, num_workers
        self.seed = torch.initial_seed() if seed is None else seed
        # a process may get nothing of an evaluation split with fewer samples than processes
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.datasets: dict[str, BatchDataset] = {}  # "train", "val", "test" and perhaps "predict"
        self.streams: dict[str, Stream] = {}  # "train", where training samples are read one after the other

    @abstractmethod
    def load(self) -> None:
        """Fill `datasets`, building the caches that are missing. Called once; any process may call it at any time.

        What trains may stand in `streams` instead.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The sizes that a model needs, by the names of its options: ``{"vocab_size": 256}``."""

    def fingerprint(self) -> str:
        """sha256 of content, tokenizer and split: equal exactly where two runs learn from the same data.

        By default what `load` leaves in ``_fingerprint``.
        """
        self.ready()
        return self._fingerprint

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that inference on new inputs needs, such as tokenizer.json."""

    def adopt(self, folder: Path) -> None:
        """Take what a model was trained with from its folder, before it is trained further or evaluated on these data.

        By default nothing. Tokens and classes are not adopted: evaluation refuses data whose numbers mean others.
        """

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write small files that depend on the seed to an empty folder, and return the options that name them.

        `zoo check` tests data modules that read files with these. Raises NotImplementedError if there are none.
        """
        raise NotImplementedError

    def prepare_data(self) -> None:
        """Build the caches; Lightning calls this in one process per machine."""
        self.ready()

    def setup(self, stage: str | None = None) -> None:
        """Load the caches; Lightning calls this in every process."""
        self.ready()

    def ready(self) -> None:
        """Prepare and load, unless that was done before."""
        if not self.datasets:
            self.load()

    def plan(self, split: str, world: int, seed: int | None) -> Plan:
        """The batches of a split; `seed` is None where the order must not change."""
        return RowPlan(len(self.datasets[split]), self.batch_size * world, world, seed)

    def train_dataloader(self) -> Loader | StreamLoader:
        """Shuffled batches of the training split."""
        self.ready()
        if "train" in self.streams:
            return self.stream_loader(self.streams["train"])
        return self._loader("train", self.seed)

    def val_dataloader(self) -> Loader:
        """Batches of the validation split, in a fixed order."""
        return self._loader("val", None)

    def test_dataloader(self) -> Loader:
        """Batches of the test split, in a fixed order."""
        return self._loader("test", None)

    def predict_dataloader(self) -> Loader:
        """The test split."""
        # it cannot know that Batches leaves out nothing
        warnings.filterwarnings("ignore", "You are using a custom batch sampler `Batches`")
        return self._loader("predict" if "predict" in self.datasets else "test", None)

    def stream_loader(self, stream: Stream) -> StreamLoader:
        """Batches of a stream for this process."""
        rank, world, frozen = self._process()
        return StreamLoader(stream, self.batch_size, rank, world, self.num_workers, frozen)

    def _process(self) -> tuple[int, int, bool]:
        """Which share of a batch this process reads, of how many, and whether every epoch has the order of the first.

        Processes that compute parts of the same samples read the same: their strategy has ``data_process``.
        """
        if self.trainer is None:
            return 0, 1, False
        frozen = bool(getattr(self.trainer, "overfit_batches", 0))
        every = self.trainer.global_rank, self.trainer.world_size
        rank, count = getattr(getattr(self.trainer, "strategy", None), "data_process", every)
        return rank, count, frozen

    def _loader(self, split: str, seed: int | None) -> Loader:
        self.ready()
        rank, world, frozen = self._process()
        plan = self.plan(split, world, seed)
        if not plan.count:
            size = len(self.datasets[split])
            raise UsageError(f"the {split} split has {size} samples: too few for {world} processes to get one each")
        # by keyword: Lightning makes the loader of prediction anew, with other values
        return Loader(dataset=self.datasets[split], batch_sampler=Batches(plan, rank, frozen), workers=self.num_workers)


def split_by_content(
    contents: Sequence[Hashable], fraction: float, seed: Sequence[int], classes: Sequence[Hashable] = ()
) -> np.ndarray:
    """Which samples validate, (N,) of bool: a random ``fraction`` of the different contents, equal ones on one side.

    Of every class of ``classes``, where samples have any, some content remains for training. Raises UsageError where
    there is too little to divide.
    """
    classes = classes or [None] * len(contents)
    groups: dict[Hashable, set[Hashable]] = {}
    for content, label in zip(contents, classes, strict=True):
        groups.setdefault(content, set()).add(label)
    remaining = Counter(label for labels in groups.values() for label in labels)
    alone = [label for label, count in remaining.items() if count == 1]
    different, count = list(groups), max(1, round(len(groups) * fraction))
    held_out: set[Hashable] = set()
    for number in generator(*seed).permutation(len(different)):
        content = different[number]
        if len(held_out) < count and all(remaining[label] > 1 for label in groups[content]):
            held_out.add(content)
            remaining.subtract(groups[content])
    if not held_out:
        raise UsageError(f"{len(different)} different samples are too few to set some aside for validation")
    if alone and alone != [None]:
        log_once("%d classes have a single sample, which trains and does not validate: %s", len(alone), alone[0])
    return np.array([content in held_out for content in contents])


def tell_repeated(splits: Mapping[str, Iterable[Hashable]], what: str) -> None:
    """Say how many samples of validation and test are samples of training, too."""
    train = set(splits["train"])
    for name in ("val", "test"):
        contents = list(splits.get(name, ()))
        if repeated := sum(content in train for content in contents):
            log_once("%d of %d %s %s are %s of training, too", repeated, len(contents), name, what, what)


def require_fraction(**options: float) -> None:
    """Raise UsageError for the first option outside of the open interval (0, 1)."""
    for name, value in options.items():
        if not 0 < value < 1:
            raise UsageError(f"{name} is {value}: it must lie between 0 and 1, both excluded")
