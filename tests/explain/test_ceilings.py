"""What bounds an operation follows from the ceilings, and these are measured once."""

import json

import pytest

from zoo.explain import ceilings
from zoo.explain.ceilings import Ceilings, this_machine
from zoo.explain.trace import Operation

MACHINE = Ceilings(flops=100.0, bandwidth=10.0, rates={"gelu": 1.0})


def operation(name, flops=0, traffic=0, elements=0):
    return Operation("", name, (1,), flops, traffic, 0, elements)


@pytest.mark.parametrize(
    ("one", "bound", "seconds"),
    [
        (operation("mm", flops=1000, traffic=20), "compute", 10.0),
        (operation("mm", flops=1000, traffic=200), "memory", 20.0),
        (operation("add", traffic=30, elements=10), "memory", 3.0),
        (operation("gelu", traffic=30, elements=10), "compute", 10.0),
        (operation("unheard_of", traffic=30, elements=10), "memory", 3.0),
    ],
)
def test_the_slower_resource_bounds_an_operation(one, bound, seconds):
    assert MACHINE.bound(one) == bound
    assert MACHINE.seconds(one) == pytest.approx(seconds)


def test_ceilings_are_measured_once_and_again_when_the_file_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    calls = []
    monkeypatch.setattr(ceilings, "measure", lambda: calls.append(1) or MACHINE)
    assert this_machine() == this_machine() == MACHINE
    assert len(calls) == 1
    (file,) = (tmp_path / "cache").glob("ceilings-*.json")
    for damaged in ("", "[]", "{", json.dumps({"flops": 1.0})):
        file.write_text(damaged)
        assert this_machine() == MACHINE
    assert len(calls) == 5
    assert this_machine(again=True) == MACHINE
    assert len(calls) == 6


NO_CEILINGS = (0, 0.0, -1.0, "1", None, True, [], {}, float("nan"), float("inf"))


@pytest.mark.parametrize(  # no rates at all are a machine without further rates
    ("key", "value"),
    [
        (key, value)
        for key in ("flops", "bandwidth", "gelu", "rates")
        for value in NO_CEILINGS
        if (key, value) != ("rates", {})
    ],
)
def test_a_ceiling_in_the_file_that_is_no_positive_number_is_measured_again(tmp_path, monkeypatch, key, value):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(ceilings, "measure", lambda: MACHINE)
    this_machine()
    (file,) = tmp_path.glob("ceilings-*.json")
    content = json.loads(file.read_text())
    (content["rates"] if key == "gelu" else content)[key] = value
    file.write_text(json.dumps(content))
    assert this_machine() == MACHINE
    assert this_machine().balance == 10.0


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(ceilings, "measure", lambda: MACHINE)
    assert this_machine() == MACHINE


def test_measuring_again_raises_a_ceiling_and_never_lowers_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    results = [MACHINE, Ceilings(200.0, 5.0, {"gelu": 0.5, "exp": 2.0}), Ceilings(1.0, 1.0)]
    monkeypatch.setattr(ceilings, "measure", lambda: results.pop(0))
    this_machine()
    expected = Ceilings(200.0, 10.0, {"gelu": 1.0, "exp": 2.0})
    assert this_machine(again=True) == this_machine(again=True) == this_machine() == expected
    assert not results
