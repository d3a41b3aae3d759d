"""How well vectors tell classes of words apart, beside random vectors: ``python -m zoo_classic.probe RUN``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

WORDS = {  # that the documentation of Python's library has, each a token of its own at 2,048 tokens
    "type": "int float str bytes list tuple dict set".split(),
    "modal": "can may must should will would".split(),
    "preposition": "in on of for from with by to".split(),
    "verb": "returns return raises raise get create".split(),
    "pronoun": "it this that they you".split(),
}


def same_class_auc(vectors: Tensor, labels: Sequence[str]) -> float:
    """The probability that two words of one class have a larger cosine than two of different classes; 0.5 by chance.

    ``vectors`` (N, dim), one for each label.
    """
    unit = F.normalize(vectors.double(), dim=1)
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for one, other in combinations(range(len(labels)), 2):
        cosines[labels[one] == labels[other]].append(float(unit[one] @ unit[other]))
    near, far = (torch.tensor(cosines[is_same]) for is_same in (True, False))
    above = (near[:, None] > far).double() + 0.5 * (near[:, None] == far)
    return float(above.mean())


def probe(model, words: Mapping[str, Sequence[str]] = WORDS) -> tuple[float, float]:
    """The figure of a trained model's vectors, and that of random ones of the same width; words of one token count."""
    usable = [
        (word, name) for name, some in words.items() for word in some if len(model.tokenizer.encode(f" {word}")) == 1
    ]
    vectors, labels = torch.stack([model.vector(word) for word, _ in usable]), [name for _, name in usable]
    random = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    return same_class_auc(vectors, labels), same_class_auc(random, labels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both figures of a run."""
    import zoo

    (run,) = sys.argv[1:] if arguments is None else arguments
    own, random = probe(zoo.load(run))
    print(f"{own:.3f} · random vectors {random:.3f}")


if __name__ == "__main__":
    main()
