"""Errors that a user can act on. The command line prints their message without a traceback and exits with ``code``."""

import traceback
from types import FrameType
from typing import Self


class ZooError(Exception):
    """The base class. Messages say what is wrong, where, and what would be right, in at most four lines."""

    code = 1  # the run failed
    everywhere = False  # whether every process of the job raises it: then only the first one prints it

    def reworded(self, message: str) -> Self:
        """The same error with another message, and with what it knows."""
        error = type(self)(message)
        error.__dict__.update(self.__dict__)
        return error


class UsageError(ZooError, ValueError):
    """The command, the recipe or the data are invalid."""

    code = 2


class PartError(UsageError, LookupError):
    """A part is unknown or ambiguous."""


class AmbiguousPartError(PartError):
    """Several packages register the name of a part."""


class PluginError(ZooError):
    """A part exists, but its package is broken or built for another version of zoo."""

    code = 3


class NonFiniteError(ZooError):
    """A loss, a gradient or a weight became infinite or NaN."""

    code = 4


class ImpreciseError(ZooError):
    """A part computes something else than its formula, by more than rounding explains."""

    code = 4


class CheckpointError(ZooError):
    """A checkpoint is damaged, incomplete, or of another model."""

    code = 5


class StorageError(ZooError):
    """A necessary file could not be written: the disk is full, or fails."""

    code = 5


def root_cause(error: BaseException) -> BaseException:
    """The original exception of a part, without the exceptions that jsonargparse wrapped around it.

    Where an option may be an object or a list, jsonargparse names what its first member says, and not a constructor.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    members = frames[-1].f_locals.get("exceptions", ()) if frames and _of_jsonargparse(frames[-1]) else ()
    causes = [root_cause(member) for member in members if isinstance(member, Exception)]
    for cause in causes:
        if not any(_of_jsonargparse(frame) for frame, _ in [*traceback.walk_tb(cause.__traceback__)][-1:]):
            return cause
    if isinstance(error, ZooError) or error.__cause__ in (None, error):  # `raise error from error`
        return error
    return root_cause(error.__cause__)


def _of_jsonargparse(frame: FrameType) -> bool:
    """Whether a function of jsonargparse runs in a frame."""
    return str(frame.f_globals.get("__name__")).startswith("jsonargparse.")
