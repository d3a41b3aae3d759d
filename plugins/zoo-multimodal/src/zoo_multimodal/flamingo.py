"""Flamingo: a frozen language model learns to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.inference import find_run, weight_files
from zoo.models.decoding_state import Seq2SeqState
from zoo.models.generation import GenerationConfig, generate
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.language import LanguageModel
from zoo.models.stack import Stack
from zoo.models.vit import LearnedTokens, ViT
from zoo.parts.block import Memory
from zoo.parts.cache import Caches
from zoo.parts.position import Extent
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task
from zoo_multimodal.captions import BEGIN, END, decode
from zoo_multimodal.clip import pictures
from zoo_multimodal.gated import looks, open_eyes, renamed
from zoo_multimodal.trained import Picture, TrainedOnCaptions


class Eye(ViT):
    """A ViT that gives the states of its patches instead of logits."""

    def __init__(self, image_size: int, channels: int = 3, patch_size: int = 8, **vit):
        super().__init__(1, image_size, channels, patch_size, **vit)
        self.head = nn.Identity()  # type: ignore[assignment]

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to (B, patches, dim)."""
        return self.stack(self.embedding(self.patches(images)))


class Resampler(nn.Module):
    """Any number of patches to a few tokens: learned queries that look at them (Perceiver, Jaegle et al., 2021)."""

    def __init__(self, latents: int, depth: int = 1, **stack):
        super().__init__()
        self.stack = Stack(Extent((latents,)), cross=True, depth=depth, **stack)
        self.latents = LearnedTokens(latents, self.stack.dim)

    def forward(self, states: Tensor) -> Tensor:
        """(B, patches, dim) to (B, latents, dim)."""
        return self.stack(self.latents(len(states)), memory=Memory(states))


class SeeingLanguageModel(nn.Module):
    """A language model whose blocks look at an image through gates that are closed at first (Alayrac et al., 2022).

    One image per text, which all of it may see.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        image_size: int,
        channels: int = 3,
        patch_size: int = 8,
        latents: int = 8,
        every: int = 1,
        resampler_depth: int = 1,
        depth: int = 6,
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
            latents: tokens that an image becomes.
            every: blocks of the language model per cross-attention.
            resampler_depth: number of the resampler's blocks.
            depth: number of blocks of the language model, and of the image tower.
            seed: of the initial weights.
        """
        super().__init__()
        if latents < 1:
            raise UsageError(f"latents must be at least 1, got {latents}.")
        with preserve_rng():
            self.image = Eye(image_size, channels, patch_size, depth=depth, **stack)
            self.resampler = Resampler(latents, resampler_depth, **stack)
            self.language = LanguageModel(vocab_size, max_length, depth=depth, **stack)
            open_eyes(self.language.stack, every)
            initialize(self, seed)

    @property
    def decoder(self) -> Stack:
        """The stack that writes."""
        return self.language.stack

    @property
    def output(self) -> Tensor:
        """The matrix (vocab_size, dim) that turns states into logits."""
        return self.language.output

    def see(self, images: Tensor) -> Memory:
        """Images (B, C, H, W) to what the language model looks at."""
        return Memory(self.resampler(self.image(images)))

    def decode(self, target: Tensor, memory: Memory | None, caches: Caches | None = None) -> Tensor:
        """Tokens (B, T), after those in the caches, to logits (B, T, vocab_size)."""
        model = self.language
        x = model.stack(model.embedding(target) * model.scale, memory=memory, caches=caches)
        return model.logits(x)

    def begin(self, images: Tensor, capacity: int) -> Seq2SeqState:
        """A state for writing up to ``capacity`` tokens about images, which are seen here, once."""
        return Seq2SeqState(self, self.see(images), capacity)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Images (B, C, H, W) and tokens (B, T) to logits (B, T, vocab_size)."""
        return self.decode(tokens, self.see(images))

    @torch.no_grad()
    def tell(self, images: Tensor, search: GenerationConfig) -> list[list[int]]:
        """A caption per image: its tokens without begin and end."""
        first = torch.full((len(images), 1), BEGIN, device=images.device)
        hypotheses = generate(self.begin(images, search.max_length + 1), first, END, search)
        return [row[0].tokens for row in hypotheses]


class Flamingo(Task):
    """Caption images; reports loss (nats per token), ``exact``, the share of greedy captions that are right, and gates.

    With ``language`` and ``vision`` the language model and the image tower start from these runs and stay as they are:
    only what connects them learns. Without, all of it learns. ``gates`` is the mean of abs(tanh) over the gates.
    """

    trained = "zoo_multimodal.flamingo:TrainedFlamingo"
    learns_from = "images with texts"
    example_data = ("CaptionedShapes",)
    data_sizes: ClassVar = {"vocab_size": 24, "max_length": 10, "image_size": 32, "channels": 3}
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "exact": "max"}
    mean_metrics = ("exact",)
    net: SeeingLanguageModel

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        language: str | None = None,
        vision: str | None = None,
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
            language: a run of CausalLM, a checkpoint or a recipe, whose weights the language model keeps.
            vision: the same of CLIP, for the image tower.
        """
        net = self.build_network(
            vocab_size=vocab_size, max_length=max_length, image_size=image_size, channels=channels, **model
        )
        super().__init__(net, lr, optimizer, schedule)
        self.language, self.vision = language, vision
        if language is not None:
            net.language.requires_grad_(False)
            for look in looks(net.language.stack):
                look.requires_grad_(True)
        if vision is not None:
            net.image.requires_grad_(False)

    @staticmethod
    def network(**options: Any) -> SeeingLanguageModel:
        """A SeeingLanguageModel."""
        return SeeingLanguageModel(**options)

    def setup(self, stage: str | None = None) -> None:
        """Load the frozen language model and image encoder before training."""
        if stage != "fit":
            return
        stack = self.net.language.stack
        if self.language is not None:
            keep(self.net.language, self.language, "net.", lambda name: renamed(name, stack), optional=".look.")
        if self.vision is not None:
            keep(self.net.image, self.vision, "net.image.", lambda name: "" if name.startswith("head.") else name)

    def train(self, mode: bool = True) -> Flamingo:
        """Training mode, but never for what is frozen: its dropout stays off."""
        super().train(mode)
        if self.vision is not None:
            self.net.image.eval()
        if self.language is not None:
            self.net.language.eval()
            for look in looks(self.net.language.stack):
                look.train(mode)
        return self

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over tokens of captions (), in nats, and their number ()."""
        logits = self.net(batch["images"], batch["inputs"]).flatten(0, 1).float()
        targets = batch["targets"]
        return Loss(F.cross_entropy(logits, targets.flatten(), reduction="sum"), (targets >= 0).sum())

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same, after updating the metrics."""
        captions = self.net.tell(batch["images"], GenerationConfig(max_length=batch["targets"].size(1)))
        own = [[token for token in row if token >= 0 and token != END] for row in batch["targets"].tolist()]
        self.metrics["exact"].update(
            torch.tensor([mine == right for mine, right in zip(captions, own, strict=True)]).float()
        )
        return self.loss(batch)

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """The metrics by name, with the mean of |tanh(gate)| as ``gates``."""
        gates: list[Tensor] = [
            gate.weight for look in looks(self.net.language.stack) for gate in (look.attention_gate, look.ffn_gate)
        ]
        return {**super().compute_metrics(loss), "gates": float(torch.stack(gates).detach().tanh().abs().mean())}

    def sample(self, rows: int) -> dict[str, Any]:
        """Random images and captions."""
        return pictures(rows, self.net.image, self.net.language.vocab_size, self.net.language.max_length)

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One image (1, C, H, W) and caption (1, T) on the meta device, and T."""
        image, length = self.net.image, self.net.language.max_length - 1
        images = torch.zeros(1, image.channels, image.image_size, image.image_size, device="meta")
        return (images, torch.zeros(1, length, dtype=torch.long, device="meta")), length


def keep(module: nn.Module, run: str, prefix: str, name: Callable[[str], str], optional: str = "\0") -> None:
    """Give a module the tensors of a run below ``prefix``, each under the name that ``name`` says, "" for none.

    Those of the module with ``optional`` in their names stay. Raises CheckpointError naming what is missing, unknown or
    of another shape.
    """
    location = find_run.find_model(run)
    content = weight_files.read_tensors(location.weights)
    tensors = {name(key.removeprefix(prefix)): value for key, value in content.items() if key.startswith(prefix)}
    tensors.pop("", None)
    own = {key: value for key, value in module.state_dict().items() if optional in key}
    weight_files.load_tensors(module, own | tensors, location.weights)


class TrainedFlamingo(TrainedOnCaptions):
    """Says what it sees."""

    def caption(self, images: Sequence[Picture], search: GenerationConfig | None = None) -> list[str]:
        """A caption per image, by the likeliest tokens unless ``search`` says otherwise."""
        config = search or GenerationConfig(max_length=self.net.language.max_length - 1)
        return [decode(row) for row in self.net.tell(self.pixels(images, self.net.image.image_size), config)]
