"""Errors for combinations of parts that cannot work, raised when a stack is built and not in the middle of a run."""

from __future__ import annotations

import sys
from typing import Any

from zoo import registry
from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.block import Block
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position

# what an attention that looks at a memory needs
CROSS = {"cross": "this model looks at a memory", "valid": "this model pads its batches"}


def required_features(position: Position, pattern: Pattern, padded: bool, dropout: float) -> dict[str, str]:
    """The features that a stack needs of its attentions and backends, each with the reason."""
    name = type(position).__name__
    reasons = {
        **dict.fromkeys(("bias", position.feature), f"position {name} adds a bias to the scores"),
        "rotate": f"position {name} turns queries and keys",
        "valid": "this model pads its batches",
        "window": f"window={pattern.window} hides keys",
        "dropout": f"attention_dropout={dropout} drops attention weights",
        "causal": "this model is causal",
    }
    extra = {"rotate": position.rotates, "valid": padded, "dropout": dropout > 0, position.feature: position.biases}
    needs = pattern.needs | {feature for feature, needed in extra.items() if needed}
    return {feature: reasons[feature] for feature in sorted(needs)}


def check_supported(attention: Attention, required: dict[str, str]) -> None:
    """Raise UsageError when an attention, or its backend, does not support a required feature."""
    missing = sorted(attention.unsupported(frozenset(required)))
    if missing:
        feature = missing[0]
        name = type(attention).__name__
        itself = feature not in attention.supports
        kind, culprit = ("attention", name) if itself else ("backend", type(attention.backend).__name__)
        works = ", ".join(alternatives(kind, feature)) or "none installed"
        asker = required.get(feature, f"attention {name} asks for {feature}")
        raise UsageError(f"{asker}, which {kind} {culprit} cannot take. Works with: {works}.")


def alternatives(kind: str, feature: str) -> list[str]:
    """Parts of a kind that serve a feature. A plugin counts once it is imported: no sentence is worth importing it."""
    names = []
    for part in registry.parts(kind):
        if not part.builtin and part.module not in sys.modules:
            continue
        try:
            cls: Any = part.load()
            serves = cls.supports if kind == "attention" else cls().supports
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever a stranger's code raises must not hide the sentence that is being made
            continue
        if feature in serves:
            names.append(part.name)
    return names


def check_recompute(recompute: bool, block: Block) -> None:
    """Raise UsageError where blocks are run in a way of their own, which recomputing would not see."""
    if recompute and type(block).through.__func__ is not Block.through.__func__:  # type: ignore[attr-defined]
        raise UsageError(
            f"block {type(block).__name__} decides itself what it keeps for the backward pass: recompute=false."
        )


def check_earlier_layers(attention: Attention | None, block: Block) -> None:
    """Raise UsageError where an attention reads what earlier layers leave and a block runs layers in its own way."""
    own = type(block).through.__func__ is not Block.through.__func__  # type: ignore[attr-defined]
    if own and attention is not None and attention.reads_earlier_layers:
        raise UsageError(
            f"attention {type(attention).__name__} reads what earlier layers leave, of which block "
            f"{type(block).__name__} keeps no gradients. Take another block."
        )


def too_long(position: Position, length: int, limit: int) -> UsageError:
    """The error for a sequence beyond the positions that a scheme has."""
    return UsageError(
        f"sequence length {length} exceeds max_length={limit} of position {type(position).__name__}. "
        f"Use RoPE, ALiBi, T5 or Sinusoidal, or set max_length to at least {length}."
    )
