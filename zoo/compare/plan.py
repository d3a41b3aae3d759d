"""The plan of a comparison: what --vary, --baseline and --seeds say, its variants, and their runs. Needs no torch."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.command_line import ParsedOptions
from zoo.compare import run_records
from zoo.compare.comparability import describe_code_change
from zoo.compare.design import PLAIN_DESIGN, Design, Procedure, check_target
from zoo.compare.options import DECIDED_BY_COMPARISON
from zoo.compare.parallel_runs import FitJob
from zoo.compare.run_records import RunRecord, label_variants, number
from zoo.compare.verdict import chosen_options, varied_choices
from zoo.config import fit_options, run_config, run_folder, yaml_source
from zoo.config.fit_options import nearest_option
from zoo.config.passive_settings import CALLBACKS, is_passive
from zoo.errors import UsageError
from zoo.inference.find_run import CONFIG
from zoo.io.locks import Lock
from zoo.logging import run_state

STARTUP_SECONDS = 8.0  # until a run trains: imports of torch and Lightning


@dataclass(frozen=True)
class Comparison:
    """A request for a comparison: a recipe, options for all runs, varied options, seeds, and what must be equal.

    ``design_values`` are the values of the options that ``design`` brings.
    """

    recipe: str
    vary: tuple[Factor, ...] = ()
    options: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    base: str | None = None
    combinations: str | None = None  # one of COMBINATIONS, --design
    budget: str | None = None
    match: str | None = None
    tune: str | None = None
    tune_seeds: int = 2
    goal: str | None = None
    at: str = run_records.DECISIVE
    margin: float | None = None
    until: str | None = None
    name: str = ""  # name of the folder; by default the names of the varied options
    design: Design = PLAIN_DESIGN
    design_values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.vary and not self.design.varies:
            raise UsageError("nothing varies: --vary OPTION=VALUE,VALUE such as --vary model.position=rope,alibi")
        run_records.parse_moment(self.at)
        check_target(self.at, self.design, margin=self.margin)

    @property
    def title(self) -> str:
        """The name of the comparison's folder."""
        usual = self.name or run_folder.join_pieces([factor.key.rpartition(".")[2] for factor in self.vary], "+")
        return self.procedure.title(self, usual)

    @property
    def procedure(self) -> Procedure:
        """What its design does."""
        return self.design.load()


@dataclass(frozen=True)
class Point:
    """The complete configuration that `zoo fit` derives from its arguments, and where it saves the runs."""

    root: Path
    recipe: str
    variant: str
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()  # what its task does not take from the recipe
    settings: Mapping[str, Any] | None = None  # those that are not defaults, by dotted keys
    passive: Mapping[str, Any] = field(default_factory=dict)  # and those about where and how it happens

    def folder(self, seed: int) -> Path:
        """The run folder of a seed."""
        return self.root / self.recipe / self.variant / f"s{seed}"

    def is_same(self, point: Point) -> bool:
        """Whether both are one run, however its values are written, defaults among them."""
        return run_folder.is_same_config(self.config, point.config) or (
            self.settings is not None
            and (self.variant, self.settings, self.passive) == (point.variant, point.settings, point.passive)
        )


@dataclass(frozen=True)
class Arm:
    """A variant of the comparison with its arguments for `zoo fit`, its configuration, and what was solved for it."""

    variant: Variant
    words: tuple[str, ...]
    point: Point
    notes: tuple[str, ...] = ()
    solved: str = ""  # "hidden 258, parameters -0.097% from the baseline's"
    label: str = ""  # the variant's name in tables and messages

    @property
    def name(self) -> str:
        """The variant's name in folders."""
        return self.point.variant

    def job(self, seed: int) -> FitJob:
        """The run of one seed."""
        words = (*self.words, f"--seed={seed}", f"--runs={self.point.root}")
        return FitJob(f"{self.label or self.name} s{seed}", self.point.folder(seed), words)

    def with_options(self, fits: ZooFit, *words: str, note: str = "") -> Arm:
        """A copy with more options, and a note about them. Raises UsageError as `zoo fit` does."""
        if not words:
            return replace(self, notes=(*self.notes, note) if note else self.notes)
        every = (*self.words, *words)
        return replace(self, words=every, point=fits.point(every), notes=(*self.notes, note) if note else self.notes)


def build_arms(
    comparison: Comparison, fits: ZooFit, check: Callable[[Mapping[str, Any]], None]
) -> tuple[list[Arm], dict[str, str]]:
    """Every variant once, the baseline first, and the model's error message of those whose parts cannot be combined.

    Raises UsageError for an option that does not exist, for two variants with one name, and if the baseline itself
    cannot be built.
    """
    base = parse_baseline(comparison.base, comparison.vary) if comparison.base else ()
    by_name: dict[str, Arm] = {}
    invalid: dict[str, str] = {}
    commands = [
        (variant, (comparison.recipe, *comparison.options, *(choice.word for choice in variant)))
        for variant in design_variants(comparison.vary, base, comparison.combinations)
    ]
    several_tasks = any(factor.key == TASK for factor in comparison.vary)
    options = [fits.task_options(words) if several_tasks else frozenset() for _, words in commands]
    for (variant, command), own in zip(commands, options, strict=True):
        words, foreign = split_foreign(command, own, frozenset().union(*options))
        point = fits.point(words)
        text = variant_text(variant)
        notes = (*point.notes, *(f"{text}: its task lacks {word}, left out" for word in foreign))
        twin = next((arm for arm in by_name.values() if arm.point.is_same(point)), None)
        if twin is not None:
            by_name[twin.name] = replace(twin, notes=(*twin.notes, *notes))
            continue
        arm = Arm(variant, words, point, notes)
        namesake = by_name.get(arm.name)
        if namesake is not None:
            raise UsageError(
                f"{variant_text(variant)} and {variant_text(namesake.variant)} would both be called "
                f"{arm.name} and share a run folder.\nNames contain only the last component of a path, and no "
                "options about where or how a run happens: compare them one at a time, with different --runs."
            )
        if arm.name in invalid:
            continue
        try:
            check(arm.point.config)
        except UsageError as error:
            if not by_name:
                raise error.reworded(f"the baseline, {variant_text(variant)}: {error}") from error
            invalid[arm.name] = str(error).splitlines()[0]
            continue
        by_name[arm.name] = arm
    return label_arms(list(by_name.values())), invalid


def split_foreign(
    words: Sequence[str], own: frozenset[str], every: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arguments for `zoo fit` without options that only another variant's task has (``every``), and those options."""
    names = [re.match(r"--model\.([^.=]+)", word) for word in words]
    foreign = [name is not None and name[1] in every - own for name in names]
    pairs = list(zip(words, foreign, strict=True))
    return tuple(word for word, is_foreign in pairs if not is_foreign), tuple(
        word for word, is_foreign in pairs if is_foreign
    )


def list_jobs(arms: Sequence[Arm], seeds: Sequence[int]) -> list[FitJob]:
    """Every run, ordered by seed, so that an unfinished comparison has equally many seeds of all variants."""
    return [arm.job(seed) for seed in seeds for arm in arms]


def label_arms(arms: Sequence[Arm]) -> list[Arm]:
    """The variants, the baseline first, with the labels that the tables will have, from their configurations."""
    from zoo.training.setup import describe_configuration  # here: finished runs are read without torch

    groups = {}
    for arm in arms:
        config = arm.point.config
        choices = describe_configuration(config["model"], config.get("data") or {})["choices"]
        run = RunRecord(arm.point.folder(0), arm.point.recipe, arm.name, 0, choices, config=run_config.flatten(config))
        groups[arm.name] = {0: run}
    options_of = chosen_options(groups)
    labels = label_variants(options_of, varied_choices(options_of), arms[0].name)
    return [replace(arm, label=labels[arm.name]) for arm in arms]


def verify_runs(arms: Sequence[Arm], seeds: Sequence[int], fits: ZooFit) -> None:
    """Raise UsageError for an existing run that has another configuration, no run record, or other code than new runs.

    Where all runs have ended no new one is pooled with them; reading them compares their code with each other's.
    """
    folders = [(arm, [arm.point.folder(seed) for seed in seeds]) for arm in arms]
    pools = any(run_state.read_state(folder) not in run_state.END_STATES for _, places in folders for folder in places)
    for arm, places in folders:
        code = fits.code(arm.point) if pools and any(folder.is_dir() for folder in places) else {}
        for folder in places:
            if run_state.has_no_record(folder):
                raise UsageError(
                    f"{folder} is finished and has no {run_state.LEDGER}: somebody removed it.\n"
                    "Move it away, or put the runs elsewhere: --runs DIR"
                )
            changes = fits.changes(arm.point, folder)
            if changes:
                more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
                raise UsageError(
                    f"{folder} was made with another configuration: {changes[0]}{more}.\n"
                    "Move it away, or put the runs elsewhere: --runs DIR"
                )
            difference = describe_code_change(run_state.read_record(folder).get("code") or {}, code)
            if difference:
                raise UsageError(
                    f"{folder} was made with other code: {difference}. New runs cannot be pooled with it.\n"
                    "Go back to that code, move the earlier runs away, or put the new ones elsewhere: --runs DIR"
                )


def take_shard(jobs: Sequence[FitJob], shard: str | None) -> list[FitJob]:
    """The runs of one shard, such as `2/4`: all variants of every fourth seed; all runs for None.

    A shard of variants would compare machines. Raises UsageError unless it is I/N with 1 <= I <= N.
    """
    if shard is None:
        return list(jobs)
    number, slash, count = shard.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count):
        raise UsageError(f"--shard {shard!r} is not I/N, such as 1/4 to 4/4.")
    seeds = list(dict.fromkeys(job.folder.name for job in jobs))  # a machine has all variants of its seeds
    own = set(seeds[int(number) - 1 :: int(count)])
    return [job for job in jobs if job.folder.name in own]


def job_states(jobs: Sequence[FitJob]) -> dict[FitJob, str]:
    """The state of every run: finished, running (its lock is held), continue (from a checkpoint), or missing."""
    result = {}
    for job in jobs:
        at = run_state.read_state(job.folder)
        result[job] = {"started": "missing", "diverged": "finished"}.get(at, at)
        if at not in run_state.END_STATES and Lock(run_state.path_beside(job.folder, ".lock")).holder() is not None:
            result[job] = "running"
    return result


def unfinished_jobs(jobs: Sequence[FitJob]) -> list[FitJob]:
    """The runs that have not ended."""
    return [job for job, state in job_states(jobs).items() if state != "finished"]


def estimate_seconds(unfinished: Sequence[FitJob], length: Mapping[str, int | None], root: Path) -> float | None:
    """Estimated seconds for unfinished runs, one after another, from the finished runs below ``root``.

    ``length`` is the number of steps by variant, None if epochs decide. None if no finished run is there to tell. Runs
    of less than half the steps of the longest one do not count: little of a short trial is training.
    """
    paces: dict[str, list[float]] = {}
    whole: list[float] = []
    runs: list[tuple[str, float, int]] = []
    for path in root.glob(f"*/*/{run_state.LEDGER}"):
        record = run_state.read_record(path.parent)
        cost, count = record.get("cost", {}), record.get("steps")
        took = cost.get("seconds")
        if record.get("finished") and isinstance(took, (int, float)) and isinstance(count, int) and count:
            runs.append((path.parent.parent.name, took + number(cost.get("validation_seconds", 0.0)), count))
    longest = max((count for _, _, count in runs), default=0)
    for variant, took, count in runs:
        if 2 * count >= longest:
            paces.setdefault(variant, []).append(took / count)
            whole.append(took)
    if not unfinished or not paces:
        return None if unfinished else 0.0
    usual = statistics.median(pace for steps in paces.values() for pace in steps)
    total = 0.0
    for job in unfinished:
        name = job.folder.parent.name
        count, pace = length.get(name), statistics.median(paces[name]) if name in paces else usual
        total += STARTUP_SECONDS + (pace * count if count else statistics.median(whole))
    return total


def fit_words(options: ParsedOptions) -> list[str]:
    """The options of `zoo fit` for every run of a comparison, one word each.

    Raises UsageError for an option of one run, which a comparison decides itself.
    """
    keys = [*options.values, *(key for key, _, _ in options.settings)]
    for name, instead in DECIDED_BY_COMPARISON.items():
        if name.replace("-", "_") in keys:
            raise UsageError(f"--{name} is for one run; here it is {instead}. See: zoo compare --help")
    words = [f"--config={path}" for path in options.get("config")]
    words += [f"--allow-import={module}" for module in options.get("allow_import")]
    words += ["--trust"] if options.get("trust") else []
    words += [f"--{key}" if value is True else f"--{key}={value}" for key, value, _ in options.settings]
    return words + (["--debug"] if options.get("debug") else [])


def draft_command(words: Sequence[str]) -> tuple[ParsedOptions, run_config.Draft]:
    """A command of `zoo fit` as far as it needs no torch. Raises UsageError for names of parts that do not exist."""
    command = fit_options.parse("fit", list(words))
    return command, run_config.read_draft(command)


class ZooFit:
    """Plans runs as `zoo fit` does, without running them; imports torch once."""

    def __init__(self, runs: str) -> None:
        self.runs, self.schema = runs, run_config.schema()
        self._plans: dict[str, run_config.RunPlan] = {}
        self._read: dict[tuple[Path, int], dict[str, object]] = {}  # by file and time of change

    def point(self, words: Sequence[str]) -> Point:
        """The configuration of a recipe and options. Raises UsageError as `zoo fit` does."""
        config_plan = run_config.make_plan(*draft_command([*words, f"--runs={self.runs}"]), self.schema)
        self._plans[config_plan.run.title] = config_plan
        run, resolved = config_plan.run, config_plan.resolved
        settings = run_folder.differences(resolved.values, {}, resolved.defaults)
        passive = {key: value for key, value in resolved.values.items() if is_passive(key, value)}
        return Point(
            Path(self.runs), run.recipe, run.variant, config_plan.config, tuple(resolved.notes), settings, passive
        )

    def task_options(self, words: Sequence[str]) -> frozenset[str]:
        """The options of the task that a command chooses. Raises UsageError where it chooses none."""
        return run_config.task_options(*draft_command([*words, f"--runs={self.runs}"]), self.schema)

    def _configuration(self, path: Path) -> dict[str, object]:
        """A run's configuration by dotted keys; empty where a kill has cut it short, before anything was trained."""
        key = path, path.stat().st_mtime_ns
        if key not in self._read:
            try:
                self._read[key] = run_config.flatten(yaml_source.read_yaml(path).as_data())
            except UsageError:
                self._read[key] = {}
        return self._read[key]

    def changes(self, point: Point, home: Path) -> list[str]:
        """In what the configuration differs from that of a run that exists already, passive settings aside.

        An option that the run lacks is new in a later zoo, and counts only if the recipe or the command line sets it.
        """
        path, config_plan = home / CONFIG, self._plans[f"{point.recipe}/{point.variant}"]
        old = dict(self._configuration(path)) if path.is_file() else {}
        if not old:
            return []
        new = run_config.flatten(run_config.as_yaml(config_plan.config)) | {CALLBACKS: None}
        new |= run_config.identity_config(config_plan)
        now = run_state.read_record(home).get("config") or new  # a run that was killed before its first record
        old |= {name: now.get(name) for name in (CALLBACKS, "on_nonfinite")}
        old = {key: value for key, value in old.items() if not key.startswith(f"{CALLBACKS}.")}
        new = {key: value for key, value in new.items() if not key.startswith(f"{CALLBACKS}.")}
        blanks = {f"model.{name}" for name in config_plan.resolved.classes["model"].data_sizes}
        always = {*old, CALLBACKS}
        keys = [key for key in dict.fromkeys([*old, *new]) if key in always or key in config_plan.resolved.origins]
        return [
            f"{key} was {old.get(key)} and is {new.get(key)}"
            for key in keys
            if key.startswith(("model", "data", "trainer", "tune", "compile", "on_nonfinite"))
            and not (is_passive(key, old.get(key)) and is_passive(key, new.get(key)))
            and (old.get(key) or None) != (new.get(key) or None)
            and not (key in blanks and new.get(key) is None)  # the data filled it in
        ]

    def code(self, point: Point) -> dict[str, Any]:
        """The code that a run of this configuration would have now."""
        from zoo.logging.code_identity import code_identity

        return code_identity(point.config)


SECTIONS = ("model", "data", "trainer", "tune")
TASK = "model"  # the key of the task itself
COMBINATIONS = ("grid", "one-at-a-time")
MANY, MOST_SEEDS = 12, 1000  # variants of a grid that need an explicit --design grid; seeds
PAIRS, OPEN, CLOSE = {"'": "'", '"': '"'}, "[{(", "]})"


@dataclass(frozen=True)
class Choice:
    """One option and its value, as on the command line of `zoo fit`."""

    key: str
    value: str

    @property
    def word(self) -> str:
        """The argument for `zoo fit`."""
        return f"--{self.key}={self.value}"

    def __str__(self) -> str:
        return f"{self.key.rpartition('.')[2]}={self.value}"


@dataclass(frozen=True)
class Factor:
    """A varied option and its values."""

    key: str
    values: tuple[str, ...]

    def choices(self) -> list[Choice]:
        """The option with each of its values."""
        return [Choice(self.key, value) for value in self.values]


Variant = tuple[Choice, ...]  # nothing: the recipe itself


def parse_factor(text: str) -> Factor:
    """The factor of a ``--vary model.position=none,rope,{class_path: RoPE, init_args: {base: 500}}``.

    Raises UsageError if it is not OPTION=VALUE,VALUE.
    """
    key, equals, values = text.partition("=")
    pieces = join_paths(split_values(values))
    if not equals or not pieces:
        raise UsageError(f"--vary {text!r} is not OPTION=VALUE,VALUE: such as --vary model.position=rope,alibi")
    return make_factor(key.strip().removeprefix("--"), pieces)


def make_factor(key: str, values: Sequence[str]) -> Factor:
    """A factor with full part names for short ones. Raises UsageError for an invalid option or no values."""
    section, dot, option = key.partition(".")
    if key != TASK and (section not in SECTIONS or not dot or not option):
        if key in ("seed", "seeds", "seed_everything"):
            raise UsageError(f"{key!r} is no option to vary: --seeds names the seeds of every variant, as --seeds 1,2.")
        full_name = nearest_option(key)
        example = f", as {full_name!r}" if full_name else ""
        raise UsageError(
            f"{key!r} cannot vary: the task varies as 'model', "
            f"and all else begins with model, data, trainer or tune{example}."
        )
    if not values:
        raise UsageError(f"{key!r} has no values to vary over.")
    return Factor(key, tuple(dict.fromkeys(spell_value(key, value) for value in values)))


def spell_value(key: str, value: str) -> str:
    """The value itself, or the full name of a part for a short one: NoPosition for `none` as model.position."""
    return registry.full_name(key.removeprefix("model."), value)


def option_text(value: object) -> str:
    """A value as the text of a command-line option, in JSON, which YAML parses."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def parse_factors(texts: Sequence[str]) -> tuple[Factor, ...]:
    """The factors of all ``--vary`` options. Raises UsageError for an option that occurs twice."""
    result = [parse_factor(text) for text in texts]
    keys = [factor.key for factor in result]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key!r} varies twice: write all its values into one --vary.")
    return tuple(result)


def split_values(text: str) -> list[str]:
    """Split at commas, except inside brackets or quotes around a value, which go if it has commas (`quote_value`).

    Raises UsageError for quotes that never close.
    """
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in PAIRS and (
            pieces[-1].rstrip()[-1:] in ("", "=") or (depth > 0 and pieces[-1].rstrip()[-1] in f"{OPEN},:")
        ):
            quote = letter
        elif letter in OPEN or letter in CLOSE:
            depth += 1 if letter in OPEN else -1
        if letter == "," and not quote and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    if quote:
        raise UsageError(f"{text!r:.80}: a value begins with {quote} and does not end with it.")
    values = [piece.strip() for piece in pieces if piece.strip()]
    return [value[1:-1] if value[0] in PAIRS and value[-1] == value[0] and "," in value else value for value in values]


def quote_value(value: str) -> str:
    """A value as `split_values` reads it: in quotes where it holds a comma outside of brackets, or begins with one."""
    quotes = ("," in value and value[:1] not in OPEN) or value[:1] in PAIRS
    return next((f"{mark}{value}{mark}" for mark in PAIRS if quotes and mark not in value), value)


def join_paths(pieces: Sequence[str]) -> list[str]:
    """The same with folders and files put together again whose own names hold commas, as those of runs do."""

    def is_path(text: str) -> bool:
        option, equals, value = text.partition("=")
        paths = [text, *([value] if equals and "/" not in option else [])]
        return any(os.path.exists(os.path.expanduser(path)) for path in paths)

    joined: list[str] = []
    remaining = list(pieces)
    while remaining:
        # a piece of --baseline begins with its option, whose name holds no slash
        ends = (n for n in range(len(remaining), 1, -1) if "/" in remaining[0] and is_path(",".join(remaining[:n])))
        count = next(ends, 1)
        joined.append(",".join(remaining[:count]))
        del remaining[:count]
    return joined


def parse_baseline(text: str, varied: Sequence[Factor]) -> Variant:
    """The values of varied options in ``--baseline position=rope,norm=rmsnorm``; others stay the recipe's.

    Raises UsageError for an option that is not varied.
    """
    choices: dict[str, Choice] = {}
    for piece in join_paths(split_values(text)):
        name, equals, value = piece.partition("=")
        name = name.strip().removeprefix("--")
        keys = [factor.key for factor in varied]
        fits = [key for key in keys if key == name or key.endswith(f".{name}")]
        if len(fits) != 1:
            hint = registry.suggest(name, [*keys, *(key.rpartition(".")[2] for key in keys)])
            raise UsageError(f"--baseline {text!r}: {name!r} does not vary.{hint} What does: {', '.join(keys)}")
        if not equals or not value.strip():
            raise UsageError(f"--baseline {text!r} is not OPTION=VALUE, such as: --baseline {varied[0].choices()[0]}")
        choices[fits[0]] = Choice(fits[0], spell_value(fits[0], value.strip()))
    return tuple(choices.values())


def design_variants(varied: Sequence[Factor], base: Variant, design: str | None) -> list[Variant]:
    """The baseline, then every variant of the design, possibly with duplicates.

    Raises UsageError for an unknown design, and for a grid of more than MANY variants without an explicit design.
    """
    if design is not None and design not in COMBINATIONS:
        near = registry.suggest(design, COMBINATIONS)
        raise UsageError(f"no design {design!r}.{near} There are: {', '.join(COMBINATIONS)}")
    if design == "one-at-a-time":
        alone = [(*(option for option in base if option.key != factor.key), choice)
                 for factor in varied for choice in factor.choices()]  # fmt: skip
        return [base, *alone]
    count = math.prod(len(factor.values) for factor in varied)
    if design is None and count > MANY:
        sizes, fewer = (
            " x ".join(str(len(factor.values)) for factor in varied),
            sum(len(factor.values) for factor in varied),
        )
        raise UsageError(
            f"{sizes} = {count} variants. Run them all: --design grid\n"
            f"Vary one option at a time from the baseline, {fewer} variants: --design one-at-a-time"
        )
    return [base, *itertools.product(*(factor.choices() for factor in varied))]


def variant_text(variant: Variant) -> str:
    """A variant in messages: `position=ALiBi,norm=RMSNorm`; `the recipe` without any choice."""
    return ",".join(map(str, variant)) or "the recipe"


def parse_looks(text: str) -> str:
    """The numbers of seeds of a ``--looks``, ``5,10``, without spaces. Raises UsageError unless they ascend from 2."""
    counts = [int(piece) if piece.strip().isdecimal() else 0 for piece in text.split(",")]
    if counts[0] < 2 or counts[-1] > MOST_SEEDS or any(low >= high for low, high in itertools.pairwise(counts)):
        raise UsageError(
            f"--looks {text!r:.40}: numbers of seeds after which to look, ascending from 2 to at most {MOST_SEEDS}, "
            "such as 5,10"
        )
    return ",".join(map(str, counts))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of a ``--seeds``: `5` means 1 to 5, `1,2,7` these three, `7,` only 7. Raises UsageError for others."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not pieces or not all(piece.isdecimal() and int(piece) < 2**32 for piece in pieces):
        raise UsageError(f"--seeds must be a number of seeds, or seeds such as 1,2,7: got {text!r}.")
    numbers = [int(piece) for piece in pieces]
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if not 0 < numbers[0] <= MOST_SEEDS:
        raise UsageError(f"--seeds {text}: from 1 to {MOST_SEEDS} of them. One seed by its number: --seeds {text},")
    return tuple(range(1, numbers[0] + 1))
