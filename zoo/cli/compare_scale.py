"""`zoo compare RECIPE --vary … --scale dim=64,96,128`: a comparison at several sizes, the largest one predicted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from zoo.cli import compare_run
from zoo.cli.compare_run import PendingError, Runner
from zoo.compare import comparison_folder, journal, plan, prepare_runs, run_records, scale_runs
from zoo.compare.execute import exit_code
from zoo.compare.matched_sizes import BACKWARD
from zoo.compare.plan import Arm, Comparison
from zoo.compare.scale_result import LEAST_RATIO
from zoo.config.option_parser import ParsedOptions
from zoo.errors import UsageError


def run(options: ParsedOptions, comparison: Comparison) -> int:
    """Run every variant at every size, the largest size last, and print what the smaller ones predicted of it."""
    sizes = scale_runs.check_scale(comparison)
    words = [line for size in sizes for line in prepare_runs.check_comparison(scale_runs.draft_at(comparison, size))]
    fits, meter = compare_run.open_comparison(options, words)
    runner = Runner(options, fits, comparison.goal, None)
    prepared, budgets = [], []
    try:
        for size in sizes:
            at_size = scale_runs.comparison_at(comparison, size, fits, meter)
            prepared.append(prepare_runs.prepare(at_size, fits, meter, runner))
            budgets.append(at_size.budget)
    except PendingError as pending:
        compare_run.print_plan(pending.steps, "These runs decide how the compared ones are made.")
        return 0
    arms, missing = scale_runs.align_variants(prepared)
    order = sorted(range(len(sizes)), key=lambda index: _compute(arms[index][0], meter))
    sizes, arms = [sizes[index] for index in order], [arms[index] for index in order]
    prepared, budgets = [prepared[index] for index in order], [budgets[index] for index in order]
    check_compute([size.label for size in sizes], [_compute(each[0], meter) for each in arms])
    check_loss(meter, arms[0][0], prepared[0].goal or comparison.goal)
    runner.goal = prepared[-1].goal
    jobs = [job for each in arms for job in runner.jobs(each, comparison.seeds)]
    notes = scale_runs.rate_notes(comparison, arms[-1], sizes)
    notes += [f"Left out, because some size cannot have it: {name}." for name in missing]
    for size, each in zip(sizes, arms, strict=True):
        runner.print_progress(f"size {size.label}")
        compare_run.print_introduction(comparison.seeds, each, plan.list_steps(runner.jobs(each, comparison.seeds)),
                                       runner)  # fmt: skip
    for note in notes:
        runner.print_progress(f"  {note}")
    if options.get("dry_run"):
        compare_run.print_plan(plan.list_steps(jobs))
        return 0
    point = arms[-1][0].point
    place = comparison_folder.comparison_path(point.root, point.recipe, f"{comparison.title}-scale")
    largest = runner.jobs(arms[-1], comparison.seeds)
    results = [(size.label, each, one, budget) for size, each, one, budget
               in zip(sizes, arms, prepared, budgets, strict=True)]  # fmt: skip
    record = comparison_folder.Record(
        tuple(job.folder for job in largest), arms[-1][0].name, prepared[-1].goal or comparison.goal, budgets[-1],
        prepared[-1].tuned, compare_run.command_line(options), tuple(factor.key for factor in comparison.vary),
        comparison.at, comparison.margin, tuning=prepared[-1].tuning,
        scale=scale_runs.as_data(place, results, comparison.seeds, notes),
    )  # fmt: skip
    comparison_folder.save_record(place, record)
    compare_run.check_series(options, place, [arm.name for arm in arms[-1][1:]])
    question = journal.Question(
        (record.goal or compare_run.first_goal(meter, arms[-1][0])).removeprefix("val/"), comparison.at,
        arms[-1][0].name, comparison.seeds, tuple(arm.name for arm in arms[-1]), comparison.margin,
        options.get("test") or "t",
    )  # fmt: skip
    ended = sum(run_records.read_state(job.folder) in run_records.END_STATES for job in largest)
    details = {"varied": list(record.varied or ()), "command": record.command, "scale": list(comparison.scale)}
    journal.append_event(place, journal.Event(journal.PLAN, question, ended, details))
    for budget, each in zip(budgets[:-1], arms[:-1], strict=True):
        runner.budget = budget
        runner(each, comparison.seeds, whole=False)
    runner.budget = budgets[-1]
    runner(arms[-1], comparison.seeds, whole=False)
    if (early_code := compare_run.exit_code_if_unfinished(jobs, runner)) is not None:
        return early_code
    if comparison.at == "test":
        measure_test_figures(jobs, options, runner)
    code = compare_run.show_comparison(record, options, place, place)
    return exit_code(runner.failed) or code


def measure_test_figures(jobs: Sequence[plan.Job], options: ParsedOptions, runner: Runner) -> None:
    """Measure the test split of every run."""
    from zoo.compare import figures_on_test_split

    folders = [job.folder for job in jobs]
    figures_on_test_split.measure_test_figures(folders, options.get("allow_import"), runner.print_progress)


def check_compute(labels: Sequence[str], computes: Sequence[float]) -> None:
    """Raise UsageError, before anything is run, for two sizes of equal training FLOPs; ``computes`` are sorted."""
    for index, (smaller, larger) in enumerate(itertools.pairwise(computes)):
        if larger <= LEAST_RATIO * smaller:
            raise UsageError(
                f"--scale: {labels[index]} and {labels[index + 1]} take the same FLOPs, {larger:.3g}, and a law of "
                "loss and compute needs sizes that differ.\nScale what costs compute, such as dim=64,96,128."
            )


def check_loss(meter: Any, arm: Arm, goal: str | None) -> None:
    """Raise UsageError unless the figure that decides is a loss: a power law is of something that falls towards E."""
    names = meter.goals(arm.point.config)[1]
    name = (goal or compare_run.first_goal(meter, arm)).removeprefix("val/")
    if goal is not None:
        compare_run.check_goal(meter, arm, goal)
    if names.get(name) != "min":
        losses = ", ".join(one for one, direction in names.items() if direction == "min")
        raise UsageError(f"--scale fits a law of loss, and {name} is better the higher it is: --goal {losses}")


def _compute(arm: Arm, meter: Any) -> float:
    """Training FLOPs of a run, up to the tokens of a step, which all sizes share unless the data vary."""
    steps = arm.point.config["trainer"].get("max_steps")
    return float(BACKWARD * meter.cost(arm.point.config).flops * (steps if isinstance(steps, int) and steps > 0 else 1))
