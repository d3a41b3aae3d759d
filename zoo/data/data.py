"""The base class of data modules."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule

from zoo.data.batches import BatchDataset, Batches, Loader, Plan, RowPlan
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
    # share of the validation and test samples that may stand in the training data, as repeated texts do; 1: all of them
    twins: ClassVar[float] = 0.05

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

    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 of content, tokenizer and split: equal exactly where two runs learn from the same data."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that inference on new inputs needs, such as tokenizer.json."""

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
        """The rank of this process, how many there are, and whether every epoch has the order of the first."""
        if self.trainer is None:
            return 0, 1, False
        frozen = bool(getattr(self.trainer, "overfit_batches", 0))
        return self.trainer.global_rank, self.trainer.world_size, frozen

    def _loader(self, split: str, seed: int | None) -> Loader:
        self.ready()
        rank, world, frozen = self._process()
        plan = self.plan(split, world, seed)
        if not plan.count:
            size = len(self.datasets[split])
            raise UsageError(f"the {split} split has {size} samples: too few for {world} processes to get one each")
        # by keyword: Lightning makes the loader of prediction anew, with other values
        return Loader(dataset=self.datasets[split], batch_sampler=Batches(plan, rank, frozen), workers=self.num_workers)


def require_fraction(**options: float) -> None:
    """Raise UsageError for the first option outside of the open interval (0, 1)."""
    for name, value in options.items():
        if not 0 < value < 1:
            raise UsageError(f"{name} is {value}: it must lie between 0 and 1, both excluded")
