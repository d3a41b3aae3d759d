"""Attribution: how much of the difference between two recipes each of their k model options explains.

Hybrids that take some options from the second recipe are trained, and their figures give Shapley values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo import registry
from zoo.command_line import ParsedOptions
from zoo.compare.command import with_options
from zoo.compare.design import Procedure
from zoo.compare.document import Section
from zoo.compare.plan import Arm, Choice, Comparison, Point, ZooFit, fit_words, label_arms, option_text
from zoo.compare.prepare_runs import Stage, check_ends
from zoo.compare.run_records import DECISIVE, Record, RunRecord, number
from zoo.compare.simultaneous_tests import T_TEST, PairedTestPlan, count_fewest_seeds
from zoo.compare.statistics import Paired, Verdict, holm_adjust, judge, last_p, paired_t_test, round_count, rounding_of
from zoo.errors import UsageError
from zoo.io import limits

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.run_comparison import ComparisonRun, Runner
    from zoo.compare.verdict import Answer

# what --attribute leaves no choice of
NOT_OF_TWO_RECIPES = (
    "vary", "baseline", "design", "budget", "match", "tune", "probe", "until", "looks", "margin", "test", "series",
    "scale", "tune_seeds",
)  # fmt: skip
FULL = 4  # up to so many options every hybrid is run, 2^k of them; beyond, one option at a time from both ends
Subset = frozenset[str]


@dataclass(frozen=True)
class OptionDifference:
    """A model option that two recipes set differently, with both values as text."""

    choice: Choice
    first: str
    second: str

    @property
    def name(self) -> str:
        """The option without its section: ``position`` for ``model.position``."""
        return self.choice.key.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.name} ({self.first} → {self.second})"


@dataclass(frozen=True)
class Share:
    """The effect of one option on the headline figure, as differences paired by seed.

    ``shapley`` is the Shapley value, None unless all 2^k hybrids ran. ``alone`` is the effect of adding the option to
    the first recipe, ``last`` that of adding it last, when all other options are already the second recipe's.
    """

    difference: OptionDifference
    shapley: Paired | None
    alone: Paired
    last: Paired
    verdict: Verdict
    of_failures: bool = False  # whether the effects are on the rate of failed runs

    @property
    def tested(self) -> Paired:
        """The difference on which the verdict is."""
        return self.shapley or self.alone


def second_name(comparison: Comparison) -> str:
    """The name of the second recipe, without its folder and ending."""
    return Path(comparison.design_values["attribute"]).name.removesuffix(".yaml").removesuffix(".yml")


def find_differences(base: Point, second: Point, display: Callable[[Any], object]) -> list[OptionDifference]:
    """The model options that two recipes set differently.

    Raises UsageError if tasks, data or trainer differ, or fewer than two options do.
    """
    base_model, second_model = base.config["model"], second.config["model"]
    if base_model["class_path"] != second_model["class_path"]:
        raise UsageError(
            f"{base.recipe} trains a {_last(base_model['class_path'])} and {second.recipe} a "
            f"{_last(second_model['class_path'])}: there is nothing between them."
        )
    for section in ("data", "trainer"):
        if changes := _differing_keys(base.config[section], second.config[section]):
            key, a, b = changes[0]
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            raise UsageError(
                f"{base.recipe} and {second.recipe} differ in {section}{key} ({a} and {b}){more}: --attribute is "
                "about options of the model. Make the rest equal, by options that are given to both."
            )
    a, b = base_model["init_args"], second_model["init_args"]
    pairs = {name: (a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])}
    options = [
        OptionDifference(
            Choice(f"model.{name}", _option_value(name, *pair)), str(display(pair[0])), str(display(pair[1]))
        )
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    ]
    if len(options) < 2:
        what = str(options[0]) if options else "nothing"
        raise UsageError(f"{base.recipe} and {second.recipe} differ in {what}: there is nothing to tell apart.")
    return options


def _option_value(name: str, base_value: object, second: object) -> str:
    """The second recipe's value as text; for a part of another class, its name and its non-default options."""
    from zoo.training.setup import default_options

    if not isinstance(second, Mapping) or "class_path" not in second:
        return option_text(second)
    path, usual = str(second["class_path"]), default_options(str(second["class_path"]))
    if isinstance(base_value, Mapping) and base_value.get("class_path") == path:
        return option_text(second)  # same class: an omitted option would keep the first recipe's value
    options = {key: value for key, value in second["init_args"].items() if key not in usual or usual[key] != value}
    short = (
        next((part.name for part in registry.parts(name) if part.path == path), path)
        if name in registry.KINDS
        else path
    )
    return option_text({"class_path": short, "init_args": options}) if options else short


def _differing_keys(base: Mapping[str, Any], second: Mapping[str, Any], key: str = "") -> list[tuple[str, Any, Any]]:
    """The dotted keys at which two mappings differ, each with both values."""
    changes: list[tuple[str, Any, Any]] = []
    for name in dict.fromkeys([*base, *second]):
        a, b, below = base.get(name), second.get(name), key if name == "init_args" else f"{key}.{name}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            changes += _differing_keys(a, b, below)
        elif a != b:
            changes.append((below, a, b))
    return changes


def subsets(names: Sequence[str], full: bool) -> list[Subset]:
    """The sets of options to take from the second recipe: all 2^k if ``full``, else those of size 0, 1, k - 1 and k."""
    sizes = range(len(names) + 1) if full else sorted({0, 1, len(names) - 1, len(names)})
    return [frozenset(names_in) for size in sizes for names_in in itertools.combinations(names, size)]


def build_hybrids(
    base_arm: Arm, differences: Sequence[OptionDifference], fits: ZooFit, check: Callable[[Mapping[str, Any]], None]
) -> dict[Subset, Arm]:
    """Every hybrid, by the set of options that it takes from the second recipe.

    Raises UsageError for a hybrid that cannot be built; the message names its options and the model's error.
    """
    names = [difference.name for difference in differences]
    arms: dict[Subset, Arm] = {}
    for subset in subsets(names, len(names) <= FULL):
        choices = tuple(difference.choice for difference in differences if difference.name in subset)
        arm = Arm(choices, base_arm.words, base_arm.point).with_options(fits, *(choice.word for choice in choices))
        try:
            check(arm.point.config)
        except UsageError as error:
            mixed = ", ".join(
                f"{difference.name} {difference.second if difference.name in subset else difference.first}"
                for difference in differences
            )
            raise UsageError(f"a hybrid cannot be built: {mixed}.\n{str(error).splitlines()[0]}") from error
        arms[subset] = arm
    return dict(zip(arms, label_arms(list(arms.values())), strict=True))


def shapley_values(names: Sequence[str], value: Mapping[Subset, float]) -> dict[str, float]:
    """Shapley values (Shapley, 1953): sum over S without i of |S|! (k-|S|-1)! / k! (v(S+i) - v(S)).

    They sum to v(all) - v(none). ``value`` must have all 2^k subsets of ``names``.
    """
    k, total = len(names), math.factorial(len(names))
    shares = dict.fromkeys(names, 0.0)
    for name in names:
        others = [candidate for candidate in names if candidate != name]
        for subset in subsets(others, True):
            weight = math.factorial(len(subset)) * math.factorial(k - len(subset) - 1) / total
            shares[name] += weight * (value[subset | {name}] - value[subset])
    return shares


def compute_shares(
    differences: Sequence[OptionDifference], figures: Mapping[Subset, Mapping[int, float]], lower_is_better: bool,
    plan: PairedTestPlan = T_TEST,
) -> list[Share]:  # fmt: skip
    """The share of each option over the seeds that every hybrid has, the largest effect first; none without a seed.

    ``plan`` has the level that this look may spend, and says whether it is one of several.

    Where a run failed (NaN), no difference of figures exists: the shares are then of the rate of failed runs, without
    interval and verdict.
    """
    names = [difference.name for difference in differences]
    common = plan.sort_seeds(sorted(set.intersection(*(set(by_seed) for by_seed in figures.values()))))
    if not common:
        return []
    at = {subset: [by_seed[seed] for seed in common] for subset, by_seed in figures.items()}
    failed = sum(math.isnan(value) for values in at.values() for value in values)
    if failed:
        at = {subset: [float(math.isnan(value)) for value in values] for subset, values in at.items()}
    everything, nothing = frozenset(names), Subset()
    full = len(at) == 2 ** len(names)
    by_seed = [shapley_values(names, {subset: values[i] for subset, values in at.items()}) for i in range(len(common))]\
        if full else []  # fmt: skip
    rounding = rounding_of([value for values in at.values() for value in values])
    shares, samples = [], []
    for difference in differences:
        own = frozenset({difference.name})
        pairs = [paired_t_test(at[own], at[nothing]), paired_t_test(at[everything], at[everything - own])]
        samples.append([shapley[difference.name] for shapley in by_seed] if full
                       else np.subtract(at[own], at[nothing]).tolist())  # fmt: skip
        pairs += [paired_t_test(samples[-1], [0.0] * len(common), rounding=rounding)] if full else []
        if failed:  # rates have no spread and no test of figures that vary continuously
            pairs = [Paired(pair.n, pair.mean) for pair in pairs]
        verdict = Verdict("no verdict", f"{failed} of {len(at) * len(common)} runs failed: no verdict")
        shares.append(Share(difference, pairs[2] if full else None, pairs[0], pairs[1], verdict, bool(failed)))
    if not failed:
        p_values = [share.tested.p for share in shares]
        if plan.test == "sequential":
            p_values = [last_p(np.asarray(sample)) for sample in samples]
        tests = len(shares)
        fewest = count_fewest_seeds(plan, tests) if plan.test == "t" else 2
        shares = [
            replace(share, verdict=judge(share.tested, p, tests, lower_is_better, plan.level, fewest_possible=fewest))
            for share, p in zip(shares, holm_adjust(p_values), strict=True)
        ]
    return sorted(shares, key=lambda share: -abs(share.tested.mean))


def hybrid_figures(
    hybrids: Mapping[str, Subset], ledgers: Iterable[RunRecord], goal: str, at: str = DECISIVE
) -> dict[Subset, dict[int, float]]:
    """The headline figure of every hybrid by seed, NaN where a run failed; by what it has of the second recipe.

    ``hybrids`` are these options by the hybrid's name.
    """
    values: dict[Subset, dict[int, float]] = {subset: {} for subset in hybrids.values()}
    for ledger in ledgers:
        figure = ledger.figure(goal, at)
        if ledger.variant in hybrids and figure is not None:
            values[hybrids[ledger.variant]][ledger.seed] = number(figure)
    return values


def shares_section(shares: Sequence[Share], goal: str, level: float) -> Section:
    """The table of contributions, and how to read it; without one where no seed has all hybrids."""
    title = "Contribution of each option"
    if not shares:
        return Section(title, text="No seed is finished in all hybrids: run the same command again.")
    shapley = "share: Shapley's, the mean over all orders of adding the options. " if shares[0].shapley else ""
    figure = "the share of runs that failed, because some did" if shares[0].of_failures else goal
    legend = (
        f"{title}, in {figure}, paired by seed. {shapley}alone: added to the first recipe alone; last: added last, to "
        "the second recipe without it. ± is the standard deviation over seeds. These verdicts are a family of their "
        f"own: besides those on hybrids, any of them is false with a probability of at most {level:.2g}."
    )
    headings, *rows = shares_table(shares)
    return Section(title, headings, rows, legend, words=[share.verdict.word for share in shares])


def shares_chart(shares: Sequence[Share], answer: Answer) -> ReportChart:
    """The shares as bars."""
    from zoo_designs.charts import IntervalRow, draw_bars

    rows = [IntervalRow(str(share.difference), share.tested.mean, share.tested.low, share.tested.high)
            for share in shares]  # fmt: skip
    kind = "Shapley's shares" if shares[0].shapley else "Effects on the first recipe"
    figure = "the share of runs that failed" if shares[0].of_failures else answer.goal
    good = "low" if shares[0].of_failures or answer.lower_is_better else "high"
    title = "Contribution of each option"
    return draw_bars(title, rows, f"change in {figure}", good, f"{kind}, with 95 % intervals over seeds.")


def shares_table(shares: Collection[Share]) -> list[list[str]]:
    """A heading and a row per option: its share with interval, its effects ``alone`` and ``last``, the verdict."""
    full = all(share.shapley for share in shares)
    rows = [["option", *(["share", "95 % interval"] if full else []), "alone", "last", "verdict"]]
    for share in shares:
        split = share.shapley
        interval = "" if split is None or math.isnan(split.low) else f"{split.low:+.4g} to {split.high:+.4g}"
        cells = [f"{split.mean:+.4g}", interval] if split else []
        needed, word = share.verdict.needed, share.verdict.word
        verdict = f"{word}; ~{round_count(needed)} needed" if needed else share.verdict.sentence
        rows.append([str(share.difference), *cells, _effect(share.alone), _effect(share.last), verdict])
    return rows


def _effect(pair: Paired) -> str:
    return f"{pair.mean:+.4g}" if math.isnan(pair.sd) else f"{pair.mean:+.4g} ± {pair.sd:.2g}"


def _last(path: object) -> str:
    return str(path).rpartition(".")[2]


class AttributeProcedure(Procedure):
    """Runs hybrids of two recipes, and divides their difference among the options."""

    def read(self, options: ParsedOptions) -> Comparison:
        """The comparison of the hybrids of two recipes. Raises UsageError for anything else."""
        if len(options.words) != 2:
            raise UsageError(
                "--attribute needs two recipes: zoo compare transformer-2017-tiny llama-style-tiny --attribute"
            )
        for name in NOT_OF_TWO_RECIPES:
            if name in options.values:
                raise UsageError(
                    f"--{name.replace('_', '-')} does not go with --attribute: what varies is what the two recipes "
                    "differ in."
                )
        recipe, second = options.words
        comparison = Comparison(recipe, options=tuple(fit_words(options)), design=self.design)
        return replace(with_options(comparison, options.values), design_values={"attribute": second})

    def title(self, comparison: Comparison, usual: str) -> str:
        """``attribute-llama-style-tiny``."""
        return f"attribute-{second_name(comparison)}"

    def command_lines(self, comparison: Comparison, usual: object) -> list[tuple[str, ...]]:
        """Those of the two recipes."""
        return [(recipe, *comparison.options) for recipe in (comparison.recipe, comparison.design_values["attribute"])]

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The hybrids, the first recipe first. Raises UsageError."""
        from zoo.training.setup import display_value

        lines = self.command_lines(comparison, None)
        base, second = map(runner.fits.point, lines)
        differences = find_differences(base, second, display_value)
        hybrids = build_hybrids(Arm((), lines[0], base), differences, runner.fits, runner.meter.check)
        check_ends(" or ".join(recipe for recipe, *_ in lines), list(hybrids.values()))
        return [Stage(comparison, tuple(hybrids.values()), goal=comparison.goal, details=tuple(differences))]

    def describe(self, run: ComparisonRun) -> list[str]:
        """In what the recipes differ."""
        changes = run.stages[-1].details
        recipes = f"{run.recipe} and {second_name(run.comparison)}"
        return [f"{recipes} differ in {len(changes)} options: {', '.join(map(str, changes))}"]

    def record(self, run: ComparisonRun) -> dict[str, Any]:
        """In what the recipes differ, and what each hybrid has of the second one."""
        return {
            "differences": [asdict(difference) for difference in run.stages[-1].details],
            "hybrids": {arm.name: [choice.key.rpartition(".")[2] for choice in arm.variant] for arm in run.arms},
        }

    def complete(self, answer: Answer, home: Path, record: Record) -> list[Share]:
        """The share of each option. Raises UsageError for a damaged record."""
        try:
            content = record.design[self.design.name]
            differences = [
                OptionDifference(Choice(**item["choice"]), item["first"], item["second"])
                for item in content["differences"]
            ]
            hybrids = {str(name): Subset(options) for name, options in content["hybrids"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{home}: what it records of hybrids is damaged: {limits.describe_damage(error)}. Run the comparison "
                "again."
            ) from error
        runs = [run for seeds in answer.runs.values() for run in seeds.values()]
        figures = hybrid_figures(hybrids, runs, answer.goal, answer.at)
        return compute_shares(differences, figures, answer.lower_is_better, answer.plan)

    def sections(self, answer: Answer) -> list[Section]:
        """The contribution of each option."""
        return [shares_section(answer.finding, answer.goal, answer.plan.level)]

    def charts(self, answer: Answer) -> list[ReportChart]:
        """The shares as bars."""
        return [shares_chart(answer.finding, answer)] if answer.finding else []

    def as_data(self, answer: Answer) -> dict[str, Any]:
        """The share of each option, its effects alone and last, and the verdict."""
        shares: list[Share] = answer.finding
        return {
            "options": [
                {
                    "option": share.difference.choice.key, "first": share.difference.first,
                    "second": share.difference.second, "share": asdict(share.shapley) if share.shapley else None,
                    "alone": asdict(share.alone), "last": asdict(share.last), "of_failures": share.of_failures,
                    "verdict": share.verdict.word, "sentence": share.verdict.sentence,
                }
                for share in shares
            ]
        }  # fmt: skip
