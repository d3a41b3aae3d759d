"""A job of SLURM is signalled, by hand or near its limit, its node is drained or fails: queued again, it ends alike."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.campaigns.chaos import toys
from tests.compare import one_node_slurm
from zoo import registry

DISTURB = """
import os, subprocess, time
from lightning.pytorch import Callback
class Disturb(Callback):
    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        words = os.environ["DISTURBANCE"].replace("JOB", os.environ["SLURM_JOB_ID"])
        if not again and words and trainer.global_step == 8:
            if trainer.global_rank == 0:
                subprocess.run(words, shell=True, check=True)
            time.sleep(3)
"""
JOB = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --nodes=1 --ntasks-per-node={processes} --output={log} {options}
srun {command}
code=$?
echo "life $SLURM_RESTART_COUNT ended with $code"
if [ $code -eq 143 ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $code
"""
NODE = "scontrol update NodeName=ALL"
RESUME = f"{NODE} State=RESUME"
LIMIT = "--time=6 --signal=USR1@60"  # up to a minute earlier, which SLURM may do: step 8 waits for the signal
DISTURBANCES = {  # what happens at step 8, the exit code of the first life, and what an administrator does then
    "signal": ("scancel --signal=USR1 JOB", "life  ended with 143", ""),
    "drain": (f"{NODE} State=DRAIN Reason=disk && scontrol requeue JOB", "", RESUME),
    "failure": (f"{NODE} State=DOWN Reason=power", "", RESUME),
    "limit": ("trap 'exit 0' USR1; sleep 360 & wait", "step 9 is saved", ""),
}


def run_job(cluster, home, words, processes, disturbance=""):
    """What a job has printed that was submitted, disturbed, and queued again until it had ended."""
    begin, _, repair = DISTURBANCES.get(disturbance, ("", "", ""))
    log = home / f"{disturbance or 'undisturbed'}.log"
    options = LIMIT if disturbance == "limit" else ""
    command = shlex.join([sys.executable, "-m", "zoo", *words, f"--trainer.devices={processes}"])
    (home / "job").write_text(JOB.format(processes=processes, log=log, command=command, options=options))
    environment = {name: value for name, value in cluster.environment.items() if name != registry.DISABLE_VARIABLE}
    environment |= {"PYTHONPATH": f"{home}:{Path.cwd()}", "OMP_NUM_THREADS": "1", "DISTURBANCE": begin}
    submitted = subprocess.run(["sbatch", "job"], cwd=home, env=environment, capture_output=True, text=True, check=True)
    number, states = submitted.stdout.split()[-1], []
    deadline = time.monotonic() + 1500
    while state := cluster.call("squeue", "--noheader", f"--jobs={number}", "--format=%T %r", check=False).strip():
        assert time.monotonic() < deadline, f"{states}\n{log.read_text()}"
        states += [state] if state not in states else []
        if repair and state.startswith("PENDING") and "RUNNING None" in states:
            time.sleep(10)  # the node is not available: the job waits, or processes of its first life still end
            state = cluster.call("squeue", "--noheader", f"--jobs={number}", "--format=%T").strip()
            assert state in ("PENDING", "COMPLETING")
            cluster.call(*repair.split(), check=False)  # refused for a failed node that has come back by itself
            repair = ""
        elif "held" in state:  # processes of the first life were still on the node when it came back
            cluster.call(*RESUME.split(), check=False)
            cluster.call("scontrol", "release", number)
        time.sleep(0.5)
    print(disturbance, states)
    return log.read_text()


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(one_node_slurm.missing_programs()), reason="apt-get install slurm-wlm munge")
def test_a_job_that_is_queued_again_ends_as_the_one_that_nobody_disturbed(tmp_path):
    toys.write(tmp_path, accumulate=1, steps=14)
    (tmp_path / "disturb.py").write_text(DISTURB)
    words = ["fit", "lm.yaml", "--name", "default", "--save-every", "3", "--requeue", "--trainer.strategy", "ddp"]
    words += ["--allow-import", "disturb", "--trainer.callbacks", "[{class_path: disturb.Disturb}]"]
    processes = int(os.environ.get("PROCESSES", "2"))
    (tmp_path / "slurm").mkdir()
    with one_node_slurm.Cluster(tmp_path / "slurm") as cluster:
        run_job(cluster, tmp_path, [*words, "--runs", "undisturbed"], processes)
        expected = toys.outcome(tmp_path / "undisturbed/lm/default/s1")
        for name, (_, ending, _) in DISTURBANCES.items():
            text = run_job(cluster, tmp_path, [*words, "--runs", name], processes, name)
            print(text)
            assert ending in text
            assert re.search(r"life \d+ ended with 0", text)
            assert toys.differences(toys.outcome(tmp_path / name / "lm/default/s1"), expected) == []
