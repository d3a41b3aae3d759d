"""DALL-E: one language model that reads a caption and goes on with the codes of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from zoo.errors import UsageError
from zoo.models.decoding_state import LanguageState
from zoo.models.generation import GenerationConfig, generate
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.language import LanguageModel
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task
from zoo_multimodal.imagetokens import ImageTokenizer
from zoo_multimodal.shapes import pixels
from zoo_multimodal.trained import TrainedOnCaptions


class Painter(nn.Module):
    """p(caption, codes) token by token: text first, then the image (Ramesh et al., 2021).

    One vocabulary holds the words and, after them, the codes. A caption is padded to one length, so that the image
    always begins at the same place; padding is seen as tokens of its own, as in the paper.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        image_size: int,
        channels: int = 3,
        width: int = 32,
        stride: int = 4,
        levels: tuple[int, ...] = (5, 5, 5),
        seed: int = 0,
        **language,
    ):
        """
        Args:
            vocab_size: number of words.
            max_length: longest caption, with its begin and end.
            image_size: height and width of an image in pixels.
            channels: 1 for grey, 3 for colour.
            width: channels of the image tokenizer's first layer.
            stride: pixels of a code's side, a power of two.
            levels: how finely each number of a code is rounded; their product is the number of codes.
            seed: of the initial weights.
        """
        super().__init__()
        with preserve_rng():
            self.words, self.text_length = vocab_size, max_length
            self.tokenizer = ImageTokenizer(image_size, channels, width, stride, levels)
            whole = max_length + self.tokenizer.length
            self.language = LanguageModel(vocab_size + self.tokenizer.count, whole, **language)
            initialize(self, seed)

    def forward(self, captions: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Captions (B, T) and images to logits of words (B, T - 1, words), logits of codes (B, N, codes), and codes."""
        codes = self.tokenizer.encode(images)
        words, painted = self.read(captions, codes)
        return words, painted, codes

    def read(self, captions: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Captions (B, T) and codes (B, N) to the logits of the words and of the codes that come next.

        Padding is part of the sequence, so raises UsageError where T is not ``text_length``.
        """
        if captions.size(1) != self.text_length:
            raise UsageError(f"a caption has {self.text_length} tokens with its padding, got {captions.size(1)}.")
        logits = self.language(torch.cat([captions, codes[:, :-1] + self.words], 1))
        edge = self.text_length - 1  # the last word is where the first code is told
        return logits[:, :edge, : self.words], logits[:, edge:, self.words :]

    @torch.no_grad()
    def paint(self, captions: Tensor, search: GenerationConfig) -> Tensor:
        """Captions (B, T) to images (B, C, H, W) from the model; UsageError where a caption has another length."""
        if captions.size(1) != self.text_length:
            raise UsageError(f"a caption has {self.text_length} tokens with its padding, got {captions.size(1)}.")
        state = Strokes(LanguageState(self.language, self.language.max_length), self.words)
        rows = generate(state, captions, None, search)
        codes = torch.tensor([row[0].tokens for row in rows], device=captions.device)
        return self.tokenizer.decode(codes)


class Strokes:
    """A state that writes codes only: their numbers begin at 0 again, after the caption."""

    def __init__(self, state: LanguageState, words: int):
        self.state, self.words, self.has_started = state, words, False

    def step(self, tokens: Tensor) -> Tensor:
        """The next codes (B, T) to the logits (B, codes) of the one after them."""
        logits = self.state.step(tokens + self.words if self.has_started else tokens)
        self.has_started = True
        return logits[:, self.words :]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.state.select(rows)


class DALLE(Task):
    """Write captions, then images as codes; reports loss (nats per token), of words and of codes, and reconstruction.

    The image tokenizer learns along, by squared error, for the first ``tokenizer_steps``; then it is left as it is, and
    codes keep their meaning. ``reconstruction`` is its mean squared error per number in [-1, 1].
    """

    trained = "zoo_multimodal.dalle:TrainedDALLE"
    learns_from = "images with texts"
    example_data = ("CaptionedShapes",)
    data_sizes: ClassVar = {"vocab_size": 24, "max_length": 10, "image_size": 32, "channels": 3}
    monitored_metrics: ClassVar[Directions] = {"loss": "min"}
    mean_metrics = ("words", "codes", "reconstruction")
    fixed_length = True
    net: Painter

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        tokenizer_steps: int = 1000,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of words; what the data has unless given.
            max_length: longest caption; what the data has unless given.
            image_size: height and width in pixels; what the data has unless given.
            channels: 1 for grey, 3 for colour; what the data has unless given.
            tokenizer_steps: steps in which the image tokenizer learns.
        """
        if tokenizer_steps < 1:
            raise UsageError(f"model.tokenizer_steps must be at least 1, got {tokenizer_steps}.")
        net = self.build_network(
            vocab_size=vocab_size, max_length=max_length, image_size=image_size, channels=channels, **model
        )
        super().__init__(net, lr, optimizer, schedule)
        self.tokenizer_steps = tokenizer_steps

    @staticmethod
    def network(**options: Any) -> Painter:
        """A Painter."""
        return Painter(**options)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over words and codes () in nats, at first plus the tokenizer's error; their number."""
        words, codes, size = self._token_losses(batch)
        total = words.sum() + codes.sum()
        if self._tokenizer_learns():
            total = total + self._reconstruction_errors(batch["images"]).sum() * self.net.tokenizer.length
        else:  # DistributedDataParallel wants a gradient of every parameter, and requires_grad to stay as it was
            total = total + 0 * sum(parameter.sum() for parameter in self.net.tokenizer.parameters())
        return Loss(total, size)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """As the base does; without gradient, an image tokenizer that has learned gets no step."""
        super().on_before_optimizer_step(optimizer)
        for parameter in () if self._tokenizer_learns() else self.net.tokenizer.parameters():
            parameter.grad = None

    def _tokenizer_learns(self) -> bool:
        return self._trainer is None or self.global_step < self.tokenizer_steps

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over words and codes () and their number (), after updating the metrics."""
        words, codes, size = self._token_losses(batch)
        if len(words):
            self.metrics["words"].update(words)
        self.metrics["codes"].update(codes)
        self.metrics["reconstruction"].update(self._reconstruction_errors(batch["images"]))
        return Loss(words.sum() + codes.sum(), size)

    def _token_losses(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of each real word, of each code, and how many there are."""
        spoken, painted, codes = self.net(batch["captions"], batch["images"])
        real = batch["valid"][:, 1:]
        words = F.cross_entropy(spoken[real].float(), batch["captions"][:, 1:][real], reduction="none")
        strokes = F.cross_entropy(painted.flatten(0, 1).float(), codes.flatten(), reduction="none")
        return words, strokes, real.sum() + codes.numel()

    def _reconstruction_errors(self, images: Tensor) -> Tensor:
        """The mean squared error of each image after a round trip, (B,)."""
        return (self.net.tokenizer(images) - images).float().square().flatten(1).mean(1)

    def sample(self, rows: int) -> dict[str, Any]:
        """Random images (rows, C, H, W), captions (rows, T) and their masks."""
        net, side = self.net, self.net.tokenizer.image_size
        valid = torch.arange(net.text_length) < torch.randint(3, net.text_length + 1, (rows, 1))
        captions = torch.randint(1, net.words, (rows, net.text_length)).masked_fill(~valid, 0)
        return {"images": torch.randn(rows, net.tokenizer.channels, side, side), "captions": captions, "valid": valid}

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One caption (1, T) and image (1, C, H, W) on the meta device, and the predictions of both."""
        net, side = self.net, self.net.tokenizer.image_size
        captions = torch.zeros(1, net.text_length, dtype=torch.long, device="meta")
        images = torch.zeros(1, net.tokenizer.channels, side, side, device="meta")
        return (captions, images), net.text_length - 1 + net.tokenizer.length


class TrainedDALLE(TrainedOnCaptions):
    """Draws what a caption says."""

    @torch.no_grad()
    def draw(self, captions: Sequence[str], search: GenerationConfig | None = None) -> list[Image.Image]:
        """An image per caption; drawn codes at temperature 1 unless ``search`` says otherwise."""
        length = self.net.tokenizer.length
        config = replace(search or GenerationConfig(temperature=1.0), max_length=length, min_length=length)
        images = pixels(self.net.paint(self.tokens(captions, self.net.text_length), config))
        return [Image.fromarray(one) for one in images.permute(0, 2, 3, 1).cpu().numpy()]
