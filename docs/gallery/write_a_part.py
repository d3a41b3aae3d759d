"""
Write a part
============

A part is a class. This one is Dynamic Tanh (Zhu et al., 2025), which takes the place of a norm without computing any
mean: ``tanh(scale · x) · weight + bias``. Twenty lines are enough to train a model with it. As a package with an entry
point (``zoo new norm DyT``) every recipe can use it by name.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.conformance import checks
from zoo.models import LanguageModel
from zoo.parts.norm import LayerNorm, Norm


class DyT(Norm):
    """tanh(scale * x) * weight + bias: normalisation without statistics (Zhu et al., 2025)."""

    def __init__(self, dim: int, scale: float = 0.5):
        super().__init__(dim, eps=0.0)
        self.start = scale
        self.scale = nn.Parameter(torch.empty(1))
        self.weight, self.bias = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        return torch.tanh(self.scale * x) * self.weight + self.bias


# %%
# A class goes wherever a built-in part goes.

letters = torch.tensor([ord(letter) - 97 for letter in "thequickbrownfoxjumpsoverthelazydog"])
for norm in (LayerNorm, DyT):
    model = LanguageModel(vocab_size=26, dim=64, depth=2, heads=4, norm=norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = F.cross_entropy(model(letters[None, :-1])[0], letters[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{norm.__name__:10} loss after 60 steps {loss.item():.3f}")

# %%
# The contract of its kind says what a norm promises. ``zoo check norm dyt`` tests all of it on an installed part; here
# are some of its checks, on the class itself.

for check in checks(DyT):
    if check.name in ("any_width", "extreme_sizes", "dtypes", "gradients_are_right", "state_round_trip", "invariance"):
        outcome = check.outcome()
        print(f"{outcome.name:20} {outcome.status:8} {outcome.sentence or check.says}")
