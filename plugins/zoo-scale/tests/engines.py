"""The engines of comparisons on this machine, each with the services that it needs."""

import math
import os
import socket
import subprocess
import sys
import time

import pytest

one_node_slurm = pytest.importorskip("tests.compare.one_node_slurm", reason="it is in zoo's checkout")
LATEST = 90.0  # seconds until what follows a killed process has ended


def until(condition, patience, what):
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


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

    def state(self):
        """What an administrator would look at."""
        return ""


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
    restarted = math.inf  # when the controller was, until the node has been asked

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
            self.restarted = time.monotonic()
        # A controller that has lost its newest state drains the node, holds jobs, and counts jobs as running that have
        # ended meanwhile, until it asks the node. The following is what an administrator does then.
        if time.monotonic() - self.restarted > 20:
            self.cluster.call("scontrol", "reconfigure", check=False)
            self.restarted = math.inf
        self.cluster.call("scontrol", "update", "NodeName=ALL", "State=RESUME", check=False)
        pending = self.cluster.call("squeue", "--noheader", "--states=PENDING", "--format=%A %r", check=False)
        for number in [line.split()[0] for line in pending.splitlines() if "held" in line]:
            self.cluster.call("scontrol", "release", number, check=False)

    def state(self):
        jobs = self.cluster.call("scontrol", "show", "jobs", check=False)
        nodes = self.cluster.call("scontrol", "show", "nodes", check=False)
        logs = "".join((self.folder / f"{name}.log").read_text()[-3000:] for name in ("slurmctld", "slurmd"))
        return f"{jobs[-3000:]}\n{nodes}\n{logs}"

    def __exit__(self, *_):
        self.cluster.__exit__()


class DaskSlurm(Slurm):
    name = "dask:slurm"


class SubmititSlurm(Slurm):
    name, parts = "submitit", ("client", "worker", "run", "scheduler")


def require_slurm():
    """Skip a test where SLURM is not installed."""
    if missing := one_node_slurm.missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (apt-get install slurm-wlm munge)")
