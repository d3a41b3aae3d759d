"""Digests inside of JSON files, by which those that were changed by hand are noticed."""

from __future__ import annotations

import hashlib
import json
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
