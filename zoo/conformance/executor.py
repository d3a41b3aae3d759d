"""The contract of an executor of comparisons, tried with stand-ins for the programs of its scheduler."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from zoo.compare.executor import Executor, ShardedCommand, make_files, parse_resources
from zoo.conformance.check import require
from zoo.conformance.command import description_is_light
from zoo.conformance.common import documentation
from zoo.conformance.subject import Independent
from zoo.errors import UsageError

SHARDS, LIMIT = 3, 120.0  # seconds for all jobs of stand-ins
WORDS = (
    "./my recipe.yaml",
    "--vary",
    "model.norm={class_path: 'RMSNorm'},LayerNorm",
    '--model.text=$(false) "`x`" $$1\\',
)
TITLE = "norm+ffn é"
# writes down how it was called, when it ends, and fails for the shard of FAILS
ZOO = r"""#!/bin/sh
case "$*" in *--shard*) sleep 0.2 ;; esac
for word; do shard=$word; done
echo "output of $shard"
printf '%s\0' "$@" >"$CALLS/$(date +%s%N)-$$"
[ "$shard" != "$FAILS" ]
"""


def sample_command(executor: Executor) -> ShardedCommand:
    """A command whose words need quotes, with every resource of the executor."""
    text = ",".join(f"{resource.name}={resource.example}" for resource in executor.resources if resource.name != "gpus")
    return ShardedCommand(WORDS, TITLE, SHARDS, parse_resources(executor, text))


def start_jobs(executor: Executor, folder: Path, fails: str = "") -> tuple[list[list[str]], str]:
    """Write the files of the sample into a folder and start them: the calls of zoo in the order of their ends, and
    what was printed.
    """
    programs, calls, site = (folder / name for name in ("programs", "calls", "site"))
    for place in (programs, calls, site):
        place.mkdir(exist_ok=True)
    for name, text in {"zoo": ZOO, **executor.stand_ins}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    files = make_files(executor, sample_command(executor))
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls), "FAILS": fails}
    line = executor.start.format(file=next(iter(files)))
    try:
        done = subprocess.run(
            ["sh", "-c", line], cwd=site, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        require(False, f"`{line}` has not ended after {LIMIT:.0f} seconds, with the programs of `stand_ins`.")
    calls_of_zoo = [path.read_text().split("\0")[:-1] for path in sorted(calls.iterdir())]
    require(bool(calls_of_zoo), f"`{line}` calls no zoo: {(done.stderr or done.stdout)[-300:]!r}")
    return calls_of_zoo, done.stdout + done.stderr


def shards_of(calls: Sequence[Sequence[str]]) -> list[str]:
    """What follows ``--shard`` in each call; empty for a call without it."""
    return [call[call.index("--shard") + 1] if "--shard" in call[:-1] else "" for call in calls]


def files_are_relocatable(subject: Independent) -> None:
    """The files are texts below one folder, the same whenever they are made, and without this machine's paths."""
    executor = subject.build()
    files = make_files(executor, sample_command(executor))
    require(files == make_files(executor, sample_command(executor)), "a second call gives other files.")
    for name, text in files.items():
        require(str(Path.cwd()) not in text, f"{name} has the path of the working folder: jobs run elsewhere.")


def every_seed_is_covered_once(subject: Independent) -> None:
    """zoo is called once for each shard, and without a shard after all of them have ended."""
    with tempfile.TemporaryDirectory() as folder:
        calls, _ = start_jobs(subject.build(), Path(folder))
    shards = shards_of(calls)
    expected = Counter([*(f"{number + 1}/{SHARDS}" for number in range(SHARDS)), ""])
    require(Counter(shards) == expected, f"the calls have the shards {shards}, expected {sorted(expected)}.")
    require(not shards[-1], f"the table's call, without a shard, does not wait for the others: {shards}.")


def words_arrive(subject: Independent) -> None:
    """Every word of the command arrives as it was typed, whatever signs of a shell are in it."""
    with tempfile.TemporaryDirectory() as folder:
        calls, _ = start_jobs(subject.build(), Path(folder))
    for call in calls:
        words = call[: call.index("--shard")] if "--shard" in call else call
        require(words == ["compare", *WORDS], f"zoo is called with {words}, expected {['compare', *WORDS]}.")


def failures_are_made_up_for(subject: Independent) -> None:
    """After a shard has failed, the call without a shard follows, which runs what was left; a second start works."""
    executor = subject.build()
    with tempfile.TemporaryDirectory() as folder:
        calls, _ = start_jobs(executor, Path(folder), fails=f"2/{SHARDS}")
        require("" in shards_of(calls), "shard 2 fails, and there is no call without a shard.")
        again, _ = start_jobs(executor, Path(folder))
        missing = Counter(shards_of(calls)) - Counter(shards_of(again[len(calls) :]))
        require(not missing, f"started a second time, it does not call {[shard or 'the table' for shard in missing]}.")


def output_is_kept(subject: Independent) -> None:
    """What each job prints is in a file afterwards, or was printed by the start, and a second start keeps it."""
    with tempfile.TemporaryDirectory() as folder:
        printed = [start_jobs(subject.build(), Path(folder))[1] for _ in range(2)]
        logs = [path.read_text() for path in Path(folder, "site").rglob("*") if path.is_file()]
        for shard in [*(f"{number + 1}/{SHARDS}" for number in range(SHARDS)), WORDS[-1]]:
            count = sum(text.count(f"output of {shard}\n") for text in [*logs, *printed])
            require(count == 2, f"two starts print twice {f'output of {shard}'!r}, and {count} times it is kept.")


def resources_are_documented(subject: Independent) -> None:
    """The first paragraph of the docstring names every resource, and an unknown resource is refused with its name."""
    executor = subject.build()
    summary = (subject.part.__doc__ or "").partition("\n\n")[0]
    for resource in executor.resources:
        require(resource.name in summary, f"the docstring does not name the resource {resource.name}: zoo show does.")
    try:
        parse_resources(executor, "no-such-resource=1")
    except UsageError as error:
        require("no-such-resource" in str(error), f"the error does not name the unknown resource: {error}")
    else:
        require(False, "an unknown resource is ignored.")


PROMISES = [
    documentation, resources_are_documented, description_is_light, files_are_relocatable, every_seed_is_covered_once,
    words_arrive, failures_are_made_up_for, output_is_kept,
]  # fmt: skip
