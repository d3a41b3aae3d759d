import numpy as np
import pytest
import torch

from zoo.data.batches import BatchDataset, Batches, Loader, RowPlan, TokenPlan, uniforms
from zoo.errors import UsageError

LENGTHS = np.random.default_rng(0).integers(1, 60, 500)


def dealt(plan, epoch=0):
    """Per process, its batches; all processes say how many there are, also one of too few samples for all."""
    result = []
    for rank in range(plan.world):
        batches = Batches(plan, rank)
        batches.set_epoch(epoch)
        result.append(list(batches))
        assert len(batches) == plan.count
        assert len(result[-1]) == (plan.count if rank < plan.edges[-1] else 0)
    return result


def plans(world, seed):
    yield RowPlan(103, 4 * world, world, seed)
    yield TokenPlan(LENGTHS, 256 * world, world, seed)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_evaluation_deals_every_sample_once_in_equally_many_batches(world):
    for plan in plans(world, None):
        per_rank = dealt(plan)
        flat = [i for batches in per_rank for batch in batches for i in batch]
        assert sorted(flat) == list(range(plan.edges[-1]))
        assert len({len(batches) for batches in per_rank}) == 1


@pytest.mark.parametrize("items", range(1, 30))
def test_a_last_batch_too_small_for_all_joins_the_one_before(items):
    per_rank = dealt(RowPlan(items, 4, 4, None))
    flat = [i for batches in per_rank for batch in batches for i in batch]
    assert sorted(flat) == list(range(items))
    assert len({len(batches) for batches in per_rank}) == 1 or items < 4


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_training_has_every_sample_once_in_equally_many_batches_within_the_budget(rows, world):
    for items in range(world, 40):
        per_rank = dealt(RowPlan(items, rows * world, world, 5))
        assert sorted(i for batches in per_rank for batch in batches for i in batch) == list(range(items))
        assert len({len(batches) for batches in per_rank}) == 1
        sizes = [len(batch) for batches in per_rank for batch in batches]
        assert min(sizes) >= 1
        assert max(sizes) <= rows + (rows == 1), "more than its rows only where a batch before could lend none"


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_the_longest_samples_are_trained_on_by_several_processes_too(seed, world):
    """They are the last ones of the sorted samples, which a batch for fewer samples than processes would leave out."""
    draw = np.random.default_rng(seed)
    lengths = np.append(draw.integers(1, 60, int(draw.integers(world, 90))), draw.integers(57, 121, world - 1))
    plan, width = TokenPlan(lengths, 128 * world, world, seed), -(-lengths // 8) * 8
    per_rank = dealt(plan, 2)
    assert sorted(i for batches in per_rank for batch in batches for i in batch) == list(range(len(lengths)))
    assert len({len(batches) for batches in per_rank}) == 1
    for batch in (batch for batches in per_rank for batch in batches):
        assert (len(batch) - 1) * width[batch].max() <= 128


def test_fewer_samples_than_processes_are_left_out_of_training():
    assert dealt(RowPlan(2, 8, 4, 5)) == [[], [], [], []]


def test_two_processes_share_the_global_batches_of_one():
    for alone, shared in [
        (RowPlan(103, 8, 1, 5), RowPlan(103, 8, 2, 5)),
        (TokenPlan(LENGTHS, 512, 1, 5), TokenPlan(LENGTHS, 512, 2, 5)),
    ]:
        single, double = dealt(alone, 3)[0], dealt(shared, 3)
        for whole, first, right in zip(single, *double, strict=True):
            assert sorted(whole) == sorted(first + right)


def test_order_depends_on_seed_and_epoch_only():
    for first, second, other in zip(plans(1, 5), plans(1, 5), plans(1, 6), strict=True):
        assert dealt(first, 2) == dealt(second, 2)
        assert dealt(first, 2) != dealt(first, 3)
        assert dealt(first, 2) != dealt(other, 2)
        state = torch.get_rng_state()
        dealt(first, 4)
        assert torch.equal(state, torch.get_rng_state())


def test_token_budget_holds_and_lengths_are_alike():
    plan = TokenPlan(LENGTHS, 256, 1, 5)
    counts = set()
    for epoch in range(3):
        batches = dealt(plan, epoch)[0]
        counts.add(len(batches))
        padded = sum(len(batch) * (-(-LENGTHS[batch].max() // 8) * 8) for batch in batches)
        assert all(len(batch) * (-(-LENGTHS[batch].max() // 8) * 8) <= 256 for batch in batches)
        assert padded < 1.35 * LENGTHS.sum()
        widths = [LENGTHS[batch].max() for batch in batches]
        assert widths != sorted(widths)
    assert len(counts) == 1  # Lightning asks for the length once


def test_a_sample_beyond_the_budget_is_refused():
    with pytest.raises(UsageError, match="max_tokens=32"):
        TokenPlan(np.array([5, 33]), 64, 2, 0)


def test_frozen_batches_repeat_the_first_epoch():
    batches = Batches(RowPlan(50, 5, 1, 0), frozen=True)
    first = list(batches)
    batches.set_epoch(4)
    assert list(batches) == first


def test_uniform_draws_are_uniform_and_independent():
    draws = uniforms(3, 1, np.arange(20000), 4)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.abs(draws.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.03
    assert not np.array_equal(draws, uniforms(3, 2, np.arange(20000), 4))
    assert np.array_equal(draws[[7, 3]], uniforms(3, 1, np.array([7, 3]), 4))


@pytest.mark.parametrize("plan", [RowPlan(13, 4, 1, 5), TokenPlan(np.full(13, 8), 32, 1, 5)])
def test_last_batches_that_another_number_of_processes_changes_are_noticed(plan):
    """Two processes take the last batch of one sample with another one of the batch before it."""
    shared = RowPlan(13, 4, 2, 5) if isinstance(plan, RowPlan) else TokenPlan(np.full(13, 8), 32, 2, 5)
    assert (plan.count, shared.count) == (4, 4)
    assert shared.agrees(shared.identity())
    for older in (plan.identity(), plan.identity()[:-1], plan.identity()[:-2], [*shared.identity()[:-2], 3]):
        assert not shared.agrees(older)
        assert plan.agrees(older) == (older[-1] != 3)


class Numbers(BatchDataset):
    """Samples that are their numbers."""

    def __len__(self):
        return 22

    def batch(self, indices, epoch):
        return {"batch": (epoch, indices.tolist())}


def loader(frozen=False, workers=0):
    return Loader(dataset=Numbers(), batch_sampler=Batches(RowPlan(22, 3, 1, 5), frozen=frozen), workers=workers)


def remaining_batches(loader, epoch):
    """What a loader hands out from here to the end of an epoch, and in the one after it."""
    result = []
    for number in (epoch, epoch + 1):
        loader.batches.set_epoch(number)
        result.append([batch["batch"] for batch in loader])
    return result


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_position_is_right_at_any_moment_of_any_sequence_of_epochs_and_resumes(seed, frozen):
    """A walk over epochs, batches and resumes: whenever its state is taken, a loader that loads it goes on there."""
    draw = np.random.default_rng(seed)
    walker, epoch, under_way = loader(frozen), 0, None
    orders = [remaining_batches(loader(frozen), number)[0] for number in range(12)]
    served = 0
    for _ in range(25):
        match draw.choice(["batch", "batch", "batch", "epoch", "pass", "resume"]):
            case "batch":
                walker.batches.set_epoch(epoch)  # as Lightning does at the start of an epoch, resumed or not
                under_way = under_way or iter(walker)
                if (batch := next(under_way, None)) is not None:
                    assert batch["batch"] == orders[epoch][served]
                    served += 1
            case "epoch" if epoch < 10:
                epoch, served, under_way = epoch + 1, 0, None
                walker.batches.set_epoch(epoch)
            case "pass":  # an iterator that is made and not begun, as Lightning's at the start of a run, moves nothing
                iter(walker)
            case "resume":
                state = walker.state_dict()
                walker, under_way = loader(frozen), None
                walker.load_state_dict(state)
        state = walker.state_dict()
        assert (state["epoch"], state["served"]) == (epoch, served)
        other = loader(frozen)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert remaining_batches(other, epoch) == [orders[epoch][served:], orders[epoch + 1]]


def test_workers_that_fetch_ahead_do_not_move_the_position():
    walker = loader(workers=1)
    walker.load_state_dict({**walker.state_dict(), "epoch": 2, "served": 3})
    walker.batches.set_epoch(2)
    assert walker.state_dict()["served"] == 3
    batches = iter(walker)
    first = next(batches)["batch"]
    assert walker.state_dict()["served"] == 4
    assert first == remaining_batches(loader(), 2)[0][3]


def test_an_epoch_that_ended_is_not_left_out_of_the_next_where_all_have_one_order():
    walker = loader(frozen=True)
    walker.load_state_dict({**walker.state_dict(), "epoch": 3, "served": 4})  # an epoch of four batches, as limited
    walker.batches.set_epoch(4)
    assert [batch["batch"] for batch in walker] == remaining_batches(loader(), 0)[0]


class Large(BatchDataset):
    """Batches that fail on the way out of a loading process, as they do without room in /dev/shm."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 8

    def batch(self, indices, epoch):
        if isinstance(self.error, UsageError):
            raise self.error
        return {"x": Unsent(self.error)}


class Unsent:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("AF_UNIX path too long"), "AF_UNIX path too long"),
        (RuntimeError("unable to allocate shared memory(shm): No space left on device (28)"), "/dev/shm"),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (UsageError("a.png cannot be read"), "^a.png cannot be read$"),
    ],
)
def test_a_worker_that_cannot_hand_over_a_batch_says_so(error, words):
    loader = Loader(Large(error), Batches(RowPlan(8, 2, 1, None)), workers=1)
    with pytest.raises(UsageError, match=words):
        next(iter(loader))


def test_a_socket_that_cannot_be_made_stops_a_loader(tmp_path, monkeypatch):
    """The length of a socket's address is limited: torch hands tensors over by one below TMPDIR."""
    import tempfile
    from multiprocessing import process, resource_sharer

    place = tmp_path / ("long" * 25)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.delitem(process.current_process()._config, "tempdir", raising=False)
    monkeypatch.setattr(resource_sharer, "_resource_sharer", resource_sharer._ResourceSharer())

    class Rows(Large):
        def batch(self, indices, epoch):
            return {"x": torch.zeros(4)}

    loader = Loader(Rows(None), Batches(RowPlan(8, 2, 1, None)), workers=1)
    with pytest.raises(UsageError, match="AF_UNIX path too long"):
        next(iter(loader))
