"""Workers, schedulers, clients and runs of every engine are killed at random moments: the same table, once each run.

The runs learn nothing (tests/compare/fake_fit.py of zoo's checkout). A campaign of real minutes: KILLS (20) an engine.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zoo.io.locks import Lock

psutil = pytest.importorskip("psutil", reason="it comes with dask: pip install 'zoo-scale[dask]'")
pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
fake_compare = pytest.importorskip("tests.compare.fake_compare", reason="it is in zoo's checkout")
one_node_slurm = pytest.importorskip("tests.compare.one_node_slurm", reason="it is in zoo's checkout")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(7200)]
ROOT = Path(fake_compare.__file__).parents[2]
KILLS = int(os.environ.get("KILLS", "20"))
JOBS_OF = {"variants": "ab", "seeds": [1, 2, 3]}
MARK = "ZOO_TEST_OF_KILLS"  # a variable that everything which is started has
LATEST = 90.0  # seconds until what follows a killed process has ended
PARTS = {  # what is killed: words of its command line
    "client": "fake_compare.py", "run": "fake_fit.py", "worker": "spawn_main|dask_worker|dask worker|submitit.core",
    "scheduler": "dask scheduler|slurmctld",
}  # fmt: skip


def processes(what):
    """The processes of this test that are a part of PARTS, the oldest first."""
    result = []
    for process in psutil.process_iter(["cmdline", "environ", "status", "create_time"]):
        line, variables = " ".join(process.info["cmdline"] or []), process.info["environ"] or {}
        is_shell = line.startswith(("/bin/bash", "bash", "srun"))
        words = any(word in line for word in PARTS[what].split("|"))
        if words and not is_shell and process.info["status"] != "zombie" and MARK in variables:
            result.append(process)
    return sorted(result, key=lambda process: process.info["create_time"])


def until(condition, patience, what):
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ledgers(runs):
    """What a comparison reads of its runs, but for what a clock says."""
    names = ("best", "last", "batches", "steps", "finished", "validations")
    return {
        str(path.relative_to(runs)): {name: json.loads(path.read_text())[name] for name in names}
        for path in sorted(Path(runs).rglob("ledger.json"))
    }


class Engine:
    """An engine with what has to run beside the comparison; ``parts`` can be killed."""

    name, parts = "dask", ("client", "worker", "run")

    def __init__(self, folder):
        self.folder, self.environment = folder, dict(os.environ)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def repair(self):
        """Start again what was killed and is no part of the comparison."""


class DaskScheduler(Engine):
    parts = ("client", "worker", "run", "scheduler")

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.name, self.started = f"dask:{self.address}", []
        self.repair()
        return self

    def start(self, *words):
        with (self.folder / "dask.log").open("ab") as log:
            words = [sys.executable, "-m", "dask", *words]
            self.started.append(subprocess.Popen(words, stdout=log, stderr=log))

    def repair(self):
        alive = [process for process in self.started if process.poll() is None]
        if not any("scheduler" in process.args for process in alive):
            until(lambda: not [p for p in self.started if p.poll() is None], LATEST, "workers outlive their scheduler")
            port = self.address.rpartition(":")[2]
            self.start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-jupyter")
            alive = []
        for _ in range(2 - sum("worker" in process.args for process in alive)):
            self.start(
                "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60"
            )

    def __exit__(self, *_):
        for process in self.started:  # a worker that looks for its scheduler does not hear SIGTERM
            process.kill()
            process.wait(60)


class Slurm(Engine):
    def __enter__(self):
        self.cluster = one_node_slurm.Cluster(self.folder)
        self.cluster.__enter__()
        self.environment = self.cluster.environment
        return self

    def repair(self):
        if self.cluster.daemons[1].poll() is not None:
            self.cluster.daemons.pop(1)
            self.cluster._run_daemon("slurmctld", "-D")
            self.cluster.daemons.insert(1, self.cluster.daemons.pop())
        # a controller that has lost its newest state drains the node and holds jobs: what an administrator does then
        self.cluster.call("scontrol", "update", "NodeName=ALL", "State=RESUME", check=False)
        pending = self.cluster.call("squeue", "--noheader", "--states=PENDING", "--format=%A %r", check=False)
        for number in [line.split()[0] for line in pending.splitlines() if "held" in line]:
            self.cluster.call("scontrol", "release", number, check=False)

    def __exit__(self, *_):
        self.cluster.__exit__()


class DaskSlurm(Slurm):
    name = "dask:slurm"


class SubmititSlurm(Slurm):
    name, parts = "submitit", ("client", "worker", "run", "scheduler")


@pytest.mark.parametrize("engine", [Engine, DaskScheduler, DaskSlurm, SubmititSlurm], ids=lambda cls: cls.__name__)
def test_kills_at_random_moments_give_the_same_table(engine, tmp_path, monkeypatch):
    if issubclass(engine, Slurm) and one_node_slurm.missing_programs():
        pytest.skip(f"not installed: {', '.join(one_node_slurm.missing_programs())} (apt-get install slurm-wlm munge)")
    monkeypatch.setenv(MARK, "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    draw = random.Random(int(os.environ.get("KILL_SEED", "36")))
    counts = dict.fromkeys(engine.parts, 0)
    service = tmp_path / "service"
    service.mkdir()
    expected = tmp_path / "undisturbed"
    expected.mkdir()
    assert fake_compare.execute.execute(fake_compare.jobs(expected, **JOBS_OF), fake_compare.how(jobs=2)) == {}
    with engine(service) as site:

        def start(runs, step):
            environment = {**site.environment, "FAKE_FIT": json.dumps({"step": step})}
            settings = {
                "jobs": 2,
                "executor": site.name,
                "jobs_of": JOBS_OF,
                "environment": {"FAKE_FIT": environment["FAKE_FIT"]},
            }
            words = [sys.executable, fake_compare.__file__, str(runs), json.dumps(settings)]
            with (tmp_path / "log").open("ab") as log:
                return subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)

        for trial in range(KILLS):
            began = time.monotonic()
            runs = tmp_path / f"trial{trial}"
            runs.mkdir()
            comparison = start(runs, 0.25)
            until(
                lambda comparison=comparison: processes("run") or comparison.poll() is not None, LATEST, "no run begins"
            )
            time.sleep(draw.uniform(0.0, 6.0))
            part = engine.parts[trial % len(engine.parts)]
            if victims := processes(part):
                victim = draw.choice(victims)
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
                counts[part] += 1
            if part == "client":
                comparison.wait(LATEST)
                if engine is not SubmititSlurm:  # whose jobs go on in SLURM's queue
                    until(lambda: not processes("run"), LATEST, "a run outlives its comparison")
            if part == "scheduler":
                time.sleep(draw.uniform(0.0, 3.0))
            site.repair()
            deadline = time.monotonic() + 4 * LATEST
            while comparison.poll() is None:
                assert time.monotonic() < deadline, "the comparison does not end"
                site.repair()
                time.sleep(1.0)
            code = comparison.returncode
            for _ in range(4):  # a run that was killed is a failure; the same command goes on
                if code == 0:
                    break
                site.repair()
                code = start(runs, 0.02).wait(4 * LATEST)
            print(
                f"{engine.__name__} {trial}: {part} killed, code {code}, {time.monotonic() - began:.0f} s", flush=True
            )
            assert code == 0, (tmp_path / "log").read_text()[-3000:]
            assert ledgers(runs) == ledgers(expected)
            journal = (runs / "journal").read_text()
            assert "twice" not in journal, journal
            until(lambda: not processes("run"), LATEST, "a run outlives the comparison")
            assert [path for path in runs.rglob("*.lock") if Lock(path).holder() is not None] == []
    until(lambda: not processes("worker"), LATEST, "a worker outlives its engine")
    print(f"{engine.__name__}: killed {counts}", flush=True)
