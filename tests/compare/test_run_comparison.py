"""What a comparison makes of runs that failed, belong to other shards, or lie behind links."""

import json
from types import SimpleNamespace

import pytest

from zoo.compare import parallel_runs, run_comparison, run_records
from zoo.compare.design import PLAIN_DESIGN
from zoo.compare.parallel_runs import FitJob
from zoo.errors import ZooError
from zoo.inference.find_run import FINISHED
from zoo.logging import run_state


def runner(shard, jobs, *failed):
    lines = []
    codes = {job.folder: 1 for job in jobs if job.title in failed}
    return SimpleNamespace(options={"shard": shard}, failed=codes, print_progress=lines.append, lines=lines)


@pytest.fixture
def jobs(tmp_path):
    """Runs a to d, of which a is finished."""
    result = [FitJob(name, tmp_path / name, ()) for name in "abcd"]
    result[0].folder.mkdir()
    (result[0].folder / FINISHED).write_text("")
    (result[0].folder / run_state.LEDGER).write_text(json.dumps({"finished": True}))
    return result


@pytest.mark.parametrize("failed", [(), ("b",), ("b", "c")])
def test_a_shard_waits_for_the_runs_of_others_whatever_failed_in_it(jobs, failed):
    mine = runner("1/2", jobs, *failed)
    assert run_comparison.has_runs_left(jobs, mine)
    assert "1 of 4 runs are finished" in mine.lines[0]
    assert (f", {len(failed)} failed;" in mine.lines[0]) == bool(failed)


def test_what_failed_is_shown_where_no_run_belongs_to_others(jobs):
    assert not run_comparison.has_runs_left(jobs, runner("1/2", jobs, "b", "c", "d"))
    assert not run_comparison.has_runs_left(jobs, runner(None, jobs, "b", "c", "d"))
    with pytest.raises(ZooError, match="all 3 runs failed"):
        run_comparison.has_runs_left(jobs[1:], runner(None, jobs, "b", "c", "d"))


@pytest.mark.parametrize(("exit_code", "expected"), [(True, 10), (False, 1)])
def test_the_exit_code_is_the_outcome_where_it_is_asked_for_although_a_run_failed(monkeypatch, exit_code, expected):
    result = SimpleNamespace(look=tuple, print_answer=lambda: 10)
    monkeypatch.setattr(run_comparison, "run_comparisons", lambda options, comparisons: ([result], 1))
    comparison = SimpleNamespace(design=PLAIN_DESIGN, procedure=SimpleNamespace(show=None))
    assert run_comparison.run_and_show({"exit_code": exit_code}, comparison) == expected


def test_the_test_split_is_measured_with_what_the_command_trusts(jobs, monkeypatch):
    commands = []

    def run(words, **_):
        commands.append(words)
        record = {"finished": True, "test": {"loss": 1.0}}
        monkeypatch.setattr(run_records, "parse_record", lambda path: SimpleNamespace(name="a s1", **record))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(run_records, "parse_record", lambda path: SimpleNamespace(name="a s1", test={}))
    monkeypatch.setattr(run_state, "read_state", lambda folder: "finished")
    monkeypatch.setattr(parallel_runs, "newest_intact", lambda folder: SimpleNamespace(path="last.ckpt"))
    monkeypatch.setattr(parallel_runs.subprocess, "run", run)
    parallel_runs.measure_test_figures([jobs[0].folder], ["--trust"], lambda line: None)
    assert commands[0][-1] == "--trust"


def test_a_comparison_is_read_through_a_link_to_its_folder(tmp_path):
    place = run_records.comparison_path(tmp_path / "runs", "toy", "position")
    folders = (tmp_path / "runs/toy/a/s1",)
    run_records.save_record(place, run_records.Record(folders, "a", "loss"))
    (tmp_path / "link").symlink_to(place, target_is_directory=True)
    assert run_records.load_record(tmp_path / "link").folders == folders
