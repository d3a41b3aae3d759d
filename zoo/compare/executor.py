"""Executors: engines that do the runs of a comparison, here or elsewhere: `zoo compare … --executor NAME:ADDRESS`.

Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.errors import PartError, UsageError
from zoo.plugins import diagnosis

if TYPE_CHECKING:
    from zoo.command_line import ParsedOptions
    from zoo.compare.parallel_runs import Outcome, SubmittedRun

KIND = "executor"
COUNT, SIZE, NAME = r"[1-9]\d{0,4}", r"[1-9]\d{0,5}[MGT]", r"[\w][\w./:@-]*"  # patterns of resources
UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Resource:
    """Something that ``--resources NAME=VALUE`` asks for, for each run: ``pattern`` matches every right value."""

    name: str
    pattern: str
    example: str

    def problem(self) -> str:
        """What is wrong with it, as part of a sentence; empty where nothing is."""
        if not all(isinstance(text, str) for text in (self.name, self.pattern, self.example)) or not re.fullmatch(
            r"[\w-]+", self.name
        ):
            return f"its resource {self.name!r:.60} needs texts, and a name of letters, digits, - and _"
        try:
            fits = re.fullmatch(self.pattern, self.example)
        except re.error as error:
            return f"the pattern of its resource {self.name} is no regular expression: {error}"
        return "" if fits else f"the example of its resource {self.name} does not fit its pattern"


# a share of a GPU, 0.25, is one of as many runs that have it together
GPUS, CPUS, MEMORY = (
    Resource("gpus", rf"{COUNT}|0?\.\d{{1,3}}", "1"), Resource("cpus", COUNT, "4"), Resource("memory", SIZE, "16G"),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What a comparison asks of an executor: how many runs at once, each with these resources and options of the
    trainer, and the address, which is what follows the colon of ``--executor NAME:ADDRESS``.
    """

    jobs: int = 1
    address: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpu_share(self) -> float:
        """The GPUs of each run where it shares one with other runs; 0 where it does not."""
        gpus = float(self.resources.get("gpus", 1))
        return gpus if gpus < 1 else 0.0


class Executor:
    """An engine that does runs, named after its class in lower case: `zoo compare … --executor NAME`.

    A package registers it by an entry point in the group ``zoo.executor``. A run is an object that can be pickled and
    called, once or again: it goes on where it stopped, and calls at once do it once.
    """

    kind = "executor"
    resources: tuple[Resource, ...] = ()
    name = ""  # set for each class
    threads = 0  # OMP_NUM_THREADS of each run, once started; 0: a share of the cores of this machine

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__.lower()

    def check(self, request: Request) -> None:
        """Raise UsageError for what cannot be had, before anything is written."""

    def start(self, request: Request) -> None:
        """Make ready for runs. Raises UsageError where the engine cannot be reached."""

    def submit(self, run: SubmittedRun) -> Future[Outcome]:
        """What ``run()`` will return, called somewhere. Of an engine that lost the run, the future has an exception.

        Raises ZooError where the engine has ended.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Let the runs save their state and end, drop those that wait, and free everything; called once or again."""

    def problem(self) -> str:
        """What is wrong with the description, as part of a sentence; empty where nothing is."""
        if not isinstance(self.resources, tuple) or not all(isinstance(item, Resource) for item in self.resources):
            return "its attribute resources must be a tuple of Resource"
        return next(filter(None, (resource.problem() for resource in self.resources)), "")


def find_executor(name: str) -> Executor:
    """The executor of that name. Raises UsageError for an unknown one, PluginError where its package is at fault."""
    try:
        part = diagnosis.choose_part(KIND, name)
    except PartError as error:
        raise UsageError(f"--executor: {error}") from error
    return diagnosis.build_part(part, Executor)


def read_request(options: ParsedOptions) -> tuple[Executor, Request]:
    """The executor that a command line names, and what it asks of it. Raises UsageError for what is wrong."""
    name, _, address = (options.get("executor") or "processes").partition(":")
    executor = find_executor(name)
    resources = parse_resources(executor, options.get("resources"))
    return executor, Request(options.get("jobs") or 1, address, resources)


def parse_resources(executor: Executor, text: str | None) -> dict[str, str]:
    """The resources of each run, ``gpus=1,memory=16G``. Raises UsageError for unknown and wrong ones."""
    declared, result = {resource.name: resource for resource in executor.resources}, {}
    for piece in text.split(",") if text else ():
        name, _, value = piece.partition("=")
        if name not in declared:
            raise UsageError(
                f"--resources {piece!r:.60}: runs on {executor.name} have no {name!r:.40}."
                f"{registry.suggest(name, declared)} There are: {', '.join(declared) or 'none'}."
            )
        if name in result:
            raise UsageError(f"--resources: {name} is named twice.")
        if not re.fullmatch(declared[name].pattern, value) or not value.strip("0."):
            raise UsageError(f"--resources {piece!r:.60}: write it as {name}={declared[name].example}")
        result[name] = value
    return result


def bytes_of(size: str) -> int:
    """The bytes of a size such as 16G."""
    return int(size[:-1]) * UNITS[size[-1]]
