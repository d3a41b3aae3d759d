"""Attention over a fixed number of mixtures of keys."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.backend import Backend, Naive
from zoo.parts.pattern import Pattern


class Linformer(Attention):
    """Keys and values projected along the sequence: softmax(q (E k)' / sqrt(D)) F v (Wang et al., 2020).

    E and F are (rank, length), learned, so the scores are (T, rank). The n-th real key meets column n, wherever padding
    stands. A mixture of keys has no place in time: causality, windows and biases are refused. Turned keys are allowed,
    since q_t (E k)' = E (q_t k_1', q_t k_2', ...): each score is a sum of scores that know their distance.
    """

    supports = frozenset({"valid", "dropout", "rotate", "cross"})
    exact = False
    memory = "linear"
    known_failures: ClassVar[dict[str, str]] = {
        "weights_are_shares": "mixtures of values have weights of any sign and sum",
        "order_of_keys": "the n-th key has the n-th columns of E and F",
        "no_token_is_special": "the n-th key has the n-th columns of E and F",
    }

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        length: int = 1024,
        rank: int = 64,
        share: Literal["none", "headwise", "kv"] = "headwise",
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            backend: how the (T, rank) attention is computed.
            dropout: rate on the (T, rank) weights.
            length: longest sequence of keys; shorter ones use the first columns of E and F.
            rank: number of mixtures.
            share: whether each key/value head has its own E and F, all heads share them, or E and F are one as well.
            kv_heads: number of key/value heads.
            bias: whether the projections of queries, keys, values and output have biases.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        for name, number in (("length", length), ("rank", rank)):
            if number < 1:
                raise UsageError(f"attention Linformer needs {name} of at least 1, got {number}.")
        self.length, self.share = length, share
        own = self.kv_heads if share == "none" else 1
        self.mix_keys = nn.Parameter(torch.empty(own, rank, length))
        self.mix_values = self.mix_keys if share == "kv" else nn.Parameter(torch.empty(own, rank, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A mixture of ``length`` independent keys is about as long as one of them."""
        if self.share == "kv":  # Module.to_empty makes two parameters of a shared one
            self.mix_values = self.mix_keys
        for mix in dict.fromkeys((self.mix_keys, self.mix_values)):
            nn.init.normal_(mix, std=self.length**-0.5)

    def unsupported(self, needs):
        """The needs that it does not serve; the backend sees mixtures of keys without a pattern."""
        # the backend sees mixtures without a pattern: of what is lowered here only dropout is its affair
        return super().unsupported(needs) - (self.supports - {"dropout"})

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, G, S, D) to what the heads give, (B, H, T, D)."""
        mixed = self._placed(self.mix_keys, k, pattern) @ k, self._placed(self.mix_values, v, pattern) @ v
        return self.backend(q, *mixed, Pattern(), self.dropout if self.training else 0.0)

    def weigh(self, q, k, pattern):
        """What each value counts for, (B, H, T, S): softmax(q (E k)' / sqrt(D)) F; rows do not sum to one."""
        mixture = Naive().weights(q, self._placed(self.mix_keys, k, pattern) @ k, Pattern())
        mix = self._placed(self.mix_values, k, pattern).to(mixture.dtype)
        return mixture @ (mix.repeat_interleave(self.heads // self.kv_heads, 1) if mix.size(1) > 1 else mix)

    def _placed(self, mix: Tensor, k: Tensor, pattern: Pattern) -> Tensor:
        """The column of each of S keys, (1 or B, 1 or G, rank, S): zero for padding, the n-th for the n-th real key."""
        S = k.size(2)
        if self.length < S:
            raise UsageError(
                f"sequence length {S} exceeds length={self.length} of attention Linformer. "
                f"Set model.attention.length to at least {S}."
            )
        if pattern.valid is None:
            return mix[None, ..., :S]
        place = (pattern.valid.cumsum(1) - 1).clamp(min=0)
        return mix[..., place].movedim(2, 0).masked_fill(~pattern.valid[:, None, None], 0.0)
