"""Every built-in part, and every part of zoo-text, keeps the contract of its kind.

The default run samples the situations of each check, has slow checks of every third part, leaves the compiler out,
and loads data of few samples. A campaign (``pytest -m campaign``) runs the whole contract, as `zoo check KIND` does.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from sampled import Situations, in_turn, is_for, kinds_of_situations, sampled_checks
from shared_data import SharedData, few_samples

from zoo import registry
from zoo.conformance import checks, token_checks
from zoo.conformance.contract import SUBJECTS
from zoo.conformance.subject import DataSubject
from zoo.conformance.token_checks import ready_for

TEXT = tomllib.loads((Path(__file__).parents[2] / "plugins/zoo-text/pyproject.toml").read_text("utf-8"))["project"]
TEXT_PARTS = [
    registry.Part(group.removeprefix("zoo."), name, target, TEXT["name"], TEXT["version"])
    for group, points in TEXT["entry-points"].items()
    for name, target in points.items()
]
PARTS = [
    (kind, number, part, part.load())
    for kind in SUBJECTS
    for number, part in enumerate(
        one for one in (*registry.parts(kind), *TEXT_PARTS) if one.kind == kind and (one.builtin or one in TEXT_PARTS)
    )
]
COUNTS = Counter(kind for kind, *_ in PARTS)
SAMPLED = [
    pytest.param(check, id=f"{kind}-{part.name}-{check}")
    for kind, number, part, loaded in PARTS
    for check in sampled_checks(loaded, number)
    if is_for(check, number) and in_turn(check, number, COUNTS[kind])
]
WHOLE = [
    pytest.param(check, id=f"{kind}-{part.name}-{check}") for kind, _, part, loaded in PARTS for check in checks(loaded)
]


@pytest.fixture(scope="module", autouse=True)
def _imports():
    """All modules are imported by one process, which forks for each of them, and is a fork itself."""
    groups = {}
    for kind, _, _, loaded in PARTS:
        modules = groups.setdefault(ready_for(kind), [])
        if loaded.__module__ not in modules:
            modules.append(loaded.__module__)
    for ready, modules in groups.items():
        token_checks.import_in_fresh_processes(ready, modules)


@pytest.fixture(scope="module")
def shared_data(session_cache):
    shared = SharedData()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(session_cache))
        patch.setattr(DataSubject, "build", lambda subject, **options: shared.build(subject, **options))
        yield shared


@pytest.fixture(autouse=True)
def _data_is_loaded_once(shared_data):
    shared_data.begin_check()


@pytest.mark.parametrize("check", SAMPLED)
def test_a_built_in_part_keeps_its_contract(check):
    with few_samples(check):
        check()


@pytest.mark.campaign
@pytest.mark.parametrize("check", WHOLE)
def test_a_built_in_part_keeps_its_contract_in_every_situation(check):
    check()


def test_every_situation_of_a_part_is_sampled():
    """Disentangled has the most options."""
    sampled = sampled_checks(registry.get("attention", "Disentangled"))
    whole = checks(registry.get("attention", "Disentangled"))
    met = {name for check in sampled for name, _ in list(check._situations())[1:]}
    situations = Situations(whole[0].subject)
    there = {
        name for kind in {k for check in whole for k in kinds_of_situations(check)} for name, _ in situations.of(kind)
    }
    (one,) = (check for check in whole if check.name == "shapes")
    assert {name for name, _ in list(one._situations())[1:]} == there
    assert len(there) >= 5
    assert met == there


def test_two_that_a_check_builds_are_two_and_the_next_check_shares_them(shared_data):
    subject = checks(registry.get("data", "Glyphs"))[0].subject
    one, two, other = subject.build(seed=1), subject.build(seed=1), subject.build(seed=2)
    assert len({id(data) for data in (one, two, other)}) == 3
    shared_data.begin_check()
    assert subject.build(seed=1) is one
    assert subject.build(seed=2) is other
    assert subject.build(seed=1) is two
    assert subject.build(seed=1, size=50) is not subject.build(seed=1, size=50)


def test_what_a_module_draws_while_it_loads_differs_from_one_to_the_next(shared_data):
    """A check that compares two must notice it, whichever of them an earlier check has built."""

    class Drawing(registry.get("data", "Glyphs")):
        def load(self):
            super().load()
            self.number = torch.rand(1)

    subject = checks(Drawing)[0].subject
    torch.manual_seed(0)
    one = subject.build(seed=1)
    shared_data.begin_check()
    torch.manual_seed(0)
    assert subject.build(seed=1) is one
    assert not torch.equal(subject.build(seed=1).number, one.number)
