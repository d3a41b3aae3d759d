"""CLIP: two towers that learn which caption belongs to which image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from zoo_text.models.embedding import Scale
from zoo_text.models.encoder import TextClassifier

from zoo.models.initialization import initialize, preserve_rng
from zoo.models.vit import ViT
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task
from zoo_multimodal.captions import PAD
from zoo_multimodal.trained import Picture, TrainedOnCaptions


class Towers(nn.Module):
    """An image and a text tower whose features of unit length meet in one space (Radford et al., 2021)."""

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        image_size: int,
        channels: int = 3,
        patch_size: int = 8,
        features: int = 64,
        temperature: float = 0.07,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest caption, with its begin and end.
            image_size: height and width of an image in pixels.
            channels: 1 for grey, 3 for colour.
            patch_size: height and width of a patch in pixels.
            features: width of the space in which images and texts meet.
            temperature: what cosines are divided by at first; it is learned.
            seed: of the initial weights.
        """
        super().__init__()
        with preserve_rng():
            self.image = ViT(features, image_size, channels, patch_size, **stack)
            # causal, and its last real token speaks for the text: the paper's choice
            self.text = TextClassifier(vocab_size, features, max_length, pool="last", causal=True, **stack)
            self.scale = Scale(temperature)
            initialize(self, seed)

    def images(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to unit vectors (B, features)."""
        return F.normalize(self.image(images), dim=-1)

    def texts(self, captions: Tensor, valid: Tensor | None = None) -> Tensor:
        """Captions (B, T) to unit vectors (B, features)."""
        return F.normalize(self.text(captions, valid), dim=-1)

    def forward(self, images: Tensor, captions: Tensor, valid: Tensor | None = None) -> Tensor:
        """Images (A, C, H, W) and captions (B, T) to logits (A, B): cosines, sharpened."""
        return self.scale(self.images(images) @ self.texts(captions, valid).T)


def info_nce(logits: Tensor) -> Tensor:
    """-1/2 sum_i (log softmax(l_i.)_i + log softmax(l_.i)_i) of (B, B): both ways (van den Oord et al., 2018)."""
    own = torch.arange(len(logits), device=logits.device)
    rows, columns = (F.cross_entropy(way, own, reduction="sum") for way in (logits, logits.T))
    return (rows + columns) / 2


class CLIP(Task):
    """Match images and captions by contrast; reports InfoNCE (nats per pair), matching and zero-shot accuracy.

    ``matched`` is how often the nearest caption of a batch is an image's own, or reads the same. ``zero_shot`` is how
    often the nearest of all prompts is one of the right class, for images that show one. Negatives
    are those of one batch in one process, so the loss depends on how large that is.
    """

    unit = "pair"
    trained = "zoo_multimodal.clip:TrainedCLIP"
    learns_from = "images with texts"
    example_data = ("CaptionedShapes",)
    data_sizes: ClassVar = {"vocab_size": 24, "max_length": 10, "image_size": 32, "channels": 3}
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "matched": "max"}
    mean_metrics = ("matched", "zero_shot")
    known_failures: ClassVar = {"loss_is_a_sum": "a pair is measured against all others of its batch, not alone"}
    net: Towers

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest caption; what the data has unless given.
            image_size: height and width in pixels; what the data has unless given.
            channels: 1 for grey, 3 for colour; what the data has unless given.
        """
        net = self.build_network(
            vocab_size=vocab_size, max_length=max_length, image_size=image_size, channels=channels, **model
        )
        super().__init__(net, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> Towers:
        """A Towers."""
        return Towers(**options)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """InfoNCE summed over images (), in nats, and their number ()."""
        logits = self.net(batch["images"], batch["captions"], batch["valid"]).float()
        return Loss(info_nce(logits), torch.tensor(len(logits), device=logits.device))

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same, after updating the metrics."""
        captions = batch["captions"]
        image_vectors = self.net.images(batch["images"])
        logits = self.net.scale(image_vectors @ self.net.texts(captions, batch["valid"]).T).float()
        self.metrics["matched"].update((captions[logits.argmax(-1)] == captions).all(-1).float())
        if "prompts" in batch and (lone := batch["labels"] >= 0).any():
            guess = self.nearest(image_vectors[lone], batch["prompts"]) // batch["prompts"].size(1)
            self.metrics["zero_shot"].update((guess == batch["labels"][lone]).float())
        return Loss(info_nce(logits), torch.tensor(len(logits), device=logits.device))

    def nearest(self, features: Tensor, prompts: Tensor) -> Tensor:
        """Which prompt is nearest to unit vectors (B, features), of (C, P, T) padded: its number in C × P, (B,)."""
        rows = prompts.flatten(0, 1)
        return (features @ self.net.texts(rows, rows != PAD).T).argmax(-1)

    def sample(self, rows: int) -> dict[str, Any]:
        """Random images and captions."""
        return pictures(rows, self.net.image, self.net.text.vocab_size, self.net.text.max_length)

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One image (1, C, H, W), caption (1, T) and mask (1, T) on the meta device, and 1."""
        text, side = self.net.text, self.net.image.image_size
        images = torch.zeros(1, self.net.image.channels, side, side, device="meta")
        return (images, torch.zeros(1, text.max_length, dtype=torch.long, device="meta")), 1


def pictures(rows: int, image: Any, words: int, length: int) -> dict[str, Tensor]:
    """Random images (rows, C, H, W) with random captions (rows, length) of every length, as the data batches them."""
    valid = torch.arange(length) < torch.randint(3, length + 1, (rows, 1))
    captions = torch.randint(1, words, (rows, length)).masked_fill(~valid, 0)
    targets = captions[:, 1:].masked_fill(~valid[:, 1:], -100)
    return {
        "images": torch.randn(rows, image.channels, image.image_size, image.image_size), "captions": captions,
        "valid": valid, "labels": torch.zeros(rows, dtype=torch.long), "inputs": captions[:, :-1], "targets": targets,
        "bytes": torch.full((rows,), 4 * length),
    }  # fmt: skip


class TrainedCLIP(TrainedOnCaptions):
    """Tells how well captions fit images."""

    @torch.no_grad()
    def similarity(self, images: Sequence[Picture], captions: Sequence[str]) -> Tensor:
        """The cosine of each image with each caption, (images, captions)."""
        net = self.net
        tokens = self.tokens(captions, net.text.max_length)
        return net.images(self.pixels(images, net.image.image_size)) @ net.texts(tokens, tokens != PAD).T
