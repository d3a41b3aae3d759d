"""Read run records: the ledger.json and the state of each run folder, runs/<recipe>/<variant>/s<seed>.

Does not import torch.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from zoo.compare.number_format import NONE
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import KEY, check_digest, content_digest, with_digest
from zoo.io.linked_folders import files_below
from zoo.logging.run_state import CONFIG, LEDGER, TEST, path_beside

LARGEST_SEED = 2**32 - 1  # the largest that numpy takes
DIGITS = re.compile(r"(\d+)")
FORMAT = 1
UNMEASURED = "without a figure"  # a run that went through, and whose metric has no finite value
NOT_REACHED = "short of the target"  # a run that went through without a validation that reached it
FAILURES = ("diverged", NOT_REACHED, "out of memory", "crashed", UNMEASURED)  # outcomes without a figure
BACKWARD = 3  # cost of a training step in forward passes: the gradient of a matrix product is two products
CRASH = ".crash.json"  # how a run's process died, beside its folder
OTHER_SEED = "and stands in the folder of another seed"
# what a run has reached: equal for one that was read, copied or measured again
REACHED = ("recipe", "seed", "goals", "steps", "tokens", "validations", "best", "last", "finished", "outcome")
DECISIVE = "last"  # the validation that decides unless --at says otherwise


@dataclass(frozen=True)
class RunRecord:
    """The content of one ledger.json. ``problem`` says why it cannot be read, and is empty if it can."""

    path: Path
    recipe: str
    variant: str
    seed: int
    choices: Mapping[str, Any] = field(default_factory=dict)
    goals: Mapping[str, str] = field(default_factory=dict)
    unit: str = "token"
    prediction: str = ""  # what the goals judge
    data: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    validations: Sequence[Mapping[str, Any]] = ()
    steps: int = 0
    tokens: int = 0
    best: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    diverged: bool = False  # as recorded by the run; `diverged_on` also checks its figures
    outcome: Mapping[str, Any] = field(default_factory=dict)  # state, step and cause
    config: Mapping[str, Any] = field(default_factory=dict)  # the whole configuration by dotted keys
    code: Mapping[str, Any] = field(default_factory=dict)  # by top-level module
    earlier_code: Sequence[Mapping[str, Any]] = ()
    resumed: Sequence[Mapping[str, Any]] = ()  # from which steps it went on with other options or data, and which
    test: Mapping[str, Any] = field(default_factory=dict)  # figures of the test split, where they were measured
    problem: str = ""

    @property
    def shares_gpu(self) -> bool:
        """Whether other runs had the same GPU, so that its speed and memory say nothing."""
        return bool(self.setting.get("gpu_share"))

    @property
    def name(self) -> str:
        """The run's name in messages: ``position=alibi s3``."""
        return f"{self.variant} s{self.seed}"

    def diverged_on(self, goal: str) -> bool:
        """Whether training diverged: the run recorded it, or its newest loss is infinite or NaN.

        ``goal`` stands for the loss in records that have none. A good figure from before does not count, because the
        run did not use its whole budget for it.
        """
        newest = [(figures, "loss" if "loss" in figures else goal) for figures in (self.last, *self.validations[-1:])]
        return self.diverged or any(
            name in figures and not math.isfinite(number(figures[name])) for figures, name in newest
        )

    def failure(self, goal: str, at: str = DECISIVE) -> str:
        """One of FAILURES if the run ended without a figure for this reason, else empty."""
        target = target_of(at)
        if target is not None and self.reaching_step(goal, target) is not None:
            return ""
        if self.diverged_on(goal):
            return "diverged"
        state = str(self.outcome.get("state", ""))
        if not self.finished:
            return state if state in FAILURES else ""
        if target is not None:
            return NOT_REACHED
        return UNMEASURED if goal in self.goals and not math.isfinite(number(self.last.get(goal))) else ""

    @property
    def ended_early(self) -> bool:
        """Whether the run ended without its whole training: diverged, out of memory, or crashed."""
        before_its_record = not self.goals and not self.finished and self.outcome.get("state") in FAILURES
        return before_its_record or any(self.failure(goal) not in ("", UNMEASURED) for goal in self.goals)

    @property
    def has_ended(self) -> bool:
        """Whether the run finished or ended early."""
        return self.finished or self.ended_early

    def digest(self) -> str:
        """The digest of what the run has reached, by which one that was made again is told from one that was read.

        Empty where it ended without a result by no fault of its variant: it may be made again unseen.
        """
        if self.outcome.get("state") in ("crashed", "out of memory") and not self.finished:
            return ""
        return content_digest({name: getattr(self, name) for name in REACHED})

    def figure(self, goal: str, at: str = DECISIVE) -> float | None:
        """The run's figure for a goal; NaN if it failed, None if it has none yet.

        ``at`` is "last" or "best" of its validations, "last:3" for the mean of the last three, or "test" for the test
        split; "to:4.2" is log2 of the step at which a validation first reaches 4.2. Raises UsageError if it has fewer
        validations than that.
        """
        if self.problem:
            return None
        target = target_of(at)
        if target is not None and (self.finished or self.failure(goal)):
            step = self.reaching_step(goal, target)
            return math.nan if step is None else math.log2(step)
        if self.failure(goal):
            return math.nan
        if not self.finished:
            return None
        what, _, count = at.partition(":")
        if count:
            return self._mean_of_last(goal, int(count))
        if what == "test" and not self.test:
            home = self.path.parent
            words = ["zoo", "test", str(home / CONFIG), "--ckpt_path", str(home / "checkpoints" / "last.ckpt")]
            raise UsageError(
                f"--at test: {home} has no figures of an untouched test split. Measure them:\n{shlex.join(words)}"
            )
        figures = {"best": self.best, "last": self.last, "test": self.test}[what]
        return number(figures.get(goal)) if goal in figures or goal in self.goals else None

    def reaching_step(self, goal: str, target: float) -> float | None:
        """The step at which straight lines between validations first reach a target; None if none does.

        Raises UsageError where the first validation has reached it already: nothing says when.
        """
        sign = 1 if self.goals.get(goal) == "min" else -1
        points = [(number(validation.get("step")), sign * (number(validation[goal]) - target))
                  for validation in self.validations if goal in validation]  # fmt: skip
        points = [(step, gap) for step, gap in points if math.isfinite(step) and math.isfinite(gap)]
        index = next((index for index, (_, gap) in enumerate(points) if gap <= 0), None)
        if index is None:
            return None
        if index == 0:
            raise UsageError(
                f"--to {goal}={target:g}: {self.name} has reached it by its first validation, at step "
                f"{points[0][0]:.0f}.\nValidate more often (--trainer.val_check_interval), or name a target that takes "
                "longer."
            )
        (before, above), (after, below) = points[index - 1 : index + 1]
        return before + (after - before) * above / (above - below)

    def _mean_of_last(self, goal: str, count: int) -> float:
        values = [number(validation[goal]) for validation in self.validations if goal in validation][-count:]
        if len(values) < count:
            raise UsageError(
                f"--at last:{count}: {self.name} has {len(values)} validations. Validate more often "
                "(--trainer.val_check_interval), or take fewer."
            )
        return sum(values) / count


def planned_steps(runs: Mapping[int, RunRecord]) -> dict[int, int]:
    """How long each run of a variant was to train, by seed: one that ended early as long as the longest of them."""
    longest = max((run.steps for run in runs.values()), default=0)
    return {seed: run.steps if run.finished else longest for seed, run in runs.items()}


def parse_moment(text: str) -> str:
    """The moment at which the decisive figure is taken, as `--at` has it. Raises UsageError for an unknown one."""
    what, colon, count = text.partition(":")
    if (target := target_of(text)) is not None:
        return f"to:{target:.15g}"  # however it is written
    if (what in ("best", "last", "test") and not colon) or (what == "last" and count.isdecimal() and int(count) > 0):
        return text
    raise UsageError(f"--at {text!r}: figures are taken at last, last:3 (the mean of the last three), test, or best.")


def target_of(at: str) -> float | None:
    """The target of a moment such as ``to:4.2``; None for another one. Raises UsageError for a target of no number."""
    what, _, text = at.partition(":")
    if what != "to":
        return None
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise UsageError(f"--at {at!r}: a target is a finite number, such as --to loss=4.2")
    return target


def is_lower_better(way: str, at: str = DECISIVE) -> bool:
    """Whether lower figures are better, for a goal of "min" or "max": always for steps to a target."""
    return way == "min" or target_of(at) is not None


def number(value: Any) -> float:
    """A figure of a record as float; NaN for null, which strict JSON has in its place, and anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def read_records(*folders: str | Path) -> list[RunRecord]:
    """The records of all runs below some folders, sorted by path; unreadable ones have their ``problem`` set.

    Raises UsageError if a folder does not exist or contains no run.
    """
    records: dict[Path, RunRecord] = {}
    for root in map(Path, folders):
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder of runs. To make one: zoo compare RECIPE --vary … --seeds 5")
        files = files_below(root, (LEDGER, CONFIG).__contains__)
        below = list(dict.fromkeys(path.parent / LEDGER for path in files))
        if not below:
            raise UsageError(f"{root} holds no run: no {LEDGER} below it. zoo fit writes one into each run's folder.")
        # s2 before s10
        below.sort(
            key=lambda path: [[int(piece) if piece.isdigit() else 0, piece] for piece in DIGITS.split(str(path))]
        )
        records |= {path.resolve(): parse_record(path) for path in below}
    return list(records.values())


def shared_goals(runs: Iterable[RunRecord]) -> dict[str, str]:
    """The metrics that all runs have, which judge the same prediction, in the order of the first run; {} for none."""
    records = [run for run in runs if run.goals]
    if not records:
        return {}
    first_run = records[0]
    if any((run.prediction, run.unit) != (first_run.prediction, first_run.unit) for run in records):
        return {}
    return {name: way for name, way in first_run.goals.items() if all(run.goals.get(name) == way for run in records)}


def check_one_task(ledgers: Sequence[RunRecord]) -> None:
    """Raise UsageError for runs of tasks that have no metric in common: no table could compare them."""
    if not any(ledger.goals for ledger in ledgers) or shared_goals(ledgers):
        return
    tasks: dict[tuple[str, str, str], str] = {}
    for ledger in ledgers:
        if ledger.goals:
            tasks.setdefault((next(iter(ledger.goals)), ledger.unit, ledger.prediction), ledger.recipe)
    if len(tasks) > 1:
        by_task = "; ".join(
            f"{recipe} by {goal} per {unit} of {prediction}" for (goal, unit, prediction), recipe in tasks.items()
        )
        raise UsageError(f"these runs learn different tasks, which are judged by different figures: {by_task}.\n"
                         "Compare runs of one task.")  # fmt: skip


def parse_record(path: Path) -> RunRecord:
    """The record in a ledger.json; for a damaged or foreign file, a record with its ``problem`` set."""
    seed = re.fullmatch(r"s(\d+)", path.parent.name)
    variant = path.parent.parent.name if seed else path.parent.name
    recipe = path.parent.parent.parent.name if seed else path.parent.parent.name

    def invalid(why: str) -> RunRecord:
        return RunRecord(path, recipe, variant, int(seed.group(1)) if seed else 0, problem=why)

    try:
        content = limits.read_json(path)
    except FileNotFoundError:
        crash = read_crash(path.parent)
        if crash:  # before its first record
            return RunRecord(path, recipe, variant, int(seed.group(1)) if seed else 0, outcome=crash)
        return invalid(f"{path.parent} has no {LEDGER}: it has not saved one yet")
    except (OSError, ValueError) as error:
        return invalid(f"{path} is damaged: {' '.join(str(error).split())}")
    if not isinstance(content, dict) or "format" not in content or "variant" not in content:
        return invalid(f"{path} is not a run record of zoo")
    if KEY in content and content[KEY] != content_digest(content):
        return invalid(f"{path} was changed after zoo wrote it")
    if content["format"] != FORMAT:
        return invalid(f"{path} has format {content['format']!r}, and this version of zoo reads format {FORMAT}")
    wrong = [name for name, kind in KINDS.items() if name in content and not isinstance(content[name], kind)]
    missing = [name for name in KINDS if name not in content and name not in OPTIONAL]
    goals = content.get("goals")
    if wrong or missing or not goals or not all(goal in ("min", "max") for goal in goals.values()):
        return invalid(f"{path} is damaged: no valid {', '.join([*missing, *wrong]) or 'goals'}")
    inner = {
        "validations": all(isinstance(validation, dict) for validation in content["validations"]),
        "batches": isinstance(content["batches"].get("first", []), list),
        "code": all(isinstance(module, dict) for module in content["code"].values()),
        "resumed": all(
            isinstance(resume, dict) and isinstance(resume.get("changes"), dict)
            for resume in content.get("resumed") or ()
        ),
        "seed": 0 <= content["seed"] <= LARGEST_SEED,
    }
    if not all(inner.values()):
        return invalid(f"{path} is damaged: no valid {', '.join(name for name, valid in inner.items() if not valid)}")
    if seed and content["seed"] != int(seed.group(1)):
        return invalid(f"{path} is the record of seed {content['seed']}, {OTHER_SEED}")
    if not content["finished"] and (crash := read_crash(path.parent)):
        content["outcome"] = crash
    content["test"] = _read_test(path.parent, content)
    return RunRecord(path, **{name: content[name] for name in KINDS if name in content})


def _read_test(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the test split at the run's last step; empty if they were not measured, or of another state."""
    test = read_object(folder / TEST)
    if test.get("untouched") is not True or not isinstance(test.get("figures"), dict):
        return {}
    return dict(test["figures"]) if test.get("digest") == (content.get("batches") or {}).get("digest") else {}


def record_crash(folder: Path, cause: str) -> None:
    """Record beside a run's folder that its process died, and how often that has happened."""
    restarts = read_crash(folder).get("crashes", 0)
    content = {"state": "crashed", "cause": cause, "crashes": restarts + 1}
    atomic_files.write_json(path_beside(folder, CRASH), content, end="\n")


def read_crash(folder: Path) -> dict[str, Any]:
    """What `record_crash` recorded; empty for nothing."""
    content = read_object(path_beside(folder, CRASH))
    return content if isinstance(content.get("crashes"), int) else {}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty for no file, and for anything else in it."""
    try:
        content = limits.read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


KINDS: dict[str, type | tuple[type, ...]] = {
    "recipe": str, "variant": str, "seed": int, "unit": str, "prediction": str,
    "steps": int, "tokens": (int, float), "finished": bool,
    "diverged": bool, "validations": list, "earlier_code": list, "resumed": list,
    **dict.fromkeys(("choices", "goals", "data", "start", "batches", "setting", "cost", "best", "last"), dict),
    **dict.fromkeys(("outcome", "config", "code", "test"), dict),
}  # fmt: skip
OPTIONAL = ("resumed", "test")  # absent where a run was not resumed with other options, or not tested
assert set(KINDS) <= {field.name for field in fields(RunRecord)}


def chosen_alike(value: object, second: object) -> bool:
    """Whether two values of an option are the same; an option that a run lacks is as if it were None."""
    missing = (None, "None", "none")
    return value == second or (value in missing and second in missing)


def group_by_variant(ledgers: Iterable[RunRecord]) -> dict[str, dict[int, RunRecord]]:
    """Readable records as variant → seed → record; variants are ``recipe/variant`` if there are several recipes.

    Of two runs of one variant and seed the one that ended counts, then the first; see `duplicate_runs` for the others.
    """
    readable = [ledger for ledger in ledgers if not ledger.problem]
    several = len({ledger.recipe for ledger in readable}) > 1
    groups: dict[str, dict[int, RunRecord]] = {}
    spellings: dict[tuple[str, ...], str] = {}  # the order of the pieces in a folder's name means nothing
    for ledger in readable:
        variant = spellings.setdefault((ledger.recipe, *sorted(name_pieces(ledger.variant))), ledger.variant)
        seeds = groups.setdefault(f"{ledger.recipe}/{variant}" if several else variant, {})
        twin = seeds.get(ledger.seed)
        if twin is None or (ledger.has_ended and not twin.has_ended):
            seeds[ledger.seed] = ledger
    return {name: dict(sorted(seeds.items())) for name, seeds in groups.items()}


def duplicate_runs(ledgers: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs that `group_by_variant` ignores because another has the same recipe, variant and seed."""
    records = list(ledgers)
    grouped_ids = {id(ledger) for seeds in group_by_variant(records).values() for ledger in seeds.values()}
    return [ledger for ledger in records if not ledger.problem and id(ledger) not in grouped_ids]


DEFAULT = "default"


def name_pieces(variant: str) -> list[str]:
    """The options in which a variant differs from its recipe, as its folder's name has them; their order varies."""
    last = variant.rpartition("/")[2]
    return [] if last == DEFAULT else last.split(",")


def short_names(variants: Iterable[str]) -> dict[str, str]:
    """Names without the options that all variants share, such as a number of steps; "default" where none is left.

    A single variant keeps its name, which would otherwise be that of another.
    """
    names = list(variants)
    if len(names) == 1:
        return {names[0]: names[0]}
    shared = set.intersection(*(set(name_pieces(name)) for name in names)) if names else set()
    short = {}
    for name in names:
        recipe, slash, _ = name.rpartition("/")
        short[name] = recipe + slash + (",".join(p for p in name_pieces(name) if p not in shared) or DEFAULT)
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def describe_values(value: object) -> str:
    """An option's value as text for tables."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def label_variants(choices: Mapping[str, Mapping[str, object]], names: Sequence[str], baseline: str) -> dict[str, str]:
    """What variants are called in all that people read: the values that differ from the baseline's, "SwiGLU + ALiBi".

    ``choices`` are the options of each variant by its name, and ``names`` those that vary. The baseline is called by
    its own value if one option is varied, else by its short name. Short names are used for all if values do not tell
    variants apart, or if an option of a part is one of several varied options.
    """
    values = {variant: [describe_values(options.get(n, NONE)) for n in names] for variant, options in choices.items()}
    usual, short = values[baseline], short_names(choices)
    if len(names) > 1 and any(_same_part(*pair) for own in values.values() for pair in zip(own, usual, strict=True)):
        return short
    labels = {}
    for variant, own in values.items():
        differing = [
            value if value[:1].isupper() else f"{name}={value}"
            for name, value, of_baseline in zip(names, own, usual, strict=True)
            if value != of_baseline
        ]
        labels[variant] = " + ".join(differing) if differing and variant != baseline else short[variant]
    if len(names) == 1 and usual != [NONE]:
        labels[baseline] = usual[0] if usual[0][:1].isupper() else f"{names[0]}={usual[0]}"
    return labels if len(set(labels.values())) == len(labels) else short


def _same_part(value: str, usual: str) -> bool:
    return value != usual and "(" in value + usual and value.partition("(")[0] == usual.partition("(")[0]


def closest_to_recipe(variants: Iterable[str]) -> str:
    """The variant that differs least from its recipe, the first of equals."""
    return min(variants, key=lambda name: len(name_pieces(name)))


def match_variant(text: str, choices: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The variants that ``text`` may mean: by name, or by what they choose, `position=rope` or `rope`.

    ``choices`` holds the options of each variant by its name.
    """
    exact = [name for name in choices if text in (name, name.rpartition("/")[2], name.partition("/")[0])]
    exact = exact or [name for name, short in short_names(choices).items() if text == short]
    exact = exact or [name for name in choices if sorted(name_pieces(text)) == sorted(name_pieces(name))]
    if exact:
        return exact
    words = [word.strip().casefold() for word in text.split(",") if word.strip()]
    fitting = []
    for name, choice in choices.items():
        values = {f"{key.rpartition('.')[2]}={value}" for key, value in choice.items()}
        values |= {f"{key}={value}" for key, value in choice.items()} | set(choice.values()) | set(name_pieces(name))
        fitting += [name] if words and {*words} <= {value.casefold() for value in values} else []
    return fitting


RUNS_FILE, RUNS_FORMAT = "runs.json", 2
FOLDER = "compare"


@dataclass(frozen=True)
class Record:
    """The content of runs.json: a comparison's run folders and the options that the run records do not hold."""

    folders: tuple[Path, ...]
    baseline: str | None
    goal: str | None = None
    budget: str | None = None
    tuned: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    varied: tuple[str, ...] | None = None  # the options that vary; None where only the runs can tell
    at: str | None = None  # when the decisive figure is taken; None: the default
    margin: float | None = None
    until: str | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)  # as of `match_and_tune.tune_variants`
    design: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what a design recorded, by its name


RECORDED = {field.name for field in fields(Record)} | {"format", "runs", KEY}
NO_DESIGN: dict[str, Any] = {"scale": {}}  # which runs.json has without any design, for its readers


def comparison_path(root: Path, recipe: str, title: str) -> Path:
    """``<root>/<recipe>/compare/<title>``."""
    return root / recipe / FOLDER / title


def save_record(home: Path, record: Record) -> None:
    """Write runs.json, with run folders relative to it, so that all of them can be moved together."""
    home.mkdir(parents=True, exist_ok=True)
    runs = [os.path.relpath(folder, home) for folder in record.folders]
    content = {"format": RUNS_FORMAT, "runs": runs, **asdict(replace(record, folders=())), **NO_DESIGN, **record.design}
    del content["folders"], content["design"]
    atomic_files.write_json(home / RUNS_FILE, with_digest(content), end="\n")


def load_record(home: Path) -> Record | None:
    """The record in a comparison's folder; None for any other folder. Raises UsageError if it is damaged."""
    path = home / RUNS_FILE
    if not path.is_file():
        return None
    try:
        content: Any = limits.read_json(path)
        check_digest(content)
        place = home.resolve() if home.is_symlink() else home
        folders = tuple(Path(os.path.normpath(place / run)) for run in content["runs"])
        tuned = {str(name): str(sentence) for name, sentence in content["tuned"].items()}
        fields = {name: content[name] for name in ("baseline", "goal", "budget", "command", "at", "until")}
        margin = content["margin"]
        wrong = [name for name, value in fields.items() if not isinstance(value, str | None)]
        if margin is not None and not (type(margin) in (int, float) and 0 < margin < math.inf):
            wrong.append("margin")
        if wrong:
            raise ValueError(f"no valid {', '.join(wrong)}")
        design = {name: dict(value) for name, value in content.items() if value and name not in RECORDED}
        return Record(
            folders, tuned=tuned, tuning=dict(content["tuning"]), design=design,
            varied=content["varied"] and tuple(map(str, content["varied"])), margin=margin, **fields,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"{path} is damaged: {limits.describe_damage(error)}. Run the comparison again: it repeats no run."
        ) from error


def read_ledgers(folders: Sequence[Path], budget: str | None = None) -> list[RunRecord]:
    """The records of those of ``folders`` that have one; ``budget`` is added to their settings.

    Raises UsageError for a record that belongs to the run of another folder.
    """
    ledgers: list[RunRecord] = []
    for folder in folders:
        try:
            ledgers += read_records(folder)
        except UsageError:  # not started, or no record yet
            ledgers += [parse_record(folder / LEDGER)] if read_crash(folder) else []
    for ledger in ledgers:
        folder = ledger.path.parent
        copied = sorted(name_pieces(ledger.variant)) != sorted(name_pieces(folder.parent.name))
        if OTHER_SEED in ledger.problem or (copied and not ledger.problem):
            whose = "" if ledger.problem else f": {ledger.name}"
            raise UsageError(
                f"{ledger.path} is the record of another run{whose}.\nRestore it, or remove {folder} and run the "
                "comparison again."
            )
    if budget is None:
        return ledgers
    return [replace(ledger, setting={**ledger.setting, "budget": budget}) for ledger in ledgers]
