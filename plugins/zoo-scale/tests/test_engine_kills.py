"""Workers, schedulers, clients and runs of every engine are killed at random moments: the same table, once each run.

The runs learn nothing (tests/compare/fake_fit.py of zoo's checkout). A campaign of real minutes: KILLS (20) an engine.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engines import LATEST, DaskScheduler, DaskSlurm, Engine, Slurm, SubmititSlurm, require_slurm, until

from zoo.io.locks import Lock

psutil = pytest.importorskip("psutil", reason="it comes with dask: pip install 'zoo-scale[dask]'")
pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
fake_compare = pytest.importorskip("tests.compare.fake_compare", reason="it is in zoo's checkout")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(7200)]
ROOT = Path(fake_compare.__file__).parents[2]
KILLS = int(os.environ.get("KILLS", "20"))
JOBS_OF = {"variants": "ab", "seeds": [1, 2, 3]}
MARK = "ZOO_TEST_OF_KILLS"  # a variable that everything which is started has
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


def ledgers(runs):
    """What a comparison reads of its runs, but for what a clock says."""
    names = ("best", "last", "batches", "steps", "finished", "validations")
    return {
        str(path.relative_to(runs)): {name: json.loads(path.read_text())[name] for name in names}
        for path in sorted(Path(runs).rglob("ledger.json"))
    }


@pytest.mark.parametrize("engine", [Engine, DaskScheduler, DaskSlurm, SubmititSlurm], ids=lambda cls: cls.__name__)
def test_kills_at_random_moments_give_the_same_table(engine, tmp_path, monkeypatch):
    if issubclass(engine, Slurm):
        require_slurm()
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
                assert time.monotonic() < deadline, f"the comparison does not end: {site.state()}"
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
