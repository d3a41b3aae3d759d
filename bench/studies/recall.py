"""Recall against the size of a state: how many pairs of a key and a value each mixer remembers.

A model has three layers of width ``DIM``: attention to two tokens, which puts a value beside its key, and two of the
mixer under test. A text holds each key of its vocabulary once, so that chance is one of the values that it has.
"""

from __future__ import annotations

from bench.studies import exercises
from bench.study import Options, Table

DIM, PAIRS = 64, (4, 8, 16)
STEPS, ROWS, EVALUATED, RATE, SEED = 300, 64, 256, 3e-3, 1
# of mixers that are measured in several sizes: options, and heads, whose number divides a state of fixed size
SIZES = exercises.SIZES | {"MultiHead": [{}, {"heads": 16}], "GatedDeltaNet": [{}, {"heads": 16}]}


def study(options: Options) -> list[Table]:
    """Accuracy of recalled values in percent, by mixer, size of its state and number of pairs."""
    from zoo.errors import UsageError

    table = Table(
        f"Recalled values in percent (two layers of the mixer, {DIM} wide)",
        ["mixer", "numbers in a layer's state", *(f"{pairs} pairs" for pairs in PAIRS)],
    )
    for mixer in exercises.mixer_names(options.parts):
        for sizes in SIZES.get(mixer, [{}]):
            label = mixer + "".join(f", {name} {value}" for name, value in sizes.items())
            try:
                measured = [measure(mixer, sizes, pairs) for pairs in PAIRS]
            except UsageError as error:
                table.notes.append(f"{label}: {str(error).replace('|', '/')[:160]}")
                continue
            table.rows.append([label, measured[-1][0], *(f"{100 * accuracy:.0f}" for _, accuracy in measured)])
            print(" | ".join(map(str, table.rows[-1])), flush=True)
    table.rows.append(["chance", None, *(f"{100 / pairs:.0f}" for pairs in PAIRS)])
    table.notes.append(f"{STEPS} steps of {ROWS} texts, peak learning rate {RATE:g}, seed {SEED}.")
    return [table]


def measure(mixer: str, sizes: dict[str, int], pairs: int) -> tuple[int, float]:
    """Numbers in a layer's decoding state after a text of so many pairs, and the accuracy after a training on such."""
    import torch
    from zoo_exercises.short_runs import train, validate
    from zoo_exercises.synthetic import MultiQueryRecall

    data = MultiQueryRecall(
        pairs=pairs, vocab_size=2 * pairs, longer=1, batch_size=ROWS, eval_size=EVALUATED, seed=SEED
    )
    data.ready()
    torch.manual_seed(SEED)
    task = exercises.build(mixer, sizes, data.sizes(), RATE, DIM, depth=3)
    state = exercises.state_size(task, data.sizes()["max_length"])
    train(task, data, STEPS)
    return state, validate(task, data)["accuracy"]
