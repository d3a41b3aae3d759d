"""Speculative decoding: a guess of several tokens is verified by one step of the model, and nothing else changes.

Greedy text is that of plain decoding, and samples are distributed as there (Leviathan et al., 2023): a token d that was
drawn from q is accepted with probability min(1, p(d) / q(d)), and otherwise replaced by a draw from max(p - q, 0). A
step that verifies several tokens rounds otherwise than several steps do, so two tokens that are likely to within
rounding may be exchanged.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.models.decoding_state import LanguageState, State
from zoo.models.generation import GenerationConfig, Hypothesis, as_ends, check_numbers, sampling_distribution
from zoo.parts.cache import Caches

LONGEST = 16  # tokens of a guess
FIRST = 4  # tokens of the first one
NGRAMS = (4, 3, 2)  # tokens whose last occurrence is looked up
CATCH_UP = 8  # tokens read again beside a guess; more of them are read before it


class Guess(NamedTuple):
    """Tokens, and the distribution (V,) that each was drawn from: none where they were not drawn."""

    tokens: list[int]
    drawn_from: list[Tensor] | None = None


class Draft(Protocol):
    """What guesses the next tokens of one text."""

    def guess(self, tokens: list[int], count: int) -> Guess:
        """At most ``count`` tokens that may follow all ``tokens`` so far."""
        ...


class PromptLookup:
    """Guesses that a text goes on as it did where its last tokens stood before (prompt look-up)."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, ...], int] = {}  # index of the token behind the last occurrence of an n-gram
        self.indexed = 0  # tokens in front of which every n-gram is in ``places``

    def guess(self, tokens: list[int], count: int) -> Guess:
        """The ``count`` tokens behind the last occurrence of the longest n-gram at the end of ``tokens``."""
        for end in range(self.indexed + 1, len(tokens)):
            for size in NGRAMS:
                if size <= end:
                    self.places[tuple(tokens[end - size : end])] = end
        self.indexed = max(self.indexed, len(tokens) - 1)
        for size in NGRAMS:
            place = self.places.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if place is not None:
                text = list(tokens)
                for offset in range(count):  # a text that repeats itself is continued beyond its end
                    text.append(text[place + offset])
                return Guess(text[len(tokens) :])
        return Guess([])


class DraftModel:
    """Guesses by another language model, which draws as the verified one does.

    ``limit`` is the number of tokens that it can read, or None.
    """

    def __init__(self, state: LanguageState, search: GenerationConfig, limit: int | None = None) -> None:
        self.reader, self.search, self.limit = Reader(state), search, limit
        self.generator = generator_of(search, 1)

    def guess(self, tokens: list[int], count: int) -> Guess:
        """``count`` tokens, as many as the model has positions for."""
        if self.limit is not None:
            count = min(count, self.limit - len(tokens) + 1)
        text, drawn_from = list(tokens), list[Tensor]()
        for _ in range(count):
            log_probs = self.reader.logits(text, len(text) - 1).to(torch.float64).log_softmax(-1)
            if not self.search.temperature:
                text.append(int(log_probs[0].argmax()))
                continue
            drawn_from.append(sampling_distribution(log_probs, self.search)[0].cpu())
            text.append(int(torch.multinomial(drawn_from[-1], 1, generator=self.generator)))
        return Guess(text[len(tokens) :], drawn_from or None)


class Reader:
    """A state of one text that may be shown other tokens than before from some place on.

    It goes back to a snapshot, which every part's state can make of itself, and reads from there on again; keys and
    values are cut off where they are all that a model remembers.
    """

    def __init__(self, state: LanguageState) -> None:
        self.state, self.read = state, list[int]()
        self.snapshots: deque[tuple[int, Caches]] = deque(maxlen=LONGEST + 2)

    def logits(self, tokens: list[int], start: int) -> Tensor:
        """Logits (T - first, V) of what follows ``tokens[:start + 1]``, ..., ``tokens``, all T of them."""
        same = next((n for n, pair in enumerate(zip(self.read, tokens, strict=False)) if pair[0] != pair[1]), None)
        place = min(start, len(self.read) if same is None else same, len(tokens))
        if place < len(self.read):
            self._go_back(place)
        if start - len(self.read) > CATCH_UP and not self.state.can_truncate:
            self._show(tokens[len(self.read) : start], 1)
        return self._show(tokens[len(self.read) :], len(tokens) - start)

    def _show(self, tokens: list[int], last: int) -> Tensor:
        """Logits (last, V) behind the last of further tokens."""
        if not self.state.can_truncate:
            self.snapshots.append((len(self.read), self.state.snapshot()))
        self.read = self.read + tokens
        return self.state.logits(torch.tensor([tokens], device=self.state.device), last)[0]

    def _go_back(self, place: int) -> None:
        """Forget at least all tokens from a place on."""
        if self.state.can_truncate:
            self.state.truncate(place)
        else:
            while self.snapshots[-1][0] > place:
                self.snapshots.pop()
            place, snapshot = self.snapshots.pop()
            self.state.restore(snapshot)
        self.read = self.read[:place]


def check_state(state: State, name: str) -> LanguageState:
    """The state, if its model can verify several tokens at once. Raises UsageError that names what cannot."""
    if not isinstance(state, LanguageState):
        raise UsageError(f"{name} cannot be decoded speculatively: its state reads one token at a time.")
    state.snapshot()
    return state


def generator_of(search: GenerationConfig, stream: int = 0) -> torch.Generator | None:
    """Random numbers of a search, others for each stream; none where it takes the likeliest token."""
    if not search.temperature:
        return None
    seed = torch.initial_seed() if search.seed is None else search.seed
    if stream:  # by a digest, since a generator on a CPU keeps only 32 bits of its seed
        seed = int.from_bytes(hashlib.sha256(f"{seed} {stream}".encode()).digest()[:4], "big")
    return torch.Generator().manual_seed(seed % 2**63)


@torch.no_grad()
def generate_speculatively(
    state: LanguageState,
    prompt: Sequence[int],
    end: int | Collection[int] | None,
    search: GenerationConfig,
    draft: Draft,
    is_stopped: Callable[[list[int]], bool] = lambda tokens: False,
) -> Hypothesis:
    """Continue the tokens of a prompt until the token ``end``, or one of several, or until ``is_stopped`` says so of
    what was generated.

    Raises UsageError for beam search, NonFiniteError for a model that gives nan.
    """
    if search.beams > 1:
        raise UsageError("beam search cannot be speculative: use beams=1, or no speculation.")
    reader, generator = Reader(state), generator_of(search)
    tokens, start, score, size, ends = list(prompt), len(prompt), 0.0, FIRST, as_ends(end)
    while True:
        guess = draft.guess(tokens, min(size, search.max_length - (len(tokens) - start) - 1))
        logits = reader.logits(tokens + guess.tokens, len(tokens) - 1)
        log_probs = logits.to(torch.float64).log_softmax(-1).cpu()
        accepted = 0
        for row, log_prob in enumerate(log_probs):
            allowed = log_prob
            if ends and len(tokens) - start < search.min_length:
                allowed = log_prob.clone()
                allowed[[token for token in ends if token < len(log_prob)]] = float("-inf")
            check_numbers(float(log_prob.sum()))
            token, right = verify(allowed, guess, row, search, generator)
            score += float(log_prob[token])
            if token in ends:
                return Hypothesis(tokens[start:], score, True)
            tokens.append(token)
            if is_stopped(tokens[start:]):
                return Hypothesis(tokens[start:], score, True)
            if len(tokens) - start == search.max_length:
                return Hypothesis(tokens[start:], score, False)
            if not right:
                break
            accepted += 1
        if guess.tokens:
            size = min(LONGEST, 2 * size) if accepted >= len(guess.tokens) else max(1, accepted)


def verify(
    log_probs: Tensor, guess: Guess, row: int, search: GenerationConfig, generator: torch.Generator | None
) -> tuple[int, bool]:
    """The token at place ``row`` of a guess, by the model's log-probabilities (V,), and whether the guess was right."""
    guessed = guess.tokens[row] if row < len(guess.tokens) else None
    if generator is None:
        token = int(log_probs.argmax())
        return token, token == guessed
    target = sampling_distribution(log_probs[None], search)[0]
    if guessed is None:
        return int(torch.multinomial(target, 1, generator=generator)), False
    draft = torch.zeros_like(target) if guess.drawn_from is None else guess.drawn_from[row]
    if guess.drawn_from is None:
        draft[guessed] = 1.0
    uniform = float(torch.rand((), generator=generator, dtype=torch.float64))
    if uniform * float(draft[guessed]) < float(target[guessed]):
        return guessed, True
    remainder = (target - draft).clamp(min=0.0)
    return int(torch.multinomial(remainder if float(remainder.sum()) > 0 else target, 1, generator=generator)), False
