"""The digest of what a run has reached, by which one that was made again is told from one that was read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.io.content_digests import KEY, check_digest, content_digest, with_digest

if TYPE_CHECKING:
    from zoo.compare.run_records import RunRecord

__all__ = ["KEY", "check_digest", "content_digest", "run_digest", "with_digest"]
# what a run has reached: equal for a run that was read, copied or measured again, another for one that was made again
FACTS = ("recipe", "seed", "goals", "steps", "tokens", "validations", "best", "last", "finished", "outcome")


def run_digest(run: RunRecord) -> str:
    """The digest of what a run has reached; empty where it ended without a result by no fault of its variant.

    Such a run may be made again without a word: nobody has seen a figure of it.
    """
    if run.outcome.get("state") in ("crashed", "out of memory") and not run.finished:
        return ""
    return content_digest({name: getattr(run, name) for name in FACTS})
