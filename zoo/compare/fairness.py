"""Checks that the runs of a comparison are comparable: equal budgets, data, batches, initial weights and settings.

Each difference becomes a flag; a fatal flag withholds the verdict, the others are printed below the table.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.compare.number_format import format_apart, join_words
from zoo.compare.run_records import RunRecord, duplicate_runs, group_by_variant, number, shared_goals
from zoo.compare.variant_names import closest_to_recipe, short_names

Groups = Mapping[str, Mapping[int, RunRecord]]
Where = dict[str, list[int]]  # variant → seeds


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


class Findings:
    """Collects differences by run, so that one flag covers all runs with the same difference."""

    def __init__(self, groups: Groups):
        self.groups = groups
        self.seeds_by_finding: dict[tuple[str, str], Where] = {}

    def add(self, about: str, what: str, run: RunRecord, variant: str) -> None:
        """Record that the sentence ``what`` is true of one run."""
        self.seeds_by_finding.setdefault((about, what), {}).setdefault(variant, []).append(run.seed)

    def flags(self) -> list[Flag]:
        """A flag per difference: "sentence: runs"."""
        return [
            Flag(f"{what}: {describe_runs(self.groups, where)}", False, about, tuple(where))
            for (about, what), where in self.seeds_by_finding.items()
        ]


def describe_runs(groups: Groups, where: Mapping[str, Sequence[int]]) -> str:
    """The variants of ``where``, with seeds unless all seeds of the variant are concerned."""
    labels = short_names(groups)
    return join_words(
        [labels[v] if len(s) == len(groups[v]) else f"{labels[v]} {list_seeds(s)}" for v, s in where.items()]
    )


def list_seeds(seeds: Iterable[int]) -> str:
    """``s1 s2``."""
    return " ".join(f"s{seed}" for seed in seeds)


HARDWARE = ("device", "machine", "threads", "processes")
TOLERANCE = {"parameters": 0.05, "spread": 0.10, "tokens": 0.001, "flops": 0.01, "time": 0.05}
PADDING = 0.05  # relative difference of the baseline's tokens between seeds, which padding can cause
NOT_COMPARABLE = "these runs are not comparable"
# options that a setting depends on: if one of them is varied on purpose, a different setting needs no flag
DEPENDS_ON = {
    "optimizer": ("lr", "weight_decay"), "schedule": ("warmup", "floor", "lr"), "batch": ("batch_size", "max_length"),
    "max_steps": ("batch_size",),
}  # fmt: skip


def default_baseline(groups: Iterable[str]) -> str:
    """The variant named "default", or else the first of those with the fewest options that differ from it."""
    return closest_to_recipe(groups)


def find_flags(ledgers: Iterable[RunRecord], baseline: str | None = None) -> list[Flag]:
    """Every difference from the baseline's runs that makes runs less comparable, fatal ones first.

    Fatal: unequal budgets, data, units and goals. The tokens of a diverged run are not checked against the budget.
    """
    everything = list(ledgers)
    groups = group_by_variant(everything)
    result = [Flag(f"{each.problem}: it does not count", about="reading") for each in everything if each.problem]
    result += [
        Flag(f"{each.path} is a second {each.name}: it does not count", about="reading")
        for each in duplicate_runs(everything)
    ]
    if not groups:
        return result
    base = baseline if baseline in groups else default_baseline(groups)
    waiting = Findings(groups)
    for variant, runs in groups.items():
        for run in runs.values():
            if not run.finished and not has_diverged(run):
                waiting.add("unfinished", "not finished and not counted", run, variant)
    result += waiting.flags()
    completed = {
        name: {s: run for s, run in runs.items() if run.finished or has_diverged(run)} for name, runs in groups.items()
    }
    if completed[base]:
        result += [*_equality_flags(completed, base), *pair_flags(completed, base), *_cost_flags(completed, base)]
    return sorted(result, key=lambda flag: not flag.fatal)


def has_diverged(run: RunRecord) -> bool:
    """Whether training diverged according to any goal."""
    return any(run.diverged_on(goal) for goal in run.goals)


def _equality_flags(groups: Groups, base: str) -> list[Flag]:
    """Flags for budgets, data, units, goals and settings that must be equal in all runs."""
    kind = str(_common(groups[base], lambda run: run.setting.get("budget") or "tokens")).partition("=")[0]
    spent: dict[str, Callable[[RunRecord], float]] = {
        "tokens": lambda run: run.tokens,
        "flops": lambda run: run.tokens * number(run.cost.get("flops_per_token")),
        "time": lambda run: number(run.cost.get("seconds")),
    }
    unit = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds"}.get(kind, "tokens")
    result = _budget_flags(groups, base, unit, spent.get(kind, spent["tokens"]), TOLERANCE.get(kind, 0.001))
    result += _difference_flags(
        groups,
        base,
        "data",
        lambda run: (str(run.data.get("class")), str(run.data.get("fingerprint"))),
        _data_text,
        True,
    )
    result += _difference_flags(groups, base, "unit", lambda run: run.unit, str, True)
    result += _goal_flags(groups, base)
    for name in ("precision", "accumulate", "optimizer", "schedule", "batch", "max_steps", "torch", "python", "zoo"):
        if name == "max_steps" and (kind != "tokens" or result):
            continue  # implied by the budget
        result += _difference_flags(groups, base, name, _setting(name), str, False)
    return result


def _goal_flags(groups: Groups, base: str) -> list[Flag]:
    """A fatal flag for variants without a metric of the baseline's, and one for metrics that not all others have."""
    usual = _first(groups[base])
    strangers = {name: runs for name, runs in groups.items() if runs and not shared_goals([usual, *runs.values()])}
    others = {name: runs for name, runs in groups.items() if name not in strangers}
    result = [
        flag
        for name, runs in strangers.items()
        for flag in _difference_flags({base: groups[base], name: runs}, base, "goals", _goals_of, _goals_text, True)
    ]
    comparable = [run for runs in others.values() for run in runs.values()]
    shared, labels = shared_goals([usual, *comparable]), short_names(groups)
    alone: dict[str, list[str]] = {}
    for name, runs in others.items():
        for goal in dict.fromkeys(goal for run in runs.values() for goal in run.goals):
            if goal not in shared:
                alone.setdefault(goal, []).append(labels[name])
    if alone:
        metrics = join_words([f"{goal} of {join_words(owners)} alone" for goal, owners in alone.items()])
        sentence = f"different goals: {metrics}. What all have decides: {join_words([*shared])}"
        result.append(Flag(sentence, False, "goals", tuple(name for name in others if name != base)))
    return result


def _goals_of(run: RunRecord) -> tuple[str, tuple[tuple[str, str], ...]]:
    return run.prediction, tuple(sorted(run.goals.items()))


def _difference_flags(
    groups: Groups,
    base: str,
    about: str,
    value: Callable[[RunRecord], Hashable],
    display: Callable[[Any], str],
    fatal: bool,
) -> list[Flag]:
    """A flag per value that differs from the baseline's, unless a varied option explains it."""
    usual = _common(groups[base], value)
    against = next(run for run in groups[base].values() if value(run) == usual)
    strange: dict[Hashable, dict[str, list[int]]] = {}
    for variant, runs in groups.items():
        for seed, run in runs.items():
            if value(run) != usual and (fatal or not _is_explained(about, varied_options(run, against))):
                strange.setdefault(value(run), {}).setdefault(variant, []).append(seed)
    result = []
    for other, where in strange.items():
        strangers, baseline = describe_runs(groups, where), short_names(groups)[base]
        sentence = f"{about}: {display(other)} ({strangers}) against {display(usual)} ({baseline})"
        concerned = () if base in where else tuple(where)
        result.append(
            Flag(f"{NOT_COMPARABLE}: {sentence}" if fatal else f"different {sentence}", fatal, about, concerned)
        )
    return result


def _budget_flags(
    groups: Groups, base: str, about: str, spent: Callable[[RunRecord], float], tolerance: float
) -> list[Flag]:
    """A flag per budget spent that differs from the baseline's at the same seed (padding varies with the seed)."""
    usual = _common(groups[base], spent, lambda run: not has_diverged(run))
    if usual is None:
        return []
    amounts = {seed: spent(run) for seed, run in groups[base].items() if not has_diverged(run)}
    equal = {seed: amount for seed, amount in amounts.items() if tolerance < abs(amount / usual - 1) <= PADDING}
    strange: dict[tuple[float, float], dict[str, list[int]]] = {}
    for variant, runs in groups.items():
        for seed, run in runs.items():
            due = equal.get(seed, usual)
            if not has_diverged(run) and not abs(spent(run) - due) <= tolerance * due:
                strange.setdefault((spent(run), due), {}).setdefault(variant, []).append(seed)
    result = []
    for (amount, due), where in strange.items():
        ours, theirs = format_apart(amount, due)
        label = short_names(groups)[base]
        sentence = f"{NOT_COMPARABLE}: {about} {ours} ({describe_runs(groups, where)}) against {theirs} ({label})"
        result.append(Flag(sentence, True, "tokens", () if base in where else tuple(where)))
    return result


def _cost_flags(groups: Groups, base: str) -> list[Flag]:
    """Flags for parameters beyond TOLERANCE, and for hardware or load that make speed and memory incomparable."""
    findings, usual = Findings(groups), number(_first(groups[base]).cost.get("parameters"))
    label, uneven = short_names(groups)[base], _speed_spread(groups)
    spreads = [number(run.cost.get("spread")) for runs in groups.values() for run in runs.values()]
    widest = max((spread for spread in spreads if spread == spread), default=0.0)
    for variant, runs in groups.items():
        for run in runs.values():
            ours, spread = number(run.cost.get("parameters")), number(run.cost.get("spread"))
            if abs(ours - usual) > TOLERANCE["parameters"] * usual:
                change = f"{abs(ours / usual - 1) * 100:.0f} % {'more' if ours > usual else 'fewer'}"
                findings.add(
                    "parameters", f"{change} parameters than {label} (--match params makes them equal)", run, variant
                )
            if spread > TOLERANCE["spread"]:
                consequence = f"speed spread by up to {widest * 100:.0f} % within a run (a busy machine?)"
                findings.add("speed", consequence, run, variant)
            elif variant in uneven:
                consequence = (
                    f"speed differs by up to {max(uneven.values()) * 100:.0f} % between seeds (a busy machine?)"
                )
                findings.add("speed", consequence, run, variant)
    consequence = "speed and memory are not comparable"
    odd = [flag for name in HARDWARE for flag in _difference_flags(groups, base, name, _setting(name), str, False)]
    return [
        *findings.flags(),
        *(Flag(f"{consequence}: {flag.sentence}", False, "speed", flag.variants) for flag in odd),
    ]


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
    return lambda run: _setting_text(run.setting.get(name))


def _setting_text(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(value.items())) if isinstance(value, dict) else str(value)


def _data_text(value: tuple[str, str]) -> str:
    return f"{value[0]} {value[1][:8]}"


def _goals_text(value: tuple[str, tuple[tuple[str, str], ...]]) -> str:
    prediction, goals = value
    return join_words([f"{name} ({goal})" for name, goal in goals]) + (f" of {prediction}" if prediction else "")


# components of tensor names that depend on an option; those of every other option contain its own name
SHARED_SETTINGS = {
    "norm": ("norm", "behind"), "block": ("norm", "behind"), "ffn": ("ffn.part",), "hidden": ("ffn.part",),
    **dict.fromkeys(("attention", "backend", "heads", "window"), ("attend.part", "cross.part")),
    "vocab_size": ("embedding",), "max_length": ("position",),
}  # fmt: skip
ALL = ("dim",)  # options that change the shape of every tensor


def pair_flags(groups: Groups, base: str) -> list[Flag]:
    """Flags for runs whose batches or shared initial tensors differ from the baseline's run of the same seed."""
    findings, label = Findings(groups), short_names(groups)[base]
    for variant, runs in groups.items():
        for seed, run in runs.items():
            for name, description in (("batches", "batches"), ("start", "initial tensors")):
                if not getattr(run, name):
                    findings.add(
                        name, f"no record of its {description}, so whether they are the same is not known", run, variant
                    )
            against = groups[base].get(seed)
            if against is None or variant == base:
                continue
            if since := other_batches(run, against):
                findings.add("batches", f"other batches than {label} {since}: pairing by seed is weaker", run, variant)
            if differing := changed_tensors(run, against):
                description = f"{len(differing)} shared initial tensor{'s' * (len(differing) > 1)}"
                findings.add("start", f"{description} not as in {label}, {join_words(differing, 3)}", run, variant)
    return findings.flags()


def varied_options(run: RunRecord, other: RunRecord) -> list[str]:
    """The options in which two runs differ."""
    names = dict.fromkeys([*other.choices, *run.choices])
    return [name for name in names if run.choices.get(name) != other.choices.get(name)]


def changed_tensors(run: RunRecord, other: RunRecord) -> list[str]:
    """Names of initial tensors that both runs have and that differ, except those of varied parts."""
    choices = [name.rpartition(".")[2] for name in varied_options(run, other)]
    if any(choice in ALL for choice in choices):
        return []
    pieces = [piece for choice in choices for piece in SHARED_SETTINGS.get(choice, (choice,))]
    return [
        name
        for name, digest in run.start.items()
        if other.start.get(name, digest) != digest and not any(f".{piece}." in f".{name}." for piece in pieces)
    ]


def other_batches(run: RunRecord, other: RunRecord) -> str:
    """When the batches of two runs of a seed begin to differ: "from the start" or "later on".

    Empty if they do not, or if varied data options or batch sizes explain it.
    """
    if any(name.startswith("data.") for name in varied_options(run, other)):
        return ""
    if run.setting.get("batch") != other.setting.get("batch"):
        return ""  # flagged as a setting
    ours, theirs = run.batches, other.batches
    if any(a != b for a, b in zip(ours.get("first", ()), theirs.get("first", ()), strict=False)):
        return "from the start"
    same_count = ours.get("count") == theirs.get("count")
    return "later on" if same_count and ours.get("digest") != theirs.get("digest") else ""
