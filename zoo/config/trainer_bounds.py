"""Valid values of the options of Lightning's Trainer, which itself fails late or ignores some invalid values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from zoo import registry
from zoo.config.coercion import LARGEST_INT
from zoo.config.layers import where
from zoo.errors import UsageError
from zoo.registry import suggest

DURATION = re.compile(r"\d{2,}:\d{2}:\d{2}:\d{2}")


def _integer(least: int, most: int = LARGEST_INT) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _batches(value: Any) -> bool:
    """Whether a value is a number of batches or a share of them."""
    return 0 <= value <= LARGEST_INT if type(value) is int else isinstance(value, float) and 0 <= value <= 1


def _interval(value: Any) -> bool:
    if isinstance(value, str):
        return bool(DURATION.fullmatch(value))
    if type(value) is int:
        return 1 <= value <= LARGEST_INT
    return 0 < value <= 1 if isinstance(value, float) else not isinstance(value, bool)  # a timedelta, or its fields


def _duration(value: Any) -> bool:
    return not isinstance(value, str) or bool(DURATION.fullmatch(value))


def _devices(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_integer(0, 4096)(item) for item in value)
    if isinstance(value, str):
        text = value.strip()
        pieces = [piece.strip() for piece in text.rstrip(",").split(",")]
        return text == "auto" or (
            all(piece.isascii() and piece.isdecimal() for piece in pieces) and ("," in text or int(text) > 0)
        )
    return type(value) is int and (1 <= value <= 4096 or value == -1)


ENDS = ("max_steps", "max_epochs", "max_time")
STEPS = (_integer(-1), "a whole number from 0, or -1 for no limit")
COUNT = (_integer(0), "a whole number from 0")
FROM_ONE = (_integer(1), "a whole number from 1")
BATCHES = (_batches, "a number of batches, such as 10, or a share from 0.0 to 1.0")
BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_steps": STEPS,
    "max_epochs": STEPS,
    "min_steps": COUNT,
    "min_epochs": COUNT,
    "accumulate_grad_batches": FROM_ONE,
    "check_val_every_n_epoch": FROM_ONE,
    "num_nodes": (_integer(1, 2**20), "a whole number from 1 to 1048576"),
    "log_every_n_steps": COUNT,
    "reload_dataloaders_every_n_epochs": COUNT,
    "num_sanity_val_steps": (_integer(-1), "a whole number from 0, or -1 for all batches"),
    "fast_dev_run": (lambda value: isinstance(value, bool) or COUNT[0](value), "true, false, or a number of batches"),
    "limit_train_batches": (
        lambda value: value != 0 and _batches(value),
        "a number of batches from 1, or a share above 0.0 to 1.0; for no training: trainer.max_steps 0",
    ),
    "limit_val_batches": BATCHES,
    "limit_test_batches": BATCHES,
    "limit_predict_batches": BATCHES,
    "overfit_batches": BATCHES,
    "val_check_interval": (_interval, "a number of batches from 1, a share above 0.0 to 1.0, or a time DD:HH:MM:SS"),
    "max_time": (_duration, "a time DD:HH:MM:SS, such as 00:02:30:00"),
    "gradient_clip_val": (lambda value: isinstance(value, (int, float)) and value >= 0, "0 or above"),
    "gradient_clip_algorithm": (lambda value: value in ("norm", "value"), "'norm' or 'value'"),
    "devices": (_devices, "a number of devices from 1, -1 for all, a list of their numbers, or auto"),
}  # fmt: skip


def check_trainer(options: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise UsageError for the first option of the Trainer with an invalid value."""
    for name, (fits, right) in BOUNDS.items():
        value = options.get(name)
        if value is not None and not fits(value):
            key = f"trainer.{name}"
            raise UsageError(f"{key!r} must be {right}; got {value!r:.60}.{where(origins.get(key, ''))}")
    if options.get("barebones"):
        raise UsageError(
            "'trainer.barebones' trains without checkpoints and logs, and a run consists of them. Leave it out."
            + where(origins.get("trainer.barebones", ""))
        )


def check_end(options: Mapping[str, Any], recipe: str) -> None:
    """Raise UsageError for a training run without an end, which Lightning would end after 1,000 epochs by itself.

    A value of -1 is a decision for no limit.
    """
    if all(options.get(name) is None for name in ENDS) and not options.get("fast_dev_run"):
        raise UsageError(
            f"{recipe} states no end of training. Write one of 'max_steps: 1000', 'max_epochs: 10' below 'trainer:', "
            "or add --trainer.max_steps 1000."
        )


def check_hardware(options: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise UsageError for an accelerator or strategy that Lightning does not have, or that the machine lacks."""
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import StrategyRegistry

    if options.get("strategy") in registry.strategies():
        from zoo.training.distributed import register_strategies

        register_strategies()
    names = {"accelerator": {"auto", "gpu", *AcceleratorRegistry.available_accelerators()}}
    names["strategy"] = {"auto", *StrategyRegistry.available_strategies(), *registry.strategies()}
    for name, valid_names in names.items():
        value, key = options.get(name), f"trainer.{name}"
        if isinstance(value, str) and value.lower() not in valid_names:
            raise UsageError(
                f"{key!r} is {value!r}, which Lightning does not have.{suggest(value, valid_names)} There are: "
                f"{', '.join(sorted(name for name in valid_names if '_' not in name))}.{where(origins.get(key, ''))}"
            )
    value = str(options.get("accelerator", "")).lower()
    backends = [name for name in ("cuda", "mps") if value in ("gpu", name)]
    if backends and not any(AcceleratorRegistry[name]["accelerator"].is_available() for name in backends):
        raise UsageError(
            f"'trainer.accelerator' is {value!r}, and torch sees no such device here. Take cpu or auto; "
            f"zoo doctor says what there is.{where(origins.get('trainer.accelerator', ''))}"
        )
