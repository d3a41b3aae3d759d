"""A causal language model."""

from torch import Tensor, nn

from zoo.models.decoding_state import LanguageState
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.stack import Stack
from zoo.parts.cache import Caches
from zoo.parts.few_row_linear import linear
from zoo.parts.position import Extent
from zoo.value_checks import at_least


class LanguageModel(nn.Module):
    """Logits of the next token, from all tokens so far: the decoder-only Transformer (GPT, LLaMA)."""

    def __init__(
        self,
        vocab_size: int,
        max_length: int = 1024,
        tie: bool = True,
        scale_embedding: bool = False,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            tie: use the embedding matrix for the output as well (Press and Wolf, 2017).
            scale_embedding: multiply embeddings by sqrt(dim), as in the original Transformer.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, vocab_size=vocab_size, max_length=max_length)
        with preserve_rng():
            self.vocab_size, self.max_length = vocab_size, max_length
            self.stack = Stack(Extent((max_length,), causal=True), cross=False, padded=False, **stack)
            self.dim: int = self.stack.dim
            self.embedding = nn.Embedding(vocab_size, self.dim)
            self.head = None if tie else nn.Linear(self.dim, vocab_size, bias=False)
            self.scale = self.dim**0.5 if scale_embedding else 1.0
            initialize(self, seed)

    def begin(self, capacity: int, valid: Tensor | None = None) -> LanguageState:
        """A state for writing up to ``capacity`` tokens, prompt included; ``valid`` (B, T) is False at its padding."""
        return LanguageState(self, capacity, valid)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size).

        ``valid`` (B, S) marks real tokens, cached ones included; padding may stand on the left or on the right.
        """
        return linear(self.states(tokens, valid, caches), self.output)

    @property
    def output(self) -> Tensor:
        """The matrix (vocab_size, dim) that turns states into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def states(self, tokens: Tensor, valid: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """What ``forward`` turns into logits, (B, T, dim): a loss over them need not hold all logits at once."""
        x = self.embedding(tokens)
        return self.stack(x if self.scale == 1.0 else x * self.scale, valid, caches=caches)
