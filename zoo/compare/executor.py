"""Executors: write jobs that run the shards of a comparison on many machines, and its table after them.

`zoo compare … --emit NAME` runs nothing itself. Needs no torch.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from zoo import registry
from zoo.command_line import ParsedOptions
from zoo.errors import PartError, PluginError, StorageError, UsageError
from zoo.io import atomic_files
from zoo.plugins import diagnosis

if TYPE_CHECKING:
    from zoo.compare.plan import Comparison

KIND = "executor"
COUNT, SIZE, NAME = r"[1-9]\d{0,4}", r"\d{1,6}[MGT]", r"[\w][\w./:@-]*"  # patterns of resources
OPTIONS = ("--emit", "--shards", "--resources")
INCOMPATIBLE = {"shard": "--shards N", "dry_run": "one of the two", "exit_code": "it for the table"}


@dataclass(frozen=True)
class Resource:
    """Something that ``--resources NAME=VALUE`` asks for, for each job: ``pattern`` matches every right value."""

    name: str
    pattern: str
    example: str
    required: str = ""  # what it is, where no job runs without it

    def problem(self) -> str:
        """What is wrong with it, as part of a sentence; empty where nothing is."""
        texts = (self.name, self.pattern, self.example, self.required)
        if not all(isinstance(text, str) for text in texts) or not re.fullmatch(r"[\w-]+", self.name):
            return f"its resource {self.name!r:.60} needs texts, and a name of letters, digits, - and _"
        try:
            fits = re.fullmatch(self.pattern, self.example)
        except re.error as error:
            return f"the pattern of its resource {self.name} is no regular expression: {error}"
        return "" if fits else f"the example of its resource {self.name} does not fit its pattern"


@dataclass(frozen=True)
class ShardedCommand:
    """A command of `zoo compare` without ``--shard``, the comparison's title, and the number of shards of its seeds."""

    words: tuple[str, ...]
    title: str
    shards: int
    resources: Mapping[str, str] = field(default_factory=dict)  # resources of each job

    @property
    def text(self) -> str:
        """The command line for a shell, with paths as its user wrote them."""
        return shlex.join(["zoo", "compare", *self.words])


class Executor:
    """A way to run a comparison on many machines, named after its class in lower case: `zoo compare … --emit NAME`.

    A package registers it by an entry point in the group ``zoo.executor``. Its jobs call the command once with
    ``--shard I/N`` for each I from 1 to N, and then without a shard, which runs what failed jobs left undone and
    prints the table.
    """

    kind = "executor"
    resources: tuple[Resource, ...] = ()
    verb = "submit"  # what calling `start` does
    start = "sh {file}"  # the command that starts all jobs, with the path of the first file that `files` returns
    # programs of the scheduler by their names, as scripts that do at once what it does: with them `zoo check` calls
    # `start`
    stand_ins: Mapping[str, str] = {}
    name = ""  # set for each class

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__.lower()

    def files(self, command: ShardedCommand) -> dict[str, str]:
        """The text of each file by its path below `folder`, which is relative; the first is that of `start`."""
        raise NotImplementedError

    def check_resources(self, resources: Mapping[str, str]) -> None:
        """Raise UsageError for resources whose values fit their patterns and yet are wrong."""

    def folder(self, command: ShardedCommand) -> str:
        """The name of the folder of the files, which needs no quotes in a shell."""
        return f"{file_name(command.title)}-{self.name}"

    def problem(self) -> str:
        """What is wrong with the description, as part of a sentence; empty where nothing is."""
        if not isinstance(self.resources, tuple) or not all(isinstance(item, Resource) for item in self.resources):
            return "its attribute resources must be a tuple of Resource"
        if not isinstance(self.verb, str) or not isinstance(self.start, str):
            return "its attributes verb and start must be texts"
        return next(filter(None, (resource.problem() for resource in self.resources)), "")


def find_executor(name: str) -> Executor:
    """The executor of that name. Raises UsageError for an unknown one, PluginError where its package is at fault."""
    try:
        part = diagnosis.choose_part(KIND, name)
    except PartError as error:
        raise UsageError(f"--emit: {error}") from error
    return diagnosis.build_part(part, Executor)


def parse_resources(executor: Executor, text: str | None) -> dict[str, str]:
    """The resources of each job, ``gpus=1,time=04:00:00``. Raises UsageError for unknown, wrong and missing ones."""
    declared, result = {resource.name: resource for resource in executor.resources}, {}
    for piece in text.split(",") if text else ():
        name, _, value = piece.partition("=")
        if name not in declared:
            raise UsageError(
                f"--resources {piece!r:.60}: jobs for {executor.name} have no {name!r:.40}."
                f"{registry.suggest(name, declared)} There are: {', '.join(declared) or 'none'}."
            )
        if not re.fullmatch(declared[name].pattern, value):
            raise UsageError(f"--resources {piece!r:.60}: write it as {name}={declared[name].example}")
        result[name] = value
    for resource in executor.resources:
        if resource.required and resource.name not in result:
            example = f"--resources {resource.name}={resource.example}"
            raise UsageError(f"--emit {executor.name} needs {resource.required}: {example}")
    executor.check_resources(result)
    return result


def file_name(title: str) -> str:
    """A title as part of a file's name that needs no quotes in a shell; with a digest where letters are left out."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", title).strip("-.") or "comparison"
    return name if title.isascii() else f"{name}-{hashlib.sha256(title.encode()).hexdigest()[:8]}"


def count_shards(requested: int | None, seeds: Sequence[int]) -> int:
    """The number of shards: one per seed unless requested. Raises UsageError for more shards than seeds."""
    if requested is not None and requested > len(seeds):
        raise UsageError(
            f"--shards {requested}: there are {len(seeds)} seeds, and a shard has all variants of its seeds, because "
            f"variants on different machines would compare the machines. Use at most --shards {len(seeds)}."
        )
    return requested or len(seeds)


def make_files(executor: Executor, command: ShardedCommand) -> dict[str, str]:
    """The files of a command's jobs. Raises PluginError for what is no text, or lies outside of the folder."""
    files = executor.files(command)
    whole = isinstance(files, dict) and files and all(isinstance(text, str) for text in (*files, *files.values()))
    if not whole or any(PurePosixPath(path).parts[:1] != (executor.folder(command),) or ".." in path for path in files):
        raise PluginError(
            f"executor {executor.name!r} must give texts by their paths below {executor.folder(command)}, gives "
            f"{list(files) if isinstance(files, dict) else files!r:.200}."
        )
    return files


def write_files(files: Mapping[str, str]) -> None:
    """Write the files. Raises UsageError, before it writes any, where a file has another content already."""
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


def emit(options: ParsedOptions, comparison: Comparison | None) -> int:
    """Write the job files of a comparison, and print what to do with them. Raises UsageError where there is none."""
    from zoo.compare import plan, scale_runs

    for name, instead in INCOMPATIBLE.items():
        if options.get(name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --emit: use {instead}.")
    executor = find_executor(options.get("emit"))
    if comparison is None:
        raise UsageError("--emit is for a comparison that is to be run: zoo compare RECIPE --vary … --emit slurm")
    if comparison.until:
        name = "--until decided" if comparison.until == "decided" else f"--looks {comparison.until}"
        raise UsageError(f"{name} looks at all runs after some seeds, which --emit divides: leave one out.")
    for words in scale_runs.check_request(comparison):
        plan.draft_command(words)
    resources = parse_resources(executor, options.get("resources"))
    shards = count_shards(options.get("shards"), comparison.seeds)
    command = ShardedCommand(_words_of_runs(options.argv), comparison.title, shards, resources)
    files = make_files(executor, command)
    write_files(files)
    print("\n".join(files))
    print(f"\n{executor.verb}  {executor.start.format(file=next(iter(files)))}")
    return 0


def _words_of_runs(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the options about jobs."""
    result, skip = [], False
    for word in argv:
        if not skip and word.partition("=")[0] not in OPTIONS:
            result.append(word)
        skip = not skip and word in OPTIONS
    return tuple(result)
