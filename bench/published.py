"""The ledger of published figures: each is trained again over seeds by one command, and stands beside what was printed.

    python -m bench published                              # what there is
    python -m bench published nanogpt-cpu --seeds 3        # train, and write bench/published/nanogpt-cpu.json
    python -m bench published --page                       # write docs/published.md

A row is a file of bench/published. Data are read from the folder ZOO_BENCH_DATA; a row whose data are absent is left
out with the reason. A run that has finished is not trained again: runs are in ``--runs``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from zoo import __version__
from zoo.compare.statistics import mean_and_deviation, t_critical
from zoo.explain.ceilings import processor
from zoo.io import atomic_files

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "bench" / "published", ROOT / "docs" / "published.md"
LEVEL = 0.05  # of the intervals: 95 %
SHARES = (0.8, 0.9)  # where the validation and the test lines of a shuffled file begin
SHUFFLE_SEED = 42


class AbsentError(Exception):
    """What a row needs is not on this machine."""


@dataclass(frozen=True)
class Row:
    """A printed figure, and the words of ``zoo fit`` that train for it; without words there is a reason in ``missing``.

    ``{data}`` in the words is the folder of data, ``{split}`` the one with the parts of the file ``shuffle``.
    """

    name: str
    source: str
    link: str
    setting: str
    unit: str
    printed: float | str
    tolerance: float = 0.0
    seeds: int = 3  # 1 where nothing is drawn
    needs: Sequence[str] = field(default_factory=list)
    shuffle: str = ""
    fit: str = ""
    metric: str = "loss"
    differs: str = ""
    missing: str = ""

    @property
    def results(self) -> Path:
        """The file with the figures that were reached here."""
        return ROWS / f"{self.name}.json"


def read_rows(folder: Path = ROWS) -> dict[str, Row]:
    """All rows by name. Raises TypeError for a key that a row does not have."""
    files = sorted(folder.glob("*.yaml"))
    return {path.stem: Row(path.stem, **yaml.safe_load(path.read_text(encoding="utf-8"))) for path in files}


def shuffle_lines(path: Path, folder: Path) -> None:
    """Write train.txt, val.txt and test.txt: 80, 10 and 10 % of the lines, shuffled by Python's generator."""
    lines = path.read_text(encoding="utf-8").splitlines()
    random.Random(SHUFFLE_SEED).shuffle(lines)
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *(int(share * len(lines)) for share in SHARES), len(lines)]
    for name, start, end in zip(("train", "val", "test"), edges, edges[1:], strict=False):
        atomic_files.write_text(folder / f"{name}.txt", "\n".join(lines[start:end]) + "\n")


def words_of(row: Row, runs: Path) -> list[str]:
    """The words behind `zoo fit`. Raises AbsentError where the row cannot be run."""
    if not row.fit:
        raise AbsentError(row.missing)
    data = Path(os.environ.get("ZOO_BENCH_DATA", "")).absolute()
    if absent := [need for need in row.needs if not (data / need).is_file()]:
        raise AbsentError(
            f"no {absent[0]} in the folder ZOO_BENCH_DATA ({os.environ.get('ZOO_BENCH_DATA', 'not set')})"
        )
    split = runs.absolute() / f"{row.name}-data"
    if row.shuffle:
        shuffle_lines(data / row.shuffle, split)
    return [word.format(data=data, split=split) for word in shlex.split(row.fit)]


def train(row: Row, seed: int, runs: Path) -> float:
    """The metric of the last validation. Raises RuntimeError where the run does not finish."""
    folder = runs / row.name
    words = [*words_of(row, runs), "--seed", str(seed), "--runs", str(folder), "--requeue"]
    code = subprocess.run([sys.executable, "-m", "zoo", "fit", *words]).returncode
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob(f"s{seed}/ledger.json")]
    if code or len(records) != 1 or not records[0]["finished"]:
        raise RuntimeError(f"{row.name}, seed {seed}: `zoo fit {shlex.join(words)}` ended with code {code}")
    return float(records[0]["validations"][-1][row.metric])


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval by Student's t: the mean itself for a single value."""
    mean, deviation = mean_and_deviation(values)
    count = len(values)
    half = t_critical(LEVEL, count - 1) * deviation / math.sqrt(count) if count > 1 else 0.0
    return mean, mean - half, mean + half


def judge(row: Row, values: Sequence[float]) -> str:
    """Whether the interval meets the printed figure and its tolerance, and on which side it lies if not."""
    _, low, high = interval(values)
    printed = float(row.printed)
    if low > printed + row.tolerance:
        return "outside, above"
    return "outside, below" if high < printed - row.tolerance else "inside"


def page(rows: Sequence[Row]) -> str:
    """The page: a table of the rows with figures, and the names of the others."""
    lines = [
        "# Published figures", "",
        "`python -m bench published NAME --seeds N` trains a row of `bench/published` again (data: the folder "
        "`ZOO_BENCH_DATA`); `--page` writes this page.", "",
        "|row|setting|printed|ours (95 % interval)|verdict|why|", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    waiting = []
    for row in rows:
        if not row.results.is_file():
            waiting.append(f"{row.name} ({row.missing})" if row.missing else row.name)
            continue
        values = list(json.loads(row.results.read_text(encoding="utf-8"))["figures"].values())
        places = max(3, len(str(row.printed).partition(".")[2]))
        mean, low, high = (f"{value:.{places}f}" for value in interval(values))
        ours = f"{mean} ({low}–{high})" if len(values) > 1 else mean if row.seeds == 1 else f"{mean} (one seed)"
        cells = [f"[{row.name}]({row.link})", row.setting, f"{row.printed} {row.unit}", ours, judge(row, values)]
        lines.append("|" + "|".join([*cells, row.differs]) + "|")
    if waiting:
        lines += ["", f"Not run: {', '.join(waiting)}."]
    return "\n".join(lines) + "\n"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The options; a name that no row has is refused."""
    rows = read_rows()
    parser = argparse.ArgumentParser(prog="python -m bench published", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(rows)}")
    parser.add_argument("--seeds", type=int, help="seeds 1 to N; the row says how many unless given")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "published", help="the folder of the runs")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from the results")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.names if name not in rows]:
        parser.error(f"unknown row {unknown[0]!r}: choose from {', '.join(rows)}")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: at least 1")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Train rows, or list them, and write the page if wanted. Returns 1 where a row was left out or failed."""
    arguments, rows, failures = parse_arguments(argv), read_rows(), 0
    for name in arguments.names:
        row = rows[name]
        figures: dict[str, float] = {}
        try:
            for seed in range(1, (arguments.seeds or row.seeds) + 1):
                figures[str(seed)] = train(row, seed, arguments.runs)
        except (AbsentError, RuntimeError) as error:
            print(f"{name}: not run: {error}", file=sys.stderr)
            failures += 1
            continue
        content = {
            "fit": row.fit,
            "metric": row.metric,
            "figures": figures,
            "zoo": __version__,
            "processor": processor(),
        }
        atomic_files.write_json(row.results, content, end="\n")
        values = list(figures.values())
        mean, low, high = interval(values)
        print(f"{name}: printed {row.printed}, ours {mean:.4f} ({low:.4f} to {high:.4f}): {judge(row, values)}")
    if arguments.page:
        atomic_files.write_text(PAGE, page(list(rows.values())))
    elif not arguments.names:
        for row in rows.values():
            state = "run" if row.results.is_file() else row.missing or "not run"
            print(f"{row.name}: {row.source}, {row.setting}: printed {row.printed} {row.unit}; {state}")
    return int(failures > 0)
