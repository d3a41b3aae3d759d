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
    """The columns of one entrant."""
    columns: dict[str, Any] = {"entrant": record.entrant.name, "ours": record.entrant.ours, "failed": record.failed}
    if record.seconds and not record.failed:
        columns |= {
            "seconds": statistics.median(record.seconds), "spread": spread(record.seconds),
            "turns": len(record.seconds),
            "parameters": record.parameters, "memory": record.memory,
            "loss": record.losses[-1] if record.losses else None, "steps": len(record.losses),
        }  # fmt: skip
    return columns


def verdict(workload: Workload, records: list[Record], machine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The contest in plain values, with the share of the machine's ceilings that each entrant reaches."""
    rows = [row(record) for record in records]
    timed = [columns for columns in rows if "seconds" in columns]
    peers = [columns["seconds"] for columns in timed if not columns["ours"]]
    best = min(peers, default=None)
    for columns in timed:
        columns["ratio"] = best / columns["seconds"] if best else None
    if machine is not None and workload.work is not None:
        work, ceiling = workload.work(), float(machine["bf16 GFLOP/s" if workload.bf16 else "fp32 GFLOP/s"]) * 1e9
        for columns in timed:
            columns["compute"] = work.flops / columns["seconds"] / ceiling
            columns["bandwidth"] = work.bytes / columns["seconds"] / (float(machine["memory GB/s"]) * 1e9)
    return {"workload": workload.name, "what": workload.what, "goal": workload.goal, "rows": rows,
            "disagree": disagreement(workload, timed)}  # fmt: skip


def disagreement(workload: Workload, timed: list[dict[str, Any]]) -> list[str]:
    """Entrants whose loss lies farther from the median than the workload allows: they do other work."""
    losses = {columns["entrant"]: columns["loss"] for columns in timed if columns["loss"] is not None}
    if workload.agree is None or len(losses) < 2:
        return []
    middle = statistics.median([loss for loss in losses.values() if math.isfinite(loss)] or [math.nan])
    return [name for name, loss in losses.items() if not abs(loss - middle) <= workload.agree * abs(middle)]


def markdown(contest: dict[str, Any]) -> str:
    """One contest as a table."""
    kind = "bandwidth" if any(columns.get("bandwidth") for columns in contest["rows"]) else "compute"
    title = {"compute": "MFU", "bandwidth": "of the memory ceiling"}[kind]
    lines = [f"### {contest['what']}", ""]
    lines.append(f"| entrant | ms per step | ± | ratio to the best peer | {title} | loss | peak memory |")
    lines.append("|---|---|---|---|---|---|---|")
    for columns in sorted(contest["rows"], key=lambda one: -one["ratio"] if one.get("ratio") else 1):
        if columns["failed"]:
            lines.append(f"| {columns['entrant']} | failed: {columns['failed'].splitlines()[0]} | | | | | |")
            continue
        name = f"**{columns['entrant']}**" if columns["ours"] else columns["entrant"]
        ratio = "" if columns.get("ratio") is None else f"{columns['ratio']:.2f}"
        share = "" if not columns.get(kind) else f"{100 * columns[kind]:.0f} %"
        loss = "" if columns["loss"] is None else f"{columns['loss']:.3f} after {columns['steps']}"
        lines.append(
            f"| {name} | {columns['seconds'] * 1e3:.0f} | {columns['spread'] * 100:.0f} % | {ratio} | {share} | {loss} "
            f"| {columns['memory'] / 2**20:.0f} MB |"
        )
    ours = [columns["ratio"] for columns in contest["rows"] if columns["ours"] and columns.get("ratio")]
    if contest["goal"] and ours:
        reached = max(ours) >= contest["goal"]
        lines += ["", f"Goal {contest['goal']:.2f}: {'reached' if reached else 'missed'} ({max(ours):.2f})."]
    if contest["disagree"]:
        lines += ["", f"Losses do not agree: {', '.join(contest['disagree'])}."]
    return "\n".join(lines)


def head(machine: Mapping[str, Any], clock: str, first: int, turns: int) -> str:
    """What a reader must know to believe the tables."""
    description = " · ".join(f"{name} {value}" for name, value in machine.items())
    return (
        f"{description}\n\nEach entrant runs in a process of its own and takes its turns between the others'; "
        f"{turns} turns after {first} untimed steps, medians by the {'processor' if clock == 'cpu' else 'wall'} clock. "
        "All start from the same statistics (matrices N(0, 0.02), gains one, biases zero), see the same batches and "
        "have torch's AdamW. MFU is the model's FLOPs (6 per weight and token, 12 · layers · width · length per token "
        "for attention; Chowdhery et al., 2022), the same for all entrants, over the measured matrix ceiling."
    )
