"""Errors a user can act on. The command line prints their text, without a traceback, and exits with their code."""


class ZooError(Exception):
    """What is wrong, where, and what would be right, in at most four lines."""

    code = 1  # the run failed


class UsageError(ZooError, ValueError):
    """The command, the recipe or the data cannot work as they are."""

    code = 2


class PartError(UsageError, LookupError):
    """A part is unknown or ambiguous."""


class PluginError(ZooError):
    """A named part exists but its package is broken."""

    code = 3


class NonFiniteError(ZooError):
    """A loss, a gradient or a weight became infinite or not a number."""

    code = 4
    everywhere = False  # raised in each process of the job, for the same reason: the first one says it


class CheckpointError(ZooError):
    """A checkpoint is damaged, incomplete, or belongs to something else."""

    code = 5


class StorageError(ZooError):
    """A file that the command cannot do without could not be written: the disk is full, or fails."""

    code = 5
