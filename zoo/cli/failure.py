"""Turn what went wrong into a few lines on standard error and an exit code."""

from __future__ import annotations

import errno
import select
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from zoo import atomic
from zoo.errors import StorageError, UsageError, ZooError

LINES = 4


def report(error: BaseException, debug: bool = False) -> int:
    """Print what a person can act on, and return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, ZooError):
        from zoo.cli.folder import first_rank

        if debug:
            traceback.print_exception(error)
        if not getattr(error, "everywhere", False) or first_rank():
            say(str(error))
        return _code(error)
    if fault := atomic.storage_fault(error):
        if debug:
            traceback.print_exception(error)
        say(f"a file cannot be read or written: {atomic.reason(fault)}")
        return StorageError.code
    traceback.print_exception(error)
    say("this looks like a bug in zoo or in a part, not in your command. Please report it with the traceback above.")
    return 1


def _code(error: ZooError) -> int:
    """Its exit code; that of a disk where a disk is what made a command impossible."""
    if not isinstance(error, UsageError):
        return error.code
    fault = atomic.storage_fault(error) or _refusal(error)
    return StorageError.code if fault and fault.errno in {*atomic.STORAGE, errno.EINVAL} else error.code


def _refusal(error: BaseException | None) -> OSError | None:
    """What a system answered, of which an error is the translation."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error


def unread() -> bool:
    """Whether nobody reads what this program prints any more: a pipe may break between processes too."""
    if not hasattr(select, "poll"):
        return True
    streams = select.poll()
    for handle in (1, 2):
        streams.register(handle, 0)
    return any(event & select.POLLERR for _, event in streams.poll(0))


def say(text: str) -> None:
    """Print an error, at most four lines of it."""
    lines = text.strip().splitlines() or ["unknown"]
    print("error: " + "\n".join(line[:600] for line in lines[:LINES]), file=sys.stderr)


@contextmanager
def blamed() -> Iterator[None]:
    """While things are built: what a part refuses by itself is about its options; anything deeper is a bug."""
    try:
        yield
    except Exception as error:
        raise _about_options(root(error)) from None


def root(error: BaseException) -> BaseException:
    """What a part raised, below what jsonargparse wrapped around it."""
    while not isinstance(error, ZooError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _about_options(error: BaseException) -> BaseException:
    """A UsageError where the options are to blame, the error itself elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ZooError) or not frames:
        return error
    if isinstance(error, (ValueError, TypeError)) and frames[-1].name in ("__init__", "__post_init__"):
        return UsageError(str(error))
    if type(error).__name__ == "MisconfigurationException":
        return UsageError(" ".join(str(error).split()))
    torch_says = isinstance(error, (ValueError, RuntimeError)) and "site-packages" in frames[-1].filename
    if torch_says or isinstance(error, ArithmeticError):  # such as a negative width, or a division by zero heads
        return UsageError(f"cannot be built with these options: {error}")
    return error
