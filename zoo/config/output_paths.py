"""Restrict the paths that a recipe may write to: only below the run folder or the working folder."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from zoo.config.layers import where
from zoo.errors import UsageError

# options of Lightning's classes that become part of a file's path
PATH_OPTIONS = frozenset(
    "default_root_dir dirpath exclude_batches_path filename filename_suffix log_dir name prefix save_dir sub_dir "
    "version".split()
)


def check_output_path(key: str, value: object, origin: str) -> None:
    """Raise UsageError if a recipe's output path is outside the working folder; the command line may name any path."""
    if not key.startswith("trainer.") or key.rpartition(".")[2] not in PATH_OPTIONS or not isinstance(value, str):
        return
    slashed = value.replace("\\", "/")
    pure = PurePosixPath(slashed)
    if (
        pure.is_absolute()
        or ".." in pure.parts
        or slashed.startswith("~")
        or re.match(r"\w+:", slashed)
        or "\0" in slashed
    ):
        raise UsageError(
            f"{key!r} is {value!r:.80}: a recipe may only write below the working folder.\n"
            f"To write there, set it on the command line, or trust the recipe: --trust{where(origin)}"
        )


def is_from_file(origin: str) -> bool:
    """Whether a value comes from a file and not from the command line."""
    return not origin.startswith("-")
