"""The kernels that are measured on this machine against torch's own: the same steps and texts by both, in turns.

A workload is a contest of the gate between two processes of this zoo, one of them with ``ZOO_KERNELS=plain``.
"""

from __future__ import annotations

import statistics

from bench.arena import Entrant, compete
from bench.gate import CONTESTS, MARGIN, PLAIN_TORCH, paired_ratio
from bench.study import Options, Table
from zoo.system.kernel_choice import SWITCH

TORCH_KERNELS = {SWITCH: "plain"}
WARM = 2  # untimed steps, in which kernels are measured


def study(options: Options) -> list[Table]:
    """Milliseconds of each workload by both, and those by torch's kernels divided by those by measured ones."""
    table = Table(
        "Measured kernels against torch's own",
        ["workload", "measured, ms", "torch's own, ms", "ratio", "95 % interval", "losses differ by"],
    )
    slower = []
    for contest in (contest for contest in CONTESTS if contest.other != PLAIN_TORCH):
        entrants = [
            Entrant(name, contest.factory, contest.options, ours=True, env=env, keep=True)
            for name, env in (("measured", {}), ("torch's own", TORCH_KERNELS))
        ]
        ours, own = compete(entrants, first=WARM, turns=max(2, options.turns), steps=1, clock=options.clock)
        if failure := ours.failed or own.failed:
            raise RuntimeError(f"{contest.name}: {failure}")
        ratio, low, high = paired_ratio(ours.seconds, own.seconds)
        pairs = zip(ours.losses, own.losses, strict=True)
        apart = [abs(one - other) for one, other in pairs if one is not None and other is not None]
        slower += [contest.name] if high < 1 - MARGIN else []
        table.rows.append([
            contest.name, *(1e3 * statistics.median(record.seconds) for record in (ours, own)), ratio,
            f"{low:.2f} to {high:.2f}", max(apart, default=None),
        ])  # fmt: skip
        print(" | ".join(map(str, table.rows[-1])), flush=True)
    table.notes.append(
        f"Slower than torch's own by more than {MARGIN:.0%}: {', '.join(slower) or 'none'}. Texts have no loss."
    )
    return [table]
