"""Tokenisation and data loading: what they deliver, against what a training step takes."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

from bench.arena import CLOCKS
from bench.study import Options, Table, fresh

BATCHES = 64


def study(options: Options) -> list[Table]:
    """Tokenizers first, then loaders."""
    times = fresh("bench.studies.loading:tokenizers", clock=options.clock, turns=options.turns)
    tokens = Table(
        "Tokenisation of Python's documentation, one thread", ["tokenizer", "MB/s", "M tokens/s", "learning, s"]
    )
    tokens.rows += times
    loaders = Table(
        "Data loading, no workers", ["data of", "ms per batch", "predictions/s", "ms per step", "share of the step"]
    )
    for recipe in ("lm-tiny", "translation-tiny", "vit-glyphs"):
        loaders.rows.append(fresh("bench.studies.loading:loader", recipe=recipe, clock=options.clock))
    loaders.notes.append("The share is of loading and stepping together, both in the one process that trains.")
    return [tokens, loaders]


def tokenizers(clock: str, turns: int) -> list[list[Any]]:
    """Megabytes and tokens per second of each kind, and seconds to learn it."""
    from zoo.data.stdlib import StdlibDocs
    from zoo.data.tokenizer import Tokenizer

    now, rows = CLOCKS[clock], []
    texts = StdlibDocs().documents().splits["train"]
    size = sum(len(text.encode()) for text in texts)
    kinds: dict[str, Callable[[], Any]] = {
        "bytes": Tokenizer.bytes,
        "chars": lambda: Tokenizer.chars(texts),
        "bpe 1,024": lambda: Tokenizer.bpe(texts, 1024),
        "bpe 8,192": lambda: Tokenizer.bpe(texts, 8192),
    }
    for name, make in kinds.items():
        learned, tokenizer = _timed(make, now)
        seconds_of_turns, count = [], 0
        for _ in range(max(1, min(turns, 3))):
            seconds, count = _timed(lambda kind=tokenizer: sum(len(kind.encode_array(text)) for text in texts), now)
            seconds_of_turns.append(seconds)
        seconds = statistics.median(seconds_of_turns)
        rows.append([name, size / seconds / 1e6, count / seconds / 1e6, learned])
    return rows


def loader(recipe: str, clock: str) -> list[Any]:
    """Seconds per batch of a recipe's training data, and of a training step with it."""
    from bench.bare_loop import BareLoop

    now = CLOCKS[clock]
    with tempfile.TemporaryDirectory() as folder:
        run = BareLoop(recipe, folder)
        batches = itertools.cycle(run.batches())
        list(itertools.islice(batches, 4))  # the first one starts whatever loads
        seconds, loaded = _timed(lambda: list(itertools.islice(batches, BATCHES)), now)
        size = sum(int(run.task.loss(batch).size) for batch in loaded[:8]) / 8
        for batch in loaded[:3]:
            run.step(batch)
        stepping = statistics.median([_timed(lambda batch=batch: run.step(batch), now)[0] for batch in loaded[:12]])
    each = seconds / BATCHES
    return [recipe, each * 1e3, size / each, stepping * 1e3, f"{100 * each / (each + stepping):.1f} %"]


def _timed(work: Callable[[], Any], now: Callable[[], float]) -> tuple[float, Any]:
    start = now()
    result = work()
    return now() - start, result
