"""Importing this module makes models of zoo known to the library transformers: AutoConfig, AutoModelForCausalLM, ….

Raises ImportError that names the package which is missing.
"""

try:
    from zoo_pretrained.transformers_models import *  # noqa: F403
except ImportError as error:
    raise ImportError(f"zoo.transformers needs the packages zoo-pretrained and transformers: {error}") from error
