"""Checks that the runs of a comparison are comparable: equal budgets, data, batches, initial weights and settings.

Each difference becomes a flag; a fatal flag withholds the verdict, the others are printed below the table.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from zoo.compare.number_format import format_apart, format_short, join_words
from zoo.compare.run_records import (
    RunRecord,
    chosen_alike,
    closest_to_recipe,
    duplicate_runs,
    group_by_variant,
    number,
    shared_goals,
    short_names,
)  # fmt: skip
from zoo.compare.statistics import ALPHA, Interval, paired_t_test
from zoo.config.passive_settings import is_passive

Groups = Mapping[str, Mapping[int, RunRecord]]
Where = dict[str, list[int]]  # variant → seeds
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Flag:
    """A difference between runs, as a sentence. A ``fatal`` one withholds the verdicts of ``variants`` (all if empty).

    ``about`` is the subject in a word: "tokens", "data", "speed" and so on.
    """

    sentence: str
    fatal: bool = False
    about: str = ""
    variants: tuple[str, ...] = ()

    def refuses(self, variant: str) -> bool:
        """Whether this flag withholds the verdict on a variant."""
        return self.fatal and (not self.variants or variant in self.variants)


def group_seeds(findings: Iterable[tuple[Key, str, int]]) -> dict[Key, Where]:
    """By what was found, the variants and their seeds of which it was; ``findings`` has a key, a variant and a seed."""
    result: dict[Key, Where] = {}
    for key, variant, seed in findings:
        result.setdefault(key, {}).setdefault(variant, []).append(seed)
    return result


@dataclass(frozen=True)
class Pool:
    """The runs that are compared, by variant and seed; iterating yields every variant, seed and run."""

    groups: Groups
    base: str  # the baseline
    labels: Mapping[str, str]  # what the variants are called

    def __iter__(self) -> Iterator[tuple[str, int, RunRecord]]:
        return ((variant, seed, run) for variant, runs in self.groups.items() for seed, run in runs.items())

    @property
    def baseline(self) -> Mapping[int, RunRecord]:
        """The runs of the baseline."""
        return self.groups[self.base]

    @property
    def label(self) -> str:
        """What the baseline is called."""
        return self.labels[self.base]

    def describe(self, where: Mapping[str, Sequence[int]]) -> str:
        """The variants of ``where``, with seeds, ``s1 s2``, unless all seeds of the variant are concerned."""
        return join_words([
            self.labels[variant] + "".join(f" s{seed}" for seed in seeds if len(seeds) < len(self.groups[variant]))
            for variant, seeds in where.items()
        ])  # fmt: skip

    def refused(self, where: Collection[str]) -> tuple[str, ...]:
        """The variants whose verdicts a fatal flag about some withholds; () means all, as where one is the baseline."""
        return () if self.base in where else tuple(where)

    def flags(self, findings: Iterable[tuple[tuple[str, str], str, int]]) -> list[Flag]:
        """A flag per difference, which covers all runs with it: "sentence: runs". Keys are a subject and a sentence."""
        return [
            Flag(f"{what}: {self.describe(where)}", False, about, tuple(where))
            for (about, what), where in group_seeds(findings).items()
        ]


HARDWARE = ("device", "machine", "threads", "processes")
TOLERANCE = {
    "parameters": 0.05, "spread": 0.10, "tokens": 0.001, "flops": 0.01, "time": 0.05, "work": 0.10, "speed": 0.25,
    "optimism": 0.02,
}  # fmt: skip
PADDING = 0.05  # relative difference of the baseline's tokens between seeds, which padding can cause
NOT_COMPARABLE = "these runs are not comparable"
# options that a setting depends on: if one of them is varied on purpose, a different setting needs no flag
DEPENDS_ON = {
    "optimizer": ("lr", "weight_decay"), "schedule": ("warmup", "floor", "lr"), "batch": ("batch_size", "max_length"),
    "max_steps": ("batch_size",),
}  # fmt: skip
# keys of a configuration whose differences are flagged as settings or as budgets
COVERED = ("trainer.max_steps", "trainer.max_epochs", "trainer.precision", "trainer.accumulate_grad_batches")
# with other values of these, two figures are measured on different data
MEASURED = ("trainer.limit_val_batches", "trainer.limit_test_batches", "trainer.overfit_batches")
TRAINING = ("lr", "optimizer", "schedule")  # options of a model that are about its training
# settings that are equal in all runs
SETTINGS = (
    "precision", "accumulate", "optimizer", "schedule", "batch", "max_steps", "metrics", "torch", "python", "zoo",
)  # fmt: skip


def find_flags(
    ledgers: Iterable[RunRecord], baseline: str | None = None, varied: Collection[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Flag]:  # fmt: skip
    """Every difference from the baseline's runs that makes runs less comparable, fatal ones first.

    ``varied`` are the names of the options that vary on purpose, or were solved or tuned; None where the runs alone can
    tell. ``labels`` say what the variants are called. Fatal: unequal budgets, data, units and goals, other code, and
    seeds of a variant that differ in settings. The tokens of a run that failed are not checked against the budget.
    """
    everything = list(ledgers)
    groups = group_by_variant(everything)
    result = [Flag(f"{run.problem}: it does not count", about="reading") for run in everything if run.problem]
    result += [
        Flag(f"{run.path} is a second {run.name}: it does not count", about="reading")
        for run in duplicate_runs(everything)
    ]
    if not groups:
        return result
    base = baseline if baseline in groups else closest_to_recipe(groups)
    pool = Pool(groups, base, labels or short_names(groups))
    waiting = (("unfinished", "not finished and not counted"),)
    result += pool.flags((*waiting, variant, seed) for variant, seed, run in pool if not run.has_ended)
    completed = replace(pool, groups={
        name: {s: run for s, run in runs.items() if run.goals and run.has_ended} for name, runs in groups.items()
    })  # fmt: skip
    if completed.baseline:
        result += [
            *_equality_flags(completed, varied),
            *code_flags(completed),
            *conduct_flags(completed),
            *config_flags(completed, varied),
            *pair_flags(completed),
            *_cost_flags(completed),
        ]
    return sorted(result, key=lambda flag: not flag.fatal)


def code_flags(pool: Pool) -> list[Flag]:
    """Flags for runs that were made with different sources of zoo or of a plugin."""
    result = []
    for module in dict.fromkeys(module for _, _, run in pool for module in run.code):
        versions: dict[str, tuple[Mapping[str, Any], dict[str, list[int]]]] = {}
        for variant, seed, run in sorted(pool, key=lambda entry: entry[0] != pool.base):
            for code in (run.code, *run.earlier_code):
                if source := str(code.get(module, {}).get("source") or ""):
                    seeds = versions.setdefault(source, (code[module], {}))[1].setdefault(variant, [])
                    seeds += [seed] * (seed not in seeds)
        (usual_code, usual), *others = versions.values() or [({}, {})]
        for code, where in others:
            sentence = (
                f"{NOT_COMPARABLE}: {module} {code_text(code)} ({pool.describe(where)}) against "
                f"{code_text(usual_code)} ({pool.describe(usual)}): make all of them with one version of the "
                "code, in another --runs DIR or after moving these away"
            )
            result.append(Flag(sentence, True, "code", pool.refused(where)))
    return [*result, *_library_flags(pool)]


def _library_flags(pool: Pool) -> list[Flag]:
    """Flags for libraries of which runs had other versions; that of torch is a setting."""
    usual = _libraries(_first(pool.baseline))
    return pool.flags(
        (("libraries", f"different {name}: {version} against {usual[name]} of {pool.label}"), variant, seed)
        for variant, seed, run in pool
        for name, version in _libraries(run).items()
        if name in usual and version != usual[name]
    )


def _libraries(run: RunRecord) -> dict[str, str]:
    """The versions of the libraries of a run, those before a resume with others included."""
    versions: dict[str, list[str]] = {}
    for code in (*run.earlier_code, run.code):
        for module in code.values():
            for name, version in (module.get("libraries") or {}).items():
                versions.setdefault(name, []).append(str(version))
    return {name: " and ".join(dict.fromkeys(numbers)) for name, numbers in versions.items() if name != "torch"}


def conduct_flags(pool: Pool) -> list[Flag]:
    """Flags for runs that did not train as configured throughout: resumed with other options, steps left out."""
    findings, result = [], []
    for variant, seed, run in pool:
        if (skipped := number(run.outcome.get("skipped"))) > 0:
            sentence = f"{skipped:.0f} of {run.steps} steps were left out, because they were not finite"
            findings.append((("skipped steps", sentence), variant, seed))
        changes = {key: pair for resume in run.resumed for key, pair in resume["changes"].items()}
        if changes:
            pieces = [f"{key} {old} → {new}" for key, (old, new) in changes.items()]
            where = pool.describe({variant: [seed]})
            sentence = f"{NOT_COMPARABLE}: {where} was resumed with other options: {join_words(pieces, 3)}"
            result.append(Flag(sentence, True, "resumed", pool.refused([variant])))
    return [*result, *pool.flags(findings)]


def describe_code_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first module whose sources differ between two records of code, with both; empty for none."""
    for module in old:
        ours, theirs = old[module], new.get(module) or {}
        if ours.get("source") and theirs.get("source") and ours["source"] != theirs["source"]:
            return f"{module} {code_text(ours)}, now {code_text(theirs)}"
    return ""


def code_text(code: Mapping[str, Any]) -> str:
    """``1.0.0 (source 1a2b3c4d, commit 5e6f7a8b with changes)``."""
    commit = (
        f", commit {str(code['commit'])[:8]}{' with changes' * bool(code.get('dirty'))}" if "commit" in code else ""
    )
    return f"{code.get('version') or 'without a version'} (source {str(code.get('source'))[:8]}{commit})"


def all_options(run: RunRecord) -> dict[str, Any]:
    """The choices of a run and its other settings by dotted keys, without passive ones and those flagged otherwise."""
    sections = ("trainer", "tune", "compile", "on_nonfinite")
    settings = {
        name: value
        for name, value in run.config.items()
        if name.partition(".")[0] in sections and not is_passive(name, value) and name not in COVERED
    }
    return {**run.choices, **{name: value for name, value in settings.items() if value not in (None, [], False)}}


def varied_names(keys: Iterable[str]) -> set[str]:
    """The names in `all_options` of options of zoo fit: ``position`` for ``model.position``, others as they are."""
    return {key.removeprefix("model.") for key in keys}


def varies(name: str, varied: Collection[str]) -> bool:
    """Whether an option of `all_options` varies on purpose: itself, or an option of the part that it names."""
    return any(name == key or key.startswith(f"{name}.") for key in varied)


def config_flags(pool: Pool, varied: Collection[str] | None) -> list[Flag]:
    """Flags for settings that differ and do not vary on purpose: those of a variant, and of its seeds among each other.

    Where what varies is not known, settings of training that differ besides a choice of the model are flagged.
    """
    against, result, findings = _first(pool.baseline), [], []
    for variant, runs in pool.groups.items():
        example = _first(runs) if runs else None
        for run in runs.values():
            if example is not None and (names := _differing_options(run, example)):
                sides = [f"{_value_text(pooled, names[0])} (s{pooled.seed})" for pooled in (run, example)]
                sentence = f"{NOT_COMPARABLE}: seeds of {pool.labels[variant]} differ in {names[0]} {', '.join(sides)}"
                result.append(Flag(sentence, True, "settings", pool.refused([variant])))
                break
        if example is None or variant == pool.base:
            continue
        names = _differing_options(example, against)
        training = [name for name in names if ("." in name and not name.startswith("data.")) or name in TRAINING]
        training += [name for name in names if name in ("compile", "on_nonfinite")]
        if varied is None:
            stray = training if len(names) > len(training) else []
        else:
            stray = [name for name in names if not varies(name, varied) and not _is_explained(name, [*varied])]
        for name in dict.fromkeys([*stray, *(name for name in names if name in MEASURED)]):
            values = f"{name} {_value_text(example, name)} against {_value_text(against, name)} of {pool.label}"
            if name in MEASURED:
                sentence = f"{NOT_COMPARABLE}: {values}: the figures are of different data ({pool.labels[variant]})"
                result.append(Flag(sentence, True, "settings", (variant,)))
            else:
                key = ("settings", f"differs too, and may be the cause: {values}")
                findings += [(key, variant, seed) for seed in runs]
    return [*result, *pool.flags(findings)]


def _differing_options(run: RunRecord, against: RunRecord) -> list[str]:
    ours, theirs = all_options(run), all_options(against)
    return [name for name in dict.fromkeys([*theirs, *ours]) if not chosen_alike(ours.get(name), theirs.get(name))]


def _value_text(run: RunRecord, name: str) -> str:
    value = all_options(run).get(name)
    return "none" if value is None else setting_value_text(value)


def setting_value_text(value: Any) -> str:
    """A value of a setting: callbacks by their classes and options, ``EMA(decay=0.9)``."""
    if isinstance(value, list):
        return " and ".join(map(setting_value_text, value)) or "none"
    if isinstance(value, Mapping) and "class_path" in value:
        options = ", ".join(f"{name}={option}" for name, option in (value.get("init_args") or {}).items())
        return f"{str(value['class_path']).rpartition('.')[2]}({options})"
    return str(value)


def moment_flags(pool: Pool, goal: str, at: str, lower_is_better: bool) -> list[Flag]:
    """Flags for figures of unequal validations, and for a best validation far from the last.

    The best depends on how many validations there were, and the mean of the last few on how late they were.
    """
    ended_runs = {v: {s: run for s, run in runs.items() if run.finished and not run.failure(goal)}
             for v, runs in pool.groups.items()}  # fmt: skip
    counts = {variant: {len(run.validations) for run in runs.values()} for variant, runs in ended_runs.items()}
    usual = _common(ended_runs[pool.base], lambda run: len(run.validations))
    result = []
    strange = {variant: numbers - {usual} for variant, numbers in counts.items() if usual and numbers - {usual}}
    if strange:
        many = join_words([f"{pool.labels[variant]} {max(numbers)}" for variant, numbers in strange.items()])
        sentence = f"unequal numbers of validations: {many} against {usual} of {pool.label}"
        if at == "best":
            sentence = f"{NOT_COMPARABLE}: {sentence}, and the best of more is better by chance (--at last)"
        result.append(Flag(sentence, at == "best", "validations", pool.refused(strange)))
    if at.startswith("last:"):
        averaged = {variant: runs for variant, runs in ended_runs.items() if runs}
        about = f"the validations of --at {at}, in shares of training"
        if pool.base in averaged:
            flags = _difference_flags(
                replace(pool, groups=averaged), about, lambda run: _shares_of_training(run, goal, at), join_words, True
            )
            result += [replace(flag, about="validations") for flag in flags]
    for variant, runs in ended_runs.items():
        name, gaps = pool.labels[variant], [_optimism(run, goal, lower_is_better) for run in runs.values()]
        large = [gap for gap in gaps if gap > TOLERANCE["optimism"]]
        if large and 2 * len(large) >= len(gaps):
            chance = "the last one decides" if at != "best" else "the best flatters it: --at last, or a test split"
            result.append(Flag(
                f"the best validation of {name} is better than its last by up to {max(large) * 100:.0f} %: "
                f"its training overfits or is noisy, and {chance}", False, "validations", (variant,),
            ))  # fmt: skip
    return result


def _shares_of_training(run: RunRecord, goal: str, at: str) -> tuple[str, ...]:
    """The share of its steps after which each validation was made whose mean ``at`` names: ``50 %``, ``100 %``."""
    steps = [number(validation.get("step")) for validation in run.validations if goal in validation]
    return tuple(f"{100 * step / (run.steps or 1):.0f} %" for step in steps[-int(at.partition(":")[2]) :])


def _optimism(run: RunRecord, goal: str, lower_is_better: bool) -> float:
    """How much better the best validation is than the last, relative to the last."""
    best, last = number(run.best.get(goal)), number(run.last.get(goal))
    gap = (last - best if lower_is_better else best - last) / abs(last) if last else 0.0
    return gap if gap == gap else 0.0


def _equality_flags(pool: Pool, varied: Collection[str] | None = None) -> list[Flag]:
    """Flags for budgets, data, units, goals and settings that must be equal in all runs."""
    kind = str(_common(pool.baseline, lambda run: run.setting.get("budget") or "tokens")).partition("=")[0]
    spent: dict[str, Callable[[RunRecord], float]] = {
        "tokens": lambda run: run.tokens,
        "flops": lambda run: run.tokens * number(run.cost.get("flops_per_token")),
        "time": lambda run: number(run.cost.get("seconds")),
    }
    unit = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds"}.get(kind, "tokens")
    result = _budget_flags(pool, unit, spent.get(kind, spent["tokens"]), TOLERANCE.get(kind, 0.001))
    result += _difference_flags(
        pool, "data", lambda run: (str(run.data.get("class")), str(run.data.get("fingerprint"))),
        lambda data: f"{data[0]} {data[1][:8]}", True,
    )  # fmt: skip
    result += _difference_flags(pool, "unit", lambda run: run.unit, str, True)
    result += _goal_flags(pool)
    for name in SETTINGS:
        if name == "max_steps" and (kind != "tokens" or result):
            continue  # implied by the budget
        result += _difference_flags(pool, name, _setting(name), str, False, varied)
    return result


def _goal_flags(pool: Pool) -> list[Flag]:
    """A fatal flag for variants without a metric of the baseline's, and one for metrics that not all others have."""
    usual, base = _first(pool.baseline), pool.base
    strangers = {name: runs for name, runs in pool.groups.items() if runs and not shared_goals([usual, *runs.values()])}
    others = {name: runs for name, runs in pool.groups.items() if name not in strangers}
    result = []
    for name, runs in strangers.items():
        result += _difference_flags(
            replace(pool, groups={base: pool.baseline, name: runs}), "goals",
            lambda run: (run.prediction, tuple(sorted(run.goals.items()))), _goals_text, True,
        )  # fmt: skip
    shared = shared_goals([usual, *(run for runs in others.values() for run in runs.values())])
    alone: dict[str, list[str]] = {}
    for name, runs in others.items():
        for goal in dict.fromkeys(goal for run in runs.values() for goal in run.goals):
            if goal not in shared:
                alone.setdefault(goal, []).append(pool.labels[name])
    if alone:
        metrics = join_words([f"{goal} of {join_words(owners)} alone" for goal, owners in alone.items()])
        sentence = f"different goals: {metrics}. What all have decides: {join_words([*shared])}"
        result.append(Flag(sentence, False, "goals", tuple(name for name in others if name != base)))
    return result


def _difference_flags(
    pool: Pool, about: str, value: Callable[[RunRecord], Hashable], display: Callable[[Any], str], fatal: bool,
    varied: Collection[str] | None = None,
) -> list[Flag]:  # fmt: skip
    """A flag per value that differs from the baseline's, unless a varied option explains it."""
    usual = _common(pool.baseline, value)
    against = next(run for run in pool.baseline.values() if value(run) == usual)
    strange = group_seeds(
        (value(run), variant, seed)
        for variant, seed, run in pool
        if value(run) != usual and (fatal or not _is_explained(about, [
            name for name in varied_options(run, against) if varied is None or varies(name, varied)
        ]))
    )  # fmt: skip
    result = []
    for strange_value, where in strange.items():
        sentence = f"{about}: {display(strange_value)} ({pool.describe(where)}) against {display(usual)} ({pool.label})"
        whole = f"{NOT_COMPARABLE}: {sentence}" if fatal else f"different {sentence}"
        result.append(Flag(whole, fatal, about, pool.refused(where)))
    return result


def _budget_flags(pool: Pool, about: str, spent: Callable[[RunRecord], float], tolerance: float) -> list[Flag]:
    """A flag per budget spent that differs from the baseline's at the same seed (padding varies with the seed)."""
    usual = _common(pool.baseline, spent, lambda run: not run.ended_early)
    if usual is None:
        return []
    amounts = {seed: spent(run) for seed, run in pool.baseline.items() if not run.ended_early}
    equal = {
        seed: amount for seed, amount in amounts.items() if tolerance * usual < abs(amount - usual) <= PADDING * usual
    }
    strange = group_seeds(
        ((spent(run), due), variant, seed)
        for variant, seed, run in pool
        for due in [equal.get(seed, usual)]
        if not run.ended_early and not abs(spent(run) - due) <= tolerance * due
    )
    result = []
    for (amount, due), where in strange.items():
        ours, theirs = format_apart(amount, due)
        sentence = f"{NOT_COMPARABLE}: {about} {ours} ({pool.describe(where)}) against {theirs} ({pool.label})"
        result.append(Flag(sentence, True, "tokens", pool.refused(where)))
    return result


def _cost_flags(pool: Pool) -> list[Flag]:
    """Flags for parameters beyond TOLERANCE, and for hardware or load that make speed and memory incomparable."""
    findings, usual = [], number(_first(pool.baseline).cost.get("parameters"))
    shared = shares_gpu(pool.groups)
    uneven = {} if shared else _speed_spread(pool.groups)
    spreads = [number(run.cost.get("spread")) for _, _, run in pool]
    widest = max((spread for spread in spreads if spread == spread), default=0.0)
    for variant, seed, run in pool:
        ours, spread = number(run.cost.get("parameters")), number(run.cost.get("spread"))
        if abs(ours - usual) > TOLERANCE["parameters"] * usual:
            amount = f"{abs(ours / usual - 1) * 100:.0f} %" if usual else format_short(ours)
            change = f"{amount} {'more' if ours > usual else 'fewer'}"
            sentence = f"{change} parameters than {pool.label} (--match params makes them equal)"
            findings.append((("parameters", sentence), variant, seed))
        within = spread > TOLERANCE["spread"] and not shared
        if within or variant in uneven:
            share, where = (widest, "within a run") if within else (max(uneven.values()), "between seeds")
            verb = "spread" if within else "differs"
            sentence = f"speed {verb} by up to {share * 100:.0f} % {where} (a busy machine?)"
            findings.append((("speed", sentence), variant, seed))
    consequence = "speed and memory are not comparable"
    odd = [flag for name in HARDWARE for flag in _difference_flags(pool, name, _setting(name), str, False)]
    sentence = f"{consequence}: runs shared a GPU (--resources gpus=…)"
    return [
        *pool.flags(findings),
        *([Flag(sentence, False, "speed")] if shared else []),
        *_work_flags(pool),
        *(Flag(f"{consequence}: {flag.sentence}", False, "speed", flag.variants) for flag in odd),
    ]


def shares_gpu(groups: Groups) -> bool:
    """Whether some runs shared a GPU with others, so that no speed and memory is compared."""
    return any(run.shares_gpu for runs in groups.values() for run in runs.values())


def _work_flags(pool: Pool) -> list[Flag]:
    """Flags for variants that do much more or less work per token, or are much slower or faster, than the baseline."""
    budget = str(_first(pool.baseline).setting.get("budget") or "").partition("=")[0]
    result, label = [], pool.label

    def median(runs: Mapping[int, RunRecord], name: str) -> float:
        return statistics.median([value for run in runs.values() if (value := number(run.cost.get(name))) > 0] or [0.0])

    for variant, runs in pool.groups.items():
        name = pool.labels[variant]
        work, usual_work = median(runs, "flops_per_token"), median(pool.baseline, "flops_per_token")
        if budget not in ("flops", "time") and work and usual_work and abs(work / usual_work - 1) > TOLERANCE["work"]:
            sentence = f"{name} takes {work / usual_work:.2g} times the FLOPs of {label}"
            result.append(Flag(f"{sentence} (--budget flops=… makes them equal)", False, "flops", (variant,)))
        if shares_gpu(pool.groups):
            continue
        speed, seeds = speed_ratio(runs, pool.baseline, len(pool.groups) - 1)
        if budget != "time" and speed.excludes(1.0) and abs(speed.value - 1) > TOLERANCE["speed"]:
            sentence = (
                f"{name} trains at {speed.value:.2g} times the speed of {label} "
                f"(95 % interval {speed.low:.2g} to {speed.high:.2g}, over {seeds} seeds)"
            )
            result.append(Flag(f"{sentence}: --budget time=… makes the time equal", False, "speed", (variant,)))
    return result


def speed_ratio(
    runs: Mapping[int, RunRecord], baseline: Mapping[int, RunRecord], variants: int = 1
) -> tuple[Interval, int]:
    """How many times as fast a variant trains as the baseline, by a t test on the logarithms at common seeds; and the
    number of these. The interval holds for all ``variants``.

    No interval with two seeds (NaN), and from 0 to infinity with one: the speed of a run is that of a moment.
    """
    pairs = [[number(run.cost.get("tokens_per_s")) for run in (runs[seed], baseline[seed])]
             for seed in runs if seed in baseline]  # fmt: skip
    logs = [[math.log(speed) for speed in pair] for pair in pairs if min(pair) > 0]
    if len(logs) < 2:
        return Interval(math.nan, 0.0, math.inf), len(logs)
    ours, theirs = zip(*logs, strict=True)
    pair = paired_t_test(ours, theirs, ALPHA / max(1, variants))
    return Interval(*map(math.exp, (pair.mean, pair.low, pair.high))), len(logs)


def _speed_spread(groups: Groups) -> dict[str, float]:
    """By variant, the fastest run's speed relative to the slowest, minus 1, where that is beyond the tolerance."""
    counts = {}
    for variant, runs in groups.items():
        rates = [rate for run in runs.values() if (rate := number(run.cost.get("tokens_per_s"))) > 0]
        if rates and max(rates) - min(rates) > 2 * TOLERANCE["spread"] * statistics.median(rates):
            counts[variant] = max(rates) / min(rates) - 1
    return counts


def _is_explained(about: str, names: Sequence[str]) -> bool:
    """Whether a difference in ``about`` is a varied option or a consequence of one."""
    last = {name.rpartition(".")[2] for name in names}
    data = about == "batch" and any(name.startswith("data.") for name in names)
    return data or about in last or any(name in last for name in DEPENDS_ON.get(about, ()))


def _common(
    runs: Mapping[int, RunRecord], value: Callable[[RunRecord], Any], where: Callable[[RunRecord], bool] | None = None
) -> Any:
    """The most frequent value among a variant's runs that satisfy ``where``, the first of equals; None without one."""
    counts = Counter(value(run) for run in runs.values() if where is None or where(run))
    return counts.most_common(1)[0][0] if counts else None


def _first(runs: Mapping[int, RunRecord]) -> RunRecord:
    return next(iter(runs.values()))


def _setting(name: str) -> Callable[[RunRecord], str]:
    def text(run: RunRecord) -> str:
        value = run.setting.get(name)
        return ", ".join(f"{k}={v}" for k, v in sorted(value.items())) if isinstance(value, dict) else str(value)

    return text


def _goals_text(value: tuple[str, tuple[tuple[str, str], ...]]) -> str:
    prediction, goals = value
    return join_words([f"{name} ({goal})" for name, goal in goals]) + f" of {prediction}"


# components of tensor names that depend on an option; those of every other option contain its own name
SHARED_SETTINGS = {
    "norm": ("norm", "behind"), "block": ("norm", "behind"), "ffn": ("ffn.part",), "hidden": ("ffn.part",),
    **dict.fromkeys(("attention", "backend", "heads", "window"), ("attend.part", "cross.part")),
    "vocab_size": ("embedding",), "max_length": ("position",),
}  # fmt: skip
ALL = ("dim",)  # options that change the shape of every tensor


def pair_flags(pool: Pool) -> list[Flag]:
    """Flags for runs whose batches or shared initial tensors differ from the baseline's run of the same seed."""
    findings = []
    for variant, seed, run in pool:
        against = pool.baseline.get(seed)
        if against is None or variant == pool.base:
            continue
        if since := other_batches(run, against):
            sentence = f"other batches than {pool.label} {since}: pairing by seed is weaker"
            findings.append((("batches", sentence), variant, seed))
        if differing := changed_tensors(run, against):
            description = f"{len(differing)} shared initial tensor{'s' * (len(differing) > 1)}"
            sentence = f"{description} not as in {pool.label}, {join_words(differing, 3)}"
            findings.append((("start", sentence), variant, seed))
    return pool.flags(findings)


def varied_options(run: RunRecord, against: RunRecord) -> list[str]:
    """The options in which two runs differ."""
    names = dict.fromkeys([*against.choices, *run.choices])
    return [name for name in names if not chosen_alike(run.choices.get(name), against.choices.get(name))]


def changed_tensors(run: RunRecord, against: RunRecord) -> list[str]:
    """Names of initial tensors that both runs have and that differ, except those of varied parts."""
    choices = [name.rpartition(".")[2] for name in varied_options(run, against)]
    if any(choice in ALL for choice in choices):
        return []
    pieces = [piece for choice in choices for piece in SHARED_SETTINGS.get(choice, (choice,))]
    return [
        name
        for name, digest in run.start.items()
        if against.start.get(name, digest) != digest and not any(f".{piece}." in f".{name}." for piece in pieces)
    ]


def other_batches(run: RunRecord, against: RunRecord) -> str:
    """When the batches of two runs of a seed begin to differ: "from the start" or "later on".

    Empty if they do not, or if varied data options or batch sizes explain it.
    """
    if any(name.startswith(("data.", "tune.start")) for name in varied_options(run, against)):  # images as it had them
        return ""
    if run.setting.get("batch") != against.setting.get("batch"):
        return ""  # flagged as a setting
    ours, theirs = run.batches, against.batches
    if any(a != b for a, b in zip(ours.get("first", ()), theirs.get("first", ()), strict=False)):
        return "from the start"
    same_count = ours.get("count") == theirs.get("count")
    return "later on" if same_count and ours.get("digest") != theirs.get("digest") else ""
