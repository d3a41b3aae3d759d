"""Keep Python's garbage collector from walking half a million objects that live until the end.

It walks all of them again and again while torch and Lightning are imported, one or two seconds of start-up, and once
more in the middle of training, a pause of a third of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


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
    if _paused:
        gc.freeze()
        gc.enable()
