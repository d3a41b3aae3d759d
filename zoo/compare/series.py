"""An error budget over a series of comparisons: P(any false "better" or "worse" in all of them) <= ALPHA.

A search that tries a hundred variants one after another and keeps what is "better" at 0.05 keeps about three of a
hundred that change nothing. With ``--series FILE`` each variant may spend ALPHA / tries, and what a decided comparison
had passes to the next one (the online fallback procedure of Tian and Ramdas, 2021), which holds for tests that depend
on each other, as tries against one baseline with the same seeds do.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zoo.compare.statistics import ALPHA
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files, limits

FORMAT, TRIES = 1, 100


@dataclass(frozen=True)
class SeriesEntry:
    """One comparison of a series: its folder, its variants, what it may spend, and those that it decided."""

    comparison: str
    variants: tuple[str, ...]
    level: float
    decided: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """The comparisons of a series of ``tries`` variants, in their order."""

    tries: int = TRIES
    entries: tuple[SeriesEntry, ...] = ()

    @property
    def used(self) -> int:
        """The number of variants that were tried."""
        return sum(len(entry.variants) for entry in self.entries)

    def entry(self, comparison: str, variants: Sequence[str]) -> SeriesEntry:
        """The entry of a comparison with what it may spend; that of before, if it has the same variants.

        Raises UsageError if the series has not so many tries left.
        """
        for entry in self.entries:
            if entry.comparison == comparison and set(entry.variants) == set(variants):
                return entry
        remaining = self.tries - self.used
        if len(variants) > remaining:
            raise UsageError(
                f"the series has {remaining} of its {self.tries} tries left, and this comparison has {len(variants)} "
                "variants.\nBegin another series, with a baseline and seeds that this one has not seen: --series FILE"
            )
        previous = self.entries[-1] if self.entries else None
        whole = previous is not None and set(previous.decided) == set(previous.variants)
        level = ALPHA * len(variants) / self.tries + (previous.level if previous is not None and whole else 0.0)
        return SeriesEntry(comparison, tuple(variants), level)

    def with_entry(self, entry: SeriesEntry, decided: Sequence[str]) -> Series:
        """With an entry added or changed to what it has decided by now."""
        new = replace(entry, decided=tuple(decided))
        same = [index for index, old in enumerate(self.entries)
                if (old.comparison, set(old.variants)) == (entry.comparison, set(entry.variants))]  # fmt: skip
        if not same:
            return replace(self, entries=(*self.entries, new))
        return replace(self, entries=(*self.entries[: same[0]], new, *self.entries[same[0] + 1 :]))


def load_series(path: Path, tries: int | None = None) -> Series:
    """The series in a file; a new one of ``tries`` (TRIES) variants if it does not exist.

    Raises UsageError for a damaged file, and for another number of tries than it was begun with.
    """
    if not path.exists():
        return Series(tries or TRIES)
    try:
        content: Any = limits.read_json(path)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        entries = tuple(
            SeriesEntry(
                str(entry["comparison"]), _names(entry["variants"]), float(entry["level"]), _names(entry["decided"])
            )
            for entry in content["entries"]
        )
        series = Series(int(content["tries"]), entries)
        if not 0 <= series.used <= series.tries or not all(0 < entry.level <= ALPHA * (1 + 1e-9) for entry in entries):
            raise ValueError(f"{series.used} of {series.tries} tries, levels {[entry.level for entry in entries]}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"--series {path} is damaged, or no series of zoo: {str(error)[:80] or type(error).__name__}"
        ) from error
    if tries is not None and tries != series.tries:
        raise UsageError(f"--series {path} was begun with {series.tries} tries, which --tries {tries} cannot change.")
    return series


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of variants. Raises ValueError for anything else."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names!r:.40} are no names of variants")
    return tuple(names)


def check_series_file(path: Path) -> None:
    """Raise UsageError for a folder, a device, and a path that no file can have, and StorageError where none can be
    written. Before anything is locked: a lock in such a place would be waited for.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"--series {path} is no file. Name one that zoo writes, such as --series tries.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}"):  # its name, too, must fit
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"--series {path}: {path.parent} is no folder.") from error
    except ValueError as error:
        raise UsageError(f"--series {str(path)!r}: {error}.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"--series {str(path)[:60]}…: the name is too long.") from error
        raise StorageError(f"--series {path} cannot be written: {error.strerror or error}.") from error


def save_series(path: Path, series: Series) -> None:
    """Write a series. Raises UsageError if its file cannot be written."""
    content = {"format": FORMAT, "alpha": ALPHA, "tries": series.tries, "entries": list(map(asdict, series.entries))}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, content, end="\n")
    except OSError as error:
        raise UsageError(f"cannot write --series {path}: {error.strerror or error}") from error
