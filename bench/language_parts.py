"""The parts of recipe lm-tiny, for models that studies build."""

from __future__ import annotations

from typing import Any


def language_parts() -> dict[str, Any]:
    """The options of recipe lm-tiny that say which parts a model has and how it is optimised."""
    from functools import partial

    from torch.optim import AdamW

    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm
    from zoo.parts.position import RoPE
    from zoo.tasks.schedule import Cosine

    return {
        "position": RoPE, "norm": RMSNorm, "ffn": SwiGLU,
        "optimizer": partial(AdamW, betas=(0.9, 0.99), weight_decay=0.1),
        "schedule": partial(Cosine, warmup=40, floor=0.05),
    }  # fmt: skip
