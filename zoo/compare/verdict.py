"""The answer of a comparison: figures, paired difference from the baseline, verdict and cost of every variant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zoo.compare.fairness import Flag, default_baseline, find_flags
from zoo.compare.looks import Look
from zoo.compare.number_format import NONE, join_words
from zoo.compare.paired_tests import NOT_TESTED, T_TEST, PairedTestPlan, Sample, compare_samples, judge_all
from zoo.compare.run_records import BETTER, RunRecord, group_by_variant, number
from zoo.compare.statistics import Paired, Verdict, mean_and_deviation
from zoo.compare.variant_names import match_variant, short_names
from zoo.errors import UsageError
from zoo.logging.cost_measures import MEASURES
from zoo.registry import suggest

Seeds = Mapping[int, RunRecord]
DAGGER = "†"  # marks differences that include diverged runs


@dataclass(frozen=True)
class Row:
    """One variant. ``figures`` are the headline by seed, NaN if diverged; ``others`` mean and sd of the other goals.

    ``mean`` and ``sd`` are over the seeds that converged. In ``pair`` a diverged run counts as the answer's ``worst``.
    ``adjusted`` is p after Holm's correction, NaN for the baseline and without a test, and ``equivalent`` that of a
    difference of the margin or more. ``differences`` are variant - baseline by seed. ``unpaired`` are seeds that the
    baseline lacks.
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
    equivalent: float = math.nan
    differences: Mapping[int, float] = field(default_factory=dict)

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds whose training diverged."""
        return tuple(seed for seed, figure in self.figures.items() if math.isnan(figure))

    @property
    def sentence(self) -> str:
        """The verdict, with the numbers of diverged, unpaired and unfinished seeds."""
        pieces = [self.verdict.sentence]
        if self.diverged:
            pieces.append(f"{len(self.diverged)} of {len(self.figures)} diverged")
        if self.unpaired:
            pieces.append(f"{len(self.unpaired)} unpaired, left out")
        if self.unfinished:
            pieces.append(f"{len(self.unfinished)} not finished")
        return "; ".join(pieces)


@dataclass(frozen=True)
class Answer:
    """The result of a comparison. ``rows`` are the baseline and then the variants, best first; ``varied`` are the
    options that differ between variants; a diverged run counts as ``worst``; ``tests`` is Holm's number of tests.
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
    worst: float
    tests: int
    commands: tuple[str, ...] = ()
    plan: PairedTestPlan = T_TEST  # how differences were tested
    looks: tuple[Look, ...] = ()  # those of this comparison so far, this one included

    @property
    def base(self) -> Row:
        """The baseline's row."""
        return self.rows[0]

    @property
    def comparability_errors(self) -> tuple[str, ...]:
        """The sentences of the fatal flags; `zoo compare` exits with 1 if there are any."""
        return tuple(flag.sentence for flag in self.flags if flag.fatal)

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a variant."""
        return max(len(row.figures) for row in self.rows)


def answer(
    ledgers: Iterable[RunRecord],
    baseline: str | None = None,
    goal: str | None = None,
    at: str = "best",
    tuned: Mapping[str, str] | None = None,
    commands: Sequence[str] = (),
    plan: PairedTestPlan = T_TEST,
) -> Answer:
    """Compare every variant with the baseline, which is by default the variant "default", or else the first.

    ``goal`` is the headline figure, by default the task's first; ``at`` selects the "best" or "last" validation.
    ``tuned`` has sentences by variant, such as "lr 0.003, best of 3 on validation"; ``plan`` says how differences are
    tested. A diverged run is an outcome: it
    counts as the worst figure of all validations of these runs, as if it had learned nothing. Raises UsageError for an
    unknown baseline or goal, and if no run is finished.
    """
    everything = list(ledgers)
    groups = group_by_variant(everything)
    if not groups:
        raise UsageError(next((each.problem for each in everything), "there is no run to compare") + ".")
    base = _baseline(groups, baseline)
    headline, direction = _goal(groups, base, goal)
    if at not in ("best", "last"):
        raise UsageError(f"figures are taken at 'best' or 'last', not at {at!r}.")
    figures = {name: {s: f for s, run in runs.items() if (f := run.figure(headline, at)) is not None}
               for name, runs in groups.items()}  # fmt: skip
    if not any(figures.values()):
        waiting = sum(len(runs) for runs in groups.values())
        raise UsageError(f"no run is finished: {waiting} were started. Run the same command again to go on.")
    findings = find_flags(everything, base)
    worst = _worst(groups, headline, direction)
    pairs = {
        name: () if any(f.refuses(name) for f in findings)
        else plan.sort_seeds([seed for seed in figures[name] if seed in figures[base] and math.isfinite(worst)])
        for name in groups if name != base
    }  # fmt: skip
    samples = {name: _sample(figures[name], figures[base], seeds, worst) for name, seeds in pairs.items()}
    tested = compare_samples(samples, plan)
    judged = judge_all(tested, direction == "min", plan)
    tests = sum(not math.isnan(one.adjusted) for one in tested.values())
    names = _varied_choices(groups, tuned or {})
    labels = _labels(groups, names, base)
    rows = []
    for name, runs in groups.items():
        one = tested.get(name, NOT_TESTED)
        rows.append(
            Row(
                variant=name, label=labels[name], choices={n: describe_values(_choice(runs, n)) for n in names},
                figures=figures[name], mean=mean_and_deviation([*figures[name].values()])[0],
                sd=mean_and_deviation([*figures[name].values()])[1], pair=one.pair, adjusted=one.adjusted,
                equivalent=one.equivalent, verdict=_verdict(name, judged, findings), cost=_cost(runs),
                kernel=_kernels(runs),
                differences={} if name == base else {seed: ours - theirs for seed, ours, theirs
                                                     in zip(pairs[name], *samples[name], strict=True)},
                unfinished=tuple(s for s in runs if s not in figures[name]),
                unpaired=tuple(s for s in figures[name] if name != base and s not in figures[base]),
                tuned=(tuned or {}).get(name, ""), others=_others(runs, headline, at),
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row.variant != base, _rank(row, direction)))
    recipes = dict.fromkeys(run.recipe for runs in groups.values() for run in runs.values())
    first = next(iter(groups[base].values()))
    notes = _divergence_flags(rows, worst)
    return Answer(
        join_words([*recipes]), headline, direction == "min", at, first.unit, base, names, tuple(rows),
        (*findings, *notes), groups, worst, tests, tuple(commands), plan,
    )  # fmt: skip


def describe_values(value: object) -> str:
    """An option's value as text for tables."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def _baseline(groups: Mapping[str, Seeds], requested: str | None) -> str:
    if requested is None:
        return default_baseline(groups)
    names = _varied_choices(groups, {})
    fitting = match_variant(
        requested, {name: {n: describe_values(_choice(runs, n)) for n in names} for name, runs in groups.items()}
    )
    if len(fitting) != 1:
        why = f"stands for {join_words(fitting)}." if fitting else f"is no variant.{suggest(requested, groups)}"
        raise UsageError(
            f"--baseline {requested!r} {why}\nThere are: {join_words([*short_names(groups).values()], 8)}."
        )
    return fitting[0]


def _goal(groups: Mapping[str, Seeds], base: str, requested: str | None) -> tuple[str, str]:
    goals = next(iter(groups[base].values())).goals
    name = next(iter(goals)) if requested is None else requested.removeprefix("val/")
    if name not in goals:
        raise UsageError(
            f"--goal {requested!r} is none of {base}.{suggest(name, goals)} There are: {join_words([*goals], 8)}."
        )
    return name, goals[name]


def _worst(groups: Mapping[str, Seeds], goal: str, direction: str) -> float:
    """The worst finite figure of any validation of any run, NaN where there is none."""
    values = [
        number(each[goal])
        for runs in groups.values()
        for run in runs.values()
        for each in (*run.validations, run.best, run.last)
        if goal in each
    ]
    finite = [figure for figure in values if math.isfinite(figure)]
    return BETTER["max" if direction == "min" else "min"](finite, default=math.nan)


def _sample(ours: Mapping[int, float], theirs: Mapping[int, float], seeds: Sequence[int], worst: float) -> Sample:
    """The figures of both at some seeds, with ``worst`` for diverged runs."""
    mine, yours = ([worst if math.isnan(f[seed]) else f[seed] for seed in seeds] for f in (ours, theirs))
    return mine, yours


def _verdict(name: str, judged: Mapping[str, Verdict], findings: Sequence[Flag]) -> Verdict:
    if name not in judged:
        return Verdict("baseline", "baseline")
    refusal = next((flag for flag in findings if flag.refuses(name)), None)
    return judged[name] if refusal is None else Verdict("not comparable", f"not comparable: {refusal.about}")


def _varied_choices(groups: Mapping[str, Seeds], tuned: Mapping[str, str]) -> tuple[str, ...]:
    """The options that differ between variants, except those that were solved or tuned for each."""
    names = dict.fromkeys(name for runs in groups.values() for run in runs.values() for name in run.choices)
    tuned_options = {piece.split()[0] for sentence in tuned.values() for piece in sentence.split("; ") if piece}
    values = {name: {describe_values(_choice(runs, name)) for runs in groups.values()} for name in names}
    return tuple(
        n for n in names if len(values[n]) > 1 and n not in tuned_options and n.rpartition(".")[2] not in tuned_options
    )


def _choice(runs: Seeds, name: str) -> object:
    return next(iter(runs.values())).choices.get(name, NONE)


def _labels(groups: Mapping[str, Seeds], names: Sequence[str], base: str) -> dict[str, str]:
    """Labels of variants in charts and tables: the values that differ from the baseline's, "SwiGLU + ALiBi".

    The baseline is labelled by its own value if one option is varied, else by its variant name. Variant names are used
    for all if labels are not unique, or if an option of a part is one of several varied options.
    """
    usual = {name: describe_values(_choice(groups[base], name)) for name in names}
    if len(names) > 1 and any(
        _same_part(describe_values(_choice(runs, n)), usual[n]) for runs in groups.values() for n in names
    ):
        return short_names(groups)
    labels, short = {}, short_names(groups)
    for variant, runs in groups.items():
        values = {name: describe_values(_choice(runs, name)) for name in names}
        differing = [
            v if v[:1].isupper() or len(names) == 1 else f"{name}={v}" for name, v in values.items() if v != usual[name]
        ]
        labels[variant] = " + ".join(differing) if differing and variant != base else short[variant]
    if len(names) == 1 and usual[names[0]] != NONE:
        labels[base] = usual[names[0]]
    return labels if len(set(labels.values())) == len(labels) else short


def _same_part(value: str, usual: str) -> bool:
    return value != usual and "(" in value + usual and value.partition("(")[0] == usual.partition("(")[0]


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
    return {
        name: mean_and_deviation([f for run in runs.values() if (f := run.figure(name, at)) is not None])
        for name in names
    }


def _rank(row: Row, direction: str) -> float:
    """Sorting key, small for good: the paired difference, else the mean."""
    figure = row.mean if math.isnan(row.pair.mean) else row.pair.mean
    return math.inf if math.isnan(figure) else figure if direction == "min" else -figure


def _divergence_flags(rows: Sequence[Row], worst: float) -> list[Flag]:
    diverged = [row for row in rows if row.diverged]
    if not diverged:
        return []
    where = join_words([f"{row.variant} {' '.join(f's{seed}' for seed in row.diverged)}" for row in diverged], 8)
    consequence = f"{DAGGER} In paired differences each counts as the worst validation of all runs, {worst:.4g}"
    return [
        Flag(f"training diverged: {where}. {consequence}", False, "diverged", tuple(row.variant for row in diverged))
    ]
