"""Silence warnings that a user of a default run cannot act on, each with the reason; `--debug` shows them all."""

from __future__ import annotations

import logging
import os
import warnings

# loggers that announce hardware, seeds and, as "Tip", products on every start
LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning_utilities", "pytorch_lightning", "lightning")
PROFILER_LOGGER = "lightning.pytorch.profilers"  # the report of a profiler, which only a configuration switches on

MESSAGES = (
    r".*does not have many workers which may be a bottleneck.*",  # our data sets are in memory; workers would be slower
    r".*`training_step` returned `None`.*",  # a skipped step is reported by zoo itself
    r".*Checkpoint directory .* exists and is not empty.*",  # --resume continues in its own folder on purpose
    r".*The number of training batches .* is smaller than the logging interval.*",  # zoo logs by itself
    r".*Experiment logs directory .* exists and is not empty.*",  # the same, from the logger
    r".*You're resuming from a checkpoint that ended before the epoch ended.*",  # zoo's loaders resume inside an epoch
    r".*GPU available but not used.*",  # accelerator=cpu is configured
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",  # lightning 2.6 against torch 2.15
    r".*The dirpath has changed from.*",  # evaluating a run writes nothing into its folder, on purpose
    r".*You called `self.log\(.*have no logger configured.*",  # evaluation prints its figures and keeps no log
    r".*Be aware that when using `ckpt_path`.*",  # callbacks of training are not needed to evaluate
    r".*could not find the monitored key in the returned metrics.*",  # a run shorter than its first validation
    r".*No device id is provided via `init_process_group`.*",  # lightning's own call
    r".*torch.distributed.nn.functional.all_gather is deprecated.*",  # lightning 2.6 against torch 2.15
    r".*It is recommended to use `self.log\('.*sync_dist.*",  # every process computes the same figure, on purpose
    r".*The `srun` command is available on your system but is not used.*",  # a run of one process needs no srun
    r".*Encountered `nan` values in tensor.*",  # the figures are nan then, and the run says so
    r".*instantiate_classes.* was deprecated.*",  # lightning 2.6 calls jsonargparse's old name
)


def filter_warnings(debug: bool = False) -> None:
    """Set log levels and warning filters for a run: once before Lightning is imported, once after it set its own."""
    if debug:
        return
    # lightning 2.6 calls functions that jsonargparse 4.53 calls deprecated; only Lightning can change that
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(PROFILER_LOGGER).setLevel(logging.INFO)
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message=message)
