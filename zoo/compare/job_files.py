"""Job files of a comparison for many machines: a job per shard of its seeds, and one for the table after them.

SLURM jobs save their runs and are requeued before their time is over; Kubernetes has an indexed job; `sh` needs none.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zoo.compare.execute import GRACE
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files
from zoo.registry import suggest

Kind = Literal["slurm", "k8s", "sh"]
GRACE_SECONDS = int(GRACE) + 60  # for the runs to save their state, and for what is busy until they can
REQUEUES = 100  # of a job that its time limit has stopped
COUNT, SIZE, NAME = r"[1-9]\d{0,4}", r"\d{1,6}[MGT]", r"[\w][\w./:@-]*"
RESOURCES = {  # what each kind of job may ask for: names, and patterns of their values
    "slurm": {"gpus": COUNT, "cpus": COUNT, "memory": SIZE, "time": r"(\d+-)?\d+(:\d\d){0,2}", "partition": NAME},
    "k8s": {"gpus": COUNT, "cpus": COUNT, "memory": SIZE, "image": NAME, "claim": NAME},
    "sh": {"gpus": COUNT},
}
EXAMPLES = {"gpus": "1", "cpus": "8", "memory": "16G", "time": "04:00:00", "partition": "gpu",
            "image": "registry.example/zoo:1", "claim": "runs"}  # fmt: skip
NEEDED = {"k8s": {"image": "the container image with zoo", "claim": "the volume claim that all pods share"}}
SBATCH = {"gpus": "--gres=gpu:{}", "cpus": "--cpus-per-task={}", "memory": "--mem={}", "time": "--time={}",
          "partition": "--partition={}"}  # fmt: skip


@dataclass(frozen=True)
class ShardedCommand:
    """A command of `zoo compare` without ``--shard``, the comparison's title, and the number of shards of its seeds."""

    words: tuple[str, ...]
    title: str
    shards: int
    resources: Mapping[str, str] = field(default_factory=dict)  # of each job, see RESOURCES

    @property
    def text(self) -> str:
        """The command line for a shell, with paths as its user wrote them."""
        return shlex.join(["zoo", "compare", *self.words])


def parse_resources(kind: Kind, text: str | None) -> dict[str, str]:
    """The resources of each job, ``gpus=1,time=04:00:00``. Raises UsageError for unknown, wrong and missing ones."""
    patterns, result = RESOURCES[kind], {}
    for piece in text.split(",") if text else ():
        name, _, value = piece.partition("=")
        if name not in patterns:
            raise UsageError(
                f"--resources {piece!r:.60}: jobs for {kind} have no {name!r:.40}.{suggest(name, patterns)} "
                f"There are: {', '.join(patterns)}."
            )
        if not re.fullmatch(patterns[name], value):
            raise UsageError(f"--resources {piece!r:.60}: write it as {name}={EXAMPLES[name]}")
        result[name] = value
    for name, what in NEEDED.get(kind, {}).items():
        if name not in result:
            raise UsageError(f"--emit {kind} needs {what}: --resources {name}={EXAMPLES[name]}")
    if "time" in result and time_limit(result["time"]) <= 2 * GRACE_SECONDS:
        raise UsageError(
            f"--resources time={result['time']}: a job is stopped {GRACE_SECONDS} seconds before its time is over, to "
            f"save its runs, and trains too little in less than {2 * GRACE_SECONDS}."
        )
    return result


def time_limit(text: str) -> int:
    """The seconds of SLURM's ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds`` or ``days-hours:…``."""
    days, dash, clock = text.rpartition("-")
    numbers = [int(piece) for piece in clock.split(":")]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def file_name(title: str) -> str:
    """A title as part of a file's name that needs no quotes in a shell; with a digest where letters are left out."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", title).strip("-.") or "comparison"
    return name if title.isascii() else f"{name}-{hashlib.sha256(title.encode()).hexdigest()[:8]}"


def render(kind: Kind, command: ShardedCommand) -> dict[str, str]:
    """The job files, by their paths relative to the folder in which the comparison runs; the first is to be called."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("zoo.compare", "templates/jobs"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, comment_start_string="<#", comment_end_string="#>",
    )  # fmt: skip
    title = file_name(command.title)
    folder = f"{title}-{kind}"
    values: dict[str, Any] = {
        "folder": folder, "shards": command.shards, "command": command.text, "resources": command.resources,
        "grace": GRACE_SECONDS, "requeues": REQUEUES, "gpus": int(command.resources.get("gpus", 0)),
        "options": [SBATCH[name].format(value) for name, value in command.resources.items() if name in SBATCH],
    }  # fmt: skip
    files: dict[str, tuple[str, dict[str, Any]]]
    if kind == "sh":
        files = {"run.sh": ("run.sh", {}), "shard.sh": ("shard.sh", {})}
    else:
        names = {"shards": f"shards-{title}", "table": f"table-{title}"}
        if kind == "k8s":
            names = {job: re.sub(r"[^a-z0-9]+", "-", name.lower())[:52].strip("-") for job, name in names.items()}
            values |= {"limits": _k8s_limits(command.resources), "names": names}
        template = {"slurm": "job.sbatch", "k8s": "job.yaml"}[kind]
        files = {"submit.sh": (f"{kind}_submit.sh", {})}
        for job, name in names.items():
            more = {"array": job == "shards", "name": name, "script": _k8s_script(command, job == "shards")}
            files[f"{job}{Path(template).suffix}"] = (template, more)
    return {
        f"{folder}/{name}": environment.get_template(template).render(**values, **more)
        for name, (template, more) in files.items()
    }


def _k8s_script(command: ShardedCommand, array: bool) -> str:
    """What a container runs; Kubernetes expands $(NAME) in it, and makes one $ of two."""
    shard = f' --shard "$((JOB_COMPLETION_INDEX + 1))/{command.shards}"' if array else ""
    return f"exec {command.text}{shard}".replace("$", "$$")


def _k8s_limits(resources: Mapping[str, str]) -> dict[str, str]:
    names = {"gpus": "nvidia.com/gpu", "cpus": "cpu", "memory": "memory"}
    return {names[name]: value for name, value in resources.items() if name in names}


def write_files(files: Mapping[str, str]) -> None:
    """Write the files. Raises UsageError, before it writes one, where a file has another content already."""
    for name, content in files.items():
        path = Path(name)
        if path.exists() and path.read_bytes() != content.encode():
            raise UsageError(f"{path} exists, and is not what this command writes. Move {path.parent} away.")
    try:
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_text(Path(name), content)
    except OSError as error:
        raise StorageError(f"cannot write {name}: {atomic_files.reason(error)}") from error


def count_shards(requested: int | None, seeds: Sequence[int]) -> int:
    """The number of shards: one per seed unless requested. Raises UsageError for more shards than seeds."""
    if requested is not None and requested > len(seeds):
        raise UsageError(
            f"--shards {requested}: there are {len(seeds)} seeds, and a shard has all variants of its seeds, because "
            f"variants on different machines would compare the machines. Use at most --shards {len(seeds)}."
        )
    return requested or len(seeds)
