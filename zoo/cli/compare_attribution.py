"""`zoo compare A B --attribute`: how much each option that two recipes differ in contributes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli import compare_run
from zoo.cli.compare_fits import fit_words
from zoo.cli.compare_run import Runner
from zoo.compare import attribute, comparison_folder, journal, plan, run_records, variants
from zoo.compare.attribute import Difference, Share
from zoo.compare.execute import exit_code
from zoo.compare.plan import Arm
from zoo.compare.validation_counts import check_validations
from zoo.config.option_parser import ParsedOptions
from zoo.errors import UsageError

if TYPE_CHECKING:
    from zoo.compare.charts import Chart

INCOMPATIBLE = (
    "vary", "baseline", "design", "budget", "match", "tune", "probe", "until", "looks", "margin", "test", "series",
    "scale", "tune_seeds",
)  # fmt: skip


def run(options: ParsedOptions) -> int:
    """Run every hybrid of two recipes with every seed, and print the contribution of each option."""
    if len(options.words) != 2:
        raise UsageError(
            "--attribute needs two recipes: zoo compare transformer-2017-tiny llama-style-tiny --attribute"
        )
    for name in INCOMPATIBLE:
        if name in options.values:
            raise UsageError(f"--{name} does not go with --attribute: what varies is what the two recipes differ in.")
    seeds, words = variants.parse_seeds(options.get("seeds") or "5"), fit_words(options)
    fits, meter = compare_run.open_comparison(options, [(word, *words) for word in options.words])
    from zoo.training.setup import display_value

    one, other = (fits.point((word, *words)) for word in options.words)
    differences = attribute.find_differences(one, other, display_value)
    first = Arm((), (options.words[0], *words), one)
    hybrids = attribute.build_hybrids(first, differences, fits, meter.check)
    arms = list(hybrids.values())
    compare_run.check_goal(meter, arms[0], options.get("goal"))
    at = run_records.parse_moment(options.get("at") or run_records.DECISIVE)
    check_validations(at, [(arm.name, arm.point.config["trainer"]) for arm in arms])
    runner = Runner(options, fits, options.get("goal"), None)
    jobs = runner.jobs(arms, seeds)
    steps = plan.list_steps(jobs)
    runner.print_progress(
        f"{one.recipe} and {other.recipe} differ in {len(differences)} options: {', '.join(map(str, differences))}"
    )
    compare_run.print_introduction(seeds, arms, steps, runner)
    if options.get("dry_run"):
        compare_run.print_plan(steps)
        return 0
    place = comparison_folder.comparison_path(one.root, one.recipe, f"attribute-{Path(other.recipe).name}")
    record = comparison_folder.Record(
        tuple(job.folder for job in jobs), arms[0].name, options.get("goal"), command=compare_run.command_line(options),
        varied=tuple(one.choice.key for one in differences), at=at,
    )  # fmt: skip
    comparison_folder.save_record(place, record)
    question = journal.Question(
        (options.get("goal") or compare_run.first_goal(meter, arms[0])).removeprefix("val/"), at, arms[0].name,
        tuple(seeds), tuple(arm.name for arm in arms),
    )  # fmt: skip
    ended_runs = sum(run_records.read_state(job.folder) in run_records.END_STATES for job in jobs)
    details = {"varied": list(record.varied or ()), "command": record.command}
    journal.append_event(place, journal.Event(journal.PLAN, question, ended_runs, details))
    runner(arms, seeds, whole=False)
    early_code = compare_run.exit_code_if_unfinished(jobs, runner)
    if early_code is not None:
        return early_code
    answer, folder = compare_run.look_and_record(record, options, place)
    ledgers = [run for runs in answer.runs.values() for run in runs.values()]
    shares = attribute.compute_shares(
        differences,
        attribute.hybrid_figures(hybrids, ledgers, answer.goal, answer.at),
        answer.lower_is_better,
        answer.plan,
    )
    code = compare_run.print_answer(
        answer, options, folder, [shares_chart(shares, answer.goal, answer.lower_is_better)]
    )
    runner.print_progress("\n" + shares_text(differences, shares, answer.goal))
    return max(code, exit_code(runner.failed))


def shares_text(differences: Sequence[Difference], shares: Sequence[Share], goal: str) -> str:
    """The table of contributions, and how to read it."""
    rows = attribute.shares_table(shares)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    shapley = "share: Shapley's, the mean over all orders of adding the options. " if shares[0].shapley else ""
    figure = "the share of runs that failed, because some did" if attribute.is_of_failures(shares) else goal
    legend = (
        f"Contribution of each option, in {figure}, paired by seed. {shapley}alone: added to the first recipe alone; "
        "last: added last, to the second recipe without it. ± is the standard deviation over seeds."
    )
    return "\n".join([*lines, *textwrap.wrap(legend, 118)])


def shares_chart(shares: Sequence[Share], goal: str, lower: bool) -> Chart:
    """The shares as bars."""
    from zoo.compare.charts import Bar, draw_bars

    pairs = [(share.difference, share.shapley or share.alone) for share in shares]
    rows = [Bar(str(one), pair.mean, pair.low, pair.high) for one, pair in pairs]
    kind = "Shapley's shares" if shares[0].shapley else "Effects on the first recipe"
    caption = f"{kind}, with 95 % intervals over seeds."
    if attribute.is_of_failures(shares):
        goal, lower = "the share of runs that failed", True
    return draw_bars("Contribution of each option", rows, f"change in {goal}", "low" if lower else "high", caption)
