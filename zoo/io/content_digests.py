"""Values for JSON files, and digests inside of them, by which those that were changed by hand are noticed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

KEY, LENGTH = "digest", 16


def content_digest(content: Mapping[str, Any], previous: str = "") -> str:
    """The digest of a JSON object without its own one; ``previous`` is that of the object before it in a journal."""
    text = json.dumps({name: value for name, value in content.items() if name != KEY}, sort_keys=True)
    return hashlib.sha256((previous + text).encode()).hexdigest()[:LENGTH]


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its digest."""
    normal = json.loads(json.dumps(content))  # tuples and numbers as keys are other values when they are read again
    return {**normal, KEY: content_digest(normal)}


def check_digest(content: Mapping[str, Any]) -> None:
    """Raise ValueError unless a JSON object has its digest."""
    if content.get(KEY) != content_digest(content):
        raise ValueError("it was changed after zoo wrote it")


def json_value(value: object) -> Any:
    """A value for strict JSON: null for numbers that are not finite, text for other objects."""
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
