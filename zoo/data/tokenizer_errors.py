"""Calls into the Rust library `tokenizers`: turn its panics and errors for bad files and texts into UsageError."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from zoo.errors import UsageError


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust gave up: its exception derives from none that Python code expects."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


@contextlib.contextmanager
def native_call(source: str, texts: Any = (), silent: bool = False) -> Iterator[None]:
    """While the library reads the tokenizer of ``source``, or ``texts`` with it.

    ``silent`` keeps what the library prints when it gives up, a report of its own failure, off standard error.
    Raises UsageError where a text is not Unicode, where it has no tokens, or where the library gives up.
    """
    with _hold_errors() if silent else contextlib.nullcontext():
        try:
            yield
        except (TypeError, UnicodeEncodeError) as error:
            refuse_surrogates(texts, error)
            raise
        except BaseException as error:
            if texts and type(error) is Exception:  # the library's own, as for words without a token
                raise UsageError(
                    f"{source or 'the tokenizer'} has no token for a part of the text, nor for what is unknown: {error}"
                ) from None
            if not is_panic(error):
                raise
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"{source or 'a tokenizer'} cannot be used: the library 'tokenizers' gave up ({reason}).\n"
                "One of its patterns cannot be matched: take a tokenizer.json without it."
            ) from None


def refuse_surrogates(texts: Any, error: Exception | None = None) -> None:
    """Raise UsageError that names the first half of a character in a text or in texts."""
    for text in [texts] if isinstance(texts, str) else texts:
        for place, letter in enumerate(text):
            if "\ud800" <= letter <= "\udfff":
                around = ascii(text[max(0, place - 20) : place + 20])[1:-1]
                raise UsageError(
                    f"the text holds U+{ord(letter):04X} at index {place}, which is half a character (…{around}…).\n"
                    "It was not UTF-8 where it came from: decode it with errors='replace', or convert the source."
                ) from error


@contextlib.contextmanager
def _hold_errors() -> Iterator[None]:
    """Collect standard error of the whole process; what was written is passed on, unless an exception ends the block.

    The library prints from Rust, so that Python's stream alone would not hold it back.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    try:
        error_output = os.dup(2)
    except OSError:  # there is none
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except UsageError:
            file.truncate(0)
            raise
        finally:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            os.dup2(error_output, 2)
            os.close(error_output)
            file.seek(0)
            if output := file.read():
                with contextlib.suppress(OSError):
                    os.write(2, output)
