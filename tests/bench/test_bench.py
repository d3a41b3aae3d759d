"""The benchmark itself: turns, failures, verdicts, and entrants that do the same work, at sizes that take no time."""

import importlib
import json
import math

import pytest

from bench import __main__ as program
from bench import arena, ceilings, report, workloads
from bench.arena import Entrant, Record
from bench.workloads import WORKLOADS, Workload

HOME = "tests.bench.measured:"


def test_entrants_take_turns_in_processes_of_their_own_and_one_that_fails_stops_nobody(forked_spawns):
    entrants = [
        Entrant("a", HOME + "counting"),
        Entrant("b", HOME + "broken"),
        Entrant("c", HOME + "breaks_later"),
        Entrant("d", HOME + "counting", {"loss": 5.0}, ours=True),
    ]
    a, b, c, d = arena.compete(entrants, first=2, turns=2, steps=3, clock="cpu")
    assert forked_spawns == ["spawn"]
    assert (a.losses, d.losses) == ([1.0, 2.0], [5.0, 6.0])
    assert len(a.seconds) == len(d.seconds) == 2
    assert b.failed.startswith("ValueError: no such model")
    assert c.failed.startswith("ArithmeticError: overflow")
    assert not c.seconds


def records(**losses):
    return [
        Record(Entrant(name, "m:f", ours=name == "zoo"), [0.5 if name == "zoo" else 1.0] * 5, [loss], 7, 2**20)
        for name, loss in losses.items()
    ]


def test_ratios_are_to_the_best_peer_and_goals_are_judged():
    result = report.verdict(Workload("w", "some work", (), goal=1.5), records(zoo=2.0, peer=2.01, other=1.99))
    assert [row["ratio"] for row in result["rows"]] == [2.0, 1.0, 1.0]
    assert result["disagree"] == []
    assert "Goal 1.50: reached (2.00)." in report.markdown(result)
    missed = report.verdict(Workload("w", "some work", (), goal=2.5), records(zoo=2.0, peer=2.0))
    assert "Goal 2.50: missed (2.00)." in report.markdown(missed)


@pytest.mark.parametrize("loss", [2.2, math.nan])
def test_who_does_other_work_is_named(loss):
    result = report.verdict(Workload("w", "some work", ()), records(zoo=2.0, peer=2.01, lazy=loss, fourth=1.99))
    assert result["disagree"] == ["lazy"]
    assert "Losses do not agree: lazy." in report.markdown(result)


def test_a_machine_says_what_it_can_do():
    about = ceilings.machine()
    assert about["fp32 GFLOP/s"] > 0
    assert about["memory GB/s"] > 0
    assert about["torch"]


PEERS = {"torch_nn": "torch", "litgpt": "litgpt", "x_transformers": "x_transformers"}


def losses(home, name, steps=20, **options):
    pytest.importorskip(PEERS.get(name, name))
    module = importlib.import_module(home)
    step = getattr(module, name)(**options)
    return [step(number) for number in range(steps)]


@pytest.fixture
def small(monkeypatch):
    """The sizes of a workload, shrunk until the test is over."""

    def shrink(home):
        module = importlib.import_module(home)
        for name in ("DIM", "DEPTH", "HEADS", "LENGTH", "ROWS", "GATED", "VOCAB"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
        module.shrink()
        return home

    return shrink


@pytest.mark.parametrize(("style", "peer"), [("gpt2", "torch_nn"), ("gpt2", "litgpt"), ("gpt2", "transformers"),
                                              ("gpt2", "x_transformers"), ("llama", "litgpt"),
                                              ("llama", "transformers"), ("llama", "x_transformers")])  # fmt: skip
def test_language_models_do_the_same_work(small, style, peer):
    home = small("bench.workloads.language")
    ours = losses(home, "zoo", style=style, vocab=256)
    theirs = losses(home, peer, style=style, vocab=256)
    assert ours[-1] < ours[0] - 0.3
    assert ours[-1] == pytest.approx(theirs[-1], rel=0.03)


@pytest.mark.parametrize("peer", ["timm", "transformers"])
def test_image_models_do_the_same_work(small, peer):
    home = small("bench.workloads.images")
    assert losses(home, "zoo") == pytest.approx(losses(home, peer), rel=0.003)


@pytest.mark.parametrize("peer", ["torch_nn", "joeynmt"])
def test_translators_do_the_same_work(small, peer, monkeypatch):
    home = small("bench.workloads.translation")
    lengths = [(3 + 7 * n % 20, 4 + 5 * n % 17) for n in range(100)]
    monkeypatch.setattr(importlib.import_module(home), "lengths", lambda: lengths)
    ours = losses(home, "zoo", order="random")
    assert ours[-1] == pytest.approx(losses(home, peer, order="random")[-1], rel=0.03)


def test_every_workload_names_factories_that_there_are():
    for workload in WORKLOADS.values():
        assert any(entrant.ours for entrant in workload.entrants)
        for entrant in workload.entrants:
            module, _, name = entrant.factory.partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_an_unknown_workload_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        program.main(["gpt9"])
    assert caught.value.code == 2
    assert "unknown workload 'gpt9'" in capsys.readouterr().err


def test_the_program_writes_both_files(tmp_path, monkeypatch, forked_spawns):
    entrants = (Entrant("zoo", HOME + "counting", ours=True), Entrant("peer", HOME + "counting"))
    monkeypatch.setattr(program, "WORKLOADS", {"tiny": Workload("tiny", "counting", entrants, goal=0.1)})
    about = {"fp32 GFLOP/s": 100.0, "bf16 GFLOP/s": 200.0, "memory GB/s": 10.0}  # test_a_machine_… measures one
    monkeypatch.setattr(program, "machine", lambda: about)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, data = tmp_path / "p.md", tmp_path / "p.json"
    assert program.main(["tiny", "--first", "1", "--turns", "2", "--out", str(out), "--json", str(data)]) == 0
    assert "### counting" in out.read_text()
    content = json.loads(data.read_text())
    assert set(content["turns"]["tiny"]) == {"zoo", "peer"}
    assert workloads.WORKLOADS is not program.WORKLOADS
