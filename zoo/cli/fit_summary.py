"""The header that a run prints before it starts, and its summary at the end."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zoo.console import format_bytes
from zoo.errors import ZooError
from zoo.io.checkpoint_manifest import has_checkpoint

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from zoo.config.run_config import RunPlan
    from zoo.config.run_folder import RunLocation
    from zoo.data.data import Data
    from zoo.tasks.task import Task
    from zoo.training.model_cost import Cost

WIDTH = 80  # columns
LABEL = 10  # columns for what a line is about
PARTS = ("position", "attention", "backend", "norm", "ffn", "block")
# what parts and data raise that need real values or files: torch's own errors are RuntimeError or NotImplementedError
ESTIMATE_ERRORS = (
    RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, OSError,
    ZooError,
)  # fmt: skip
TRAINING = ("optimizer", "schedule", "init")  # shown where they are not the default


def entry(label: str, text: str) -> str:
    """``  label   text``, in lines of WIDTH columns; a word that is longer, such as a path, stays whole."""
    return textwrap.fill(
        text, WIDTH, initial_indent=f"  {label:{LABEL - 2}}", subsequent_indent=" " * LABEL, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def header(plan: RunPlan, task: Task, cost: Cost) -> str:
    """What is trained, on which data, for how long, and where it is written; its parts and size."""
    run, options = plan.run, plan.config["model"]["init_args"]
    data = str(plan.config["data"]["class_path"]).rpartition(".")[2]
    verb = "Resuming" if plan.command.get("resume") else "Training"
    parts = [f"{kind} {description}" for kind in PARTS if (description := part(kind, task, options.get(kind)))]
    tensors = list(task.net.parameters())
    counts = cost.parameters, sum(tensor.numel() for tensor in tensors)
    ours, total = (f"{count:,}" if count < 10_000 else f"{count / 1e6:.3g} M" for count in counts)
    frozen = "" if all(tensor.requires_grad for tensor in tensors) else f" trained of {total}"
    size = f"{ours} parameters{frozen} · {cost.flops / 1e6:.3g} MFLOP per {task.unit}, forward"
    title = f"{verb} {run.recipe}: {type(task).__name__} on {data}, {length(plan.config['trainer'])}, seed {run.seed}"
    lines = [
        textwrap.fill(title, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False),
        entry("task", goal(type(task))),
        entry("parts", " · ".join(parts) or "none that can be swapped"),
        *layers(options),
        training(task, options),
        entry("size", size),
        entry("folder", str(run.folder)),
    ]
    return "\n".join(filter(None, lines))


def goal(task: type[Task]) -> str:
    """What a task learns, in the first words of its class: "predict each next token"."""
    text = " ".join((task.__doc__ or "").split())
    phrase = re.split(r"[;.]", text, maxsplit=1)[0] or task.__name__
    return phrase[:1].lower() + phrase[1:]


def length(trainer: Mapping[str, Any]) -> str:
    """How long a run is: "3,000 steps", "2 epochs", "at most 00:01:00:00"; what comes first where there are several."""
    steps, epochs, time = trainer.get("max_steps", -1), trainer.get("max_epochs"), trainer.get("max_time")
    limits = [f"{steps:,} {'step' if steps == 1 else 'steps'}"] if steps is not None and steps >= 0 else []
    limits += [f"{epochs:,} {'epoch' if epochs == 1 else 'epochs'}"] if epochs is not None and epochs >= 0 else []
    limits += [f"at most {time}"] if time else []
    return " or ".join(limits) or "without an end"


def layers(options: Mapping[str, Any]) -> list[str]:
    """A line for each group of layers that has other parts than the stack's."""
    from zoo.models.layer_overrides import PLACES, configured_layers
    from zoo.training.setup import display_value

    lines = []
    for override in options.get("overrides") or ():
        numbers = [str(number) for number in configured_layers(override, options["depth"])]
        where = ", ".join(numbers if len(numbers) <= 4 else [*numbers[:2], "…", numbers[-1]])
        parts = [
            f"{name} {display_value(value)}"
            for name, value in override.items()
            if name not in PLACES and value is not None
        ]
        lines.append(entry("layers", f"{where}: {' · '.join(parts) or 'as all others'}"))
    return lines


def training(task: Task, options: Mapping[str, Any]) -> str:
    """The optimizer, the schedule and the rule for initial weights that are not the task's defaults; or empty."""
    from zoo.training.setup import default_options, display_value

    usual = default_options(f"{type(task).__module__}.{type(task).__qualname__}")
    words = []
    for kind in TRAINING:
        default = usual.get(kind)
        value = display_value(options[kind]) if options.get(kind) is not None else None
        if value is not None and value != getattr(default, "__name__", default):
            words.append(f"{kind} {value}")
    return entry("train", " · ".join(words)) if words else ""


def memory_of(task: Task, plan: RunPlan, data: Data | None = None) -> str:
    """The header's last line, about how much memory a step takes, or why that is unknown.

    Parts of plugins run on tensors without numbers, which may raise anything; such a run may train all the same.
    """
    import torch

    from zoo.training.memory_estimate import device_memory, estimate, reason_against, rows, training_batch

    if reason := reason_against(plan.config):
        return entry("memory", f"unknown {reason}")
    trainer = plan.config["trainer"]
    try:
        batch, description = training_batch(task, rows(task, plan.config["data"].get("init_args") or {}), data)
        need = estimate(task, batch)
    except ESTIMATE_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return entry("memory", f"unknown: {reason}")
    own = f"{format_bytes(need.weights + need.states)} weights and optimiser"
    text = f"about {format_bytes(need.total)}: {own}, {format_bytes(need.batch)} {description}"
    gpu = torch.cuda.is_available() and trainer.get("accelerator", "auto") in ("auto", "gpu", "cuda")
    limit = device_memory(torch.device("cuda" if gpu else "cpu"))
    if limit is not None and need.total > limit:
        text += f" — more than the {format_bytes(limit)} here: take a smaller batch, length or model"
    return entry("memory", text)


def part(kind: str, task: Task, value: Any) -> str:
    """A part as configured, or empty; without a configured backend, those that the attentions chose."""
    from zoo.parts.attention import Attention
    from zoo.training.setup import display_value

    if value is None and kind == "backend":
        backends = {repr(module.backend) for module in task.modules() if isinstance(module, Attention)}
        return "/".join(sorted(backends))
    return "" if value is None else str(display_value(value))


def device_name(trainer: Trainer, automatic: bool = False) -> str:
    """Device, threads and precision; ``automatic``: no option sets the precision."""
    import torch

    from zoo.config import precision
    from zoo.system import malloc

    kind = place = str(trainer.strategy.root_device.type)
    if place == "cuda":
        place = torch.cuda.get_device_name()
    count = torch.get_num_threads()
    threads = f", {count} {'thread' if count == 1 else 'threads'}" if place == "cpu" else ""
    several = f"{trainer.world_size} × " if trainer.world_size > 1 else ""
    freed_memory = f" · freed memory is {malloc.state()}" if place == "cpu" else ""
    advice = ""
    if (
        automatic and str(trainer.precision) == precision.BF16_MIXED and precision.has_fast_bf16(kind)
    ):  # not adopted from a checkpoint
        advice = ", which this machine is fast at (exact: --trainer.precision 32-true)"
    elif str(trainer.precision) == "32-true" and precision.has_bf16(kind):
        advice = f", {precision.BF16_MIXED} may be faster"
    return f"{several}{place}{threads} · {trainer.precision}{advice}{freed_memory}"


def summary(run: RunLocation, trainer: Trainer, task: Task, seconds: float) -> str:
    """Steps, time and best figures of a run, and the commands that come next."""
    whole = round(seconds)
    duration = f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
    best = " · ".join(f"{name} {value:.4g}" for name, value in task.best.items())
    return "\n".join(
        [
            f"finished {trainer.global_step} steps in {duration}{f' · best {best}' if best else ''}",
            f"  look     zoo tensorboard {shlex.quote(str(run.root / run.recipe))}",
            f"  measure  zoo test {shlex.quote(str(run.folder))}"
            if has_checkpoint(run.folder)
            else "  no checkpoint was saved, as the trainer was told: this run cannot be used further",
        ]
    )
