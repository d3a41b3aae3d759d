"""The runs of a comparison as `zoo fit` plans them, and in what existing runs differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from zoo.command_line import ParsedOptions
from zoo.compare.commands import DECIDED_BY_COMPARISON
from zoo.compare.plan import Point
from zoo.config import fit_options, run_config, yaml_source
from zoo.config.passive_settings import CALLBACKS, is_passive
from zoo.errors import UsageError
from zoo.inference.find_run import CONFIG
from zoo.logging import run_state


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


def draft(words: Sequence[str]) -> tuple[fit_options.FitOptions, run_config.Draft]:
    """A command of `zoo fit` as far as it needs no torch. Raises UsageError for names of parts that do not exist."""
    command = fit_options.parse("fit", list(words))
    return command, run_config.read_draft(command)


class ZooFit:
    """Plans runs as `zoo fit` does, without running them; imports torch once."""

    def __init__(self, runs: str) -> None:
        self.runs, self.schema = runs, run_config.schema()
        self._plans: dict[str, run_config.Plan] = {}

    def point(self, words: Sequence[str]) -> Point:
        """The configuration of a recipe and options. Raises UsageError as `zoo fit` does."""
        config_plan = run_config.make_plan(*draft([*words, f"--runs={self.runs}"]), self.schema)
        self._plans[config_plan.run.title] = config_plan
        notes = tuple(config_plan.resolved.notes)
        return Point(Path(self.runs), config_plan.run.recipe, config_plan.run.variant, config_plan.config, notes)

    def task_options(self, words: Sequence[str]) -> frozenset[str]:
        """The options of the task that a command chooses. Raises UsageError where it chooses none."""
        return run_config.task_options(*draft([*words, f"--runs={self.runs}"]), self.schema)

    def changes(self, point: Point, home: Path) -> list[str]:
        """In what the configuration differs from that of a run that exists already, passive settings aside.

        An option that the run lacks is new in a later zoo, and counts only if the recipe or the command line sets it.
        """
        path, config_plan = home / CONFIG, self._plans[f"{point.recipe}/{point.variant}"]
        try:
            old = run_config.flatten(self._config_of(path)) if path.is_file() else {}
        except UsageError:
            old = {}  # cut short by a kill, before anything was trained
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

    @staticmethod
    def _config_of(path: Path) -> dict[str, Any]:
        """The configuration of an earlier run."""
        return cast(dict[str, Any], yaml_source.read_yaml(path).as_data())
