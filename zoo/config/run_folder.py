"""Name and make the folder of a run: `runs/<recipe>/<only the differences>/s<seed>`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zoo import registry
from zoo.config.passive_settings import CALLBACKS, is_passive, passive_keys
from zoo.errors import UsageError
from zoo.inference.find_run import CONFIG, FINISHED, STARTING
from zoo.io import atomic_files
from zoo.io.checkpoint_manifest import has_checkpoint
from zoo.system import stop_signals

LONGEST, LONGEST_VALUE = 100, 40  # bytes of a variant's name, and of one value in it
LONGEST_NAME = 120  # bytes of a name that the user gives
DEFAULT = "default"
# sections of a configuration, in the order in which a variant's name has them
SECTIONS = ("model", "data", "tune", "trainer")
HEADER = "# zoo run: "
# options of the trainer of which 1 is one batch and 1.0 all of them
SHARES = ("trainer.limit_", "trainer.overfit_batches", "trainer.val_check_interval")
# what the trainer does where these are null, and the names that it has for one precision
NULLS: dict[str, object] = {
    "trainer.deterministic": False, "trainer.gradient_clip_algorithm": "norm", "trainer.limit_train_batches": 1.0,
    "trainer.limit_val_batches": 1.0, "trainer.limit_test_batches": 1.0, "trainer.val_check_interval": 1.0,
    "trainer.precision": "32-true",
}  # fmt: skip
PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}


@dataclass(frozen=True)
class RunLocation:
    """Where a run goes, and which recipe and variant it is."""

    root: Path
    recipe: str
    variant: str
    seed: int

    @property
    def folder(self) -> Path:
        """`runs/<recipe>/<variant>/s<seed>`."""
        return self.root / self.recipe / self.variant / f"s{self.seed}"

    @property
    def title(self) -> str:
        """`<recipe>/<variant>`."""
        return f"{self.recipe}/{self.variant}"


def is_same(key: str, value: object, reference: object) -> bool:
    """Whether two values of an option are the same: 1 and 1.0 are, except as a number and a share of batches."""
    value, reference = (NULLS.get(key) if item is None else item for item in (value, reference))
    if key == "trainer.precision":
        value, reference = (PRECISIONS.get(str(item), item) for item in (value, reference))
    alike = type(value) is type(reference) or not isinstance(value, (int, float))
    numbers = bool not in (type(value), type(reference)) and not key.startswith(SHARES)
    return value == reference and (alike or numbers)


def is_same_config(config: object, reference: object, key: str = "") -> bool:
    """Whether two configurations, or what they hold at ``key``, are one; no callbacks are as an empty list of them.

    What is left out is null for callbacks and NULLS alone: elsewhere a default may be anything.
    """
    if isinstance(config, Mapping) and isinstance(reference, Mapping):
        for name in {*config, *reference}:
            full = f"{key}.{name}".lstrip(".")
            absent = None if full in (*NULLS, CALLBACKS) else ...
            if not is_same_config(config.get(name, absent), reference.get(name, absent), full):
                return False
        return True
    return is_same(key, config, reference) or (key == CALLBACKS and not config and not reference)


def differences(
    full: Mapping[str, object], base: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """The values of a configuration that differ from its recipe's, or from the defaults where that says nothing."""
    changed: dict[str, object] = {}
    passive = passive_keys(full)
    for key, value in full.items():
        if (
            key.partition(".")[0] not in SECTIONS
            or is_passive(key, value)
            or key.startswith(passive)
            or (key == CALLBACKS and not value)
        ):
            continue
        if key in base and is_same(key, base[key], value):
            continue
        if key not in base and key in defaults and is_same(key, defaults[key], value):
            continue
        changed[re.sub(r"[\[\]]", "", key)] = value
    before, after = _acting_callbacks(base), _acting_callbacks(full)
    if len(after) < len(before) or any(old.keys() - new.keys() for old, new in zip(before, after, strict=False)):
        # what is left out has no value of its own: all that remain name the variant
        changed = {key: value for key, value in changed.items() if not key.startswith(CALLBACKS)}
        changed[CALLBACKS] = [item if len(item) > 1 else item["class"] for item in after] or None
    return changed


def _acting_callbacks(values: Mapping[str, object]) -> list[dict[str, object]]:
    """The callbacks that may change a run, each as its class and its options by name."""
    passive = passive_keys(values)
    keys = [key for key, value in values.items() if key.startswith(CALLBACKS) and isinstance(value, type)]
    return [
        {
            name.removeprefix(key)[1:] or "class": value
            for name, value in values.items()
            if f"{name}.".startswith(f"{key}.")
        }
        for key in keys
        if "." not in key.removeprefix(CALLBACKS) and key not in passive
    ]


def variant_name(changes: Mapping[str, object], base: str = DEFAULT) -> str:
    """`position=alibi,lr=0.01,max_steps=200`: the changes, safe as a folder's name; `default` for none.

    The parts of the model come first, then its other options, data, fine-tuning and trainer, so that the beginning of a
    name tells variants apart. ``base`` is the variant whose configuration was changed: what it has of its own follows.
    """
    names = _short(list(changes))
    base_pieces = [piece for piece in _pieces(base) if piece.partition("=")[0] not in names.values()]
    return join_pieces([*(f"{names[key]}={slug(changes[key])}" for key in sorted(changes, key=_rank)), *base_pieces])


def _rank(key: str) -> tuple[int, int, str]:
    """Where an option stands in a name: by its section; in the model the task, parts, other options; then by name."""
    section, _, option = key.partition(".")
    order = ["", *registry.STACK_KINDS] if section == "model" else []
    kind = option.partition(".")[0]
    return (
        SECTIONS.index(section) if section in SECTIONS else len(SECTIONS),
        order.index(kind) if kind in order else len(order),
        key,
    )


def _pieces(name: str) -> list[str]:
    return [] if name == DEFAULT else name.split(",")


def join_pieces(pieces: list[str], separator: str = ",") -> str:
    """The pieces with commas; of a long text the beginning and a digest, which does not depend on their order."""
    text = separator.join(pieces) or DEFAULT
    if len(text.encode()) <= LONGEST:
        return text
    return f"{text.encode()[: LONGEST - 9].decode(errors='ignore')}-{_digest(','.join(sorted(pieces)))}"


def _short(keys: list[str]) -> dict[str, str]:
    """Each key's last component, or as many as it takes to tell it from the others."""
    names: dict[str, str] = {}
    for key in keys:
        pieces = key.split(".")
        tails = [".".join(pieces[-count:]) for count in range(1, len(pieces))]
        clear = (tail for tail in tails if sum(f".{full_key}".endswith(f".{tail}") for full_key in keys) == 1)
        names[key] = next(clear, key)
    return names


def slug(value: object) -> str:
    """A value as it may stand in a folder's name; with a digest where anything of its text is left out.

    Letters and digits of every script stay, in Unicode's normal form C.
    """
    if isinstance(value, type):
        return value.__name__.lower()
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        if float(f"{value:g}") != value:
            return repr(value)
        return f"{value:g}" if value != 1.0 else "1.0"  # a share of 1.0 of the batches is another variant than 1 batch
    if isinstance(value, (list, tuple)):
        return "-".join(slug(item) for item in value) or "empty"
    if isinstance(value, Mapping):
        return "-".join(f"{slug(key)}-{slug(item)}" for key, item in value.items()) or "empty"
    text = unicodedata.normalize("NFC", str(value))
    if "/" in text:
        # a run's folder is called s1 like most others: the recipe and the variant tell it from them
        path = Path(text)
        text = "-".join(path.parts[-3:]) if re.fullmatch(r"s\d+", path.name) else path.stem
    pieces = "".join(letter if _is_plain(letter, "._+-") else " " for letter in text).split()
    return _shortened("_".join(pieces).strip("._"), text, LONGEST_VALUE) or "empty"


def _is_plain(letter: str, signs: str) -> bool:
    """Whether a character is a letter, a digit or a mark of any script, or one of ``signs``."""
    return letter in signs or unicodedata.category(letter)[0] in "LMN"


def _shortened(name: str, text: str, longest: int) -> str:
    """``name``, or where it lacks something of ``text`` or has too many bytes, its beginning and the text's digest."""
    if name == text and len(name.encode()) <= longest:
        return name
    beginning = name.encode()[: longest - 9].decode(errors="ignore").rstrip("._-")
    return "-".join(filter(None, (beginning, _digest(text))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_name(name: str) -> str:
    """The name that the user gave. Raises UsageError for one that could leave the folder of runs."""
    name = unicodedata.normalize("NFC", name)
    is_valid = (
        all(_is_plain(letter, "._+-=,") for letter in name) and _is_plain(name[:1] or " ", "") and ".." not in name
    )
    if not is_valid or len(name.encode()) > LONGEST_NAME:
        raise UsageError(
            f"--name {name!r:.160} may hold only letters, digits and . _ + - = , in at most {LONGEST_NAME} bytes"
        )
    return name


def recipe_of(path: Path | None, fallback: str) -> tuple[str, str | None]:
    """The recipe's name and, for the configuration of an earlier run, the variant it was."""
    if path is None:
        return slug(fallback.lower()), None
    recipe, _, name = run_title(path).partition("/")
    return (slug(recipe), check_name(name)) if name else (slug(path.stem), None)


def run_title(path: Path | None) -> str:
    """`<recipe>/<variant>` of a configuration that a run wrote; empty for a recipe, which may have the same name."""
    if path is None or path.name != CONFIG:
        return ""
    try:
        header = path.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""
    title = header.removeprefix(HEADER).strip()
    return title if header.startswith(HEADER) and title.partition("/")[2] else ""


def first_rank() -> bool:
    """Whether this process is the first of its training, which prints and writes files.

    Lightning keeps the rank for every process; `zoo.training.distributed.settle_rank` has it follow from the trainer's
    own devices and nodes. Before Lightning is imported, a process is the first unless zoo has started it as another.
    """
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(module, "rank_zero_only", None), "rank", None)
    return not stop_signals.is_further_process() if rank is None else rank == 0


def check(run: RunLocation, overwrite: bool = False, resume: bool = False) -> None:
    """Raise UsageError early, before anything takes time, for a folder that `claim` would refuse."""
    folder = run.folder
    if not first_rank():
        return
    for place in (folder, *folder.parents):
        if place.is_symlink() and not os.path.exists(place):
            raise UsageError(
                f"{place} is a link to {os.readlink(place)}, which leads nowhere. Choose another place: --runs DIR"
            )
    if resume:
        if not folder.is_dir():
            raise UsageError(
                f"nothing to resume: {folder} does not exist. Start it without --resume, or name the run to continue "
                "with other options: zoo fit RUN --resume --accept-changes"
            )
        return
    if not folder.exists():
        return
    if not overwrite:
        state = "is finished" if (folder / FINISHED).exists() else "was started and not finished"
        raise UsageError(f"{folder} {state}.\nContinue it: --resume. Start over: --overwrite. Keep both: --name NAME.")
    is_run = any((folder / name).is_file() for name in (CONFIG, STARTING))
    if not folder.is_dir() or (any(folder.iterdir()) and not is_run):
        raise UsageError(f"{folder} holds no {CONFIG}: it is no run of zoo, and will not be deleted.")


def claim(run: RunLocation, overwrite: bool = False, resume: bool = False) -> Path:
    """Create the run's folder, atomically. Raises UsageError that says what to do where it exists or cannot be made."""
    folder = run.folder
    check(run, overwrite, resume)
    if resume or not first_rank():
        return folder
    created = False
    try:
        if overwrite and folder.is_dir():
            atomic_files.discard(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        created = True
        atomic_files.create(folder / STARTING, b"")
    except FileExistsError as error:
        raise UsageError(f"{folder} was created by another run just now. Keep both: --name NAME.") from error
    except OSError as error:
        if created:
            shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"cannot make {folder}: {error.strerror or error}. Choose another place: --runs DIR"
        ) from error
    return folder


def release(run: RunLocation) -> None:
    """Remove the folder of a run that failed before its first checkpoint, so that the same command works again."""
    if first_rank() and run.folder.is_dir() and not has_checkpoint(run.folder):
        with contextlib.suppress(OSError):
            atomic_files.discard(run.folder)
