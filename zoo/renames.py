"""What has another name than in an earlier version: options, attributes and classes. The old name works, and warns.

``OPTIONS``, ``ATTRIBUTES`` and ``CLASSES`` are the whole table. It is applied wherever a configuration is read
(recipes, the command line, runs, checkpoints, exports) and, by ``RenamedOptions``, to keyword arguments in Python.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zoo.errors import UsageError

log = logging.getLogger(__name__)

REMOVED_IN = "0.3"  # the version in which old names end

# old → new by the class that declares the option; a plugin's class has ``renamed_options = {old: new}`` in its body
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "zoo.parts.position.RoPE": {
        "stretch": "scaling_factor", "trained": "original_max_length", "slow": "low_freq_factor",
        "fast": "high_freq_factor",
    },
    "zoo.parts.position.T5": {"buckets": "num_buckets", "reach": "max_distance"},
    "zoo.parts.disentangled.Disentangled": {
        "reach": "max_distance", "terms": "pos_att_type", "share": "share_att_key",
    },
    "zoo.parts.attention.Attention": {"groups": "kv_heads"},
    "zoo.parts.attention.MultiHead": {"norm": "qk_norm"},
    "zoo.parts.ffn.Gated": {"multiple": "multiple_of"},
    "zoo.parts.ffn.MoE": {"active": "top_k", "balance": "aux_loss_weight"},
    "zoo.models.vit.ViT": {"patch": "patch_size"},
    "zoo.tasks.classification.Classification": {"patch": "patch_size"},
    "zoo.data.data.Data": {"workers": "num_workers"},
}  # fmt: skip

# old → new by the class that declares the attribute or method, which a subclass may declare again
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "zoo.parts.backend.Backend": {"lowers": "supports"},
    "zoo.parts.attention.Attention": {
        "lowers": "supports", "missing": "unsupported", "asks": "requires", "groups": "kv_heads",
    },
    "zoo.parts.ffn.FFN": {"side_loss": "aux_loss"},
    "zoo.parts.autotune.Auto": {"chosen": "fastest_backends"},
    "zoo.models.recurrent.Decoder": {"seen": "alignment"},
}  # fmt: skip

# old → new class path; where the last names differ, the old one is also accepted as the name of a part
CLASSES: Mapping[str, str] = {
    "zoo.parts.ffn.Plain": "zoo.parts.ffn.MLP",
    "zoo.parts.auto.Auto": "zoo.parts.autotune.Auto",
}


def option_names(cls: type) -> Mapping[str, str]:
    """Old → new names of the options of a class, those of the classes above it included."""
    names: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        names |= OPTIONS.get(f"{base.__module__}.{base.__qualname__}", {})
        names |= vars(base).get("renamed_options", {})
    return names


def new_option(cls: type, name: str, options: Iterable[str]) -> str:
    """The name that an option of ``cls`` has now; ``options`` are those that its constructor takes."""
    new = option_names(cls).get(name, name)
    return new if new in options and name not in options else name


def new_part(kind: str, name: str) -> str:
    """The name that a part has now, whatever the case of the old one."""
    for old, new in CLASSES.items():
        if old.rpartition(".")[2].lower() == name.lower() and old.split(".")[-2] == kind:
            return new.rpartition(".")[2]
    return name


def older_names(cls: type | None, options: Iterable[str]) -> Mapping[str, str]:
    """New → old names of these options of a class."""
    table = option_names(cls) if cls is not None else {}
    return {new: old for old, new in table.items() if new in options}


@functools.cache
def warn(old: str, new: str, origin: str) -> None:
    """Say once in a process that an old name was used, and where it stands."""
    log.warning("%r is now called %r; the old name works until zoo %s ← %s", old, new, REMOVED_IN, origin)


def both(old: str, new: str, origin: str) -> UsageError:
    """The error for an option that is set under both of its names."""
    return UsageError(f"{old!r} is the old name of {new!r}, and both are set. Keep {new!r}. ← {origin}")


def update_classes(value: Any, origin: str) -> Any:
    """A plain configuration with the class paths of today."""
    if isinstance(value, Mapping):
        changed = {key: update_classes(item, origin) for key, item in value.items()}
        path = changed.get("class_path")
        if isinstance(path, str) and path in CLASSES:
            warn(path, CLASSES[path], origin)
            changed["class_path"] = CLASSES[path]
        return changed
    return [update_classes(item, origin) for item in value] if isinstance(value, list) else value


def update_options(value: Any, origin: str) -> Any:
    """A plain configuration with the options of today; of a class that is not imported nothing is known.

    Raises UsageError for an option that is set under both of its names.
    """
    if isinstance(value, list):
        return [update_options(item, origin) for item in value]
    if not isinstance(value, Mapping):
        return value
    changed = {key: update_options(item, origin) for key, item in value.items()}
    module, _, name = str(changed.get("class_path", "")).rpartition(".")
    cls, options = getattr(sys.modules.get(module), name, None), changed.get("init_args")
    if not isinstance(cls, type) or not isinstance(options, Mapping):
        return changed
    table = {old: new for old, new in option_names(cls).items() if old in options and not _takes(cls, old)}
    for old, new in table.items():
        if new in options:
            raise both(old, new, origin)
        warn(old, new, origin)
    return {**changed, "init_args": {table.get(key, key): item for key, item in options.items()}}


def _takes(cls: type, option: str) -> bool:
    return option in inspect.signature(cls).parameters


def new_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices of a run's record, ``{"position": "RoPE(stretch=8)", "patch": 4}``, in the words of today."""
    top = {old: new for path, names in OPTIONS.items() if ".tasks." in path for old, new in names.items()}
    return {top.get(key, key): new_choice(key, choice) for key, choice in choices.items()}


def new_choice(key: str, choice: Any) -> Any:
    """A choice as a run's record shows it, ``RoPE(stretch=8)`` of ``position``, in the words of today."""
    if not isinstance(choice, str):
        return choice
    kind = key.rpartition(".")[2]
    for path, names in OPTIONS.items():
        owner = {"disentangled": "attention"}.get(path.split(".")[-2], path.split(".")[-2])
        if kind in (owner, "overrides"):  # which may have parts of every kind
            for old, new in names.items():
                choice = re.sub(rf"([(,] ?){old}=", rf"\g<1>{new}=", choice)
    name = re.match(r"\w*", choice)
    return new_part(kind, name[0]) + choice[name.end() :] if name else choice


class RenamedOptions:
    """The base of classes whose constructors accept old names of keyword arguments, with a DeprecationWarning."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _rename_attributes(cls)
        names, init = option_names(cls), vars(cls).get("__init__")
        if init is not None and names:
            parameters = inspect.signature(init).parameters
            names = {old: new for old, new in names.items() if new in parameters and old not in parameters}
            if names:
                cls.__init__ = _accept_old(init, names)  # type: ignore[method-assign]


def _accept_old(init: Callable[..., None], names: Mapping[str, str]) -> Callable[..., None]:
    @functools.wraps(init)
    def accept(self: object, *args: Any, **kwargs: Any) -> None:
        for old in names.keys() & kwargs.keys():
            if names[old] in kwargs:
                raise both(old, names[old], type(self).__name__)
            _deprecate(old, names[old], type(self).__name__)
            kwargs[names[old]] = kwargs.pop(old)
        init(self, *args, **kwargs)

    return accept


def _deprecate(old: str, new: str, owner: str) -> None:
    message = f"{old!r} of {owner} is now called {new!r}; the old name works until zoo {REMOVED_IN}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _rename_attributes(cls: type) -> None:
    """Give a class its old attributes, and what it declares under an old name the new one."""
    own = ATTRIBUTES.get(f"{cls.__module__}.{cls.__qualname__}", {})
    for old, new in own.items():
        setattr(cls, old, OldAttribute(old, new))
    for base in cls.__mro__[1:]:
        for old, new in ATTRIBUTES.get(f"{base.__module__}.{base.__qualname__}", {}).items():
            value = vars(cls).get(old)
            if value is not None and not isinstance(value, OldAttribute):
                _deprecate(old, new, cls.__name__)
                setattr(cls, new, value)
                delattr(cls, old)


def module_attribute(module: str, names: Mapping[str, str], old: str) -> Any:
    """What a module has under the new name of ``old``, with a FutureWarning: the body of its ``__getattr__``.

    Raises AttributeError for a name that is not in the table of old → new ``names``.
    """
    if old not in names:
        raise AttributeError(f"module {module!r} has no attribute {old!r}")
    message = f"{module}.{old} is named {names[old]} now. The old name ends with zoo {REMOVED_IN}."
    warnings.warn(message, FutureWarning, stacklevel=3)
    return getattr(sys.modules[module], names[old])


class OldAttribute:
    """An attribute under its old name: the same as the new one, with a DeprecationWarning."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: object, owner: type) -> Any:
        _deprecate(self.old, self.new, owner.__name__)
        return getattr(owner if instance is None else instance, self.new)

    def __set__(self, instance: object, value: Any) -> None:
        _deprecate(self.old, self.new, type(instance).__name__)
        setattr(instance, self.new, value)
