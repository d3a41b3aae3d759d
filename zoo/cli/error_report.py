"""Turn an exception into a few lines on standard error and an exit code."""

from __future__ import annotations

import errno
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.cli.environment_errors import explain_error
from zoo.errors import StorageError, UsageError, ZooError, root_cause
from zoo.io import atomic_files
from zoo.system.stop_signals import Interrupted, exit_code

LINES = 4
TRAINER_ERRORS = (ValueError, TypeError)  # that Lightning raises about its options


def signal_of(error: BaseException | None) -> int:
    """The signal behind a KeyboardInterrupt."""
    return error.signum if isinstance(error, Interrupted) else signal.SIGINT


def signal_line(error: BaseException | None) -> str:
    """The message of a command that a signal ended without saving anything."""
    number = signal_of(error)
    return "interrupted" if number == signal.SIGINT else f"interrupted by {signal.Signals(number).name}"


def report_error(error: BaseException, debug: bool = False) -> int:
    """Print an error as a message that helps the user, and return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print(signal_line(error), file=sys.stderr)
        return exit_code(signal_of(error))
    if isinstance(error, ZooError):
        from zoo.config.run_folder import first_rank

        if debug:
            traceback.print_exception(error)
        if not getattr(error, "everywhere", False) or first_rank():
            print_error(str(error))
        return _code(error)
    fault, answer = atomic_files.storage_fault(error), explain_error(error)
    if fault and (answer is None or fault.errno in {*atomic_files.STORAGE, errno.EINVAL}):
        answer = StorageError(f"a file cannot be read or written: {atomic_files.reason(fault)}")
    if answer is not None:
        if debug:
            traceback.print_exception(error)
        print_error(str(answer))
        return answer.code
    traceback.print_exception(error)
    print_error(
        "this looks like a bug in zoo or in a part, not in your command. Please report it with the traceback above."
    )
    return 1


def _code(error: ZooError) -> int:
    """The exit code of an error: StorageError's where a fault of the disk is its cause."""
    if not isinstance(error, UsageError):
        return error.code
    fault = atomic_files.storage_fault(error) or _os_error(error)
    return StorageError.code if fault and fault.errno in {*atomic_files.STORAGE, errno.EINVAL} else error.code


def _os_error(error: BaseException | None) -> OSError | None:
    """The OSError that an error was raised from, if any."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ if error.__cause__ is not error else None
    return error


def print_error(text: str) -> None:
    """Print an error, at most four lines of it."""
    lines = text.strip().splitlines() or ["unknown"]
    print("error: " + "\n".join(line[:600] for line in lines[:LINES]), file=sys.stderr)


@contextmanager
def blame_options() -> Iterator[None]:
    """While objects are built, raise errors about their options as UsageErrors; all others count as bugs."""
    try:
        yield
    except Exception as error:
        raise options_error(root_cause(error)) from None


def trainer_error(error: BaseException, options: Iterable[str] | None = None) -> UsageError | None:
    """A UsageError where Lightning itself refuses how the Trainer was set up; None for everything else.

    Only what Lightning raises on purpose counts and, where ``options`` are given, only what one of its callbacks
    raises or a message that names an option; without them the Trainer was being built.
    """
    error = root_cause(error)
    if missing := missing_package(error):
        return missing
    frames = traceback.extract_tb(error.__traceback__)
    kinds: tuple[type[Exception], ...] = (*TRAINER_ERRORS, *_misconfigured(), RuntimeError)
    if isinstance(error, ZooError) or not frames or not isinstance(error, kinds):
        return None
    pieces = Path(frames[-1].filename).parts
    on_purpose = {"lightning", "pytorch_lightning"} & {*pieces} and (frames[-1].line or "").startswith("raise")
    message = " ".join(str(error).split())
    of_set_up = options is None or "callbacks" in pieces
    if on_purpose and (of_set_up or {*re.findall(r"\w+", message)} & {*(options or ())}):
        return UsageError(f"the trainer cannot run like this: {message}")
    return None


def missing_package(error: BaseException) -> UsageError | None:
    """A UsageError where a class that the options name raises that its package is not installed; else None."""
    if not isinstance(error, ImportError) or getattr(error, "name", None):  # by its name Python itself reports one
        return None
    needed = re.search(r"pip install (?:-\S+ )*['\"`]?([\w.-]+[^\s'\"`]*)", str(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owner = type(frames[-1].f_locals["self"]).__name__ if frames and "self" in frames[-1].f_locals else "an option"
    if needed is None:
        return UsageError(f"{owner} cannot be used here: {' '.join(str(error).split())}")
    return UsageError(f"{owner} needs a package that is not installed. Install it: pip install '{needed[1]}'")


def _misconfigured() -> tuple[type[Exception], ...]:
    """Lightning's own exception class, if Lightning is imported: otherwise it cannot have been raised."""
    module = sys.modules.get("lightning.fabric.utilities.exceptions")
    return (module.MisconfigurationException,) if module else ()


def options_error(error: BaseException) -> BaseException:
    """A UsageError for an error that options caused, else the error itself."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ZooError) or not frames:
        return error
    if missing := missing_package(error):
        return missing
    if isinstance(error, (ValueError, TypeError)) and frames[-1].name in ("__init__", "__post_init__"):
        return UsageError(str(error))
    if type(error).__name__ == "MisconfigurationException":
        return UsageError(" ".join(str(error).split()))
    torch_says = isinstance(error, (ValueError, RuntimeError)) and "site-packages" in frames[-1].filename
    if torch_says or isinstance(error, ArithmeticError):  # such as a negative width, or a division by zero heads
        return UsageError(f"cannot be built with these options: {error}")
    return error
