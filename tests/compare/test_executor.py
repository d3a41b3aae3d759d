"""What runs request of an executor: GPUs of their own or shares of one, cores and memory; what is refused."""

import itertools
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.compare.fake_compare import how, jobs
from zoo.cli import main
from zoo.compare import charts, comparability, run_records, table, targets
from zoo.compare.executor import Executor, Request, bytes_of, parse_resources
from zoo.compare.parallel_runs import Outcome, Processes, execute, gpus_of_runs, visible_devices
from zoo.errors import UsageError, ZooError

WORDS = ("compare", "lm-tiny", "--vary", "model.position=rope,alibi")


@pytest.fixture
def devices(monkeypatch):
    """Sets the number of GPUs that torch sees, and CUDA_VISIBLE_DEVICES."""

    def see(count, variable=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        if variable is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    return see


def request(jobs=1, gpus=None, **trainer):
    return Request(jobs, resources={} if gpus is None else {"gpus": gpus}, trainer=trainer)


@pytest.mark.parametrize("gpus", [None, "1", "2", "3", "0.5", "0.25", "0.3"])
@pytest.mark.parametrize("trainer", [{}, {"devices": 2}, {"devices": [1]}, {"devices": "0,1"}, {"accelerator": "cpu"}])
def test_gpus_are_divided_as_requested_or_refused(devices, gpus, trainer):
    untouched = trainer.get("accelerator") == "cpu" or trainer.get("devices") in ([1], "0,1")
    per_run = float(gpus or trainer.get("devices") or 1) if not untouched else 1.0
    for count, number in itertools.product(range(6), range(1, 7)):
        devices(count)
        room = int(1 / per_run + 1e-9) * count if per_run < 1 else count // int(per_run)
        is_divided = bool(gpus) or (count > 0 and number > 1)
        if untouched and not gpus:
            assert gpus_of_runs(request(number, gpus, **trainer)) == []
        elif untouched or (is_divided and room < number):
            with pytest.raises(UsageError, match="gpus=") as error:
                gpus_of_runs(request(number, gpus, **trainer))
            advice = re.search(r"--resources gpus=(0\.\d+):", str(error.value))
            if advice and count:  # what the sentence advises goes
                assert len(gpus_of_runs(request(number, advice[1], **trainer))) == number
        else:
            slots = gpus_of_runs(request(number, gpus, **trainer))
            assert len(slots) == (number if is_divided else 0)
            names = [name for slot in slots for name in slot.split(",")]
            assert set(names) <= {str(number) for number in range(count)}
            assert max(map(names.count, names), default=0) <= max(1, int(1 / per_run + 1e-9))
            assert len({slot.count(",") for slot in slots}) <= 1


@pytest.mark.parametrize(
    ("count", "variable", "expected"),
    [(3, None, ("0", "1", "2")), (2, "5, 7", ("5", "7")), (1, "GPU-aa,GPU-gone", ("GPU-aa",)), (0, "0", ()),
     (0, "", ())],
)  # fmt: skip
def test_the_visible_devices_are_those_of_this_process(devices, count, variable, expected):
    devices(count, variable)
    assert visible_devices() == expected


def test_too_many_jobs_are_refused_with_what_goes(devices):
    devices(2, "GPU-a,GPU-b")
    with pytest.raises(UsageError) as error:
        gpus_of_runs(request(4))
    assert str(error.value).splitlines() == [
        "--jobs 4: the runs need 1 each of their own, and there are 2: GPU-a, GPU-b.",
        "Use --jobs 2, --trainer.accelerator cpu, or --resources gpus=0.25: runs that share a GPU slow each other "
        "down, and the table draws no conclusion from their speed and memory.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu=1", "runs on processes have no 'gpu'. Did you mean 'gpus'? There are: gpus, cpus, memory."),
        ("gpus", "write it as gpus=1"), ("gpus=0", "write it as gpus=1"), ("gpus=0.0", "write it as gpus=1"),
        ("gpus=-1", "write it as gpus=1"), ("gpus=1.5", "write it as gpus=1"), ("cpus=0.5", "write it as cpus=4"),
        ("memory=16", "write it as memory=16G"), ("memory=0G", "write it as memory=16G"),
        ("gpus=1,gpus=2", "gpus is named twice"), ("time=4:00", "have no 'time'"), ("gpus=1,,cpus=2", "have no ''"),
    ],
)  # fmt: skip
def test_wrong_resources_are_refused(text, message):
    with pytest.raises(UsageError) as error:
        parse_resources(Processes(), text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--executor", "dask"), "unknown executor 'dask'"),
        (("--executor", "proceses"), "Did you mean 'Processes'?"),
        (("--executor", "processes:tcp://a:1"), "processes of this machine have no address"),
        (("--resources", "cpus=9999"), "more than the"),
        (("--resources", "memory=900000T"), "more than the"),
        (("--resources", "gpus=1"), "the runs need gpus=1 each, and there are 0: none."),
        (("--resources", "gpus=0.5", "--budget", "time=1m"), "needs the speed of each run"),
    ],
)
def test_what_cannot_be_had_is_refused_before_a_run(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main([*WORDS, *words])
    err = capsys.readouterr().err
    if "unknown executor 'dask'" in message and "dask" in err and "unknown" not in err:
        pytest.skip("zoo-scale is installed")
    assert (code, message in err) == (2, True), err
    assert not list(tmp_path.rglob("s1*"))


def test_a_size_is_read():
    assert [bytes_of(text) for text in ("1M", "16G", "2T")] == [2**20, 2**34, 2**41]


class Lossy(Executor):
    """An engine that loses the runs of ``losses`` calls, and has ended after ``lives`` calls."""

    losses, lives, calls, stops = 0, 999, 0, 0

    def submit(self, run):
        self.calls += 1
        if self.calls > self.lives:
            raise ZooError("the engine has ended")
        future = Future()
        if self.calls <= self.losses:
            future.set_exception(RuntimeError("worker lost"))
        else:
            future.set_result(run())
        return future

    def stop(self):
        self.stops += 1


@pytest.mark.parametrize("losses", [0, 1, 4])
def test_a_run_that_the_engine_loses_is_submitted_again(losses, tmp_path):
    engine = Lossy()
    engine.losses = losses
    assert execute(jobs(tmp_path, "a", (1,)), how(executor=engine)) == {}
    assert engine.calls == losses + 1


def test_what_the_engine_loses_is_counted_by_run_and_not_by_title(tmp_path):
    engine = Lossy()
    engine.losses = 5  # of six runs, each lost once at most
    alike = [replace(job, title="RoPE s0") for job in jobs(tmp_path, "abcdef", (1,))]
    assert execute(alike, how(executor=engine)) == {}
    assert engine.calls == 11


def test_a_run_that_is_lost_again_and_again_is_a_failure_and_an_engine_that_ended_an_error(tmp_path):
    engine, lines = Lossy(), []
    engine.losses = 99
    options = how(executor=engine)
    object.__setattr__(options, "report", lines.append)
    (job,) = jobs(tmp_path, "a", (1,))
    assert execute([job], options) == {job.folder: 1}
    assert "lossy lost it 5 times: RuntimeError: worker lost" in lines[-1]
    engine = Lossy()
    engine.lives = 1
    with pytest.raises(ZooError, match="the engine has ended"):
        execute(jobs(tmp_path, "ab", (1,)), how(executor=engine))
    assert engine.stops == 1


def test_an_engine_gives_a_run_the_environment_of_the_comparison(tmp_path, monkeypatch):
    """Whatever the engine sets for its own processes: threads change the figures."""
    monkeypatch.setenv("ZOO_TRACKERS", "csv")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    variables = []

    class Other(Executor):
        def submit(self, run):
            monkeypatch.setenv("OMP_NUM_THREADS", "77")
            monkeypatch.setenv("MKL_NUM_THREADS", "77")
            monkeypatch.setenv("SLURM_NTASKS", "4")
            monkeypatch.delenv("ZOO_TRACKERS")
            variables.append(run.variables())
            future = Future()
            future.set_result(Outcome("ended"))
            return future

    execute(jobs(tmp_path, "a", (1,)), how(executor=Other(), environment={"ZOO_BUDGET": "b"}))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "SLURM_NTASKS", "ZOO_TRACKERS", "ZOO_BUDGET")
    assert [variables[0].get(name) for name in names] == ["1", None, None, "csv", "b"]


def run_of(variant, seed, share=None, speed=10.0):
    setting = {"threads": 1, "device": "cuda", **({"gpu_share": share} if share else {})}
    return run_records.RunRecord(
        Path(f"toy/{variant}/s{seed}/ledger.json"), "toy", variant, seed, {"norm": variant}, {"loss": "min"},
        setting=setting,
        cost={"tokens_per_s": speed + seed / 10, "peak_memory_bytes": speed, "seconds": 5.0 / speed, "spread": 0.0},
        validations=[{"step": 1, "tokens": 10, "loss": 2.0 - speed / 100}], last={"loss": 2.0 - speed / 100},
        best={"loss": 2.0 - speed / 100}, steps=1, tokens=10, finished=True,
    )  # fmt: skip


@pytest.mark.parametrize("share", [None, "0.25"])
def test_runs_that_share_a_gpu_are_marked_and_nothing_is_concluded_from_their_speed(share):
    from zoo.compare.verdict import answer

    pairs = [(variant, speed, seed) for variant, speed in (("a", 10.0), ("b", 30.0)) for seed in (1, 2, 3)]
    runs = [run_of(variant, seed, share, speed) for variant, speed, seed in pairs]
    result = answer(runs, "a", "loss", "last", {}, (), ("norm",))
    flags = [flag.sentence for flag in result.flags if flag.about == "speed"]
    shared = "speed and memory are not comparable: runs shared a GPU (--resources gpus=…)"
    assert (shared in flags) is bool(share)
    assert any("times the speed" in flag for flag in flags) is not bool(share)
    headings = table.costs(result)[0]
    assert sum("(shared GPU)" in heading for heading in headings) == (3 if share else 0)
    assert comparability.shares_gpu(result.runs) is bool(share)
    assert targets.is_quiet(result, result.rows[1]) is not bool(share)
    titles = [chart.title for chart in charts.draw_charts(result)]
    assert any("speed" in title for title in titles) is not bool(share), titles


FOLLOWERS = {  # how a process is started by one that is killed
    "by its number": "process_exit.follow_parent(int(sys.argv[1]))",
    "by the variable": "process_exit.follow_parent()",
}


@pytest.mark.parametrize("way", FOLLOWERS)
@pytest.mark.parametrize("parent", ["alive", "killed", "gone before"])
def test_a_process_ends_with_its_parent(way, parent, tmp_path):
    code = f"import sys, time; from zoo.system import process_exit; {FOLLOWERS[way]}; print('up', flush=True); "
    code += "time.sleep(0.5 if sys.argv[2] == 'alive' else 60)"
    starter = (
        "import os, subprocess, sys, time\n"
        "number = str(os.getpid() if sys.argv[2] != 'gone before' else 2**22 + 1)\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], number, sys.argv[2]],\n"
        "                         env={**os.environ, 'ZOO_PARENT': number}, stdout=subprocess.PIPE)\n"
        "line = child.stdout.readline(); print(child.pid, flush=True)\n"
        "print(child.wait(), flush=True)\n"
    )
    words = [sys.executable, "-c", starter, code, parent]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        if parent == "killed":
            process.kill()
            process.wait()
            for _ in range(300):
                if not os.path.exists(f"/proc/{child}") or "State:\tZ" in Path(f"/proc/{child}/status").read_text():
                    return
                signal.sigtimedwait([], 0.02)
            pytest.fail("the child outlives its parent")
        assert int(process.stdout.readline()) == (0 if parent == "alive" else 1)
