"""A causal language model."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.decoding_state import LanguageState
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.loss import cross_entropy
from zoo.models.stack import Stack
from zoo.parts.cache import Caches
from zoo.parts.few_row_linear import linear
from zoo.parts.position import Extent, Learned
from zoo.value_checks import at_least


class LanguageModel(nn.Module):
    """Logits of the next token, from all tokens so far: the decoder-only Transformer (GPT, LLaMA)."""

    tensor_parallel: ClassVar = {"embedding": "vocabulary", "head": "vocabulary"}

    def __init__(
        self,
        vocab_size: int,
        max_length: int = 1024,
        tie: bool = True,
        scale_embedding: bool = False,
        seed: int = 0,
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        logit_cap: float | None = None,
        head_bias: bool = False,
        **stack,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            tie: use the embedding matrix for the output as well (Press and Wolf, 2017).
            scale_embedding: multiply embeddings by sqrt(dim), as in the original Transformer.
            seed: of the initial weights.
            embedding_scale: factor on embeddings, beside that of scale_embedding.
            logit_scale: factor on logits.
            logit_cap: logits stay within (-logit_cap, logit_cap): x becomes cap * tanh(x / cap), as in Gemma 2.
            head_bias: give the output a bias; not where tie is set.

        Raises UsageError for a logit_cap that is not above 0, and for a bias of a tied output.
        """
        super().__init__()
        at_least(1, vocab_size=vocab_size, max_length=max_length)
        if logit_cap is not None and not logit_cap > 0:
            raise UsageError(f"model.logit_cap must be above 0, got {logit_cap}.")
        if head_bias and tie:
            raise UsageError("model.head_bias is a bias of the output's own matrix, which model.tie leaves out.")
        with preserve_rng():
            self.vocab_size, self.max_length = vocab_size, max_length
            self.stack = Stack(Extent((max_length,), causal=True), cross=False, padded=False, **stack)
            self.dim: int = self.stack.dim
            self.embedding = nn.Embedding(vocab_size, self.dim)
            self.head = None if tie else nn.Linear(self.dim, vocab_size, bias=head_bias)
            self.scale = (self.dim**0.5 if scale_embedding else 1.0) * embedding_scale
            self.logit_scale, self.logit_cap = logit_scale, logit_cap
            initialize(self, seed)

    def convert_state(self, start: Any, state: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
        """The embedding (vocab_size, dim) for a start with learned positions, which this model does not have.

        Their mean, added to each token, is what is left of them without places; a tied output adds the same number to
        all logits, which changes no probability.
        """
        words, table = "embedding.weight", "stack.position.table.weight"
        place = start.stack.position if isinstance(start, LanguageModel) else None
        fits = table in state and words in state and state[words].shape == self.embedding.weight.shape
        if not fits or not isinstance(place, Learned) or isinstance(self.stack.position, Learned) or not self.scale:
            return {}
        mean = state[table][place.first :].mean(0) / self.scale
        return {words: (state[words] + mean, "tokens + mean of the learned positions", words, table)}

    def begin(self, capacity: int, valid: Tensor | None = None) -> LanguageState:
        """A state for writing up to ``capacity`` tokens, prompt included; ``valid`` (B, T) is False at its padding."""
        return LanguageState(self, capacity, valid)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size).

        ``valid`` (B, S) marks real tokens, cached ones included; padding may stand on the left or on the right.
        """
        return self.logits(self.stack(self._embed(tokens), valid, caches=caches))

    def logits(self, states: Tensor) -> Tensor:
        """States (..., dim), as ``states`` gives them, to logits (..., vocab_size)."""
        logits = linear(states if self.logit_scale == 1 else states * self.logit_scale, self.output, self.output_bias)
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    def token_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """The sum of -log p(target), () in float32 or wider, over states (..., dim) and targets (...), -100 for none.

        Some rows of logits are computed at a time, unless these are capped.
        """
        if self.logit_cap is not None:
            logits = self.logits(states).flatten(0, -2)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return F.cross_entropy(logits, targets.flatten(), reduction="sum")
        states = states if self.logit_scale == 1 else states * self.logit_scale
        return cross_entropy(states, self.output, targets, self.output_bias)

    @property
    def output(self) -> Tensor:
        """The matrix (vocab_size, dim) that turns states into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def output_bias(self) -> Tensor | None:
        """The bias (vocab_size,) of logits, None where there is none."""
        return None if self.head is None else self.head.bias

    def states(self, tokens: Tensor, valid: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """What ``forward`` turns into logits, (B, T, dim): a loss over them need not hold all logits at once."""
        return self.stack(self._embed(tokens), valid, caches=caches)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x if self.scale == 1.0 else x * self.scale
