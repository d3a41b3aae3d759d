"""Folders of the Hugging Face hub: ``hf://org/name`` and ``hf://org/name@revision`` in the place of a local folder."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path

from zoo.errors import UsageError

log = logging.getLogger(__name__)
SCHEME = "hf://"
ADDRESS = re.compile(r"https?:/+[^/]+/((?:[^/]+/)?)([^/]+?)(?:/(?:tree|blob|resolve)/([^/]+).*)?/?")  # of a page
NAME = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?")
# weights as safetensors, those of 2_Dense with them, and small texts; no pickles and no code
FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.yaml")
OTHERS = ("[!0-9]*/*.safetensors", "onnx/*", "openvino/*", "original/*")  # the same weights in other forms
SNAPSHOT = re.compile(r"models--(.+?)/snapshots/([0-9a-f]{40})")


def is_remote(place: str | Path) -> bool:
    """Whether a place is on the hub; a Path has one slash where the text has two."""
    return str(place).startswith((SCHEME, "hf:/"))


def local_folder(place: str | Path) -> Path:
    """The folder of a place: one on the hub is downloaded to its cache, or taken from there without a network.

    HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean for huggingface_hub. Raises UsageError where
    the repository or the revision is not there, needs a permission, cannot be reached, or has no safetensors.
    """
    if address := ADDRESS.fullmatch(str(place)):
        name = f"{address[1] or 'ORG/'}{address[2]}{'@' if address[3] else ''}{address[3] or ''}"
        raise UsageError(f"{place} is an address. A repository of the hub is {SCHEME}{name}")
    if not is_remote(place):
        return Path(place)
    match = NAME.fullmatch(str(place))
    if match is None:
        raise UsageError(f"{place} is no place on the hub: hf://ORG/NAME or hf://ORG/NAME@REVISION")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError(f"{place} needs the package huggingface_hub: pip install 'zoo-transformers[hub]'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, revision = match[1], match[2]
    where = f"{SCHEME}{name}" + (f"@{revision}" if revision else "")
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=[*FILES], ignore_patterns=[*OTHERS])
        if Path(folder).name == "snapshots":  # of no commit: the cache's file of the revision is empty
            raise LocalEntryNotFoundError(f"no commit of {where}")
    except GatedRepoError as error:
        raise UsageError(f"{where} is gated: accept its conditions on the hub, and log in: hf auth login") from error
    except RevisionNotFoundError as error:
        raise UsageError(f"{where}: the repository {name} has no revision {revision!r}.") from error
    except RepositoryNotFoundError as error:
        raise UsageError(f"{where} is not on the hub, or is private: then log in with hf auth login") from error
    except LocalEntryNotFoundError as error:
        commit, commits = find_commits(name, revision or "main")
        # a cache that was copied by hand may lack the file that names the commit, or have white space in it
        if commit is None and revision is None and len(commits) == 1:
            log.warning("%s: the cache does not say which commit is main. Taken: %s, the only one.", where, commits[0])
            commit = commits[0]
        if commit in commits and commit != revision:
            return local_folder(f"{SCHEME}{name}@{commit}")
        there = ", ".join(f"{SCHEME}{name}@{commit}" for commit in commits)
        raise UsageError(
            f"{where} is not in the cache, and the hub cannot be reached or HF_HUB_OFFLINE is set."
            + (f" What is there: {there}" if there else "")
        ) from error
    except HFValidationError as error:
        raise UsageError(f"{where} is no name of a repository: {error}") from error
    except (HfHubHTTPError, OSError) as error:
        raise UsageError(f"{where} cannot be downloaded: {' '.join(str(error).split())[:200]}") from error
    if not any(Path(folder).glob("*.safetensors")):
        raise UsageError(f"{where} has no file of safetensors: zoo reads no pickles, which can run code.")
    return Path(folder)


def find_commits(name: str, revision: str) -> tuple[str | None, list[str]]:
    """The commit that the hub's cache has for a revision of a repository, None where it has none, and all commits
    whose files are there.
    """
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    commits = sorted(snapshot.name for snapshot in folder.glob("snapshots/*") if snapshot.is_dir())
    ref = folder / "refs" / revision
    text = ref.read_text(encoding="utf-8", errors="replace").strip() if ref.is_file() else ""
    return text or None, commits


def describe_origin(folder: Path) -> dict[str, str]:
    """The repository and the commit of a folder in the hub's cache; nothing for another folder."""
    match = SNAPSHOT.search(folder.as_posix())
    return {"repository": match[1].replace("--", "/", 1), "revision": match[2]} if match else {}
