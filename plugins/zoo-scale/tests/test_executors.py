"""Runs on dask and in jobs of SLURM, by programs that stand in for SLURM's; what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import wait
from pathlib import Path

import pytest
from zoo_scale import executors
from zoo_scale.executors import Dask, SlurmQueue, Submitit, time_limit

from zoo.compare.executor import Request
from zoo.conformance import checks
from zoo.conformance.contracts.executor import SampleRun
from zoo.errors import UsageError

STAND_INS = {
    "sbatch": """#!/bin/bash
cd "$SLURM_STAND_IN"
number=$(( $(ls -d job-* 2>/dev/null | wc -l) + 1 ))
mkdir job-$number
cp "$1" job-$number/script
env SLURM_JOB_ID=$number SLURM_JOB_NODELIST=here setsid bash job-$number/script >job-$number/log 2>&1 </dev/null &
echo $! >job-$number/pid
echo "Submitted batch job $number"
""",
    "srun": """#!/bin/bash
while [ "${1#--}" != "$1" ]; do case "$1" in --output|--error) shift ;; esac; shift; done
exec "$@"
""",
    "squeue": """#!/bin/bash
cd "$SLURM_STAND_IN"
[ -e down ] && exit 1
for job in job-*; do [ -e $job/pid ] && kill -0 -- -$(cat $job/pid) 2>/dev/null && echo ${job#job-}; done
true
""",
    "scancel": """#!/bin/bash
kill -TERM -- -$(cat "$SLURM_STAND_IN/job-$1/pid")
""",
    "scontrol": "#!/bin/bash\n",
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder of programs that do on this machine what SLURM's do."""
    pytest.importorskip("submitit", reason="pip install 'zoo-scale[submitit]'")
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(folder))
    monkeypatch.setattr(executors, "POLL", 0.05)
    monkeypatch.setattr(executors, "LATENCY", 0.5)
    return folder


@pytest.fixture
def engine(slurm):
    engine = Submitit()
    engine.start(Request(2))
    yield engine
    engine.stop()


def scripts(slurm):
    return [path.read_text() for path in sorted(slurm.glob("job-*/script"))]


def test_a_run_is_a_job_with_what_it_requests(slurm, tmp_path):
    engine = Submitit()
    engine.start(Request(1, resources={"gpus": "2", "cpus": "3", "memory": "4G", "time": "1-0", "partition": "p"}))
    assert engine.submit(SampleRun(tmp_path, 7, 0.0)).result(60) == 7
    engine.stop()
    lines = {"--gpus-per-node=2", "--cpus-per-task=3", "--mem=4G", "--time=1440", "--partition=p", "--signal=USR2@120"}
    assert {f"#SBATCH {line}" for line in lines} <= set(scripts(slurm)[0].splitlines())


def test_without_a_time_the_partition_decides(slurm, engine, tmp_path):
    assert engine.submit(SampleRun(tmp_path, 1, 0.0)).result(60) == 1
    assert "--time" not in scripts(slurm)[0]


def test_a_job_that_was_killed_is_lost_and_one_that_raises_says_why(slurm, engine, tmp_path):
    future = engine.submit(SampleRun(tmp_path, 1, 60.0))
    while not (tmp_path / "1.txt").exists():
        time.sleep(0.05)
    os.killpg(int((slurm / "job-1/pid").read_text()), signal.SIGKILL)
    with pytest.raises(executors.LostJobError, match="job 1 of SLURM ended without a result"):
        future.result(60)
    with pytest.raises(executors.LostJobError, match="ValueError: a run of a negative number fails"):
        engine.submit(SampleRun(tmp_path, -1, 0.0)).result(60)


def test_a_job_of_a_command_that_was_killed_is_waited_for(slurm, engine, tmp_path):
    future = engine.submit(SampleRun(tmp_path, 1, 3.0))
    while not (tmp_path / "1.txt").exists():
        time.sleep(0.05)
    second = Submitit()
    second.start(Request(1))
    assert second.submit(SampleRun(tmp_path, 1, 3.0)).result(60) == future.result(60) == 1
    second.stop()
    assert len(scripts(slurm)) == 1
    assert (tmp_path / "1.txt").read_text().count("began") == 1


def test_where_the_queue_does_not_answer_no_job_is_lost(slurm):
    queue = SlurmQueue()
    (slurm / "down").touch()
    assert queue.has("1")
    (slurm / "down").unlink()
    time.sleep(0.1)
    assert not queue.has("1")
    assert not queue.has("")


def test_a_job_that_was_submitted_after_the_queue_was_asked_is_not_lost(slurm, monkeypatch):
    monkeypatch.setattr(executors, "POLL", 60.0)
    queue = SlurmQueue()
    assert not queue.has("1")  # asked now, and not for a minute
    assert queue.has(queue.added("1"))
    monkeypatch.setattr(executors, "POLL", 0.0)
    assert not queue.has("1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("4:00:00", 14400), ("1-0", 86400), ("1-2:3", 93780), ("1-2:3:4", 93784)],
)
def test_times_of_slurm_are_read(text, seconds):
    assert time_limit(text) == seconds


@pytest.mark.parametrize(
    ("part", "request_of", "message"),
    [
        (Dask, Request(address="10.0.0.1:8786"), "write dask, dask:slurm, or the address of a scheduler"),
        (Dask, Request(address="slrum"), "write dask, dask:slurm, or the address of a scheduler"),
        (Dask, Request(resources={"time": "1-0"}), "it is for jobs of SLURM: --executor dask:slurm"),
        (Dask, Request(resources={"cpus": "999"}), "is more than the"),
        (Dask, Request(address="slurm", resources={"gpus": "0.5"}), "SLURM gives whole GPUs to a job"),
        (Submitit, Request(address="x"), "it has no address"),
        (Submitit, Request(resources={"gpus": ".5"}), "SLURM gives whole GPUs to a job"),
        (Submitit, Request(resources={"time": "5"}), "trains too little in less than 360"),
    ],
)
def test_what_cannot_be_had_is_refused(slurm, part, request_of, message):
    pytest.importorskip("dask_jobqueue", reason="pip install 'zoo-scale[dask]'")
    with pytest.raises(UsageError) as error:
        part().check(request_of)
    assert message in str(error.value)


@pytest.mark.parametrize(("part", "extra"), [(Dask, "dask"), (Submitit, "submitit")])
def test_an_engine_that_is_not_installed_is_named_with_the_line_that_installs_it(part, extra, monkeypatch):
    for module in ("distributed", "submitit"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'zoo-scale\[{extra}\]'"):
        part().check(Request())


@pytest.mark.parametrize(("part", "address"), [(Dask, "slurm"), (Submitit, "")])
def test_without_slurm_a_sentence_says_so(part, address, monkeypatch, tmp_path):
    pytest.importorskip("submitit", reason="pip install 'zoo-scale[submitit]'")
    pytest.importorskip("dask_jobqueue", reason="pip install 'zoo-scale[dask]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch here"):
        part().check(Request(address=address))


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
    monkeypatch.setattr(executors, "CONNECT", 0.5)
    with pytest.raises(UsageError, match=r"--executor dask:tcp://127\.0\.0\.1:9: no scheduler answers there within"):
        Dask().start(Request(address="tcp://127.0.0.1:9"))


def test_runs_on_dask_give_what_runs_of_this_machine_give(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
    fake_compare = pytest.importorskip("tests.compare.fake_compare", reason="it is in zoo's checkout")
    settings = {"jobs": 2, "jobs_of": {"variants": "ab", "seeds": [1, 2]}}
    results = []
    for executor in ("processes", "dask"):
        runs = tmp_path / executor
        runs.mkdir()
        words = [sys.executable, fake_compare.__file__, str(runs), json.dumps({**settings, "executor": executor})]
        environment = {**os.environ, "PYTHONPATH": str(Path(fake_compare.__file__).parents[2])}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        paths = sorted(runs.rglob("ledger.json"))
        results.append([{k: v for k, v in json.loads(path.read_text()).items() if k != "cost"} for path in paths])
    assert len(results[0]) == 4
    assert results[0] == results[1]


def test_a_scheduler_whose_workers_offer_too_little_is_refused_with_the_line_that_starts_them():
    distributed = pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    with distributed.LocalCluster(**options, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        with pytest.raises(UsageError, match=r'--nthreads 1 --resources "gpus=1"'):
            Dask().start(Request(address=address, resources={"gpus": "1"}))


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.campaign] if "run" in check.name or "start" in check.name else [])
        for part in (Dask, Submitit)
        for check in checks(part)
    ],
    ids=lambda check: f"{check.subject.name}-{check}",
)
def test_contract(check):
    check()


def test_several_runs_at_once_on_dask_do_not_exceed_the_jobs(tmp_path):
    pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
    engine = Dask()
    engine.start(Request(1, trainer={"accelerator": "cpu"}))
    try:
        futures = [engine.submit(SampleRun(tmp_path, number, 0.2)) for number in (1, 2)]
        assert not wait(futures, 120).not_done
        assert [future.result() for future in futures] == [1, 2]
    finally:
        engine.stop()
