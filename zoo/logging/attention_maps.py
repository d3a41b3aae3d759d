"""Pictures of attention during training, for the same few validation samples in every run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import move_data_to_device, rank_zero_warn
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, nn

from zoo.models.attention_weights import attention_layers, record_weights
from zoo.models.vit import ViT
from zoo.plugins.safe_import import import_target
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Task
from zoo.tasks.translation import TranslationTask

SENTENCES, IMAGES, TOKENS = 3, 4, 48
LABELLED = 32  # columns of all heads together that get labels: those of more would not be legible
LAYERS, HEADS, QUERIES = 6, 8, 256  # at most so many are drawn, evenly spaced
LAST = "Cross-attention, last layer, mean of heads"


def pictures(task: Task, data: Any) -> dict[str, Image.Image]:
    """Pictures of ``task``, by name, from the function that it declares as ``pictures``; none where it declares none.

    Called in evaluation, without gradients. ``data`` is the run's data module. A name with a slash is the whole tag in
    TensorBoard, others stand below ``attention``.
    """
    return import_target(task.pictures, f"pictures of {type(task).__name__}")(task, data) if task.pictures else {}


def alignment_pictures(task: TranslationTask, data: Any) -> dict[str, Image.Image]:
    """The alignment of a few sentences of the validation data with their translations."""
    batch = move_data_to_device(validation(data, 64), task.device)
    slots = batch["slots"].tolist()
    gold = [[slot[1:] for slot in slots if slot[0] == row] for row in range(len(batch["source"]))]
    images = {}
    for number, row in enumerate(most_telling([bool(alignment) for alignment in gold], batch["type"])[:SENTENCES]):
        source, target = (batch[side][row][batch[f"{side}_valid"][row]] for side in ("source", "target"))
        picture = align_tokens(task.net, (source, target), (data.source_tokenizer, data.target_tokenizer), gold[row])
        if picture is not None:
            images[f"alignment {number + 1}"] = picture
    return images


def align_tokens(
    net: nn.Module, ids: tuple[Tensor, Tensor], tokenizers: tuple[Any, Any], gold: Sequence[Sequence[int]] | None = None
) -> Image.Image | None:
    """The alignment of one sentence (S,), <eos> last, and its translation (T,), <bos> first; None without attention.

    ``gold`` holds spans [s0, s1, t0, t1) that belong together, counted without <bos>.
    """
    from zoo.logging.attention_figures import alignment  # late, like the others below: matplotlib takes half a second

    source, target = ids
    weights = translation_alignment(net, source[None], None, target[None, :-1])
    if weights is None:
        return None
    return alignment(weights[0], labels(tokenizers[0], source), labels(tokenizers[1], target[1:]), gold, LAST)


def most_telling(has_alignment: Sequence[bool], kinds: Sequence[str]) -> list[int]:
    """Indices of all samples: first those with an alignment, and among these one of each kind in turn."""
    turn = [kinds[:row].count(kind) for row, kind in enumerate(kinds)]
    return sorted(range(len(kinds)), key=lambda row: (not has_alignment[row], turn[row]))


def translation_alignment(net: nn.Module, source: Tensor, source_valid: Tensor | None, target: Tensor) -> Tensor | None:
    """Cross-attention weights (B, T, S) of the last layer, mean over heads; None for a net without cross-attention.

    ``net`` is any translator, ``source`` (B, S) and ``source_valid`` (B, S) the encoder's input, ``target`` (B, T) the
    decoder's, <bos> first: row t belongs to the prediction of the token after ``target[:, t]``.
    """
    decoder = net.get_submodule("decoder")
    names = attention_layers(decoder)[-1:]
    with evaluation(net), record_weights(decoder, names) as recorded:
        net(source, target, source_valid)
    return recorded[names[0]].mean(1) if recorded else None


def language_pictures(task: CausalLM, data: Any) -> dict[str, Image.Image]:
    """The heads of all layers on the first tokens of the validation data."""
    from zoo.logging.attention_figures import head_grid

    tokens = validation(data, 1)["inputs"][:, :TOKENS].to(task.device)
    grid = attention_grid(task.net, tokens)
    if not grid:
        return {}
    columns = tokens.size(1) * max(weights.size(0) for weights in grid.values())
    tokenizer = getattr(data, "tokenizer", None)  # numbers of an exercise have none
    words = labels(tokenizer, tokens[0]) if tokenizer is not None and columns <= LABELLED else None
    title = f"Heads on the first {tokens.size(1)} tokens of the validation text"
    return {"heads": head_grid(list(grid.values()), words, title, list(grid))}


def attention_grid(net: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Weights (H, T, S) of the first sample by layer, of at most LAYERS layers and HEADS heads."""
    names = attention_layers(net)
    titles = {names[i]: layer_title(names[i], i) for i in spaced_samples(len(names), LAYERS)}
    with evaluation(net), record_weights(net, titles) as recorded:
        net(*(tensor[:1] for tensor in inputs))
    return {titles[name]: weights[0, spaced_samples(weights.size(1), HEADS)] for name, weights in recorded.items()}


def layer_title(name: str, number: int) -> str:
    """The title of an attention: the layer of its name, ``stack.blocks.3.attend.part``, or else its own number."""
    block = re.search(r"\bblocks\.(\d+)\.", name)
    return f"layer {(int(block[1]) if block else number) + 1}"


def patch_pictures(task: Classification, data: Any) -> dict[str, Image.Image]:
    """What the last layer looks at in a few images of the validation data."""
    from zoo.logging.attention_figures import over_images

    batch = move_data_to_device(validation(data, IMAGES), task.device)
    maps, predictions = patch_attention(task.net, batch["images"])
    if maps is None:
        return {}
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    rows = []
    for number, image in enumerate(batch["images"].float().cpu()):
        real, guess = (data.names[int(labels[number])] for labels in (batch["labels"], predictions))
        caption = f"{real}, predicted: {guess}" if real != guess else f"{real}, predicted correctly"
        heads = maps[number, spaced_samples(maps.size(1), HEADS)]
        rows.append((image * std + mean, heads, caption))
    return {"patches": over_images(rows)}


def patch_attention(net: ViT, images: Tensor) -> tuple[Tensor | None, Tensor]:
    """Attention of the last layer to patches (B, H, rows, columns), and classes (B,), of images (B, C, H, W).

    It is the attention of the class token where there is one, else the mean over (at most QUERIES) patches.
    """
    names, side = attention_layers(net)[-1:], net.image_size // net.patch_size
    rows = [0] if net.cls is not None else spaced_samples(side * side, QUERIES)
    with evaluation(net), record_weights(net, names, rows) as recorded:
        predictions = net(images.to(net.embedding.weight.dtype)).argmax(-1)
    if not recorded:
        return None, predictions
    return recorded[names[0]].mean(2)[..., -side * side :].unflatten(-1, (side, side)), predictions


def validation(data: Any, count: int) -> dict[str, Any]:
    """The first samples of the validation split as one batch, the same in every run."""
    samples = data.datasets["val"]
    return samples.batch(np.arange(min(count, len(samples))), 0)


def labels(tokenizer: Any, ids: Tensor) -> list[str]:
    """The text of each token id (T,); an underscore stands for a leading space."""
    words = [tokenizer.decode([number]) or tokenizer.tokens[number] for number in ids.tolist()]
    return [f"_{word[1:]}" if word[:1] == " " else word for word in words]


def spaced_samples(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced numbers below ``count``."""
    return sorted({round(step) for step in np.linspace(0, count - 1, min(count, most))})


@contextmanager
def evaluation(net: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the modes of all modules and the random state are as before."""
    modes = [(part, part.training) for part in net.modules()]
    here = next((p.device for p in net.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), torch.random.fork_rng([here] if here.type == "cuda" else []):
            net.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training


def summary(images: Mapping[str, Image.Image]) -> Summary:
    """Pictures as TensorBoard keeps them; torch's own function would resample each, which takes longer than drawing."""
    event = Summary()
    for name, picture in images.items():
        content = io.BytesIO()
        picture.save(content, "PNG", compress_level=1)
        image = Summary.Image(height=picture.height, width=picture.width, colorspace=3)
        image.encoded_image_string = content.getvalue()
        event.value.add(tag=name if "/" in name else f"attention/{name}", image=image)
    return event


class Heatmaps(Callback):
    """Draws attention into TensorBoard after each validation, in the first process; an error ends the drawing alone."""

    def __init__(self) -> None:
        self.broken = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the pictures of the task and log them at this step; a failure is a warning."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        # with another strategy a process holds a part of the weights only, and a forward would wait for the others
        whole = type(trainer.strategy) in (SingleDeviceStrategy, DDPStrategy)
        data = trainer.datamodule  # type: ignore[attr-defined]
        active = data and loggers and whole and trainer.is_global_zero and not trainer.sanity_checking
        if self.broken or not active or not isinstance(pl_module, Task):
            return
        try:
            with evaluation(pl_module), trainer.precision_plugin.forward_context():
                images = pictures(pl_module, data)
            for logger in loggers:
                logger.experiment.file_writer.add_summary(summary(images), trainer.global_step)
        except Exception as error:  # a failed picture does not end a run
            self.broken = True
            rank_zero_warn(f"attention is not drawn in this run: {type(error).__name__}: {error}")
