"""zoo: swap any part of a Transformer by one line of configuration, train it, and measure whether the swap helped."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.cli.train import fit as fit
    from zoo.inference.load import load as load

__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """`zoo.load`, `zoo.fit` and `zoo.compare`, imported on first use. Raises AttributeError for other names."""
    if name == "fit":
        return importlib.import_module("zoo.cli.train").fit
    if name == "compare":
        return importlib.import_module("zoo.compare")
    if name == "load":
        from zoo.plugins.discovery import tolerate_damaged_metadata

        tolerate_damaged_metadata()  # torch reads the metadata of every package
        from zoo.inference.load import load

        return load
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
