"""What a comparison has to say about its runs beside their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.number_format import listed
from zoo.compare.run_records import Ledger
from zoo.compare.variant_names import concise

Groups = Mapping[str, Mapping[int, Ledger]]
Where = dict[str, list[int]]  # variant → seeds


@dataclass(frozen=True)
class Flag:
    """What is not comparable, in a sentence; ``fatal`` withholds the verdicts of ``variants``, of all where empty.

    ``about`` is a word: "tokens", "data", "speed" and so on.
    """

    sentence: str
    fatal: bool = False
    about: str = ""
    variants: tuple[str, ...] = ()

    def refuses(self, variant: str) -> bool:
        """Whether this flag takes the verdict on a variant away."""
        return self.fatal and (not self.variants or variant in self.variants)


class Findings:
    """Collects what was found where, so that what many runs share is said once."""

    def __init__(self, groups: Groups):
        self.groups = groups
        self.found: dict[tuple[str, str], Where] = {}

    def add(self, about: str, what: str, run: Ledger, variant: str) -> None:
        """``what`` is true of one run."""
        self.found.setdefault((about, what), {}).setdefault(variant, []).append(run.seed)

    def flags(self) -> list[Flag]:
        """A flag per finding, "what: where"."""
        return [
            Flag(f"{what}: {named_flags(self.groups, where)}", False, about, tuple(where))
            for (about, what), where in self.found.items()
        ]


def named_flags(groups: Groups, where: Mapping[str, Sequence[int]]) -> str:
    """Variants, with seeds where not all of a variant's are meant."""
    shown = concise(groups)
    return listed([shown[v] if len(s) == len(groups[v]) else f"{shown[v]} {list_seeds(s)}" for v, s in where.items()])


def list_seeds(seeds: Iterable[int]) -> str:
    """``s1 s2``."""
    return " ".join(f"s{seed}" for seed in seeds)
