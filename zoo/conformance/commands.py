"""The commands for authors of parts, as data. Needs no torch."""

from __future__ import annotations

from zoo.command_line import OWN, Argument, Command, Option, json_option


def _timeout(help: str) -> Option:
    return Option("timeout", help, float, metavar="SECONDS", default=120.0, above=0, most=604_800)


class New(Command):
    """A package with a part that works, to change; a further part of it; or a recipe."""

    group = OWN
    runs = "zoo.conformance.new_command:run"
    arguments = (
        Argument("KIND", "a kind of parts, as `zoo list` shows them; or recipe", completes="kind"),
        Argument("NAME", "the class, such as MyNorm, which becomes the package zoo-my-norm; or the recipe"),
    )
    options = (
        Option("dest", "where the package goes; named after the class unless given", metavar="DIR"),
        Option("package", "its name, zoo-… unless you have a reason", metavar="NAME"),
        Option("in", "add the part to the package in this folder", metavar="DIR"),
        Option("from", "the recipe to start from, a name or a file", metavar="RECIPE"),
    )
    usages = ("KIND NAME [--package NAME] [--dest DIR]", "KIND NAME --in DIR", "recipe NAME [--from RECIPE]")
    examples = ("zoo new norm MyNorm", "zoo new ffn MyFFN --in zoo-my-norm", "zoo new recipe my-lm --from lm-tiny")


class Check(Command):
    """Does a part keep what its kind promises? does one batch of a recipe train?"""

    group = OWN
    runs = "zoo.conformance.check_command:run"
    arguments = (
        Argument(
            "KIND", "a kind of parts; or package.module.Class; or a plugin's package; or a recipe", completes="kind"
        ),
        Argument("NAME", "a part of that kind; without it, all of them", False, completes="part"),
    )
    options = (
        Option("only", "these checks alone", metavar="CHECK,CHECK", repeats=True),
        _timeout("of processor time for each check; one that takes longer is not finished"),
        Option("strict", "a check that is skipped counts as failed", bool),
        json_option(),
    )
    open_options = ("*",)
    usages = (
        "KIND NAME [--OPTION VALUE] [options]",
        "package.module.Class [--OPTION VALUE] [options]",
        "KIND",
        "PACKAGE",
        "RECIPE [options of zoo fit]",
    )
    examples = (
        "zoo check norm rmsnorm",
        "zoo check attention multihead --groups 1 --only shapes,dtypes",
        "zoo check lm-tiny --model.position alibi",
    )
    description = (
        "Other options are the part's own. A class path is imported from the current folder or an "
        "installed package.\nExit codes: 0 nothing failed, 1 a check failed, 2 there is no such part, 3 the part "
        "cannot be imported."
    )


class Docs(Command):
    """A page for every installed part, and an index of them."""

    group = OWN
    runs = "zoo.conformance.docs_command:run"
    arguments = (Argument("DIR", "the folder to write into"),)
    options = (
        Option("package", "the parts of this package alone, any number of times", metavar="NAME", repeats=True),
        Option("check", "run the contract of each part, and measure its cost and what it combines with", bool),
        _timeout("of processor time for each check, with --check"),
    )
    examples = ("zoo docs parts/", "zoo docs docs/parts --package zoo-my-norm --check")
    description = "Markdown, made from the sources of the parts, which are imported only with --check."


class Matrix(Command):
    """Which parts train together, and why others are refused."""

    group = OWN
    runs = "zoo.conformance.matrix_command:run"
    options = (Option("write", "write the table into FILE", metavar="FILE"),)
    examples = ("zoo matrix", "zoo matrix --write combinations.md", "ZOO_DISABLE_PLUGINS=all zoo matrix")
    description = (
        "Build and train every combination of the installed parts, plugins included, for two steps in "
        "every task that takes\nparts, and print a Markdown table: a combination trains, is refused by a sentence, or "
        "is broken (exit code 1).\nCombinations: position x attention x backend with the default norm, ffn and block, "
        "and norm x ffn x block."
    )
