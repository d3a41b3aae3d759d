"""
Position encodings in pictures
==============================

Attention alone does not know in which order tokens stand. Every scheme of zoo changes one of three places: the
embedding, the queries and keys, or the scores.
"""

import matplotlib.pyplot as plt
import torch

from zoo.parts.position import ALiBi, Extent, RoPE, Sinusoidal

LENGTH, DIM, HEADS = 128, 64, 4
extent = Extent((LENGTH,), causal=True)
places = torch.arange(LENGTH)

# %%
# Sinusoids are added to the embedding: a row of 64 numbers for each place, from fast to slow waves.

table = Sinusoidal(DIM, HEADS, extent).embed(torch.zeros(1, LENGTH, DIM), places)[0]
plt.figure(figsize=(7, 3))
plt.imshow(table, aspect="auto", cmap="RdBu")
plt.colorbar()
plt.xlabel("dimension")
plt.ylabel("position")
plt.title("Sinusoidal position encoding")
plt.tight_layout()
plt.show()

# %%
# RoPE turns queries and keys by their positions, so that their product depends on the distance alone. For a query and a
# key that are equal, the score falls with the distance, in waves.

rope = RoPE(DIM, 1, extent)
ones = torch.ones(1, 1, LENGTH, DIM)
turned = rope.rotate(ones, places)[0, 0]
scores = turned @ turned.T / DIM
five_apart = scores.diagonal(5)
print(f"scores five positions apart: {five_apart.min():.6f} to {five_apart.max():.6f}")
plt.plot(scores[0])
plt.xlabel("distance")
plt.ylabel("score, relative to distance 0")
plt.title("Score of two equal vectors under RoPE by distance")
plt.show()

# %%
# ALiBi subtracts from the score what grows with the distance, with a slope for each head.

alibi = ALiBi(DIM, HEADS, extent)
for head in range(HEADS):
    bias = alibi.bias(torch.tensor(head), torch.tensor(LENGTH - 1), places)
    plt.plot(LENGTH - 1 - places, bias, label=f"head {head + 1}")
plt.xlabel("distance")
plt.ylabel("added to the score")
plt.title("Bias of ALiBi by distance and head")
plt.legend()
plt.show()
