"""The command that looks into a model, as data. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from zoo.command_line import USE, Argument, Command, Option, json_option
from zoo.config.fit_options import OPEN_OPTIONS, SETTINGS, WHERE


class Explain(Command):
    """What a model or part computes: costs, attention, predictions by layer."""

    group = USE
    runs = "zoo.explain.explain_command:run"
    arguments = (
        Argument(
            "RECIPE|RUN|KIND PART",
            "a recipe's name or file, a run's folder, a checkpoint, an export; or a kind "
            "and a part; then another to compare with, or OPTION=VALUE",
            repeats=True,
            completes="recipe",
        ),
    )
    options = (
        Option(
            "text", "show the attention of every head, and the prediction after every layer, for a text", metavar="TEXT"
        ),
        Option("image", "the same for an image", metavar="FILE"),
        Option("html", "write one page with everything, which needs no network", metavar="FILE"),
        Option("measure", "measure the ceilings of this machine again", bool),
        json_option(),
        *WHERE,
        *(replace(option, heading="") for option in SETTINGS),
    )
    open_options = OPEN_OPTIONS
    usages = ("RECIPE|RUN [OTHER | OPTION=VALUE ...] [options]", "KIND PART [OTHER] [options]")
    examples = (
        "zoo explain lm-tiny model.position=alibi model.norm=layernorm",
        "zoo explain position rope alibi",
        'zoo explain runs/lm-tiny/default/s1 --text "Return the" --html lm.html',
    )
    description = "A recipe's name means the untrained recipe; a run's folder means its trained model."
    only_prints = True
