"""A stream's batches: each sample once, whatever the processes and workers, and bit-equal after a resume."""

import io
import itertools
import multiprocessing
import os
import signal
import time
from collections import Counter
from itertools import islice

import pytest
import torch

from zoo.data.streams import Chunks, ShardReader, Stream, StreamLoader
from zoo.errors import UsageError


class Count(ShardReader):
    def __init__(self, numbers):
        self.numbers, self.place = numbers, 0

    def __next__(self):
        if self.place == len(self.numbers):
            raise StopIteration
        self.place += 1
        return {"n": torch.tensor([self.numbers[self.place - 1]])}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state_dict):
        self.place = state_dict["place"]


class Numbers(Stream):
    """Shards of these lengths, numbered through."""

    content = "n"

    def __init__(self, lengths):
        self.lengths, self.shards = lengths, len(lengths)

    def open(self, shard, epoch):
        first = sum(self.lengths[:shard])
        numbers = list(range(first, first + self.lengths[shard]))
        return Count(numbers if epoch % 2 == 0 else numbers[::-1])

    def blank(self):
        return {"n": torch.tensor([-1])}

    def identity(self):
        return list(self.lengths)


UNEVEN = [40, 3, 0, 41, 17, 90, 16, 32]  # none, fewer than a chunk, a chunk exactly, and many


def loaders(world, workers=0, rows=6, lengths=UNEVEN):
    return [StreamLoader(Numbers(lengths), rows // world, rank, world, workers) for rank in range(world)]


def numbers(batch):
    return batch["n"][:, 0].tolist()


def global_batches(parts, count=None):
    """The batches of all processes, joined, until the last process ends."""
    streams = [[numbers(batch) for batch in islice(one, count)] for one in parts]
    most = max(map(len, streams))
    return [sorted(n for one in streams if step < len(one) for n in one[step]) for step in range(most)]


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (1, 8), (2, 0), (2, 2), (4, 1), (8, 0)])
def test_every_sample_occurs_once(world, workers):
    parts = loaders(world, workers, rows=8)
    got = Counter(n for batch in global_batches(parts) for n in batch if n >= 0)
    assert got == Counter(range(sum(UNEVEN)))


def test_batches_do_not_depend_on_workers_nor_on_processes():
    lengths = [50] * 8
    alone = global_batches(loaders(1, lengths=lengths))
    assert alone[0] == [0, 50, 100, 150, 200, 250]
    for world, workers in ((1, 3), (2, 0), (2, 2)):
        assert global_batches(loaders(world, workers, lengths=lengths)) == alone


def test_two_processes_get_equally_many_batches_when_one_says_so(monkeypatch):
    first, second = loaders(2, lengths=[5, 50])
    elsewhere = iter([True] * 17 + [False])
    monkeypatch.setattr(first, "_somewhere", lambda here: next(elsewhere))
    batches = [numbers(batch) for batch in first]
    assert len(batches) == len(list(second)) == 17
    assert batches == [[0, 1, 2], [3, 4]] + [[-1]] * 15


def process(rank, home, results):
    """One of two processes that train on uneven shards, with two loading processes each."""
    torch.distributed.init_process_group("gloo", f"file://{home / 'meeting'}", rank=rank, world_size=2)
    loader = StreamLoader(Numbers([5, 0, 40, 16]), 3, rank, 2, workers=2)
    batches = [numbers(batch) for batch in islice(loader, 7)]
    state = loader.state_dict()
    again = StreamLoader(Numbers([5, 0, 40, 16]), 3, rank, 2, workers=1)
    again.load_state_dict(state)
    results.put((rank, batches + [numbers(batch) for batch in again], sorted(state["shards"])))
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_two_processes_with_two_workers_each_end_together_and_save_all_shards(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    both = [context.Process(target=process, args=(rank, tmp_path, results)) for rank in range(2)]
    for one in both:
        one.start()
    (_, first, shards), (_, second, _) = sorted(results.get(timeout=120) for _ in both)
    for one in both:
        one.join(60)
        assert one.exitcode == 0
    assert shards == [0, 1, 2, 3]
    assert len(first) == len(second) == 15  # 45 samples of the shards 0 and 2, three at a time
    assert second[5:] == [[60]] + [[-1]] * 9
    assert sorted(n for batch in first + second for n in batch if n >= 0) == list(range(61))


def saved(loader):
    """The state as a checkpoint has it."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


CONSUMED = (0, 1, 7, 39, 40)
# loading processes before and after: in a campaign at all of these batches
RESUMES = {(0, 0): CONSUMED, (2, 0): (7, 40), (0, 3): (1, 39)}


@pytest.mark.parametrize(
    ("consumed", "workers"),
    [
        pytest.param(consumed, workers, marks=[] if consumed in batches else [pytest.mark.campaign])
        for workers, batches in RESUMES.items()
        for consumed in CONSUMED
    ],
)
def test_it_resumes_after_any_batch(consumed, workers):
    whole = [numbers(batch) for batch in loaders(1)[0]]
    assert len(whole) == 40
    (loader,) = loaders(1, workers[0])
    assert [numbers(batch) for batch in islice(loader, consumed)] == whole[:consumed]
    (again,) = loaders(1, workers[1])
    again.load_state_dict(saved(loader))
    assert again.served == consumed
    assert [numbers(batch) for batch in again] == whole[consumed:]
    assert not again.anew


def test_it_resumes_twice_in_an_epoch_and_at_its_end():
    whole = [numbers(batch) for batch in loaders(1)[0]]
    state, got = None, []
    for count in (3, 0, 20, 0, 17, 0):
        (loader,) = loaders(1)
        if state is not None:
            loader.load_state_dict(state)
        got += [numbers(batch) for batch in islice(loader, count)]
        state = saved(loader)
    assert got == whole
    loader.set_epoch(1)
    second = [numbers(batch) for batch in loader]
    assert second[0] == [39, 42, 83, 100, 190, 206]
    assert sorted(itertools.chain(*second)) == list(range(sum(UNEVEN)))


def test_a_reader_that_ends_exactly_there_is_not_an_epoch_without_samples():
    (loader,) = loaders(1)
    list(loader)
    assert not loader.has_more
    (again,) = loaders(1)
    again.load_state_dict(saved(loader))
    assert list(again) == []


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2), (2, 8)])
def test_with_another_number_of_processes_every_sample_occurs_once(before, after):
    old = loaders(before, rows=8)
    got = [n for loader in old for batch in islice(loader, 9) for n in numbers(batch)]
    parts = [loader.state_dict() for loader in old]
    state = {**parts[0], "shards": {n: one for part in parts for n, one in part["shards"].items()}}
    new = loaders(after, rows=8)
    for loader in new:
        loader.load_state_dict(state)
        assert not loader.anew
        got += [n for batch in loader for n in numbers(batch)]
    assert sorted(got) == list(range(sum(UNEVEN)))


def test_another_global_batch_goes_on_and_is_said():
    (loader,) = loaders(1)
    got = [n for batch in islice(loader, 4) for n in numbers(batch)]
    (again,) = loaders(1, rows=2)
    again.load_state_dict(saved(loader))
    assert again.anew
    assert sorted(got + [n for batch in again for n in numbers(batch)]) == list(range(sum(UNEVEN)))


def test_another_stream_starts_its_epoch_anew(caplog):
    (loader,) = loaders(1)
    list(islice(loader, 4))
    (other,) = loaders(1, lengths=[5, 5])
    other.load_state_dict(saved(loader))
    assert other.anew
    assert other.served == 0
    assert "its epoch starts anew" in caplog.text
    assert len([n for batch in other for n in numbers(batch)]) == 10


def test_the_last_batch_is_announced():
    (loader,) = loaders(1)
    assert [loader.has_more for _ in loader] == [True] * 39 + [False]


def test_an_epoch_that_is_left_begins_anew():
    (loader,) = loaders(1)
    first = [numbers(batch) for batch in islice(loader, 5)]
    assert [numbers(batch) for batch in islice(loader, 5)] == first
    loader.set_epoch(0)  # the epoch that is under way
    assert loader.served == 5
    loader.set_epoch(2)
    assert loader.served == 0
    assert [numbers(batch) for batch in islice(loader, 5)] == first


def test_torchs_generator_is_left_alone():
    state = torch.get_rng_state()
    list(loaders(1, 2)[0])
    assert torch.equal(state, torch.get_rng_state())


def test_shards_that_cannot_be_dealt_are_refused():
    with pytest.raises(UsageError, match=r"^8 shards cannot be dealt evenly to 3 processes: .* multiple of 3\.$"):
        loaders(3)


def test_an_empty_stream_is_refused():
    with pytest.raises(UsageError, match="no sample"):
        list(loaders(1, lengths=[0, 0])[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_while_reading_has_no_traceback_of_a_worker(workers):
    class Broken(Numbers):
        def open(self, shard, epoch):
            if shard == 3:
                raise UsageError("b.txt:7 is wrong")
            return super().open(shard, epoch)

    with pytest.raises(UsageError, match=r"^b\.txt:7 is wrong$") as error:
        list(StreamLoader(Broken(UNEVEN), 6, workers=workers))
    # though the traceback refers to its reader: whoever collects it later would wait ten seconds for them
    assert error.tb is not None
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("failure", [ValueError, OSError, "killed worker", "interrupt"])
def test_no_worker_outlives_an_error_that_somebody_keeps(failure, workers):
    class Failing(Numbers):
        def open(self, shard, epoch):
            if shard == 3 and failure == "killed worker":
                os.kill(os.getpid(), signal.SIGKILL)
            if shard == 3 and failure == "interrupt":
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(0.5)
            elif shard == 3:
                raise failure("a reader of somebody else's fails")
            return super().open(shard, epoch)

    kind = {"killed worker": RuntimeError, "interrupt": KeyboardInterrupt}.get(failure, failure)
    with pytest.raises(kind) as error:
        list(StreamLoader(Failing(UNEVEN), 6, workers=workers))
    assert error.tb is not None
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []


def test_a_chunk_is_read_only_when_it_is_due():
    chunks = iter(Chunks(Numbers([100, 100]), 0, {0: None, 1: {"place": 90}}))
    one, two, three, four = (next(chunks) for _ in range(4))
    assert (one.shard, one.size, one.last, one.state) == (0, 16, False, {"place": 0})
    assert (two.shard, two.size, two.last, two.state) == (1, 10, True, {"place": 90})
    assert (three.shard, four.shard) == (0, 0)
