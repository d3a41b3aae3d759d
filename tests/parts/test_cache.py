"""A cache returns what was put in, in order, and forgets the rows that are not selected."""

import pytest
import torch

from zoo.parts.cache import Cache, Caches, LayerCache, MemoryCache, PartState


def test_a_cache_holds_all_so_far_in_order():
    cache, k, v = Cache(5), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    for begin, end in ((0, 2), (2, 3), (3, 5)):
        keys, values = cache.extend(k[:, :, begin:end], v[:, :, begin:end])
        assert cache.length == end
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])


def test_a_cache_refuses_more_than_its_capacity():
    cache = Cache(3)
    cache.extend(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    with pytest.raises(IndexError, match="a cache for 3 positions cannot hold 4"):
        cache.extend(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    assert cache.length == 2


def test_selected_rows_go_on():
    cache, k, new = Cache(4), torch.randn(3, 1, 2, 4), torch.randn(2, 1, 1, 4)
    cache.select(torch.tensor([0]))  # empty: nothing to select
    cache.extend(k, -k)
    cache.select(torch.tensor([2, 2]))
    keys, values = cache.extend(new, -new)
    assert torch.equal(keys, torch.cat([k[[2, 2]], new], 2))
    assert torch.equal(values, -keys)


@pytest.mark.parametrize("window", [1, 2, 3, 20])
@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 1, 1, 1, 1, 1, 1], [2, 3, 1, 4, 2], [12], [7, 5]], ids=str)
def test_a_windows_cache_gives_every_key_that_the_new_queries_can_see_and_forgets_the_rest(window, sizes):
    cache, k, end = Cache(12, window), torch.randn(2, 1, 12, 3), 0
    for size in sizes:
        begin, start, end = end, cache.start, end + size
        keys, values = cache.extend(k[:, :, begin:end], -k[:, :, begin:end])
        assert start <= max(0, begin - window + 1)
        assert torch.equal(keys, k[:, :, start:end])
        assert torch.equal(values, -keys)
        assert (cache.length, cache.start) == (end, max(0, end - window + 1))
    assert cache.size <= 2 * window


def test_a_memory_is_projected_once_and_its_rows_can_be_selected():
    cache, calls, k = MemoryCache(), [], torch.randn(3, 1, 2, 4)

    def project():
        calls.append(1)
        return k, -k

    cache.select(torch.tensor([0]))
    for _ in range(3):
        assert torch.equal(cache.once(project)[0], k)
    assert len(calls) == 1
    cache.select(torch.tensor([1, 0]))
    assert torch.equal(cache.once(project)[1], -k[[1, 0]])


class Inner(PartState):
    def __init__(self, total):
        self.total, self.length = total, 3


class Outer(PartState):
    def __init__(self, total):
        self.total, self.inner, self.empty = total, Inner(-total), None


def test_a_state_of_any_shape_selects_rows_of_all_its_tensors():
    total = torch.randn(3, 2, 4)
    state = Outer(total)
    state.select(torch.tensor([2, 0, 2, 1]))
    assert torch.equal(state.total, total[[2, 0, 2, 1]])
    assert torch.equal(state.inner.total, -total[[2, 0, 2, 1]])
    assert (state.inner.length, state.empty, state.start) == (3, None, 0)
    state.total[0] = 0  # rows that were one are apart from here on
    assert torch.equal(state.total[2], total[2])


def test_the_states_of_a_stack_select_rows_together():
    total = torch.randn(3, 2)
    caches = Caches([LayerCache(Inner(total), MemoryCache(), Outer(2 * total)), LayerCache(Cache(4), MemoryCache())])
    caches[0].memory.once(lambda: (total, -total))
    caches.select(torch.tensor([1]))
    (own, memory, block), keys = caches[0], caches[1].own
    assert caches.length == 0
    assert torch.equal(own.total, total[[1]])
    assert torch.equal(memory.projected[1], -total[[1]])
    assert torch.equal(block.inner.total, -2 * total[[1]])
    assert keys.length == 0
