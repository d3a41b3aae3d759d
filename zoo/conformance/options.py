"""Values of a part's options to test it with: from its signature, its type hints and its declarations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Literal

from zoo.config.signatures import members_of, parameters
from zoo.parts.ffn import FFN, MLP
from zoo.parts.norm import Norm, RMSNorm
from zoo.plugins.description import CLASS_PARAMETERS, PLACE_PARAMETERS
from zoo.registry import kind_of

DECLARED = "tried_options"  # class attribute: dictionaries of options, each tried as it stands
PARTS: dict[type, type] = {Norm: RMSNorm, FFN: MLP}  # what stands for a part that an option names


def candidates(part: type, fixed: dict[str, Any]) -> dict[str, list[Any]]:
    """For each option that is not fixed, values other than its default, the likeliest to be taken first.

    What a part declares in ``tried_options`` comes as dictionaries, under the names of the options in them.
    """
    by_option: dict[str, list[Any]] = {}
    skipped = CLASS_PARAMETERS.get(kind_of(part) or "", 0)
    types = {name: option.annotation for name, option in parameters(part, skipped).items()}  # as `zoo fit` reads them
    for name, parameter in list(inspect.signature(part).parameters.items())[skipped:]:
        if name in fixed or (skipped and name in PLACE_PARAMETERS) or parameter.default is parameter.empty:
            continue
        values = others(types.get(name, parameter.annotation), parameter.default)
        if values:
            by_option[name] = values
    for declared in getattr(part, DECLARED, ()):
        if not set(declared) & set(fixed):
            by_option.setdefault(", ".join(declared), []).append(dict(declared))
    return by_option


def others(annotation: Any, default: Any) -> list[Any]:
    """Values of a type other than the default."""
    values: list[Any] = []
    for member in members_of(annotation):
        if typing.get_origin(member) is Literal:
            values += list(typing.get_args(member))
        elif member is bool:
            values += [True, False]
        elif member is int:
            values += whole_numbers(default)
        elif member is float:
            values += [1.0] if default is None else [default / 2, default * 2] if default else [0.1]
        elif (result_type := made_by(member)) is not None:
            values += [PARTS[base] for base in PARTS if isinstance(result_type, type) and issubclass(base, result_type)]
    return [value for number, value in enumerate(values) if not same(value, default) and value not in values[:number]]


def whole_numbers(default: Any) -> list[int]:
    """Whole numbers near a default, and small ones: a tile or a window is met in a short sequence then."""
    if isinstance(default, bool) or not isinstance(default, int):
        return [1, 2, 3, 4, 6, 8]
    return [3, default + 1, max(1, default // 2), 2 * default, 2]


def same(value: Any, default: Any) -> bool:
    """Whether two values have the same type and are equal."""
    return type(value) is type(default) and value == default


def made_by(annotation: Any) -> Any:
    """What a ``Callable[..., X]`` or ``type[X]`` makes."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is type and arguments:
        return arguments[0]
    if origin is Callable or origin is typing.get_origin(Callable[[], int]):
        return arguments[-1] if arguments else None
    return None


def option_text(name: str, value: Any) -> str:
    """How an option and its value are written on the command line."""
    if isinstance(value, dict):
        return " ".join(option_text(key, item) for key, item in value.items())
    return f"--{name} {getattr(value, '__name__', value)}"
