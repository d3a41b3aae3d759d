"""What the class paths of a configuration may import: parts of zoo and its plugins, and harmless classes of Lightning.

A class is harmless when neither building nor using it starts a process, opens a connection, imports or calls what its
options name. Listed are those that a recipe has a use for; everything else needs a person's word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from zoo import registry
from zoo.errors import UsageError

ROOTS = ("zoo", "lightning", "pytorch_lightning", "torch", "torchvision", "torchmetrics")
ALL = "*"  # in a list of allowed modules: whatever the configuration names
OPTIMIZERS = frozenset(
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam".split()
)
SCHEDULES = frozenset(
    "StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR ReduceLROnPlateau CyclicLR "
    "CosineAnnealingWarmRestarts OneCycleLR".split()
)
# without LambdaCallback, which calls, and the loggers that send what they log to a service
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
_admitted: set[str] = set()  # what jsonargparse was told, which forgets nothing by itself


def harmless(path: str) -> bool:
    """Whether a class path of Lightning, torch or torchvision is listed, under whichever module it is reached."""
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
    """The modules whose classes may all be named: those of installed plugins, and what was allowed."""
    packages = {
        part.module.partition(".")[0]
        for kind in registry.KINDS
        for part in registry.installed_parts(kind)
        if not part.builtin and not registry.is_disabled(part.distribution)
    }
    # a plugin opens neither the standard library nor Lightning's family, nor what is no module's name
    opened = sorted(name for name in packages - sys.stdlib_module_names - {*ROOTS} if name.isidentifier())
    return list(dict.fromkeys([*opened, *extra]))


def allowed_classes(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Whether a class path may be imported."""
    pieces = path.split(".")
    if not all(piece.isidentifier() for piece in pieces):
        return False
    if ALL in extra or any(path == root or path.startswith(f"{root}.") for root in allowed_roots(extra)):
        return True
    if pieces[0] == "zoo":  # `zoo.__main__` is a program
        return not any(piece.startswith("_") for piece in pieces) and pieces[1:2] != ["conformance"]
    owner = registry.part_of_class(path)
    mine = owner is not None and owner.builtin
    return mine or harmless(path)


def foreign(path: str) -> str:
    """Why a class path names no part at all, whoever is trusted; nothing where it may name one."""
    top = path.partition(".")[0]
    if top in sys.stdlib_module_names or top == "builtins":
        return "it belongs to Python's standard library, which holds no part, data set or callback of zoo"
    return ""


def guard_imports(cls: type, extra: tuple[str, ...] = ()) -> bool:
    """Whether a class that is imported already, and was named without its module, is one that may not be named."""
    top = cls.__module__.partition(".")[0]
    family = top in ROOTS or top in sys.stdlib_module_names
    return (
        family and cls.__module__ != "__main__" and not allowed_classes(f"{cls.__module__}.{cls.__qualname__}", extra)
    )


def class_paths(value: object) -> Iterator[str]:
    """Every class path in a configuration, wherever it stands."""
    if isinstance(value, Mapping):
        if isinstance(value.get("class_path"), str):
            yield value["class_path"]
        for item in value.values():
            yield from class_paths(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from class_paths(item)


def import_policy(allow: tuple[str, ...] = ()) -> None:
    """Let jsonargparse import what was allowed and admitted, and nothing else; it would run any class path otherwise.

    It holds for the rest of the process, until this is called again. Raises UsageError for what is no module's name.
    """
    from jsonargparse import set_parsing_settings  # here: names are checked in milliseconds without it

    for module in allow:
        if module != ALL and (not all(one.isidentifier() for one in module.split(".")) or module == "jsonargparse"):
            raise UsageError(f"--allow-import {module!r:.80}: that is no name of a module.")
    # the defaults of zoo's own signatures are checked as well; a function among them is refused by whoever builds
    opened = ["zoo", "torch.optim", *(module for module in allowed_roots(allow) if module != ALL)]
    paths = {path for path in _admitted if any(f"{path}.".startswith(f"{root}.") for root in opened)}
    set_parsing_settings(
        import_path_denylist=["*", *sorted(_admitted - paths)],
        import_path_allowlist=[*opened, *sorted(paths)],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,
        config_read_mode_urls_enabled=False,
    )
    _admitted.intersection_update(paths)
    _admitted.update(opened)


def admit_roots(cls: object, path: str) -> None:
    """Let jsonargparse import a class, or what else was allowed, that was found under a path."""
    from jsonargparse import set_parsing_settings

    home, name = getattr(cls, "__module__", None), getattr(cls, "__qualname__", None)
    several = {path} | ({f"{home}.{name}"} if home and name and "<" not in name else set())
    new = sorted(several - _admitted)
    if new:
        set_parsing_settings(import_path_allowlist=new)
        _admitted.update(new)
