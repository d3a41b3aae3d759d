"""Batch samplers and loaders: the order of samples, their batches, and each process's share.

The order is a pure function of (seed, epoch). It is split into *global* batches, of which process r of w takes samples
r, r + w, …: the number of processes does not change the content of a global batch.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from zoo.errors import UsageError, ZooError

log = logging.getLogger(__name__)
MULTIPLE = 8


class Indices(list[int]):
    """The samples of one batch, and the epoch they are drawn in, which augmentation depends on."""

    def __init__(self, items: list[int], epoch: int) -> None:
        super().__init__(items)
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[Indices], tuple[list[int], int]]:
        return Indices, (list(self), self.epoch)


class Plan(ABC):
    """Global batches of one split. `count` is the same in every epoch: Lightning asks for it only once.

    An epoch has every sample exactly once, in as many batches for each process. In training (`seed` is given), a last
    batch with fewer samples than processes takes some of the batch before it; where that would have too few then, and
    in evaluation (`seed` is None), which always has the same order, it joins that batch. A single batch of fewer
    samples than processes is left out of training.
    """

    def __init__(self, edges: list[int], world: int, seed: int | None) -> None:
        """Batch i holds the samples ``edges[i]`` to ``edges[i + 1]`` of the epoch's order."""
        missing = world - (edges[-1] - edges[-2]) if len(edges) > 1 else 0
        self.rearranged = missing > 0  # its last batches are not those of one process
        if missing > 0:
            if len(edges) == 2:
                edges = edges[:1] if seed is not None else edges
            elif seed is not None and edges[-2] - edges[-3] - missing >= world:
                edges = [*edges[:-2], edges[-2] - missing, edges[-1]]
            else:
                edges = [*edges[:-2], edges[-1]]
        self.edges, self.world, self.seed = np.array(edges), world, seed

    @property
    def count(self) -> int:
        """Global batches in an epoch."""
        return len(self.edges) - 1

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """The global batches of an epoch: sample numbers."""
        order, turns = self.order(epoch)
        for turn in turns:
            yield order[self.edges[turn] : self.edges[turn + 1]]

    @abstractmethod
    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of the samples, and the order of the batches cut from it."""

    @abstractmethod
    def identity(self) -> list[int | None]:
        """Numbers that agree where two plans give the same batches; the last two are those of ``end``."""

    def end(self) -> list[int | None]:
        """The number of batches and the first sample of the last one, which may depend on `world`."""
        return [self.count, int(self.edges[-2]) if self.count else 0]

    def agrees(self, identity: list[int | None]) -> bool:
        """Whether the plan of this identity gives the same batches; those of older versions lack one or both numbers of
        the end, and have not rearranged it.
        """
        own = self.identity()
        return identity == own or (not self.rearranged and identity in (own[:-1], own[:-2]))


class RowPlan(Plan):
    """Batches of `rows` samples, all processes together."""

    def __init__(self, items: int, rows: int, world: int, seed: int | None) -> None:
        super().__init__([*range(0, items, rows), items], world, seed)
        self.items, self.rows = items, rows

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The items in the order of an epoch, shuffled with a seed, and the batches in theirs: (items,), (count,)."""
        order = np.arange(self.items) if self.seed is None else generator(self.seed, epoch).permutation(self.items)
        return order, np.arange(self.count)

    def identity(self) -> list[int | None]:
        """Items, rows per batch, seed and the end."""
        return [self.items, self.rows, self.seed, *self.end()]


class TokenPlan(Plan):
    """Batches of samples of like length: rows × the longest, rounded up to a multiple of 8, is at most `tokens`.

    Samples are sorted by rounded length, in random order where it is equal, and the batches are shuffled. The sorted
    lengths are the same in every epoch, so the number of batches is too, which shuffled pools could not promise. A
    process's share of a batch exceeds ``tokens / world`` by less than one row, in the last one by at most one. Raises
    UsageError for a sample longer than one process's budget.
    """

    def __init__(self, lengths: np.ndarray, tokens: int, world: int, seed: int | None) -> None:
        self.width = round_up(np.asarray(lengths))
        self.tokens = tokens
        longest = int(self.width.max(initial=0))
        if longest * world > tokens:
            raise UsageError(
                f"a sample of {longest} tokens (rounded up to a multiple of {MULTIPLE}) does not fit max_tokens="
                f"{tokens // world}. Raise max_tokens or lower max_length."
            )
        super().__init__(self._batch_edges(np.sort(self.width).tolist()), world, seed)

    def _batch_edges(self, width: list[int]) -> list[int]:
        edges = [0]
        for i, wide in enumerate(width):
            if (i - edges[-1] + 1) * wide > self.tokens:
                edges.append(i)
        return [*edges, len(width)] if width else edges

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Items by length, ties at random, and batches shuffled with a seed: (items,), (count,)."""
        if self.seed is None:
            return np.argsort(self.width, kind="stable"), np.arange(self.count)
        draw = generator(self.seed, epoch)
        order = draw.permutation(len(self.width))
        return order[np.argsort(self.width[order], kind="stable")], draw.permutation(self.count)

    def identity(self) -> list[int | None]:
        """Items, their tokens in all, tokens per batch, seed and the end."""
        return [len(self.width), int(self.width.sum()), self.tokens, self.seed, *self.end()]


@dataclass
class Position:
    """The position of training in its data: the epoch, and the number of its global batches already consumed.

    Valid at any time, also before the first batch of an epoch and after a resume before any batch is read.
    """

    epoch: int = 0
    served: int = 0
    resumed: bool = False  # the next pass goes on after `served` batches, where others begin the epoch

    def enter(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the one that is under way."""
        if epoch != self.epoch:
            self.epoch, self.served, self.resumed = epoch, 0, False

    def resume(self, epoch: int, served: int) -> None:
        """Let the next pass leave out the batches of an epoch that were handed out before."""
        self.epoch, self.served, self.resumed = epoch, served, True

    def begin_pass(self) -> None:
        """At the first batch of a pass through the epoch."""
        if not self.resumed:
            self.served = 0
        self.resumed = False


class Batches(Sampler[Indices]):
    """One process's share of a plan; the `batch_sampler` of a loader."""

    def __init__(self, plan: Plan, rank: int = 0, frozen: bool = False) -> None:
        self.plan, self.rank, self.frozen = plan, rank, frozen
        self.position = Position()  # an object: Lightning wraps a sampler in a copy of its attributes

    @property
    def sampler(self) -> Batches:
        """Itself: Lightning calls set_epoch of ``loader.batch_sampler.sampler``, not of the batch sampler."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that chooses the order; `frozen` keeps the first one, as Lightning's overfit_batches expects."""
        return 0 if self.frozen else self.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order."""
        self.position.enter(epoch)

    @property
    def is_empty(self) -> bool:
        """Whether a split has so few rows that this process gets none of them."""
        return bool(self.plan.edges[-1] <= self.rank)

    def __len__(self) -> int:
        return self.plan.count  # also where this process gets none of the rows: metrics are exchanged at the end

    def __iter__(self) -> Iterator[Indices]:
        return self._after(self.position.served if self.position.resumed else 0, self.epoch)

    def _after(self, start: int, epoch: int) -> Iterator[Indices]:
        """The batches of an epoch from number ``start`` on."""
        for number, batch in enumerate(self.plan.batches(epoch)):
            mine = batch[self.rank :: self.plan.world]
            if number >= start and len(mine):
                yield Indices(mine.tolist(), epoch)


class BatchDataset(Dataset[dict[str, Any]], ABC):
    """Samples that are made a whole batch at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """The batch of these samples, as they look in this epoch."""

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        try:
            return self.batch(np.asarray(indices, dtype=np.int64), getattr(indices, "epoch", 0))
        except ZooError as error:
            if get_worker_info() is None:
                raise
            return error  # type: ignore[return-value]  # raised in a loading process it would come with its traceback

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.batch(np.array([index], dtype=np.int64), 0)


class Loader(DataLoader[dict[str, Any]]):
    """A loader that leaves the global random state alone and resumes in the middle of an epoch, bit for bit."""

    def __init__(self, dataset: BatchDataset, batch_sampler: Batches, workers: int = 0, **options: Any) -> None:
        """`options` are DataLoader's own, which Lightning gives when it makes the loader anew for prediction."""
        super().__init__(
            dataset,
            batch_sampler=batch_sampler,
            num_workers=workers,
            collate_fn=_whole,
            generator=torch.Generator().manual_seed(0),  # else iter() would draw from the global one
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
            **options,
        )
        self.batches = batch_sampler
        self.anew = False  # the epoch of a checkpoint, as its batches were others

    @property
    def epoch(self) -> int:
        """The epoch that chooses the order."""
        return self.batches.epoch

    @property
    def served(self) -> int:
        """Batches of the epoch that were handed out, not those fetched ahead."""
        return self.batches.position.served

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        # A generator starts at its first batch. Lightning makes the iterator before it calls set_epoch, and workers
        # started then would repeat the first epoch's order after every resume.
        position = self.batches.position
        batches = super().__iter__()
        position.begin_pass()
        for batch in batches:
            if isinstance(batch, ZooError):
                raise batch
            position.served += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The position of training in the epoch, at any time."""
        position = self.batches.position
        return {"epoch": position.epoch, "served": position.served, "plan": self.batches.plan.identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; with other data or batches the epoch starts anew, with a warning."""
        same = self.batches.plan.agrees(list(state["plan"]))
        self.batches.position.resume(int(state["epoch"]), int(state["served"]) if same else 0)
        if not same:
            self.anew = True
            log_once("the data, the seed or the batches changed since the checkpoint: its epoch starts anew")


def _whole(batch: Any) -> Any:
    """The batch, which __getitems__ has made already, or the error for one that cannot leave a loading process."""
    return batch if get_worker_info() is None else hand_over(batch)


def hand_over(batch: Any) -> Any:
    """A batch as it leaves a loading process, or the error that stops it.

    torch would print the error in a thread of that process, and the training process would wait for ever.
    """
    try:
        return _Parcel(batch)
    except (OSError, RuntimeError) as error:
        folder = tempfile.gettempdir()
        why = f"{error}".splitlines()[0]
        return UsageError(
            f"a loading process cannot hand over a batch: {why}.\nIt takes a socket in {folder} (TMPDIR: a short path, "
            "at most 80 characters), room in /dev/shm for some batches, and open files (ulimit -n). Or load in the "
            "training process: --data.num_workers 0"
        )


class _Parcel:
    """A batch that is serialised at once, its tensors shared, and is itself again where it arrives."""

    def __init__(self, batch: Any) -> None:
        self.content = bytes(ForkingPickler.dumps(batch))

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.content,)


def log_once(message: str, *values: object) -> None:
    """A warning, formatted with ``values``, that only the first process gives."""
    from lightning.pytorch.utilities import rank_zero_only  # here: what is only read needs no Lightning

    rank_zero_only(log.warning)(message, *values)


def generator(*seed: int) -> np.random.Generator:
    """A generator that depends on these numbers only."""
    return np.random.default_rng([number % 2**64 for number in seed])


def sample_sentence(draw: np.random.Generator, words: int = 20) -> str:
    """Words of random letters, for files that data is tried with."""
    return " ".join("".join(map(chr, draw.integers(97, 123, draw.integers(2, 8)))) for _ in range(words))


def uniforms(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """(B, count) float64 in [0, 1): a hash (splitmix64) of seed, epoch and sample, for a whole batch at once."""
    base = generator(seed, epoch).integers(0, 2**63, dtype=np.uint64)
    x: np.ndarray = base + indices.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def round_up(length: Any, most: int | None = None) -> Any:
    """The next multiple of 8, but not above `most`: few distinct widths keep the CPU's bfloat16 memory flat."""
    rounded = -(-length // MULTIPLE) * MULTIPLE
    return rounded if most is None else np.minimum(rounded, most)
