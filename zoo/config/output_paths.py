"""Where a recipe may write: below the run's folder or the working folder, never where its author likes."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from zoo.config.layers import where
from zoo.errors import UsageError

# the options of Lightning's classes that make a part of a file's name
PLACES = frozenset(
    "default_root_dir dirpath exclude_batches_path filename filename_suffix log_dir name prefix save_dir sub_dir "
    "version".split()
)


def check_place(key: str, value: object, origin: str) -> None:
    """Raise UsageError where a recipe names a place to write that lies elsewhere; a command line may name any."""
    if not key.startswith("trainer.") or key.rpartition(".")[2] not in PLACES or not isinstance(value, str):
        return
    plain = value.replace("\\", "/")
    pure = PurePosixPath(plain)
    if pure.is_absolute() or ".." in pure.parts or plain.startswith("~") or re.match(r"\w+:", plain) or "\0" in plain:
        raise UsageError(
            f"{key!r} is {value!r:.80}: a recipe may only write below the folder it is run in.\n"
            f"If you want it there, say so on the command line, or trust the recipe: --trust{where(origin)}"
        )


def paths_from_file(origin: str) -> bool:
    """Whether a value was written in a file and not on the command line."""
    return not origin.startswith("-")
