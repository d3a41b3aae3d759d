"""The registry of parts: find the class for a kind and a name, such as norm and RMSNorm.

A part is a class that an installed package registers by an entry point in the group ``zoo.<kind>``, under the class's
name. Listing parts imports nothing; a part is imported when it is used.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import itertools
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import AmbiguousPartError, PartError, PluginError
from zoo.plugins import discovery
from zoo.plugins.discovery import GROUP, ZOO, Entry, Flaw, Package, discover, normalize_name
from zoo.plugins.safe_import import describe_import_error, import_object

STACK_KINDS = ("position", "backend", "attention", "norm", "ffn", "block")  # what a stack is built from
APPLICATION_KINDS = ("command", "family", "executor", "design")  # which no configuration of a model names
KINDS = (*STACK_KINDS, "task", "data", "optimizer", "schedule", "init", "callback", *APPLICATION_KINDS)
# bases of other libraries, which cannot say their kind themselves
FOREIGN_BASES = {
    "torch.optim.optimizer.Optimizer": "optimizer", "lightning.pytorch.callbacks.callback.Callback": "callback",
}  # fmt: skip
BUILTIN = ZOO
DISABLE_VARIABLE = "ZOO_DISABLE_PLUGINS"
NULL_NAMES = ("none", "nope", "no")  # short names of the part of a kind that does nothing, such as NoPosition
MOST_BYTES = 2**20  # largest pyproject.toml that is read
RECIPES = "recipes"  # the group ``zoo.recipes``: ``name = package.folder`` of YAML files, which is never imported
STRATEGIES = "strategies"  # the group ``zoo.strategies``: ``name = module:Class``, a name for ``trainer.strategy``
# names of the same options in other libraries
SYNONYMS = {
    "learning_rate": ("lr",), "epochs": ("max_epochs",), "num_epochs": ("max_epochs",), "steps": ("max_steps",),
    "hidden_size": ("dim",), "d_model": ("dim",), "embed_dim": ("dim",), "n_embd": ("dim",), "width": ("dim",),
    "num_layers": ("depth",), "layers": ("depth",), "n_layers": ("depth",), "n_layer": ("depth",),
    "num_heads": ("heads",), "n_heads": ("heads",), "n_head": ("heads",), "num_attention_heads": ("heads",),
    "intermediate_size": ("hidden",), "d_ff": ("hidden",), "ffn_dim": ("hidden",), "activation": ("ffn",),
    "positional_encoding": ("position",), "pos_embedding": ("position",), "normalization": ("norm",),
    "seq_len": ("max_length",), "block_size": ("max_length",), "context_length": ("max_length",),
    "gpus": ("devices",), "n_gpus": ("devices",), "grad_clip": ("gradient_clip_val",), "warmup_steps": ("warmup",),
    "batch": ("batch_size",), "bs": ("batch_size",), "seed": ("seed_everything", "seeds"), "p_dropout": ("dropout",),
    "max_seq_length": ("max_length",), "gradient_accumulation_steps": ("accumulate_grad_batches",),
    "resume_from": ("ckpt_path",), "checkpoint": ("ckpt_path", "start"), "dataset": ("data",),
    "workers": ("num_workers",),
    **dict.fromkeys(("output", "output_dir", "save_dir", "log_dir", "logdir"), ("out", "runs")),
    **dict.fromkeys(
        ("max_new_tokens", "max_tokens", "max_length", "num_tokens"), ("length", "max_tokens", "max_length")
    ),
    **dict.fromkeys(("pretrained", "init_from", "weights"), ("start",)), "num_beams": ("beams",),
    **dict.fromkeys(("verbose", "quiet", "input", "debug"), ()),  # which no option is like
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One entry point, not yet imported."""

    kind: str
    name: str
    target: str  # "module:Class"
    distribution: str
    version: str
    home: str = ""  # the folder of the distribution's metadata
    requires: tuple[str, ...] = ()  # the distribution's requirements on zoo
    damage: str = ""  # why its entry point or metadata are invalid

    @property
    def path(self) -> str:
        """The class path, which names this part without the registry: ``zoo.parts.norm.RMSNorm``."""
        return self.target.replace(":", ".")

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.target.partition(":")[0]

    @property
    def origin(self) -> str:
        """Name and version of the distribution."""
        return f"{self.distribution} {self.version}"

    @property
    def builtin(self) -> bool:
        """Whether the part belongs to zoo itself."""
        return self.distribution == BUILTIN

    @property
    def entry(self) -> str:
        """The entry point in messages: ``RMSNorm = zoo.parts.norm:RMSNorm in [zoo.norm]``."""
        return f"{self.name} = {self.target} in [{GROUP}{self.kind}]"

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.origin}"

    def load(self) -> type:
        """Import the class. Raises PluginError if that fails, or if the entry point names something else."""
        module, _, name = self.target.partition(":")
        try:
            cls = import_object(module, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may call sys.exit() while it is imported
            raise PluginError(
                f"{self} cannot be imported: {describe_import_error(error, module)}\nIts entry point is {self.entry}. "
                f"Try: pip install -U {self.distribution}"
            ) from error
        if not isinstance(cls, type) or cls.__name__ != self.name:
            class_name = getattr(cls, "__name__", type(cls).__name__)
            raise PluginError(f"{self}: its entry point {self.entry} names {class_name!r}; the two names must agree")
        return cls


@functools.cache
def installed_parts(kind: str) -> tuple[Part, ...]:
    """All installed parts of a kind sorted by name, including hidden and disabled ones."""
    entries = [entry for entry in discover().entries if entry.kind == kind]
    parts_of_kind = {(entry.name, entry.value, entry.package.name): _part(entry) for entry in entries}
    return tuple(sorted(parts_of_kind.values(), key=lambda part: (part.name.lower(), part.origin)))


def refresh() -> bool:
    """Look again for parts; whether packages were installed or removed while this process runs."""
    if not discovery.refresh():
        return False
    installed_parts.cache_clear()
    return True


def parts(kind: str) -> tuple[Part, ...]:
    """The parts of a kind that can be selected by name: not disabled, and not hidden by a built-in part."""
    return tuple(part for part in installed_parts(kind) if not is_hidden(part) and not is_disabled(part.distribution))


_name_index: dict[
    str, tuple[tuple[Part, ...], dict[str, list[Part]]]
] = {}  # by kind: all parts, and an index by lower-case name


def parts_called(kind: str, name: str) -> list[Part]:
    """All installed parts of a kind with a name, ignoring case; uses an index, so that many plugins stay fast."""
    every = installed_parts(kind)
    entry = _name_index.get(kind)
    if entry is None or entry[0] is not every:
        index: dict[str, list[Part]] = {}
        for part in every:
            index.setdefault(part.name.lower(), []).append(part)
        entry = _name_index[kind] = (every, index)
    return entry[1].get(name.lower(), [])


def part_of_class(path: str) -> Part | None:
    """The installed part with this class path, or None."""
    name = path.rpartition(".")[2]
    mine = (part for kind in KINDS for part in parts_called(kind, name) if part.path == path and part.name == name)
    return next(mine, None)


# what computes the same as parts that there are no more
SUCCESSORS = {"zoo.parts.autotune.Auto": "zoo.parts.backend.SDPA"}


def current_path(path: str) -> str:
    """The class path itself or that of its successor; that of the installed part of its name where zoo has none.

    Runs and exports name parts by class paths, also those of parts that a package of their own has since. Raises
    PartError for one that is not installed, with the line that installs it.
    """
    path = SUCCESSORS.get(path, path)
    module, _, name = path.rpartition(".")
    if not module.startswith("zoo.") or part_of_class(path) or name in _source(module):
        return path
    places = {part.path for kind in KINDS for part in parts_called(kind, name) if not is_disabled(part.distribution)}
    if len(places) == 1:
        return places.pop()
    if hint := install_hint(name):
        raise PartError(f"zoo itself has {path!r} no more.{hint}")
    return path


def _source(module: str) -> str:
    """The text of one of zoo's own modules, which is not imported for it; empty where there is none."""
    place = os.path.join(os.path.dirname(__file__), *module.split(".")[1:])
    for file in (f"{place}.py", os.path.join(place, "__init__.py")):
        with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as stream:
            return stream.read()
    return ""


def kind_of(cls: object) -> str | None:
    """The kind that a class belongs to by its attribute ``kind``, or by a base of another library; None without one."""
    own = getattr(cls, "kind", None)
    if isinstance(own, str) or not isinstance(cls, type):
        return own if isinstance(own, str) else None
    bases = (FOREIGN_BASES.get(f"{base.__module__}.{base.__qualname__}") for base in cls.__mro__)
    return next(filter(None, bases), None)


def is_base(cls: type) -> bool:
    """Whether a class is the base of a kind rather than one of its parts."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return path in FOREIGN_BASES or (cls.__module__.startswith("zoo.") and "kind" in vars(cls))


def is_hidden(part: Part) -> bool:
    """Whether a plugin's part has the name of a built-in part, which takes precedence."""
    return not part.builtin and any(namesake.builtin for namesake in parts_called(part.kind, part.name))


def is_disabled(distribution: str) -> bool:
    """Whether ZOO_DISABLE_PLUGINS disables a distribution; zoo itself cannot be disabled."""
    return distribution != BUILTIN and bool({"1", "all", normalize_name(distribution)} & disabled_names())


def disabled_names() -> frozenset[str]:
    """The values of ZOO_DISABLE_PLUGINS: ``1`` or ``all``, or names of distributions."""
    return _normal_names(os.environ.get(DISABLE_VARIABLE, ""))


@functools.cache
def _normal_names(words: str) -> frozenset[str]:
    return frozenset(normalize_name(word) for word in words.split(",")) - {""}


def distributions() -> set[str]:
    """The normal names of the installed packages that bring parts or recipes."""
    names = [part.distribution for kind in KINDS for part in installed_parts(kind)]
    return {normalize_name(name) for name in [*names, *(entry.package.name for entry in discover().entries)]}


def metadata_flaws() -> list[Flaw]:
    """Entry points that cannot be read, that have an unknown kind, or that name a missing folder of recipes."""
    groups = (*KINDS, RECIPES, STRATEGIES)
    odd = {(entry.package, entry.kind) for entry in discover().entries if entry.kind not in groups}
    groups_of_kinds = [GROUP + kind for kind in groups]
    strange = [
        Flaw(package, f"unknown group {GROUP + kind!r}.{suggest(GROUP + kind, groups_of_kinds)}")
        for package, kind in odd
    ]
    lacking = [entry for entry in _recipe_entries() if package_folder(entry.value) is None]
    empty = [Flaw(entry.package, _missing_folder(entry)) for entry in lacking]
    return [
        *discover().flaws,
        *sorted([*strange, *empty], key=lambda flaw: (flaw.package.name, flaw.reason)),
    ]


def recipe_folders() -> list[tuple[Package, Path]]:
    """The folders of recipes of installed packages that are not disabled, sorted by package."""
    enabled = [entry for entry in _recipe_entries() if not is_disabled(entry.package.name)]
    folders = [(entry.package, package_folder(entry.value)) for entry in enabled]
    return sorted((package, place) for package, place in folders if place is not None)


def strategies() -> dict[str, str]:
    """``module:Class`` of each strategy of packages that are not disabled, by its name for ``trainer.strategy``."""
    entries = [entry for entry in discover().entries if entry.kind == STRATEGIES]
    return {entry.name: entry.value for entry in entries if not is_disabled(entry.package.name)}


def _recipe_entries() -> list[Entry]:
    return [entry for entry in discover().entries if entry.kind == RECIPES]


def _missing_folder(entry: Entry) -> str:
    return (
        f"entry point {entry.name!r} in [{GROUP}{RECIPES}]: {entry.value!r:.80} is not a folder of an installed package"
    )


def package_folder(target: str) -> Path | None:
    """The path of ``package.folder`` without importing it; None if it does not exist."""
    top, *inside = target.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = (Path(place, *inside) for place in (spec and spec.submodule_search_locations) or ())
    return next((place for place in places if place.is_dir()), None)


def has_name(part: Part, name: str) -> bool:
    """Whether a part has a name, ignoring case."""
    return part.name.lower() == name.lower()


def find(kind: str, name: str, further: Iterable[str] = ()) -> Part:
    """The part of that name, ignoring case; ``further`` are names that may have been meant, besides those of parts.

    Raises PartError, listing the available parts, or the packages if several register the name.
    """
    matches = [part for part in parts_called(kind, name) if not is_hidden(part) and not is_disabled(part.distribution)]
    exact = [part for part in matches if part.name == name] or matches
    if len({part.path for part in exact}) == 1:  # a renamed package may be installed under both names, with one class
        return exact[0]
    if exact:
        owners = " and ".join(part.origin for part in exact)
        paths = ", ".join(part.path for part in exact)
        way = f"Write its class path: {paths}"
        if kind in APPLICATION_KINDS:  # which no class path names
            way = f"Leave one out: {DISABLE_VARIABLE}={exact[0].distribution}"
        raise AmbiguousPartError(f"two packages register {kind} {name!r}: {owners}. {way}")
    off = parts_called(kind, name)
    if not off and refresh():  # a package was installed while this process runs
        return find(kind, name, further)
    if off:
        raise PartError(f"unknown {kind} {name!r}: {DISABLE_VARIABLE} disables {off[0].origin}, which has it.")
    names = list(dict.fromkeys(part.name for part in parts(kind)))
    unread = [flaw for flaw in metadata_flaws() if re.search(rf"\b{re.escape(name)}\b", flaw.reason, re.IGNORECASE)]
    hint = f"\n{unread[0].package.origin} is damaged: {unread[0].reason}" if unread else not_installed(kind, name)
    near = suggest(name, names) or suggest(name, further)
    raise PartError(f"unknown {kind} {name!r}.{near} Available: {', '.join(names) or 'none'}{hint}")


def full_name(kind: str, name: str) -> str:
    """The name itself, or the part that `none` stands for: NoPosition for kind position."""
    if name.lower() in NULL_NAMES and kind in KINDS:
        return next((part.name for part in parts(kind) if part.name.lower() == f"no{kind}"), name)
    return name


def get(kind: str, name: str) -> type:
    """The class of that name. Raises PartError if it is unknown or ambiguous, PluginError if its import fails."""
    return find(kind, name).load()


def not_installed(kind: str, name: str) -> str:
    """A hint at a package that is not installed and has a part, by its name or class path, or a recipe; empty without.

    Packages are looked for below the current folder, and beside zoo where it runs from a checkout.
    """
    beside = Path(__file__).parents[1] / "plugins"
    try:
        near = [path for path in itertools.islice(Path().glob("*/pyproject.toml"), 200) if path.is_file()]
        here = Path.cwd()
    except OSError:
        near, here = [], Path()
    projects: dict[Path, dict[str, Any]] = {}
    for path in (*near, *beside.glob("*/pyproject.toml")):
        with contextlib.suppress(OSError, ValueError, KeyError, RecursionError):
            if path.stat().st_size <= MOST_BYTES:
                projects[path.parent] = tomllib.loads(path.read_text("utf-8"))["project"]
    for folder, project in projects.items():
        try:
            points = project["entry-points"][GROUP + kind]
            names = [*points, *(value.replace(":", ".") for value in points.values())]
            if kind == RECIPES:
                places = [folder / "src" / value.replace(".", "/") for value in points.values()]
                names = [recipe.stem for place in places for recipe in place.rglob("*.yaml")]
        except (OSError, KeyError, TypeError, AttributeError):
            continue
        if name.lower() in (candidate.lower() for candidate in names):
            place, *others = [
                str(os.path.relpath(path) if path.is_relative_to(here) else path)
                for path in _with_needed(folder, projects)
            ]
            options = " ".join(f"-e {shlex.quote(path)}" for path in (place, *others))
            return f"\n{place} has it and is not installed: pip install {options}"
    return ""


def _with_needed(folder: Path, projects: Mapping[Path, Mapping[str, Any]]) -> list[Path]:
    """A package's folder, and those of the packages that it needs and that are not installed either."""
    folders = {normalize_name(str(project.get("name"))): place for place, project in reversed([*projects.items()])}
    result = [folder]
    for place in result:  # which grows
        requirements = projects[place].get("dependencies") or []
        names = [normalize_name(re.split(r"[^\w.-]", str(line).strip())[0]) for line in requirements]
        needed = [folders[name] for name in names if name in folders and name not in distributions()]
        result += [path for path in dict.fromkeys(needed) if path not in result]
    return result


def install_hint(path: str) -> str:
    """A hint at the package that has the class of a path, of any kind, and is not installed; empty without one."""
    return next(filter(None, (not_installed(kind, path) for kind in KINDS)), "")


def most_similar(word: str, words: Iterable[str], least: float | None = None) -> str:
    """The most similar of ``words``, ignoring case, by at ``least`` a ratio; empty if none is."""
    by_lower = {name.lower(): name for name in words}
    least = least or (0.5 if len(word) > 2 else 0.6)  # en for cn
    near = difflib.get_close_matches(word.lower(), by_lower, 1, cutoff=least)
    return by_lower[near[0]] if near else ""


def nearest_key(word: str, words: Iterable[str], least: float | None = None) -> str:
    """What a word means among ``words``: by SYNONYMS where it is there, else the most similar; empty for none."""
    options = list(words)
    if word.lower() in SYNONYMS:
        return next((name for name in SYNONYMS[word.lower()] if name in options), "")
    near = most_similar(word, (*options, *SYNONYMS), least)  # or a misspelt synonym: leraning_rate
    return next((name for name in (near, *SYNONYMS.get(near, ())) if name in options), "")


def suggest(word: str, words: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with the most similar of ``words``; empty if none is similar."""
    near = most_similar(word, words)
    return f" Did you mean {near!r}?" if near else ""


def _part(entry: Entry) -> Part:
    """The part of an entry point, with ``damage`` set if the entry point is invalid."""
    target = re.sub(r"\s*\[.*\]$", "", entry.value)  # extras, which pip ignores here
    module, colon, name = (piece.strip() for piece in target.partition(":"))
    problem = f"entry point {entry.name!r}: {entry.value!r:.80} is not 'module:Class'"
    proper = colon and name.isidentifier() and all(piece.isidentifier() for piece in module.split("."))
    damage = "" if proper else problem
    if not entry.name.isidentifier():
        damage = f"entry point {entry.name!r:.80} is not the name of a class"
    package = entry.package
    return Part(
        *(entry.kind, entry.name, f"{module}:{name}" if proper else entry.value, package.name, package.version),
        *(package.home, package.requires, package.damage or damage),
    )
