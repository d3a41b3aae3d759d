"""
Look at attention
=================

A model of two layers learns to repeat what it has read. Its attention weights show how. They are recorded on any
backend, fused ones too.
"""

import torch
import torch.nn.functional as F

from zoo.logging.attention_figures import head_grid
from zoo.models import LanguageModel
from zoo.models.attention_weights import attention_layers, record_weights
from zoo.parts.position import RoPE

model = LanguageModel(vocab_size=26, dim=64, depth=2, heads=4, position=RoPE)


def texts(count: int) -> torch.Tensor:
    """Eight different letters and the same letters again: tokens (count, 16)."""
    letters = torch.rand(count, 26).topk(8).indices
    return torch.cat([letters, letters], dim=1)


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(200):
    tokens = texts(32)
    loss = F.cross_entropy(model(tokens[:, :-1])[:, 7:].flatten(0, 1), tokens[:, 8:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}; guessing: {torch.tensor(26.0).log():.2f}")

# %%
# ``record_weights`` collects the weights of every attention during a forward pass.

tokens = texts(1)
names = attention_layers(model)
with torch.no_grad(), record_weights(model.eval(), names) as recorded:
    model(tokens)
for name, weights in recorded.items():
    print(name, tuple(weights.shape), "batch, heads, queries, keys")

# %%
# Rows ask, columns answer. Heads of the first layer look at the previous letter, so that a position knows two letters.
# Heads of the second look as far back as the letter that comes next, or one place less: that position knows it too.

letters = [chr(97 + token) for token in tokens[0]]
picture = head_grid([weights[0] for weights in recorded.values()], letters, "Two layers of four heads")
# Attention weights of two layers of four heads: dark lines parallel to the diagonal, in layer 2 further below it
picture

# %%
# The distance at which each head has its largest mean weight, for the queries of the second half:

rows = torch.arange(8, 16)
for name, weights in recorded.items():
    by_distance = torch.stack([weights[0][:, rows, rows - distance].mean(1) for distance in range(9)], 1)
    shares, distances = by_distance.max(1)
    for head in range(4):
        print(f"{name}, head {head + 1}: {distances[head]} back, {shares[head]:.2f}")
