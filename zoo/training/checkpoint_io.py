"""Write checkpoints atomically, each with its manifest, and verify them before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from zoo.errors import CheckpointError
from zoo.inference import checkpoint_manifest, weight_files
from zoo.inference.checkpoint_manifest import SHARDS
from zoo.io import atomic_files


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own writes beside TMPDIR and moves: across file systems that is a copy, which a kill cuts short."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts  # facts of the run, in every manifest
        self.digests: dict[Path, str] = {}  # digests of the files that this process has written
        self.empty: weight_files.Empty = torch.empty  # for what tensors in shards are read into

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint and its manifest. Raises OSError where the disk refuses one of them."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.open_draft(place) as (draft, file):
            torch.save(checkpoint, cast(IO[bytes], file))
        where = {
            "step": checkpoint["global_step"], "save": checkpoint.get("saves", 0), "epoch": checkpoint["epoch"],
            "logs": checkpoint.get("logs"),
            **({SHARDS: checkpoint[SHARDS]} if SHARDS in checkpoint else {}),
        }  # fmt: skip
        digest = file.sha256.hexdigest()
        try:
            checkpoint_manifest.write_manifest(place.parent, digest, file.bytes, {**where, **self.facts})
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        atomic_files.publish_draft(draft, place)
        self.digests[place] = digest

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        """The content of a file on this machine, verified first. Raises CheckpointError."""
        if "://" in str(path):
            raise CheckpointError(
                f"{path} is no file on this machine: copy it here first, from a source that you trust."
            )
        checkpoint_manifest.verify(Path(path))
        return weight_files.read_checkpoint(Path(path), map_location, self.empty)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file, if it is there."""
        Path(path).unlink(missing_ok=True)


class StateCollector(TorchCheckpointIO):
    """Takes the state of a run from Lightning instead of writing it."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep the content; ``path`` is not used."""
        self.content = checkpoint


def collect_state(trainer: Trainer, divided: bool = False) -> dict[str, Any]:
    """The content of a checkpoint of now; empty in all processes but the first, unless each has its share of tensors.

    Every process must call it. Only some strategies can give ``divided`` tensors.
    """
    writer, collector = trainer.strategy.checkpoint_io, StateCollector()
    trainer.strategy.checkpoint_io = collector
    try:
        with trainer.strategy.divided_state() if divided else nullcontext():  # type: ignore[attr-defined]
            trainer.save_checkpoint("", weights_only=False)
    finally:
        trainer.strategy.checkpoint_io = writer
    return collector.content
