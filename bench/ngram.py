"""Bits per byte of character n-grams on a recipe's own text: what a language model has to beat.

    python -m bench.ngram lm-tiny

Witten-Bell smoothing interpolates each order with the one below, down to the uniform distribution:
p(c | h) = (count(h c) + distinct(h) p(c | h')) / (count(h) + distinct(h)), where h' is h without its first character.
"""

import math
import sys
from collections import Counter
from typing import Any

import yaml

from zoo import recipe_files, registry


def bits_per_token(train: list[int], text: list[int], vocab: int, order: int) -> float:
    """Mean of -log2 p of each token of ``text`` but the first, under an n-gram of this order counted on ``train``."""
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
    for n in range(order):
        counts[n].update(zip(*(train[i:] for i in range(n + 1)), strict=False))
    totals: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
    kinds: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
    for n, table in enumerate(counts):
        for gram, count in table.items():
            totals[n][gram[:-1]] += count
            kinds[n][gram[:-1]] += 1
    bits = 0.0
    for i in range(1, len(text)):
        p = 1 / vocab
        for n in range(min(order, i + 1)):
            past = tuple(text[i - n : i])
            if total := totals[n][past]:
                p = (counts[n][(*past, text[i])] + kinds[n][past] * p) / (total + kinds[n][past])
        bits -= math.log2(p)
    return bits / (len(text) - 1)


def main(recipe: str) -> None:
    spec = yaml.safe_load(recipe_files.find_recipe(recipe).read_text(encoding="utf-8"))["data"]
    data: Any = registry.get("data", spec["class_path"])(**spec.get("init_args", {}))
    data.setup()
    train, val = (data.datasets[split].tokens.tolist() for split in ("train", "val"))
    lengths = data.tokenizer.byte_lengths()
    scale = (len(val) - 1) / lengths[val[1:]].sum()  # tokens per byte
    for order in range(1, 9):
        print(f"{order}-gram: {bits_per_token(train, val, data.tokenizer.vocab_size, order) * scale:.3f} bits per byte")


if __name__ == "__main__":
    main(*sys.argv[1:])
