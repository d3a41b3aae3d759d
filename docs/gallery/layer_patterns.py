"""
Other parts in some layers
==========================

Many models mix layers: three that look at a short window, and one that looks at everything (Gemma 2 and 3, GPT-3). An
override says which layers have what.
"""

import torch

from zoo.logging.attention_figures import head_grid
from zoo.models import LanguageModel
from zoo.models.attention_weights import attention_layers, record_weights
from zoo.models.layer_overrides import Override, matching_layers
from zoo.parts.ffn import MoE
from zoo.parts.position import RoPE

model = LanguageModel(
    vocab_size=100, dim=64, depth=4, heads=4, position=RoPE,
    overrides=[Override(layers="all but every 4th", window=4), Override(layers="last", ffn=MoE)],
)  # fmt: skip
for number, block in enumerate(model.stack.blocks):
    print(number, type(block.ffn.part).__name__, sum(p.numel() for p in block.parameters()), "parameters")

# %%
# Patterns are words. A recipe writes the same: ``overrides: [{layers: all but every 4th, window: 4}]``.

for pattern in ("first", "last 2", "every 4th", "5 of 6", "0, 3, 6-8", "all but last"):
    print(f"{pattern:12} of 12 layers: {matching_layers(pattern, 12)}")

# %%
# Who sees whom, with untrained weights: the first three layers see four tokens, the last one all that came before.

with torch.no_grad(), record_weights(model.eval(), attention_layers(model)) as recorded:
    model(torch.randint(100, (1, 24)))
picture = head_grid([weights[0] for weights in recorded.values()], title="Four heads of four layers")
# Attention weights of four layers: three have a band of width four below the diagonal, and the last a full triangle
picture

# %%
# When the model generates, the first three layers remember four tokens, however long the text is.

state = model.begin(capacity=256)
with torch.no_grad():
    state.step(torch.randint(100, (1, 200)))
for number, layer in enumerate(state.caches):
    print(f"layer {number}: {layer.own.start} of 200 keys are forgotten")
