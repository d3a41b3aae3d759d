"""What a model does with one input: the attention of every head, and its prediction after every layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.inference.classification import TrainedClassification
from zoo.inference.language import TrainedLanguageModel
from zoo.inference.trained_model import Trained
from zoo.inference.translation import TrainedTranslation
from zoo.logging.attention_maps import evaluation, labels
from zoo.models.attention_weights import attention_layers, record_weights
from zoo.models.stack import Stack
from zoo.plugins.safe_import import import_target

TOKENS = 64  # tokens of a text that are explained; a note says that the others are left out
TOP = 3  # guesses of a prediction


class Guess(NamedTuple):
    """A token or class and its probability."""

    label: str
    probability: float


class Heads(NamedTuple):
    """The attention weights (H, T, S) of a layer, and what its T rows and S columns are."""

    name: str
    weights: Tensor
    rows: list[str]
    columns: list[str]


@dataclass
class Inside:
    """Attention by layer, and the guesses after each number of layers at each position, best first."""

    tokens: list[str]
    heads: list[Heads]
    positions: list[str]  # where there is a prediction
    layers: list[list[list[Guess]]] = field(default_factory=list)  # after 0, 1, … layers
    picture: Any = None  # a PIL image, of an image's input
    notes: list[str] = field(default_factory=list)


@dataclass
class Inputs:
    """The arguments of a net, the stack whose layers are followed, and the names of what goes in and comes out."""

    arguments: tuple[Tensor, ...]
    stack: nn.Module | None
    tokens: list[str]
    targets: list[str]  # target tokens of a translation, else empty
    positions: list[str]
    names: Any  # a list of classes, or a tokenizer
    picture: Any = None
    notes: list[str] = field(default_factory=list)


def prepare(model: Trained, text: str | None, image: str | None) -> Inputs:
    """The inputs of a model for a text or an image, from the function that its class declares as ``explained_inputs``.

    Raises UsageError for a model whose class declares none, and where it reads something else.
    """
    if not model.explained_inputs:
        raise UsageError(f"a {model.task_name} is explained without an input: leave out --text and --image.")
    inputs: Inputs = import_target(model.explained_inputs, f"explained_inputs of {type(model).__name__}")(
        model, text, image
    )
    return inputs


def require_text(model: Trained, text: str | None) -> str:
    """The text. Raises UsageError where there is none."""
    if text is None:
        raise UsageError(f"a {type(model.task).__name__} reads texts: --text TEXT.")
    return text


def first_tokens(ids: list[int], most: int, notes: list[str]) -> list[int]:
    """The tokens that are explained: the first ``most``, at most TOKENS; a note is added where some are left out.

    Raises UsageError for none.
    """
    most = min(most, TOKENS)
    if len(ids) > most:
        notes.append(f"the text has {len(ids)} tokens, of which the first {most} are explained")
    if not ids:
        raise UsageError("the text has no tokens: --text needs at least one.")
    return ids[:most]


def language_inputs(model: TrainedLanguageModel, text: str | None, image: str | None) -> Inputs:
    """Inputs from the tokens of a text. Raises UsageError where it is missing or empty."""
    notes: list[str] = []
    ids = model.tokenizer.framed(model.tokenizer.encode(require_text(model, text)))
    row = torch.tensor([first_tokens(ids, model.net.max_length, notes)], device=model.device)
    words = labels(model.tokenizer, row[0])
    return Inputs((row,), getattr(model.net, "stack", None), words, [], words, model.tokenizer, notes=notes)


def translation_inputs(model: TrainedTranslation, text: str | None, image: str | None) -> Inputs:
    """Inputs from a text, and its translation by the model. Raises UsageError where it is missing or empty."""
    notes: list[str] = []
    ids = first_tokens(
        model.source_tokenizer.encode(require_text(model, text)),
        model.net.max_length - len(model.source_ids([])),
        notes,
    )
    source = torch.tensor([model.source_ids(ids)], device=model.device)
    best = model.translate(model.source_tokenizer.decode(ids))[0].text
    target = [model.start, *model.forced, *model.target_tokenizer.encode(best)][:TOKENS]
    row = torch.tensor([target], device=model.device)
    notes.append(f"the decoder reads the model's own translation: {best}")
    words, targets = labels(model.source_tokenizer, source[0]), labels(model.target_tokenizer, row[0])
    decoder = getattr(model.net, "decoder", None)
    return Inputs((source, row), decoder, words, targets, targets, model.target_tokenizer, notes=notes)


def image_inputs(model: TrainedClassification, text: str | None, image: str | None) -> Inputs:
    """Inputs from an image. Raises UsageError where it is missing or empty."""
    if image is None:
        raise UsageError(f"a {type(model.task).__name__} reads images: --image FILE.")
    from PIL import Image

    pixels = model.pixels(image)
    array = pixels[0].permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array[..., :3])
    side = model.net.image_size // model.net.patch_size
    special = [*(["class"] if model.net.cls is not None else [])]
    special += ["register"] * (model.net.special - len(special))
    patches = [f"{row + 1},{column + 1}" for row in range(side) for column in range(side)]
    arguments = (model.normal(pixels).to(model.device),)
    stack = getattr(model.net, "stack", None)
    return Inputs(arguments, stack, [*special, *patches], [], ["the image"], model.names, picture)


def look_inside(model: Trained, text: str | None = None, image: str | None = None) -> Inside:
    """Attention and predictions of a model for a text or an image; any backend. Raises UsageError for other inputs."""
    inputs = prepare(model, text, image)
    net = model.net
    with evaluation(net), record_weights(net, attention_layers(net)) as recorded:
        logits = model.require_finite(net(*inputs.arguments))
    heads = [_heads(name, weights[0].float().cpu(), inputs) for name, weights in recorded.items()]
    result = Inside(inputs.tokens, heads, inputs.positions, picture=inputs.picture, notes=list(inputs.notes))
    if isinstance(inputs.stack, Stack):
        earlier = logit_lens(net, inputs.stack, *inputs.arguments)[:-1]
        result.layers += [_guesses(logits, inputs) for logits in earlier]
    else:
        result.notes.append("this model is no stack of layers: only its last prediction is shown")
    result.layers.append(_guesses(logits, inputs))
    return result


def logit_lens(net: nn.Module, stack: Stack, *arguments: Tensor) -> list[Tensor]:
    """The outputs of a net, of any shape, with the first 0, 1, … blocks of its stack alone; the last one has all.

    The first blocks go through the stack's norm and the net's head (nostalgebraist, 2020, "interpreting GPT").
    """
    outputs = []
    for depth in range(len(stack.blocks) + 1):
        with evaluation(net), first_blocks(stack, depth):
            outputs.append(net(*arguments))
    return outputs


@contextmanager
def first_blocks(stack: Stack, count: int) -> Iterator[None]:
    """Within the block a stack has its first ``count`` blocks alone: its norm and the model's head read what these
    leave.
    """
    blocks = stack.blocks
    stack.blocks = cast(nn.ModuleList, blocks[:count])
    try:
        yield
    finally:
        stack.blocks = blocks


def _guesses(logits: Tensor, inputs: Inputs) -> list[list[Guess]]:
    """The likeliest tokens or classes of logits (1, V) or (1, T, V), by position."""
    rows = logits[0].double().reshape(-1, logits.size(-1)).cpu()
    rows = rows.softmax(-1)[:, : len(inputs.names) if isinstance(inputs.names, list) else None]
    chances, places = rows.topk(min(TOP, rows.size(-1)), -1)
    result = []
    for chance, place in zip(chances.tolist(), places.tolist(), strict=True):
        words = (
            [inputs.names[index] for index in place]
            if isinstance(inputs.names, list)
            else labels(inputs.names, torch.tensor([min(index, inputs.names.vocab_size - 1) for index in place]))
        )
        result.append([Guess(word, value) for word, value in zip(words, chance, strict=True)])
    return result


def _heads(name: str, weights: Tensor, inputs: Inputs) -> Heads:
    """Weights with the names of their rows and columns, by the side of a translator that the attention is in."""
    if not inputs.targets or name.startswith("encoder."):
        rows = columns = inputs.tokens
    elif ".cross." in name or weights.size(-1) != len(inputs.targets) or weights.size(1) != weights.size(2):
        rows, columns = inputs.targets, inputs.tokens
    else:
        rows = columns = inputs.targets
    return Heads(name, weights, _fit(rows, weights.size(1)), _fit(columns, weights.size(2)))


def _fit(words: list[str], count: int) -> list[str]:
    """As many names as there are rows; numbers where the part attends to something else than tokens."""
    return words if len(words) == count else [str(number) for number in range(1, count + 1)]
