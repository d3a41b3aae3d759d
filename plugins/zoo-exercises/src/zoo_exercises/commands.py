"""The command of the scorecard, as data. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from zoo.command_line import USE, Argument, Command, Option, json_option
from zoo.config.fit_options import OPEN_OPTIONS, SETTINGS, WHERE


class Probe(Command):
    """A scorecard: recall, copying, induction, parity; heads, rank of the stream, experts, gradients."""

    group = USE
    runs = "zoo_exercises.probe_command:run"
    arguments = (
        Argument(
            "RECIPE|RUN",
            "a recipe's name or file, whose parts are trained in small models; or a run's folder, "
            "a checkpoint, an export",
            completes="recipe",
        ),
    )
    options = (
        Option("steps", "of each training of a recipe's parts (300)", int, metavar="N", above=0),
        json_option(),
        *WHERE,
        *(replace(one, heading="") for one in SETTINGS),
    )
    open_options = OPEN_OPTIONS
    examples = ("zoo probe runs/induction-tiny/default/s1", "zoo probe lm-tiny --model.position alibi --steps 600")
    description = (
        "A recipe's name means its parts, in models of two layers that are trained on four tasks, about "
        "four minutes;\na run's folder means its trained model."
    )
    only_prints = True
