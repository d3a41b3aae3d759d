"""
A mixture of experts
====================

In a mixture of experts, a router sends each token to a few of many feed-forwards, so that a model has many parameters
of which a token uses few. A loss of its own keeps it from sending most tokens to the same experts.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from zoo.models import LanguageModel
from zoo.parts.ffn import MoE, aux_losses

tokens = (64 * torch.rand(64, 33) ** 3).long().sort(1).values  # ascending numbers, most of them small
loads = {}
for weight in (0.0, 0.1):
    model = LanguageModel(
        vocab_size=64, dim=32, depth=1, heads=2,
        ffn=lambda dim, hidden, weight=weight: MoE(dim, hidden, experts=8, top_k=2, aux_loss_weight=weight),
    )  # fmt: skip
    layer = next(module for module in model.modules() if isinstance(module, MoE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(80):
        if step == 60:
            layer.load.zero_()  # count from here on
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        total = loss + sum(aux_losses(model))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    loads[weight] = layer.load / layer.load.sum()
    print(f"weight {weight}: loss {loss.item():.3f}, largest share of tokens {loads[weight].max():.0%}")

# %%
# Each token is in two of eight experts: an even load is an eighth each.

for place, (weight, load) in enumerate(loads.items()):
    plt.bar(torch.arange(8) + 0.4 * place, load.sort(descending=True).values, 0.4, label=f"loss weight {weight}")
plt.axhline(1 / 8, color="black", linewidth=1)
plt.xlabel("expert, from the busiest on")
plt.ylabel("share of tokens")
plt.title("Load of eight experts with and without a balancing loss")
plt.legend()
plt.show()
