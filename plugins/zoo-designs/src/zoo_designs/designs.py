"""The designs, as `zoo compare` reads them. Needs no torch."""

from __future__ import annotations

from zoo.command_line import Option
from zoo.compare.design import Design
from zoo.compare.options import ANSWER, FIXED


class Scale(Design):
    """Several sizes: laws of loss and compute predict each difference at the largest size, where it is measured."""

    options = (
        Option("scale", "dim=64,96,128: several sizes, of which the largest is predicted",
               metavar="OPTION=VALUE,VALUE", repeats=True, heading=FIXED),
    )  # fmt: skip
    no_target = "laws of scale are of the figure itself"
    procedure = "zoo_designs.scale_runs:ScaleProcedure"


class Attribute(Design):
    """Hybrids of two recipes: how much of their difference each option of the model contributes."""

    options = (
        Option("attribute", "of two recipes: how much each option that they differ in contributes", bool,
               heading=FIXED),
    )  # fmt: skip
    recipes = 2
    varies = True
    no_target = "contributions are of the figure itself"
    procedure = "zoo_designs.attribute:AttributeProcedure"


class Probe(Design):
    """The length probe: the losses of language models on texts longer than their training length."""

    options = (
        Option("probe", "length=1,2,4,8: the loss of language models on texts so many times longer", metavar="WHAT",
               heading=ANSWER),
    )  # fmt: skip
    no_target = "losses on longer texts are not steps"
    procedure = "zoo_designs.length_probe:ProbeProcedure"


class Scoreboard(Design):
    """Several recipes: one comparison in each, and one scoreboard over all of them."""

    label = "several recipes"
    no_target = "a target is of one recipe, and log2 of its steps has no score over tasks"
    procedure = "zoo_designs.several_recipes:ScoreboardProcedure"
