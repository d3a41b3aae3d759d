"""
Predictions after every layer
=============================

A model's norm and output matrix can read the vectors between any two layers: the logit lens (nostalgebraist, 2020). It
shows in which layer a prediction comes about. ``zoo explain RUN --text …`` does this for a trained run.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from zoo.explain.inside import first_blocks
from zoo.models import LanguageModel
from zoo.parts.position import RoPE

model = LanguageModel(vocab_size=26, dim=64, depth=4, heads=4, position=RoPE)


def texts(count: int) -> torch.Tensor:
    """Eight different letters and the same letters again: tokens (count, 16)."""
    letters = torch.rand(count, 26).topk(8).indices
    return torch.cat([letters, letters], dim=1)


optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(150):
    tokens = texts(32)
    loss = F.cross_entropy(model(tokens[:, :-1])[:, 7:].flatten(0, 1), tokens[:, 8:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")

# %%
# ``first_blocks`` leaves a stack with its first layers alone. After none of them, the model can only repeat its input,
# because the embedding is also the output matrix.

tokens = texts(200)
shares = []
model.eval()
for depth in range(4):
    with torch.no_grad(), first_blocks(model.stack, depth):
        guesses = model(tokens[:, :-1]).argmax(-1)
    shares.append((guesses == tokens[:, 1:]).float().mean(0))
with torch.no_grad():
    shares.append((model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).float().mean(0))
for depth, share in enumerate(shares):
    print(f"after {depth} layers: {share[7:].mean():.0%} of the second half right")

# %%
plt.figure(figsize=(7, 3))
plt.imshow(torch.stack(shares), aspect="auto", cmap="Blues", vmin=0, vmax=1)
plt.colorbar(label="share of right predictions")
plt.xlabel("position in the text")
plt.ylabel("layers")
plt.title("Share of right predictions by position and number of layers")
plt.tight_layout()
plt.show()
