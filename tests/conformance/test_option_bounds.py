"""Options of all parts: sizes and what is added or weighed may not be negative, in any part of any kind."""

import inspect
from contextlib import suppress

import pytest

from zoo import registry
from zoo.conformance.contract import SUBJECTS
from zoo.conformance.subject import Refused
from zoo.errors import UsageError
from zoo.plugins.description import CLASS_PARAMETERS, PLACE_PARAMETERS

KINDS = ("schedule", "optimizer", "init", "norm", "ffn", "attention", "position", "block")
PLACED = ("schedule", "optimizer", "attention", "position", "block")  # built by `places`, others by `build`
# what may lie below zero, by its meaning
SIGNED = {
    "scale": "factor on what is added to the stream", "offset": "of a gain or a place", "alpha": "factor in tanh",
    "dampening": "torch decides", "mask_token": "filled in by the data",
}  # fmt: skip


def is_accepted(kind, part, options):
    subject = SUBJECTS[kind](part, options)
    with suppress(Refused, UsageError, ValueError):
        return bool(subject.places()) if kind in PLACED else subject.build() is not None
    return False


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("task", marks=pytest.mark.campaign)])
def test_no_option_of_a_built_in_part_takes_a_negative_size_or_weight(kind):
    accepted = []
    for entry in registry.installed_parts(kind):
        part = entry.load()
        if not entry.builtin or SUBJECTS[kind](part, {}).missing_options():
            continue
        for name, parameter in [*inspect.signature(part).parameters.items()][CLASS_PARAMETERS.get(kind, 0) :]:
            number = type(parameter.default) in (int, float) or str(parameter.annotation) == "int | None"
            if number and name not in (*SIGNED, *PLACE_PARAMETERS) and is_accepted(kind, part, {name: -1}):
                accepted.append(f"{part.__name__}.{name}")
    assert accepted == []
