"""Whether two runs of one seed started from the same weights and saw the same batches, as the tool promises."""

from __future__ import annotations

from zoo.compare.number_format import listed
from zoo.compare.run_records import Ledger
from zoo.compare.run_warnings import Findings, Flag, Groups
from zoo.compare.variant_names import concise

# the tensors of a varied part, by the components of their names; every other choice owns those that bear its name
SHARED_SETTINGS = {
    "norm": ("norm", "behind"), "block": ("norm", "behind"), "ffn": ("ffn.part",), "hidden": ("ffn.part",),
    **dict.fromkeys(("attention", "backend", "heads", "window"), ("attend.part", "cross.part")),
    "vocab_size": ("embedding",), "max_length": ("position",),
}  # fmt: skip
ALL = ("dim",)  # choices that change the shape of every tensor


def pair_flags(groups: Groups, base: str) -> list[Flag]:
    """Flags for runs whose batches or initial tensors are not those of the baseline's run of the same seed."""
    findings, shown = Findings(groups), concise(groups)[base]
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
                findings.add("batches", f"other batches than {shown} {since}: pairing by seed is weaker", run, variant)
            if changed := changed_tensors(run, against):
                description = f"{len(changed)} shared initial tensor{'s' * (len(changed) > 1)}"
                findings.add("start", f"{description} not as in {shown}, {listed(changed, 3)}", run, variant)
    return findings.flags()


def varied_options(run: Ledger, other: Ledger) -> list[str]:
    """The choices in which two runs differ."""
    names = dict.fromkeys([*other.choices, *run.choices])
    return [name for name in names if run.choices.get(name) != other.choices.get(name)]


def changed_tensors(run: Ledger, other: Ledger) -> list[str]:
    """Initial tensors that both runs have and that differ, those of parts that vary aside."""
    choices = [name.rpartition(".")[2] for name in varied_options(run, other)]
    if any(choice in ALL for choice in choices):
        return []
    pieces = [piece for choice in choices for piece in SHARED_SETTINGS.get(choice, (choice,))]
    return [
        name
        for name, digest in run.start.items()
        if other.start.get(name, digest) != digest and not any(f".{piece}." in f".{name}." for piece in pieces)
    ]


def other_batches(run: Ledger, other: Ledger) -> str:
    """Since when two runs of a seed saw other batches, where no choice of data says why; nothing where they did not."""
    if any(name.startswith("data.") for name in varied_options(run, other)):
        return ""
    if run.setting.get("batch") != other.setting.get("batch"):
        return ""  # flagged as a setting
    ours, theirs = run.batches, other.batches
    if any(a != b for a, b in zip(ours.get("first", ()), theirs.get("first", ()), strict=False)):
        return "from the start"
    same_count = ours.get("count") == theirs.get("count")
    return "later on" if same_count and ours.get("digest") != theirs.get("digest") else ""
