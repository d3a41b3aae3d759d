"""Make the mistakes of `mistakes.tsv` in an empty folder, and hold the answers against the table.

    python -m tests.campaigns.mistakes FOLDER                 # all; a line for each that is answered otherwise
    python -m tests.campaigns.mistakes FOLDER --only 1-40,213
    python -m tests.campaigns.mistakes FOLDER --write         # the answers of today become the table

An answer is what a command writes to standard error, or its last line of output where that is empty. It is wrong if it
has a traceback, calls a mistake a bug of zoo, or takes more than six lines; another exit code or another sentence than
the table's is printed, to be read.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "mistakes.tsv"
PREPARE = HERE / "prepare.sh"
LIMIT_S = 900
SIMILAR = 0.8  # of two sentences that say the same of other numbers or files
LONGEST = 300  # characters of an answer that the table keeps


@dataclass(frozen=True)
class Mistake:
    """A command with a mistake, and how it is answered."""

    number: int
    command: str
    code: int
    answer: str


def read_table() -> list[Mistake]:
    """The mistakes in their order, which matters: some commands write what later ones read."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Mistake(int(number), command, int(code), answer)
                for number, command, code, answer in csv.reader(file, delimiter="\t")]  # fmt: skip


def write_table(mistakes: list[Mistake]) -> None:
    """Replace the table."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows((one.number, one.command, one.code, one.answer) for one in mistakes)


def run(command: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command of bash in a folder."""
    script = f'. "{PREPARE}"\n{command}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, errors="replace", timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def answer(out: str, err: str) -> str:
    """The lines of errors without notes of libraries, else the last line of the output."""
    lines = [line.rstrip() for line in err.splitlines() if line.strip() and "Warning" not in line]
    start = next((index for index, line in enumerate(lines) if line.startswith("error:")), max(0, len(lines) - 6))
    return "\n".join(lines[start:]) or (out.strip().splitlines() or [""])[-1]


def faults(code: int, text: str, expected: Mistake) -> list[str]:
    """What is wrong with an answer, and how it differs from the table's."""
    faulty = []
    if "Traceback" in text or "looks like a bug" in text:
        faulty.append("a traceback")
    if text.startswith("error:") and len(text.splitlines()) > 6:
        faulty.append(f"{len(text.splitlines())} lines")
    if code != expected.code:
        faulty.append(f"code {code}, was {expected.code}")
    current, before = (re.sub(r"\s+", " ", value)[:LONGEST] for value in (text, expected.answer))
    if difflib.SequenceMatcher(None, current, before, autojunk=False).ratio() < SIMILAR:
        faulty.append(f"another answer: {current!r}, was {before!r}")
    return faulty


def numbers(text: str) -> set[int]:
    """The numbers of ``1-40,213``."""
    ranges = (piece.partition("-") for piece in text.split(","))
    return {number for low, _, high in ranges for number in range(int(low), int(high or low) + 1)}


def main() -> int:
    """Exit code 1 if an answer is wrong or another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder; one that this program has prepared is used again")
    parser.add_argument("--only", type=numbers, help="these mistakes alone")
    parser.add_argument("--write", action="store_true", help="write the answers into the table")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "g6").exists():
        code, _, err = run(f'prepare "{PREPARE}"', options.folder)
        if code:
            raise SystemExit(f"the files cannot be made: {err}")
    wrong, today = 0, []
    for mistake in read_table():
        if options.only is None or mistake.number in options.only:
            code, out, err = run(mistake.command, options.folder)
            text = answer(out, err)
            for fault in faults(code, text, mistake):
                wrong += 1
                print(f"{mistake.number}: {mistake.command}\n    {fault}", flush=True)
            mistake = replace(mistake, code=code, answer=re.sub(r"\s+", " ", text)[:LONGEST])
        today.append(mistake)
    if options.write:
        write_table(today)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
