"""`zoo compare … --emit slurm`: write job files that run the comparison on many machines; runs nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.cli.compare_fits import draft, fit_words
from zoo.compare import job_files, variants
from zoo.compare.job_files import ShardedCommand
from zoo.compare.plan import Comparison
from zoo.config.option_parser import ParsedOptions
from zoo.errors import UsageError

OWN = ("--emit", "--shards", "--resources")
INCOMPATIBLE = {"shard": "--shards N", "dry_run": "one of the two", "exit_code": "it for the table"}


def run(options: ParsedOptions, comparison: Comparison | None) -> int:
    """Write the job files of a comparison, or with ``--attribute`` of two recipes, and print what to do with them."""
    for name, instead in INCOMPATIBLE.items():
        if options.get(name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --emit: use {instead}.")
    kind = options.get("emit")
    title, seeds = _check_attribution(options) if comparison is None else _check_comparison(comparison)
    resources = job_files.parse_resources(kind, options.get("resources"))
    shards = job_files.count_shards(options.get("shards"), seeds)
    files = job_files.render(kind, ShardedCommand(_words_of_runs(options.argv), title, shards, resources))
    job_files.write_files(files)
    print("\n".join(files))
    first = next(iter(files))
    print(f"\n{'run' if kind == 'sh' else 'submit'}  sh {first}")
    return 0


def _check_comparison(comparison: Comparison) -> tuple[str, Sequence[int]]:
    """The title and seeds of a comparison. Raises UsageError for errors that can be found without torch."""
    from zoo.compare import prepare_runs

    if comparison.until:
        name = "--until decided" if comparison.until == "decided" else f"--looks {comparison.until}"
        raise UsageError(f"{name} looks at all runs after some seeds, which --emit divides: leave one out.")
    for words in prepare_runs.check_comparison(comparison):
        draft(words)
    return comparison.title, comparison.seeds


def _check_attribution(options: ParsedOptions) -> tuple[str, Sequence[int]]:
    """The same of two recipes. Raises UsageError for anything else."""
    if not options.get("attribute") or len(options.words) != 2:
        raise UsageError("--emit is for a comparison that is to be run: zoo compare RECIPE --vary … --emit slurm")
    for word in options.words:
        draft((word, *fit_words(options)))
    return f"attribute-{Path(options.words[1]).stem}", variants.parse_seeds(options.get("seeds") or "5")


def _words_of_runs(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the options of this module."""
    result, skip = [], False
    for word in argv:
        if not skip and word.partition("=")[0] not in OWN:
            result.append(word)
        skip = not skip and word in OWN
    return tuple(result)
