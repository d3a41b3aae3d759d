"""Keep Python's collector of cycles away from half a million objects that will never be garbage.

It walks all of them again and again while torch and Lightning are imported, a second of start-up, and once more in the
middle of training, a pause of a third of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_resting = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing inside until ``settle`` is called; afterwards everything is as it was before."""
    global _resting
    if _resting or not gc.isenabled():
        yield
        return
    gc.disable()
    _resting = True
    try:
        yield
    finally:
        _resting = False
        gc.unfreeze()
        gc.enable()


def settle() -> None:
    """Collect from here on, and look only at what is made from now on; nothing outside of ``uncollected``."""
    if _resting:
        gc.freeze()
        gc.enable()
