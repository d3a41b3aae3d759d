"""Models of text that every token sees whole: an encoder, and heads that fill in, classify a text or its tokens."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.stack import Stack
from zoo.parts.ffn import ACTIVATIONS, Activation
from zoo.parts.position import Extent
from zoo.value_checks import a_rate, at_least

Pool = Literal["first", "mean", "last", "late"]
Pooler = Literal["tanh", "relu", "gelu", "gelu_tanh", "swish"]
POOLERS = {**ACTIVATIONS, "tanh": torch.tanh}


class TextEncoder(nn.Module):
    """States of tokens that see each other (Devlin et al., 2019), or, causal, those before them; the base of the heads.

    Its parts have the names of a language model's, so that weights go from one to the other.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int = 512,
        segments: int = 0,
        causal: bool = False,
        scale_embedding: bool = False,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            segments: kinds of tokens, such as a first and a second sentence, that have an embedding of their own.
            causal: let a token see only those before it, as a language model does.
            scale_embedding: multiply embeddings by sqrt(dim), as in the original Transformer.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, vocab_size=vocab_size, max_length=max_length)
        at_least(0, segments=segments)
        with preserve_rng():
            self.vocab_size, self.max_length, self.segments, self.seed = vocab_size, max_length, segments, seed
            self.stack = Stack(Extent((max_length,), causal=causal), cross=False, padded=True, **stack)
            self.dim: int = self.stack.dim
            self.embedding = nn.Embedding(vocab_size, self.dim)
            self.segment = nn.Embedding(segments, self.dim) if segments else None
            self.scale = self.dim**0.5 if scale_embedding else 1.0
            initialize(self, seed)

    def states(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T), or their embeddings (B, T, dim), to (B, T, dim); ``valid`` (B, T) is False at padding,
        ``segments`` (B, T) is 0 unless given.
        """
        x = (tokens if tokens.is_floating_point() else self.embedding(tokens)) * self.scale
        if self.segment is not None:
            x = x + (self.segment.weight[0] if segments is None else self.segment(segments))
        return self.stack(x, valid)


class MaskedLanguageModel(TextEncoder):
    """Logits of every token from those around it, and, optionally, of whether a second text follows a first.

    BERT's head: norm(act(W x + b)) with the encoder's norm, then the embedding matrix and a bias.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int = 512,
        tie: bool = True,
        next_sentence: float = 0.0,
        activation: Activation = "gelu",
        transform: bool = True,
        transform_bias: bool = True,
        output_bias: bool = True,
        **encoder,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence the model is made for.
            tie: use the embedding matrix for the output as well (Press and Wolf, 2017).
            next_sentence: above 0, predict from the first token whether the second text follows the first.
            activation: of the head.
            transform: let a layer with activation and norm stand between states and output.
            transform_bias: give that layer a bias.
            output_bias: add a learned number per token to the logits.
        """
        super().__init__(vocab_size, max_length, **encoder)
        with preserve_rng():
            self.activation = ACTIVATIONS[activation]
            self.transform = nn.Linear(self.dim, self.dim, bias=transform_bias) if transform else None
            self.transform_norm = self.stack.another_norm() if transform else None
            self.head = Output(self.dim, vocab_size, tie, output_bias)
            self.pooler = nn.Linear(self.dim, self.dim) if next_sentence > 0 else None
            self.follows = nn.Linear(self.dim, 2) if next_sentence > 0 else None
            initialize(self, self.seed)

    def fill(self, states: Tensor) -> Tensor:
        """States (..., dim) to logits (..., vocab_size) of the tokens that stood there."""
        if self.transform is not None and self.transform_norm is not None:
            states = self.transform_norm(self.activation(self.transform(states)))
        return self.head(states, self.embedding.weight)

    def follow(self, states: Tensor) -> Tensor:
        """States (B, T, dim) to logits (B, 2): another text, or the one that follows."""
        assert self.pooler is not None
        assert self.follows is not None
        return self.follows(self.pooler(states[:, 0]).tanh())

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        return self.fill(self.states(tokens, valid, segments))


class Output(nn.Module):
    """x W^T + b, where W is a matrix of its own or the embedding's, and b may be left out."""

    def __init__(self, dim: int, vocab_size: int, tie: bool, bias: bool = True):
        super().__init__()
        self.own = None if tie else nn.Linear(dim, vocab_size, bias=False)
        self.bias = nn.Parameter(torch.empty(vocab_size)) if bias else None

    def reset_parameters(self) -> None:
        """A bias of zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (..., dim) and the embedding (V, dim) to (..., V)."""
        return F.linear(x, embedding if self.own is None else self.own.weight, self.bias)


class Classifier(TextEncoder):
    """What classifiers of texts and of tokens share: a layer that may stand in front of the classes, and those."""

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        max_length: int = 512,
        pooler: Pooler | None = None,
        pooler_bias: bool = True,
        pooler_norm: bool = False,
        head_dropout: float = 0.0,
        **encoder,
    ):
        """
        Args:
            vocab_size: number of tokens.
            num_classes: number of classes.
            max_length: longest sequence the model is made for.
            pooler: activation of a layer in front of the classifier, as BERT (tanh) and DeBERTa (gelu) have.
            pooler_bias: give that layer a bias.
            pooler_norm: normalise what that layer gives with the encoder's norm, as ModernBERT does.
            head_dropout: rate on what the classifier reads.
        """
        at_least(1, num_classes=num_classes)
        a_rate(head_dropout=head_dropout)
        super().__init__(vocab_size, max_length, **encoder)
        with preserve_rng():
            self.pooler = nn.Linear(self.dim, self.dim, bias=pooler_bias) if pooler else None
            self.pooler_norm = self.stack.another_norm() if pooler and pooler_norm else nn.Identity()
            self.activation = POOLERS[pooler or "tanh"]
            self.dropout = nn.Dropout(head_dropout)
            self.head = nn.Linear(self.dim, num_classes)
            initialize(self, self.seed)

    def prepare(self, x: Tensor) -> Tensor:
        """What the classifier reads of states (..., dim), after the layer in front of it; the same shape."""
        return x if self.pooler is None else self.pooler_norm(self.activation(self.pooler(x)))


class TextClassifier(Classifier):
    """Logits of a text's class, from one state of the encoder or their mean."""

    def __init__(self, vocab_size: int, num_classes: int, max_length: int = 512, pool: Pool = "mean", **classifier):
        """
        Args:
            vocab_size: number of tokens.
            num_classes: number of classes.
            max_length: longest sequence the model is made for.
            pool: what the classifier reads, the first state, the mean of all, the last one (of a causal model), or the
                mean of what the layer in front of it makes of each (late).
        """
        super().__init__(vocab_size, num_classes, max_length, **classifier)
        if self.stack.causal and pool == "first":
            raise UsageError("pool=first reads a token that sees nothing else in a causal model. Use last or mean.")
        self.pool = pool

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, num_classes)."""
        x = self.states(tokens, valid, segments)
        x = pooled(self.prepare(x), valid, "mean") if self.pool == "late" else self.prepare(pooled(x, valid, self.pool))
        return self.head(self.dropout(x))


class TokenClassifier(Classifier):
    """Logits of each token's class."""

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, T, num_classes)."""
        return self.head(self.dropout(self.prepare(self.states(tokens, valid, segments))))


def pooled(states: Tensor, valid: Tensor | None, pool: str) -> Tensor:
    """States (B, T, dim) to (B, dim): the first real one, the mean or maximum of the real ones, or the last real one.

    The sum of a mean is at least in float32.
    """
    if valid is None:
        valid = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    if pool == "mean":
        wide = torch.promote_types(states.dtype, torch.float32)
        total = (states * valid[..., None]).sum(1, dtype=wide)
        return (total / valid.sum(1, keepdim=True).clamp(min=1)).to(states.dtype)
    if pool == "max":
        return states.masked_fill(~valid[..., None], -torch.inf).amax(1)
    rows, tokens = valid.size(0), valid.size(1)  # not len, of which torch.export makes a constant
    place = torch.arange(tokens, device=valid.device)
    far = torch.where(valid, place, -1).amax(1) if pool == "last" else torch.where(valid, place, tokens).amin(1)
    return states[torch.arange(rows, device=states.device), far.clamp(0, tokens - 1)]
