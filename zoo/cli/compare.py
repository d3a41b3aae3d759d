"""`zoo compare`: run what a comparison lacks and answer it, or read what finished runs say."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo import cookbook
from zoo.cli import document
from zoo.cli.args import SECTIONS
from zoo.cli.written import check_place
from zoo.compare import variants
from zoo.compare.plan import Comparison, share
from zoo.errors import UsageError
from zoo.registry import suggest

TEXT = """\
usage: zoo compare RECIPE --vary OPTION=VALUE,VALUE ... [options]     run what is missing, then answer
       zoo compare FILE.yaml [options]                                the same, as the file says
       zoo compare RECIPE RECIPE --attribute [options]                which part brought what
       zoo compare FOLDER ... [--baseline V] [--goal G] [--json]      read finished runs, fast

What is compared
  --vary OPTION=VALUE,VALUE   an option of zoo fit and its values; again for a grid. A part with options is one value:
                              --vary "model.position=none,rope,{class_path: RoPE, init_args: {base: 500}}"
  --seeds N                   5: seeds 1 to 5; or 1,2,7
  --baseline OPTION=VALUE     what the others are compared with; the recipe itself unless given
  --design one-at-a-time      vary each option alone, from the baseline; or grid, all combinations (the usual for few)
  --model.dim 64, ...         any other option of zoo fit, for every run
What is held equal            (the steps of the recipe, and so tokens, unless another budget is named)
  --budget tokens=2M          or flops=1e15 (training: 3 forwards a step) or time=10m (of training, at measured speed)
  --match params              or flops: solve for model.hidden so that each variant has the baseline's
  --tune model.lr=1e-3,3e-3   choose for each variant on validation, with a seed that is not compared
How it runs                   (the same command again goes on where it stopped; finished runs are never repeated)
  --jobs N                    runs at once (1), each in its own process with its share of the cores
  --shard I/N                 only every Nth run, from the Ith: for a SLURM array
  --dry-run                   show the runs, their state and an estimate of the time, and stop
  --runs DIR                  where runs are (runs): DIR/<recipe>/<what differs>/s<seed>
What is shown
  --goal NAME, --at last      the figure that decides (the task's first), and when it is taken (best)
  --probe length=1,2,4,8      language models: the loss on texts so many times longer than in training
  --json                      one JSON document; --out DIR: where the report goes
"""
LISTED, FLAGS = ("vary",), ("dry-run", "attribute", "json", "debug")
VALUED = (
    "seeds", "baseline", "design", "budget", "match", "tune", "jobs", "shard", "runs", "goal", "at", "probe", "out",
)  # fmt: skip
FILE = ("recipe", "vary", "seeds", "baseline", "design", "budget", "match", "tune", "probe", "goal", "options")


@dataclass
class Asked:
    """A command line of `zoo compare`."""

    words: list[str] = field(default_factory=list)
    vary: list[str] = field(default_factory=list)
    valued: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    options: list[str] = field(default_factory=list)  # of zoo fit
    argv: list[str] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        return self.valued.get(name)

    @property
    def jobs(self) -> int:
        text = self.valued.get("jobs", "1")
        if not text.isdecimal() or not 1 <= int(text) <= 1024:
            raise UsageError(f"--jobs must be a number of runs at once, got {text!r}.")
        return int(text)


def usage() -> str:
    """The help, with the comparisons that are packaged."""
    listed = [f"  {one.name:<27} {one.summary}" for one in cookbook.comparisons()]
    return TEXT + "\n".join(["Packaged comparisons: zoo compare NAME", *listed])


def parse(argv: Sequence[str]) -> Asked:
    """Split a command line into own options and those of `zoo fit`. Raises UsageError for a missing value."""
    asked, rest = Asked(argv=["compare", *argv]), list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            asked.words.append(token)
            continue
        word, equals, value = token.partition("=")
        name = word.removeprefix("--").replace("_", "-")
        if word.startswith("--") and name in FLAGS:
            if equals:
                raise UsageError(f"'{word}' takes no value.")
            asked.flags.add(name)
        elif word.startswith("--") and name in (*VALUED, *LISTED):
            if not equals and (not rest or rest[0].startswith("--")):
                raise UsageError(f"'{word}' needs a value. See: zoo compare --help")
            given = value if equals else rest.pop(0)
            if name in LISTED:
                asked.vary.append(given)
            else:
                asked.valued[name] = given
        else:
            asked.options.append(token)
            if not equals and rest and not rest[0].startswith("-") and not _bare(name):
                asked.options.append(rest.pop(0))
    return asked


def _bare(name: str) -> bool:
    from zoo.cli.args import FLAGS as BARE

    return name in BARE


def run(argv: list[str]) -> int:
    """`zoo compare`."""
    asked = parse(argv)
    if not asked.words:
        raise UsageError("compare what? zoo compare RECIPE --vary model.position=rope,alibi --seeds 5, or a folder")
    words(asked), asked.jobs, share([], asked.get("shard"))  # what is wrong in them is told before torch is imported
    if "attribute" in asked.flags:
        from zoo.cli import attributing

        return attributing.run(asked)
    found = _of_file(asked) or _of_options(asked)
    if found is None:
        return _read(asked)
    from zoo.cli import answering

    return answering.compare(asked, found)


def _of_options(asked: Asked) -> Comparison | None:
    """The comparison of a recipe and `--vary`; None where folders are to be read."""
    if not asked.vary:
        return None
    if len(asked.words) > 1:
        raise UsageError(f"one recipe at a time: got {asked.words[0]!r} and {asked.words[1]!r}.")
    made = Comparison(recipe=asked.words[0], vary=variants.factors(asked.vary), options=tuple(words(asked)))
    return _with(made, asked.valued)


def words(asked: Asked) -> list[str]:
    """The options of `zoo fit` for every run. Raises UsageError for what no command knows."""
    from zoo.cli.comparing import options

    return options(asked.options, [*VALUED, *LISTED, *FLAGS])


def _with(made: Comparison, valued: Mapping[str, str]) -> Comparison:
    """The same with what a command line says besides."""
    names = {"baseline": "base"}
    said: dict[str, Any] = {
        names.get(name, name): valued[name]
        for name in ("baseline", "design", "budget", "match", "tune", "probe", "goal")
        if name in valued
    }
    if "seeds" in valued:
        said["seeds"] = variants.seeds(valued["seeds"])
    return replace(made, **said)


def _of_file(asked: Asked) -> Comparison | None:
    """The comparison that a file describes; None where the first word names none."""
    path = cookbook.comparison(asked.words[0])
    if path is None:
        return None
    content = document.read(path).plain()
    if not isinstance(content, dict) or "vary" not in content:
        return None  # a recipe
    if asked.vary or len(asked.words) > 1:
        raise UsageError(f"{path} says what varies: leave out the rest, or write it as options.")
    for name in content:
        if name not in FILE:
            raise UsageError(f"{path}: unknown key {name!r}.{suggest(name, FILE)} It may have: {', '.join(FILE)}")
    if not isinstance(content.get("recipe"), str) or not isinstance(content["vary"], dict):
        raise UsageError(f"{path}: 'recipe' names a recipe, and 'vary' holds options with lists of values.")
    vary = []
    for key, values in content["vary"].items():
        if not isinstance(values, list):
            raise UsageError(f"{path}: vary: {key!r} holds no list of values.")
        vary.append(variants.made(key, [_word(value) for value in values]))
    given = content.get("options") or {}
    if not isinstance(given, dict):
        raise UsageError(f"{path}: 'options' holds options of zoo fit, such as trainer.max_steps: 500")
    _check_keys(path, content["recipe"], {**content["vary"], **given})
    options = [f"--{key}={_word(value)}" for key, value in given.items()]
    made = Comparison(recipe=content["recipe"], vary=tuple(vary), options=(*options, *words(asked)), name=path.stem)
    said = {name: _said(content[name]) for name in FILE[2:-1] if content.get(name) is not None}
    return _with(_with(made, said), asked.valued)


def _check_keys(path: Path, recipe: str, said: Mapping[str, Any]) -> None:
    """Raise UsageError for what would be more than a value of the recipe on the command line of each run."""
    if recipe.startswith("-"):
        raise UsageError(f"{path}: 'recipe' names a recipe, not an option: {recipe!r:.80}.")
    for key, value in said.items():
        if key.partition(".")[0] not in SECTIONS:
            raise UsageError(f"{path}: {key!r:.80} is no option of {', '.join(SECTIONS)}, which a file may set.")
        for one in value if isinstance(value, list) else [value]:
            check_place(key, one, str(path))


def _word(value: object) -> str:
    """A value of a file as a command line has it."""
    from zoo.compare.attribute import written

    return written(value)


def _said(value: object) -> str:
    """What a file says under one of its own keys, as the option of the same name: ``{tokens: 2M}`` is tokens=2M."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_listed(item)}" for key, item in value.items())
    return _listed(value)


def _listed(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value)) + ("," if len(value) == 1 else "")
    return _word(value)


def _read(asked: Asked) -> int:
    """Read finished runs; without torch."""
    from zoo.cli import answering

    if asked.options:
        raise UsageError(f"{asked.options[0]!r} is for runs that are still to be made: add --vary OPTION=VALUE,VALUE")
    unfit = [
        name for name in ("seeds", "design", "budget", "match", "tune", "jobs", "shard", "probe") if asked.get(name)
    ]
    if unfit:
        raise UsageError(f"--{unfit[0]} is for runs that are still to be made: add --vary OPTION=VALUE,VALUE")
    return answering.read([folder(word, asked.get("runs") or "runs") for word in asked.words], asked)


def folder(word: str, runs: str) -> Path:
    """The folder that a word names: itself, or the runs of a recipe. Raises UsageError for neither."""
    path = Path(word).expanduser()
    recipe = cookbook.packaged(word)
    if path.is_dir():
        return path
    below = Path(runs, recipe.name if recipe else word)
    if below.is_dir():
        return below
    if recipe:
        raise UsageError(
            f"{recipe.name} has no run in {runs}. Say what varies, and it is run: zoo compare {recipe.name} --vary "
            "model.position=rope,alibi"
        )
    known = [*(one.name for one in cookbook.recipes()), *(one.name for one in cookbook.comparisons())]
    raise UsageError(f"no folder, recipe or comparison {word!r}.{suggest(word, known)} See: zoo compare --help")


def fancy() -> bool:
    """Whether a person looks at a terminal that shows colours."""
    from zoo.cli.output import fancy as shown

    return shown()


def stream(asked: Asked) -> Any:
    """Where progress goes: not between the braces of a JSON document."""
    return sys.stderr if "json" in asked.flags else sys.stdout


USAGE = usage()
