"""Before the first step: each part against float64 on the first batch, and parameters that nothing uses."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from zoo.errors import ImpreciseError, UsageError
from zoo.logging.attention_maps import evaluation
from zoo.logging.run_record import tensors
from zoo.parts.ffn import aux_losses
from zoo.tasks.task import Task
from zoo.training import part_numerics, rng_state
from zoo.training.nonfinite import holds_shares
from zoo.training.part_numerics import PartError

LARGEST = 100_000_000  # parameters: above this a copy in float64 is a burden
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}  # relative errors that are no rounding
COARSE = 5e-3  # the first of these where matrix products may round to TF32
MATMUL_EPS = {"highest": 2.0**-23, "high": 2.0**-10, "medium": 2.0**-8}  # error of float32 products, by torch's setting


class PrecisionCheck(Callback):
    """Runs the first batch of a fresh run once more, in float64 and backward, on a copy of the net.

    - Each part on its own inputs against its formula: a part that is farther from it than rounding explains ends the
      run with ImpreciseError, or is a warning where the policy is ``warn``. ``part_numerics/<part>`` in the log is the
      error in units of what rounding explains, and ``numerics.json`` in the folder has both.
    - Each part's output in the whole net, relative to the largest value in it: ``numerics/<part>`` in the log. One
      that no rounding explains is a warning: neither the part's own, nor that of its inputs, which a norm of values
      near zero makes larger.

    Neither weights, nor generators, nor order are touched. Raises UsageError where DDP would wait for the gradient of
    a parameter that nothing uses.
    """

    def __init__(self, folder: Path | None = None, policy: str = "stop") -> None:
        self.folder, self.policy = folder, policy

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Compare the first batch of a fresh run. Raises ImpreciseError for a wrong part, UsageError for an unused
        parameter under DDP.
        """
        if trainer.global_step or batch_idx or trainer.current_epoch or not isinstance(pl_module, Task):
            return
        if holds_shares(pl_module):
            if trainer.is_global_zero:
                reason = "each process holds a share of each weight. One process compares: --trainer.devices 1"
                print(f"warning: not compared with float64: {reason}", file=sys.stderr, flush=True)
            return
        if not trainer.is_global_zero or sum(p.numel() for p in pl_module.net.parameters()) > LARGEST:
            return
        before = rng_state.capture(pl_module.device)
        try:
            comparison = compare_with_float64(trainer, pl_module, batch)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
            print(f"warning: not compared with float64: {reason}", file=sys.stderr, flush=True)
            return
        finally:
            rng_state.restore(before, pl_module.device)
        if self.folder is not None and self.folder.is_dir():  # there is none in a trial run of a few batches
            part_numerics.write_parts(self.folder / part_numerics.FILE, dtype_of(trainer), comparison.parts)
        report_errors(trainer, comparison)
        self._judge(trainer, comparison.parts)

    def _judge(self, trainer: Trainer, parts: list[PartError]) -> None:
        """Warn of parts that are wrong by more than rounding, or raise ImpreciseError."""
        wrong = [part for part in parts if not part.share <= 1]
        if not wrong:
            return
        part = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        sentence = (
            f"{part.name}, {part.part}, differs from its formula in float64 by {part.error:.1e} of the largest value"
            f"{more}; rounding to {str(dtype_of(trainer))[6:]} explains {part.tolerance:.1e}"
        )
        if self.policy == "warn":
            print(f"warning: {sentence}", file=sys.stderr, flush=True)
            return
        raise ImpreciseError(
            f"{sentence}.\nIts code computes something else, or in too low a precision; try: zoo check {part.part}\n"
            "Train nevertheless: --on-imprecise warn"
        )


class PrecisionComparison(NamedTuple):
    """Relative error of each module's output by name, in the order of computation; of those ``wrong`` by more than
    rounding what they do to exact inputs; the parameters that nothing uses; and each part's error on its own inputs.
    """

    errors: dict[str, float]
    wrong: dict[str, float]
    unused: list[str]
    parts: list[PartError]


def report_errors(trainer: Trainer, comparison: PrecisionComparison) -> None:
    """Log and warn. Raises UsageError where DDP would wait for the gradient of an unused parameter."""
    errors, wrong, unused, parts = comparison
    scalars = {f"numerics/{name}": value for name, value in errors.items()}
    scalars |= {f"part_numerics/{part.name}": part.share for part in parts}
    for logger in trainer.loggers:
        logger.log_metrics(scalars, trainer.global_step)
    if wrong:
        name = next(iter(wrong))
        more = f" (and {len(wrong) - 1} parts after it)" if len(wrong) > 1 else ""
        sentence = f"{name} differs from float64 by {wrong[name]:.1e} of its largest value{more}"
        dtype = str(dtype_of(trainer))[6:]
        print(f"warning: {sentence}; rounding to {dtype} explains less", file=sys.stderr, flush=True)
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


def dtype_of(trainer: Trainer) -> torch.dtype:
    """The dtype that a trainer computes in."""
    kind = str(trainer.precision)
    return torch.bfloat16 if "bf16" in kind else torch.float16 if "16" in kind else torch.float32


def compare_with_float64(trainer: Trainer, task: Task, batch: Any) -> PrecisionComparison:
    """Each module's output on a batch, in the precision of training, with that of a copy in float64."""
    state = rng_state.capture(task.device)
    with (
        evaluation(task.net), trainer.precision_plugin.forward_context(),
        part_numerics.record_calls(task.net) as calls,
    ):  # fmt: skip
        results = module_outputs(task, task.net, batch)
    exact = copy.deepcopy(task.net).double().eval()
    rng_state.restore(state, task.device)
    with torch.random.fork_rng([]), torch.enable_grad():
        exact_results = module_outputs(task, exact, in_float64(batch), backward=True)
    errors = {}
    selecting = tuple(
        f"{name}." for name, module in task.net.named_modules() if getattr(module, "computes_all", True) is False
    )
    for name, value in results.items():
        if selecting and f"{name}.".startswith(selecting):
            break  # rounded scores may select other tokens, which all that follows is computed from
        if name in exact_results and value.shape == exact_results[name].shape and value.numel():
            errors[name] = relative_error(value, exact_results[name])
    unused = [name for name, p in exact.named_parameters() if p.requires_grad and p.grad is None]
    dtype = dtype_of(trainer)
    fine = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    bound = BOUNDS[dtype] if fine else COARSE
    suspects = [name for name, error in errors.items() if not error <= bound]
    rng_state.restore(state, task.device)
    with evaluation(task.net), trainer.precision_plugin.forward_context():
        inputs = module_inputs(task, batch, suspects)
    own = {name: own_error(exact.get_submodule(name), *inputs[name], results[name]) for name in suspects}
    wrong = {name: errors[name] for name, error in own.items() if not error <= bound}
    eps = torch.finfo(dtype).eps if dtype != torch.float32 else MATMUL_EPS[torch.get_float32_matmul_precision()]
    parts = part_numerics.measure(task.net, exact, calls, dtype, eps)
    return PrecisionComparison(errors, wrong, [f"net.{name}" for name in unused], parts)


def relative_error(value: Tensor, exact: Tensor) -> float:
    """The largest difference between two tensors of one shape, relative to the largest exact value."""
    return float((value.double() - exact).abs().max()) / (float(exact.abs().max()) or 1.0)


def own_error(exact: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Tensor) -> float:
    """The relative error of ``value``, of any shape, from what a module in float64 gives for the same rounded inputs;
    infinite where it gives nothing comparable outside of its model.
    """
    try:
        with torch.no_grad():
            output = exact(*arguments, **keywords)
    except Exception:
        return float("inf")
    result = next((tensor for _, tensor in tensors(output) if tensor.is_floating_point()), None)
    return float("inf") if result is None or result.shape != value.shape else relative_error(value, result)


def module_inputs(task: Task, batch: Any, names: list[str]) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """What each of the named modules of a task is called with first, positional and by keyword, in float64."""
    inputs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if name not in inputs:
                inputs[name] = in_float64(arguments), in_float64(keywords)

        return hook

    hooks = [task.net.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True) for name in names]
    try:
        if names:
            task.loss(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def module_outputs(task: Task, net: nn.Module, batch: Any, backward: bool = False) -> dict[str, Tensor]:
    """The first output tensor, of any shape, of each module at its first call, with ``net`` in place of the task's."""
    first_outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            result = next((tensor for _, tensor in tensors(output) if tensor.is_floating_point()), None)
            if result is not None:
                first_outputs.setdefault(name, result.detach().clone())

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
