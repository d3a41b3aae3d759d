"""A cache of places returns each row's own tokens, in order, and forgets the rows that are not selected."""

import pytest
import torch
from zoo_frontier.cache import PlacedCache


def test_a_cache_of_places_holds_each_rows_own_tokens():
    cache, rows = PlacedCache(40), [[], [], []]
    cache.select(torch.tensor([0]))  # empty: nothing to select
    for step in range(12):
        size = 1 + step % 4
        real, places = torch.rand(3, size) < 0.6, torch.arange(size).expand(3, -1) + 4 * step
        keys, valid = cache.reserve(places, real)
        new = torch.randn(3, 2, size, 5)
        k, v = cache.extend(new, -new)
        for number, row in enumerate(rows):
            row += [(place.item(), new[number, :, t]) for t, place in enumerate(places[number]) if real[number, t]]
            assert keys[number][valid[number]].tolist() == [place for place, _ in row]
            assert valid[number].sum() == len(row)
            for column, (_, key) in enumerate(row):
                assert torch.equal(k[number, :, column], key)
                assert torch.equal(v[number, :, column], -key)
        assert k.size(2) == max(len(row) for row in rows) == cache.length
        order = torch.tensor([1, 1, 2] if step == 5 else [2, 0, 1])
        cache.select(order)
        rows = [list(rows[number]) for number in order]


def test_a_cache_of_places_refuses_more_than_its_capacity():
    cache = PlacedCache(3)
    cache.reserve(torch.arange(2)[None], torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(IndexError, match="a cache for 3 positions cannot hold 4"):
        cache.reserve(torch.arange(2, 4)[None], torch.ones(1, 2, dtype=torch.bool))
