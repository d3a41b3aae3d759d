"""Comparisons: design, runs, statistics, verdicts and report; callable as `zoo.compare(recipe, {option: values})`."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package, which is called from Python as the command is from a terminal."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from zoo.compare.command import compare

        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
