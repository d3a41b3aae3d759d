"""Classification of long texts: blocks of tokens are encoded one by one, then the sequence of their vectors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.models.initialization import initialize, preserve_rng
from zoo.models.stack import Stack
from zoo.parts.position import Extent
from zoo.value_checks import a_rate, at_least
from zoo_text.models.encoder import TextEncoder


class AttentionPool(nn.Module):
    """A mean of states, weighted by how they agree with a learned vector u (Yang et al., 2016, equations 5 to 7).

    u_t = tanh(W h_t + b), a_t = softmax_t(u_t · u), s = Σ_t a_t h_t.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.project = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, 1, bias=False)

    def weights(self, states: Tensor, valid: Tensor) -> Tensor:
        """a (B, T) of states (B, T, dim); 0 at padding, where ``valid`` (B, T) is False."""
        scores = self.context(self.project(states).tanh())[..., 0]
        scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) * valid

    def forward(self, states: Tensor, valid: Tensor) -> Tensor:
        """States (B, T, dim) to (B, dim)."""
        return (self.weights(states, valid)[:, None] @ states)[:, 0]


class HierarchicalClassifier(TextEncoder):
    """Logits of a text's class, of texts far longer than what a token sees (Yang et al., 2016).

    The text is cut into blocks of ``block_length`` tokens. One encoder reads each block by itself and a pooling makes a
    vector of it; a second encoder reads the vectors, and a second pooling makes the vector of the text. The cost grows
    with the length of a text and not with its square, but for one score per pair of blocks.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        max_length: int = 1024,
        block_length: int = 64,
        document_depth: int = 1,
        head_dropout: float = 0.0,
        segments: int = 0,
        scale_embedding: bool = False,
        seed: int = 0,
        **stack: Any,
    ):
        """
        Args:
            vocab_size: number of tokens.
            num_classes: number of classes.
            max_length: longest text the model is made for.
            block_length: tokens of a block, which see each other.
            document_depth: number of encoder layers over the vectors of blocks.
            head_dropout: rate on what the classifier reads.
            segments: kinds of tokens, such as a first and a second sentence, that have an embedding of their own.
            scale_embedding: multiply embeddings by sqrt(dim), as in the original Transformer.
            seed: of the initial weights.
        """
        at_least(1, num_classes=num_classes, block_length=block_length, document_depth=document_depth)
        a_rate(head_dropout=head_dropout)
        super().__init__(vocab_size, block_length, segments, False, scale_embedding, seed, **stack)
        self.max_length, self.block_length = max_length, block_length
        with preserve_rng():
            blocks = -(-max_length // block_length)
            self.document = Stack(Extent((blocks,)), cross=False, padded=True, **{**stack, "depth": document_depth})
            self.token_pool, self.block_pool = AttentionPool(self.dim), AttentionPool(self.dim)
            self.dropout = nn.Dropout(head_dropout)
            self.head = nn.Linear(self.dim, num_classes)
            initialize(self, seed)

    def blocks(self, tokens: Tensor) -> Tensor:
        """(B, T) cut into blocks, (B, K, block_length), the last one padded with zeros."""
        padding = -tokens.size(1) % self.block_length
        return F.pad(tokens, (0, padding)).unflatten(1, (-1, self.block_length))

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, num_classes); ``valid`` (B, T) is False at padding."""
        valid = self.blocks(torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid)
        if segments is not None:
            segments = self.blocks(segments).flatten(0, 1)
        shape = valid.shape[:2]
        states = self.states(self.blocks(tokens).flatten(0, 1), valid.flatten(0, 1), segments)
        vectors = self.token_pool(states, valid.flatten(0, 1)).unflatten(0, shape)
        real = valid.any(-1)
        return self.head(self.dropout(self.block_pool(self.document(vectors, real), real)))
