"""Stop writing at certain strings, whatever is searching: the end becomes the only thing left to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.models.decoding_state import State


class Stopping:
    """A state in which a sequence that has written a stop string can only say ``end``.

    ``end`` may be one more than the tokens that the model knows: then it never says it by itself.
    """

    def __init__(self, state: State, decode: Callable[[Sequence[int]], str], stops: Sequence[str], end: int) -> None:
        self.state, self.decode, self.stops, self.end = state, decode, stops, end
        self.reach = max(len(stop.encode()) for stop in stops) + 1  # a token stands for one byte at least
        self.written: list[list[int]] | None = None

    def step(self, tokens: Tensor) -> Tensor:
        logits = self.state.step(tokens)
        if self.end == logits.size(-1):
            logits = F.pad(logits, (0, 1), value=float("-inf"))
        if self.written is None:  # the prompt
            self.written = [[] for _ in tokens]
            return logits
        for text, token in zip(self.written, tokens[:, 0].tolist(), strict=True):
            text.append(token)
        stopped = [self._stopped(self.decode(text[-self.reach :])) for text in self.written]
        mask = torch.tensor(stopped, device=logits.device)[:, None]
        only = torch.full_like(logits, float("-inf"))
        only[:, self.end] = 0.0
        return torch.where(mask, only, logits)

    def select(self, rows: Tensor) -> None:
        if self.written is not None:
            self.written = [list(self.written[row]) for row in rows.tolist()]
        self.state.select(rows)

    def _stopped(self, text: str) -> bool:
        return any(stop in text for stop in self.stops)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text in front of the first stop string."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text
