"""Results as Markdown and JSON: medians, ratios to the best peer, and whether every entrant did the same work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from bench.arena import Record
from bench.ceilings import spread
from bench.workloads import Workload


def row(record: Record) -> dict[str, Any]:
    """What is told of one entrant."""
    told: dict[str, Any] = {"entrant": record.entrant.name, "ours": record.entrant.ours, "failed": record.failed}
    if record.seconds and not record.failed:
        told |= {
            "seconds": statistics.median(record.seconds), "spread": spread(record.seconds),
            "turns": len(record.seconds),
            "parameters": record.parameters, "memory": record.memory,
            "loss": record.losses[-1] if record.losses else None, "steps": len(record.losses),
        }  # fmt: skip
    return told


def verdict(workload: Workload, records: list[Record], machine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The contest in plain values, with the share of the machine's ceilings that each entrant reaches."""
    rows = [row(record) for record in records]
    timed = [told for told in rows if "seconds" in told]
    peers = [told["seconds"] for told in timed if not told["ours"]]
    best = min(peers, default=None)
    for told in timed:
        told["ratio"] = best / told["seconds"] if best else None
    if machine is not None and workload.work is not None:
        work, ceiling = workload.work(), float(machine["bf16 GFLOP/s" if workload.bf16 else "fp32 GFLOP/s"]) * 1e9
        for told in timed:
            told["compute"] = work.flops / told["seconds"] / ceiling
            told["bandwidth"] = work.bytes / told["seconds"] / (float(machine["memory GB/s"]) * 1e9)
    return {"workload": workload.name, "what": workload.what, "goal": workload.goal, "rows": rows,
            "disagree": disagreement(workload, timed)}  # fmt: skip


def disagreement(workload: Workload, timed: list[dict[str, Any]]) -> list[str]:
    """Entrants whose loss lies farther from the median than the workload allows: they do other work."""
    losses = {told["entrant"]: told["loss"] for told in timed if told["loss"] is not None}
    if workload.agree is None or len(losses) < 2:
        return []
    middle = statistics.median([loss for loss in losses.values() if math.isfinite(loss)] or [math.nan])
    return [name for name, loss in losses.items() if not abs(loss - middle) <= workload.agree * abs(middle)]


def markdown(found: dict[str, Any]) -> str:
    """One contest as a table."""
    kind = "bandwidth" if any(told.get("bandwidth") for told in found["rows"]) else "compute"
    title = {"compute": "MFU", "bandwidth": "of the memory ceiling"}[kind]
    lines = [f"### {found['what']}", ""]
    lines.append(f"| entrant | ms per step | ± | ratio to the best peer | {title} | loss | peak memory |")
    lines.append("|---|---|---|---|---|---|---|")
    for told in sorted(found["rows"], key=lambda told: -told.get("ratio", 0) if told.get("ratio") else 1):
        if told["failed"]:
            lines.append(f"| {told['entrant']} | failed: {told['failed'].splitlines()[0]} | | | | | |")
            continue
        name = f"**{told['entrant']}**" if told["ours"] else told["entrant"]
        ratio = "" if told.get("ratio") is None else f"{told['ratio']:.2f}"
        share = "" if not told.get(kind) else f"{100 * told[kind]:.0f} %"
        loss = "" if told["loss"] is None else f"{told['loss']:.3f} after {told['steps']}"
        lines.append(
            f"| {name} | {told['seconds'] * 1e3:.0f} | {told['spread'] * 100:.0f} % | {ratio} | {share} | {loss} "
            f"| {told['memory'] / 2**20:.0f} MB |"
        )
    ours = [told["ratio"] for told in found["rows"] if told["ours"] and told.get("ratio")]
    if found["goal"] and ours:
        reached = max(ours) >= found["goal"]
        lines += ["", f"Goal {found['goal']:.2f}: {'reached' if reached else 'missed'} ({max(ours):.2f})."]
    if found["disagree"]:
        lines += ["", f"Losses do not agree: {', '.join(found['disagree'])}."]
    return "\n".join(lines)


def head(machine: Mapping[str, Any], clock: str, first: int, turns: int) -> str:
    """What a reader must know to believe the tables."""
    told = " · ".join(f"{name} {value}" for name, value in machine.items())
    return (
        f"{told}\n\nEach entrant runs in a process of its own and takes its turns between the others'; {turns} turns "
        f"after {first} untimed steps, medians by the {'processor' if clock == 'cpu' else 'wall'} clock. All start "
        "from the same statistics (matrices N(0, 0.02), gains one, biases zero), see the same batches, and have "
        "torch's AdamW. MFU is the model's FLOPs (6 per weight and token, 12 · layers · width · length per token for "
        "attention; Chowdhery et al., 2022), the same for all entrants, over what the measured matrix ceiling would do."
    )
