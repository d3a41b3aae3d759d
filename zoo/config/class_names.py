"""Turn the name of a class, as a person writes it, into the class; import nothing that is not allowed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator

from zoo import registry, renames
from zoo.config.layers import Node, where
from zoo.config.signatures import Slot
from zoo.errors import PartError, PluginError, UsageError
from zoo.inference import part_versions
from zoo.inference.import_policy import ALL, admit_roots, allowed_classes, foreign, guard_imports
from zoo.plugins import diagnosis
from zoo.plugins.safe_import import describe_import_error, import_object

PREFERRED = ("zoo.", "torch.optim.", "lightning.pytorch.")


def path_of(cls: type) -> str:
    """The shortest class path under which this class can be imported."""
    pieces = cls.__module__.split(".")
    for end in range(1, len(pieces) + 1):
        module = sys.modules.get(".".join(pieces[:end]))
        if getattr(module, cls.__name__, None) is cls:
            return ".".join([*pieces[:end], cls.__name__])
    return f"{cls.__module__}.{cls.__qualname__}"


class Names:
    """Finds classes by registered name, by name among imported classes, or by class path."""

    def __init__(self, allow: Iterable[str] = (), records: Iterable[part_versions.Record] = ()) -> None:
        self.allow, self.records = tuple(allow), tuple(records)

    @property
    def trusting(self) -> bool:
        """Whether a person trusts whatever the recipe names."""
        return ALL in self.allow

    def find(self, slot: Slot, node: Node) -> type:
        """The class that a node names for a slot. Raises with the origin of the name."""
        name = str(node.value)
        new = renames.CLASSES.get(name, name) if "." in name else registry.current_name(slot.kind or "", name)
        if new != name:
            renames.warn(name, new, node.origin)
            name = new
        try:
            return self._by_path(slot, name) if "." in name else self._by_name(slot, name)
        except (PartError, PluginError, UsageError) as error:
            raise type(error)(f"{error}{where(node.origin)}") from error.__cause__

    def _by_name(self, slot: Slot, name: str) -> type:
        if slot.kind:
            try:
                part = diagnosis.choose(slot.kind, name)
            except PartError as error:
                local = _pick(name, subclasses(slot.base))
                if local is None or "two packages" in str(error):
                    raise
                return local  # a class of the user's own script, which no package registers
            cls = part.load()
            if not issubclass(cls, slot.base):
                raise PluginError(f"{part} is no {slot.kind}: {part.path} is no subclass of {slot.base.__name__}.")
            return cls
        classes = list(subclasses(slot.base))
        found = _pick(name, classes)
        if found is not None and guard_imports(found, self.allow):
            self._refuse(f"{found.__module__}.{found.__qualname__}", path_of(found))
        if found is None:
            names = sorted({cls.__name__ for cls in classes if not cls.__name__.startswith("_")})
            listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise PartError(f"unknown {slot.word} {name!r}.{registry.suggest(name, names)} Available: {listed}")
        return found

    def _by_path(self, slot: Slot, path: str) -> type:
        module, _, name = path.rpartition(".")
        part_versions.require(record for record in self.records if record["class_path"] == path)
        self._refuse(path, path)
        part = registry.owner(path)
        try:
            cls = part.load() if part else import_object(module, name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{slot.word} {path!r} cannot be imported: {error}") from error
        except (PluginError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginError(
                f"{slot.word} {path!r} cannot be imported: {describe_import_error(error, module)}"
            ) from error
        if isinstance(cls, type):
            self._refuse(f"{cls.__module__}.{cls.__qualname__}", path)
        return self._fits(slot, cls, path)

    def _refuse(self, path: str, written: str) -> None:
        if allowed_classes(path, self.allow):
            return
        module = path.rpartition(".")[0]
        part = registry.owner(path)
        if part and registry.disabled(part.distribution):
            raise UsageError(f"the class path {written!r} is not imported: {registry.SWITCH} disables {part.origin}.")
        if said := foreign(path):
            raise UsageError(f"the class path {written!r:.200} is not imported: {said}.")
        raise UsageError(
            f"the class path {written!r:.200} is not imported: a recipe may only name parts of zoo and its plugins, "
            "and harmless classes of lightning, torch and torchvision."
            f"\nIf you trust it, add: --allow-import {module}"
        )

    def code(self, key: str, value: object, origin: str) -> None:
        """Raise UsageError where an option that takes a function or a class is given one that nobody allowed."""
        items = value if isinstance(value, (list, tuple)) else [value]
        for path in (item for item in items if isinstance(item, str) and "." in item):
            if not allowed_classes(path, self.allow) or not (
                self.trusting or any(path.startswith(f"{root}.") for root in self.allow)
            ):
                advice = "" if foreign(path) else f"\nIf you trust it, add: --allow-import {path.rpartition('.')[0]}"
                raise UsageError(
                    f"{key!r} takes a function or a class, which a recipe cannot name: {path!r:.80}."
                    f"{advice}{where(origin)}"
                )
            admit_roots(None, path)

    @staticmethod
    def _fits(slot: Slot, candidate: object, name: str) -> type:
        if candidate is slot.base and (slot.kind or inspect.isabstract(candidate)):
            raise UsageError(f"{name!r} is the base of every {slot.word}, not one of them.")
        if isinstance(candidate, type) and issubclass(candidate, slot.base):
            return candidate
        raise UsageError(f"{name!r} is not a {slot.word}: it is no subclass of {slot.base.__name__}.")


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


def _pick(name: str, classes: Iterable[type]) -> type | None:
    """The one class of that name: an exact match before one that differs in case, the usual home before others."""
    matches = [cls for cls in classes if cls.__name__.lower() == name.lower()]
    return min(
        matches,
        key=lambda cls: (cls.__name__ != name, not cls.__module__.startswith(PREFERRED), cls.__module__),
        default=None,
    )
