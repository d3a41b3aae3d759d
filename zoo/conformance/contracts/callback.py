"""The contract of a callback: it leaves training as it is unless it says otherwise, and goes on from a checkpoint."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import DataLoader

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.subject import Independent
from zoo.conformance.token_checks import clean_import, documentation, unknown_options_are_refused
from zoo.io.checkpoint_manifest import LAST
from zoo.tasks.lm import CausalLM
from zoo.tasks.schedule import Constant
from zoo.training.checkpoint import CheckpointSaver

STEPS = 8
BATCHES = 4


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's messages."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def fit(folder: Path, callbacks: list[Callback], steps: int = STEPS, resume: bool = False) -> dict[str, Any]:
    """Train a small language model, with a validation every two steps; the newest checkpoint."""
    torch.manual_seed(5)
    sizes: dict[str, Any] = {"vocab_size": 23, "max_length": 16, "dim": 16, "depth": 1, "heads": 2, "hidden": 24}
    task = CausalLM(**sizes, dropout=0.1, lr=1e-2, schedule=Constant)
    tokens = torch.randint(23, (BATCHES, 4, 13), generator=torch.Generator().manual_seed(0))
    length = torch.full((4,), 48)
    batches: Any = [{"inputs": b[:, :-1], "targets": b[:, 1:], "bytes": length} for b in tokens]
    trainer = Trainer(
        accelerator="cpu", max_steps=steps, callbacks=[CheckpointSaver(folder / "checkpoints"), *callbacks],
        logger=False, enable_progress_bar=False, enable_model_summary=False, val_check_interval=2,
        check_val_every_n_epoch=None, default_root_dir=folder, use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    start = folder / "checkpoints" / LAST if resume else None
    with quiet():
        train, val = (DataLoader(batches, batch_size=None) for _ in range(2))
        trainer.fit(task, train, val, ckpt_path=start, weights_only=True)
        for callback in callbacks:
            require(callback in trainer.callbacks, "it takes itself out of the trainer.")  # type: ignore[attr-defined]
    return torch.load(folder / "checkpoints" / LAST, weights_only=True)


def trained(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The weights that training changes, which stand beside their averages in a checkpoint of averages."""
    return checkpoint.get("current_model_state", checkpoint["state_dict"])


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names of the tensors that are not equal bit for bit."""
    return sorted({*a} ^ {*b}) + [name for name in a if name in b and not torch.equal(a[name], b[name])]


def training_is_unchanged(subject: Independent) -> None:
    """The weights that training moves are those of a run without it, unless it declares ``changes_training``."""
    if getattr(subject.part, "changes_training", False):
        raise Inapplicable("it declares changes_training")
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        reference = fit(Path(folder, "plain"), [])
        run = fit(Path(folder, "run"), [subject.build()])
    steps = run["global_step"], reference["global_step"]
    require(steps[0] == steps[1], f"a run of {steps[1]} steps ends after {steps[0]}: declare changes_training.")
    wrong = differing(trained(run), trained(reference))
    require(not wrong, f"training with it gives other weights, such as {wrong[:1]}: declare changes_training = True.")


def results_are_declared(subject: Independent) -> None:
    """The weights of a checkpoint are those of training, unless it declares ``changes_results``."""
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        run = fit(Path(folder), [subject.build()])
    if getattr(subject.part, "changes_results", False) or getattr(subject.part, "changes_training", False):
        raise Inapplicable("it declares changes_results")
    wrong = differing(run["state_dict"], trained(run))
    require(not wrong, "checkpoints hold other weights than those of training: declare changes_results = True.")


def resumes(subject: Independent) -> None:
    """Stopped after half of the steps and resumed with a new one, a run ends as if it had not been stopped."""
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        whole = fit(Path(folder, "whole"), [subject.build()])
        fit(Path(folder, "cut"), [subject.build()], steps=STEPS // 2)
        resumed = fit(Path(folder, "cut"), [subject.build()], resume=True)
    for name in ("state_dict", "current_model_state"):
        wrong = differing(resumed.get(name, {}), whole.get(name, {}))
        require(not wrong, f"after a resume {wrong[:1]} of {name} differs: save what it needs by state_dict.")
    key = subject.build().state_key
    states = [checkpoint["callbacks"].get(key) for checkpoint in (whole, resumed)]
    require(str(states[0]) == str(states[1]), f"after a resume its state is {states[1]} instead of {states[0]}.")


@once
def plain_state(subject: Independent) -> None:
    """``state_dict`` holds tensors and plain values, and ``load_state_dict`` takes them."""
    callback = subject.build()
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        try:
            fit(Path(folder), [callback], steps=2)
        except Exception as error:
            require("weights_only" not in str(error), "its state holds more than tensors and plain values.")
            raise
    state, twin = callback.state_dict(), subject.build()
    twin.load_state_dict(state)
    require(str(twin.state_dict()) == str(state), f"loaded, its state is {twin.state_dict()} instead of {state}.")


PROMISES = [documentation, unknown_options_are_refused, clean_import, training_is_unchanged, results_are_declared,
            resumes, plain_state]  # fmt: skip
