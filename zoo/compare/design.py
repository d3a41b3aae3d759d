"""Designs: which runs a comparison needs beyond variants and seeds, and what becomes of their records.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.command_line import DEBUG, HELP, Option, ParsedOptions, call_by_name
from zoo.compare.options import COMPARE_OPTIONS, HIDDEN_SETTINGS, REFUSED
from zoo.compare.run_records import target_of
from zoo.errors import PluginError, UsageError, ZooError
from zoo.plugins import diagnosis

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.document import Section
    from zoo.compare.plan import Comparison
    from zoo.compare.prepare_runs import Stage
    from zoo.compare.run_comparison import ComparisonRun, Runner
    from zoo.compare.run_records import Record
    from zoo.compare.verdict import Answer

KIND = "design"
SEVERAL = "scoreboard"  # the design of several recipes, which words ask for in place of an option
FILES = {"recipes.json": SEVERAL}  # by which a folder is that of a design, whether its package is installed or not


class Design:
    """Which comparison is made, as data; the base class is the plain one, every variant with every seed.

    A package registers a design by an entry point in the group ``zoo.design``; the one of its options of `zoo compare`
    that has its name, the class's in lower case, asks for it. A comparison has one design. What it does is in the class
    that ``procedure`` names, which may import what is heavy, such as torch.
    """

    kind = "design"
    name = ""  # set for each class
    label = ""  # what asks for it, in messages; by default the option of its name
    options: tuple[Option, ...] = ()  # of `zoo compare`; a file may have those that take a value
    recipes = 1  # words of the command line
    varies = False  # whether it varies something by itself, so that --vary may be left out
    no_target = ""  # why --to does not go with it; empty where it does
    procedure = ""  # package.module:Class, a Procedure; empty: the plain one

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__.lower()
        cls.label = vars(cls).get("label", f"--{cls.name}")

    def load(self) -> Procedure:
        """What it does. Raises PluginError where there is no such class."""
        procedure = call_by_name(self.procedure, self) if self.procedure else Procedure(self)
        if not isinstance(procedure, Procedure):
            raise PluginError(f"{self.procedure!r} of the design {self.name} names no Procedure")
        return procedure

    def problem(self) -> str:
        """What is wrong with the description, as part of a sentence; empty where nothing is."""
        if not isinstance(self.options, tuple) or not all(isinstance(option, Option) for option in self.options):
            return "its attribute options must be a tuple of Option"
        has_name = not self.options or self.name in [option.name for option in self.options]
        return "" if has_name else f"none of its options has its name, {self.name!r}"


class Procedure:
    """What a comparison runs and reports; this base class does the plain one, and designs override what differs."""

    def __init__(self, design: Design) -> None:
        self.design = design

    def read(self, options: ParsedOptions) -> Comparison | None:
        """The comparison of a command line; None for what a file or --vary describes. Raises UsageError."""
        return None

    def run(
        self, options: ParsedOptions, comparison: Comparison, usual: Callable[[ParsedOptions, Comparison], int]
    ) -> int:
        """Run and show a comparison, by default by the ``usual`` procedure; the exit code. Raises UsageError."""
        return usual(options, comparison)

    def title(self, comparison: Comparison, usual: str) -> str:
        """The name of the comparison's folder, where ``usual`` is that of a plain one."""
        return usual

    def command_lines(
        self, comparison: Comparison, usual: Callable[[Comparison], list[tuple[str, ...]]]
    ) -> list[tuple[str, ...]]:
        """The arguments of `zoo fit` for each variant. Raises UsageError for errors that can be found without torch.

        ``usual`` checks a plain comparison, and returns those of its variants.
        """
        return usual(comparison)

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The variants of every size, the one that decides last, as far as no run is needed; none for one size.

        Raises UsageError.
        """
        return []

    def check_goal(self, goals: Mapping[str, str], goal: str) -> None:
        """Raise UsageError for a goal that cannot decide; ``goals`` are the task's, with their directions."""

    def describe(self, run: ComparisonRun) -> list[str]:
        """Lines about what is run, before those about the numbers of runs."""
        return []

    def notes(self, run: ComparisonRun) -> list[str]:
        """Sentences about the variants: what was matched, what is left out."""
        stage = run.stages[-1]
        return [*stage.notes, *(f"left out {name}: {sentence}" for name, sentence in stage.invalid.items())]

    def details(self, comparison: Comparison) -> dict[str, Any]:
        """What the journal notes about the plan besides, as JSON."""
        return {}

    def record(self, run: ComparisonRun) -> dict[str, Any]:
        """What the comparison's folder records for `complete`, as JSON; empty for nothing."""
        return {}

    def show(self, run: ComparisonRun, options: ParsedOptions) -> int:
        """Look at finished runs, print the answer and write its report; the exit code."""
        return run.print_answer(*run.look())

    def complete(self, answer: Answer, home: Path, record: Record) -> Any:
        """What the design finds in finished runs, for `Answer.finding`, from what it recorded in ``home``."""

    def sections(self, answer: Answer) -> list[Section]:
        """Sections of the report of an answer that has a finding."""
        return []

    def charts(self, answer: Answer) -> list[ReportChart]:
        """Charts of the report of an answer that has a finding."""
        return []

    def as_data(self, answer: Answer) -> Mapping[str, Any]:
        """The finding as a JSON document; NaN stays NaN."""
        return {}

    def answer_folder(self, folder: Path, options: ParsedOptions) -> int:
        """Print the answer of a folder that has a file of FILES, without torch; the exit code. Raises UsageError."""
        raise NotImplementedError

    def views(self, folder: Path) -> tuple[Mapping[str, Record | None], str, tuple[str, ...]]:
        """For TensorBoard, of such a folder: records of comparisons by the name of each, and tag and charts of all."""
        raise NotImplementedError


PLAIN_DESIGN = Design()


NOT_OF_A_TARGET = {
    "goal": "the target is a value of another figure",
    "margin": "a margin is in the unit of the figure, and log2 of steps decides",
}


def check_target(at: str, design: Design = PLAIN_DESIGN, **options: object) -> None:
    """Raise UsageError for a moment that is a target, and a design or an option that has a value and takes none."""
    if target_of(at) is None:
        return
    reasons = [(f"--{name}", why) for name, why in NOT_OF_A_TARGET.items() if options.get(name)]
    for name, why in [*reasons, (design.label, design.no_target)]:
        if why:
            raise UsageError(f"a target, {at.partition(':')[2]}, does not go with {name}: {why}.")


def designs() -> Iterator[Design]:
    """Every design whose package can be used and whose options are its own: `zoo doctor` says why another cannot."""
    own = (*COMPARE_OPTIONS, *HIDDEN_SETTINGS, *REFUSED, DEBUG, HELP)
    own_strings = {string for option in own for string in option.strings}
    for part in registry.parts(KIND):
        try:
            design = find_design(part.name)
        except ZooError:
            continue
        strings = {string for option in design.options for string in option.strings}
        if not strings & own_strings:
            own_strings |= strings
            yield design


def find_design(name: str) -> Design:
    """The design of that name. Raises UsageError for an unknown one, PluginError where its package is at fault."""
    return diagnosis.build_part(diagnosis.choose_part(KIND, name), Design)


def chosen_design(values: Mapping[str, Any]) -> Design:
    """The design that options ask for, else the plain one. Raises UsageError for two of them."""
    matching = [design for design in designs() if values.get(design.name)]
    if len(matching) > 1:
        raise UsageError(f"{matching[0].label} does not go with {matching[1].label}: a comparison has one design.")
    return matching[0] if matching else PLAIN_DESIGN


def design_of_folder(folder: Path) -> Design | None:
    """The design of a folder with one of FILES; None for another one. Raises UsageError where it is not installed."""
    return next((find_design(name) for file, name in FILES.items() if (folder / file).is_file()), None)


def design_options() -> list[Option]:
    """The options that installed designs bring."""
    return [option for design in designs() for option in design.options]
