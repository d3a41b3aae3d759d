"""Data modules that the checks of one part share, since loading one may take seconds, and a check builds up to four."""

from collections import Counter
from typing import Any

import torch

from zoo.conformance.subject import DataSubject
from zoo.data.data import Data

BUILD = DataSubject.build


class SharedData:
    """In the place of DataSubject.build: the n-th data module that a check builds is that of every check of the part.

    Two that one check builds are two objects, each loaded on its own, from another state of torch's random numbers:
    what a check compares is as far apart as if it had built both itself. Those with other options are not shared.
    """

    def __init__(self) -> None:
        self.subject: DataSubject | None = None
        self.modules: dict[int | None, list[Data]] = {}  # by seed
        self.counts: Counter[int | None] = Counter()

    def begin_check(self) -> None:
        """A check begins with the first one again."""
        self.counts.clear()

    def build(self, subject: DataSubject, **options: Any) -> Data:
        """The data module of a subject, loaded."""
        if subject.options or set(options) - {"seed"}:
            return BUILD(subject, **options)
        if subject is not self.subject:
            self.subject, self.modules = subject, {}
        seed = options.get("seed")
        members, number = self.modules.setdefault(seed, []), self.counts[seed]
        self.counts[seed] += 1
        if number == len(members):
            with torch.random.fork_rng([]):
                torch.manual_seed(0)  # as each check begins; data of a text have the text in the order of this seed
                torch.rand(number)
                members.append(BUILD(subject, **options))
        return members[number]
