"""Stop strings for any search: once a sequence contains one, the end token gets all probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.models.decoding_state import State


class Stopping:
    """A decoding state in which a sequence that contains a stop string can only continue with ``end``.

    ``end`` may be the vocabulary size, a token that the model itself never generates.
    """

    def __init__(self, state: State, decode: Callable[[Sequence[int]], str], stops: Sequence[str], end: int) -> None:
        self.state, self.decode, self.stops, self.end = state, decode, stops, end
        self.reach = max(len(stop.encode()) for stop in stops) + 1  # a token has at least one byte
        self.generated: list[list[int]] | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) after tokens (B, T), or (B, V + 1) if ``end`` is V."""
        logits = self.state.step(tokens)
        if self.end == logits.size(-1):
            logits = F.pad(logits, (0, 1), value=float("-inf"))
        if self.generated is None:  # the prompt
            self.generated = [[] for _ in tokens]
            return logits
        for text, token in zip(self.generated, tokens[:, 0].tolist(), strict=True):
            text.append(token)
        stopped = [self._stopped(self.decode(text[-self.reach :])) for text in self.generated]
        mask = torch.tensor(stopped, device=logits.device)[:, None]
        only = torch.full_like(logits, float("-inf"))
        only[:, self.end] = 0.0
        return torch.where(mask, only, logits)

    def select(self, rows: Tensor) -> None:
        """Keep the sequences ``rows`` (B,), in this order."""
        if self.generated is not None:
            self.generated = [list(self.generated[row]) for row in rows.tolist()]
        self.state.select(rows)

    def _stopped(self, text: str) -> bool:
        return any(stop in text for stop in self.stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text
