"""`zoo prepare` against `encode_batch` of tokenizers: same texts, as many threads as processes, starts in both."""

from __future__ import annotations

import os
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path

from bench.study import PATIENCE, Options, Table, command_seconds

CORES, FILES, VOCABULARY = 2, 16, 8192
FUNCTIONS = ("encode_batch", "encode_batch_fast")  # with offsets, and without, as zoo calls it
ENCODE = """
import pathlib, sys, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(sys.argv[2]).iterdir())]
getattr(tokenizer, sys.argv[3])(texts, add_special_tokens=False)
"""


def study(options: Options) -> list[Table]:
    """Medians over ``turns``, each a turn of the library beside a turn of `zoo prepare`; processor time with "cpu"."""
    os.environ["RAYON_NUM_THREADS"] = str(CORES)  # of tokenizers
    with tempfile.TemporaryDirectory() as folder:
        size = write_sources(Path(folder))
        library = [[sys.executable, "-c", ENCODE, "tokenizer.json", "texts", function] for function in FUNCTIONS]
        turns = []
        for turn in range(options.turns):
            prepare = [sys.executable, "-m", "zoo", "prepare", f"tokens{turn}", "texts", "--tokenizer",
                       "tokenizer.json", "--processes", str(CORES), "--val", "0.1"]  # fmt: skip
            seconds = [
                command_seconds(command, folder, options.clock, PATIENCE, check=True) for command in (*library, prepare)
            ]
            turns.append(seconds)
    *encode, zoo = (statistics.median(column) for column in zip(*turns, strict=True))
    table = Table(f"{size / 1e6:.0f} MB of Python's sources in {FILES} files, {CORES} cores", ["what", "s", "MB/s"])
    names = (*FUNCTIONS, "zoo prepare")
    table.rows += [[name, seconds, size / 1e6 / seconds] for name, seconds in zip(names, (*encode, zoo), strict=True)]
    table.notes.append(f"`zoo prepare` has {min(encode) / zoo:.2f} of the library's greatest speed (goal 0.8).")
    return [table]


def write_sources(folder: Path) -> int:
    """Write the standard library's sources as files of equal length, and a tokenizer learnt from a sixteenth of them.

    The result is their size in bytes.
    """
    from zoo.data.tokenizer import Tokenizer

    sources = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in sources.rglob("*.py") if "site-packages" not in path.parts)
    whole = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
    length = -(-len(whole) // FILES)
    texts = [whole[start : start + length] for start in range(0, len(whole), length)]
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    Tokenizer.bpe(texts[:1], VOCABULARY).save(folder / "tokenizer.json")
    return len(whole.encode())
