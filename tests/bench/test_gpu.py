"""`bench.gpu`: the dry run of every check, and what becomes of checks that fail, hang or die."""

import json
import os
import time

import pytest
import torch

from bench import gpu
from bench.gpu import checks as gpu_checks
from bench.gpu.checks import CHECKS, DRY, FULL, Check


def test_every_check_runs_on_a_cpu_at_toy_size(tmp_path, capsys):
    code = gpu.main(["--dry", "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())
    assert {name: result["error"] for name, result in content["results"].items()} == {
        check.name: "" for check in CHECKS
    }
    assert code == 0
    table = (tmp_path / "results.md").read_text()
    assert all(f"| {check.name} | passed |" in table for check in CHECKS)
    assert content["results"]["training_step"]["figures"]["torch_nn: ms"] > 0
    assert content["results"]["decoding"]["figures"]["batch 8: tokens per second"] > 0
    assert content["results"]["small_runs"]["figures"]["2 at once: steps per second"] > 0


def test_all_checks_fit_into_twelve_minutes():
    assert max(check.seconds for check in CHECKS) <= 60
    assert sum(check.seconds for check in CHECKS) <= 12 * 60
    assert FULL.runs[0] == DRY.runs[0] == 1  # what the others are relative to


def test_a_small_run_that_fails_ends_those_that_wait_for_it(monkeypatch):
    def fail(*_, **__):
        raise ArithmeticError("no model")

    monkeypatch.setattr(gpu_checks, "_step", fail)
    with pytest.raises(RuntimeError, match="of 1 runs at once, 1 failed"):
        gpu_checks.small_runs(DRY)


def works(sizes):
    return {"rows": sizes.rows}


def fails(sizes):
    raise ArithmeticError("wrong by 3")


def hangs(sizes):
    if os.fork() == 0:
        time.sleep(1.5)
        (gpu_checks.FOLDER / "survivor").write_text("")
        os._exit(0)
    time.sleep(60)


def dies(sizes):
    os._exit(3)


def checks(*functions):
    return [
        Check(function.__name__, "some proof", 0.5 if function is hangs else 20, function) for function in functions
    ]


def test_failures_are_recorded_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_checks, "FOLDER", tmp_path, raising=False)
    every = checks(fails, hangs, dies, works)
    assert gpu.main(["--dry", "--out", str(tmp_path)], every) == 1
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["outcome"] for result in results.values()] == ["failed", "out of time", "failed", "passed"]
    assert "wrong by 3" in results["fails"]["error"]
    assert "ended with 3" in results["dies"]["error"]
    assert results["works"]["figures"] == {"rows": DRY.rows}
    assert "wrong by 3" in (tmp_path / "results.md").read_text()
    time.sleep(1.5)
    assert not (tmp_path / "survivor").exists()


def test_a_second_call_runs_what_did_not_pass(tmp_path, capsys):
    assert gpu.main(["--dry", "--out", str(tmp_path)], checks(fails, works)) == 1
    assert gpu.main(["--dry", "--out", str(tmp_path), "works"], checks(fails, works)) == 0
    capsys.readouterr()
    assert gpu.main(["--dry", "--out", str(tmp_path)], checks(fails, works)) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["fails"]


def test_what_has_no_time_left_is_not_run(tmp_path):
    assert gpu.main(["--dry", "--out", str(tmp_path), "--minutes", "0"], checks(works)) == 1
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert results["works"]["outcome"] == "not run"


def test_results_of_another_machine_are_left_alone(tmp_path, capsys, monkeypatch):
    assert gpu.main(["--dry", "--out", str(tmp_path)], checks(works)) == 0
    monkeypatch.setattr(gpu, "machine", lambda sizes: {"device": "another"})
    with pytest.raises(SystemExit):
        gpu.main(["--dry", "--out", str(tmp_path)], checks(works))
    assert "another machine" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_dry_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--out", str(tmp_path / "out")], checks(works))
    assert ended.value.code == 2
    assert "--dry" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit):
        gpu.main(["--dry", "wroks"], checks(works))
    assert "unknown check 'wroks'" in capsys.readouterr().err


def test_an_error_above_its_bound_and_a_wait_are_found(monkeypatch):
    monkeypatch.setattr(gpu_checks, "BOUNDS", {torch.bfloat16: 1e-6})
    with pytest.raises(AssertionError, match="SDPA, causal, bfloat16"):
        gpu_checks.backends_agree(DRY)
    monkeypatch.setattr(gpu_checks.Step, "gradients", lambda self, number: torch.tensor(torch.ones(1).item()))
    with pytest.raises(AssertionError, match="a step waits 1 times"):
        gpu_checks.no_synchronisation(DRY)
