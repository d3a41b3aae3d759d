"""zoo's own executors: job files for SLURM, for Kubernetes, and for machines that share a folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from zoo.compare.execute import GRACE
from zoo.compare.executor import COUNT, NAME, SIZE, Executor, Resource, ShardedCommand, file_name
from zoo.errors import UsageError

GRACE_SECONDS = int(GRACE) + 60  # for the runs to save their state, and for what is busy until they can
REQUEUES = 100  # how often a job that its time limit stopped is queued again
GPUS, CPUS, MEMORY = (
    Resource("gpus", COUNT, "1"), Resource("cpus", COUNT, "8"), Resource("memory", SIZE, "16G"),
)  # fmt: skip


class Slurm(Executor):
    """An array of SLURM's: a task that runs out of time is requeued. Resources: gpus, cpus, memory, time, partition."""

    resources = (
        GPUS, CPUS, MEMORY, Resource("time", r"(\d+-)?\d+(:\d\d){0,2}", "04:00:00"), Resource("partition", NAME, "gpu"),
    )  # fmt: skip
    sbatch: ClassVar[Mapping[str, str]] = {
        "gpus": "--gres=gpu:{}", "cpus": "--cpus-per-task={}", "memory": "--mem={}", "time": "--time={}",
        "partition": "--partition={}",
    }  # fmt: skip
    stand_ins = {  # noqa: RUF012
        "sbatch": r"""#!/bin/bash
file="${@: -1}"
log=$(sed -n 's/^#SBATCH --output=//p' "$file")
count=$(sed -n 's/^#SBATCH --array=1-//p' "$file")
case "$*" in *afterok*) if [ -e failed ]; then exit 0; fi ;; esac
for task in $(seq "${count:-1}"); do
    SLURM_ARRAY_TASK_ID=$task bash "$file" >>"${log//%a/$task}" 2>&1 || touch failed
done
echo 7
"""
    }

    def check_resources(self, resources: Mapping[str, str]) -> None:
        """Raise UsageError for a time in which a job could do little but save its runs."""
        if "time" in resources and time_limit(resources["time"]) <= 2 * GRACE_SECONDS:
            raise UsageError(
                f"--resources time={resources['time']}: a job is stopped {GRACE_SECONDS} seconds before its time is "
                f"over, to save its runs, and trains too little in less than {2 * GRACE_SECONDS}."
            )

    def files(self, command: ShardedCommand) -> dict[str, str]:
        """The script that submits, the array, and the job of the table."""
        options = [self.sbatch[name].format(value) for name, value in command.resources.items()]
        values = {"requeues": REQUEUES, "options": options}
        jobs = {
            f"{job}.sbatch": ("job.sbatch", {"array": job == "shards", "name": f"{job}-{file_name(command.title)}"})
            for job in ("shards", "table")
        }
        return _render(self, command, {"submit.sh": ("slurm_submit.sh", {}), **jobs}, **values)


class K8s(Executor):
    """An indexed Job of Kubernetes, whose pods share a volume. Resources: image and claim; gpus, cpus, memory."""

    resources = (
        GPUS, CPUS, MEMORY, Resource("image", NAME, "registry.example/zoo:1", "the container image with zoo"),
        Resource("claim", NAME, "runs", "the volume claim that all pods share"),
    )  # fmt: skip
    limits: ClassVar[Mapping[str, str]] = {"gpus": "nvidia.com/gpu", "cpus": "cpu", "memory": "memory"}
    stand_ins = {  # noqa: RUF012
        "kubectl": rf"""#!{sys.executable}
import os, pathlib, subprocess, sys, yaml
if sys.argv[1] == "get":
    sys.exit(print("Complete"))
job = yaml.safe_load(pathlib.Path(sys.argv[3]).read_text())
(container,) = job["spec"]["template"]["spec"]["containers"]
words = [word.replace("$$", "$") for word in (*container["command"], *container["args"])]
for index in range(job["spec"].get("completions", 1)):
    with open(f"{{job['metadata']['name']}}-{{index}}.log", "ab") as log:  # what `kubectl logs` prints
        env = {{**os.environ, "JOB_COMPLETION_INDEX": str(index)}}
        subprocess.run(words, stdout=log, stderr=log, env=env)
"""
    }

    def files(self, command: ShardedCommand) -> dict[str, str]:
        """The script that creates the Jobs, the Job of the shards, and that of the table."""
        names = {
            job: re.sub(r"[^a-z0-9]+", "-", f"{job}-{file_name(command.title)}".lower())[:52].strip("-")
            for job in ("shards", "table")
        }
        limits = {self.limits[name]: value for name, value in command.resources.items() if name in self.limits}
        jobs = {}
        for job, name in names.items():
            shard = f' --shard "$((JOB_COMPLETION_INDEX + 1))/{command.shards}"' if job == "shards" else ""
            script = f"exec {command.text}{shard}".replace("$", "$$")  # Kubernetes expands $(NAME), and makes $ of $$
            jobs[f"{job}.yaml"] = ("job.yaml", {"array": job == "shards", "name": name, "script": script})
        return _render(self, command, {"submit.sh": ("k8s_submit.sh", {}), **jobs}, limits=limits, names=names)


class Sh(Executor):
    """Scripts for sh: all shards at once on this machine, or each on any that shares the folder. Resources: gpus."""

    resources = (GPUS,)
    verb = "run"

    def files(self, command: ShardedCommand) -> dict[str, str]:
        """The script that runs all shards, and that of one shard."""
        scripts: dict[str, tuple[str, dict[str, Any]]] = {"run.sh": ("run.sh", {}), "shard.sh": ("shard.sh", {})}
        return _render(self, command, scripts, gpus=int(command.resources.get("gpus", 0)))


def time_limit(text: str) -> int:
    """The seconds of SLURM's ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds`` or ``days-hours:…``."""
    days, dash, clock = text.rpartition("-")
    numbers = [int(piece) for piece in clock.split(":")]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _render(
    executor: Executor, command: ShardedCommand, files: Mapping[str, tuple[str, Mapping[str, Any]]], **values: Any
) -> dict[str, str]:
    """The text of each file by its path: a template and values of its own, besides those of all files."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates/jobs"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, comment_start_string="<#", comment_end_string="#>",
    )  # fmt: skip
    values |= {
        "folder": executor.folder(command), "shards": command.shards, "command": command.text,
        "resources": command.resources, "grace": GRACE_SECONDS,
    }  # fmt: skip
    return {
        f"{executor.folder(command)}/{name}": environment.get_template(template).render(**values, **own)
        for name, (template, own) in files.items()
    }
