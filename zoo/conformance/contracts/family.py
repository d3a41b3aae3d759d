"""The contract of a family of published models: what is read and written again is what it was, and nothing is lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo import registry
from zoo.conformance.check import require
from zoo.conformance.subject import Independent
from zoo.conformance.token_checks import clean_import, documentation
from zoo.errors import PluginError, ZooError
from zoo.inference.rebuild_task import complete_options, rebuild_task
from zoo.inference.weight_files import keep_own_tensors

SOURCE = "config.json"
UNKNOWN = "key_of_the_contract"


def example_config(family: Any) -> dict[str, Any]:
    """The example's configuration as a file holds it."""
    return {**({"model_type": family.types[0]} if family.types else {}), **family.example}


def model_of(family: Any, config: Any) -> dict[str, Any]:
    """The task of a complete configuration, with all of its options."""
    return complete_options({"class_path": family.task, "init_args": family.options(config)})


def random_tensors(family: Any, config: Any) -> dict[str, Tensor]:
    """Every tensor of the example's network by name, in its own shape, with random numbers."""
    net = rebuild_task({"model": model_of(family, config)}, Path(SOURCE)).net
    return {name: torch.rand(tensor.shape) for name, tensor in keep_own_tensors(net).items()}


def claims_alone(subject: Independent) -> None:
    """It claims its example's configuration, and no other family claims it with one of its architectures."""
    family = subject.build()
    require(family.claims(example_config(family)), "it does not claim its own example: see `claims` and `types`.")
    for part in registry.parts("family"):
        with suppress(PluginError):
            twin = part.load()()
            shared = {*twin.architectures} & {*family.architectures} or not family.architectures
            same = type(twin) is subject.part
            require(same or not shared or not twin.claims(example_config(family)), f"{part} claims its example, too.")


def configuration_returns(subject: Independent) -> None:
    """``config`` writes what ``options`` reads: the example's options are the same after a turn, all of them."""
    family = subject.build()
    model = model_of(family, family.complete(example_config(family), SOURCE))
    again = model_of(family, family.complete(family.write_config(model["init_args"]), SOURCE))["init_args"]
    for name, value in model["init_args"].items():
        require(again[name] == value, f"{name} was {value} and is {again[name]} after config and options.")


def tensors_return(subject: Independent) -> None:
    """Every tensor of the example's network is written under a key of its own, and read again bit by bit."""
    family = subject.build()
    config = family.complete(example_config(family), SOURCE)
    ours = random_tensors(family, config)
    theirs = family.write_tensors(config, ours)
    again = family.read_tensors(config, theirs, SOURCE).tensors
    require(again.keys() == ours.keys(), f"of {sorted(ours.keys() ^ again.keys())} one of the two ways has no rule.")
    wrong = [name for name, tensor in ours.items() if not torch.equal(again[name], tensor)]
    require(not wrong, f"{wrong} are other numbers after write_tensors and read_tensors.")


def unknown_keys_are_refused(subject: Independent) -> None:
    """A key of the configuration or a tensor that it does not know is an error which names it."""
    family = subject.build()
    config = family.complete(example_config(family), SOURCE)
    theirs = {**family.write_tensors(config, random_tensors(family, config)), UNKNOWN: torch.ones(1)}
    for what, read in (
        ("complete", lambda: family.complete({**example_config(family), UNKNOWN: 1}, SOURCE)),
        ("read_tensors", lambda: family.read_tensors(config, theirs, SOURCE)),
    ):
        try:
            read()
        except ZooError as error:
            require(UNKNOWN in str(error), f"{what}: the error does not name the unknown key: {error}")
        else:
            require(False, f"{what} ignores a key that it does not know: the model may be another one.")


PROMISES = [
    documentation, clean_import, claims_alone, configuration_returns, tensors_return, unknown_keys_are_refused,
]  # fmt: skip
