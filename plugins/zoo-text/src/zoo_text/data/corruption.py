"""Text corruption: T5's spans replaced by sentinels, and BART's five kinds of noise, with their inverses if any.

All functions take token numbers (T,) in int64, and sample from the generator ``draw``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Tokens = np.ndarray
Spans = list[tuple[int, int]]


class Corrupted(NamedTuple):
    """What an encoder is shown, and what a decoder must say."""

    source: Tokens
    target: Tokens


def spans(length: int, rate: float, mean: float, draw: np.random.Generator) -> Spans:
    """Spans [start, end) that hold round(rate × length) of ``length`` tokens, round(that / mean) of them, never two
    side by side: both the noise and the rest are cut into pieces, all ways alike.

    T5's own code lets every text end with a span; here it may stand anywhere.
    """
    noise = min(max(round(length * rate), 1), length - 1)
    count = min(max(round(noise / mean), 1), noise, length - noise)
    gaps = _pieces(length - noise + 2, count + 1, draw)
    gaps[[0, -1]] -= 1  # in front of the first span and behind the last there may be nothing
    edges = np.cumsum(np.stack([gaps[:-1], _pieces(noise, count, draw)], 1).ravel())
    return [(int(edges[i]), int(edges[i + 1])) for i in range(0, 2 * count, 2)]


def _pieces(total: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """``total`` cut into ``count`` pieces of at least one, all ways alike."""
    cuts = np.sort(draw.permutation(total - 1)[: count - 1]) + 1
    return np.diff([0, *cuts.tolist(), total])


def corrupt_spans(tokens: Tokens, spans_to_hide: Spans, sentinels: Tokens) -> Corrupted:
    """The text with each span replaced by a sentinel of its own; and each sentinel followed by its span, then one more
    sentinel as the end: ``Thank you <0> me to <1> week`` and ``<0> for inviting <1> last <2>`` (Raffel et al., 2020).
    """
    source, target, at = [], [], 0
    for number, (start, end) in enumerate(spans_to_hide):
        source += [tokens[at:start], sentinels[number : number + 1]]
        target += [sentinels[number : number + 1], tokens[start:end]]
        at = end
    last = len(spans_to_hide)
    return Corrupted(np.concatenate([*source, tokens[at:]]), np.concatenate([*target, sentinels[last : last + 1]]))


def restore_spans(corrupted: Corrupted, sentinels: Tokens) -> Tokens:
    """The text that ``corrupt_spans`` was given. Raises ValueError where source and target do not belong together."""
    places = {int(number): place for place, number in enumerate(sentinels)}
    pieces: dict[int, list[int]] = {}
    current: list[int] | None = None
    for token in corrupted.target.tolist():
        if token in places:
            current = pieces.setdefault(places[token], [])
        elif current is None:
            raise ValueError("the target does not begin with a sentinel")
        else:
            current.append(token)
    restored: list[int] = []
    for token in corrupted.source.tolist():
        if token not in places:
            restored.append(token)
        elif places[token] in pieces:
            restored += pieces[places[token]]
        else:
            raise ValueError(f"the target lacks sentinel {places[token]}")
    return np.array(restored, np.int64)


def mask_tokens(tokens: Tokens, rate: float, mask: int, draw: np.random.Generator) -> Tokens:
    """Token masking: tokens drawn by chance become ``mask``."""
    return np.where(draw.random(len(tokens)) < rate, mask, tokens)


def delete_tokens(tokens: Tokens, rate: float, draw: np.random.Generator) -> Tokens:
    """Token deletion: tokens drawn by chance are left out; one at least stays."""
    remaining = draw.random(len(tokens)) >= rate
    if not remaining.any():
        remaining[draw.integers(len(remaining))] = True
    return tokens[remaining]


def infill(tokens: Tokens, rate: float, mean: float, mask: int, draw: np.random.Generator) -> Tokens:
    """Text infilling: spans whose lengths are Poisson(mean) become one ``mask`` each, until ``rate`` of the tokens is
    hidden; a span of length 0 puts a ``mask`` in between (Lewis et al., 2020).
    """
    budget, hidden, empty = round(rate * len(tokens)), np.zeros(len(tokens), bool), 0
    while budget > 0:
        length = min(int(draw.poisson(mean)), budget)
        if length == 0:
            empty += 1  # hides nothing
            continue
        starts = range(len(tokens) - length + 1)
        free = [start for start in starts if not hidden[max(0, start - 1) : start + length + 1].any()]
        if not free:
            break
        start = int(draw.choice(free))
        hidden[start : start + length] = True
        budget -= length
    first = hidden & ~np.concatenate([[False], hidden[:-1]])
    filled = np.where(hidden, mask, tokens)[~hidden | first]
    empty = min(empty, len(tokens) - len(filled))  # the text never becomes longer
    for place in sorted(draw.integers(0, len(filled) + 1, empty), reverse=True):
        filled = np.insert(filled, place, mask)
    return filled


def sentences(tokens: Tokens, ends: np.ndarray) -> list[Tokens]:
    """The text cut behind every token that ends a sentence: ``ends`` (V,) bool."""
    places = np.flatnonzero(ends[tokens]) + 1
    return [piece for piece in np.split(tokens, places) if len(piece)]


def permute_sentences(tokens: Tokens, ends: np.ndarray, draw: np.random.Generator) -> Tokens:
    """Sentence permutation: the sentences in an order drawn by chance."""
    pieces = sentences(tokens, ends)
    return np.concatenate([pieces[i] for i in draw.permutation(len(pieces))])


def rotate(tokens: Tokens, draw: np.random.Generator) -> Tokens:
    """Document rotation: the text begins at a token drawn by chance, and what stood before it comes last."""
    start = int(draw.integers(len(tokens)))
    return np.concatenate([tokens[start:], tokens[:start]])
