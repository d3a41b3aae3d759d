"""`zoo fit` as a comparison asks it: what would run where, and what an existing run differs in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.cli import args, document, folder, plan
from zoo.compare.plan import Point
from zoo.errors import UsageError
from zoo.registry import suggest
from zoo.trained.place import CONFIG
from zoo.trained.policy import ALL

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
    command = args.parse("fit", list(rest))
    given = [key for key, _, _ in command.options] + sorted(command.flags) + (["name"] if command.name else [])
    for key in given:
        if key in DESIGNED:
            shown = {"seed_everything": "seed"}.get(key, key)
            raise UsageError(f"--{shown} is for one run; here it is {DESIGNED[key]}.")
    words = [f"--config={path}" for path in command.configs]
    words += ["--trust" if module == ALL else f"--allow-import={module}" for module in command.allow]
    words += [f"--{key}" if value is True else f"--{key}={value}" for key, value, _ in command.options]
    return words + (["--debug"] if command.debug else [])


def _fits(key: str) -> bool:
    key = args.ALIASES.get(key, key)
    return key in args.FLAGS or key in args.VALUED or key in args.LISTED or key in args.CONFIG


def draft(words: Sequence[str]) -> tuple[args.Command, plan.Draft]:
    """A command of `zoo fit` as far as it needs no torch. Raises UsageError for names of parts that do not exist."""
    command = args.parse("fit", list(words))
    return command, plan.draft(command)


class ZooFit:
    """Answers what `zoo fit` would do, without doing it; imports torch once."""

    def __init__(self, runs: str) -> None:
        self.runs, self.schema = runs, plan.schema()
        self._made: dict[str, plan.Plan] = {}

    def point(self, words: Sequence[str]) -> Point:
        """The configuration of a recipe and options. Raises UsageError as `zoo fit` does."""
        made = plan.plan(*draft([*words, f"--runs={self.runs}"]), self.schema)
        self._made[made.run.title] = made
        return Point(Path(self.runs), made.run.recipe, made.run.variant, made.config)

    def changes(self, point: Point, home: Path) -> list[str]:
        """In what the configuration differs from that of a run that exists already.

        An option that the run does not know came with a later zoo, and counts only where somebody wrote it.
        """
        path, made = home / CONFIG, self._made[f"{point.recipe}/{point.variant}"]
        try:
            old = plan.flat(document.read(path).plain()) if path.is_file() else {}
        except UsageError:
            old = {}  # cut short by a kill, before anything was trained
        if not old:
            return []
        new = plan.flat(plan.as_yaml(made.config))
        blanks = {f"model.{name}" for name in made.resolved.classes["model"].blanks}
        keys = [key for key in dict.fromkeys([*old, *new]) if key in old or key in made.resolved.origins]
        return [
            f"{key} was {old.get(key)} and is {new.get(key)}"
            for key in keys
            if key.startswith(("model", "data", "trainer", "tune"))
            and not key.startswith(folder.INFRASTRUCTURE)
            and old.get(key) != new.get(key)
            and not (key in blanks and new.get(key) is None)  # the data filled it in
        ]
