"""Find the class for a name in a configuration, importing only modules that the import policy allows."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterable, Iterator

from zoo import registry
from zoo.config.layers import Node, where
from zoo.config.signatures import Slot
from zoo.errors import AmbiguousPartError, PartError, PluginError, UsageError
from zoo.inference import part_versions
from zoo.inference.import_policy import ALL, admit_class, is_allowed, is_forbidden, search_trusted, stdlib_reason
from zoo.plugins import diagnosis
from zoo.plugins.safe_import import describe_import_error, describe_missing, import_object

PREFERRED = ("zoo.", "torch.optim.", "lightning.pytorch.")


def class_path_of(cls: type) -> str:
    """The shortest class path under which this class can be imported."""
    pieces = cls.__module__.split(".")
    for end in range(1, len(pieces) + 1):
        module = sys.modules.get(".".join(pieces[:end]))
        if getattr(module, cls.__name__, None) is cls:
            return ".".join([*pieces[:end], cls.__name__])
    return f"{cls.__module__}.{cls.__qualname__}"


class ClassFinder:
    """Finds classes by registered name, by name among imported classes, or by class path.

    ``allow`` are modules of --allow-import; ``records`` are the parts of the run that is resumed.
    """

    def __init__(self, allow: Iterable[str] = (), records: Iterable[part_versions.Record] = ()) -> None:
        self.allow, self.records = tuple(allow), tuple(records)

    @property
    def trusts_all(self) -> bool:
        """Whether the user trusts every class that the recipe names (--trust)."""
        return ALL in self.allow

    def find(self, slot: Slot, node: Node) -> type:
        """The class that a node names for a slot.

        Raises PartError, PluginError or UsageError with the origin of the name.
        """
        name = str(node.value)
        try:
            return self._by_path(slot, name) if "." in name else self._by_name(slot, name)
        except (PartError, PluginError, UsageError) as error:
            raise error.reworded(f"{error}{where(node.origin)}") from error.__cause__

    def _by_name(self, slot: Slot, name: str) -> type:
        if slot.kind:
            try:
                part = registry.find(slot.kind, name)
            except PartError as error:
                local = _best_match(name, subclasses(slot.base))
                if isinstance(error, AmbiguousPartError):
                    raise
                if local is None:
                    registry.find(slot.kind, name, self._imported_names(slot))  # raises again, with these names
                    raise
                if is_forbidden(local, self.allow):
                    self._refuse(f"{local.__module__}.{local.__qualname__}", class_path_of(local))
                return local  # an unregistered class of the user's own script, or an optimizer of torch
            if not part.builtin:
                diagnosis.refuse_unfit(part)
            cls = part.load()
            if not issubclass(cls, slot.base):
                if registry.kind_of(cls) == slot.kind:  # a sound part, where the option takes some of the kind
                    raise UsageError(
                        f"{slot.word} {name!r} cannot stand here: it is no {slot.base.__name__}. "
                        f"Available: {', '.join(_names_below(slot.kind, slot.base))}"
                    )
                raise PluginError(f"{part} is not a {slot.kind}: {part.path} is no subclass of {slot.base.__name__}.")
            return cls
        classes = list(subclasses(slot.base))
        match = _best_match(name, classes)
        if match is not None and is_forbidden(match, self.allow):
            self._refuse(f"{match.__module__}.{match.__qualname__}", class_path_of(match))
        if match is None:
            names = sorted({cls.__name__ for cls in classes if not cls.__name__.startswith("_")})
            available = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise PartError(f"unknown {slot.word} {name!r}.{registry.suggest(name, names)} Available: {available}")
        return match

    def _imported_names(self, slot: Slot) -> list[str]:
        """The names of the imported classes that a slot takes."""
        return [cls.__name__ for cls in subclasses(slot.base) if not is_forbidden(cls, self.allow)]

    def _by_path(self, slot: Slot, path: str) -> type:
        path = registry.current_path(path)
        module, _, name = path.rpartition(".")
        search_trusted(path, self.allow)
        part_versions.require_packages(record for record in self.records if record["class_path"] == path)
        self._refuse(path, path)
        part = registry.part_of_class(path)
        try:
            cls = part.load() if part else import_object(module, name)
        except (ImportError, AttributeError) as error:
            missing = describe_missing(error, module) if isinstance(error, ModuleNotFoundError) else ""
            hint = registry.install_hint(path)
            raise UsageError(f"{slot.word} {path!r} cannot be imported: {missing or error}{hint}") from error
        except (PluginError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginError(
                f"{slot.word} {path!r} cannot be imported: {describe_import_error(error, module)}"
            ) from error
        if isinstance(cls, type):
            self._refuse(f"{cls.__module__}.{cls.__qualname__}", path)
        return self._fits(slot, cls, path)

    def _refuse(self, path: str, name: str) -> None:
        if is_allowed(path, self.allow):
            return
        module = path.rpartition(".")[0]
        part = registry.part_of_class(path)
        if part and registry.is_disabled(part.distribution):
            raise UsageError(
                f"the class path {name!r} is not imported: {registry.DISABLE_VARIABLE} disables {part.origin}."
            )
        if reason := stdlib_reason(path):
            raise UsageError(f"the class path {name!r:.200} is not imported: {reason}.")
        from lightning_utilities.core.imports import RequirementCache

        caches = [cache for cache in vars(sys.modules.get(module, sys)).values() if isinstance(cache, RequirementCache)]
        lacks = caches and not any(caches)  # as loggers of Lightning say which package they need
        needs = f", and install its package: pip install '{caches[0].requirement}'" if lacks else ""
        way = registry.install_hint(path) or f"\nIf you trust it, add: --allow-import {module}{needs}"
        raise UsageError(
            f"the class path {name!r:.200} is not imported: a recipe may only name parts of zoo and its plugins, "
            f"and harmless classes of lightning, torch and torchvision.{way}"
        )

    def code(self, key: str, value: object, origin: str) -> None:
        """Raise UsageError if the value of an option that takes functions or classes names one that is not allowed."""
        items = value if isinstance(value, (list, tuple)) else [value]
        for path in (item for item in items if isinstance(item, str) and "." in item):
            if not is_allowed(path, self.allow) or not (
                self.trusts_all or any(path.startswith(f"{root}.") for root in self.allow)
            ):
                advice = (
                    "" if stdlib_reason(path) else f"\nIf you trust it, add: --allow-import {path.rpartition('.')[0]}"
                )
                raise UsageError(
                    f"{key!r} takes a function or a class, which a recipe cannot name: {path!r:.80}."
                    f"{advice}{where(origin)}"
                )
            search_trusted(path, self.allow)
            admit_class(None, path)

    @staticmethod
    def _fits(slot: Slot, candidate: object, name: str) -> type:
        if candidate is slot.base and (slot.kind or inspect.isabstract(candidate)):
            raise UsageError(f"{name!r} is the base of every {slot.word}, not one of them.")
        if isinstance(candidate, type) and issubclass(candidate, slot.base):
            return candidate
        raise UsageError(f"{name!r} is not a {slot.word}: it is no subclass of {slot.base.__name__}.")


def _names_below(kind: str, base: type) -> Iterator[str]:
    """The names of the parts of a kind whose classes are subclasses of ``base``."""
    for part in registry.parts(kind):
        with contextlib.suppress(PluginError):
            if issubclass(part.load(), base):
                yield part.name


def subclasses(base: type) -> Iterator[type]:
    """Every imported subclass, each once."""
    visited: set[type] = set()
    waiting = [base]
    while waiting:
        direct: list[type] = type.__subclasses__(waiting.pop())
        for cls in direct:
            if cls not in visited:
                visited.add(cls)
                waiting.append(cls)
                yield cls


def _best_match(name: str, classes: Iterable[type]) -> type | None:
    """The class of that name, preferring the exact case, and then modules of PREFERRED; None without one."""
    matches = [cls for cls in classes if cls.__name__.lower() == name.lower()]
    return min(
        matches,
        key=lambda cls: (cls.__name__ != name, not cls.__module__.startswith(PREFERRED), cls.__module__),
        default=None,
    )
