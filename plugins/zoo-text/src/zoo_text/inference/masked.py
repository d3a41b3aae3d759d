"""A trained masked language model: fills in masks and scores texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast, overload

import torch
from torch import Tensor

from zoo.data.tokenizer import CLS, MASK, Tokenizer
from zoo.errors import UsageError
from zoo.inference.classification import Guess
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import Score, Trained, as_list
from zoo_text.models.pseudo_likelihood import pseudo_log_probabilities

if TYPE_CHECKING:
    from zoo.tasks.task import Task

BLANK = "[MASK]"


class FilledText(NamedTuple):
    """A text with the most probable token for each mask, and the most probable tokens of each mask."""

    text: str
    guesses: list[list[Guess]]


class TrainedMaskedLM(Trained):
    """A masked language model with its tokenizer."""

    files = ("tokenizer.json",)
    explained_inputs = "zoo_text.explain_inputs:masked_inputs"

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))
        for name in (CLS, MASK):
            if self.tokenizer.special(name) is None:
                raise UsageError(f"the tokenizer in {place.folder} lacks {name!r}, which filling in needs.")
        self.cls, self.mask = (cast(int, self.tokenizer.special(name)) for name in (CLS, MASK))

    @torch.no_grad()
    def fill(self, texts: str | Sequence[str], *, top: int = 5) -> list[FilledText]:
        """Each text with every ``[MASK]`` replaced by the most probable token, including the space before it.

        All masks of a text are predicted at once. ``top`` is the number of guesses per mask. Raises UsageError for a
        text without a mask or longer than max_length.
        """
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}.")
        return [self._fill(text, top) for text in as_list(texts)]

    def _fill(self, text: str, top: int) -> FilledText:
        row = self.tokenizer.marked(self.encode_blanks(text))
        blanks = [place for place, token in enumerate(row) if token == self.mask]
        if not blanks:
            raise UsageError(f"there is no {BLANK} in {text[:60]!r}: put one where a token is missing.")
        logits = self.require_finite(self.net(self._row(row))[0, blanks].double())
        logits[:, sorted(self.tokenizer.specials.values())] = -torch.inf
        chance, best = logits.softmax(-1).topk(min(top, logits.size(-1)), -1)
        guesses = [
            [Guess(self.tokenizer.decode([token]), value) for value, token in zip(values, likeliest, strict=True)]
            for values, likeliest in zip(chance.tolist(), best.tolist(), strict=True)
        ]
        for place, token in zip(blanks, best[:, 0].tolist(), strict=True):
            row[place] = token
        return FilledText(self.tokenizer.decode(row), guesses)

    def encode_blanks(self, text: str) -> list[int]:
        """The tokens of a text in which ``[MASK]`` is the mask token; a token includes the space before it."""
        *before, last = text.split(BLANK)
        if self.tokenizer.published and not self.tokenizer.splits_specials:
            return self.tokenizer.encode(self.tokenizer.names[MASK].join([*before, last]))
        pieces = [self.tokenizer.encode(piece.rstrip(" ")) for piece in before]
        return [*(token for piece in pieces for token in (*piece, self.mask)), *self.tokenizer.encode(last)]

    def _row(self, tokens: list[int]) -> Tensor:
        if len(tokens) > self.net.max_length:
            sentence = f"the text has {len(tokens)} tokens with <cls>, more than max_length={self.net.max_length}"
            raise UsageError(f"{sentence} of the model. Shorten it.")
        return torch.tensor([tokens], device=self.device)

    @overload
    def score(self, text: str) -> Score: ...

    @overload
    def score(self, text: list[str]) -> list[Score]: ...

    def score(self, text: str | list[str]) -> Score | list[Score]:
        """The pseudo-log-likelihood of a text: the sum over tokens, masked one at a time (Salazar et al., 2020)."""
        scores = [self._score(one) for one in as_list(text)]
        return scores[0] if isinstance(text, str) else scores

    def _score(self, text: str) -> Score:
        ids = self.tokenizer.encode(text)
        tokens = self._row(self.tokenizer.marked(ids))
        valid, segments = torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)
        scored = torch.zeros_like(valid)
        begin = self.tokenizer.marks_before
        scored[:, begin : begin + len(ids)] = True
        log_probs = self.require_finite(
            pseudo_log_probabilities(self.net, (tokens, valid, segments), scored, self.mask)
        )
        return Score(float(log_probs.double().sum()), len(log_probs), len(text.encode()))
