"""Data modules for checks: of few samples, and shared by the checks of one part, of which one builds up to four."""

import inspect
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from sampled import SampledCheck
from zoo_text.data.librarychat import LibraryDialogues
from zoo_text.data.roles import PythonRoles
from zoo_text.data.sourcetopics import SourceTopics

import zoo.conformance.contracts.data
from zoo import registry
from zoo.conformance.subject import DataSubject
from zoo.data import library_files, stdlib
from zoo.data.data import Data

BUILD = DataSubject.build
# defaults of the default run, with which a module loads in a tenth of the time; campaigns have the modules' own
MOST = 400  # samples of a split that every_sample_loads loads; campaigns load zoo.conformance.contracts.data.MOST
EVERY_FILE = 4  # of the standard library's: its other files are left out
FEW_SAMPLES: dict[str | type[Data], dict[str, Any]] = {
    LibraryDialogues: {"functions": 100, "size": 2000},
    PythonRoles: {"pieces": 400},
    SourceTopics: {"pieces": 60},
    "MultilingualPhrasebook": {"size": 4000},
    "Phrasebook": {"size": 4000},
}


@contextmanager
def few_samples(check: SampledCheck) -> Iterator[None]:
    """Within, modules of FEW_SAMPLES have these defaults, and the check tries every third option, from its turn on.

    The standard library, which other modules read, is every EVERY_FILE-th file of it. Most options are those of several
    modules, so that each is tried in some of them.
    """
    options_of, sources = DataSubject.other_options, stdlib.library_sources
    with pytest.MonkeyPatch.context() as patch:
        for module, least in ((library_files, "LEAST_FILES"), (stdlib, "LEAST_TEXTS")):
            patch.setattr(module, "library_sources", lambda library: sources(library)[::EVERY_FILE])
            patch.setattr(module, least, getattr(module, least) // EVERY_FILE)
        if check.name == "every_sample_loads":
            patch.setattr(zoo.conformance.contracts.data, "MOST", MOST)
        patch.setattr(
            DataSubject, "other_options", lambda subject: itertools.islice(options_of(subject), check.turn % 3, None, 3)
        )
        for module, options in FEW_SAMPLES.items():
            init = inspect.unwrap((registry.get("data", module) if isinstance(module, str) else module).__init__)
            parameters = [one for one in inspect.signature(init).parameters.values() if one.default is not one.empty]
            assert set(options) <= {one.name for one in parameters}, module
            patch.setattr(init, "__defaults__", tuple(options.get(one.name, one.default) for one in parameters))
        yield


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
