"""Importing this module makes models of zoo known to transformers: AutoConfig, AutoModelForCausalLM and others.

It has the names of ``zoo_pretrained.transformers_models``. Raises ImportError that names a missing package.
"""

from importlib import import_module
from typing import Any

try:
    _models = import_module("zoo_pretrained.transformers_models")
except ImportError as error:
    raise ImportError(f"zoo.transformers needs the packages zoo-pretrained and transformers: {error}") from error


def __getattr__(name: str) -> Any:
    """A configuration or model by its name."""
    return getattr(_models, name)
