"""Generate sequences greedily, by sampling, or by beam search, with any model that has a State."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.errors import NonFiniteError, UsageError
from zoo.models.decoding_state import State


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How to generate.

    ``temperature`` 0 takes the likeliest token; above it tokens are sampled, from the ``top_k`` likeliest or from the
    smallest set that holds ``top_p`` of the probability (Holtzman et al., 2020) where these are given. ``beams`` above
    1 keeps that many sequences at once; finished ones compete by log-probability / length^``length_penalty``.
    ``n_best`` are returned. Lengths count generated tokens, the end token included; ``bounded_by_source`` bounds a
    translation by the length of its source too. The same ``seed`` draws the same tokens; None means torch's seed, that
    of the last `torch.manual_seed`.
    """

    max_length: int = 128
    min_length: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    beams: int = 1
    length_penalty: float = 1.0
    n_best: int = 1
    bounded_by_source: bool = False

    def __post_init__(self) -> None:
        rules = (
            (self.max_length >= 1, f"max_length must be at least 1, got {self.max_length}."),
            (
                0 <= self.min_length <= self.max_length,
                f"min_length must be between 0 and max_length={self.max_length}.",
            ),
            (self.temperature >= 0, f"temperature must be 0 (greedy) or above, got {self.temperature}."),
            (self.top_k is None or self.top_k >= 1, f"top_k must be at least 1, got {self.top_k}."),
            (self.top_p is None or 0 < self.top_p <= 1, f"top_p must lie in (0, 1], got {self.top_p}."),
            (
                self.seed is None or -(2**63) <= self.seed < 2**64,
                f"seed must lie between -2**63 and 2**64 - 1, got {self.seed}.",
            ),
            (self.beams >= 1, f"beams must be at least 1, got {self.beams}."),
            (1 <= self.n_best <= self.beams, f"n_best={self.n_best} needs as many beams, got beams={self.beams}."),
            (math.isfinite(self.temperature), f"temperature must be a finite number, got {self.temperature}."),
            (math.isfinite(self.length_penalty), f"length_penalty must be a finite number, got {self.length_penalty}."),
            (self.beams == 1 or not self.temperature, "beam search does not draw: use beams=1 or temperature=0."),
        )
        for fine, sentence in rules:
            if not fine:
                raise UsageError(sentence)


def independent_search(search: GenerationConfig, number: int) -> GenerationConfig:
    """The search for batch or text ``number`` of one call, whose draws are independent of the others'; 0: itself."""
    if not number or not search.temperature:
        return search
    seed = torch.initial_seed() if search.seed is None else search.seed
    digest = hashlib.sha256(f"{seed} batch {number}".encode()).digest()
    return replace(search, seed=int.from_bytes(digest[:4], "big"))  # a generator on a CPU keeps 32 bits of its seed


class Hypothesis(NamedTuple):
    """Tokens without prompt and end, their log-probability with the end, and whether the sequence ended itself."""

    tokens: list[int]
    score: float
    ended: bool


@torch.no_grad()
def generate(
    state: State,
    prompt: Tensor,
    end: int | Collection[int] | None,
    search: GenerationConfig,
    longest: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Continue ``prompt`` (B, T) until the token ``end``, or one of several; the ``n_best`` sequences of each row, best
    first.

    ``longest`` (B,) bounds rows below ``search.max_length``.
    """
    ends = as_ends(end)
    limit = (
        torch.full((len(prompt),), search.max_length) if longest is None else longest.cpu().clamp(max=search.max_length)
    )
    limits: list[int] = limit.clamp(min=1).tolist()
    if search.beams > 1:
        return _beam(state, prompt, ends, search, limits)
    return [[hypothesis] for hypothesis in _single(state, prompt, ends, search, limits)]


def as_ends(end: int | Collection[int] | None) -> list[int]:
    """The end tokens as a list."""
    return [] if end is None else [end] if isinstance(end, int) else sorted(end)


def _log_probabilities(state: State, tokens: Tensor, ends: list[int], forbid: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the next token (B, V), and the same with the ends forbidden where they are."""
    log_probs = state.step(tokens).to(torch.float64)
    if not getattr(state, "scores", False):  # whose step gives scores that stand for log-probabilities
        log_probs = log_probs.log_softmax(-1)
    if not ends or not forbid:
        return log_probs, log_probs
    allowed = log_probs.clone()
    allowed[:, ends] = float("-inf")
    return log_probs, allowed


def _single(
    state: State, prompt: Tensor, ends: list[int], search: GenerationConfig, limits: list[int]
) -> list[Hypothesis]:
    generator = None
    if search.temperature:
        generator = torch.Generator(prompt.device)
        generator.manual_seed(torch.initial_seed() if search.seed is None else search.seed)
    out: list[list[int]] = [[] for _ in limits]
    score, ended = [0.0] * len(limits), [False] * len(limits)
    rows, tokens = list(range(len(limits))), prompt
    for length in range(1, max(limits) + 1):
        log_probs, allowed = _log_probabilities(state, tokens, ends, length <= search.min_length)
        try:
            next_tokens = allowed.argmax(-1) if generator is None else sample_token(allowed, search, generator)
        except RuntimeError as error:  # torch draws from no distribution that holds nan
            check_numbers(float(log_probs.sum()), error)
            raise
        gained = log_probs.gather(1, next_tokens[:, None])[:, 0].tolist()
        check_numbers(sum(gained))
        going = []
        for place, (row, token) in enumerate(zip(rows, next_tokens.tolist(), strict=True)):
            score[row] += gained[place]
            ended[row] = token in ends
            if not ended[row]:
                out[row].append(token)
                if length < limits[row]:
                    going.append(place)
        if not going:
            break
        tokens = next_tokens[:, None]
        if len(going) < len(rows):  # rows that ended cost nothing any more
            remaining = torch.tensor(going, device=prompt.device)
            state.select(remaining)
            rows, tokens = [rows[place] for place in going], tokens[remaining]
    return [Hypothesis(*parts) for parts in zip(out, score, ended, strict=True)]


def check_numbers(total: float, cause: Exception | None = None) -> None:
    """Raise NonFiniteError where a sum of log-probabilities is not a number."""
    if math.isnan(total):
        raise NonFiniteError(
            "what the model writes has a probability that is not a number (nan): it overflows, or it diverged while "
            "it was trained. Take an earlier checkpoint."
        ) from cause


def sample_token(log_probs: Tensor, search: GenerationConfig, generator: torch.Generator) -> Tensor:
    """A token per row, (B,), of log-probabilities (B, V), by temperature, top-k and top-p."""
    return torch.multinomial(sampling_distribution(log_probs, search), 1, generator=generator)[:, 0]


def sampling_distribution(log_probs: Tensor, search: GenerationConfig) -> Tensor:
    """The probabilities (B, V) that tokens are drawn with, by temperature, top-k and top-p, of (B, V) logarithms."""
    logits = log_probs / search.temperature
    if search.top_k is not None and search.top_k < logits.size(-1):
        least = logits.topk(search.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if search.top_p is not None:
        ordered, place = logits.softmax(-1).sort(-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= search.top_p  # the likeliest token is always inside
        logits = logits.masked_fill(outside.gather(-1, place.argsort(-1)), float("-inf"))
    return logits.softmax(-1)


class _Row:
    """The finished sequences of one row, and when no other can enter them."""

    def __init__(self, search: GenerationConfig, limit: int):
        self.search, self.limit = search, limit
        self.finished: list[tuple[float, Hypothesis]] = []

    def add(self, tokens: list[int], score: float, ended: bool) -> None:
        length = max(1, len(tokens) + ended)
        self.finished.append((score / length**self.search.length_penalty, Hypothesis(tokens, score, ended)))
        self.finished.sort(key=lambda pair: -pair[0])
        del self.finished[self.search.n_best :]

    def closed(self, best_alive: float) -> bool:
        """Log-probabilities only fall: the best that an unfinished sequence can still reach is known."""
        power = self.search.length_penalty
        bound = best_alive / (self.limit**power if power > 0 else 1.0)
        return len(self.finished) == self.search.n_best and self.finished[-1][0] >= bound


def _beam(
    state: State, prompt: Tensor, ends: list[int], search: GenerationConfig, limits: list[int]
) -> list[list[Hypothesis]]:
    width, device = search.beams, prompt.device
    done = [_Row(search, limit) for limit in limits]
    _, allowed = _log_probabilities(state, prompt, ends, search.min_length >= 1)
    rows = list(range(len(limits)))
    # sequences of a row stand next to each other; at the start there is one, the empty one
    state.select(torch.arange(len(rows), device=device).repeat_interleave(width))
    scores = torch.full((len(rows), width), float("-inf"), dtype=torch.float64, device=device)
    scores[:, 0] = 0.0
    allowed = allowed.repeat_interleave(width, 0)
    texts: list[list[list[int]]] = [[[] for _ in range(width)] for _ in rows]
    for length in range(1, max(limits) + 1):
        total = scores[:, :, None] + allowed.view(len(rows), width, -1)
        vocabulary = total.size(-1)
        # each of the width sequences can end in as many ways as there are end tokens, and width are left to go on
        best, place = total.flatten(1).topk(min((1 + max(1, len(ends))) * width, width * vocabulary), -1)
        check_numbers(sum(best[:, 0].tolist()))  # nan sorts above every number
        going, parents, tokens, beam_scores, beam_texts = [], [], [], [], []
        for number, row in enumerate(rows):
            alive: list[tuple[float, int, int]] = []
            for rank, (value, flat) in enumerate(zip(best[number].tolist(), place[number].tolist(), strict=True)):
                parent, token = divmod(flat, vocabulary)
                if value == float("-inf") or len(alive) == width:
                    continue
                text = texts[number][parent]
                if token in ends:
                    if rank < width:
                        done[row].add(text, value, True)
                elif length == limits[row]:
                    done[row].add([*text, token], value, False)
                else:
                    alive.append((value, parent, token))
            if not alive or done[row].closed(alive[0][0]):
                continue
            alive += [(float("-inf"), alive[0][1], alive[0][2])] * (width - len(alive))
            going.append(row)
            parents += [number * width + parent for _, parent, _ in alive]
            tokens += [token for _, _, token in alive]
            beam_scores.append([value for value, _, _ in alive])
            beam_texts.append([[*texts[number][parent], token] for _, parent, token in alive])
        if not going:
            break
        rows, texts = going, beam_texts
        scores = torch.tensor(beam_scores, dtype=torch.float64, device=device)
        state.select(torch.tensor(parents, device=device))
        following = torch.tensor(tokens, device=device)[:, None]
        _, allowed = _log_probabilities(state, following, ends, length + 1 <= search.min_length)
    return [[hypothesis for _, hypothesis in row.finished] for row in done]
