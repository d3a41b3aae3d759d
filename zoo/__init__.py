"""Swap any part of a Transformer by one line of config, train it, and learn whether the swap helped."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.inference.load import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`zoo.load`, which imports torch only when it is used."""
    if name == "load":
        from zoo.plugins.discovery import tolerate_damaged_metadata

        tolerate_damaged_metadata()  # torch reads the metadata of every package
        from zoo.inference.load import load

        return load
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
