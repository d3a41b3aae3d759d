"""Digests by which files of a comparison are told from those that were changed by hand or belong to other runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.compare.run_records import RunRecord

KEY, LENGTH = "digest", 16
# what a run has reached: equal for a run that was read, copied or measured again, another for one that was made again
FACTS = ("recipe", "seed", "goals", "steps", "tokens", "validations", "best", "last", "finished", "outcome")


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


def run_digest(run: RunRecord) -> str:
    """The digest of what a run has reached; empty where it ended without a result by no fault of its variant.

    Such a run may be made again without a word: nobody has seen a figure of it.
    """
    if run.outcome.get("state") in ("crashed", "out of memory") and not run.finished:
        return ""
    return content_digest({name: getattr(run, name) for name in FACTS})
