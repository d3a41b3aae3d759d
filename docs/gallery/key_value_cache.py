"""
What a cache saves in generation
================================

A language model that generates computes the keys and values of each token once and stores them. Without a cache every
step computes all earlier tokens again. Heads that share keys and values make the cache smaller.
"""

import time
from functools import partial

import matplotlib.pyplot as plt
import torch

from zoo.models import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.position import RoPE

model = LanguageModel(vocab_size=256, dim=128, depth=4, heads=8, position=RoPE).eval()
tokens = torch.randint(256, (1, 512))

# %%
# With the cache, ``step`` takes one new token and gives the logits of the next one. They equal those of a full forward.

with torch.no_grad():
    state = model.begin(capacity=512)
    state.step(tokens[:, :100])
    logits = state.step(tokens[:, 100:101])
    print("largest difference:", f"{(logits - model(tokens[:, :101])[:, -1]).abs().max():.1e}")

# %%
# Milliseconds of a step by length, the best of three:


def best_time(function) -> float:
    """Milliseconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


lengths, cached, repeated = (64, 128, 256, 500), [], []
with torch.no_grad():
    for length in lengths:
        state = model.begin(capacity=512)
        state.step(tokens[:, :length])
        cached.append(best_time(lambda state=state: state.step(tokens[:, -1:])))
        repeated.append(best_time(lambda length=length: model(tokens[:, :length])))
plt.plot(lengths, repeated, marker="o", label="all tokens again")
plt.plot(lengths, cached, marker="o", label="with a cache")
plt.ylim(0)
plt.xlabel("tokens so far")
plt.ylabel("milliseconds")
plt.title("Time of one generated token with and without a cache, by length")
plt.legend()
plt.show()

# %%
# Numbers that the cache stores for each token, in all layers: keys and values, of each head or of each group of heads.

for kv_heads in (8, 2, 1):
    attention = partial(MultiHead, kv_heads=kv_heads)
    model = LanguageModel(vocab_size=256, dim=128, depth=4, heads=8, position=RoPE, attention=attention)
    numbers = sum(2 * block.attend.part.kv_heads * block.attend.part.head_dim for block in model.stack.blocks)
    print(f"{kv_heads} heads of keys and values: {numbers:5,} numbers per token")
