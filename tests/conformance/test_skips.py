"""A check is skipped for an option that a user has to give; a part that cannot be built fails."""

import inspect

import pytest

from zoo import registry
from zoo.conformance import SUBJECTS, checks
from zoo.conformance.check import WITHOUT_PART
from zoo.errors import UsageError

BASES = {kind: registry.parts(kind)[0].load() for kind in SUBJECTS}
REASONS = {"usage": UsageError("it needs a Monday."), "value": ValueError("no"), "other": RuntimeError("no device")}


def broken(kind, error):
    """A part of a kind, every option of which has a default, and that cannot be built."""

    def raises(self, *args, **options):
        raise error

    return type("Unbuildable", (BASES[kind],), {"__init__": raises, "__doc__": "Never built.", "__test__": False})


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_part_that_cannot_be_built_fails(kind, reason):
    outcomes = [check.outcome() for check in checks(broken(kind, REASONS[reason])) if check.name not in WITHOUT_PART]
    statuses = {outcome.name: outcome.status for outcome in outcomes}
    assert "FAIL" in statuses.values(), statuses


@pytest.mark.parametrize("kind", ["norm", "ffn", "attention", "position"])
def test_a_missing_option_is_a_skip_that_names_it(kind):
    base = BASES[kind]
    size = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, annotation=int)
    signature = inspect.Signature([*inspect.signature(base).parameters.values(), size])
    needs = type("Needs", (base,), {"__doc__": "Needs a size.", "__signature__": signature, "__test__": False})
    outcomes = [check.outcome() for check in checks(needs) if check.name not in WITHOUT_PART]
    assert {(outcome.status, outcome.sentence) for outcome in outcomes} == {("skipped", "it needs --size VALUE")}
