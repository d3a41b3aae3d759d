"""A SLURM cluster of one node in a temporary folder: munged, slurmctld and slurmd of this user, without cgroups."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue")
EXTRA_PATH = "/usr/sbin"  # where Debian has the daemons, which the PATH of a user need not name
CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=10
MaxArraySize=1001
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs():
    """The programs of SLURM and munge that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=_path())]


def _path():
    return f"{os.environ.get('PATH', '')}:{EXTRA_PATH}"


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """A running cluster; ``environment`` is what its commands need."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.daemons = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        ports = _free_ports(2)
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                host=socket.gethostname().partition(".")[0], user=getpass.getuser(), folder=self.folder,
                cores=len(os.sched_getaffinity(0)), controller_port=ports[0], node_port=ports[1],
            )
        )  # fmt: skip
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge = [f"--{name}={self.folder}/munge.{ending}" for name, ending in
                 (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]  # fmt: skip
        self._run_daemon("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        self._wait_until(lambda: (self.folder / "munge.socket").exists())
        self._run_daemon("slurmctld", "-D", "-c")
        self._run_daemon("slurmd", "-D", "-c")
        self._wait_until(lambda: "idle" in self.call("sinfo", "--noheader", "--format=%T", check=False))

    def _run_daemon(self, *words):
        log = (self.folder / f"{words[0]}.out").open("wb")
        self.daemons.append(
            subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def _wait_until(self, condition, patience=60.0):
        deadline = time.monotonic() + patience
        while not condition():
            ended = [one.args[0] for one in self.daemons if one.poll() is not None]
            logs = "\n".join(path.read_text("utf-8", "replace")[-2000:] for path in self.folder.glob("*.out"))
            assert not ended, f"{ended} ended:\n{logs}"
            assert time.monotonic() < deadline, f"SLURM did not start:\n{logs}"
            time.sleep(0.2)

    def call(self, *words, check=True, cwd=None):
        """The output of a command."""
        result = subprocess.run(words, env=self.environment, capture_output=True, text=True, cwd=cwd, timeout=60)
        assert not check or result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def __exit__(self, *_):
        if self.daemons:
            self.call("scancel", "--full", f"--user={getpass.getuser()}", check=False)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
