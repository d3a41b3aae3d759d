"""Streams: training samples that are read one after the other, and nobody knows how many there are.

A stream consists of a fixed number of shards, each of which is read in its own order and resumes by itself. Process r
of w takes the shards r, r + w, …, and its loading processes share those; a batch takes one sample of each shard in
turn. So the samples of a step depend neither on the number of loading processes nor, for the same global batch, on the
number of processes, and either may change between a stop and a resume.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from zoo.data.batches import hand_over, log_once
from zoo.errors import UsageError, ZooError

Sample: TypeAlias = dict[str, Tensor]
CHUNK = 16  # samples that a shard gives at a time; a resume reads at most as many of each shard again
PATIENCE = timedelta(minutes=10)  # for a process that hangs


class ShardReader(ABC):
    """The samples of one shard in one epoch, from a position that can be saved."""

    def __iter__(self) -> Iterator[Sample]:
        return self

    @abstractmethod
    def __next__(self) -> Sample:
        """The next sample: tensors by name, of the same shapes in all samples of a stream."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position after the newest sample: plain values and tensors, far fewer than the shard holds."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on after the sample at which `state_dict` was taken, before any is read here."""


class Stream(IterableDataset[Sample], ABC):
    """A split of `shards` parts that together hold each sample once; it can be pickled."""

    shards: int = 1
    content: str = ""  # the tensor that holds the same numbers in every epoch; negative ones do not count

    @abstractmethod
    def open(self, shard: int, epoch: int) -> ShardReader:
        """The samples of a shard in the order of an epoch, which depends on nothing else but the stream's seed."""

    @abstractmethod
    def blank(self) -> Sample:
        """A sample that weighs nothing: for a process that has no sample left while another one has."""

    @abstractmethod
    def identity(self) -> list[Any]:
        """Plain values that agree where two streams give the same samples in the same order."""

    def check_processes(self, world: int) -> None:
        """Raise UsageError where the shards cannot be dealt to so many processes."""
        if self.shards % world:
            raise UsageError(
                f"{self.shards} shards cannot be dealt evenly to {world} processes: set the number of shards to a "
                f"multiple of {world}."
            )

    def __iter__(self) -> Iterator[Sample]:
        """The samples of the first epoch, shard after shard."""
        for shard in range(self.shards):
            yield from self.open(shard, 0)


class Chunk(NamedTuple):
    """Consecutive samples of a shard, stacked; the state before them; whether they are its last."""

    shard: int
    samples: Sample
    size: int
    state: dict[str, Any]
    last: bool


class Chunks(IterableDataset[Chunk | ZooError]):
    """The chunks of some shards in turn; each loading process reads its share of the shards."""

    def __init__(self, stream: Stream, epoch: int, states: Mapping[int, dict[str, Any] | None]) -> None:
        """``states`` has the shards to be read, and where each of them begins: None at its start."""
        self.stream, self.epoch, self.states = stream, epoch, dict(states)

    def __iter__(self) -> Iterator[Chunk | ZooError]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        try:
            readers = {shard: self._open(shard) for shard in sorted(self.states)[start::step]}
            while readers:
                for shard, reader in list(readers.items()):
                    state = reader.state_dict()
                    samples = list(islice(reader, CHUNK))
                    last = len(samples) < CHUNK
                    if last:
                        del readers[shard]
                    chunk = Chunk(shard, stack(samples), len(samples), state, last)
                    yield hand_over(chunk) if worker else chunk
        except ZooError as error:  # raised in a loading process it would be printed with a traceback
            yield error

    def _open(self, shard: int) -> ShardReader:
        reader, state = self.stream.open(shard, self.epoch), self.states[shard]
        if state is not None:
            reader.load_state_dict(state)
        return reader


def stack(samples: list[Sample]) -> Sample:
    """Samples as one dictionary of tensors (B, …); empty for no sample."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]} if samples else {}


class Shard:
    """What a process has consumed of a shard, and the chunks that wait."""

    def __init__(self, number: int, state: Mapping[str, Any] | None) -> None:
        state = state or {"sample_count": 0, "reader": None, "skip": 0, "done": False}
        self.number, self.sample_count = number, int(state["sample_count"])
        self.reader_state, self.offset, self.done = state["reader"], int(state["skip"]), bool(state["done"])
        self.chunks: deque[Chunk] = deque()

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk that was read."""
        if not self.chunks:
            self.reader_state = chunk.state
        self.chunks.append(chunk)
        self._advance()

    def pop(self) -> Sample:
        """The next sample of the first chunk."""
        sample = {name: values[self.offset] for name, values in self.chunks[0].samples.items()}
        self.offset += 1
        self.sample_count += 1
        self._advance()
        return sample

    def _advance(self) -> None:
        """Leave a chunk whose samples are consumed; the state of the last one stays until the next arrives."""
        while self.chunks and self.offset >= self.chunks[0].size:
            if self.chunks[0].last:
                self.done = True
                self.chunks.clear()
            elif len(self.chunks) > 1:
                self.offset -= self.chunks.popleft().size
                self.reader_state = self.chunks[0].state
            else:
                break

    @property
    def waiting(self) -> bool:
        """Whether the next chunk must be read before it is clear if there is a sample."""
        return not self.done and not (self.chunks and self.offset < self.chunks[0].size)

    def state(self) -> dict[str, Any]:
        """The position after the newest sample: the state of a reader, and the samples after it to leave out."""
        return {"sample_count": self.sample_count, "reader": self.reader_state, "skip": self.offset, "done": self.done}


class StreamLoader:
    """The batches of one process: they resume in the middle of an epoch, bit for bit.

    Every process gets equally many. One whose shards end before those of the others gets `Stream.blank` until all have
    ended, so that no sample is left out. `has_more` says whether another batch follows, since there is no length.
    """

    def __init__(
        self, stream: Stream, rows: int, rank: int = 0, world: int = 1, workers: int = 0, frozen: bool = False
    ) -> None:
        """`rows` samples per batch; `frozen` repeats the first epoch, as Lightning's overfit_batches expects."""
        stream.check_processes(world)
        self.stream, self.rows, self.rank, self.world, self.frozen = stream, rows, rank, world, frozen
        self.shards = range(rank, stream.shards, world)
        self.workers = min(workers, len(self.shards))
        self.epoch = self.served = 0
        self.has_more = True
        self.anew = False  # the batches are others than those of the checkpoint
        self._resumed = False
        self._states: dict[int, dict[str, Any]] = {}
        several = world > 1 and dist.is_available() and dist.is_initialized()
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None

    @property
    def batch_sampler(self) -> StreamLoader:
        """The loader itself: Lightning calls set_epoch of ``loader.batch_sampler.sampler``."""
        return self

    sampler = batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the one that is under way."""
        if epoch != self.epoch:
            self.epoch, self.served, self._resumed, self._states = epoch, 0, False, {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # a generator starts at its first batch: Lightning makes the iterator before it calls set_epoch
        if not self._resumed:
            self.served, self._states = 0, {}
        self._resumed, self.has_more = False, True
        shards = {number: Shard(number, self._states.get(number)) for number in self.shards}
        read = {shard.number: shard.reader_state for shard in shards.values() if not shard.done}
        loader = DataLoader(
            Chunks(self.stream, 0 if self.frozen else self.epoch, read),
            batch_size=None,
            num_workers=self.workers if read else 0,
            generator=torch.Generator().manual_seed(0),  # else iter() would draw from the global one
        )
        any_batch = self.served > 0
        try:
            with closing(chunk for chunk in loader) as chunks:
                batch = self._make_batch(shards, chunks)
                while batch is not None:
                    states = {number: shard.state() for number, shard in shards.items()}
                    following = self._make_batch(shards, chunks)  # one ahead: it is clear which batch is the last
                    any_batch, self.has_more = True, following is not None
                    self._states = states
                    self.served += 1
                    yield batch
                    batch = following
        except BaseException as error:
            release_frames(error)
            raise
        if not any_batch and (self.world == 1 or self._group is not None):
            raise UsageError("the training stream has no sample: its files hold no text, or all of it validates.")

    def _make_batch(self, shards: Mapping[int, Shard], chunks: Iterator[Any]) -> dict[str, Any] | None:
        """The next samples of these shards in turn, stacked; None where no process has one."""
        samples: list[Sample] = []
        while len(samples) < self.rows and (shard := self._next_shard(shards, chunks)) is not None:
            samples.append(shard.pop())
        if not self._somewhere(bool(samples)):
            return None
        batch = stack(samples or [self.stream.blank()])
        return {name: value.pin_memory() for name, value in batch.items()} if torch.cuda.is_available() else batch

    def _next_shard(self, shards: Mapping[int, Shard], chunks: Iterator[Any]) -> Shard | None:
        """The shard of which the fewest samples were taken, with a sample; None where all have ended."""
        while active := [shard for shard in shards.values() if not shard.done]:
            shard = min(active, key=lambda candidate: (candidate.sample_count, candidate.number))
            if not shard.waiting:
                return shard
            chunk = next(chunks)
            if isinstance(chunk, ZooError):
                raise chunk
            shards[chunk.shard].add(chunk)
        return None

    def _somewhere(self, here: bool) -> bool:
        """Whether it is true in any process, each of which must call this."""
        if self._group is None:
            return here
        flag = torch.tensor([int(here)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def state_dict(self) -> dict[str, Any]:
        """The position of training in the epoch, of all processes, each of which must call this."""
        parts: list[Any] = [self._states]
        if self._group is not None:
            parts = [None] * self.world
            dist.all_gather_object(parts, self._states, group=self._group)
        states = {number: state for part in parts for number, state in part.items()}
        rows = self.rows * self.world
        identity = self.stream.identity()
        return {"epoch": self.epoch, "served": self.served, "rows": rows, "identity": identity, "shards": states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken; with another stream the epoch starts anew, with a warning.

        With another number of processes each sample still occurs once, and batches are the same if their size over all
        processes is.
        """
        same = state_dict.get("identity") == self.stream.identity()
        self.epoch, self._resumed = int(state_dict["epoch"]), True
        self.served = int(state_dict["served"]) if same else 0
        self._states = {n: state for n, state in state_dict["shards"].items() if n in self.shards} if same else {}
        self.anew = not same or state_dict["rows"] != self.rows * self.world
        if not same:
            log_once("the data, the seed or the shards changed since the checkpoint: its epoch starts anew")


def release_frames(error: BaseException | None) -> None:
    """Drop what the frames that an error has left refer to, such as an iterator with workers, which end with it.

    Workers that the garbage collector ends later have lost their queues, and it waits five seconds for each.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
