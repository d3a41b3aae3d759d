"""`zoo compare … --emit slurm`: write job files that run the comparison on many machines; runs nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.command_line import ParsedOptions
from zoo.compare import job_files, scale_runs
from zoo.compare.fit_commands import draft
from zoo.compare.job_files import ShardedCommand
from zoo.compare.plan import Comparison
from zoo.errors import UsageError

OWN = ("--emit", "--shards", "--resources")
INCOMPATIBLE = {"shard": "--shards N", "dry_run": "one of the two", "exit_code": "it for the table"}


def run(options: ParsedOptions, comparison: Comparison | None) -> int:
    """Write the job files of a comparison, and print what to do with them. Raises UsageError where there is none."""
    for name, instead in INCOMPATIBLE.items():
        if options.get(name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --emit: use {instead}.")
    kind = options.get("emit")
    if comparison is None:
        raise UsageError("--emit is for a comparison that is to be run: zoo compare RECIPE --vary … --emit slurm")
    if comparison.until:
        name = "--until decided" if comparison.until == "decided" else f"--looks {comparison.until}"
        raise UsageError(f"{name} looks at all runs after some seeds, which --emit divides: leave one out.")
    for words in scale_runs.check_request(comparison):
        draft(words)
    resources = job_files.parse_resources(kind, options.get("resources"))
    shards = job_files.count_shards(options.get("shards"), comparison.seeds)
    files = job_files.render(kind, ShardedCommand(_words_of_runs(options.argv), comparison.title, shards, resources))
    job_files.write_files(files)
    print("\n".join(files))
    first = next(iter(files))
    print(f"\n{'run' if kind == 'sh' else 'submit'}  sh {first}")
    return 0


def _words_of_runs(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the options of this module."""
    result, skip = [], False
    for word in argv:
        if not skip and word.partition("=")[0] not in OWN:
            result.append(word)
        skip = not skip and word in OWN
    return tuple(result)
