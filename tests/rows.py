"""Checks of many rows as one test each: a thousand rows of a millisecond would cost pytest seconds as tests."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def words_of(*values: Any) -> str:
    """The values of a row, after each other."""
    return " ".join(map(str, values))


def try_each(rows: Iterable[Any], name: Callable[..., str] = words_of) -> Callable[[Test], Test]:
    """Make one test of a function of a row, which fails with every row that fails, by its name.

    The first parameters of the function are the values of a row, a tuple where it is several; the others are fixtures,
    of which all rows have the same. torch's random numbers begin anew for each row, as for each test.
    """
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]

    def decorate(function: Test) -> Test:
        assert rows, f"{function.__name__} has no rows"

        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            failures = []
            for row in rows:
                if "torch" in sys.modules:
                    sys.modules["torch"].manual_seed(0)
                try:
                    function(*row, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{name(*row)}: {type(error).__name__}: {error}")
            assert not failures, f"{len(failures)} of {len(rows)} rows fail:\n" + "\n".join(failures)

        parameters = list(inspect.signature(function).parameters.values())[len(rows[0]) :]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate
