"""The designs, as `zoo compare` reads them. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.command_line import Option, ParsedOptions
from zoo.compare.design import Design
from zoo.compare.options import ANSWER, FIXED

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.document import Section
    from zoo.compare.plan import Comparison
    from zoo.compare.prepare_runs import Stage
    from zoo.compare.run_comparison import ComparisonRun, Runner
    from zoo.compare.run_records import Record
    from zoo.compare.verdict import Answer

Usual = Callable[["Comparison"], list[tuple[str, ...]]]


class Scale(Design):
    """Several sizes: laws of loss and compute predict each difference at the largest size, where it is measured."""

    options = (
        Option("scale", "dim=64,96,128: several sizes, of which the largest is predicted",
               metavar="OPTION=VALUE,VALUE", repeats=True, heading=FIXED),
    )  # fmt: skip
    no_target = "laws of scale are of the figure itself"

    def title(self, comparison: Comparison, usual: str) -> str:
        """``norm-scale``."""
        return f"{usual}-scale"

    def command_lines(self, comparison: Comparison, usual: Usual) -> list[tuple[str, ...]]:
        """Those of every size. Raises UsageError."""
        from zoo_designs import scale_runs

        return scale_runs.check_request(comparison, usual)

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The variants of every size, by compute. Raises UsageError."""
        from zoo_designs import scale_runs

        return scale_runs.draft_stages(comparison, runner)

    def check_goal(self, goals: Mapping[str, str], goal: str) -> None:
        """Raise UsageError for a goal that is no loss."""
        from zoo_designs import scale_runs

        scale_runs.check_loss(goals, goal)

    def notes(self, run: ComparisonRun) -> list[str]:
        """Sentences about the learning rates of several sizes, and what is left out."""
        from zoo_designs import scale_runs

        stage = run.stages[-1]
        left_out = [f"Left out, because {sentence}: {name}." for name, sentence in stage.invalid.items()]
        return [*scale_runs.rate_notes(run.comparison, stage.arms), *left_out]

    def details(self, comparison: Comparison) -> dict[str, Any]:
        """The sizes as they were written."""
        from zoo_designs import scale_runs

        return {"scale": scale_runs.scale_texts(comparison)}

    def record(self, run: ComparisonRun) -> dict[str, Any]:
        """The runs of every size."""
        from zoo_designs import scale_runs

        return scale_runs.as_data(run.place, run.stages, run.comparison.seeds, self.notes(run))

    def complete(self, answer: Answer, home: Path, record: Record) -> Any:
        """The laws over all sizes. Raises UsageError if there is no run, or the record is damaged."""
        from zoo_designs import scale_runs

        return scale_runs.answer_scale(home, record, answer.goal, answer.at)

    def sections(self, answer: Answer) -> list[Section]:
        """Prediction and check, laws, differences by size."""
        from zoo_designs import scale_table

        return scale_table.sections(answer)

    def charts(self, answer: Answer) -> list[ReportChart]:
        """Losses over compute, and differences by size."""
        from zoo_designs import scale_table

        return scale_table.draw_scaling(answer)

    def as_data(self, answer: Answer) -> Mapping[str, Any]:
        """Sizes, laws and predictions."""
        data: Mapping[str, Any] = answer.finding.as_data()
        return data


class Attribute(Design):
    """Hybrids of two recipes: how much of their difference each option of the model contributes."""

    options = (
        Option("attribute", "of two recipes: how much each option that they differ in contributes", bool,
               heading=FIXED),
    )  # fmt: skip
    recipes = 2
    varies = True
    no_target = "contributions are of the figure itself"

    def read(self, options: ParsedOptions) -> Comparison:
        """The comparison of the hybrids of two recipes. Raises UsageError for anything else."""
        from zoo_designs import attribute

        return attribute.read_comparison(options, self)

    def title(self, comparison: Comparison, usual: str) -> str:
        """``attribute-llama-style-tiny``."""
        from zoo_designs import attribute

        return f"attribute-{attribute.second_name(comparison)}"

    def command_lines(self, comparison: Comparison, usual: Usual) -> list[tuple[str, ...]]:
        """Those of the two recipes."""
        return [(recipe, *comparison.options) for recipe in (comparison.recipe, comparison.asked["attribute"])]

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The hybrids, the first recipe first. Raises UsageError."""
        from zoo_designs import attribute

        return [attribute.draft_hybrids(comparison, runner)]

    def describe(self, run: ComparisonRun) -> list[str]:
        """In what the recipes differ."""
        from zoo_designs import attribute

        changes = run.stages[-1].details
        recipes = f"{run.recipe} and {attribute.second_name(run.comparison)}"
        return [f"{recipes} differ in {len(changes)} options: {', '.join(map(str, changes))}"]

    def show(self, run: ComparisonRun, options: ParsedOptions) -> int:
        """Print and write the answer, and the contribution of each option; the exit code."""
        from zoo_designs import attribute

        answer, folder = run.look()
        shares = attribute.shares_of(run, answer)
        code = run.print_answer(answer, folder, [attribute.shares_chart(shares, answer)])
        run.runner.print_progress(f"\n{attribute.shares_text(shares, answer.goal)}")
        return code


class Probe(Design):
    """The length probe: the losses of language models on texts longer than their training length."""

    options = (
        Option("probe", "length=1,2,4,8: the loss of language models on texts so many times longer", metavar="WHAT",
               heading=ANSWER),
    )  # fmt: skip
    no_target = "losses on longer texts are not steps"

    def command_lines(self, comparison: Comparison, usual: Usual) -> list[tuple[str, ...]]:
        """Those of a plain comparison. Raises UsageError for a probe that there is not."""
        from zoo_designs import length_probe

        length_probe.parse_factors(comparison.asked["probe"])
        return usual(comparison)

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The variants. Raises UsageError unless they are language models on text."""
        from zoo_designs import length_probe

        stage = runner.draft(comparison)
        config = stage.arms[0].point.config
        length_probe.check_config(config, runner.meter.task_class(config))
        return [stage]

    def show(self, run: ComparisonRun, options: ParsedOptions) -> int:
        """Measure the runs on longer texts, then look, print and write; the exit code."""
        from zoo_designs import length_probe

        chart = length_probe.probe_run(run)
        return run.print_answer(*run.look(), [chart])


class Scoreboard(Design):
    """Several recipes: one comparison in each, and one scoreboard over all of them."""

    no_target = "a target is of one recipe, and log2 of its steps has no score over tasks"

    @property
    def label(self) -> str:
        """What asks for it, in messages."""
        return "several recipes"

    def run(
        self, options: ParsedOptions, comparison: Comparison, usual: Callable[[ParsedOptions, Comparison], int]
    ) -> int:
        """Run what is missing of every recipe, then print and write the scoreboard; the exit code."""
        from zoo_designs import several_recipes

        return several_recipes.run(options, comparison)

    def answer_folder(self, folder: Path, options: ParsedOptions) -> int:
        """Read the scoreboard of a folder, without torch; the exit code. Raises UsageError."""
        from zoo_designs import several_recipes

        return several_recipes.answer_folder(folder, options)

    def views(self, folder: Path) -> tuple[Mapping[str, Record | None], str, tuple[str, ...]]:
        """The comparisons by their recipes, and the scoreboard's tag and charts."""
        from zoo_designs import scoreboard_folder

        return scoreboard_folder.views(folder)
