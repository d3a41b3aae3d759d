"""Old names of what a task overrides, which work for one version more."""

from __future__ import annotations

import warnings

RENAMED = {
    "figures": "compute_metrics", "goals": "monitored_metrics", "blanks": "data_sizes", "tried": "in_matrix",
}  # fmt: skip


def alias_old_names(cls: type) -> None:
    """Give a class that defines an old name the new one, with a FutureWarning, and one that defines the new the old."""
    for old, new in RENAMED.items():
        if old in vars(cls):
            where = f"{cls.__module__}.{cls.__qualname__}"
            message = f"{where} overrides Task.{old}, which is named {new} now. The old name ends with zoo 0.3."
            warnings.warn(message, FutureWarning, stacklevel=3)
            if new not in vars(cls):
                setattr(cls, new, vars(cls)[old])
        elif new in vars(cls):
            setattr(cls, old, vars(cls)[new])
