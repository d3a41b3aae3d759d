"""Before the first step: each part's output against float64 on the first batch, and parameters that nothing uses."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.logging.attention_maps import evaluation
from zoo.logging.run_record import tensors
from zoo.parts.ffn import aux_losses
from zoo.tasks.task import Task
from zoo.training import rng_state

LARGEST = 100_000_000  # parameters: above this a copy in float64 is a burden
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}  # relative errors that are no rounding
COARSE = 5e-3  # the first of these where matrix products may round to TF32


class PrecisionCheck(Callback):
    """Runs the first batch of a fresh run once more, in float64 and backward, on a copy of the net.

    The largest difference of each part's output, relative to the largest value in it, goes to the log as
    ``numerics/<part>``; one that no rounding explains is a warning. Neither weights, nor generators, nor order are
    touched. Raises UsageError where DDP would wait for the gradient of a parameter that nothing uses.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Compare the first batch of a fresh run. Raises UsageError for an unused parameter under DDP."""
        if trainer.global_step or batch_idx or trainer.current_epoch or not isinstance(pl_module, Task):
            return
        if not trainer.is_global_zero or sum(p.numel() for p in pl_module.net.parameters()) > LARGEST:
            return
        before = rng_state.capture(pl_module.device)
        try:
            errors, unused = compare_with_float64(trainer, pl_module, batch)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
            print(f"warning: not compared with float64: {reason}", file=sys.stderr, flush=True)
            return
        finally:
            rng_state.restore(before, pl_module.device)
        report_errors(trainer, errors, unused)


def report_errors(trainer: Trainer, errors: dict[str, float], unused: list[str]) -> None:
    """Log and warn. Raises UsageError where DDP would wait for the gradient of an unused parameter."""
    for logger in trainer.loggers:
        logger.log_metrics({f"numerics/{name}": value for name, value in errors.items()}, trainer.global_step)
    kind = trainer.precision
    dtype = torch.bfloat16 if "bf16" in str(kind) else torch.float16 if "16" in str(kind) else torch.float32
    exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    wrong = {name: value for name, value in errors.items() if not value <= (BOUNDS[dtype] if exact else COARSE)}
    if wrong:
        name = next(iter(wrong))
        more = f" (and {len(wrong) - 1} parts after it)" if len(wrong) > 1 else ""
        sentence = f"{name} differs from float64 by {wrong[name]:.1e} of its largest value{more}"
        print(f"warning: {sentence}; rounding to {str(dtype)[6:]} explains less", file=sys.stderr, flush=True)
    if not unused:
        return
    names = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
    sentence = f"nothing uses the parameter{'s' if len(unused) > 1 else ''} {names}: no gradient reaches it"
    # an attribute of torch's DistributedDataParallel alone
    if getattr(trainer.strategy.model, "find_unused_parameters", None) is False:
        raise UsageError(
            f"{sentence}.\nLeave it out of the model, or: --trainer.strategy ddp_find_unused_parameters_true"
        )
    print(f"warning: {sentence}", file=sys.stderr, flush=True)


def compare_with_float64(trainer: Trainer, task: Task, batch: Any) -> tuple[dict[str, float], list[str]]:
    """Relative error of each module's output by name, in the order of computation, and the unused parameters."""
    state = rng_state.capture(task.device)
    with evaluation(task.net), trainer.precision_plugin.forward_context():
        results = module_outputs(task, task.net, batch)
    exact = copy.deepcopy(task.net).double().eval()
    rng_state.restore(state, task.device)
    with torch.random.fork_rng([]), torch.enable_grad():
        exact_results = module_outputs(task, exact, in_float64(batch), backward=True)
    errors = {}
    selecting = tuple(
        f"{name}." for name, one in task.net.named_modules() if getattr(one, "computes_all", True) is False
    )
    for name, value in results.items():
        if selecting and f"{name}.".startswith(selecting):
            break  # rounded scores may select other tokens, which all that follows is computed from
        if name in exact_results and value.shape == exact_results[name].shape and value.numel():
            largest = float(exact_results[name].abs().max()) or 1.0
            errors[name] = float((value.double() - exact_results[name]).abs().max()) / largest
    unused = [name for name, p in exact.named_parameters() if p.requires_grad and p.grad is None]
    return errors, [f"net.{name}" for name in unused]


def module_outputs(task: Task, net: nn.Module, batch: Any, backward: bool = False) -> dict[str, Tensor]:
    """The first output tensor, of any shape, of each module at its first call, with ``net`` in place of the task's."""
    first_outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = next((one for _, one in tensors(output) if one.is_floating_point()), None)
            if first is not None:
                first_outputs.setdefault(name, first.detach().clone())

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in net.named_modules() if name]
    try:
        with replace_net(task, net):
            total, size = task.loss(batch)
            for side in aux_losses(net):
                total = total + side * size
            if backward:
                total.backward()
    finally:
        for hook in hooks:
            hook.remove()
    return first_outputs


@contextmanager
def replace_net(task: Task, net: nn.Module) -> Iterator[None]:
    """Put another net in the place of the task's while the block runs."""
    original = task.net
    task.net = net
    try:
        yield
    finally:
        task.net = original


def in_float64(batch: Any) -> Any:
    """A batch whose floating-point tensors are float64."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, dict):
        return {name: in_float64(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(in_float64(value) for value in batch)
    return batch
