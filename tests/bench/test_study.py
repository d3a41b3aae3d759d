"""What the studies are made of: exponents, peaks of memory, processes of their own, and each study in small."""

import importlib
import json
import re
import sys

import pytest
import torch

from bench import __main__ as program
from bench import studies
from bench.arena import Record
from bench.gate import CONTESTS
from bench.study import RETURN_MEMORY, Options, Table, exponent, fresh

HOME = "tests.bench.measured:"


def test_an_exponent_is_that_of_the_power_law():
    assert exponent([1, 2, 4, 8], [3 * n**1.5 for n in (1, 2, 4, 8)]) == pytest.approx(1.5)
    assert exponent([1, 2], [5, 5]) == pytest.approx(0)
    assert exponent([4], [5]) is None


def test_a_peak_is_what_was_held_at_most():
    most, less = fresh(HOME + "grown", RETURN_MEMORY, megabytes=64)
    assert most == pytest.approx(64 * 2**20, rel=0.1)
    assert less == pytest.approx(16 * 2**20, rel=0.1)


def test_what_fails_elsewhere_is_told_here(forked_spawns):
    with pytest.raises(RuntimeError, match="ValueError: no such thing"):
        fresh(HOME + "fails")
    assert forked_spawns == ["spawn"]


def test_a_table_shows_figures_with_three_digits():
    table = Table("t", ["a", "b"], [["x", 0.12345], [None, 1234.5]], ["A note."])
    assert table.markdown().splitlines()[2:6] == ["| a | b |", "|---|---|", "| x | 0.123 |", "|  | 1,234 |"]
    assert table.markdown().endswith("\n\nA note.")


@pytest.mark.campaign  # the contract of backends looks at Tiled's memory in the default run
def test_memory_of_tiled_attention_is_linear_and_of_naive_quadratic():
    result = fresh(HOME + "curves", RETURN_MEMORY, names=["Tiled", "Naive"])
    powers = {name: exponent(list(curve), [memory for _, memory in curve.values()]) for name, curve in result.items()}
    assert powers["Naive"] > 1.7
    assert powers["Tiled"] < 1.15


def test_a_pattern_that_a_backend_refuses_is_said(forked_spawns):
    with pytest.raises(RuntimeError, match="Flash does not lower valid"):
        fresh(
            "bench.studies.attention:points",
            name="Flash",
            pattern_name="padding",
            lengths=[64],
            clock="cpu",
            seconds=0.0,
        )


def test_the_inlined_model_is_the_plugged_one():
    home = importlib.import_module("bench.workloads.indirection")
    plugged, inlined = home.plugged(), home.inlined()
    assert plugged.parameters == inlined.parameters
    for net in (plugged.net, inlined.net):
        for parameter in net.parameters():
            torch.manual_seed(parameter.numel())
            with torch.no_grad():
                parameter.normal_(0, 0.1)
    losses = [[step(number) for number in range(3)] for step in (plugged, inlined)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_an_exercise_is_trained_and_a_longer_text_validated(monkeypatch):
    exercises = importlib.import_module("bench.studies.exercises")
    monkeypatch.setattr(exercises, "TASKS", {"parity": ("Parity", {"length": 10}, 30)})
    monkeypatch.setattr(exercises, "EVALUATED", 8)
    state, results, chances = exercises.row("MultiHead", {})
    assert state == 2 * exercises.STATE_LENGTH * exercises.DIM  # keys and values
    assert re.fullmatch(r"\d+ \(\d+\)", results[0])
    assert int(results[0].split()[0]) > 55
    assert chances == ["50"]


def test_recall_measures_a_state_and_the_values_of_as_many_pairs(monkeypatch):
    recall = importlib.import_module("bench.studies.recall")
    monkeypatch.setattr(recall, "STEPS", 2)
    monkeypatch.setattr(recall, "EVALUATED", 8)
    state, accuracy = recall.measure("MultiHead", {"heads": 4}, 4)
    assert state == 2 * (4 * 4 - 1) * recall.DIM  # keys and values of all tokens but the last
    assert 0 <= accuracy <= 1


def test_rows_of_mixers_may_be_named(capsys):
    names = importlib.import_module("bench.studies.exercises").mixer_names
    assert names(("shaw", "MultiHead")) == ["MultiHead", "Shaw"]
    assert {"MultiHead", "Shaw", "Additive"} <= set(names(()))
    with pytest.raises(SystemExit):
        importlib.import_module("bench.__main__").main(["recall", "--parts", "Shav"])
    assert "unknown attention 'Shav'" in capsys.readouterr().err


def test_the_best_rate_lies_at_the_bottom_of_a_parabola():
    widths = importlib.import_module("bench.studies.widths")
    bottom = 1.3  # in doublings beyond the second rate
    losses = [4 + (n - bottom) ** 2 for n in range(len(widths.RATES))]
    assert widths.best(losses) == pytest.approx(widths.RATES[0] * 2**bottom)
    assert widths.best(sorted(losses)) == widths.RATES[0]


def test_turns_alternate():
    mixers = importlib.import_module("bench.studies.mixers")
    calls = []
    seconds = mixers.take_turns({name: lambda name=name: calls.append(name) for name in "ab"}, 3, "cpu")
    assert calls == list("abababab")
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_speculation_is_compared_with_plain_decoding_of_the_same_model(monkeypatch):
    speculation = importlib.import_module("bench.studies.speculation")
    for name, value in {"SHAPE": {"dim": 16, "depth": 1, "heads": 2}, "STEPS": 1, "ROWS": 2, "CONTEXT": 32,
                        "REPEATED": 1, "UNREPEATED": 1, "LENGTH": 12}.items():  # fmt: skip
        monkeypatch.setattr(speculation, name, value)
    (table,) = speculation.study(Options(turns=2, clock="cpu"))
    assert [row[0].partition(":")[0] for row in table.rows] == ["repeated", "not repeated"]
    assert [row[-1] for row in table.rows] == ["True", "True"]
    assert all(1 <= row[-2] <= 12 for row in table.rows)
    train, test = speculation.lines()
    assert not set(train) & set(test)
    assert len(train) > 1000


def test_a_step_beside_other_work_is_timed_in_every_situation(monkeypatch):
    busy = importlib.import_module("bench.studies.busy")
    calls = []

    def measure(threads, way, situation):
        calls.append((threads, way, situation))
        return {"alone": 0.01, "two at once": 0.03}.get(situation, 0.02) * (2 if way == "spinning" else 1)

    monkeypatch.setattr(busy, "measure", measure)
    (table,) = busy.study(Options(turns=2))
    assert len(calls) == 2 * 4 * 3
    assert table.rows[:2] == [[2, "spinning", 20.0, 40.0, 60.0], [2, "sleeping", 10.0, 20.0, 30.0]]
    assert [row[:2] for row in table.rows[2:]] == [[2, "following"], [1, "sleeping"]]
    assert table.notes[0].endswith("2.00 beside a busy process, 3.00 two at once, relative to alone.")


@pytest.mark.parametrize(("factor", "note"), [(1.5, "none"), (1.0, "none"), (0.9, "gpt2-fp32, generation-1")])
def test_measured_kernels_are_compared_with_torchs_own(factor, note, monkeypatch):
    kernels = importlib.import_module("bench.studies.kernels")
    monkeypatch.setattr(
        kernels, "CONTESTS", [one for one in CONTESTS if one.name in ("gpt2-fp32", "generation-1", "gpt2-fp32-plain")]
    )

    def compete(entrants, *, first, turns, steps, clock):
        assert [entrant.env for entrant in entrants] == [{}, {"ZOO_KERNELS": "plain"}]
        loss = None if "writing" in entrants[0].factory else 6.0
        return [
            Record(entrant, [0.01 * scale * (1 + 0.001 * turn) for turn in range(turns)], [loss, loss and loss + scale])
            for entrant, scale in zip(entrants, (1.0, factor), strict=True)
        ]

    monkeypatch.setattr(kernels, "compete", compete)
    (table,) = kernels.study(Options(turns=3))
    assert [row[0] for row in table.rows] == ["gpt2-fp32", "generation-1"]
    assert [row[3] for row in table.rows] == [pytest.approx(factor)] * 2
    assert [row[-1] for row in table.rows] == [pytest.approx(abs(factor - 1)), None]
    assert table.notes[0].endswith(f"3%: {note}. Texts have no loss.")


def test_a_workload_that_fails_ends_the_comparison_of_kernels(monkeypatch):
    kernels = importlib.import_module("bench.studies.kernels")
    monkeypatch.setattr(kernels, "compete", lambda entrants, **_: [Record(one, failed="no memory") for one in entrants])
    with pytest.raises(RuntimeError, match="gpt2-fp32: no memory"):
        kernels.study(Options(turns=2))


def test_first_steps_and_later_ones_are_timed_by_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compilation = importlib.import_module("bench.studies.compilation")
    monkeypatch.setattr(compilation, "SIZES", {"small": (16, 1, 2)})
    caches = []

    def start(sizes, cache, threads, turns):
        assert sizes == (16, 1, 2)
        caches.append((cache, turns))
        return (30.0 if len(caches) == 1 else 3.0), 0.02, 0.01

    with monkeypatch.context() as patch:
        patch.setattr(compilation, "start", start)
        (table,) = compilation.study(Options(turns=3))
    assert table.rows == [["small", 30.0, 3.0, 20.0, 10.0, 2.0]]
    assert [turns for _, turns in caches] == [1, 3]
    assert caches[0][0] == caches[1][0]
    monkeypatch.setattr("torch.compile", lambda function: function)
    monkeypatch.setattr(compilation, "STEPS", 1)
    assert all(seconds > 0 for seconds in compilation.time_steps((16, 1, 2), 2))


def test_two_trainings_are_timed_at_once(monkeypatch):
    busy = importlib.import_module("bench.studies.busy")
    words = "import os; print(float(os.environ['OMP_NUM_THREADS']) + (os.environ.get('OMP_WAIT_POLICY') == 'PASSIVE'))"
    started, popen = [], busy.subprocess.Popen

    def start(command, **options):
        started.append(command)
        return popen([sys.executable, "-c", words if "step" in command[-1] else "while True: pass"], **options)

    monkeypatch.setattr(busy.subprocess, "Popen", start)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert busy.measure(2, "sleeping", "two at once") == 3.0
    assert busy.measure(2, "spinning", "beside a busy process") == 2.0
    assert len(started) == 4
    monkeypatch.setattr(busy.subprocess, "Popen", popen)
    monkeypatch.setattr(busy, "STEPS", 1)
    monkeypatch.setattr(busy, "WARM", 1)
    monkeypatch.setattr(busy, "PERIOD", 0.0)
    assert busy.step(following=True) > 0


@pytest.mark.parametrize("name", studies.NAMES)
def test_every_study_is_there(name):
    assert callable(studies.study(name))


def test_the_program_writes_studies_beside_contests(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "study", lambda name: lambda options: [Table(name, ["turns"], [[options.turns]])])
    monkeypatch.setattr(program, "machine", lambda: {"torch": "2"})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, data = tmp_path / "p.md", tmp_path / "p.json"
    assert program.main(["startup", "--turns", "2", "--out", str(out), "--json", str(data)]) == 0
    assert "### startup\n\n| turns |\n|---|\n| 2 |" in out.read_text()
    assert json.loads(data.read_text())["studies"][0]["rows"] == [[2]]
    assert Options().turns == 7


def test_utilisation_is_work_over_time_and_ceiling():
    from bench.arena import Entrant, Record
    from bench.report import markdown, verdict
    from bench.work import Work
    from bench.workloads import Workload

    machine = {"fp32 GFLOP/s": 100, "bf16 GFLOP/s": 200, "memory GB/s": 10.0}
    records = [Record(Entrant("zoo", "m:f", ours=True), [0.5] * 4, [2.0], 7, 2**20)]
    result = verdict(Workload("w", "what", (), work=lambda: Work(flops=20e9)), records, machine)
    assert result["rows"][0]["compute"] == pytest.approx(0.4)
    assert "| MFU |" in markdown(result)
    assert "| 40 % |" in markdown(result)
    result = verdict(Workload("w", "what", (), work=lambda: Work(bytes=2e9)), records, machine)
    assert result["rows"][0]["bandwidth"] == pytest.approx(0.4)
    assert "of the memory ceiling" in markdown(result)
