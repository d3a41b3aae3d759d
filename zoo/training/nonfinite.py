"""A loss or a gradient that is not finite never reaches the weights; the batch that caused it is named."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zoo.errors import NonFiniteError
from zoo.inference.find_run import CONFIG
from zoo.io import atomic_files, checkpoint_manifest
from zoo.logging.best_effort import BestEffort
from zoo.logging.run_record import tensors
from zoo.tasks.task import Task
from zoo.training import changed_options, distributed
from zoo.training.ema import CURRENT

FILE = "nonfinite.json"
POLICIES = ("stop", "skip", "rewind")
MOST_SKIPPED = 20  # steps in a row that may be skipped
MAX_SAMPLES = 8  # samples that a message names


class Place(NamedTuple):
    """Which batch: its epoch, and its number among the global batches of that epoch."""

    epoch: int
    batch: int


class NonFiniteGuard(Callback):
    """Looks at loss and gradients before each optimiser step.

    ``stop`` raises NonFiniteError; ``skip`` leaves the weights and the optimiser as they are; ``rewind`` takes both
    from the last checkpoint and goes on with the following batches. The decision is the same in every process: losses
    are summed over them, and gradients, or the norm of all shares of them, are equal in all.
    """

    def __init__(self, folder: Path, policy: str = "stop") -> None:
        self.folder, self.policy = folder, policy
        self.places: list[Place] = []
        self.batches: list[Any] = []
        self.skipped = self.in_a_row = 0
        self.effort = BestEffort(
            f"{folder / FILE}", "steps that were not written are missing from it", "it names the newest step"
        )

    def state_dict(self) -> dict[str, int]:
        """How many steps were skipped, and how many of them in a row."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` gave."""
        self.skipped, self.in_a_row = state_dict["skipped"], state_dict["in_a_row"]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember the batch and its place, for a message."""
        loader: Any = trainer.train_dataloader
        if hasattr(loader, "served"):
            self.places.append(Place(loader.epoch, loader.served - 1))
        self.batches.append(batch)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Check the losses and gradients of a step. Raises NonFiniteError where the policy is to stop."""
        places, self.places = self.places, []
        batches, self.batches = self.batches, []
        # the optimiser's lists: walking through the modules of a model takes longer than the check
        optimised = (p for group in optimizer.param_groups for p in group["params"])
        grads = [p.grad for p in optimised if p.grad is not None]
        losses = getattr(pl_module, "step_losses", [])
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            grads = []  # float16: its gradient scaler skips steps with such gradients by design
        finite = all_finite(*losses, *([torch.nn.utils.get_total_norm(grads)] if grads else []))
        if hasattr(trainer.strategy, "data_process"):  # each process may see other gradients
            finite = trainer.strategy.reduce_boolean_decision(finite)
        if finite:
            self.in_a_row = 0
            return
        report = self._report(trainer, pl_module, places, batches)
        self.in_a_row += 1
        self.skipped += 1
        if self.policy == "stop" or self.in_a_row > MOST_SKIPPED:
            error = NonFiniteError(f"{report}\n{self._advice(trainer)}")
            error.everywhere = trainer.world_size > 1
            raise error
        if trainer.is_global_zero:
            print(f"warning: {report}; {self.policy}", file=sys.stderr, flush=True)
        for parameter in pl_module.parameters():
            parameter.grad = None  # an optimiser leaves a parameter without gradient, and its own state of it, alone
        if isinstance(pl_module, Task):
            pl_module.loss_log.leave_out(len(losses))
        if self.policy == "rewind":
            self._rewind(trainer, pl_module, optimizer)

    def _report(self, trainer: Trainer, task: LightningModule, places: list[Place], batches: list[Any]) -> str:
        """What is not finite, where it begins, and in which samples."""
        losses = [float(loss) for loss in getattr(task, "step_losses", [])]
        bad = [name for name, p in task.named_parameters() if p.grad is not None and not all_finite(p.grad)]
        what = (
            "the loss" if not all(map(math.isfinite, losses)) else f"the gradient of {bad[0] if bad else 'the model'}"
        )
        ids = [sample_numbers(trainer, place) for place in places]
        where = [f"epoch {place.epoch} batch {place.batch}" for place in places]
        # where weights are shares a forward needs all processes, which would stop at different batches
        looked_at = [] if holds_shares(task) else batches
        origin = first_origin(
            trainer, next((part for batch in looked_at if (part := first_nonfinite(trainer, task, batch))), "")
        )
        step = trainer.global_step
        flat = [number for batch_ids in ids for number in batch_ids]
        more = f" and {len(flat) - MAX_SAMPLES} more" if len(flat) > MAX_SAMPLES else ""
        samples = ", ".join(map(str, flat[:MAX_SAMPLES])) + more
        record = {"step": step, "batches": [place._asdict() for place in places], "samples": ids, "losses": losses}
        if trainer.is_global_zero:
            with self.effort.attempt():
                atomic_files.write_json(self.folder / FILE, {**record, "gradients": bad, "begins": origin})
        begins = f", from {origin} on" if origin else ""
        numbers = f" (samples {samples})" if flat else ""
        return f"step {step}: {what} is not finite{begins}, in {', '.join(where)}{numbers}"

    def _advice(self, trainer: Trainer) -> str:
        newest = checkpoint_manifest.newest_intact(self.folder / "checkpoints").path
        root = self.folder.parents[2] if len(self.folder.parents) > 2 else Path("runs")
        runs = "" if str(root) == "runs" else f" --runs {shlex.quote(str(root))}"
        hint = f"reproduce it: zoo fit {shlex.quote(str(self.folder / CONFIG))}{runs} --resume"
        checkpoint_line = f"last good checkpoint: {newest}\n" if newest else "no checkpoint\n"
        return f"{checkpoint_line}{hint}\nor leave such steps out: --on-nonfinite skip"

    def _rewind(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        newest = checkpoint_manifest.newest_intact(self.folder / "checkpoints").path
        if newest is None:
            raise NonFiniteError("there is no checkpoint to rewind to.")
        content = trainer.strategy.load_checkpoint(newest, weights_only=True)
        weights = content.get(CURRENT, content["state_dict"])  # the latter are averages, then
        weights = {**weights, "tokens_seen": task.state_dict()["tokens_seen"]}
        getattr(optimizer, "eval", lambda: None)()  # what a step changes in its options is the checkpoint's
        # the checkpoint may be older than a change of options by --accept-changes
        state, _ = changed_options.with_options_of(optimizer, content["optimizer_states"][0])
        trainer.strategy.load_model_state_dict({"state_dict": weights})  # a strategy may hold shares of both
        trainer.strategy.load_optimizer_state_dict({"optimizer_states": [state]})


def first_origin(trainer: Trainer, origin: str) -> str:
    """The first non-empty origin of all processes: the batch of another one may be the cause."""
    if trainer.world_size < 2 or not distributed.gathers_state(trainer.strategy):
        return origin
    names: list[str] = [""] * trainer.world_size
    dist.all_gather_object(names, origin)
    return next(filter(None, names), "")


def all_finite(*values: Tensor) -> bool:
    """Whether there is neither nan nor infinity; one wait for the device. Every process must call it for shares."""
    if any(isinstance(value, DTensor) for value in values):
        flags = [torch.isfinite(value).all() for value in values]
        whole = [flag.full_tensor() if isinstance(flag, DTensor) else flag for flag in flags]  # no process leaves early
        return all(bool(flag) for flag in whole)
    if all(value.numel() == 1 and value.device.type == "cpu" for value in values):
        return all(math.isfinite(value.item()) for value in values)
    flags = [torch.isfinite(value).all() for value in values]
    return bool(flags[0] if len(flags) == 1 else torch.stack([flag.to(flags[0].device) for flag in flags]).all())


def holds_shares(task: nn.Module) -> bool:
    """Whether a process holds shares of the weights, which become whole in a forward of all processes."""
    return any(isinstance(parameter, DTensor) for parameter in task.parameters())


def sample_numbers(trainer: Trainer, place: Place) -> list[int]:
    """The samples of a global batch; none for a stream, whose samples have no numbers."""
    loader: Any = trainer.train_dataloader
    if not hasattr(loader, "batches"):
        return []
    return next(itertools.islice(loader.batches.plan.batches(place.epoch), place.batch, None)).tolist()


def first_nonfinite(trainer: Trainer, task: Any, batch: Any) -> str:
    """The first part of the net, in the order of computation, whose output is not finite for a batch."""
    for name, tensor in tensors(batch):
        if tensor.is_floating_point() and not all_finite(tensor):
            return f"batch{name}"
    for name, parameter in task.named_parameters():
        if not all_finite(parameter):
            return f"parameter {name}"
    names: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not all(all_finite(tensor) for _, tensor in tensors(output) if tensor.is_floating_point()):
                names.append(name)

        return hook

    hooks = [module.register_forward_hook(look(f"net.{name}")) for name, module in task.net.named_modules() if name]
    try:
        with torch.no_grad(), torch.random.fork_rng(), trainer.precision_plugin.forward_context():
            task.loss(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return names[0] if names else ""
