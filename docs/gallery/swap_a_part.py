"""
Swap a part and compare
=======================

The same small language model with three position encodings, trained on the same batches for the same steps. Only one
argument differs. ``zoo compare`` does this with several seeds, equal initial weights and a statistical test; here it is
done by hand, to see that a model is plain torch.
"""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from zoo.models import LanguageModel
from zoo.parts.position import ALiBi, NoPosition, RoPE

# %%
# The task: a text is eight random letters and the same letters again. Only the second half can be predicted, by looking
# back exactly eight places.


def texts(count: int) -> torch.Tensor:
    """Tokens (count, 16)."""
    letters = torch.randint(26, (count, 8))
    return torch.cat([letters, letters], dim=1)


print("".join(chr(97 + token) for token in texts(1)[0]))

# %%
# One argument swaps the part.

losses = {}
for position in (NoPosition, ALiBi, RoPE):
    torch.manual_seed(0)
    model = LanguageModel(vocab_size=26, dim=64, depth=2, heads=4, position=position)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses[position.__name__] = []
    for _ in range(150):
        tokens = texts(32)
        logits = model(tokens[:, :-1])[:, 7:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 8:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[position.__name__].append(loss.item())
    print(f"{position.__name__:10} {sum(p.numel() for p in model.parameters()):,} parameters, loss {loss.item():.3f}")

# %%
# A loss of log 26 = 3.26 is guessing.

for name, values in losses.items():
    plt.plot(values, label=name)
plt.title("Loss on the repeated half by position encoding")
plt.xlabel("step")
plt.ylabel("cross-entropy")
plt.legend()
plt.show()
