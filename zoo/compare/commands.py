"""The commands of comparisons, as data. Needs no torch."""

from __future__ import annotations

from zoo.command_line import COMPARE, Argument, Command, Option
from zoo.compare.design import KIND, design_options
from zoo.compare.options import COMPARE_OPTIONS, FIXED, HIDDEN_SETTINGS, REFUSED
from zoo.config.fit_options import OPEN_OPTIONS


class Compare(Command):
    """Learn whether a swap helped: variants with several seeds, one answer."""

    group = COMPARE
    runs = "zoo.compare.command:run"
    arguments = (
        Argument(
            "RECIPE",
            "recipes, a comparison's file or name, or folders of finished runs",
            repeats=True,
            completes="comparison",
        ),
    )
    option_kind = KIND
    open_options = OPEN_OPTIONS
    usages = (
        "RECIPE --vary OPTION=VALUE,VALUE ... [options]     run what is missing, then compare",
        "RECIPE RECIPE ... --vary OPTION=VALUE,VALUE        the same in each, and one scoreboard over all",
        "FOLDER ... [--baseline V] [--goal G] [--json]      read finished runs, fast",
    )
    examples = (
        "zoo compare lm-tiny --vary model.position=rope,alibi --seeds 5",
        "zoo compare lm-tiny translation-tiny vit-tiny --vary model.norm=layernorm,rmsnorm",
        'zoo compare lm-tiny --vary "model.position=none,{class_path: RoPE, init_args: {base: 500}}" --jobs 2',
    )
    description = "The same command again goes on where it stopped; finished runs are never repeated."
    notes = "zoo.compare.commands:comparison_names"

    @property
    def options(self) -> tuple[Option, ...]:  # type: ignore[override]
        """Its own options, those of installed designs, and those of zoo fit."""
        own = Option("model.dim", "any other option of zoo fit, as --compile, for every run", metavar="64, …",
                     key="model.dim", heading=FIXED)  # fmt: skip
        return (*COMPARE_OPTIONS, *design_options(), own, *HIDDEN_SETTINGS, *REFUSED)


class Tensorboard(Command):
    """Compare the runs of a folder in a browser."""

    group = COMPARE
    runs = "zoo.compare.tensorboard_command:run"
    arguments = (Argument("DIR", "a folder of runs (runs)", False),)
    options = (
        Option("port", "where it listens; the first free one from 6006 on", int, metavar="PORT", above=0, most=65535),
    )
    examples = ("zoo tensorboard", "zoo tensorboard runs/lm-tiny --port 6010")
    description = "Start TensorBoard on this machine's own address, and print a link that compares."


def comparison_names() -> list[str]:
    """The packaged comparisons, as lines of help."""
    from zoo import recipe_files

    return [
        "",
        "Packaged comparisons",
        *(f"  {comparison.name:<29} {comparison.summary}" for comparison in recipe_files.comparisons()),
    ]
