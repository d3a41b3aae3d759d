"""What makes runs incomparable, by name: fatal flags take a verdict away, the others stand beside it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from zoo.compare.equal_start import pair_flags, varied_options
from zoo.compare.number_format import apart, listed
from zoo.compare.run_records import Ledger, grouped, number, twins
from zoo.compare.run_warnings import Findings, Flag, Groups, named_flags
from zoo.compare.variant_names import concise, plainest

HARDWARE = ("device", "machine", "threads", "processes")
TOLERANCE = {"parameters": 0.05, "spread": 0.10, "tokens": 0.001, "flops": 0.01, "time": 0.05}
PADDING = 0.05  # by how much the baseline's tokens may differ between seeds
REFUSED = "these runs are not comparable"
# what else a setting follows from: where such a choice is what varies, the table shows it and no flag repeats it
FOLLOWS = {
    "optimizer": ("lr", "weight_decay"), "schedule": ("warmup", "floor", "lr"), "batch": ("batch_size", "max_length"),
    "max_steps": ("batch_size",),
}  # fmt: skip


def default_baseline(groups: Iterable[str]) -> str:
    """The variant that is named "default", or else the one nearest to it, the first of equals."""
    return plainest(groups)


def flags(ledgers: Iterable[Ledger], baseline: str | None = None) -> list[Flag]:
    """Everything that is not equal and should be, fatal ones first; differences are told against the baseline's runs.

    Fatal: unequal budgets, data, units and goals. A diverged run spent what it could, so its tokens do not count.
    """
    everything = list(ledgers)
    groups = grouped(everything)
    result = [Flag(f"{each.problem}: it does not count", about="reading") for each in everything if each.problem]
    result += [
        Flag(f"{each.path} is a second {each.name}: it does not count", about="reading") for each in twins(everything)
    ]
    if not groups:
        return result
    base = baseline if baseline in groups else default_baseline(groups)
    waiting = Findings(groups)
    for variant, runs in groups.items():
        for run in runs.values():
            if not run.finished and not runs_ended(run):
                waiting.add("unfinished", "not finished and not counted", run, variant)
    result += waiting.flags()
    counted = {
        name: {s: run for s, run in runs.items() if run.finished or runs_ended(run)} for name, runs in groups.items()
    }
    if counted[base]:
        result += [*_equal(counted, base), *pair_flags(counted, base), *_costs(counted, base)]
    return sorted(result, key=lambda flag: not flag.fatal)


def runs_ended(run: Ledger) -> bool:
    """Whether a run came to its end by diverging, whatever figure shows it."""
    return any(run.lost(goal) for goal in run.goals)


def _equal(groups: Groups, base: str) -> list[Flag]:
    """What must be the same in all runs, whatever their seed."""
    kind = str(_common(groups[base], lambda run: run.setting.get("budget") or "tokens")).partition("=")[0]
    spent: dict[str, Callable[[Ledger], float]] = {
        "tokens": lambda run: run.tokens,
        "flops": lambda run: run.tokens * number(run.cost.get("flops_per_token")),
        "time": lambda run: number(run.cost.get("seconds")),
    }
    unit = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds"}.get(kind, "tokens")
    result = _budget(groups, base, unit, spent.get(kind, spent["tokens"]), TOLERANCE.get(kind, 0.001))
    result += _odd(
        groups, base, "data", lambda run: (str(run.data.get("class")), str(run.data.get("fingerprint"))), _data, True
    )
    result += _odd(groups, base, "unit", lambda run: run.unit, str, True)
    result += _odd(groups, base, "goals", lambda run: tuple(sorted(run.goals.items())), _goals, True)
    for name in ("precision", "accumulate", "optimizer", "schedule", "batch", "max_steps", "torch", "python", "zoo"):
        if name == "max_steps" and (kind != "tokens" or result):
            continue  # it says the same as the budget
        result += _odd(groups, base, name, _setting(name), str, False)
    return result


def _odd(
    groups: Groups,
    base: str,
    about: str,
    value: Callable[[Ledger], Hashable],
    display: Callable[[Any], str],
    fatal: bool,
) -> list[Flag]:
    """A flag per value that is not the baseline's, where no choice that varies explains it."""
    usual = _common(groups[base], value)
    against = next(run for run in groups[base].values() if value(run) == usual)
    strange: dict[Hashable, dict[str, list[int]]] = {}
    for variant, runs in groups.items():
        for seed, run in runs.items():
            if value(run) != usual and (fatal or not _explained(about, varied_options(run, against))):
                strange.setdefault(value(run), {}).setdefault(variant, []).append(seed)
    result = []
    for other, where in strange.items():
        strangers, baseline = named_flags(groups, where), concise(groups)[base]
        sentence = f"{about}: {display(other)} ({strangers}) against {display(usual)} ({baseline})"
        concerned = () if base in where else tuple(where)
        result.append(Flag(f"{REFUSED}: {sentence}" if fatal else f"different {sentence}", fatal, about, concerned))
    return result


def _budget(groups: Groups, base: str, about: str, spent: Callable[[Ledger], float], tolerance: float) -> list[Flag]:
    """A flag per amount that is not the baseline's of the same seed: padded batches hold more with some seeds."""
    usual = _common(groups[base], spent, lambda run: not runs_ended(run))
    if usual is None:
        return []
    amounts = {seed: spent(run) for seed, run in groups[base].items() if not runs_ended(run)}
    equal = {seed: amount for seed, amount in amounts.items() if tolerance < abs(amount / usual - 1) <= PADDING}
    strange: dict[tuple[float, float], dict[str, list[int]]] = {}
    for variant, runs in groups.items():
        for seed, run in runs.items():
            due = equal.get(seed, usual)
            if not runs_ended(run) and not abs(spent(run) - due) <= tolerance * due:
                strange.setdefault((spent(run), due), {}).setdefault(variant, []).append(seed)
    result = []
    for (amount, due), where in strange.items():
        ours, theirs = apart(amount, due)
        sentence = (
            f"{REFUSED}: {about} {ours} ({named_flags(groups, where)}) against {theirs} ({concise(groups)[base]})"
        )
        result.append(Flag(sentence, True, "tokens", () if base in where else tuple(where)))
    return result


def _costs(groups: Groups, base: str) -> list[Flag]:
    """Sizes beyond TOLERANCE, and what makes seconds and tokens per second incomparable, and nothing else."""
    findings, usual = Findings(groups), number(_first(groups[base]).cost.get("parameters"))
    shown, uneven = concise(groups)[base], _uneven(groups)
    spreads = [number(run.cost.get("spread")) for runs in groups.values() for run in runs.values()]
    widest = max((spread for spread in spreads if spread == spread), default=0.0)
    for variant, runs in groups.items():
        for run in runs.values():
            ours, spread = number(run.cost.get("parameters")), number(run.cost.get("spread"))
            if abs(ours - usual) > TOLERANCE["parameters"] * usual:
                change = f"{abs(ours / usual - 1) * 100:.0f} % {'more' if ours > usual else 'fewer'}"
                findings.add(
                    "parameters", f"{change} parameters than {shown} (--match params makes them equal)", run, variant
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
    odd = [flag for name in HARDWARE for flag in _odd(groups, base, name, _setting(name), str, False)]
    return [
        *findings.flags(),
        *(Flag(f"{consequence}: {flag.sentence}", False, "speed", flag.variants) for flag in odd),
    ]


def _uneven(groups: Groups) -> dict[str, float]:
    """By how much the fastest run of a variant is faster than its slowest, where that is beyond the tolerance."""
    counts = {}
    for variant, runs in groups.items():
        rates = [rate for run in runs.values() if (rate := number(run.cost.get("tokens_per_s"))) > 0]
        if rates and max(rates) - min(rates) > 2 * TOLERANCE["spread"] * statistics.median(rates):
            counts[variant] = max(rates) / min(rates) - 1
    return counts


def _explained(about: str, names: Sequence[str]) -> bool:
    """Whether a difference is the varied option, or follows from it."""
    last = {name.rpartition(".")[2] for name in names}
    data = about == "batch" and any(name.startswith("data.") for name in names)
    return data or about in last or any(name in last for name in FOLLOWS.get(about, ()))


def _common(
    runs: Mapping[int, Ledger], value: Callable[[Ledger], Any], where: Callable[[Ledger], bool] | None = None
) -> Any:
    """The value that most of a variant's runs have, the first of equals."""
    counts = Counter(value(run) for run in runs.values() if where is None or where(run))
    return counts.most_common(1)[0][0] if counts else None


def _first(runs: Mapping[int, Ledger]) -> Ledger:
    return next(iter(runs.values()))


def _setting(name: str) -> Callable[[Ledger], str]:
    return lambda run: _told(run.setting.get(name))


def _told(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(value.items())) if isinstance(value, dict) else str(value)


def _data(value: tuple[str, str]) -> str:
    return f"{value[0]} {value[1][:8]}"


def _goals(value: tuple[tuple[str, str], ...]) -> str:
    return listed([f"{name} ({goal})" for name, goal in value])
