"""Manifests of checkpoints: checksum, and the recipe, data, files, versions and plugins of the run.

A manifest is a JSON file in ``manifests/`` beside the checkpoint, named after the sha256 of the checkpoint's content.
It is written before the checkpoint gets its final name, so that a kill leaves no checkpoint without a manifest, and a
changed checkpoint has none. Does not import torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import CheckpointError
from zoo.io import atomic_files, limits

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
OWN = (LAST, PREVIOUS, BEST)  # the checkpoints of a run itself; callbacks may write others beside them
FOLDER, FORMAT = "manifests", 1
SHARDS = "shards"  # folder of folders with the tensors of checkpoints that several processes wrote, each its share
BLOCK = 1 << 20


class IntactCheckpoint(NamedTuple):
    """The newest intact checkpoint of a run, and why newer ones were skipped."""

    path: Path | None
    skipped: list[str]


def sha256(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, digest: str, length: int, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint that will be in ``folder``; ``length`` is in bytes, ``digest`` its sha256."""
    content = json.loads(json.dumps({"format": FORMAT, "sha256": digest, "bytes": length, **facts}, default=str))
    home = folder / FOLDER
    home.mkdir(exist_ok=True)
    text = json.dumps({**content, "seal": _seal(content)}, ensure_ascii=False, indent=1)
    atomic_files.write_bytes(home / f"{digest}.json", text.encode() + b"\n")


def prune(folder: Path, digests: set[str]) -> None:
    """Remove manifests and shards of checkpoints that no longer exist: those whose digest is not in ``digests``."""
    used = set()
    for path in (folder / FOLDER).glob("*.json"):
        if path.stem not in digests:
            path.unlink(missing_ok=True)
        elif manifest := read_manifest(path):
            used.add((manifest.get(SHARDS) or {}).get("folder"))
    for path in (folder / SHARDS).glob("*"):
        if path.name not in used:
            shutil.rmtree(path, ignore_errors=True)
    atomic_files.remove_drafts(folder / FOLDER)


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises CheckpointError if either is damaged.

    A checkpoint without a folder of manifests beside it is verified by its own checksums, and has an empty manifest.
    """
    home = path.parent / FOLDER
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path} holds weights alone. To train from them: --tune.start {path.parent}")
    try:
        if not home.is_dir():
            with zipfile.ZipFile(path) as file:
                broken = file.testzip()
            if broken:
                raise CheckpointError(f"{path} is damaged: the checksum of {broken} in it is wrong.")
            return {}
        digest = sha256(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged or cannot be read: {error}") from error
    path_of_manifest = home / f"{digest}.json"
    if not path_of_manifest.is_file():
        raise CheckpointError(f"{path} is damaged: no manifest in {home} describes its content.")
    manifest = read_manifest(path_of_manifest)
    if manifest is None or manifest.get("sha256") != digest:
        raise CheckpointError(f"{path_of_manifest}, the manifest of {path.name}, is damaged.")
    if SHARDS in manifest:
        check_shards(path, manifest[SHARDS])
    return manifest


def check_shards(path: Path, shards: Any) -> None:
    """Raise CheckpointError where a shard of a checkpoint is missing, or its digest is not that of `shard_folder`."""
    folder = shard_folder(path.parent, shards)
    for name, expected in shards["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            raise CheckpointError(f"{path} is damaged: its shard {folder / name} is missing or has changed.")


def shard_folder(folder: Path, shards: Any) -> Path:
    """Where the shards of a checkpoint in ``folder`` lie, {"folder": name, "files": {name: sha256}}.

    Raises CheckpointError for names that lead elsewhere.
    """
    files = shards.get("files") if isinstance(shards, dict) else None
    names: list[Any] = [shards.get("folder"), *files] if isinstance(files, dict) else [None]
    if not all(isinstance(name, str) and name not in ("", "..") and Path(name).name == name for name in names):
        raise CheckpointError(f"a checkpoint in {folder} names its shards in a way that zoo does not write: {names!r}.")
    return folder / SHARDS / names[0]


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The content of a manifest; None if it is damaged or was changed."""
    try:
        content: Any = limits.read_json(path)
        seal = content.pop("seal")
        return content if seal == _seal(content) else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None


def changed_files(manifest: Mapping[str, Any], home: Path) -> list[str]:
    """The names of files in a run folder whose content has changed since the checkpoint was written."""
    files = manifest.get("files", {})
    return [name for name, digest in files.items() if (home / name).is_file() and sha256(home / name) != digest]


def is_recorded(name: str, home: Path, folder: Path) -> bool:
    """Whether a file of a run folder is one that some checkpoint in ``folder`` was trained with, as its manifest says.

    A run that went on with accepted changes has another configuration than its older checkpoints.
    """
    digest = sha256(home / name)
    manifests = map(read_manifest, sorted((folder / FOLDER).glob("*.json")))
    return any(manifest is not None and manifest.get("files", {}).get(name) == digest for manifest in manifests)


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint below a folder, intact or not; reads no file."""
    return any(folder.rglob("*.ckpt"))


def checkpoints_of(folder: Path, names: Collection[str] = OWN) -> list[Path]:
    """The checkpoints of these names that a run wrote itself, in its folder or in ``checkpoints/`` of it.

    Where it has none of its own, all files below the folder that end in .ckpt.
    """
    own = [path for place in (folder, folder / "checkpoints") for name in OWN if (path := place / name).is_file()]
    return [path for path in own if path.name in names] if own else sorted(folder.rglob("*.ckpt"))


def newest_intact(folder: Path, names: Collection[str] = OWN) -> IntactCheckpoint:
    """The newest intact checkpoint of these names (`checkpoints_of`): by its number among those of the run, then by
    step (a run may have gone back to an older one), then by time (last, since clocks may be set back).
    """
    whole: list[tuple[tuple[int, int, float], Path]] = []
    damaged: list[tuple[float, str]] = []
    for path in checkpoints_of(folder, names):
        if not path.is_file():
            continue
        when = path.stat().st_mtime
        try:
            manifest = verify(path)
            whole.append(((int(manifest.get("save", 0)), int(manifest.get("step", -1)), when), path))
        except CheckpointError as error:
            damaged.append((when, str(error)))
    if not whole:
        return IntactCheckpoint(None, [why for _, why in damaged])
    return IntactCheckpoint(max(whole)[1], [why for _, why in damaged])


def saves_so_far(folder: Path) -> int:
    """How many checkpoints a run has written into a folder, as far as the manifests there tell."""
    manifests = map(read_manifest, (folder / FOLDER).glob("*.json"))
    return max((int(manifest.get("save", 0)) for manifest in manifests if manifest is not None), default=0)


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
