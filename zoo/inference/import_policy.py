"""Class paths that a configuration may name: parts of zoo and its plugins, harmless classes of Lightning and torch.

A class is harmless if neither building nor using it starts a process, opens a connection, or imports or calls what its
options name. Only classes that recipes need are listed; others need --allow-import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from zoo import registry
from zoo.errors import UsageError
from zoo.plugins.safe_import import search_working_folder

ROOTS = ("zoo", "lightning", "pytorch_lightning", "torch", "torchvision", "torchmetrics")
ALL = "*"  # in a list of allowed modules: all modules
OPTIMIZERS = frozenset(
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam".split()
)
SCHEDULES = frozenset(
    "StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR ReduceLROnPlateau CyclicLR "
    "CosineAnnealingWarmRestarts OneCycleLR".split()
)
# without LambdaCallback, which calls functions, and loggers that send data to a service
LIGHTNING = {
    "callbacks": frozenset(
        "BackboneFinetuning BatchSizeFinder DeviceStatsMonitor EarlyStopping EMAWeightAveraging "
        "GradientAccumulationScheduler LearningRateFinder LearningRateMonitor ModelCheckpoint ModelPruning "
        "ModelSummary OnExceptionCheckpoint RichModelSummary RichProgressBar SpikeDetection StochasticWeightAveraging "
        "ThroughputMonitor Timer TQDMProgressBar WeightAveraging".split()
    ),
    "loggers": frozenset("CSVLogger TensorBoardLogger".split()),
    "strategies": frozenset("DDPStrategy FSDPStrategy ModelParallelStrategy SingleDeviceStrategy".split()),
    "accelerators": frozenset("CPUAccelerator CUDAAccelerator MPSAccelerator".split()),
    "profilers": frozenset("AdvancedProfiler PassThroughProfiler PyTorchProfiler SimpleProfiler".split()),
    "plugins": frozenset(
        "DoublePrecision FSDPPrecision HalfPrecision MixedPrecision Precision TorchSyncBatchNorm".split()
    ),
}
# paths that jsonargparse was told to import, and not to import: it forgets neither, and the longest path decides
_allowlist: set[str] = set()
_denylist: set[str] = set()


def is_harmless(path: str) -> bool:
    """Whether a class path of Lightning, torch or torchvision is listed, by any of its public modules."""
    module, _, name = path.rpartition(".")
    for home in ("lightning.pytorch", "pytorch_lightning"):
        for group, names in LIGHTNING.items():
            if name in names and f"{module}.".startswith(f"{home}.{group}."):
                return True
    if module.startswith("torch.optim.lr_scheduler"):
        return name in SCHEDULES
    if f"{module}.".startswith("torch.optim."):
        return name in OPTIMIZERS
    layer = f"{module}.".startswith(("torch.nn.modules.", "torchvision.transforms.")) or module == "torch.nn"
    return layer and name[:1].isupper() and not name.startswith("Lambda")


def allowed_roots(extra: tuple[str, ...] = ()) -> list[str]:
    """Modules of which all classes are allowed: those of installed plugins, and ``extra``."""
    plugin_parts = (part for kind in registry.KINDS for part in registry.installed_parts(kind) if not part.builtin)
    owners = {(part.module.partition(".")[0], part.distribution) for part in plugin_parts}
    packages = {package for package, distribution in owners if not registry.is_disabled(distribution)}
    # a plugin cannot allow the standard library, torch or Lightning, or invalid module names
    opened = sorted(name for name in packages - sys.stdlib_module_names - {*ROOTS} if name.isidentifier())
    return list(dict.fromkeys([*opened, *extra]))


def is_allowed(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Whether a class path may be imported."""
    pieces = path.split(".")
    if not all(piece.isidentifier() for piece in pieces):
        return False
    if ALL in extra or any(path == root or path.startswith(f"{root}.") for root in allowed_roots(extra)):
        return True
    if pieces[0] == "zoo":  # importing `zoo.__main__` runs a program
        return not any(piece.startswith("_") for piece in pieces) and pieces[1:2] != ["conformance"]
    owner = registry.part_of_class(path)
    mine = owner is not None and owner.builtin
    return mine or is_harmless(path)


def search_trusted(path: str, extra: tuple[str, ...] = ()) -> None:
    """Search the working folder too for the module of a class path that only the user's --allow-import allows."""
    if is_allowed(path, extra) and not is_allowed(path):
        search_working_folder(path)


def stdlib_reason(path: str) -> str:
    """The reason why a class path in Python's standard library is never allowed; empty for other paths."""
    top = path.partition(".")[0]
    if top in sys.stdlib_module_names or top == "builtins":
        return "it belongs to Python's standard library, which has no parts, data modules or callbacks"
    return ""


def is_forbidden(cls: type, extra: tuple[str, ...] = ()) -> bool:
    """Whether a class that is already imported, and named without its module, is not allowed."""
    top = cls.__module__.partition(".")[0]
    family = top in ROOTS or top in sys.stdlib_module_names
    return family and cls.__module__ != "__main__" and not is_allowed(f"{cls.__module__}.{cls.__qualname__}", extra)


def class_paths(value: object) -> Iterator[str]:
    """Every class path in a configuration, at any depth."""
    if isinstance(value, Mapping):
        if isinstance(value.get("class_path"), str):
            yield value["class_path"]
        for item in value.values():
            yield from class_paths(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from class_paths(item)


def apply_policy(allow: tuple[str, ...] = ()) -> None:
    """Restrict jsonargparse to allowed classes; it would import any class path otherwise.

    Holds for the process until the next call. Raises UsageError if ``allow`` has an invalid module name.
    """
    from jsonargparse import set_parsing_settings  # here: names are checked in milliseconds without it

    for module in allow:
        if module != ALL and (not all(piece.isidentifier() for piece in module.split(".")) or module == "jsonargparse"):
            raise UsageError(f"--allow-import {module!r:.80}: that is not the name of a module.")
    # jsonargparse also checks the defaults in zoo's own signatures; the builders reject functions among them
    opened = ["zoo", "torch.optim", *(module for module in allowed_roots(allow) if module != ALL)]
    paths = _allowlist | _denylist
    allowed = {path for path in paths if any(f"{path}.".startswith(f"{root}.") for root in opened)}
    set_parsing_settings(
        import_path_denylist=["*", *sorted(paths - allowed)],
        import_path_allowlist=[*opened, *sorted(allowed)],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,
        config_read_mode_urls_enabled=False,
    )
    _denylist.clear()
    _denylist.update(paths - allowed)
    _allowlist.clear()
    _allowlist.update(allowed, opened)


@contextmanager
def restore_policy() -> Iterator[None]:
    """Undo at the end what `apply_policy` has restricted within: the program around has classes of its own to parse."""
    from jsonargparse._common import parsing_settings  # in public, what is denied can be allowed name by name alone

    settings, lists = dict(parsing_settings), [set(_allowlist), set(_denylist)]
    try:
        yield
    finally:
        parsing_settings.update(settings)
        for names, before in zip((_allowlist, _denylist), lists, strict=True):
            names.clear()
            names.update(before)


def admit_class(cls: object, path: str) -> None:
    """Allow jsonargparse to import a class by ``path`` and by its own module."""
    from jsonargparse import set_parsing_settings

    home, name = getattr(cls, "__module__", None), getattr(cls, "__qualname__", None)
    several = {path} | ({f"{home}.{name}"} if home and name and "<" not in name else set())
    new = sorted(several - _allowlist)
    if new:
        set_parsing_settings(import_path_allowlist=new)
        _allowlist.update(new)
        _denylist.difference_update(new)
