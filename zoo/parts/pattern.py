"""What one attention call needs, as a description instead of a T x S tensor."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from zoo.parts.packing import Packing

Bias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""bias(head, query, key): elementwise in a head's number and two positions.

Dense backends call it once with tensors that broadcast to (heads, T, S); a kernel compiler may call it with scalars.
"""

Content = Callable[[Tensor, Tensor], Tensor]
"""content(query, key): what the tokens at these positions, (T,) and (S,), add to the scores, (B, heads, T, S)."""

Sparse = Callable[[Tensor, Tensor], Tensor]
"""sparse(query, key): may a query at this position see a key at that one? Elementwise, as a bias is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    """Who may look at whom, and how much it costs.

    Keys stand at positions start..start+S-1 and queries at offset..offset+T-1: a cache puts queries later than its
    first keys, and with a window it keeps only the last ones.
    """

    causal: bool = False
    window: int | None = None  # a query sees this many keys back (and, unless causal, ahead), itself included
    valid: Tensor | None = None  # (B, S) bool, False where a key is padding
    bias: Bias | None = None
    content: Content | None = None
    sparse: Sparse | None = None
    score_cap: float | None = None  # a score s becomes cap * tanh(s / cap), in front of the bias and what tokens add
    offset: int = 0
    start: int = 0
    places: tuple[Tensor, Tensor] | None = None  # positions of queries (B, T) and keys (B, S) that are not contiguous
    queries: Packing | None = None  # the tokens that look came packed; their projections are spread to (B, T)
    keys: Packing | None = None  # and so did those that are looked at
    _memo: dict = field(default_factory=dict, init=False, repr=False)

    def padded(self) -> "Pattern":
        """The same for tokens that are not packed."""
        return replace(self, queries=None, keys=None)

    def real_tokens(self, T: int) -> Tensor | None:
        """Which of the T tokens of a self-attention's call are not padding, (B, T) bool; None: all."""
        return None if self.valid is None else self.valid[:, self.offset - self.start :][:, :T]

    @property
    def needs(self) -> frozenset[str]:
        """The features a backend must be able to lower."""
        features = {
            "causal": self.causal, "window": self.window is not None, "valid": self.valid is not None,
            "bias": self.bias is not None, "content": self.content is not None, "sparse": self.sparse is not None,
            "score_cap": self.score_cap is not None, "places": self.places is not None,
        }  # fmt: skip
        return frozenset(name for name, is_needed in features.items() if is_needed)

    def positions(self, T: int, device: torch.device) -> Tensor:
        """Where the T queries stand: (T,), or (B, 1, T) where rows differ; keys of the same tokens stand there too."""
        if self.places is not None:
            return self.places[0].unsqueeze(1)
        return torch.arange(self.offset, self.offset + T, device=device)

    def thinned(self, sparse: Sparse) -> "Pattern":
        """This pattern with fewer keys; the same one each time, so that layers with equal rules share its mask."""
        if ("sparse", sparse) not in self._memo:
            both = sparse if self.sparse is None else (lambda query, key: self.sparse(query, key) & sparse(query, key))
            self._memo["sparse", sparse] = replace(self, sparse=both)
        return self._memo["sparse", sparse]

    def capped(self, score_cap: float) -> "Pattern":
        """This pattern with scores within (-score_cap, score_cap); the same one each time, as ``thinned`` gives."""
        if ("score_cap", score_cap) not in self._memo:
            self._memo["score_cap", score_cap] = replace(self, score_cap=score_cap)
        return self._memo["score_cap", score_cap]

    def cap(self, scores: Tensor) -> Tensor:
        """Scores (..., T, S), the scale in them, to cap * tanh(scores / cap) where there is a cap; elementwise."""
        return scores if self.score_cap is None else self.score_cap * torch.tanh(scores / self.score_cap)

    def sees_all(self, T: int, S: int) -> bool:
        """Whether the call is one newest query that may look at every key, as in most steps of decoding."""
        if self.needs != {"causal"} and self.needs != {"causal", "window"}:
            return False
        return T == 1 and self.offset == self.start + S - 1 and (self.window is None or self.window >= S)

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether a query at this position may see a key at that one, padding aside; elementwise, broadcast."""
        yes = key <= query if self.causal else key >= 0
        if self.window is not None:
            yes = yes & ((query - key).abs() < self.window)
        return yes if self.sparse is None else yes & self.sparse(query, key)

    def mask(self, query: Tensor, key: Tensor) -> Tensor | None:
        """True where attention is allowed, (T, S) or (B, 1, T, S), for positions (T,) and (S,); None: everywhere."""
        restricted = self.causal or self.window is not None or self.sparse is not None
        mask = self.allowed(query[:, None], key[None]) if restricted else None
        if self.valid is not None:
            valid = self.valid[:, key - self.start][:, None, None]
            mask = valid if mask is None else mask & valid
        return mask

    def cost(self, heads: int, query: Tensor, key: Tensor) -> Tensor | None:
        """What is added to scores of positions (T,) and (S,): (heads, T, S), or (B, heads, T, S); None: nothing."""
        bias, content = None, None
        if self.bias is not None:
            bias = self.bias(torch.arange(heads, device=query.device)[:, None, None], query[:, None], key[None])
        if self.content is not None:
            content = self.content(query, key)
        return content if bias is None else bias if content is None else bias + content

    def dense(self, heads: int, T: int, S: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Mask, (T, S) or (B, 1, T, S), and cost, (heads, T, S) or (B, heads, T, S), of a call, None where there is
        none; both are computed once and shared by all layers of one forward.
        """
        sizes = (heads, *(size if isinstance(size, int) else str(size) for size in (T, S)), device)  # a symbol: s27
        if sizes not in self._memo and self.places is not None:
            query, key = self.places[0][:, None, :, None], self.places[1][:, None, None]
            mask = (
                self.allowed(query, key) if self.valid is None else self.allowed(query, key) & self.valid[:, None, None]
            )
            bias = self.bias
            head = torch.arange(heads, device=device)[:, None, None]
            self._memo[sizes] = mask, None if bias is None else bias(head, query, key)
        if sizes not in self._memo:
            query = torch.arange(self.offset, self.offset + T, device=device)
            key = torch.arange(self.start, self.start + S, device=device)
            self._memo[sizes] = self.mask(query, key), self.cost(heads, query, key)
        return self._memo[sizes]
