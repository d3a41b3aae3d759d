"""Writes of a run's records: a failing disk causes a warning, and training continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zoo.io import atomic_files


class BestEffort:
    """Warns when writes of ``what`` begin to fail, and when they work again or the run ends.

    ``loss`` is the sentence for a file that stays incomplete, ``again`` the one for a file that is complete again.
    """

    def __init__(self, what: str, loss: str, again: str) -> None:
        self.what, self.loss, self.again = what, loss, again
        self.failures = 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Turn a storage error of the block into a warning. Raises every other error."""
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
        """Warn at the end of a run if writes still fail."""
        if self.failures:
            atomic_files.warn(f"{self.what} could not be written until the end: {self.loss}")
        self.failures = 0
