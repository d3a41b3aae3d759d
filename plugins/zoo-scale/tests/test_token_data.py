"""Token files train with flat memory, and every window goes to one process, at any number of them."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from zoo_scale.token_data import TokenFile, WindowPlan, permute
from zoo_scale.token_file import HEADER, open_tokens

from zoo.data.batches import Batches, RowPlan
from zoo.data.tokenizer import EOS

try:
    from tests.forks import run as run_program  # in zoo's checkout: a fork has imported torch
except ImportError:
    from subprocess import run as run_program

TRAIN_20_GB = """
import resource, sys, time
import torch
from zoo_scale.token_data import TokenFile
start = time.perf_counter()
data = TokenFile(sys.argv[1], max_length=1024, batch_size=2, seed=0)
data.setup()
opened = time.perf_counter() - start
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = torch.nn.Sequential(torch.nn.Embedding(280, 8), torch.nn.Linear(8, 280))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _, batch in zip(range(5), data.train_dataloader()):
    loss = torch.nn.functional.cross_entropy(model(batch["inputs"]).flatten(0, 1), batch["targets"].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(opened, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 100, 1000, 4097])
def test_the_order_is_a_permutation_which_seed_and_epoch_choose(size):
    orders = [permute(np.arange(size), size, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(size))
    if size > 15:
        assert len({tuple(order) for order in orders}) == 4
    parts = [permute(part, size, 0, 0) for part in np.array_split(np.arange(size), 3)]
    assert np.concatenate(parts).tolist() == orders[0].tolist()


def test_the_order_is_uniform_in_its_first_and_last_members():
    for place in (0, 50, 99):
        counts = np.bincount([permute(np.array([place]), 100, seed, 0)[0] for seed in range(4000)], minlength=100)
        assert ((counts - 40) ** 2 / 40).sum() < 160  # chi-squared of 99 degrees of freedom: p < 1e-4


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_batches_have_the_sizes_of_row_plans_and_hold_each_window_once(seed, world):
    for items in [*range(60), 5000, 5001]:
        for rows in {world, 2 * world, 5 * world}:
            own, other = WindowPlan(items, rows, world, seed), RowPlan(items, rows, world, seed)
            batches = list(own.batches(1))
            assert [len(batch) for batch in batches] == [len(batch) for batch in other.batches(1)]
            assert own.identity() == other.identity()
            assert own.count == other.count
            shares = [n for rank in range(world) for indices in Batches(own, rank) for n in indices]
            expected = range(items) if own.count else []
            assert sorted(shares) == list(expected)
            if seed is None:
                assert np.concatenate([np.arange(0), *batches]).tolist() == list(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_token_is_dealt_once_to_processes_and_workers(tmp_path, workers):
    options = TokenFile.sample_files(tmp_path, 0)
    data = TokenFile(**options, max_length=12, batch_size=4, seed=1, num_workers=workers)
    data.setup()
    stream = open_tokens(tmp_path / "tokens").splits["val"]
    rows = torch.cat([batch["targets"] for batch in data.val_dataloader()]).flatten()
    assert rows[rows >= 0].tolist() == stream[np.arange(1, len(stream))].tolist()
    train = torch.cat([batch["inputs"] for batch in data.train_dataloader()])
    whole = open_tokens(tmp_path / "tokens").splits["train"]
    whole = whole[np.arange(len(whole))]
    offsets = {tuple(whole[i : i + 12].tolist()): i for i in range(len(whole))}
    places = sorted(offsets[tuple(row.tolist())] for row in train)
    assert places == list(range(places[0], places[0] + 12 * len(train), 12))
    assert places[0] < 24
    assert len(whole) - 1 - (places[-1] + 12) < 24


def test_documents_of_training_and_validation_differ(tmp_path):
    opened = open_tokens(TokenFile.sample_files(tmp_path, 0) and tmp_path / "tokens")
    texts = {
        split: set(opened.tokenizer.inner.decode(a[np.arange(len(a))].tolist(), skip_special_tokens=False).split(EOS))
        for split, a in opened.splits.items()
    }
    assert texts["train"] & texts["val"] == {""}


def test_a_sparse_file_of_20_gb_opens_within_a_second_and_trains_with_flat_memory(tmp_path):
    folder = tmp_path / "tokens"
    TokenFile.sample_files(tmp_path, 0)
    count = 10**10
    header = json.loads((folder / HEADER).read_text())
    with (folder / "00000.train.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<u2", "fortran_order": False, "shape": (count,)})
        os.truncate(file.fileno(), file.tell() + 2 * count)
    header["tokens"]["train"][0][0] = count
    (folder / HEADER).write_text(json.dumps(header))
    result = run_program(
        [sys.executable, "-c", TRAIN_20_GB, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    opened, megabytes = map(float, result.stdout.split())
    print(f"opened in {opened:.3f} s, 5 steps took {megabytes:.1f} MB more")
    assert opened < 1
    assert megabytes < 200
