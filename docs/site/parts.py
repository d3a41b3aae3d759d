"""A page for each installed part, as `zoo docs` writes it, with its cost against length."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from docs.site.sources import toctree
from zoo import registry
from zoo.cli import docs
from zoo.plugins.description import cache_lookups
from zoo.registry import Part

LENGTHS = (64, 256, 1024, 4096)


CHECK_SECONDS = 600.0  # the longest that the contract of a part may take


def write_pages(folder: Path, lengths: bool = True, check: bool = False) -> None:
    """Write the index and the pages of all parts.

    Args:
        folder: where.
        lengths: what a part costs by the length of a text.
        check: run the contract of each part, and put its result on its page.
    """
    parts = docs.selected_parts([])
    reports = {part: docs.contract(part, CHECK_SECONDS, False) for part in parts} if check else {}
    paths = docs.page_paths(parts)
    with cache_lookups():
        pages = {
            paths[part]: docs.page(part, reports.get(part)) + (cost_section(part) if lengths else "") for part in parts
        }
    entries = [f"{part.kind} {part.name} <{path}>" for part, path in paths.items()]
    pages[docs.INDEX] = docs.index_page(paths, reports) + toctree("", entries)
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def cost_section(part: Part) -> str:
    """A table of FLOPs and bytes per token by length; empty for a part that is not of a stack or cannot be traced."""
    if part.kind not in registry.STACK_KINDS:
        return ""
    rows = []
    for length in LENGTHS:
        cost, default = trace_cost(part.kind, part.load(), length), trace_cost(part.kind, None, length)
        if cost and default:
            cells = [f"{value:,.0f} | {value / other:.3g} ×" for value, other in zip(cost, default, strict=True)]
            rows.append(f"| {length:,} | {' | '.join(cells)} |")
    if not rows:
        return ""
    return "\n".join(
        [
            "", "## Cost against length", "",
            "The forward of a language model of one layer of width 512 with 8 heads, per token, and as a multiple of "
            f"the model's with the default {part.kind}. FLOPs are of matrix products; bytes are those that operations "
            "read and write without fusion ([explained](../../docs/explain.md)).",
            "", "| length | FLOPs | to default | bytes | to default |", "|---:|---:|---:|---:|---:|", *rows, "",
        ]
    )  # fmt: skip


@functools.cache
def trace_cost(kind: str, cls: Any, length: int) -> tuple[float, float] | None:
    """FLOPs and bytes per token of one layer with a part, or the default one; None where it cannot be traced."""
    import torch

    from zoo.explain.subjects import PART_SIZES
    from zoo.explain.trace import trace
    from zoo.tasks.lm import CausalLM
    from zoo.training.model_cost import meta_copy

    replacement = {kind: cls} if cls else {}
    try:
        with torch.device("meta"):
            task = CausalLM(**(PART_SIZES | {"max_length": length} | replacement))
        arguments, units = task.example()
        traced = trace(meta_copy(task.net), *arguments)
    except Exception:  # a part with required options, or one that needs numbers: it has no such table
        return None
    return traced.flops / units, sum(one.traffic for one in traced.operations) / units
