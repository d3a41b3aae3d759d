"""Twenty documents of sentences."""

from pathlib import Path

import numpy as np

from zoo.data.text import TextFiles

WORDS = "the quick brown fox jumps over the lazy dog and unbelievably many others don't run away 42 times".split()


def write(folder: Path) -> Path:
    """The documents as files of a folder."""
    draw = np.random.default_rng(0)
    for number in range(20):
        sentences = [" ".join(draw.choice(WORDS, 7)) + "." for _ in range(12)]
        (folder / f"{number:02}.txt").write_text("\n".join(sentences))
    return folder


def text(folder, **options):
    settings = {"tokenizer": "bpe", "vocab_size": 300, "max_length": 48, "batch_size": 8, **options}
    return lambda: TextFiles(str(folder), **settings)
