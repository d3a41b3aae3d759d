"""What a run says before it starts and after it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from zoo.config.run_config import Plan
    from zoo.config.run_folder import Run
    from zoo.tasks.task import Task
    from zoo.training.model_cost import Cost

PLACES = ("first", "step", "last")  # what says for which layers an override is
PARTS = ("position", "attention", "backend", "norm", "ffn", "block")


def header(run: Run, task: Task, cost: Cost, options: Mapping[str, Any]) -> str:
    """The run, its parts and its size."""
    parts = [f"{kind} {description}" for kind in PARTS if (description := part(kind, task, options.get(kind)))]
    size = f"{cost.parameters / 1e6:.3g} M parameters · {cost.flops / 1e6:.3g} MFLOP per {task.unit}, forward"
    return "\n".join(
        [
            f"{run.title} · seed {run.seed} → {run.folder}",
            f"  parts   {' · '.join(parts) or 'none that can be swapped'}",
            *layers(options),
            f"  size    {size}",
        ]
    )


def layers(options: Mapping[str, Any]) -> list[str]:
    """A line for each group of layers that has other parts than the stack's."""
    from zoo.models.layer_overrides import Override
    from zoo.training.setup import display_value

    lines = []
    for one in options.get("overrides") or ():
        place = Override(**{name: one[name] for name in PLACES})
        numbers = [str(number) for number in place.layers(options["depth"])]
        where = ", ".join(numbers if len(numbers) <= 4 else [*numbers[:2], "…", numbers[-1]])
        parts = [
            f"{name} {display_value(value)}" for name, value in one.items() if name not in PLACES and value is not None
        ]
        lines.append(f"  layers  {where}: {' · '.join(parts) or 'as all others'}")
    return lines


def memory_of(task: Task, plan: Plan) -> str:
    """About how much memory a step will take; nothing where that cannot be said."""
    from zoo.training.memory_estimate import estimate, rows

    trainer, model, data = (plan.config[name] for name in ("trainer", "model", "data"))
    plain = str(trainer.get("precision") or 32).startswith("32") and not model["init_args"].get("recompute")
    try:
        count = rows(task, data.get("init_args") or {}) if plain else 0
        need = estimate(task, count) if count else None
    except Exception:  # a net of a plugin may need numbers, which an estimate has not
        return ""
    if need is None:
        return ""
    own = f"{megabytes(need.weights + need.states)} weights and optimiser"
    return f"  memory  about {megabytes(need.total)}: {own}, {megabytes(need.batch)} a batch of {count} at full length"


def megabytes(size: int) -> str:
    """Bytes as a person says them."""
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"


def part(kind: str, task: Task, value: Any) -> str:
    """A part as configured; the backend that an attention chose itself when none is named."""
    from zoo.parts.attention import Attention
    from zoo.training.setup import display_value

    if value is None and kind == "backend":
        used = {repr(module.backend) for module in task.modules() if isinstance(module, Attention)}
        return "/".join(sorted(used))
    return "" if value is None else str(display_value(value))


def device_name(trainer: Trainer, chosen: bool = False) -> str:
    """Where a run computes, and how; ``chosen``: nobody has said in which precision."""
    import torch

    from zoo.config import precision
    from zoo.system import malloc

    kind = place = str(trainer.strategy.root_device.type)
    if place == "cuda":
        place = torch.cuda.get_device_name()
    threads = f", {torch.get_num_threads()} threads" if place == "cpu" else ""
    several = f"{trainer.world_size} × " if trainer.world_size > 1 else ""
    freed = f" · freed memory is {malloc.state()}" if place == "cpu" else ""
    advice = ""
    if (
        chosen and str(trainer.precision) == precision.BF16_MIXED and precision.has_fast_bf16(kind)
    ):  # not where it was adopted
        advice = ", which this machine is fast at (exact: --trainer.precision 32-true)"
    elif str(trainer.precision) == "32-true" and precision.has_bf16(kind):
        advice = f", {precision.BF16_MIXED} may be faster"
    return f"  device  {several}{place}{threads} · {trainer.precision}{advice}{freed}"


def summary(run: Run, trainer: Trainer, task: Task, seconds: float) -> str:
    """How far a run came, how good it was, and what to do next."""
    whole = round(seconds)
    took = f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
    best = " · ".join(f"{name} {value:.4g}" for name, value in task.best.items())
    return "\n".join(
        [
            f"finished {trainer.global_step} steps in {took}{f' · best {best}' if best else ''}",
            f"  look     zoo tensorboard {run.root}",
            f"  measure  zoo test {run.folder}",
        ]
    )
