"""The contract of a data module: an order that depends on seed and epoch alone, dealt to processes, and resumable."""

from __future__ import annotations

import hashlib
import pickle
import re
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.conformance.check import require
from zoo.conformance.common import clean_import, documentation
from zoo.conformance.subject import DataSubject
from zoo.data.batches import Batches, Loader

FEW = 6


def digest(batch: Any) -> str:
    """What a batch holds, as a short name."""
    content = hashlib.sha256()
    for name, value in sorted(batch.items()):
        content.update(name.encode())
        content.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return content.hexdigest()[:12]


def heard(batches: Iterable[Any], count: int | None = FEW) -> list[str]:
    return [digest(batch) for batch in islice(batches, count)]


def epoch(loader: Loader, number: int) -> Loader:
    loader.batches.set_epoch(number)
    return loader


def splits_and_sizes(subject: DataSubject) -> None:
    """There are samples to train on and to validate with; ``sizes`` is what a model must know, in whole numbers."""
    data = subject.build()
    for split in ("train", "val"):
        require(len(data.datasets.get(split, ())) > 0, f"the {split} split is empty or missing.")
    sizes = data.sizes()
    odd = {name: value for name, value in sizes.items() if not isinstance(value, int) or value < 1}
    require(bool(sizes) and not odd, f"sizes must be whole numbers by the names of a model's options, got {sizes}.")


def order_is_repeatable(subject: DataSubject) -> None:
    """The same seed gives the same batches in the same order; another epoch and another seed another order."""
    first, again, other = subject.build(seed=1), subject.build(seed=1), subject.build(seed=2)
    one, two = heard(epoch(first.train_dataloader(), 0)), heard(epoch(again.train_dataloader(), 0))
    require(one == two, "the same seed gives other batches: draw from generators keyed by seed and epoch alone.")
    later = heard(epoch(first.train_dataloader(), 1))
    require(one != later, "the second epoch has the order of the first.")
    require(one != heard(epoch(other.train_dataloader(), 0)), "another seed gives the same order.")
    require(later == heard(epoch(again.train_dataloader(), 1)), "the same seed gives another second epoch.")
    held = [heard(first.val_dataloader()) for _ in range(2)]
    require(held[0] == held[1], "validation batches differ from one time to the next.")


def global_randomness_is_left_alone(subject: DataSubject) -> None:
    """Loading draws nothing from torch's global generator: dropout would differ with the data."""
    data = subject.build(seed=1)
    state = torch.get_rng_state()
    heard(epoch(data.train_dataloader(), 0), 2)
    require(torch.equal(torch.get_rng_state(), state), "loading draws from torch's global generator.")
    torch.manual_seed(123)
    one = heard(epoch(data.train_dataloader(), 0), 2)
    torch.manual_seed(321)
    require(one == heard(epoch(data.train_dataloader(), 0), 2), "batches depend on torch's global generator.")


def processes_share(subject: DataSubject) -> None:
    """Two or three processes together see every sample of an epoch exactly once."""
    data = subject.build(seed=1)
    for split, seed in (("train", 1), ("val", None)):
        total = len(data.datasets[split])
        for world in (1, 2, 3):
            plan = data.plan(split, world, seed)
            seen = [index for rank in range(world) for batch in Batches(plan, rank) for index in batch]
            doubled = len(seen) - len(set(seen))
            require(not doubled, f"{world} processes see {doubled} samples of {split} twice.")
            require(len(seen) <= total, f"{world} processes see {len(seen)} samples of {split}, which has {total}.")
    alone = {index for batch in Batches(data.plan("train", 1, 1), 0) for index in batch}
    shared = {index for rank in range(2) for batch in Batches(data.plan("train", 2, 1), rank) for index in batch}
    require(alone == shared, "one process and two see different samples in an epoch.")


def resumes(subject: DataSubject) -> None:
    """Stopped after some batches and loaded into a new loader, it goes on with the next one."""
    loader = epoch(subject.build(seed=1).train_dataloader(), 0)
    whole = heard(loader)
    served = min(2, len(whole) - 1)
    loader = epoch(subject.build(seed=1).train_dataloader(), 0)
    running = iter(loader)
    for _ in range(served):
        next(running)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    new = subject.build(seed=1).train_dataloader()
    new.load_state_dict(state)
    rest = heard(epoch(new, 0), FEW - served)
    require(rest == whole[served:], "after a resume batches are repeated or left out.")


def workers_change_nothing(subject: DataSubject) -> None:
    """Loaded by a process of its own, batches are the same: what is sent there can be pickled."""
    data = subject.build(seed=1)
    alone = heard(epoch(data.train_dataloader(), 0), 3)
    pickle.dumps(data.datasets["train"])
    loader = epoch(data._loader("train", data.seed), 0)
    away = Loader(dataset=loader.dataset, batch_sampler=loader.batches, workers=1)  # type: ignore[arg-type]
    require(heard(away, 3) == alone, "a loading process gives other batches.")


def what_it_says_of_itself(subject: DataSubject) -> None:
    """``fingerprint`` is the same sha256 each time, and ``save`` leaves what a trained model needs."""
    one, two = subject.build(seed=1).fingerprint(), subject.build(seed=2).fingerprint()
    require(bool(re.fullmatch(r"[0-9a-f]{64}", one)), f"fingerprint is {one!r}, not a sha256 in hexadecimal.")
    require(one == two, "the fingerprint depends on the seed of the order: it is about content.")
    with tempfile.TemporaryDirectory() as folder:
        subject.build().save(Path(folder))


PROMISES = [documentation, clean_import, splits_and_sizes, order_is_repeatable, global_randomness_is_left_alone,
            processes_share, resumes, workers_change_nothing, what_it_says_of_itself]  # fmt: skip
