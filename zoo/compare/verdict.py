"""The answer of a comparison: figures, paired difference from the baseline, verdict and cost of every variant."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from zoo.compare.comparability import (
    Flag,
    Pool,
    all_options,
    find_flags,
    moment_flags,
    setting_value_text,
    varied_names,
    varies,
)  # fmt: skip
from zoo.compare.design import PLAIN_DESIGN, Design
from zoo.compare.looks import Look
from zoo.compare.number_format import NONE, join_words
from zoo.compare.run_records import (
    DECISIVE,
    UNMEASURED,
    RunRecord,
    chosen_alike,
    closest_to_recipe,
    describe_values,
    group_by_variant,
    is_lower_better,
    label_variants,
    match_variant,
    number,
    parse_moment,
    planned_steps,
    shared_goals,
    short_names,
    target_of,
)
from zoo.compare.simultaneous_tests import (
    NOT_TESTED,
    T_TEST,
    Effect,
    OutcomeTest,
    PairedTestPlan,
    Sample,
    censor_alike,
    compare_outcomes,
    compare_samples,
    count_joint_seeds,
    failure_text,
    grid_contrasts,
    judge_all,
    judge_outcomes,
    other_failures,
)  # fmt: skip
from zoo.compare.statistics import Paired, Verdict, mean_and_deviation
from zoo.errors import UsageError
from zoo.logging.cost_measures import MEASURES
from zoo.registry import suggest

Seeds = Mapping[int, RunRecord]
Outcome = Literal["better", "worse", "as good as", "undecided", "not comparable"]
EXIT_CODES: dict[Outcome, int] = {  # exit codes of `zoo compare --exit-code`
    "better": 10, "worse": 11, "as good as": 12, "undecided": 13, "not comparable": 14,
}  # fmt: skip


def best_outcome(words: Iterable[str]) -> Outcome:
    """The best that the words of some verdicts show: better, as good as; else undecided, if any is; else worse.

    "not comparable" if no variant may be compared, or there is none.
    """
    comparable = {word for word in words if word != "not comparable"}
    for word in ("better", "as good as"):
        if word in comparable:
            return word
    return "not comparable" if not comparable else "worse" if comparable == {"worse"} else "undecided"


@dataclass(frozen=True)
class Row:
    """One variant. ``figures`` are the headline by seed, NaN if the run failed; ``others`` mean and sd of other goals.

    ``mean`` and ``sd`` are over the seeds that the baseline has too, and NaN where one of them failed: those of the
    survivors would say nothing about the variant. Then ``pair`` holds no difference either, and ``outcome`` has the
    tests that decide. ``failures`` says how the failed seeds ended. ``adjusted`` is p after the correction, NaN for
    the baseline and without a test, and ``equivalent`` that of a difference of the margin or more. ``differences`` are
    variant - baseline by seed. ``unpaired`` are seeds that the baseline lacks.
    """

    variant: str
    label: str
    choices: Mapping[str, str]
    figures: Mapping[int, float]
    mean: float
    sd: float
    pair: Paired
    adjusted: float
    verdict: Verdict
    cost: Mapping[str, float]  # by the names of MEASURES
    unfinished: tuple[int, ...] = ()
    unpaired: tuple[int, ...] = ()
    tuned: str = ""
    kernel: str = ""
    others: Mapping[str, tuple[float, float]] | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    outcome: OutcomeTest | None = None
    equivalent: float = math.nan
    differences: Mapping[int, float] = field(default_factory=dict)

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose training diverged."""
        return tuple(seed for seed, how in self.failures.items() if how == "diverged")

    @property
    def sentence(self) -> str:
        """The verdict, with the numbers of failed, unpaired and unfinished seeds."""
        pieces = [self.verdict.sentence]
        if self.failures:
            pieces.append(failure_text(self.failures, len(self.figures)))
        if self.unpaired:
            pieces.append(f"{len(self.unpaired)} unpaired, left out")
        if self.unfinished:
            pieces.append(f"{len(self.unfinished)} not finished")
        return "; ".join(pieces)


@dataclass(frozen=True)
class Answer:
    """The result of a comparison. ``rows`` are the baseline and then the variants, best first; ``varied`` are the
    options that differ between variants; ``tests`` is the number of tests; ``late_choices`` says what of the
    question was chosen after a look at its runs, None where no journal can tell.
    """

    recipe: str
    goal: str
    lower_is_better: bool
    at: str
    unit: str
    baseline: str
    varied: tuple[str, ...]
    rows: tuple[Row, ...]
    flags: tuple[Flag, ...]
    runs: Mapping[str, Seeds]
    tests: int
    commands: tuple[str, ...] = ()
    late_choices: tuple[str, ...] | None = None
    plan: PairedTestPlan = T_TEST  # how differences were tested
    looks: tuple[Look, ...] = ()  # those of this comparison so far, this one included
    look_number: int = 0  # which of them this is, from 1 on; 0 for none
    look: Look | None = None  # this one; None where nothing records looks
    looks_elsewhere: int = 0  # looks at the same runs by other comparisons of the recipe, which spend too
    tuning: Mapping[str, Any] = field(default_factory=dict)  # see `match_and_tune.tune_variants`
    # effects in a grid in which every combination was run, corrected with the variants
    effects: tuple[Effect, ...] = ()
    design: Design = PLAIN_DESIGN
    finding: Any = None  # what the design found besides

    @property
    def base(self) -> Row:
        """The baseline's row."""
        return self.rows[0]

    @property
    def comparability_errors(self) -> tuple[str, ...]:
        """The sentences of the fatal flags; `zoo compare` exits with 1 if there are any."""
        return tuple(flag.sentence for flag in self.flags if flag.fatal)

    @property
    def outcome(self) -> Outcome:
        """What is shown of the variants, in one word."""
        return best_outcome(row.verdict.word for row in self.rows[1:])

    @property
    def correction(self) -> str:
        """Who found the correction of p for several variants."""
        pairs = [row.pair.n for row in self.rows[1:] if row.pair.n]
        return "Dunnett" if count_joint_seeds(self.plan, pairs, any(row.outcome for row in self.rows)) else "Holm"

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a variant."""
        return max(len(row.figures) for row in self.rows)


def answer(
    ledgers: Iterable[RunRecord],
    baseline: str | None = None,
    goal: str | None = None,
    at: str = DECISIVE,
    tuned: Mapping[str, str] | None = None,
    commands: Sequence[str] = (),
    varied: Sequence[str] | None = None,
    plan: PairedTestPlan = T_TEST,
    refusals: Sequence[Flag] = (),
) -> Answer:
    """Compare every variant with the baseline, which is by default the variant "default", or else the first.

    ``goal`` is the headline figure, by default the task's first; ``at`` selects the "last" or "best" validation, the
    mean of the last three, "last:3", or the "test" split. ``tuned`` has sentences by variant, such as "lr 0.003, best
    of 3 on validation"; ``varied`` are the options that vary on purpose, None if only the runs can tell; ``plan`` says
    how differences are tested, and ``refusals`` are reasons besides the runs for which variants get no verdict. Where a
    run failed the verdict is about outcomes. Raises UsageError for an unknown baseline or goal, and if no run is
    finished.
    """
    everything = list(ledgers)
    groups = group_by_variant(everything)
    if not groups:
        raise UsageError(next((run.problem for run in everything), "there is no run to compare") + ".")
    base = _baseline(groups, baseline)
    headline, direction = _goal(groups, base, goal)
    parse_moment(at)
    figures = {name: {s: f for s, run in runs.items() if (f := run.figure(headline, at)) is not None}
               for name, runs in groups.items()}  # fmt: skip
    if not any(figures.values()):
        waiting = sum(len(runs) for runs in groups.values())
        raise UsageError(f"no run is finished: {waiting} were started. Run the same command again to go on.")
    lower = is_lower_better(direction, at)
    varied_set = None if varied is None else varied_names(varied) | tuned_options((tuned or {}).values())
    options_of = chosen_options(groups)
    names = varied_choices(options_of, tuned or {}, varied_set)
    labels = label_variants(options_of, names, base)
    findings = find_flags(everything, base, varied_set, labels)
    findings += [*moment_flags(Pool(groups, base, labels), headline, at, direction == "min"), *refusals]
    findings.sort(key=lambda flag: not flag.fatal)
    failures = {name: {seed: runs[seed].failure(headline, at) or UNMEASURED for seed, f in figures[name].items()
                       if math.isnan(f)} for name, runs in groups.items()}  # fmt: skip
    comparable = [name for name in groups if name != base and not any(flag.refuses(name) for flag in findings)]
    common = {name: plan.sort_seeds([seed for seed in figures[name] if seed in figures[base]]) for name in comparable}
    steps = {name: planned_steps(runs) for name, runs in groups.items()}
    outcomes = {
        name: compare_outcomes(
            *(censor_alike(figures[name], figures[base], steps[name], steps[base]) if target_of(at) is not None
              else (figures[name], figures[base])),
            lower, seeds, plan.test == "sequential",
        )
        for name, seeds in common.items()
    }  # fmt: skip
    samples = {
        name: ([figures[name][seed] for seed in seeds], [figures[base][seed] for seed in seeds])
        for name, seeds in common.items() if outcomes[name] is None
    }  # fmt: skip
    outcome_p = {
        name: _outcome_p(test, (failures[name], failures[base])) for name, test in outcomes.items() if test is not None
    }
    groups = _with_settings(groups)
    choices = {name: {n: describe_values(options.get(n, NONE)) for n in names} for name, options in options_of.items()}
    contrasts: dict[str, Sample] = {}
    factors = {name: factor_values(runs, choices[name], varied_names(varied or ())) for name, runs in groups.items()}
    cells = {tuple(values.values()): figures[name] for name, values in factors.items()}
    if len(cells) == len(samples) + 1 == len(groups):
        shared = plan.sort_seeds(sorted(set.intersection(*map(set, figures.values()))))
        contrasts = grid_contrasts([*factors[base]], cells, tuple(factors[base].values()), shared)
    tested = compare_samples(samples | contrasts, plan, outcome_p)
    judged = judge_all(tested, lower, plan)
    tests = sum(not math.isnan(result.adjusted) for result in tested.values())
    tested |= {name: plan.earlier[name][1] for name in samples if judged[name].earlier}
    rows = []
    for name, runs in groups.items():
        paired, outcome = tested.get(name, NOT_TESTED), outcomes.get(name)
        paired_figures = [figure for seed, figure in figures[name].items() if name == base or seed in figures[base]]
        mean, sd = _mean_unless_failed(paired_figures or [*figures[name].values()])
        verdict = _verdict(name, base, judged, findings)
        if outcome is not None:
            cause = other_failures((failures[name], failures[base]))
            verdict = (
                Verdict("no verdict", f"runs {cause}: no verdict") if cause
                else judge_outcomes(outcome, paired.adjusted, tests, plan.level)
            )  # fmt: skip
        ours, theirs = samples.get(name, ((), ()))
        rows.append(
            Row(
                variant=name, label=labels[name], choices=choices[name],
                figures=figures[name], mean=mean, sd=sd, pair=paired.pair, adjusted=paired.adjusted,
                equivalent=paired.equivalent, verdict=verdict, cost=_cost(runs), kernel=_kernels(runs),
                differences={seed: mine - base_figure for seed, mine, base_figure
                             in zip(common.get(name, ()), ours, theirs, strict=False)},
                unfinished=tuple(s for s in runs if s not in figures[name]),
                unpaired=tuple(s for s in figures[name] if name != base and s not in figures[base]),
                tuned=(tuned or {}).get(name, ""), others=_others(runs, headline, at), failures=failures[name],
                outcome=outcome,
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row.variant != base, _rank(row, "min" if lower else "max")))
    recipes = dict.fromkeys(run.recipe for runs in groups.values() for run in runs.values())
    first_run = next(iter(groups[base].values()))
    notes = [
        *_failure_flags(rows, groups),
        *_missing_seed_flags(rows, headline if target_of(at) is None else f"log2 steps to {headline}"),
    ]
    return Answer(
        join_words([*recipes]), headline, lower, at, first_run.unit, base, names, tuple(rows),
        (*findings, *notes), groups, tests, tuple(commands), plan=plan,
        effects=tuple(Effect(name, tested[name], judged[name]) for name in contrasts),
    )  # fmt: skip


def _outcome_p(outcome: OutcomeTest, failures: Sequence[Mapping[int, str]]) -> float:
    """The p value of a test on outcomes; NaN where runs crashed or ran out of memory, and without a test."""
    if other_failures(failures) or outcome.n < 2 or outcome.failed == outcome.base_failed == outcome.n:
        return math.nan
    return outcome.p


def _mean_unless_failed(figures: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; NaN if one of the figures is."""
    return (math.nan, math.nan) if any(map(math.isnan, figures)) else mean_and_deviation(figures)


def _with_settings(groups: Mapping[str, Seeds]) -> dict[str, dict[int, RunRecord]]:
    """The same runs with settings of training among their choices."""
    return {
        name: {seed: replace(run, choices={n: v if n in run.choices else setting_value_text(v)
                                           for n, v in all_options(run).items()})
               for seed, run in runs.items()}
        for name, runs in groups.items()
    }  # fmt: skip


def _baseline(groups: Mapping[str, Seeds], requested: str | None) -> str:
    if requested is None:
        return closest_to_recipe(groups)
    options_of = chosen_options(groups)
    names = varied_choices(options_of)
    fitting = match_variant(
        requested,
        {name: {n: describe_values(options.get(n, NONE)) for n in names} for name, options in options_of.items()},
    )
    if len(fitting) != 1:
        why = f"stands for {join_words(fitting)}." if fitting else f"is no variant.{suggest(requested, groups)}"
        raise UsageError(
            f"--baseline {requested!r} {why}\nThere are: {join_words([*short_names(groups).values()], 8)}."
        )
    return fitting[0]


def _goal(groups: Mapping[str, Seeds], base: str, requested: str | None) -> tuple[str, str]:
    runs = groups[base].values()
    first_run = next((run for run in runs if run.goals), next(iter(runs)))  # one that failed may have none
    comparable = [run for runs in groups.values() for run in runs.values() if shared_goals([first_run, run])]
    goals = shared_goals([first_run, *comparable]) or first_run.goals
    name = next(iter(goals)) if requested is None else requested.removeprefix("val/")
    if name not in goals:
        who = "the metrics that all variants have" if name in first_run.goals else base
        raise UsageError(
            f"--goal {requested!r} is none of {who}.{suggest(name, goals)} There are: {join_words([*goals], 8)}."
        )
    return name, goals[name]


def _verdict(name: str, base: str, judged: Mapping[str, Verdict], findings: Sequence[Flag]) -> Verdict:
    if name == base:
        return Verdict("baseline", "baseline")
    refusal = next((flag for flag in findings if flag.refuses(name)), None)
    if refusal is not None:
        return Verdict("not comparable", f"not comparable: {refusal.about}")
    return judged.get(name, Verdict("no verdict", "no verdict"))


def varied_choices(
    options_of: Mapping[str, Mapping[str, object]],
    tuned: Mapping[str, str] = MappingProxyType({}),
    varied_set: Collection[str] | None = None,
) -> tuple[str, ...]:
    """The options that differ between variants, except those that were solved or tuned for each.

    Of a comparison that names what varies, only those; of other runs, all that differ.
    """
    names = dict.fromkeys(name for options in options_of.values() for name in options)
    solved = tuned_options(tuned.values())
    values = {name: {_value_or_none(options, name) for options in options_of.values()} for name in names}
    values["model"] = values.get("model", set()) - {NONE}  # a run that crashed before its first record does not say
    if len(values["model"]) > 1:  # what one task lacks is part of the choice of the task
        values = {name: of_name - {NONE} for name, of_name in values.items()}
    return tuple(
        n for n in names if len(values[n]) > 1 and not {n, n.rpartition(".")[2]} & solved
        and (varied_set is None or varies(n, varied_set))
    )  # fmt: skip


def factor_values(runs: Seeds, choices: Mapping[str, str], varied: Collection[str]) -> dict[str, str]:
    """The values of a variant by option of a grid: its ``choices``, a part's by the options of it that vary."""
    config = next(iter(runs.values())).config
    values: dict[str, str] = {}
    for name, value in choices.items():
        options = [] if name in varied else sorted(key for key in varied if key.startswith(f"{name}."))
        values |= {option: str(config.get(f"model.{option}", config.get(option, "default"))) for option in options}\
            if len(options) > 1 else {name: value}  # fmt: skip
    return values


def _value_or_none(options: Mapping[str, object], name: str) -> str:
    """An option's value as text; None and an option that a run lacks are the same."""
    value = options.get(name, NONE)
    return NONE if chosen_alike(value, None) else describe_values(value)


def tuned_options(sentences: Iterable[str]) -> set[str]:
    """The names of the options that were solved or tuned, with which the sentences about them begin."""
    return {piece.split()[0] for sentence in sentences for piece in sentence.split("; ") if piece}


def chosen_options(groups: Mapping[str, Seeds]) -> dict[str, Mapping[str, object]]:
    """The options of each variant, settings of training among them, as its first run that says any has them."""
    runs_of = _with_settings(groups)
    return {name: next((run.choices for run in runs.values() if run.choices), {}) for name, runs in runs_of.items()}


def _cost(runs: Seeds) -> dict[str, float]:
    """What a variant costs, by the names of MEASURES, over its seeds; NaN where no run says."""

    def recorded(name: str) -> list[float]:
        return [value for run in runs.values() if math.isfinite(value := number(run.cost.get(name)))] or [math.nan]

    return {measure.name: measure.over_seeds(recorded(measure.name)) for measure in MEASURES}


def _kernels(runs: Seeds) -> str:
    """The attention kernels that a variant's runs used."""
    return ", ".join(dict.fromkeys(str(run.setting["kernel"]) for run in runs.values() if run.setting.get("kernel")))


def _others(runs: Seeds, goal: str, at: str) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over seeds of the goals besides the headline."""
    names = dict.fromkeys(name for run in runs.values() for name in run.goals if name != goal)
    at = DECISIVE if target_of(at) is not None else at  # the target is of the headline
    result = {}
    for name in names:
        try:
            figures = [figure for run in runs.values() if (figure := run.figure(name, at)) is not None]
        except UsageError:  # it was measured less often than the headline
            figures = [math.nan]
        result[name] = _mean_unless_failed(figures)
    return result


def _rank(row: Row, direction: str) -> tuple[int, float]:
    """Sorting key, small for good: failed runs, then the paired difference, else the mean."""
    figure = row.mean if math.isnan(row.pair.mean) else row.pair.mean
    value = math.inf if math.isnan(figure) else figure if direction == "min" else -figure
    return len(row.failures) if math.isnan(figure) else 0, value


def _failure_flags(rows: Sequence[Row], groups: Mapping[str, Seeds]) -> list[Flag]:
    """Which runs failed, with the step and the cause that the first of a variant recorded."""
    result = []
    for row in rows:
        if not row.failures:
            continue
        outcome = next((run.outcome for seed, run in groups[row.variant].items() if seed in row.failures), {})
        cause = f" ({outcome['cause']})" if outcome.get("cause") else ""
        seeds = " ".join(f"s{seed}" for seed in row.failures)
        sentence = f"{failure_text(row.failures, len(row.figures))}: {row.label} {seeds}{cause}"
        result.append(Flag(sentence, False, "diverged" if row.diverged else "failed", (row.variant,)))
    return result


def _missing_seed_flags(rows: Sequence[Row], goal: str) -> list[Flag]:
    """The variants that lack seeds of the baseline, with the baseline's mean over those that both have."""
    base, result = rows[0], []
    for row in rows[1:]:
        missing = [seed for seed in base.figures if seed not in row.figures]
        common = [seed for seed in base.figures if seed in row.figures]
        if missing and common and not row.failures:
            usual, _ = _mean_unless_failed([base.figures[seed] for seed in common])
            seeds = ", on which " + f"{base.label} has {goal} {usual:.4g}" if math.isfinite(usual) else ""
            failed = [f"s{seed}" for seed in missing if seed in base.failures]
            sentence = (
                f"{row.label} lacks {' '.join(f's{seed}' for seed in missing)}: its figures and its difference are "
                f"over {' '.join(f's{seed}' for seed in common)}{seeds}"
                + (f"; that {base.label} failed at {' '.join(failed)} counts in no test" if failed else "")
            )
            result.append(Flag(sentence, False, "seeds", (row.variant,)))
    return result
