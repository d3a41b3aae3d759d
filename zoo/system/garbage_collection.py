"""Keep Python's garbage collector from walking half a million objects that live until the end.

It walks all of them again and again while torch and Lightning are imported, one or two seconds of start-up, and once
more in the middle of training, a pause of a third of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000  # new objects between two collections; Python's own choice is 700

_paused = False
_usual_thresholds: tuple[int, int, int] | None = None


def collect_seldom() -> None:
    """Collect after many more objects than usual, until ``resume_collection`` is called."""
    global _usual_thresholds
    if _usual_thresholds is None:
        _usual_thresholds = gc.get_threshold()
        gc.set_threshold(max(SELDOM, _usual_thresholds[0]), *_usual_thresholds[1:])


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect nothing inside until ``resume_collection`` is called; afterwards everything is as it was before."""
    global _paused
    if _paused or not gc.isenabled():
        yield
        return
    gc.disable()
    _paused = True
    try:
        yield
    finally:
        _paused = False
        gc.unfreeze()
        gc.enable()


def resume_collection() -> None:
    """Collect as usual from here on, and look only at what is made from now on, in ``pause_collection``."""
    global _usual_thresholds
    if _paused:
        if _usual_thresholds is not None:
            gc.set_threshold(*_usual_thresholds)
            _usual_thresholds = None
        gc.freeze()
        gc.enable()
