"""Settings that may differ between two runs without mattering; all others are a run's identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zoo import registry

# what may differ between two runs without mattering: where a run happens and how it is watched, never what it learns.
# All other settings name a run's folder, are compared, and can be varied; callbacks: see `is_passive_callback`
PASSIVE_SETTINGS = (
    "trainer.devices", "trainer.accelerator", "trainer.num_nodes", "trainer.logger", "trainer.log_every_n_steps",
    "trainer.default_root_dir", "trainer.profiler", "trainer.detect_anomaly", "trainer.max_time",
    "trainer.model_registry", "trainer.num_sanity_val_steps", "trainer.enable_", "data.num_workers", "data.pin_memory",
    "data.cache",
)  # fmt: skip
CALLBACKS, STRATEGY = "trainer.callbacks", "trainer.strategy"
# strategies that divide batches and leave numbers as they are, as those that packages register do; others may have a
# precision of their own
PASSIVE_STRATEGIES = ("auto", "ddp", "single_device")
# callbacks of Lightning that only watch; those of zoo and its plugins declare whether they do more
PASSIVE_CALLBACKS = (
    "ModelCheckpoint", "LearningRateMonitor", "DeviceStatsMonitor", "ModelSummary", "RichModelSummary",
    "TQDMProgressBar", "RichProgressBar", "ProgressBar", "ThroughputMonitor", "OnExceptionCheckpoint",
)  # fmt: skip


def is_passive(key: str, value: object) -> bool:
    """Whether a setting only says where a run happens or how it is watched; ``value`` matters for the strategy.

    Settings of data are passive also where one data module reads another.
    """
    if key.startswith(STRATEGY):
        passive = (*PASSIVE_STRATEGIES, *registry.strategies())
        return key == STRATEGY and (value is None or str(value).startswith(passive))
    nested = key.startswith("data.") and f"data.{key.rpartition('.')[2]}" in PASSIVE_SETTINGS
    return nested or key.startswith(PASSIVE_SETTINGS)


def is_passive_callback(cls: type) -> bool:
    """Whether a callback only watches: of zoo and its plugins one that declares no change, of Lightning a known one.

    The contract of callbacks checks what theirs declare; of any other class nothing is known, so it may change a run.
    """
    if any(getattr(cls, name, False) is True for name in ("changes_training", "changes_results")):
        return False
    if cls.__module__.partition(".")[0] == "zoo" or registry.part_of_class(f"{cls.__module__}.{cls.__qualname__}"):
        return True
    return cls.__name__ in PASSIVE_CALLBACKS and cls.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def acting_callbacks(value: object, passive: Iterable[str] = ()) -> list[object] | None:
    """The callbacks in a configuration that may change its run, by the names of their classes; None if none do."""
    items = value if isinstance(value, list) else [value] if value else []
    names = [str(item.get("class_path") if isinstance(item, dict) else item).rpartition(".")[2] for item in items]
    harmless = {*PASSIVE_CALLBACKS, *passive}
    return [item for item, name in zip(items, names, strict=True) if name not in harmless] or None


def passive_keys(full: Mapping[str, object]) -> tuple[str, ...]:
    """How the keys of the callbacks in this configuration that only watch begin."""
    callbacks = {key: value for key, value in full.items() if key.startswith(CALLBACKS) and isinstance(value, type)}
    return tuple(key for key, cls in callbacks.items() if is_passive_callback(cls))
