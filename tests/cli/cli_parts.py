"""Entry points made by hand."""

from importlib.metadata import EntryPoint

from zoo import registry

TOYS = {
    "norm": ["RMS", "Layer"],
    "backend": ["Fast"],
    "attention": ["Sliding"],
    "task": ["Toy", "Other"],
    "data": ["Text"],
}


def point(kind: str, name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, f"zoo.{kind}")


def part(kind: str, name: str, target: str, distribution: str = "toys", version: str = "1.0") -> registry.Part:
    return registry.Part(kind, name, target, distribution, version, point(kind, name, target))
