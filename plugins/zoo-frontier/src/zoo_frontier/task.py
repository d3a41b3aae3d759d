"""Multi-token prediction: a language model that also learns the tokens behind the next one (DeepSeek-V3, 2024)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torchmetrics import MeanMetric

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.language import LanguageModel
from zoo.models.stack import Stack
from zoo.parts.position import Extent
from zoo.tasks.lm import CausalLM, LanguageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Loss, OptimizerFactory, ScheduleFactory

# options of a language model that its modules do not take: they have one block, and share embedding and output matrix
OF_WHOLE_MODEL = (
    "tie", "scale_embedding", "seed", "depth", "overrides", "embedding_scale", "logit_scale", "logit_cap", "head_bias",
)  # fmt: skip


class NextDepth(nn.Module):
    """One module of DeepSeek-V3: h' = block(M [norm(h); norm(e)]), from a state h and the embedding e of a later token.

    The block has the parts of the model's own stack, and M maps 2 dim features to dim.
    """

    def __init__(self, state_norm: nn.Module, token_norm: nn.Module, stack: Stack):
        super().__init__()
        self.state_norm, self.token_norm, self.stack = state_norm, token_norm, stack
        self.joint = nn.Linear(2 * stack.dim, stack.dim, bias=False)

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """States and embeddings (B, T, dim) of as many tokens, to states (B, T, dim) of one token further."""
        return self.stack(self.joint(torch.cat([self.state_norm(states), self.token_norm(embedded)], -1)))


class MultiTokenModel(LanguageModel):
    """A causal language model with a module for each token behind the next one; generation leaves the modules out."""

    def __init__(self, vocab_size: int, max_length: int = 1024, ahead: int = 1, seed: int = 0, **model):
        """
        Args:
            ahead: number of tokens behind the next one that are predicted too.
            seed: of the initial weights.
        """
        if ahead < 1:
            raise UsageError(f"model.ahead must be at least 1, got {ahead}. For none: --model CausalLM")
        if ahead >= max_length:
            raise UsageError(f"model.ahead is {ahead}, and rows have {max_length} tokens. Take a smaller one.")
        super().__init__(vocab_size, max_length, seed=seed, **model)
        parts = {name: value for name, value in model.items() if name not in OF_WHOLE_MODEL}
        extent = Extent((max_length,), causal=True)
        with preserve_rng():
            self.depths = nn.ModuleList(
                NextDepth(self.stack.another_norm(), self.stack.another_norm(), Stack(extent, depth=1, **parts))
                for _ in range(ahead)
            )
            initialize(self, seed)  # each weight by its name: those of the language model stay as they are

    def later_states(self, states: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """Of states and tokens of the same places, (B, T, dim) and (B, T): for k = 1, 2, … the states (B, T - k, dim)
        that predict the token k places behind the next one.
        """
        for k, module in enumerate(self.depths, 1):
            if k >= tokens.size(1):
                return
            states = module(states[:, :-1], self.embedding(tokens[:, k:]) * self.scale)
            yield states

    def forward(  # type: ignore[override]
        self, tokens: Tensor, valid: Tensor | None = None, every: Tensor | None = None, caches: Any = None
    ) -> Any:
        """Tokens (B, T) to logits (B, T, vocab_size) of the next tokens.

        With ``every``, of any shape, a list of these and of the logits (B, T - k, vocab_size) of the tokens k places
        behind.
        """
        states = self.states(tokens, valid, caches)
        logits = self.logits(states)
        if every is None:
            return logits
        return [logits, *(self.logits(later) for later in self.later_states(states, tokens))]


class MTP(CausalLM):
    """Predict each next token, and in training some tokens behind it; reports the loss of the next token alone.

    Loss, perplexity and bits per byte are those of CausalLM, so that both are compared by them. ``loss_k_later`` is the
    cross-entropy of the token k places behind the next one.
    """

    in_matrix = False  # its stack is CausalLM's
    training_options = ("ahead_weight",)
    net: MultiTokenModel

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        ahead: int = 1,
        ahead_weight: float = 0.3,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            ahead: number of tokens behind the next one that are predicted too.
            ahead_weight: weight of the mean of their losses beside the loss of the next token.
        """
        if not 0 <= ahead_weight < float("inf"):
            raise UsageError(f"model.ahead_weight is a weight, got {ahead_weight}.")
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, ahead=ahead, **model)
        LanguageTask.__init__(self, net, lr, optimizer, schedule)
        self.ahead, self.ahead_weight = ahead, ahead_weight
        for k in range(1, ahead + 1):
            self.metrics[f"loss_{k}_later"] = MeanMetric()

    @staticmethod
    def network(**options: Any) -> MultiTokenModel:
        """A MultiTokenModel."""
        return MultiTokenModel(**options)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Σ CE(next token) + weight / K · Σ_k Σ CE(token k places behind it), per next token (); rows are (B, T).

        A sum over k has fewer terms than there are next tokens; as in the paper it is divided by their number all the
        same.
        """
        losses = list(self._losses(batch))
        later = torch.stack([loss.total for loss in losses[1:]]).sum() if losses[1:] else 0.0
        return Loss(losses[0].total + self.ahead_weight / self.ahead * later, losses[0].size)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The cross-entropy of the next tokens, after updating the metrics."""
        next_tokens, *later = self._losses(batch)
        for k, (total, size) in enumerate(later, 1):
            if size > 0:
                self.metrics[f"loss_{k}_later"].update(total / size, size)
        return self.update_bits_per_byte(next_tokens, batch)

    def _losses(self, batch: dict[str, Tensor]) -> Iterator[Loss]:
        """The losses of the next tokens, and of those k = 1, 2, … places behind them."""
        tokens, targets = batch["inputs"], batch["targets"]
        states = self.net.states(tokens)
        for k, later in enumerate([states, *self.net.later_states(states, tokens)]):
            own = targets[:, k:]
            yield Loss(self.net.token_loss(later, own), (own >= 0).sum())

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One text (1, T) on the meta device with all of its predictions, and T."""
        (tokens,), length = super().example()
        valid = torch.ones(1, length, dtype=torch.bool, device="meta")
        return (tokens, valid, valid), length
