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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from zoo import __version__
from zoo.compare.statistics import mean_and_deviation, t_critical
from zoo.io import atomic_files

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "bench" / "published", ROOT / "docs" / "published.md"
LEVEL = 0.05  # of the intervals: 95 %
SHARES = (0.8, 0.9)  # where the validation and the test lines of a shuffled file begin
SHUFFLE_SEED = 42

# figures that no validation measures, of a run's folder; like all that needs torch, imported when a row is trained
TESTS = {"exact_sums": "bench.adding"}


class AbsentError(Exception):
    """What a row needs is not on this machine."""


@dataclass(frozen=True)
class Row:
    """A printed figure, and the words of ``zoo fit`` that train for it; without words there is a reason in ``missing``.

    ``{data}`` in the words is the folder of data, ``{split}`` the one with the parts of the file ``shuffle``, or with
    the files of ``words`` (a folder, the source's and the target's language) cut into words. A row with ``arms``
    trains each of them, with further words, for a figure of its own. Accuracies are scaled so that
    ``chance`` is 0, and multiplied by ``factor``. ``ordered`` compares the order of the arms' figures alone.
    """

    name: str
    source: str
    link: str
    setting: str
    unit: str
    printed: float | str = ""
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name to ``printed`` and ``fit``
    ordered: bool = False
    chance: float = 0.0
    factor: float = 1.0
    tolerance: float = 0.0
    seeds: int = 3  # 1 where nothing is drawn
    needs: Sequence[str] = field(default_factory=list)
    shuffle: str = ""
    words: Sequence[str] = field(default_factory=list)
    fit: str = ""
    metric: str = "loss"
    differs: str = ""
    missing: str = ""

    def split(self) -> dict[str, Row]:
        """The row of each arm by its name, or the row itself without a name."""
        rows = {
            arm: replace(self, arms={}, setting=f"{self.setting}: {arm}", printed=options["printed"],
                         fit=f"{self.fit} {options.get('fit', '')}")
            for arm, options in self.arms.items()
        }  # fmt: skip
        return rows or {"": self}

    def figures(self) -> dict[str, dict[str, float]]:
        """The figures by arm and seed that stand in the file of results; none where it is absent, or of other words."""
        if not self.results.is_file():
            return {}
        content = json.loads(self.results.read_text(encoding="utf-8"))
        figures = content["figures"] if content["fit"] == self.fit else {}
        if self.arms:
            return {arm: figures[arm] for arm in self.arms if arm in figures}
        return {"": figures} if figures else {}

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
    if row.words:
        from bench.words import write_words

        folder, source, target = row.words
        write_words(data / folder, split, (source, target))
    return [word.format(data=data, split=split) for word in shlex.split(row.fit)]


def train(row: Row, seed: int, runs: Path, arm: str = "") -> float:
    """The metric of the last validation, or of the row's own test. Raises RuntimeError where a run does not finish."""
    folder = runs / row.name / arm
    words = [*words_of(row, runs), "--seed", str(seed), "--runs", str(folder), "--requeue"]
    code = subprocess.run([sys.executable, "-m", "zoo", "fit", *words]).returncode
    ledgers = list(folder.rglob(f"s{seed}/ledger.json"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in ledgers]
    if code or len(records) != 1 or not records[0]["finished"]:
        raise RuntimeError(f"{row.name}, seed {seed}: `zoo fit {shlex.join(words)}` ended with code {code}")
    if row.metric in TESTS:
        test: Callable[[Path], float] = getattr(import_module(TESTS[row.metric]), row.metric)
        return test(ledgers[0].parent)
    figure = float(records[0]["validations"][-1][row.metric])
    return row.factor * (figure - row.chance) / (1 - row.chance)


def write_results(row: Row, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Write the figures by arm and seed, with the command and the processor, in place of those of before."""
    from zoo.explain.ceilings import processor

    content = {
        "fit": row.fit, "metric": row.metric, "figures": figures if row.arms else figures[""], "zoo": __version__,
        "processor": processor(),
    }  # fmt: skip
    atomic_files.write_json(row.results, content, end="\n")


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


def judge_order(figures: Sequence[Sequence[float]]) -> str:
    """Whether each arm's figures over the same seeds lie above those of the next arm, whose printed figure is less.

    One seed cannot contradict an order.
    """
    decided = True
    for higher, lower in pairwise(figures):
        mean, low, high = interval([a - b for a, b in zip(higher, lower, strict=True)])
        if max(mean, high) < 0:
            return "contradicted" if len(higher) > 1 else "another order"
        decided = decided and low > 0
    return "same order" if decided else "undecided"


def page(rows: Sequence[Row]) -> str:
    """The page: a table of the rows with figures, and the names of the others."""
    lines = [
        "# Published figures", "",
        "`python -m bench published NAME --seeds N` trains a row again (data: `ZOO_BENCH_DATA`); `--page` writes "
        "this page.", "",
        "|row|setting|printed|ours (95 % interval)|verdict|why|", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    waiting = []
    for row in rows:
        arms, figures = row.split(), row.figures()
        if not figures:
            waiting.append(f"{row.name} ({row.missing})" if row.missing else row.name)
            continue
        for number, arm in enumerate(name for name in arms if name in figures):
            entry, values = arms[arm], list(figures[arm].values())
            places = max(3, len(str(entry.printed).partition(".")[2]))
            mean, low, high = (f"{value:.{places}f}" for value in interval(values))
            ours = f"{mean} ({low} to {high})" if len(values) > 1 else mean if row.seeds == 1 else f"{mean} (one seed)"
            cells = ["", arm, f"{entry.printed}", ours, "" if row.ordered else judge(entry, values), ""]
            if not number:  # what the arms have in common is said once
                cells[:3] = f"[{row.name}]({row.link})", entry.setting, f"{entry.printed} {row.unit}"
                cells[5] = row.differs
            if row.ordered and number == len(figures) - 1:
                cells[4] = judge_order([list(each.values()) for each in figures.values()])
            lines.append(f"|{'|'.join(cells)}|")
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
        figures = row.figures()  # of each arm until it has been trained again
        try:
            for arm, entry in row.split().items():
                trained: dict[str, float] = {}
                for seed in range(1, (arguments.seeds or row.seeds) + 1):
                    trained[str(seed)] = train(entry, seed, arguments.runs, arm)
                    write_results(row, figures := {**figures, arm: trained})
                mean, low, high = interval(list(figures[arm].values()))
                print(f"{name} {arm}: printed {entry.printed}, ours {mean:.4f} ({low:.4f} to {high:.4f})", flush=True)
        except (AbsentError, RuntimeError) as error:
            print(f"{name}: not run: {error}", file=sys.stderr)
            failures += 1
    if arguments.page:
        atomic_files.write_text(PAGE, page(list(rows.values())))
    elif not arguments.names:
        for row in rows.values():
            state = "run" if row.results.is_file() else row.missing or "not run"
            printed = row.printed if not row.arms else ", ".join(f"{a} {o['printed']}" for a, o in row.arms.items())
            print(f"{row.name}: {row.source}, {row.setting}: printed {printed} {row.unit}; {state}")
    return int(failures > 0)
