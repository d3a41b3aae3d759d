"""`zoo prepare`: many text files to a token file, in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.command_line import ParsedOptions
from zoo.console import format_bytes
from zoo.data.table_files import split_columns
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.system import process_exit
from zoo_scale import token_file
from zoo_scale.document_files import DocumentFiles, Format
from zoo_scale.document_paths import stream_splits


def prepare(options: ParsedOptions) -> int:
    """Write a token file, or go on with it, and print its size."""
    folder, *paths = options.words
    if options.get("tokenizer") is None:
        raise UsageError("the tokenizer is missing: --tokenizer RUN|FILE, a run's folder or a tokenizer.json")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = tokenize(
        Path(folder), paths, Path(options.get("tokenizer")), options.get("val"), options.get("processes") or cores
    )
    print(f"{folder}: {counts['train']:,} tokens train, {counts['val']:,} validate")
    return 0


def tokenize(folder: Path, paths: list[str], tokenizer_path: Path, val: float, processes: int = 1) -> dict[str, int]:
    """Write the tokens of text files into a token file, leaving out the shards that it has; the tokens of each split.

    Raises UsageError for files that cannot be read, and where the folder holds the tokens of others.
    """
    path, columns = split_columns(paths)
    form = Format(field=next(iter(columns), "text"), delimited=bool(columns))
    folder = folder.resolve()
    texts = stream_splits(path, form.delimited)["train"]
    if (folder / token_file.HEADER).exists():  # the token file may lie within the folder of its texts
        texts = [text for text in texts if not text.resolve().is_relative_to(folder)]
    files = DocumentFiles(texts, form)
    tokenizer = Tokenizer.of_run(tokenizer_path)
    tokenizer.end_of_document()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{folder} is being written by another process. Wait for it, or choose another one.") from None
    with lock:
        if token_file.begin(folder, token_file.describe(files, tokenizer, val), tokenizer):
            counts = {split: len(tokens) for split, tokens in token_file.open_tokens(folder).splits.items()}
        else:
            _write_shards(folder, files, tokenizer_path, val, processes)
            counts = token_file.complete(folder)
    for split, count in counts.items():
        if count < 2:
            raise UsageError(
                f"{folder}: the {split} split has {count} tokens: too few of the documents fall into it.\n"
                "Prepare another folder with another --val, or more files."
            )
    return counts


def _write_shards(folder: Path, files: DocumentFiles, tokenizer_path: Path, val: float, processes: int) -> None:
    """Write the shards that are missing, the largest files first, so that no process is left alone with one."""
    sizes = {shard: size for shard, (size, _) in enumerate(files.stamps)}
    missing = [shard for shard in sizes if not token_file.array_path(folder, shard, "train").exists()]
    missing.sort(key=lambda shard: -sizes[shard])
    write = partial(_write_shard, folder, files, tokenizer_path, val)
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, redirect_stdout=False) as bar:
        total = sum(sizes.values())
        task = bar.add_task("", total=total, completed=total - sum(sizes[shard] for shard in missing))
        for count, shard in enumerate(_each(write, missing, processes), len(sizes) - len(missing) + 1):
            text = f"{count:,} of {len(sizes):,} files · {format_bytes(total)}"
            bar.update(task, advance=sizes[shard], description=text)


def _each(write: partial[int], shards: list[int], processes: int) -> Iterator[int]:
    """The shards in the order in which they are written."""
    if min(processes, len(shards)) < 2:
        yield from map(write, shards)
        return
    # no fork: the tokenizer's threads would not be in the copy
    context = multiprocessing.get_context("spawn")
    follow = partial(process_exit.follow_parent, os.getpid())
    with ProcessPoolExecutor(min(processes, len(shards)), context, initializer=follow) as pool:
        try:
            for future in as_completed([pool.submit(write, shard) for shard in shards]):
                yield future.result()
        except BrokenProcessPool:
            raise UsageError(
                "a process that tokenizes was ended, as for want of memory. Nothing is lost: start the same command "
                "again, perhaps with fewer --processes."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _write_shard(folder: Path, files: DocumentFiles, tokenizer_path: Path, val: float, shard: int) -> int:
    token_file.write_shard(folder, shard, files, Tokenizer.of_run(tokenizer_path), val)
    return shard
