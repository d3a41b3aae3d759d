"""The Transformer's ancestors: an encoder-decoder of recurrent cells, with a fixed context or with attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.parts.block import Memory
from zoo.value_checks import MOST_MODULES, a_rate, at_least, at_most

LAYERS: Mapping[str, Callable[..., nn.Module]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CELLS: Mapping[str, Callable[..., nn.Module]] = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


class Encoder(nn.Module):
    """h_i from h_{i-1} and x_i; bidirectional: [h_i read from the left; h_i read from the right] (Schuster, 1997)."""

    def __init__(
        self,
        bidirectional: bool = True,
        dim: int = 512,
        depth: int = 1,
        cell: Literal["rnn", "gru", "lstm"] = "gru",
        dropout: float = 0.0,
    ):
        """
        Args:
            bidirectional: read the source from both ends, each with half the width.
            dim: width of a token and of a hidden state.
            depth: number of recurrent layers, in the encoder and in the decoder.
            cell: what carries a state on: rnn is tanh(W x + U h), gru and lstm have gates.
            dropout: rate on embeddings, between layers and on the output.
        """
        super().__init__()
        at_least(1, dim=dim, depth=depth)
        at_most(MOST_MODULES, depth=depth)
        a_rate(dropout=dropout)
        if cell not in CELLS:
            raise UsageError(f"cell must be one of {', '.join(CELLS)}, got {cell}.")
        if bidirectional and dim % 2:
            raise UsageError(f"dim={dim} must be even for two directions. Use dim={dim + 1} or bidirectional=false.")
        self.dim, self.depth, self.cell, self.bidirectional = dim, depth, cell, bidirectional
        self.dropout = nn.Dropout(dropout)
        between = dropout if depth > 1 else 0.0
        width = dim // 2 if bidirectional else dim
        self.layers = LAYERS[cell](dim, width, depth, batch_first=True, dropout=between, bidirectional=bidirectional)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (B, S, dim) to the last layer's states, shaped like x; padding stands on the right and has states of 0."""
        x = self.dropout(x)
        if valid is None or x.is_meta:
            return self.layers(x)[0]
        lengths = valid.sum(1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layers(packed)[0], batch_first=True, total_length=x.size(1))[0]

    def summary(self, states: Tensor, valid: Tensor | None = None) -> Tensor:
        """The last state (B, dim), c of the fixed-context model: each direction's where it has read everything."""
        if valid is None:
            end = states[:, -1]
        else:
            last = (valid.sum(1) - 1)[:, None, None].expand(-1, 1, states.size(2))
            end = states.gather(1, last)[:, 0]
        if not self.bidirectional:
            return end
        half = states.size(2) // 2
        return torch.cat([end[:, :half], states[:, 0, half:]], -1)


class Score(nn.Module):
    """Attention weights a = softmax_i(f(W s + U h_i)): how much a decoder in state s looks at each source state h_i."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.query, self.key = nn.Linear(dim, width, bias=False), nn.Linear(dim, width, bias=False)

    def score(self, hidden: Tensor) -> Tensor:
        """f: (B, S, width) to (B, S)."""
        raise NotImplementedError

    def forward(self, s: Tensor, keys: Tensor, valid: Tensor | None = None) -> Tensor:
        """s (B, dim) and keys U h (B, S, width) to weights (B, S), in float32 at least."""
        scores = self.score(self.query(s)[:, None] + keys)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return (scores if valid is None else scores.masked_fill(~valid, float("-inf"))).softmax(-1)


class AdditiveScore(Score):
    """e_i = v' tanh(W s + U h_i) (Bahdanau et al., 2015)."""

    def __init__(self, dim: int):
        super().__init__(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def score(self, hidden: Tensor) -> Tensor:
        """v' tanh(...): (B, S, dim) to (B, S)."""
        return self.v(torch.tanh(hidden))[..., 0]


class ConcatScore(Score):
    """e_i = w' [s; h_i], one linear layer on the concatenation.

    w' [s; h_i] = w_s' s + w_h' h_i, and the first term is the same for every i: the softmax loses it. Such a decoder
    chooses what matters in a source, but looks at the same place at every step, and w_s never gets a gradient.
    """

    def __init__(self, dim: int):
        super().__init__(dim, 1)

    def score(self, hidden: Tensor) -> Tensor:
        """The sum itself: (B, S, 1) to (B, S)."""
        return hidden[..., 0]


SCORES: Mapping[str, type[AdditiveScore] | type[ConcatScore]] = {"additive": AdditiveScore, "concat": ConcatScore}


class Alignment(nn.Module):
    """Returns attention weights (B, H, T, S) unchanged, so that ``record_weights`` records a stepwise decoder's."""

    def forward(self, weights: Tensor) -> Tensor:
        """Weights (B, H, T, S), unchanged."""
        return weights

    def weights(self, weights: Tensor) -> Tensor:
        """The weights (B, H, T, S) of a forward with the same argument."""
        return weights


class RecurrentCache(NamedTuple):
    """What a decoder takes from step to step: per layer (B, dim), twice for an LSTM; and what it looks at."""

    hidden: list[tuple[Tensor, ...]]
    memory: Memory
    keys: Tensor | None = None

    def select(self, rows: Tensor) -> RecurrentCache:
        """These rows of the batch."""
        hidden = [tuple(part[rows] for part in layer) for layer in self.hidden]
        states, valid, _ = self.memory
        memory = Memory(states[rows], None if valid is None else valid[rows])
        return RecurrentCache(hidden, memory, None if self.keys is None else self.keys[rows])


class Decoder(nn.Module):
    """s_t = cell([c_t; y_{t-1}], s_{t-1}) from s_0 = 0, read out as W [s_t; c_t]: the source enters by c_t alone.

    Without attention c_t = c, the encoder's last state, at every step (Cho et al., 2014; Sutskever et al., 2014). With
    it c_t is the mean of all the encoder's states, by weights that s_{t-1} chooses (Bahdanau et al., 2015).
    """

    def __init__(self, encoder: Encoder, score: str):
        super().__init__()
        dim = encoder.dim
        self.cells = nn.ModuleList(CELLS[encoder.cell](dim if n else 2 * dim, dim) for n in range(encoder.depth))
        self.parts = 2 if encoder.cell == "lstm" else 1
        self.attend = None if score == "none" else SCORES[score](dim)
        self.alignment = None if score == "none" else Alignment()
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(encoder.dropout.p)

    def begin(self, memory: Memory) -> RecurrentCache:
        """What the first step needs."""
        zero = torch.zeros_like(memory.states[:, 0])
        keys = None if self.attend is None else self.attend.key(memory.states)
        return RecurrentCache([(zero,) * self.parts for _ in self.cells], memory, keys)

    def forward(self, y: Tensor, carried: RecurrentCache) -> tuple[Tensor, RecurrentCache]:
        """Embedded tokens y (B, T, dim) to what predicts those after them, and what the next step needs."""
        (hidden, memory, keys), outputs, looks = carried, [], []
        for word in self.dropout(y).unbind(1):
            context = memory.states[:, 0]
            if self.attend is not None:
                looks.append(self.attend(hidden[-1][0], keys, memory.valid))
                context = torch.einsum("bs,bsd->bd", looks[-1].to(memory.states.dtype), memory.states)
            hidden = self._step(torch.cat([context, word], -1), hidden)
            outputs.append(torch.cat([hidden[-1][0], context], -1))
        if self.alignment is not None:
            self.alignment(torch.stack(looks, 1)[:, None])
        return self.dropout(self.out(torch.stack(outputs, 1))), RecurrentCache(hidden, memory, keys)

    def _step(self, x: Tensor, hidden: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        after = []
        for number, (cell, before) in enumerate(zip(self.cells, hidden, strict=True)):
            state = cell(self.dropout(x) if number else x, before if len(before) > 1 else before[0])
            after.append(state if isinstance(state, tuple) else (state,))
            x = after[-1][0]
        return after


class RecurrentSeq2Seq(nn.Module):
    """Logits of the next target token, from a source and the target so far, by recurrent cells.

    ``score: none`` is the encoder-decoder with a fixed context vector (Cho et al., 2014; Sutskever et al., 2014), the
    other scores add attention (Bahdanau et al., 2015).
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int = 1024,
        score: Literal["none", "additive", "concat"] = "additive",
        tie: Literal["none", "output", "all"] = "output",
        bidirectional: bool = True,
        seed: int = 0,
        **layers,
    ):
        """
        Args:
            source_vocab_size: number of source tokens.
            target_vocab_size: number of target tokens.
            max_length: longest source or target the model is made for.
            score: how the decoder's state is compared with each source state; none for a fixed context vector.
            tie: which matrices are one: the target embedding and the output, or the source embedding too.
            bidirectional: read the source from both ends, each with half the width.
            seed: of the initial weights.
        """
        super().__init__()
        if score != "none" and score not in SCORES:
            raise UsageError(f"score must be one of none, {', '.join(SCORES)}, got {score}.")
        if tie == "all" and source_vocab_size != target_vocab_size:
            raise UsageError(
                f"tie=all needs one vocabulary for both sides, got {source_vocab_size} source and {target_vocab_size} "
                "target tokens. Use tie=output, or data with a shared vocabulary."
            )
        with preserve_rng():
            self.max_length = max_length
            self.encoder = Encoder(bidirectional, **layers)
            self.decoder = Decoder(self.encoder, score)
            self.dim: int = self.encoder.dim
            self.target_embedding = nn.Embedding(target_vocab_size, self.dim)
            self.source_embedding = self.target_embedding if tie == "all" else nn.Embedding(source_vocab_size, self.dim)
            self.head = nn.Linear(self.dim, target_vocab_size, bias=False) if tie == "none" else None
            self.scale = self.dim**0.5  # embeddings are drawn as output matrices: this makes them as large as states
            initialize(self, seed)

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Memory:
        """Source tokens (B, S) to what a decoder looks at: all states; the last one, (B, 1, dim), if c is fixed."""
        states = self.encoder(self.source_embedding(source) * self.scale, valid)
        if self.decoder.attend is None:
            return Memory(self.encoder.summary(states, valid)[:, None])
        return Memory(states, valid)

    def decode(self, target: Tensor, carried: RecurrentCache) -> tuple[Tensor, RecurrentCache]:
        """Target tokens (B, T) to logits (B, T, target_vocab_size), and what the tokens after them need."""
        x, carried = self.decoder(self.target_embedding(target) * self.scale, carried)
        return F.linear(x, self.target_embedding.weight) if self.head is None else self.head(x), carried

    def begin(self, source: Tensor, valid: Tensor | None, capacity: int) -> RecurrentState:
        """A state for writing tokens for sources (B, S), which are encoded here, once; any ``capacity`` will do."""
        return RecurrentState(self, self.decoder.begin(self.encode(source, valid)))

    def forward(self, source: Tensor, target: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Source (B, S) and target (B, T) to logits (B, T, target_vocab_size)."""
        return self.decode(target, self.decoder.begin(self.encode(source, source_valid)))[0]


class RecurrentState:
    """A recurrent decoder in the middle of writing; its memory does not grow with what it wrote."""

    def __init__(self, model: RecurrentSeq2Seq, carried: RecurrentCache):
        self.model, self.carried = model, carried

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        logits, self.carried = self.model.decode(tokens, self.carried)
        return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.carried = self.carried.select(rows)
