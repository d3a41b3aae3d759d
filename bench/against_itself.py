"""Does `zoo compare` cry wolf? A recipe is compared with itself, under different seeds, and no verdict may come out.

    python -m bench.against_itself RUNS [COMPARISONS=20] [SEEDS=5] [zoo fit's words ...]

Trains COMPARISONS * 2 * SEEDS runs below RUNS, one after another in one process, skipping those that are finished.
Each comparison has seeds of its own: the first half plays the baseline, the second half a variant.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from zoo.cli import main
from zoo.compare.run_records import RunRecord, read_records
from zoo.compare.verdict import answer

WORDS = ("vit-tiny", "--trainer.max_steps=60", "--trainer.val_check_interval=60")


def finished(folder: Path, seed: int) -> list[Path]:
    """The folders of a seed's run, where it is finished."""
    return [path.parent for path in folder.glob(f"*/*/s{seed}/ledger.json") if json.loads(path.read_text())["finished"]]


def train(runs: Path, seeds: int, words: tuple[str, ...]) -> list[RunRecord]:
    """The ledgers of seeds 1 to ``seeds``."""
    for seed in range(1, seeds + 1):
        if not finished(runs, seed) and main(["fit", *words, f"--seed={seed}", f"--runs={runs}", "--overwrite"]):
            sys.exit(f"seed {seed} failed")
    return [
        ledger for seed in range(1, seeds + 1) for folder in finished(runs, seed) for ledger in read_records(folder)
    ]


def compared(records: list[RunRecord], seeds: int) -> list[tuple[str, float, float]]:
    """For every ``2 * seeds`` runs the verdict, p, and the difference."""
    rows = []
    for first in range(0, len(records), 2 * seeds):
        ours, theirs = records[first : first + seeds], records[first + seeds : first + 2 * seeds]
        again = [replace(run, variant="again", seed=base.seed) for run, base in zip(theirs, ours, strict=True)]
        row = answer([*ours, *again], baseline=ours[0].variant).rows[1]
        rows.append((row.verdict.word, row.pair.p, row.pair.mean))
    return rows


def report(rows: list[tuple[str, float, float]]) -> str:
    lines = [f"{number:3}  {mean:+.4f}  p {p:.3f}  {word}" for number, (word, p, mean) in enumerate(rows, 1)]
    return "\n".join(
        [*lines, ", ".join(f"{count} of {len(rows)} {word}" for word, count in Counter(w for w, *_ in rows).items())]
    )


if __name__ == "__main__":
    runs, numbers = Path(sys.argv[1]), [int(word) for word in sys.argv[2:4]]
    count, seeds = (numbers + [20, 5][len(numbers) :])[:2]
    print(report(compared(train(runs, 2 * seeds * count, tuple(sys.argv[4:]) or WORDS), seeds)))
