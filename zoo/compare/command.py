"""`zoo compare`: which comparison a command line or a file describes, or which finished runs are to be read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import recipe_files
from zoo.command_line import ParsedOptions
from zoo.compare import executor, plan
from zoo.compare.commands import Compare
from zoo.compare.design import (
    KIND,
    PLAIN_DESIGN,
    SEVERAL,
    check_target,
    chosen_design,
    design_of_folder,
    design_options,
    find_design,
)
from zoo.compare.plan import Comparison, fit_words, take_shard
from zoo.compare.run_records import parse_moment
from zoo.config import yaml_source
from zoo.config.fit_options import SECTIONS
from zoo.config.output_paths import check_output_path
from zoo.errors import UsageError
from zoo.registry import RECIPES, not_installed, suggest

if TYPE_CHECKING:
    from zoo.compare.verdict import Answer

FILE_KEYS = (
    "recipe", "vary", "seeds", "until", "looks", "baseline", "design", "budget", "match", "tune", "tune_seeds", "goal",
    "at", "to", "margin", "options",
)  # fmt: skip
TAKEN_AS_THEY_ARE = (
    "baseline", "design", "budget", "match", "tune", "tune_seeds", "goal", "at", "margin", "until",
)  # fmt: skip
OWN_KEYS = ("recipe", "vary", "options")  # which are no options of zoo compare
MOST_UNTIL_DECIDED = 30  # seeds of --until decided
# options for new runs
RUN_OPTIONS = (
    "seeds", "until", "looks", "design", "budget", "match", "tune", "tune_seeds", "jobs", "shard", "executor",
    "resources", "dry_run", "config", "compile",
)  # fmt: skip
# what an option of the command line replaces in a comparison's file, besides itself
RIVALS = {
    "looks": ("seeds", "until"), "seeds": ("looks",), "until": ("looks",),
    "to": ("goal", "at"), "at": ("to",),
}  # fmt: skip


def compare(
    recipe: str | Path,
    vary: Mapping[str, Sequence[Any]],
    options: Mapping[str, Any] | None = None,
    *,
    seeds: int = 3,
    runs: str | Path = "runs",
    arguments: Sequence[str] = (),
) -> Answer:
    """Compare variants of a recipe as `zoo compare` does, and return the answer; the first value is the baseline's.

    ``vary`` has the values of options by dotted names, ``{"model.position": ["rope", "alibi"]}``, and ``options`` what
    all runs share; ``arguments`` are further words of the command, such as ``--at=best``. Runs that are finished are
    not repeated, and those that fail are counted. Raises UsageError for wrong options, and where no run has ended.
    """
    from zoo.cli.environment_errors import working_folder
    from zoo.cli.find_command import find_command, parse
    from zoo.cli.train import keep_globals, option_words, value_text
    from zoo.compare import error_budget, run_comparison
    from zoo.system.stop_signals import handle_signals

    working_folder()
    for name, values in vary.items():
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise UsageError(
                f"vary[{name!r}] is {values!r:.60}: it must be a list of values, such as ['rope', 'alibi']"
            )
    texts = {name: [*map(value_text, values)] for name, values in vary.items()}
    varied = [f"{name}={','.join(map(plan.quote_value, values))}" for name, values in texts.items()]
    words = [*(word for text in varied for word in ("--vary", text)), f"--seeds={seeds}", f"--runs={runs}"]
    parsed = parse(find_command("compare"), [os.fspath(recipe), *words, *option_words(options or {}), *arguments])
    parsed = replace(parsed, values=expand_target(parsed.values))
    comparison = read_comparison(parsed)
    if comparison is None or comparison.design.recipes != 1 or len(parsed.words) > 1:
        raise UsageError("zoo.compare compares variants of one recipe: vary must name an option and its values.")
    comparison = replace(
        comparison, vary=tuple(plan.make_factor(name.strip(), values) for name, values in texts.items())
    )
    with handle_signals(False, restore=True), keep_globals():
        finished, code = run_comparison.run_comparisons(parsed, [comparison])
    if not finished:
        raise UsageError(
            f"no run has ended: zoo compare would exit with {code}. --dry-run and --shard are for commands."
        )
    answer, folder = error_budget.look_and_record(finished[0].record, parsed, finished[0].place)
    run_comparison.print_answer(answer, parsed, folder)
    return answer


def run(options: ParsedOptions) -> int:
    """`zoo compare`."""
    options = replace(options, values=expand_target(options.values))
    fit_words(options)  # checked, like the shard, before torch is imported
    take_shard([], options.get("shard"))
    sequential = next((f"--{name} {options.get(name)}" for name in ("until", "looks") if options.get(name)), None)
    if options.get("shard") and sequential:
        raise UsageError(f"{sequential} looks at all runs after some seeds, which --shard I/N divides: leave one out.")
    if options.get("tries") and not options.get("series"):
        raise UsageError("--tries is the number of variants of a series: add --series FILE")
    comparison = read_comparison(options)
    if comparison is not None and comparison.until == "decided" and "test" in options.values:
        raise UsageError(
            f"--test {options.get('test')} does not go with --until decided, which looks after any number of seeds by "
            "a test of its own. Leave one out, or plan the looks: --looks 5,10"
        )
    if comparison is not None and "tune_seeds" in options.values and not comparison.tune:
        raise UsageError("--tune-seeds is the number of seeds that tune an option: add --tune OPTION=VALUE,VALUE")
    executor.read_request(options)
    if comparison is None:
        return _answer_folders(options)
    from zoo.compare import run_comparison

    design = comparison.design if len(options.words) <= comparison.design.recipes else find_design(SEVERAL)
    if design is PLAIN_DESIGN:
        return run_comparison.run_and_show(options, comparison)
    return design.load().run(options, comparison, run_comparison.run_and_show)


def _answer_folders(options: ParsedOptions) -> int:
    """Read finished runs; without torch."""
    from zoo.compare import run_comparison

    of_designs = [option.destination for option in design_options()]
    run_options = [f"--{name.replace('_', '-')}" for name in (*RUN_OPTIONS, *of_designs) if name in options.values]
    names = [f"--{key}" for key, _, _ in options.settings] or run_options
    if names:
        raise UsageError(f"{names[0]!r} is for new runs, not for finished ones: add --vary OPTION=VALUE,VALUE")
    folders = [find_folder(word, options.get("runs")) for word in options.words]
    design = design_of_folder(folders[0]) if len(folders) == 1 else None
    return (
        design.load().answer_folder(folders[0], options) if design else run_comparison.answer_folders(folders, options)
    )


def find_folder(word: str, runs: str) -> Path:
    """The folder that a word names: itself, or the runs of a recipe. Raises UsageError for neither."""
    path = Path(word)
    recipe = recipe_files.packaged_recipe(word)
    if path.is_dir():
        return path
    below = Path(runs, recipe.name if recipe else word)
    if below.is_dir():
        return below
    if recipe:
        option = "" if runs == "runs" else f" --runs {shlex.quote(runs)}"
        raise UsageError(
            f"{recipe.name} has no run in {runs}. Say what varies, and it is run: zoo compare {recipe.name} --vary "
            f"model.position=rope,alibi{option}"
        )
    names = [
        *(packaged.name for packaged in recipe_files.recipes()),
        *(packaged.name for packaged in recipe_files.comparisons()),
    ]
    if package := not_installed(RECIPES, word):
        raise UsageError(f"no folder, recipe or comparison {word!r}.{package}")
    raise UsageError(f"no folder, recipe or comparison {word!r}.{suggest(word, names)} See: zoo compare --help")


def read_comparison(options: ParsedOptions) -> Comparison | None:
    """The comparison that a design, a file or `--vary` describes; None where folders are to be read."""
    comparison = chosen_design(options.values).load().read(options)
    if comparison:
        return comparison
    comparison = _from_file(options)
    if comparison or not options.get("vary"):
        return comparison
    factors, words = plan.parse_factors(options.get("vary")), tuple(fit_words(options))
    return with_options(Comparison(recipe=options.words[0], vary=factors, options=words), options.values)


def with_options(comparison: Comparison, values: Mapping[str, Any]) -> Comparison:
    """A comparison with further options of the command line or a file."""
    names, values = {"baseline": "base", "design": "combinations"}, expand_target(values)
    if "at" not in values and values.get("goal") != comparison.goal:
        check_target(comparison.at, goal=values.get("goal"))
    every = {**comparison.design_values, **values}
    fields: dict[str, Any] = {names.get(name, name): values[name] for name in TAKEN_AS_THEY_ARE if name in values}
    fields["design_values"] = {
        name: every[name] for option in design_options() if (name := option.destination) in every
    }
    fields["design"] = chosen_design(fields["design_values"])
    if "looks" in values:
        if "seeds" in values or "until" in values:
            raise UsageError("--looks says how many seeds there are: leave out --seeds and --until.")
        fields["until"] = plan.parse_looks(str(values["looks"]))
        fields["seeds"] = plan.parse_seeds(fields["until"].rpartition(",")[2])
    elif "seeds" in values:
        fields["seeds"] = plan.parse_seeds(values["seeds"])
    elif "until" in fields:
        fields["seeds"] = plan.parse_seeds(str(MOST_UNTIL_DECIDED))
    return replace(comparison, **fields)


def expand_target(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options with ``to``, such as "loss=4.2", as the goal "loss" at "to:4.2". Raises UsageError for anything else."""
    if "to" not in values:
        return dict(values)
    goal, _, target = str(values["to"]).partition("=")
    try:
        at = parse_moment(f"to:{target}")
    except UsageError:
        goal, at = "", ""
    if not goal:
        raise UsageError(f"--to {values['to']!r:.60}: write a figure and a number, such as --to loss=4.2")
    for name, value in (("goal", goal), ("at", at)):
        if values.get(name, value) != value:
            raise UsageError(f"--to {values['to']} does not go with --{name}: it says which figure decides, and when.")
    return {**values, "goal": goal, "at": at}


def _from_file(options: ParsedOptions) -> Comparison | None:
    """The comparison that a file describes; None where the first word names none."""
    path = recipe_files.comparison_file(options.words[0])
    if path is None:
        return None
    content = yaml_source.read_yaml(path).as_data()
    if not isinstance(content, dict) or "vary" not in content:
        return None  # a recipe
    if options.get("vary") or len(options.words) > 1:
        raise UsageError(f"{path} says what varies: leave out the rest, or write it as options.")
    keys = [*FILE_KEYS, *(option.destination for option in design_options() if option.type is not bool)]
    for name in content:
        if name not in keys:
            package = not_installed(KIND, str(name))
            raise UsageError(
                f"{path}: unknown key {name!r}.{suggest(name, keys)} It may have: {', '.join(keys)}{package}"
            )
    if not isinstance(content.get("recipe"), str) or not isinstance(content["vary"], dict):
        raise UsageError(f"{path}: 'recipe' names a recipe, and 'vary' holds options with lists of values.")
    pairs = list(_varied_options(path, content["vary"]))
    varied = dict(pairs)
    if len(varied) < len(pairs):
        raise UsageError(f"{path}: vary: an option is written twice, once with dots and once nested. Keep one.")
    vary = [plan.make_factor(key, [plan.option_text(value) for value in values]) for key, values in varied.items()]
    settings = content.get("options") or {}
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: 'options' holds options of zoo fit, such as trainer.max_steps: 500")
    _check_keys(path, content["recipe"], {**varied, **settings})
    words = [f"--{key}={plan.option_text(value)}" for key, value in settings.items()]
    comparison = Comparison(
        recipe=content["recipe"], vary=tuple(vary), options=(*words, *fit_words(options)), name=path.stem
    )
    fields = {name: _parse_value(path, name, content[name]) for name in keys
              if name not in OWN_KEYS and content.get(name) is not None}  # fmt: skip
    values = options.values
    if "goal" in values and not {"at", "to"} & values.keys() and values["goal"] != fields.get("goal"):
        check_target(str(fields.get("at", "")), goal=values["goal"])
    replaced = {rival for name in values for rival in RIVALS.get(name, ())}
    of_file = {name: value for name, value in fields.items() if name not in replaced}
    return with_options(comparison, of_file | values)


def _varied_options(path: Path, content: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The varied options by dotted key, written so or nested. Raises UsageError for a value that is no list."""
    for name, values in content.items():
        key = f"{section}{name}"
        if isinstance(values, Mapping):
            yield from _varied_options(path, values, f"{key}.")
        elif isinstance(values, list):
            yield key, values
        else:
            raise UsageError(f"{path}: vary: {key!r} holds no list of values.")


def _check_keys(path: Path, recipe: str, content: Mapping[str, Any]) -> None:
    """Raise UsageError for keys that are no options of a recipe, and for output paths outside of the working folder."""
    if recipe.startswith("-"):
        raise UsageError(f"{path}: 'recipe' names a recipe, not an option: {recipe!r:.80}.")
    for key, value in content.items():
        if key.partition(".")[0] not in SECTIONS:
            raise UsageError(f"{path}: {key!r:.80} is no option of {', '.join(SECTIONS)}, which a file may set.")
        for item in value if isinstance(value, list) else [value]:
            check_output_path(key, item, str(path))


def _parse_value(path: Path, name: str, value: object) -> Any:
    """A value of one of the file's own keys, as the option of that name takes it: ``{tokens: 2M}`` is tokens=2M.

    Raises UsageError for one that the option cannot have.
    """

    def text(item: object) -> str:
        if isinstance(item, list):
            return ",".join(map(plan.option_text, item)) + ("," if len(item) == 1 else "")
        return plan.option_text(item)

    pairs = [f"{key}={text(item)}" for key, item in value.items()] if isinstance(value, Mapping) else [text(value)]
    option = next(option for option in Compare().options if option.destination == name)
    try:
        return option.convert(",".join(pairs))
    except ValueError as error:
        raise UsageError(f"{path}: {name!r} must be {option.requirement}, got {value!r:.40}.") from error
