"""Speculative decoding by look-up against plain decoding, on texts that repeat themselves and on texts that do not.

A small language model is trained on lines of Python's documentation, each written several times over, so that it has
learned to repeat what stands in front of it. It goes on with lines that it has not read, by both ways in turns.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.study import Options, Table

if TYPE_CHECKING:
    from zoo.tasks.lm import CausalLM

SHAPE = {"dim": 256, "depth": 4, "heads": 8}
CONTEXT, ROWS, STEPS, RATE, SEED = 256, 16, 600, 2e-3, 1
SHORTEST, LONGEST = 24, 72  # bytes of a line
REPEATED, UNREPEATED, LENGTH = 8, 4, 128  # prompts of both kinds, tokens that are written


class Comparison(NamedTuple):
    """What both ways took for one text: seconds of each turn, steps of the model, and whether the texts are equal."""

    one_by_one: list[float]
    speculative: list[float]
    steps: int
    equal: bool


def study(options: Options) -> list[Table]:
    """Seconds of plain decoding divided by those of look-up, for each prompt."""
    train, test = lines()
    task = trained_model(train)
    numbers = random.Random(SEED)
    sample = numbers.sample(test, REPEATED + UNREPEATED)
    prompts = [("repeated", 2 * line) for line in sample[:REPEATED]]
    prompts += [("not repeated", line) for line in sample[REPEATED:]]
    table = Table(
        f"Greedy decoding of {LENGTH} bytes by look-up against plain decoding",
        ["prompt", "plain, ms", "look-up, ms", "ratio", "least and largest ratio", "steps", "same text"],
    )
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    medians: dict[str, list[float]] = {}
    for kind, prompt in prompts:
        result = compare(task, list(prompt.encode()), max(2, options.turns), clock)
        ratios = [single / other for single, other in zip(result.one_by_one, result.speculative, strict=True)]
        medians.setdefault(kind, []).append(statistics.median(ratios))
        milliseconds = [1e3 * statistics.median(times) for times in (result.one_by_one, result.speculative)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        label = f"{kind}: {prompt[:24].strip()!r}".replace("|", "/")
        table.rows.append([label, *milliseconds, medians[kind][-1], spread, result.steps, str(result.equal)])
        print(" | ".join(map(str, table.rows[-1])), flush=True)
    for kind, ratios in medians.items():
        table.notes.append(f"{kind}: median ratio {statistics.median(ratios):.2f} of {len(ratios)} prompts.")
    return [table]


def lines() -> tuple[list[str], list[str]]:
    """Lines of Python's documentation that train, and those that stand in prompts; none is in both."""
    from zoo.data.stdlib import StdlibDocs

    documents, _ = StdlibDocs().documents()
    every = {
        split: {
            line + "\n" for text in documents[split] for line in text.splitlines() if SHORTEST <= len(line) < LONGEST
        }
        for split in ("train", "val")
    }
    ascii_only = {split: sorted(line for line in texts if line.isascii()) for split, texts in every.items()}
    return ascii_only["train"], sorted(set(ascii_only["val"]) - every["train"])


def trained_model(train: list[str]) -> CausalLM:
    """A byte-level model that has read lines, each three to six times in a row."""
    import torch
    from zoo_exercises import short_runs

    from zoo.data.text import TextFiles
    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm
    from zoo.parts.position import RoPE
    from zoo.tasks.lm import CausalLM

    numbers = random.Random(SEED)
    order = numbers.sample(train, len(train))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        path.write_text("".join(line * numbers.randint(3, 6) for line in order), encoding="utf-8")
        data = TextFiles(str(path), "bytes", max_length=CONTEXT, batch_size=ROWS, seed=SEED)
        data.ready()
        torch.manual_seed(SEED)
        sizes: dict[str, Any] = {"max_length": 2 * CONTEXT, **data.sizes()}
        task = CausalLM(**sizes, **SHAPE, position=RoPE, norm=RMSNorm, ffn=SwiGLU, lr=RATE)
        loss = short_runs.train(task, data, STEPS)
    print(f"loss of the last batch after {STEPS} steps: {loss:.3f} nats a byte", flush=True)
    return task.eval()


def compare(task: CausalLM, prompt: list[int], turns: int, clock: Callable[[], float]) -> Comparison:
    """Both ways of going on with a prompt, in turns, after one of each that is not timed."""
    import torch

    from zoo.models.generation import GenerationConfig, generate
    from zoo.models.speculation import PromptLookup, generate_speculatively

    search = GenerationConfig(max_length=LENGTH)
    steps = 0

    def write_plainly() -> list[int]:
        state = task.net.begin(len(prompt) + LENGTH)
        return list(generate(state, torch.tensor([prompt]), None, search)[0][0].tokens)

    def speculate() -> list[int]:
        nonlocal steps
        state, steps = task.net.begin(len(prompt) + LENGTH), 0
        compute = state.logits

        def count(tokens: torch.Tensor, last: int) -> torch.Tensor:
            nonlocal steps
            steps += 1
            return compute(tokens, last)

        state.logits = count
        return list(generate_speculatively(state, prompt, None, search, PromptLookup()).tokens)

    ways = write_plainly, speculate
    with torch.no_grad():
        texts = [way() for way in ways]
        seconds: list[list[float]] = [[], []]
        for _ in range(turns):
            for place, way in enumerate(ways):
                start = clock()
                texts.append(way())
                seconds[place].append(clock() - start)
    return Comparison(seconds[0], seconds[1], steps, all(text == texts[0] for text in texts))
