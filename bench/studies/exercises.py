"""Synthetic tasks against mixers: what each remembers and computes, after a short training each.

A model has two layers of width ``DIM``. The first one is attention to two tokens in every model, which puts neighbours
together; the second one has the mixer under test, so that one layer of it must remember what a text says. Every
attention of the registry that works in a causal stack is tried, each task at all ``RATES``, of which the better
accuracy counts: install plugins to see theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.study import Options, Table

DIM, HEADS, RATES = 32, 2, (3e-3, 1e-2)
SIZES = {"GatedDeltaNet": [{}, {"heads": 8}], "Mamba2": [{}, {"state_dim": 8}], "SlidingWindow": [{"width": 8}]}
ORDERLESS = {"Additive", "Disentangled", "Shaw"}  # take no rotary positions: the layer in front tells neighbours apart
# name: class of zoo_exercises.synthetic, its options, and training steps
TASKS: dict[str, tuple[str, dict[str, int], int]] = {
    "recall, 8 pairs": ("MultiQueryRecall", {"pairs": 8, "vocab_size": 32}, 300),
    "recall, 16 pairs": ("MultiQueryRecall", {"pairs": 16, "vocab_size": 64}, 300),
    "copy": ("Copying", {}, 300),
    "induction": ("Induction", {}, 150),
    "parity": ("Parity", {}, 200),
}
ROWS, EVALUATED, SEED = 32, 128, 1
STATE_LENGTH = 64  # tokens after which a decoding state is counted


def study(options: Options) -> list[Table]:
    """Accuracy of answers by mixer, in percent, of trained and of longer texts."""
    from zoo.errors import UsageError

    table = Table(
        f"Accuracy of answers in percent, and in brackets that of longer texts ({DIM} wide, one layer of the mixer)",
        ["mixer", f"state after {STATE_LENGTH} tokens", *TASKS],
    )
    chances: list[str] = []
    for mixer in mixer_names(options.parts):
        for sizes in SIZES.get(mixer, [{}]):
            label = mixer + "".join(f", {name} {value}" for name, value in sizes.items())
            try:
                state, results, chances = row(mixer, sizes)
            except UsageError as error:
                table.notes.append(f"{label}: {str(error).replace('|', '/')[:160]}")
                continue
            table.rows.append([label, state, *results])
            print(" | ".join(map(str, table.rows[-1])), flush=True)
    table.rows.append(["chance", None, *chances])
    steps = ", ".join(f"{name} {steps}" for name, (_, _, steps) in TASKS.items())
    table.notes.append(
        f"Steps of {ROWS} texts: {steps}; the better of peak learning rates {RATES[0]:g} and {RATES[1]:g}, seed {SEED}."
    )
    return [table]


def mixer_names(parts: Sequence[str]) -> list[str]:
    """Attentions of the registry in the order of a table's rows; only ``parts`` where there are any. UsageError if one
    of them is unknown.
    """
    from zoo import registry

    available = [part.name for part in registry.parts("attention")]
    names = [registry.find("attention", name).name for name in parts] or available
    return sorted(names, key=lambda name: (name != "MultiHead", name not in SIZES, name))


def row(name: str, sizes: dict[str, int]) -> tuple[int, list[str], list[str]]:
    """Numbers in a decoding state of the mixer, its accuracy in each task, and chance."""
    import torch
    from zoo_exercises import synthetic
    from zoo_exercises.short_runs import train, validate

    results, chances, state = [], [], 0
    for kind, options, steps in TASKS.values():
        data = getattr(synthetic, kind)(**options, batch_size=ROWS, eval_size=EVALUATED, seed=SEED)
        data.ready()
        measured = []
        for rate in RATES:
            torch.manual_seed(SEED)
            task = build(name, sizes, data.sizes(), rate)
            state = state or state_size(task)
            train(task, data, steps)
            measured.append(validate(task, data))
        accuracy = max(measured, key=lambda one: one["accuracy"])
        longer = "" if data.longer == 1 else f" ({100 * accuracy['accuracy_longer']:.0f})"
        results.append(f"{100 * accuracy['accuracy']:.0f}{longer}")
        chances.append(f"{100 * data.chance:.0f}")
    return state, results, chances


def build(
    name: str, sizes: dict[str, int], data_sizes: dict[str, int], rate: float, dim: int = DIM, depth: int = 2
) -> Any:
    """A language model with the mixer in all layers but the first one."""
    from functools import partial

    from bench.language_parts import language_parts
    from zoo import registry
    from zoo.models.layer_overrides import Override
    from zoo.parts.attention import MultiHead
    from zoo.parts.position import NoPosition, RoPE
    from zoo.tasks.lm import CausalLM

    options = {key: value for key, value in sizes.items() if key != "heads"}
    parts = language_parts() | ({"position": NoPosition} if name in ORDERLESS else {})
    return CausalLM(
        dim=dim, depth=depth, heads=sizes.get("heads", HEADS), lr=rate, **data_sizes, **parts,
        attention=partial(registry.get("attention", name), **options),
        overrides=[Override(layers="first", attention=MultiHead, window=2, position=RoPE)],
    )  # fmt: skip


def state_size(task: Any, length: int = STATE_LENGTH) -> int:
    """Numbers that the mixer remembers of one text of ``length`` tokens."""
    import torch
    from torch import Tensor

    def tensors(state: object) -> int:
        values = vars(state).values() if hasattr(state, "__dict__") else ()
        return sum(one.numel() if isinstance(one, Tensor) else tensors(one) for one in values)

    task.eval()
    with torch.no_grad():
        caches = task.net.stack.caches(length)
        task.net(torch.zeros(1, min(length, task.net.max_length), dtype=torch.long), caches=caches)
    return tensors(caches[1].own)
