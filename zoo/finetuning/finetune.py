"""Fine-tuning: start from trained weights, freeze, learn at different rates, thaw later, or learn adapters alone."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.finetuning.weight_transfer import Transfer, transfer
from zoo.inference import weight_files
from zoo.inference.find_run import ModelLocation, find_model
from zoo.models.initialization import named_seed
from zoo.parts.lora import adapt
from zoo.parts.position import Position
from zoo.tasks.task import Task

BLOCK = re.compile(r"(.*?)\bblocks\.(\d+)\.")
NET = "net."


@dataclass(frozen=True)
class Tune:
    """How a model learns that others have begun.

    Args:
        start: a run's folder, a checkpoint, an export or a recipe's name; its weights are taken where they fit.
        freeze: patterns of tensors that do not learn, such as ``stack.blocks.[0-3].*``.
        layer_decay: factor on the learning rate for each block farther from the output.
        thaw: the step from which frozen tensors learn; they never do unless given.
        thaw_every: steps between thawing one block and the one below it; all thaw at once unless given.
        rank: of adapters; 0 for none. With them nothing else learns but what is newly initialised.
        alpha: the factor on adapters is alpha / rank.
        adapters: patterns of the linear layers that are adapted.
    """

    start: str | None = None
    freeze: list[str] = field(default_factory=list)
    layer_decay: float = 1.0
    thaw: int | None = None
    thaw_every: int = 0
    rank: int = 0
    alpha: float = 16.0
    adapters: list[str] = field(default_factory=lambda: ["*blocks.*"])

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"tune.layer_decay is a factor above 0 and at most 1, got {self.layer_decay}.")
        if self.thaw is not None and (self.thaw < 0 or not self.freeze):
            raise UsageError("tune.thaw is the step from which tune.freeze ends: give both.")
        if self.thaw_every and self.thaw is None:
            raise UsageError("tune.thaw_every counts from tune.thaw: give both.")
        if self.rank < 0 or self.thaw_every < 0:
            raise UsageError("tune.rank and tune.thaw_every are at least 0.")
        if self.rank and not self.start:
            raise UsageError("tune.rank adapts trained weights: name them with --tune.start RUN")


def make_tunable(config: Mapping[str, Any]) -> Tune | None:
    """The fine-tuning that a configuration describes."""
    options = config.get("tune")
    return Tune(**options) if options else None


def prepare(task: Task, tune: Tune, runs: str | Path, data: Any = None, fresh: bool = True) -> Transfer | None:
    """Make a task ready to be tuned; ``fresh`` is False where a checkpoint of its own says everything."""
    transferred = None
    if tune.start and fresh:
        place = find_model(tune.start, runs)
        check_tokenizer(place, data)
        tensors = {
            name.removeprefix(NET): tensor
            for name, tensor in weight_files.read(place.weights).items()
            if name.startswith(NET)
        }
        transferred = transfer(task.net, tensors, place.weights)
    if tune.rank:
        wrap(task.net, tune)
        learn = {name for name, _ in task.net.named_parameters() if re.search(r"\.(down|up)$", name)}
        learn |= transferred.fresh if transferred else set()
        for name, parameter in task.net.named_parameters():
            parameter.requires_grad_(name in learn)
    frozen = matching_names(task.net, tune.freeze, "tune.freeze") if tune.freeze else set()
    if tune.thaw is None:
        for name, parameter in task.net.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
    else:
        task.thaws = thaws(task.net, frozen, tune)
    if not any(parameter.requires_grad for parameter in task.net.parameters()):
        raise UsageError("tune.freeze leaves nothing that could learn.")
    if tune.layer_decay < 1:
        task.rates = rates(task.net, tune.layer_decay)
    return transferred


def wrap(net: nn.Module, tune: Tune) -> list[str]:
    """Put the adapters of a fine-tuning into a net."""
    names = adapt(net, lambda name: any(fnmatch.fnmatchcase(name, one) for one in tune.adapters), tune.rank, tune.alpha)
    if not names:
        raise UsageError(f"no linear layer is called {', '.join(tune.adapters)}: see tune.adapters.")
    seed = torch.initial_seed()
    with torch.random.fork_rng(devices=[]):
        for name in names:  # as in `initialise`: what an adapter begins with depends on the seed and its name alone
            torch.default_generator.manual_seed(named_seed(seed, name))
            net.get_submodule(name).reset_parameters()  # type: ignore[operator]
    return names


def matching_names(net: nn.Module, patterns: Iterable[str], option: str) -> set[str]:
    """The parameters that a pattern names. Raises UsageError for a pattern that names none."""
    names = [name for name, _ in net.named_parameters()]
    found: set[str] = set()
    for pattern in patterns:
        mine = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not mine:
            near = difflib.get_close_matches(pattern, names, 1, cutoff=0.3) or names[:1]
            raise UsageError(f"{option}: no parameter is called {pattern!r}. One of them is {near[0]!r}.")
        found |= mine
    return found


def depth_of(net: nn.Module) -> dict[str, int]:
    """How many steps each parameter is from the output: 0 above the blocks, 1 in the last one, and so on; what stands
    in front of the first block is one step farther.
    """
    names = [name for name, _ in net.named_parameters()]
    counts: dict[str, int] = {}
    for name in names:
        if match := BLOCK.match(name):
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    most = max(counts.values(), default=0)
    inputs = tuple(
        name + "."
        for name, module in net.named_modules()
        if isinstance(module, (nn.Embedding, Position)) or "embedding" in name.rpartition(".")[2] or name == "cls"
    )
    depth = {}
    for name in names:
        if match := BLOCK.match(name):
            depth[name] = counts[match[1]] - int(match[2])
        else:
            depth[name] = most + 1 if name.startswith(inputs) else 0
    return depth


def rates(net: nn.Module, decay: float) -> dict[str, float]:
    """The factor on the learning rate of each parameter: decay to the power of its distance from the output."""
    return {name: decay**steps for name, steps in depth_of(net).items()}


def thaws(net: nn.Module, frozen: set[str], tune: Tune) -> dict[str, int]:
    """The step from which each frozen parameter learns: the nearest to the output first."""
    depth = depth_of(net)
    first = min((depth[name] for name in frozen), default=0)
    return {name: (tune.thaw or 0) + tune.thaw_every * (depth[name] - first) for name in frozen}


def check_tokenizer(place: ModelLocation, data: Any) -> None:
    """Raise UsageError where the data's tokens are other ones than those that the weights know."""
    path, mine = place.folder / "tokenizer.json", getattr(data, "tokenizer", None)
    if not path.is_file() or not isinstance(mine, Tokenizer):
        return
    theirs = Tokenizer.load(path)
    if mine.tokens[: len(theirs.tokens)] == theirs.tokens:
        return
    pairs = enumerate(zip(mine.tokens, theirs.tokens, strict=False))
    differ = next((f"token {i} is {a!r} here and {b!r} there" for i, (a, b) in pairs if a != b), None)
    difference = differ or f"there are {len(mine.tokens)} tokens here and {len(theirs.tokens)} there"
    raise UsageError(
        f"tune.start: the tokenizer of the data is not that of {place.folder}: {difference}.\n"
        f"Use the one it was trained with: --data.tokenizer {place.folder}"
    )
