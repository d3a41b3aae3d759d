"""Run a comparison, and show its result: table, report, TensorBoard."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from zoo import console
from zoo.cli.tables import is_terminal
from zoo.command_line import ParsedOptions
from zoo.compare import (
    error_budget,
    journal,
    plan,
    prepare_runs,
    run_records,
    scale_runs,
)  # fmt: skip
from zoo.compare.execute import (
    FitJob,
    RunOptions,
    execute,
    exit_code,
    measure_test_figures,
    threads_per_run,
)
from zoo.compare.executor import Executor, Request, read_request
from zoo.compare.looks import load_looks
from zoo.compare.number_format import format_duration
from zoo.compare.plan import Arm, Comparison, variant_text
from zoo.compare.prepare_runs import PreparedRuns, check_validations
from zoo.errors import StorageError, UsageError, ZooError
from zoo.logging import run_state
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.verdict import Answer


@dataclass(frozen=True)
class Stage:
    """The runs of one size; a comparison without --scale has one. ``request`` is the comparison at this size."""

    request: Comparison
    ready: PreparedRuns
    label: str = ""


@dataclass(frozen=True)
class FinishedRuns:
    """A comparison of which all runs have ended, with the folder that records it."""

    comparison: Comparison
    stages: tuple[Stage, ...]  # by size; the last one decides
    record: run_records.Record
    place: Path

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The variants at the size that decides, the baseline first."""
        return self.stages[-1].ready.arms


class PendingError(Exception):
    """A dry run has reached ``runs`` whose results decide which runs follow."""

    def __init__(self, runs: list[FitJob]) -> None:
        super().__init__()
        self.runs = runs


class Runner:
    """Runs variants with the number of jobs and the shard of a command line; runs nothing in a dry run."""

    def __init__(self, options: ParsedOptions, fits: plan.ZooFit) -> None:
        self.options, self.fits = options, fits
        self.goal: str | None = None
        self.at = run_records.DECISIVE
        self.budget: str | None = None
        self.failed: dict[str, int] = {}  # exit codes by title
        self.executor, self.request = read_request(options)
        self.started: Executor | None = None

    def __call__(self, arms: Sequence[Arm], seeds: Sequence[int], whole: bool = True) -> None:
        """Run what is missing; ``whole``: all of it, not only this shard, because later steps need it."""
        jobs = self.jobs(arms, seeds)
        if self.options.get("dry_run"):
            if unfinished := plan.unfinished_jobs(jobs):
                raise PendingError(unfinished)
            return
        shard = self.options.get("shard")
        own = list(jobs) if whole else plan.take_shard(jobs, shard)
        if not plan.unfinished_jobs(own):
            return
        if self.started is None:
            self.executor.start(self.request_of(arms))
            self.started = self.executor
        self.failed |= execute(
            own,
            RunOptions(
                jobs=self.request.jobs, environment={"ZOO_BUDGET": self.budget} if self.budget else {},
                wait=whole or shard is None, report=self.print_progress, goal=self.goal or "", at=self.at,
                executor=self.started,
            ),
        )  # fmt: skip

    def request_of(self, arms: Sequence[Arm]) -> Request:
        """What the variants ask of the executor."""
        return replace(self.request, trainer=arms[0].point.config["trainer"])

    def stop(self) -> None:
        """Free what the executor has, such as its processes."""
        if self.started is not None:
            self.started.stop()

    def jobs(self, arms: Sequence[Arm], seeds: Sequence[int]) -> list[FitJob]:
        """The jobs of the variants. Raises UsageError where an existing run has another configuration."""
        plan.verify_runs(arms, seeds, self.fits)
        return plan.list_jobs(arms, seeds)

    def print_progress(self, line: str) -> None:
        """Print a line of progress."""
        print(line, file=output_stream(self.options), flush=True)


def open_comparison(options: ParsedOptions, command_lines: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """A planner of runs and a meter of costs; checks each of ``command_lines``, then imports torch."""
    from zoo.cli import doctor, warning_filters

    for words in command_lines:
        plan.draft_command(words)
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.training.config_meter import ConfigMeter

    return plan.ZooFit(options.get("runs")), ConfigMeter(allowed_imports(options))


def allowed_imports(options: ParsedOptions) -> tuple[str, ...]:
    """The modules that class paths may name besides zoo and its plugins; ``*`` for any."""
    return (*options.get("allow_import"), *(["*"] if options.get("trust") else []))


def compare(options: ParsedOptions, comparison: Comparison) -> int:
    """`zoo compare RECIPE --vary …`, with --scale or --attribute too: run what is missing, print and write the result.

    Returns the exit code.
    """
    finished, code = run_comparisons(options, [comparison])
    for result in finished:  # none where other shards have runs left, and in a dry run
        answer_code = show_result(result, options)
        code = code or answer_code
    return code


def show_result(finished: FinishedRuns, options: ParsedOptions) -> int:
    """Print and write the result of a comparison: with --probe also losses on longer texts, and of hybrids of two
    recipes the contribution of each option.
    """
    from zoo.compare import attribute

    comparison = finished.comparison
    charts = [probe(finished, options)] if comparison.probe else []
    answer, folder = error_budget.look_and_record(finished.record, options, finished.place)
    if not comparison.attribute:
        return print_answer(answer, options, folder, charts)
    runs = [run for seeds in answer.runs.values() for run in seeds.values()]
    figures = attribute.hybrid_figures(finished.arms, runs, answer.goal, answer.at)
    differences = finished.stages[-1].ready.differences
    shares = attribute.compute_shares(differences, figures, answer.lower_is_better, answer.plan)
    code = print_answer(answer, options, folder, [attribute.shares_chart(shares, answer)])
    print(f"\n{attribute.shares_text(shares, answer.goal)}", file=output_stream(options), flush=True)
    return code


def run_comparisons(options: ParsedOptions, comparisons: Sequence[Comparison]) -> tuple[list[FinishedRuns], int]:
    """Plan some comparisons, refuse what can be refused, and only then write and run; those of which all runs ended.

    Everything is checked before the first file is written and the first run is started, of all comparisons, whatever
    they vary. The exit code is that of runs that failed. In a dry run, and where other shards have runs left, a
    comparison is not finished. Raises UsageError.
    """
    words = [line for comparison in comparisons for line in scale_runs.check_request(comparison)]
    fits, meter = open_comparison(options, words)
    runner = Runner(options, fits)
    drafts = []
    for comparison in comparisons:
        try:
            drafts.append(draft_stages(comparison, fits, meter))
            check_plan(comparison, drafts[-1], meter, runner)
        except UsageError as error:
            if len(comparisons) == 1:
                raise
            raise type(error)(f"{comparison.recipe}: {error}") from error
    check_names(comparisons, drafts)
    result = []
    try:
        for comparison, stages in zip(comparisons, drafts, strict=True):
            if (finished := _run_stages(comparison, stages, meter, runner)) is not None:
                result.append(finished)
    finally:
        runner.stop()
    return result, exit_code(runner.failed.values())


def draft_stages(comparison: Comparison, fits: plan.ZooFit, meter: Any) -> list[Stage]:
    """The variants at every size, the largest size last, as far as no run is needed. Raises UsageError."""
    if not comparison.scale:
        return [Stage(comparison, prepare_runs.draft_runs(comparison, fits, meter))]
    sizes = scale_runs.check_scale(comparison)
    requests = [scale_runs.comparison_at(comparison, size, fits, meter) for size in sizes]
    aligned = scale_runs.align_variants([prepare_runs.draft_runs(request, fits, meter) for request in requests])
    stages = [Stage(*stage) for stage in zip(requests, aligned, map(variant_text, sizes), strict=True)]
    computes = [scale_runs.training_compute(stage.ready.arms[0], meter) for stage in stages]
    order = sorted(range(len(stages)), key=computes.__getitem__)
    scale_runs.check_compute([stages[index].label for index in order], [computes[index] for index in order])
    return [stages[index] for index in order]


def check_plan(comparison: Comparison, stages: Sequence[Stage], meter: Any, runner: Runner) -> None:
    """Raise UsageError for whatever a plan can be refused for: figures, splits, validations, devices, looks, series.

    Called before anything is written or run, and again where runs have decided about budgets or options.
    """
    from zoo.compare.report import check_folder

    options, goal = runner.options, stages[-1].ready.goal
    if runner.request.gpu_share and (comparison.budget or "").startswith("time"):
        raise UsageError("--budget time= needs the speed of each run, which runs that share a GPU do not have.")
    if options.get("out"):
        check_folder(Path(options.get("out")))
    for stage in stages:
        arms = stage.ready.arms
        check_goal(meter, arms[0], goal)
        check_validations(comparison.at, [(arm.name, arm.point.config) for arm in arms], meter.batches_per_epoch)
        if comparison.at == "test":
            prepare_runs.check_test_split(arms, meter)
        runner.executor.check(runner.request_of(arms))
        if not prepare_runs.needs_runs(stage.request):
            check_finished_runs(comparison, plan.unfinished_jobs(runner.jobs(arms, comparison.seeds)), stages, goal)
    last = stages[-1].ready.arms
    if comparison.scale:
        goals = meter.goals(last[0].point.config)[1]
        scale_runs.check_loss(goals, goal or next(iter(goals)))
    place = comparison_path(comparison, stages)
    names = [arm.name for arm in last]
    error_budget.check_looks(load_looks(place, names), place, names)
    error_budget.reserve_tries(options, place, names[1:], save=False)


def check_finished_runs(
    comparison: Comparison, unfinished: Sequence[FitJob], stages: Sequence[Stage], goal: str | None
) -> None:
    """Raise UsageError for a target which earlier runs of the variants reached by their first validation, and where
    runs that would be made could give no verdict on it, because others had ended before it was named.
    """
    if run_records.target_of(comparison.at) is None:
        return
    place = comparison_path(comparison, stages)
    homes = [arm.point.folder(0).parent for arm in stages[-1].ready.arms]
    folders = [path.parent for home in homes for path in sorted(home.glob(f"s*/{run_state.LEDGER}"))]
    runs = [run for run in run_records.read_ledgers(folders) if run.goals]
    names = [(goal or next(iter(run.goals))).removeprefix("val/") for run in runs]
    for run, name in zip(runs, names, strict=True):
        run.figure(name, comparison.at)
    ended = [name for run, name in zip(runs, names, strict=True) if run.has_ended and run.seed in comparison.seeds]
    if unfinished and ended and (ended[0], comparison.at) not in journal.planned_targets(place):
        raise UsageError(
            f"--to {ended[0]}={comparison.at.partition(':')[2]}: {len(ended)} runs of this comparison had ended before "
            "the target was named, so that further ones would give no verdict.\nMake new ones: --runs DIR. To see "
            f"where the runs stand: zoo compare {place} --to …"
        )


def check_names(comparisons: Sequence[Comparison], drafts: Sequence[Sequence[Stage]]) -> None:
    """Raise UsageError for two comparisons whose recipes share a name, and so a folder of runs."""
    recipes: dict[str, str] = {}
    for comparison, stages in zip(comparisons, drafts, strict=True):
        name = stages[-1].ready.arms[0].point.recipe
        if name in recipes:
            raise UsageError(
                f"{recipes[name]!r} and {comparison.recipe!r} have the same name, {name}, and so one run folder."
            )
        recipes[name] = comparison.recipe


def comparison_path(comparison: Comparison, stages: Sequence[Stage]) -> Path:
    """The folder of a comparison."""
    point = stages[-1].ready.arms[0].point
    return run_records.comparison_path(point.root, point.recipe, comparison.title)


def _run_stages(comparison: Comparison, stages: list[Stage], meter: Any, runner: Runner) -> FinishedRuns | None:
    """Run what is missing of a comparison; None in a dry run, and where other shards have runs left."""
    options, seeds = runner.options, comparison.seeds
    has_target = run_records.target_of(comparison.at) is not None
    runner.goal = stages[-1].ready.goal
    runner.at = run_records.DECISIVE if has_target else comparison.at  # progress shows the metric itself
    try:
        for index, stage in enumerate(stages):
            runner.budget = stage.request.budget
            ready = prepare_runs.complete_runs(stage.request, stage.ready, runner.fits, meter, runner)
            stages[index] = replace(stage, ready=ready)
    except PendingError as pending:
        print_plan(pending.runs)
        print("These runs decide how the compared ones are made.")
        return None
    if any(prepare_runs.needs_runs(stage.request) for stage in stages):
        check_plan(comparison, stages, meter, runner)
    jobs = [job for stage in stages for job in runner.jobs(stage.ready.arms, seeds)]
    print_stages(comparison, stages, runner)
    if options.get("dry_run"):
        print_plan(jobs)
        return None
    place = comparison_path(comparison, stages)
    record = make_record(comparison, stages, place, command_line(options))
    error_budget.reserve_tries(options, place, [arm.name for arm in stages[-1].ready.arms[1:]])
    run_records.save_record(place, record)
    append_plan(comparison, stages, record, place, meter, options)
    for stage in stages:
        runner.budget = stage.request.budget
        if comparison.until:
            record = run_until_decided(stage.ready.arms, seeds, record, place, runner)
            jobs = [job for job in jobs if job.folder in record.folders]
        else:
            runner(stage.ready.arms, seeds, whole=False)
    if has_runs_left(jobs, runner):
        return None
    if comparison.at == "test":
        measure_test_figures([job.folder for job in jobs], options.get("allow_import"), runner.print_progress)
    return FinishedRuns(comparison, tuple(stages), record, place)


def make_record(comparison: Comparison, stages: Sequence[Stage], place: Path, command: str) -> run_records.Record:
    """What the comparison's folder records of its runs, those of the size that decides."""
    stage = stages[-1]
    ready, arms = stage.ready, stage.ready.arms
    keys = [factor.key for factor in comparison.vary] or [difference.choice.key for difference in ready.differences]
    sizes = [(at_size.label, at_size.ready, at_size.request.budget) for at_size in stages]
    scale = scale_runs.as_data(place, sizes, comparison.seeds, scale_notes(comparison, ready)) if comparison.scale\
        else {}  # fmt: skip
    folders = tuple(job.folder for job in plan.list_jobs(arms, comparison.seeds))
    return run_records.Record(
        folders, arms[0].name, ready.goal, stage.request.budget, ready.tuned, command, tuple(keys), comparison.at,
        comparison.margin, comparison.until, ready.tuning, scale,
    )  # fmt: skip


def append_plan(
    comparison: Comparison, stages: Sequence[Stage], record: run_records.Record, place: Path, meter: Any,
    options: ParsedOptions,
) -> None:  # fmt: skip
    """Write down in the journal what is asked, before the runs."""
    arms = stages[-1].ready.arms
    question = journal.RunsQuestion(
        (record.goal or next(iter(meter.goals(arms[0].point.config)[1]))).removeprefix("val/"),
        arms[0].name, comparison.at,
        comparison.margin, options.get("test"), seeds=comparison.seeds, variants=tuple(arm.name for arm in arms),
    )  # fmt: skip
    ended = sum(run_state.read_state(folder) in run_state.END_STATES for folder in record.folders)
    details = {"varied": list(record.varied or ()), "command": record.command, "until": comparison.until}
    details |= {"scale": list(comparison.scale)} if comparison.scale else {}
    journal.append_event(place, journal.Event(journal.PLAN, question, ended, details))


def scale_notes(comparison: Comparison, ready: PreparedRuns) -> list[str]:
    """What to know about the learning rates and the variants of several sizes."""
    exclusions = [f"Left out, because {sentence}: {name}." for name, sentence in ready.invalid.items()]
    return [*scale_runs.rate_notes(comparison, ready.arms), *exclusions]


def print_stages(comparison: Comparison, stages: Sequence[Stage], runner: Runner) -> None:
    """Print what is run: its differences, sizes, numbers of runs, how many are finished, their time, and notes."""
    ready, jobs = stages[-1].ready, runner.options.get("jobs")
    recipe = ready.arms[0].point.recipe
    lines = []
    if ready.differences:
        recipes = f"{recipe} and {comparison.second_name}"
        lines.append(f"{recipes} differ in {len(ready.differences)} options: {', '.join(map(str, ready.differences))}")
    share = f", shard {runner.options.get('shard')}" if runner.options.get("shard") else ""
    for stage in stages:
        arms = stage.ready.arms
        runs = plan.list_jobs(arms, comparison.seeds)
        unfinished = plan.unfinished_jobs(runs)
        lines += [f"size {stage.label}"] if stage.label else []
        lines.append(
            f"{recipe}: {len(arms)} variants x {len(comparison.seeds)} seeds = {len(runs)} runs, "
            f"{len(runs) - len(unfinished)} finished{share}"
        )
        if unfinished:
            length = {arm.name: arm.point.config["trainer"].get("max_steps") for arm in arms}
            estimate = plan.estimate_seconds(unfinished, length, arms[0].point.root / recipe)
            time = (
                "unknown: no run is finished yet" if estimate is None else f"about {format_duration(estimate / jobs)}"
            )
            threads = int(runner.request.resources.get("cpus", 0)) or threads_per_run(jobs)
            lines.append(f"  {jobs} at once, {threads} threads each · time {time}")
    notes = [describe_power(comparison, len(ready.arms) - 1, runner.options)]
    if comparison.scale:
        notes += scale_notes(comparison, ready)
    else:
        notes += [*ready.notes, *(f"left out {name}: {sentence}" for name, sentence in ready.invalid.items())]
    for line in (*lines, *(f"  {note}" for note in notes if note)):
        runner.print_progress(line)


def describe_power(comparison: Comparison, variants: int, options: ParsedOptions) -> str:
    """What the verdicts on so many variants can decide; a grid's main effects and interactions are corrected along."""
    from zoo.compare import looks

    changes = [len(factor.choices()) - 1 for factor in comparison.vary]
    whole = len(changes) > 1 and math.prod(count + 1 for count in changes) == variants + 1
    effects = sum(changes) + sum(a * b for a, b in itertools.combinations(changes, 2)) if whole else 0
    return looks.describe_power(
        len(comparison.seeds), max(1, variants) + effects, options.get("test"), comparison.until
    )


def check_goal(meter: Any, arm: Arm, goal: str | None) -> None:
    """Raise UsageError, before anything is run, for a --goal that the task does not report."""
    names = meter.goals(arm.point.config)[1]
    if goal is not None and goal.removeprefix("val/") not in names:
        raise UsageError(
            f"--goal {goal!r} is no figure of the task.{suggest(goal, names)} There are: {', '.join(names)}."
        )


def run_until_decided(
    arms: Sequence[Arm], seeds: Sequence[int], record: run_records.Record, place: Path, runner: Runner
) -> run_records.Record:
    """Run seed after seed of the undecided variants, or to the next planned look, and look after each; the record of
    all runs.

    A variant is dropped once it is decided, or if it would need more than all seeds even if its effect were as large as
    nine of ten such observations allow. Before the first seed that could decide, all are run together.
    """
    from zoo.compare.looks import DECISIONS, UNTIL, parse_planned
    from zoo.compare.statistics import ALPHA, fewest_sequential_seeds

    undecided, done, folders, planned = list(arms[1:]), 0, [], parse_planned(record.until)
    batch = planned[0] if planned else fewest_sequential_seeds(UNTIL * ALPHA / len(undecided))
    while undecided and done < len(seeds) and not runner.failed:
        now = seeds[done : done + batch]
        folders += [arm.point.folder(seed) for seed in now for arm in (arms[0], *undecided)]
        record = replace(record, folders=tuple(folders))
        run_records.save_record(place, record)
        runner((arms[0], *undecided), now)
        done += len(now)
        ledgers = run_records.read_ledgers(record.folders, record.budget)
        answer = error_budget.look_at_comparison(ledgers, runner.options, record, place)
        rows = {row.variant: row for row in answer.rows}
        open_arms = []
        for arm in undecided:
            row = rows.get(arm.name)
            word = row.verdict.word if row else ""
            hopeless = (
                row is not None and record.margin is None and not planned and word == "not distinguishable"
                and bool(row.differences) and (row.verdict.fewest or math.inf) > len(seeds)
            )  # fmt: skip
            open_arms += [] if hopeless or word in DECISIONS else [arm]
            if row is not None:
                more = f": more than {len(seeds)} seeds would be needed" if hopeless else ""
                runner.print_progress(
                    f"{done} seeds  {row.label} · {word if word in DECISIONS else f'undecided{more}'}"
                )
        # the nearest to a decision first; as many seeds at once as there are jobs for
        undecided = sorted(open_arms, key=lambda arm: rows[arm.name].pair.p if arm.name in rows else 1.0)
        if planned:
            batch = next((count for count in planned if count > done), done) - done
            continue
        batch = max(1, runner.options.get("jobs") // (1 + len(undecided)))
    return record


def output_stream(options: ParsedOptions) -> TextIO:
    """Where progress goes: not between the braces of a JSON document."""
    return sys.stderr if options.get("json") else sys.stdout


def command_line(options: ParsedOptions) -> str:
    """The command line, to be shown and repeated."""
    return shlex.join(["zoo", "compare", *options.argv])


def has_runs_left(jobs: Sequence[FitJob], runner: Runner) -> bool:
    """Whether runs of other shards are missing. Raises ZooError if all runs failed."""
    unfinished = plan.unfinished_jobs(jobs)
    if runner.options.get("shard") and unfinished and not runner.failed:
        runner.print_progress(
            f"{len(jobs) - len(unfinished)} of {len(jobs)} runs are finished; the others belong to other shards."
        )
        return True
    if len(unfinished) == len(jobs):
        of_disk = exit_code(runner.failed.values()) == StorageError.code
        kind = StorageError if of_disk else ZooError
        raise kind(
            f"all {len(jobs)} runs failed: {unfinished[0].title} and the others. See their logs."
            + (" When the disk works again, repeat the command." if of_disk else "")
        )
    return False


def print_plan(jobs: Sequence[FitJob]) -> None:
    """The runs, their states and their commands."""
    from zoo.cli.tables import table

    rows = [[state, job.title, shlex.join(["zoo", "fit", *job.words])] for job, state in plan.job_states(jobs).items()]
    table(["state", "run", "command"], rows)


def probe(finished: FinishedRuns, options: ParsedOptions) -> ReportChart:
    """Measure every finished run on longer texts, print the table, and draw the chart in the answer's colours."""
    from zoo.compare import length_probe
    from zoo.compare.charts import draw_lines, variant_styles
    from zoo.compare.paired_tests import failure_text
    from zoo.compare.table import plain_columns

    def report(line: str) -> None:
        print(line, file=output_stream(options), flush=True)

    comparison, place = finished.comparison, finished.place
    factors = length_probe.parse_factors(comparison.probe or "")
    answer = error_budget.answer_records(run_records.read_ledgers(finished.record.folders), options, finished.record)
    labels = {row.variant: row.label for row in answer.rows}
    styles = {labels[variant]: mark_style for variant, mark_style in variant_styles(answer).items()}
    folders = {
        labels.get(arm.name, arm.name): {
            seed: folder
            for seed in comparison.seeds
            if run_state.read_state(folder := arm.point.folder(seed)) == "finished"
        }
        for arm in finished.arms
    }
    losses = length_probe.probe(folders, factors, place, allowed_imports(options), report)
    failures = {row.label: failure_text(row.failures, len(row.figures)) for row in answer.rows if row.failures}
    differences = length_probe.length_differences(losses, answer.base.label, failures)
    tables = [length_probe.table(losses, failures)]
    tables += [length_probe.differences_table(differences)] if differences else []
    for rows in tables:
        for line in [*plain_columns(rows), ""]:
            report(line)
    length_probe.save_differences(place, differences)
    legend = length_probe.differences_legend(answer.base.label, differences)
    for line in textwrap.wrap(legend, 100):
        report(line)
    ticks = [f"{factor}×" for factor in factors]
    title = "Loss in the last quarter of texts longer than in training"
    caption = "Mean over seeds of each run's best checkpoint on the validation text."
    if failures:
        caption += f" Without a mean: {', '.join(f'{label} ({text})' for label, text in failures.items())}."
    if legend:
        rows = length_probe.differences_table(differences)
        texts = [f"{row[0]} {', '.join(f'{cell} at {head}' for head, cell in zip(rows[0][1:], row[1:], strict=True))}"
                 for row in rows[1:]]  # fmt: skip
        caption += f" {legend} {'; '.join(texts)}."
    axis_labels = ("length, in training lengths", "nats per token")
    losses = {label: by_seed for label, by_seed in losses.items() if label not in failures} or losses
    return draw_lines(title, length_probe.mean_losses(losses), axis_labels, ticks, caption=caption, styles=styles)


def answer_folders(folders: Sequence[Path], options: ParsedOptions) -> int:
    """`zoo compare FOLDER`: print the result of finished runs, without torch."""
    out = options.get("out")
    place = Path(out) if out else None
    record = run_records.load_record(folders[0]) if len(folders) == 1 else None
    if record is not None:
        if not options.get("at") and options.get("goal") != record.goal:
            run_records.check_target(record.at or "", goal=options.get("goal"))
        new_record = replace(
            record, baseline=options.get("baseline") or record.baseline, goal=options.get("goal") or record.goal,
            at=options.get("at") or record.at, margin=options.get("margin") or record.margin,
        )  # fmt: skip
        answer, folder = error_budget.look_and_record(new_record, options, folders[0])
        return print_answer(answer, options, folder if place == folders[0] else place)
    if options.get("series"):
        raise UsageError("--series is for a comparison that zoo compare has run: RECIPE --vary …, or its folder.")
    ledgers = run_records.read_records(*folders)
    run_records.check_one_task(ledgers)
    record = run_records.Record((), options.get("baseline"), margin=options.get("margin"))
    return print_answer(error_budget.look_at_runs(ledgers, options, record), options, place)


def print_answer(answer: Answer, options: ParsedOptions, place: Path | None, more: Sequence[ReportChart] = ()) -> int:
    """Print the answer, and write the report if ``place`` is set.

    Returns 1 where the figures are not comparable, else 0; with --exit-code that of the outcome.
    """
    from zoo.compare import table
    from zoo.compare.verdict import EXIT_CODES

    if options.get("json"):
        print(table.as_json(answer))
    else:
        console.draw(table.as_text(answer, table.terminal_width(), is_terminal()))
    if place is not None:
        write_report(answer, options, Path(options.get("out") or place), more)
    if options.get("exit_code"):
        return EXIT_CODES[answer.outcome]
    return 1 if answer.comparability_errors else 0


def write_report(answer: Answer, options: ParsedOptions, place: Path, more: Sequence[ReportChart]) -> None:
    """Write the report and TensorBoard's summary, and print where they are."""
    from zoo.compare import tensorboard_summary
    from zoo.compare.report import write_report
    from zoo.compare.tensorboard_command import link

    out = output_stream(options)
    files = write_report(answer, place, more)
    goals = tensorboard_summary.write_summary(place, answer)
    homes = [folder for folder in (place, place.parent) if (folder / run_records.RUNS_FILE).is_file()]
    runs = homes[0] if homes else next(iter(next(iter(answer.runs.values())).values())).path.parents[2]
    page = next((file for file in files if file.suffix == ".html"), place)
    print(f"\nreport  {page}\nlook    zoo tensorboard {runs}", file=out)
    print(f"        {link(pinned=tensorboard_summary.pinned_tags(answer.goal, goals))}", file=out)
