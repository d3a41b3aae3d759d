"""A scorecard of a model: what it can recall and copy, what its heads attend to, its residual stream and gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.data.data import Data
from zoo.errors import StorageError, UsageError
from zoo.explain.subjects import Subject, load_data
from zoo.logging.attention_maps import evaluation
from zoo.models.attention_weights import attention_layers, record_weights
from zoo.parts.block import Block
from zoo.tasks.lm import LanguageTask
from zoo.tasks.task import Task
from zoo.training.config_meter import ConfigMeter
from zoo_exercises.short_runs import validate
from zoo_exercises.synthetic import SyntheticData

ROWS = 32  # texts that are measured
LENGTH = 64  # tokens of a text of repeated tokens
WEIGHTS = 2**19  # of one head over all texts; longer texts are fewer
SEED = 1
LIFT = 0.4  # of the way from uniform attention to all attention: from here on a head has a role


class TaskScore(NamedTuple):
    """Shares of right answers: of texts as long as those of training, of texts twice as long, and by chance."""

    task: str
    accuracy: float
    longer: float | None
    chance: float
    texts: str


class HeadScore(NamedTuple):
    """Mean attention weights of a head: from each token to the one before it, to the first one, and to those that
    followed earlier occurrences of the same token, beside what uniform attention gives; None where a text has none.
    """

    layer: str
    head: int
    previous: float
    first: float
    induction: float | None
    uniform: float | None
    repeated: float | None  # induction in random tokens that repeat
    repeated_uniform: float | None

    @property
    def roles(self) -> list[str]:
        """What the head does: any of previous token, first token, induction."""
        lifts = {
            "previous token": self.previous,
            "first token": self.first,
            "induction": max(lift(self.induction, self.uniform), lift(self.repeated, self.repeated_uniform)),
        }
        return [role for role, value in lifts.items() if value >= LIFT]


class LayerRank(NamedTuple):
    """The effective rank of the residual stream after a layer, and the most that it can be."""

    layer: str
    rank: float
    most: int


class ExpertLoad(NamedTuple):
    """The tokens that each expert of a mixture has computed."""

    layer: str
    tokens: list[int]

    @property
    def dead(self) -> list[int]:
        """The experts without a token."""
        return [number for number, count in enumerate(self.tokens) if not count]


class GradientNorm(NamedTuple):
    """The norm of the gradient of the mean loss with respect to the weights of a layer, and their number."""

    layer: str
    norm: float
    weights: int


@dataclass
class Scorecard:
    """What is measured of a model. ``texts`` names the batch that heads, ranks, experts and gradients come from."""

    title: str
    model: str
    texts: str
    scores: list[TaskScore] = field(default_factory=list)
    heads: list[HeadScore] = field(default_factory=list)
    ranks: list[LayerRank] = field(default_factory=list)
    experts: list[ExpertLoad] = field(default_factory=list)
    gradients: list[GradientNorm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def induction_heads(self) -> list[HeadScore]:
        """The heads that attend to what followed the same token before."""
        return [head for head in self.heads if "induction" in head.roles]


def lift(score: float | None, uniform: float | None) -> float:
    """How far a score is on the way from that of uniform attention (0) to all attention (1)."""
    return 0.0 if score is None or uniform is None or uniform >= 1 else (score - uniform) / (1 - uniform)


def probe_trained(subject: Subject, stack: ExitStack, device: str, allow: tuple[str, ...] = ()) -> Scorecard:
    """The scorecard of a trained model, on its own validation data where these can be prepared."""
    assert subject.open is not None  # only parts cannot be opened
    task = subject.open(stack, device).task
    card = Scorecard(subject.title, f"{type(task).__name__} as trained", "its validation data")
    data, batch = first_batch(subject.config, allow)
    if batch is None:
        card.texts = "random inputs"
        card.notes.append("the data of the model are not here: random inputs take their place")
        try:
            batch = task.sample(ROWS)
        except NotImplementedError as error:
            kind = type(task).__name__
            raise UsageError(
                f"the data of this {kind} are not here, and it has no random inputs to measure."
            ) from error
    if isinstance(data, SyntheticData) and isinstance(task, LanguageTask):
        card.scores.append(score_task(type(data).__name__, task, data))
    examine(task, to_device(batch, device), card)
    return card


def score_task(name: str, task: Task, data: SyntheticData) -> TaskScore:
    """The accuracy of a language model in a synthetic task."""
    measured = validate(task, data)
    texts = f"{data.longest // data.longer} tokens and {data.longer} times as long"
    return TaskScore(name, measured["accuracy"], measured.get("accuracy_longer"), data.chance, texts)


def examine(task: Task, batch: Any, card: Scorecard) -> None:
    """Add to a card what a batch shows of a model, and, of a language model, what it does with repeated tokens."""
    batch = first_rows(batch, ROWS)
    repeated: dict[str, tuple[list[float], float]] = {}
    if isinstance(task, LanguageTask):
        repeated = examine_repeated(task, card)
    net = task.net
    recorded = record_weights(net, attention_layers(net))
    with evaluation(net), recorded as attention, record_streams(net) as streams, count_tokens(net) as loads:
        task.loss(batch)
    tokens, answered = texts_of(task, batch)
    for name, weights in attention.items():
        if weights.size(-1) == weights.size(-2) > 2:
            card.heads += score_heads(name, weights, tokens, answered, repeated.get(name))
    card.ranks += [LayerRank(name, effective_rank(x), min(x.shape)) for name, x in streams.items()]
    card.experts += [ExpertLoad(name, counts) for name, counts in loads.items()]
    card.gradients += gradient_norms(task, batch)
    if len(streams) < sum(isinstance(module, Block) for module in net.modules()):
        card.notes.append("blocks that run as one leave no residual stream between them: their ranks are not measured")
    if not attention:
        card.notes.append("no part of this model has attention weights: there are no heads to measure")


def texts_of(task: Task, batch: Any) -> tuple[Tensor | None, Tensor | None]:
    """The tokens (B, T) of a language model's batch, and where answers are predicted (B, T); else None twice."""
    if not isinstance(task, LanguageTask) or not isinstance(batch, dict) or "inputs" not in batch:
        return None, None
    return batch["inputs"], batch["targets"] >= 0


def score_heads(
    layer: str,
    weights: Tensor,
    tokens: Tensor | None,
    answered: Tensor | None,
    repeated: tuple[list[float], float] | None,
) -> list[HeadScore]:
    """The scores of each head from attention weights (B, H, T, T) over tokens (B, T)."""
    weights = weights.float()
    previous = weights.diagonal(-1, -2, -1)[..., 1:].mean((0, 2))  # from the third token on: the second one's previous
    first = weights[:, :, 2:, 0].mean((0, 2))  # token is the first one
    own = None
    if tokens is not None and tokens.shape == (weights.size(0), weights.size(-1)):
        own = induction_scores(weights, tokens, answered)
    return [
        HeadScore(
            layer, head, float(previous[head]), float(first[head]),
            *((own[0][head], own[1]) if own else (None, None)),
            *((repeated[0][head], repeated[1]) if repeated else (None, None)),
        )
        for head in range(weights.size(1))
    ]  # fmt: skip


def induction_scores(weights: Tensor, tokens: Tensor, queries: Tensor | None) -> tuple[list[float], float] | None:
    """The mean attention of each head, of weights (B, H, T, T), to tokens that followed earlier occurrences of the
    query's token (B, T), over ``queries`` (B, T) that have such and repeat no neighbour; and that of uniform attention.
    None without one.
    """
    successors = earlier_successors(tokens)
    again = (
        F.pad(tokens, (1, 0), value=-1)[:, :-1] == tokens
    )  # such a token follows itself: it may look at its own place
    measured = successors.any(-1) & ~again
    measured = measured if queries is None else measured & queries
    if not measured.any():
        return None
    share = torch.einsum("bhts,bts->bht", weights, successors.to(weights.dtype))
    scores = (share * measured[:, None]).sum((0, 2)) / measured.sum()
    visible = torch.arange(1, tokens.size(1) + 1, device=tokens.device)
    uniform = (successors.sum(-1) / visible)[measured].mean()
    return scores.tolist(), float(uniform)


def earlier_successors(tokens: Tensor) -> Tensor:
    """Of tokens (B, T), (B, T, T) bool: whether place s comes before t, and the token before s is that at t."""
    before = F.pad(tokens, (1, 0), value=-1)[:, :-1]
    length = tokens.size(1)
    earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril(-1)
    return (tokens[:, :, None] == before[:, None, :]) & earlier


def examine_repeated(task: LanguageTask, card: Scorecard) -> dict[str, tuple[list[float], float]]:
    """Add the score of copying random tokens that repeat; the induction scores of the heads of each attention."""
    net = task.net
    length = min(LENGTH, net.max_length // 2) // 2 * 2
    if length < 4:
        card.notes.append(f"texts of {net.max_length} tokens are too short to repeat tokens")
        return {}
    device = next(net.parameters()).device
    tokens = repeated_tokens(net.vocab_size, length, rows_for(length)).to(device)
    with evaluation(net), record_weights(net, attention_layers(net)) as recorded:
        logits = task(tokens)
    accuracy = repeat_accuracy(logits, tokens)
    longer = repeated_tokens(net.vocab_size, 2 * length, rows_for(2 * length)).to(device)
    with evaluation(net):
        further = repeat_accuracy(task(longer), longer)
    texts = f"{length // 2} random tokens and the same again; then {length}"
    card.scores.append(TaskScore("repeated tokens", accuracy, further, 1 / net.vocab_size, texts))
    second = torch.arange(length, device=device)[None].expand_as(tokens) >= length // 2
    scores = {}
    for name, weights in recorded.items():
        if weights.size(-1) == weights.size(-2) == length:
            result = induction_scores(weights.float(), tokens, second)
            if result is not None:
                scores[name] = result
    return scores


def repeated_tokens(vocab_size: int, length: int, rows: int) -> Tensor:
    """Random tokens (rows, length) whose second half is the first again, without other repetition where there are
    enough different tokens.
    """
    generator, half = torch.Generator().manual_seed(SEED), length // 2
    if vocab_size >= half:
        first = torch.stack([torch.randperm(vocab_size, generator=generator)[:half] for _ in range(rows)])
    else:
        first = torch.randint(vocab_size, (rows, half), generator=generator)
    return torch.cat([first, first], 1)


def repeat_accuracy(logits: Tensor, tokens: Tensor) -> float:
    """The share of tokens (B, T) of the second half that the logits (B, T, V) before each predict, but its first."""
    half = tokens.size(1) // 2
    right = logits[:, half:-1].argmax(-1) == tokens[:, half + 1 :]
    return float(right.float().mean())


def rows_for(length: int) -> int:
    """How many texts of a length are measured."""
    return max(1, min(ROWS, WEIGHTS // length**2))


def effective_rank(x: Tensor) -> float:
    """The exponential of the entropy of the normalised singular values of x (N, dim), less its mean.

    Paper: The effective rank: a measure of effective dimensionality, Roy and Vetterli, 2007.
    """
    x = x.double()
    values = torch.linalg.svdvals(x - x.mean(0))
    share = values / values.sum().clamp(min=1e-300)
    return float(torch.special.entr(share).sum().exp())


@contextmanager
def record_streams(net: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within the block, a forward leaves the residual stream (N, dim) in front of and after every block, by name."""
    streams: dict[str, Tensor] = {}

    def before(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            streams[name] = _rows(arguments[0])

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            streams[name] = _rows(output)

        return hook

    handles = []
    for name, module in net.named_modules():
        if isinstance(module, Block):
            folder, _, number = name.rpartition(".")
            if number == "0":
                handles.append(module.register_forward_pre_hook(before(f"{folder.rpartition('.')[0]} input".strip())))
            handles.append(module.register_forward_hook(after(name)))
    try:
        yield streams
    finally:
        for handle in handles:
            handle.remove()


def _rows(x: Tensor) -> Tensor:
    return x.detach().float().reshape(-1, x.size(-1))


@contextmanager
def count_tokens(net: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Within the block, the experts of every mixture count the tokens that they compute, by the mixture's name."""
    loads: dict[str, list[int]] = {}

    def count(name: str, number: int) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            loads[name][number] += arguments[0].shape[:-1].numel()

        return hook

    handles = []
    for name, module in net.named_modules():
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.ModuleList):
            loads[name] = [0] * len(experts)
            handles += [one.register_forward_hook(count(name, number)) for number, one in enumerate(experts)]
    try:
        yield loads
    finally:
        for handle in handles:
            handle.remove()


def gradient_norms(task: Task, batch: Any) -> list[GradientNorm]:
    """The norm of the gradient of a batch's mean loss by layer, in the order of the model; weights stay unchanged."""
    parameters = [(name, p) for name, p in task.net.named_parameters() if p.is_floating_point()]
    flags = [p.requires_grad for _, p in parameters]
    try:
        for _, p in parameters:
            p.requires_grad_(True)
        with evaluation(task.net), torch.enable_grad():
            total, size = task.loss(batch)
            loss = total / size.clamp(min=1)
            gradients = torch.autograd.grad(loss, [p for _, p in parameters], allow_unused=True)
    finally:
        for (_, p), flag in zip(parameters, flags, strict=True):
            p.requires_grad_(flag)
    squares: dict[str, float] = {}
    weights: dict[str, int] = {}
    for (name, p), gradient in zip(parameters, gradients, strict=True):
        layer = layer_of(name)
        squares[layer] = squares.get(layer, 0.0) + (
            0.0 if gradient is None else float(gradient.double().square().sum())
        )
        weights[layer] = weights.get(layer, 0) + p.numel()
    return [GradientNorm(layer, square**0.5, weights[layer]) for layer, square in squares.items()]


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its block, or the module that has it."""
    match = re.match(r"(.*blocks\.\d+)\.", name)
    return match[1] if match else name.rpartition(".")[0] or name


def first_batch(config: Mapping[str, Any], allow: Sequence[str]) -> tuple[Data | None, Any]:
    """The data of a configuration and its first validation batch; None where these cannot be prepared."""
    try:
        data = load_data(ConfigMeter(tuple(allow)), config)
        return data, next(iter(data.val_dataloader()))
    except (UsageError, StorageError, OSError, StopIteration):
        return None, None


def first_rows(batch: Any, rows: int) -> Any:
    """The first samples of a batch of tensors of one first dimension; other batches as they are."""
    if not isinstance(batch, dict) or not all(isinstance(value, Tensor) and value.dim() for value in batch.values()):
        return batch
    if len({len(value) for value in batch.values()}) != 1:
        return batch
    longest = max((value.size(1) for value in batch.values() if value.dim() == 2), default=1)
    return {name: value[: min(rows, rows_for(longest))] for name, value in batch.items()}


def to_device(batch: Any, device: str) -> Any:
    """A batch with its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
