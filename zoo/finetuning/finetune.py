"""Fine-tuning: start from trained weights, freeze and thaw tensors, learning rates per layer, low-rank adapters."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from zoo.data.batches import log_once
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError, ZooError
from zoo.finetuning.weight_transfer import Transfer, token_tensors, transfer_weights
from zoo.inference import weight_files
from zoo.inference.find_run import FACTS, ModelLocation, find_model
from zoo.inference.rebuild_task import rebuild_task
from zoo.io.checkpoint_manifest import sha256
from zoo.models.initialization import derive_seed
from zoo.models.vit import LearnedTokens
from zoo.parts.lora import adapt, merge_tensors
from zoo.parts.position import Position

if TYPE_CHECKING:
    from zoo.tasks.task import Task

LAYER = re.compile(r"(.*?)\b(blocks\.\d+|stages\.\d+\.\d+)\.")
ENTRANCE = re.compile(r"(embedding[^.]*|\b(entry|stem|backbone))$")  # names of modules in front of the blocks
NET = "net."
CLASSES = "num_classes"  # the option of tasks that the data fill with the number of classes


@dataclass(frozen=True)
class Tune:
    """Options ``tune.*``: fine-tuning from existing weights. Raises UsageError for invalid combinations.

    Args:
        start: a run folder, checkpoint, export or recipe; tensors of the same name and shape are copied.
        freeze: patterns of tensors that are not trained, such as ``stack.blocks.[0-3].*``.
        layer_decay: factor on the learning rate per block of distance from the output.
        thaw: the step from which frozen tensors are trained; None for never.
        thaw_every: steps between thawing a block and the one below it; 0 thaws all at once.
        rank: rank of the adapters; 0 for none. With adapters, only they and tensors with new rows are trained.
        alpha: the scale of adapters is alpha / rank.
        adapters: patterns of the linear layers to adapt.
        heal: the share of the training loss that is KL(start ‖ model), from 0, for none, to 1, for nothing else.
    """

    start: str | None = None
    freeze: list[str] = field(default_factory=list)
    layer_decay: float = 1.0
    thaw: int | None = None
    thaw_every: int = 0
    rank: int = 0
    alpha: float = 16.0
    adapters: list[str] = field(default_factory=lambda: ["*blocks.*"])
    heal: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"tune.layer_decay is a factor above 0 and at most 1, got {self.layer_decay}.")
        if self.thaw is not None and (self.thaw < 0 or not self.freeze):
            raise UsageError("tune.thaw is the step from which tune.freeze ends: give both.")
        if self.thaw_every and self.thaw is None:
            raise UsageError("tune.thaw_every counts from tune.thaw: give both.")
        if self.rank < 0 or self.thaw_every < 0:
            raise UsageError("tune.rank and tune.thaw_every are at least 0.")
        if self.rank and not 0 < self.alpha < float("inf"):
            raise UsageError(
                f"tune.alpha must be above 0, got {self.alpha}: adapters of that scale would learn nothing."
            )
        if not 0 <= self.heal <= 1:
            raise UsageError(f"tune.heal is a share from 0 to 1, got {self.heal}.")
        if self.heal and not self.start:
            raise UsageError("tune.heal distils a trained model: name it with --tune.start RUN")
        if self.rank and not self.start:
            raise UsageError("tune.rank adapts trained weights: name them with --tune.start RUN")


def tune_of_config(config: Mapping[str, Any]) -> Tune | None:
    """The fine-tuning options of a configuration; None without any. Raises UsageError if they are invalid."""
    options = config.get("tune")
    return Tune(**options) if options else None


def prepare_task(task: Task, tune: Tune, runs: str | Path, data: Any = None, fresh: bool = True) -> Transfer | None:
    """Copy weights into a task, add adapters, freeze tensors and set learning-rate factors.

    ``fresh`` is False when resuming, where the task's own checkpoint has the weights. Returns what was copied; None
    without a start. Raises UsageError if nothing fits, nothing would be trained, or a pattern matches nothing.
    """
    transferred = None
    if tune.start and fresh:
        place = find_model(tune.start, runs)
        others = tensors_of_other_classes(place, data)
        tensors = {
            name.removeprefix(NET): tensor
            for name, tensor in weight_files.read_tensors(place.weights).items()
            if name.startswith(NET)
        }
        if (before := tune_of_config(place.config)) and before.rank:
            tensors = merge_tensors(tensors, before.rank, before.alpha)
        original = network_of(place)
        transferred = transfer_weights(task.net, tensors, place.weights, original, others)
        if type(original) is type(task.net):
            transferred.origin = {name: place.config[name] for name in FACTS if name in place.config}
        adopt_measures(place.folder, data)
        task.take_start()
    if tune.rank:
        new = transferred.fresh | transferred.partly_new if transferred else set()
        learn = {parameter for name, parameter in task.net.named_parameters() if name in new}
        add_adapters(task.net, tune)
        for name, parameter in task.net.named_parameters():  # a new matrix learns inside of its adapter too
            parameter.requires_grad_(parameter in learn or re.search(r"\.(down|up)$", name) is not None)
    frozen = matching_names(task.net, tune.freeze, "tune.freeze") if tune.freeze else set()
    if tune.thaw is None:
        for name, parameter in task.net.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
    else:
        task.thaws = thaw_steps(task.net, frozen, tune)
    if not any(parameter.requires_grad for parameter in task.net.parameters()):
        raise UsageError("tune.freeze freezes all tensors: nothing would be trained.")
    if tune.layer_decay < 1:
        task.rates = rate_factors(task.net, tune.layer_decay)
    return transferred


def prepare_healing(task: Task, share: float, original: Task, place: ModelLocation, data: Any = None) -> None:
    """Let a task learn the predictions of the model of ``tune.start``, with this share of its loss.

    Raises UsageError as ``owner_of_logits`` does, and for a model of other inputs or predictions.
    """
    owner = owner_of_logits(task)
    if not isinstance(original, owner):
        raise UsageError(f"tune.heal: {place.source} is a {type(original).__name__} and no {owner.__name__}.")
    if tensors_of_other_classes(place, data):
        raise UsageError(f"tune.heal: {place.source} has other classes.\nTrain without tune.heal")
    if (theirs := sizes_of(original)) != (mine := sizes_of(task)):
        raise UsageError(f"tune.heal: the sizes of {place.source} are {theirs}, those of this model {mine}.")
    from zoo.tasks.task import Healing  # here: adapters are loaded without Lightning

    task.healing = Healing(original.net, share, sha256(place.weights))


def owner_of_logits(task: Task) -> type[Task]:
    """The class that defines the logits of all that the loss of a task predicts. Raises UsageError without any."""
    owners = [next(cls for cls in type(task).__mro__ if name in vars(cls)) for name in ("loss", "prediction_logits")]
    if not issubclass(owners[1], owners[0]):
        raise UsageError(
            f"tune.heal: {type(task).__name__} has a loss of its own and no logits (prediction_logits) to distil.\n"
            "Train without tune.heal"
        )
    return cast("type[Task]", owners[1])


def sizes_of(task: Task) -> dict[str, Any]:
    """What the data decide of a task's inputs and predictions, by name, and the numbers of tokens."""
    tokens = {task.net.get_parameter(name).size(0) for name in token_tensors(task.net)}
    return {name: getattr(task.net, name, getattr(task, name, None)) for name in task.data_sizes} | {
        "tokens": sorted(tokens)
    }


def network_of(place: ModelLocation) -> nn.Module | None:
    """The network that trained weights belong to, without memory for them; None where it cannot be built here."""
    try:
        with torch.device("meta"):
            return rebuild_task(place.config, place.source).net
    except ZooError as error:
        log_once(f"tune.start: what {place.source} describes cannot be built, so that positions stay: {error}")
        return None


def add_adapters(net: nn.Module, tune: Tune) -> list[str]:
    """Add low-rank adapters to a model; returns the names of the adapted layers. Raises UsageError without any."""
    names = adapt(
        net, lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in tune.adapters), tune.rank, tune.alpha
    )
    if not names:
        raise UsageError(f"no linear layer is called {', '.join(tune.adapters)}: see tune.adapters.")
    seed = torch.initial_seed()
    with torch.random.fork_rng(devices=[]):
        for name in names:  # as in `initialise`: initial adapters depend only on the seed and their name
            torch.default_generator.manual_seed(derive_seed(seed, name))
            net.get_submodule(name).reset_parameters()  # type: ignore[attr-defined]
    return names


def matching_names(net: nn.Module, patterns: Iterable[str], option: str) -> set[str]:
    """The parameters that match the patterns. Raises UsageError for a pattern without a match."""
    names = [name for name, _ in net.named_parameters()]
    matches: set[str] = set()
    for pattern in patterns:
        mine = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not mine:
            near = difflib.get_close_matches(pattern, names, 1, cutoff=0.3) or names[:1]
            raise UsageError(f"{option}: no parameter is called {pattern!r}. One of them is {near[0]!r}.")
        matches |= mine
    return matches


def depth_of(net: nn.Module) -> dict[str, int]:
    """The distance of each parameter from the output: 0 above the blocks, 1 in the last block, …, and one more than in
    the first block for embeddings, their norm, and whatever else stands in front of the blocks.
    """
    names = [name for name, _ in net.named_parameters()]
    layers: dict[str, list[str]] = {}  # of each stack, in their order
    for name in names:
        if (match := LAYER.match(name)) and match[2] not in layers.setdefault(match[1], []):
            layers[match[1]].append(match[2])
    most = max(map(len, layers.values()), default=0)
    if not most:
        raise UsageError("tune.layer_decay and tune.thaw_every count blocks from the output, and there are none.")
    inputs = tuple(
        name + "."
        for name, module in net.named_modules()
        if isinstance(module, (nn.Embedding, Position, LearnedTokens)) or ENTRANCE.search(name)
    )
    depth = {}
    for name in names:
        if match := LAYER.match(name):
            depth[name] = len(layers[match[1]]) - layers[match[1]].index(match[2])
        else:
            depth[name] = most + 1 if name.startswith(inputs) else 0
    return depth


def rate_factors(net: nn.Module, decay: float) -> dict[str, float]:
    """The factor on the learning rate of each parameter: decay^depth, with the depths of `depth_of`."""
    return {name: decay**steps for name, steps in depth_of(net).items()}


def thaw_steps(net: nn.Module, frozen: set[str], tune: Tune) -> dict[str, int]:
    """The step from which each frozen parameter is trained: those nearest to the output first."""
    depth = depth_of(net) if tune.thaw_every else dict.fromkeys(frozen, 0)
    nearest = min((depth[name] for name in frozen), default=0)
    return {name: (tune.thaw or 0) + tune.thaw_every * (depth[name] - nearest) for name in frozen}


def learned_lists(home: Path, data: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    """What data would save for inference beside what a run's folder holds: "token" or "class", and both lists.

    Raises UsageError for a file that is no JSON.
    """
    if not callable(getattr(data, "adopt", None)):  # no data module of zoo
        return
    with tempfile.TemporaryDirectory() as folder:
        data.save(Path(folder))
        for path in sorted(Path(folder).glob("*.json")):
            saved = home / path.name
            if not saved.is_file() and isinstance(getattr(data, "tokenizer", None), Tokenizer):
                saved = home / "tokenizer.json"  # of one side in two files, as texts to restore have
            if not saved.is_file():
                continue
            if path.name.endswith("tokenizer.json"):
                yield "token", Tokenizer.load(path).tokens, Tokenizer.load(saved).tokens
                continue
            try:
                mine, theirs = (json.loads(file.read_text("utf-8")) for file in (path, saved))
            except ValueError as error:
                raise UsageError(f"{saved} is no JSON: {error}") from error
            for key in mine if isinstance(mine, dict) and isinstance(theirs, dict) else ():
                if isinstance(mine[key], list) and all(isinstance(name, str) for name in mine[key]):
                    yield "class", mine[key], theirs.get(key) or []


def tensors_of_other_classes(place: ModelLocation, data: Any) -> set[str]:
    """The tensors of trained weights of classes, where the data's have other names; a warning says so.

    Raises UsageError if the data's tokens are not those of the trained weights, new ones at the end aside, and where
    nothing says which tensors belong to classes.
    """
    others: set[str] = set()
    for word, mine, theirs in learned_lists(place.folder, data):
        if word == "token":
            if difference := list_difference(mine[: len(theirs)], theirs, word):
                raise UsageError(f"tune.start: {other_tokenizer(data, place.folder, difference)}")
        elif len(mine) == len(theirs) and (difference := list_difference(mine, theirs, word)):
            others |= class_tensors(place)
            sentence = f"tune.start: the classes of the data are not those of {place.folder}: {difference}."
            if not others:
                raise UsageError(f"{sentence}\nNothing says which tensors belong to classes: train without tune.start")
            log_once("%s What belongs to classes is new: %s", sentence, ", ".join(sorted(others)))
    return others


def class_tensors(place: ModelLocation) -> set[str]:
    """The tensors of a trained network whose shape depends on the number of classes; empty where there is none."""
    model = place.config["model"]
    options = model.get("init_args") or {}
    if not isinstance(options.get(CLASSES), int):
        return set()
    more = {**place.config, "model": {**model, "init_args": {**options, CLASSES: options[CLASSES] + 1}}}
    now, wider = (network_of(replace(place, config=config)) for config in (place.config, more))
    if now is None or wider is None:
        return set()
    shapes = {name: tensor.shape for name, tensor in wider.state_dict().items()}
    return {name for name, tensor in now.state_dict().items() if shapes.get(name) != tensor.shape}


def other_tokenizer(data: Any, folder: Path, difference: str) -> str:
    """That the data's tokenizer is not that of a run's folder, and how the data get that one."""
    places = (("text.", getattr(data, "text", None)), ("", data), ("options.", getattr(data, "options", None)))
    option = next((f"--data.{place}tokenizer" for place, owner in places if _takes_tokenizer(owner)), "")
    commands = (getattr(owner, "tokenizing_command", "") for _, owner in places)
    if command := next(filter(None, commands), ""):
        return f"the tokenizer of the data is not that of {folder}: {difference}.\nMake them anew: {command} {folder}"
    way = (
        f"Use the one it was trained with: {option} {folder}"
        if option
        else "These data learn it from their training files: keep those of the run, and change the other splits alone"
    )
    return f"the tokenizer of the data is not that of {folder}: {difference}.\n{way}"


def _takes_tokenizer(owner: object) -> bool:
    """Whether a constructor of the object's class takes the option."""
    constructors = [
        vars(cls)["__init__"] for cls in type(owner).__mro__ if cls is not object and "__init__" in vars(cls)
    ]
    return any("tokenizer" in inspect.signature(constructor).parameters for constructor in constructors)


def list_difference(mine: Sequence[Any], theirs: Sequence[Any], word: str) -> str:
    """The first entry in which two lists differ, as a clause: ``token 3 is 'a' here and 'b' there``; empty for none."""
    pairs = enumerate(zip(mine, theirs, strict=False))
    differ = next((f"{word} {i} is {a!r} here and {b!r} there" for i, (a, b) in pairs if a != b), "")
    unequal = "" if len(mine) == len(theirs) else f"there are {len(mine)} {word}s here and {len(theirs)} there"
    return differ or unequal


def adopt_measures(home: Path, data: Any) -> None:
    """Let data be normalised as those of a run's folder were; data modules of others stay as they are."""
    if callable(getattr(data, "adopt", None)):
        data.adopt(home)


def require_same_numbers(home: Path, data: Any) -> None:
    """Raise UsageError if tokens or classes of data have other numbers than in a run's folder."""
    for word, mine, theirs in learned_lists(home, data):
        if not (difference := list_difference(mine, theirs if word == "token" else theirs[: len(mine)], word)):
            continue
        if word == "token":
            raise UsageError(other_tokenizer(data, home, difference))
        raise UsageError(
            f"the classes of the data are not those of {home}: {difference}.\n"
            "A model gives numbers: it needs data with the same classes in the same order"
        )
