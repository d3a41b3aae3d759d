"""Writes of what is only a record of a run: one that fails is a warning, and training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zoo.io import atomic_files


class BestEffort:
    """Warns of writes of ``what`` that a disk refuses: when it begins, and when it works again or the run ends.

    ``loss`` says what is missing while it fails, ``again`` what is true once it works.
    """

    def __init__(self, what: str, loss: str, again: str) -> None:
        self.what, self.loss, self.again = what, loss, again
        self.failures = 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Survive a disk that refuses what the block writes; any other error is raised."""
        try:
            yield
        except Exception as error:
            fault = atomic_files.storage_fault(error)
            if fault is None:
                raise
            self.failures += 1
            if self.failures == 1:
                atomic_files.warn(f"{self.what} cannot be written, and the run goes on: {atomic_files.reason(fault)}")
            return
        if self.failures:
            atomic_files.warn(f"{self.what} can be written again: {self.again}")
        self.failures = 0

    def end(self) -> None:
        """Say at the end what is missing."""
        if self.failures:
            atomic_files.warn(f"{self.what} could not be written until the end: {self.loss}")
        self.failures = 0
