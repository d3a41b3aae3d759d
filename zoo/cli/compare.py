"""`zoo compare`: run what a comparison lacks and answer it, or read what finished runs say."""

from __future__ import annotations

from pathlib import Path

from zoo import recipe_files
from zoo.cli.compare_options import CompareOptions, parse, words
from zoo.cli.compare_request import read_comparison
from zoo.compare.plan import take_shard
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


def usage() -> str:
    """The help, with the comparisons that are packaged."""
    listed = [f"  {one.name:<27} {one.summary}" for one in recipe_files.comparisons()]
    return TEXT + "\n".join(["Packaged comparisons: zoo compare NAME", *listed])


def run(argv: list[str]) -> int:
    """`zoo compare`."""
    options = parse(argv)
    if not options.words:
        raise UsageError("compare what? zoo compare RECIPE --vary model.position=rope,alibi --seeds 5, or a folder")
    (
        words(options),
        options.jobs,
        take_shard([], options.get("shard")),
    )  # what is wrong in them is told before torch is imported
    if "attribute" in options.flags:
        from zoo.cli import compare_attribution

        return compare_attribution.run(options)
    comparison = read_comparison(options)
    if comparison is None:
        return _read(options)
    from zoo.cli import compare_run

    return compare_run.compare(options, comparison)


def _read(options: CompareOptions) -> int:
    """Read finished runs; without torch."""
    from zoo.cli import compare_run

    if options.options:
        raise UsageError(f"{options.options[0]!r} is for runs that are still to be made: add --vary OPTION=VALUE,VALUE")
    unfit = [
        name for name in ("seeds", "design", "budget", "match", "tune", "jobs", "shard", "probe") if options.get(name)
    ]
    if unfit:
        raise UsageError(f"--{unfit[0]} is for runs that are still to be made: add --vary OPTION=VALUE,VALUE")
    return compare_run.answer_folders([folder(word, options.get("runs") or "runs") for word in options.words], options)


def folder(word: str, runs: str) -> Path:
    """The folder that a word names: itself, or the runs of a recipe. Raises UsageError for neither."""
    path = Path(word).expanduser()
    recipe = recipe_files.packaged_recipe(word)
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
    names = [*(one.name for one in recipe_files.recipes()), *(one.name for one in recipe_files.comparisons())]
    raise UsageError(f"no folder, recipe or comparison {word!r}.{suggest(word, names)} See: zoo compare --help")


USAGE = usage()
