"""fill, tag, embed: use a trained model of this package from the command line."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from zoo.cli import inference
from zoo.command_line import ParsedOptions
from zoo.console import printable
from zoo.errors import UsageError

# batches that are read before the first is computed, so that texts of like length come together; texts of a batch
WINDOW, BATCH = 16, 64


def fill(options: ParsedOptions) -> int:
    """`zoo fill`: texts with their blanks filled, or JSON."""
    inference.write_utf8()
    model = inference.load_trained(options)
    for text in options.get("text") or inference.stdin_lines():
        result = model.fill(text, **options.subset("top"))[0]
        if options.get("json"):
            blanks = [[guess._asdict() for guess in guesses] for guesses in result.guesses]
            inference.print_json({"text": text, "filled": result.text, "blanks": blanks})
        else:
            print(result.text.replace("\n", " "), flush=True)
    return 0


def tag(options: ParsedOptions) -> int:
    """`zoo tag`: a token and its class per line, an empty line after each text, or JSON."""
    inference.write_utf8()
    model = inference.load_trained(options)
    for text in options.get("text") or inference.stdin_lines():
        result = model.tag(text)[0]
        if options.get("json"):
            inference.print_json({"text": text, "tokens": [one._asdict() for one in result]})
        else:
            print("\n".join(f"{printable(one.text)}\t{printable(one.label)}" for one in result), end="\n\n", flush=True)
    return 0


def embed(options: ParsedOptions) -> int:
    """`zoo embed`: the numbers of a vector per line, JSON, or an array in a file."""
    inference.write_utf8()
    texts, out = _texts(options), options.get("out")  # what is wrong is refused before the model is loaded
    path = None if out is None else _array_file(out, options.get("force"))
    if path is not None and options.get("json"):
        raise UsageError("--out and --json exclude each other: vectors go into the file, or are printed.")
    model = inference.load_trained(options)
    import numpy as np

    settings = options.subset("prompt", "size", "batch_size")
    vectors = [model.embed([], **settings)]  # wrong settings are refused before a text is read
    window = 1 if texts is None and sys.stdin.isatty() else WINDOW * settings.get("batch_size", BATCH)
    lines = iter(inference.stdin_lines() if texts is None else texts)
    while some := list(itertools.islice(lines, window)):
        vectors.append(model.embed(some, **settings))
        if path is None:
            for text, vector in zip(some, vectors.pop(), strict=True):
                numbers = [f"{number:.9g}" for number in vector.tolist()]  # all digits of float32
                if options.get("json"):
                    inference.print_json({"text": text, "vector": [float(number) for number in numbers]})
                else:
                    print(" ".join(numbers), flush=True)
    if path is not None:
        from zoo.data.cache import write_array

        array = np.concatenate(vectors)
        write_array(path, array)
        print(f"{printable(str(path))}  {len(array):,} vectors of {array.shape[1]:,} numbers")
    return 0


def _texts(options: ParsedOptions) -> list[str] | None:
    """The texts that are given or stand in a file; None for the lines of standard input."""
    texts, files = options.get("text"), options.words[1:]
    if texts and files:
        raise UsageError(f"--text and the file {files[0]} exclude each other.")
    if not files:
        return texts or None
    from zoo.data.source_files import read_lines

    return read_lines(Path(files[0]).expanduser(), "embedding-tiny")


def _array_file(out: str, force: bool) -> Path:
    """The file for vectors. Raises UsageError where its name or its place is wrong, or where it exists."""
    path = Path(out)
    if path.suffix != ".npy":
        raise UsageError(f"--out {out}: an array for numpy has a name that ends in .npy.")
    if not path.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {path.parent}.")
    if path.exists() and not force:
        raise UsageError(f"{out} exists. To replace it: --force")
    return path
