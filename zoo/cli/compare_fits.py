"""`zoo fit` as a comparison asks it: what would run where, and what an existing run differs in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from zoo.compare.plan import Point
from zoo.config import fit_options, run_config, run_folder, yaml_source
from zoo.errors import UsageError
from zoo.inference.find_run import CONFIG
from zoo.inference.import_policy import ALL
from zoo.registry import suggest

DESIGNED = {  # options of `zoo fit` that a comparison decides itself, and what says so instead
    "seed_everything": "--seeds", "name": "nothing: variants are named after what differs",
    "overwrite": "nothing: remove a run's folder to run it again", "resume": "nothing: runs go on by themselves",
    "ckpt_path": "nothing: every run starts from its seed", "print_config": "--dry-run",
    "help-all": "zoo fit --help-all",
}  # fmt: skip


def options(rest: Sequence[str], own: Sequence[str]) -> list[str]:
    """Options of `zoo fit` for every run, one word each.

    Raises UsageError for what neither command knows, and for what a comparison decides itself.
    """
    for word in rest:
        key = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and "." not in key and not _fits(key):
            hint = suggest(key, own)
            if hint:
                hint = hint.replace("'", "'--", 1)
                raise UsageError(f"zoo compare has no option '--{key}'.{hint} See: zoo compare --help")
    command = fit_options.parse("fit", list(rest))
    keys = [key for key, _, _ in command.options] + sorted(command.flags) + (["name"] if command.name else [])
    for key in keys:
        if key in DESIGNED:
            shown = {"seed_everything": "seed"}.get(key, key)
            raise UsageError(f"--{shown} is for one run; here it is {DESIGNED[key]}.")
    words = [f"--config={path}" for path in command.configs]
    words += ["--trust" if module == ALL else f"--allow-import={module}" for module in command.allow]
    words += [f"--{key}" if value is True else f"--{key}={value}" for key, value, _ in command.options]
    return words + (["--debug"] if command.debug else [])


def _fits(key: str) -> bool:
    key = fit_options.ALIASES.get(key, key)
    return (
        key in fit_options.FLAGS or key in fit_options.VALUED or key in fit_options.LISTED or key in fit_options.CONFIG
    )


def draft(words: Sequence[str]) -> tuple[fit_options.Command, run_config.Draft]:
    """A command of `zoo fit` as far as it needs no torch. Raises UsageError for names of parts that do not exist."""
    command = fit_options.parse("fit", list(words))
    return command, run_config.read_draft(command)


class ZooFit:
    """Answers what `zoo fit` would do, without doing it; imports torch once."""

    def __init__(self, runs: str) -> None:
        self.runs, self.schema = runs, run_config.schema()
        self._made: dict[str, run_config.Plan] = {}

    def point(self, words: Sequence[str]) -> Point:
        """The configuration of a recipe and options. Raises UsageError as `zoo fit` does."""
        config_plan = run_config.make_plan(*draft([*words, f"--runs={self.runs}"]), self.schema)
        self._made[config_plan.run.title] = config_plan
        return Point(Path(self.runs), config_plan.run.recipe, config_plan.run.variant, config_plan.config)

    def changes(self, point: Point, home: Path) -> list[str]:
        """In what the configuration differs from that of a run that exists already.

        An option that the run does not know came with a later zoo, and counts only where somebody wrote it.
        """
        path, config_plan = home / CONFIG, self._made[f"{point.recipe}/{point.variant}"]
        try:
            old = run_config.flatten(self._config_of(path)) if path.is_file() else {}
        except UsageError:
            old = {}  # cut short by a kill, before anything was trained
        if not old:
            return []
        new = run_config.flatten(run_config.as_yaml(config_plan.config))
        blanks = {f"model.{name}" for name in config_plan.resolved.classes["model"].data_sizes}
        keys = [key for key in dict.fromkeys([*old, *new]) if key in old or key in config_plan.resolved.origins]
        return [
            f"{key} was {old.get(key)} and is {new.get(key)}"
            for key in keys
            if key.startswith(("model", "data", "trainer", "tune"))
            and not key.startswith(run_folder.INFRASTRUCTURE)
            and old.get(key) != new.get(key)
            and not (key in blanks and new.get(key) is None)  # the data filled it in
        ]

    @staticmethod
    def _config_of(path: Path) -> dict[str, Any]:
        """The configuration of an earlier run, in the words of today."""
        return run_config.current(cast(dict[str, Any], yaml_source.read_yaml(path).as_data()), str(path))
