"""
Decode with beams
=================

Greedy decoding takes the likeliest token at each step, and may miss the likeliest text. A model of a small language
shows it: texts begin with A or B; behind an A anything may follow, behind a B always the same.
"""

import random

import torch
import torch.nn.functional as F

from zoo.models import LanguageModel
from zoo.models.generation import GenerationConfig, generate

END, LETTERS = 0, " ABCDEFGHIJKL"


def text() -> list[int]:
    """A (6 of 10 times) and four letters at random, or B and CDEF, and the end."""
    letters = "A" + "".join(random.choices(LETTERS[3:], k=4)) if random.random() < 0.6 else "BCDEF"
    return [END, *(LETTERS.index(letter) for letter in letters), END]


model = LanguageModel(vocab_size=len(LETTERS), dim=32, depth=2, heads=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(200):
    tokens = torch.tensor([text() for _ in range(32)])
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# ``generate`` continues the token that begins a text. A score is the natural logarithm of the text's probability.


def show(title: str, search: GenerationConfig) -> None:
    """Print what a search returns."""
    state = model.eval().begin(capacity=10)
    (best,) = generate(state, torch.tensor([[END]]), END, search)
    print(title)
    for one in best:
        letters = "".join(LETTERS[token] for token in one.tokens)
        print(f"  {letters:8} score {one.score:6.2f}, probability {torch.tensor(one.score).exp():.4f}")


show("greedy", GenerationConfig(max_length=8))
show("beams", GenerationConfig(max_length=8, beams=4, n_best=3))
show("sampled", GenerationConfig(max_length=8, temperature=1.0, seed=1))

# %%
# Greedy decoding begins with A, the likelier letter, and ends with a text of probability 0.6 / 10⁴. Beams hold B open,
# and find the text that 4 of 10 have.
