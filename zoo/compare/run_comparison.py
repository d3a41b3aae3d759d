"""The procedure of every comparison: plan it, refuse what can be refused, run what is missing, look, show."""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from zoo import console
from zoo.cli.table_printing import is_terminal
from zoo.command_line import ParsedOptions
from zoo.compare import error_budget, journal, looks, plan, prepare_runs, run_records
from zoo.compare.design import PLAIN_DESIGN, check_target
from zoo.compare.executor import Executor, Request, read_request
from zoo.compare.number_format import format_duration
from zoo.compare.parallel_runs import (
    SHARE,
    FitJob,
    RunOptions,
    execute,
    exit_code,
    measure_test_figures,
    threads_per_run,
)
from zoo.compare.plan import Arm, Comparison
from zoo.compare.prepare_runs import Stage
from zoo.config import run_folder
from zoo.errors import StorageError, UsageError, ZooError
from zoo.logging import run_state
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.document import Report
    from zoo.compare.verdict import Answer, Outcome


class PendingError(Exception):
    """A dry run has reached ``runs`` whose results decide which runs follow."""

    def __init__(self, runs: list[FitJob]) -> None:
        super().__init__()
        self.runs = runs


class Runner:
    """Runs variants with the number of jobs and the shard of a command line; runs nothing in a dry run."""

    def __init__(self, options: ParsedOptions, fits: plan.ZooFit, meter: Any) -> None:
        self.options, self.fits, self.meter = options, fits, meter
        self.goal: str | None = None
        self.at = run_records.DECISIVE
        self.budget: str | None = None
        self.failed: dict[Path, int] = {}  # exit codes by folder
        self.executor, self.request = read_request(options)  # `Processes` unless --executor names another
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
        variables = {"ZOO_BUDGET": self.budget or "", SHARE: str(self.request.gpu_share or "")}
        self.failed |= execute(
            own,
            RunOptions(
                jobs=self.request.jobs, environment={name: value for name, value in variables.items() if value},
                wait=whole or shard is None, report=self.print_progress, goal=self.goal or "", at=self.at,
                executor=self.started,
            ),
        )  # fmt: skip

    def draft(self, comparison: Comparison) -> Stage:
        """The variants of a plain comparison, as far as no run is needed. Raises UsageError."""
        return prepare_runs.draft_runs(comparison, self.fits, self.meter)

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


def run_and_show(options: ParsedOptions, comparison: Comparison) -> int:
    """`zoo compare RECIPE --vary …`: run what is missing, print and write the result; the exit code."""
    finished, code = run_comparisons(options, [comparison])
    for result in finished:  # none where other shards have runs left, and in a dry run
        has_design = comparison.design is not PLAIN_DESIGN
        show = comparison.procedure.show
        answer_code = show(result, options) if has_design else result.print_answer(*result.look())
        code = answer_code if options.get("exit_code") else code or answer_code
    return code


def run_comparisons(options: ParsedOptions, comparisons: Sequence[Comparison]) -> tuple[list[ComparisonRun], int]:
    """Plan some comparisons, refuse what can be refused, and only then write and run; those of which all runs ended.

    Everything is checked before the first file is written and the first run is started, of all comparisons, whatever
    they vary. The exit code is that of runs that failed. In a dry run, and where other shards have runs left, a
    comparison is not finished. Raises UsageError.
    """
    words = [line for comparison in comparisons
             for line in comparison.procedure.command_lines(comparison, prepare_runs.check_comparison)]  # fmt: skip
    runner = Runner(options, *open_comparison(options, words))
    planned: dict[str, ComparisonRun] = {}
    for comparison in comparisons:
        try:
            stages = comparison.procedure.draft(comparison, runner) or [runner.draft(comparison)]
            result = ComparisonRun(comparison, stages, runner)
            result.check()
        except UsageError as error:
            if len(comparisons) == 1:
                raise
            raise error.reworded(f"{comparison.recipe}: {error}") from error
        namesake = planned.setdefault(result.recipe, result).comparison.recipe
        if namesake != comparison.recipe:
            raise UsageError(
                f"{namesake!r} and {comparison.recipe!r} have the same name, {result.recipe}, and so one run folder."
            )
    try:
        finished = [result for result in planned.values() if result.run()]
    finally:
        runner.stop()
    return finished, exit_code(runner.failed.values())


def open_comparison(options: ParsedOptions, command_lines: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """A planner of runs and a meter of costs; checks each of ``command_lines``, then imports torch."""
    from zoo.cli import doctor, warning_filters

    for words in command_lines:
        plan.draft_command(words)
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.training.config_meter import ConfigMeter

    return plan.ZooFit(options.get("runs")), ConfigMeter(options.allowed)


@dataclass
class ComparisonRun:
    """A comparison on its way from its plan to the record of its runs. ``stages`` are its sizes; the last one decides.

    ``folders`` are those of the runs that decide, once they are planned, and ``place`` is that of the comparison. It is
    named after what varies and how the baseline differs from its recipe otherwise: where its runs are others, it is
    another comparison.
    """

    comparison: Comparison
    stages: list[Stage]
    runner: Runner
    folders: tuple[Path, ...] = ()
    place: Path = field(init=False)

    def __post_init__(self) -> None:
        shared = set.intersection(*({*run_records.name_pieces(stage.arms[0].name)} for stage in self.stages))
        keys = [f".{factor.key}" for factor in self.comparison.vary]
        pieces = [piece for piece in run_records.name_pieces(self.arms[0].name) if piece in shared]
        others = [piece for piece in pieces if not any(key.endswith(f".{piece.partition('=')[0]}") for key in keys)]
        title = run_folder.join_pieces([self.comparison.title, *others])
        root, usual = self.arms[0].point.root, self.comparison.title
        self.place = run_records.comparison_path(root, self.recipe, title)
        before = run_records.comparison_path(root, self.recipe, usual)  # 0.3.0 named it so
        if before != self.place and not self.place.exists():
            with contextlib.suppress(UsageError):  # a damaged record is no reason to refuse another comparison
                record = run_records.load_record(before)
                self.place = before if record and record.baseline == self.arms[0].name else self.place

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The variants at the size that decides, the baseline first."""
        return self.stages[-1].arms

    @property
    def recipe(self) -> str:
        """The name of the recipe's folder."""
        return self.arms[0].point.recipe

    @property
    def goals(self) -> dict[str, str]:
        """The figures of the task with their directions, the headline first."""
        goals: dict[str, str] = self.runner.meter.goals(self.arms[0].point.config)[1]
        return goals

    @property
    def goal(self) -> str:
        """The figure that decides."""
        return (self.stages[-1].goal or next(iter(self.goals))).removeprefix("val/")

    def check(self) -> None:
        """Raise UsageError for all that a plan can be refused for: figures, splits, validations, devices, looks.

        Called before anything is written or run, and again where runs have decided about budgets or options.
        """
        from zoo.compare.report import check_folder

        options, comparison, meter = self.runner.options, self.comparison, self.runner.meter
        if self.runner.request.gpu_share and (comparison.budget or "").startswith("time"):
            raise UsageError("--budget time= needs the speed of each run, which runs that share a GPU do not have.")
        if options.get("out"):
            check_folder(Path(options.get("out")))
        if self.goal not in self.goals:
            option = "--goal" if run_records.target_of(comparison.at) is None else "--to"
            raise UsageError(
                f"{option} {self.stages[-1].goal!r} is no figure of the task.{suggest(self.goal, self.goals)} "
                f"There are: {', '.join(self.goals)}."
            )
        for stage in self.stages:
            arms = stage.arms
            prepare_runs.check_validations(
                comparison.at, [(arm.name, arm.point.config) for arm in arms], meter.batches_per_epoch
            )
            if comparison.at == "test":
                prepare_runs.check_test_split(arms, meter)
            self.runner.executor.check(self.runner.request_of(arms))
            if not stage.needs_runs:
                self.check_target(plan.unfinished_jobs(self.runner.jobs(arms, comparison.seeds)))
        comparison.procedure.check_goal(self.goals, self.goal)
        names = [arm.name for arm in self.arms]
        error_budget.check_looks(looks.load_looks(self.place, names), self.place, names)
        error_budget.reserve_tries(options, self.place, names[1:], save=False)

    def check_target(self, unfinished: Sequence[FitJob]) -> None:
        """Raise UsageError for a target which earlier runs reached by their first validation, and where runs that would
        be made could give no verdict on it, because others had ended before it was named.
        """
        at, ended = self.comparison.at, 0
        if run_records.target_of(at) is None:
            return
        names = [arm.name for arm in self.arms]
        homes = [arm.point.folder(0).parent for arm in self.arms]
        folders = [path.parent for home in homes for path in sorted(home.glob(f"s*/{run_state.LEDGER}"))]
        for run in run_records.read_ledgers(folders):
            if run.goals:
                run.figure(self.goal, at)
                ended += run.has_ended and run.seed in self.comparison.seeds
        if unfinished and ended and (self.goal, at) not in journal.planned_targets(self.place, names):
            raise UsageError(
                f"--to {self.goal}={at.partition(':')[2]}: {ended} runs of this comparison had ended before "
                "the target was named, so that further ones would give no verdict.\nMake new ones: --runs DIR. To see "
                f"where the runs stand: zoo compare {shlex.quote(str(self.place))} --to …"
            )

    def run(self) -> bool:
        """Run what is missing; False in a dry run, and where other shards have runs left."""
        runner, comparison = self.runner, self.comparison
        options, seeds = runner.options, comparison.seeds
        has_target = run_records.target_of(comparison.at) is not None
        runner.goal = self.stages[-1].goal
        runner.at = run_records.DECISIVE if has_target else comparison.at  # progress shows the metric itself
        try:
            for index, stage in enumerate(self.stages):
                runner.budget = stage.request.budget
                self.stages[index] = prepare_runs.complete_runs(stage, runner.fits, runner.meter, runner)
        except PendingError as pending:
            print_plan(pending.runs)
            print("These runs decide how the compared ones are made.")
            return False
        if any(stage.needs_runs for stage in self.stages):
            self.check()
        jobs = [job for stage in self.stages for job in runner.jobs(stage.arms, seeds)]
        self.folders = tuple(job.folder for job in plan.list_jobs(self.arms, seeds))
        for line in self.describe():
            runner.print_progress(line)
        if options.get("dry_run"):
            print_plan(jobs)
            return False
        error_budget.reserve_tries(options, self.place, [arm.name for arm in self.arms[1:]])
        run_records.save_record(self.place, self.record)
        self._append_plan()
        for stage in self.stages:
            runner.budget = stage.request.budget
            if comparison.until:
                self.run_until_decided()
                jobs = [job for job in jobs if job.folder in self.folders]
            else:
                runner(stage.arms, seeds, whole=False)
        if has_runs_left(jobs, runner):
            return False
        self.measure_test_figures([job.folder for job in jobs])
        return True

    def measure_test_figures(self, folders: Sequence[Path]) -> None:
        """Evaluate finished runs on the test split where its figures decide. Raises ZooError."""
        options = self.runner.options
        if self.comparison.at == "test":
            words = [*(f"--allow-import={name}" for name in options.get("allow_import") or ()),
                     *(["--trust"] if options.get("trust") else [])]  # fmt: skip
            measure_test_figures(folders, words, self.runner.print_progress)

    @property
    def record(self) -> run_records.Record:
        """What the comparison's folder records of its runs, those of the size that decides."""
        comparison, stage = self.comparison, self.stages[-1]
        choices = (choice.key for arm in stage.arms for choice in arm.variant)
        keys = [factor.key for factor in comparison.vary] or dict.fromkeys(choices)
        recorded = comparison.procedure.record(self)
        return run_records.Record(
            self.folders, self.arms[0].name, stage.goal, stage.request.budget, stage.tuned,
            command_line(self.runner.options), tuple(keys), comparison.at, comparison.margin, comparison.until,
            stage.tuning, {comparison.design.name: recorded} if recorded else {},
        )  # fmt: skip

    def _append_plan(self) -> None:
        """Write down in the journal what is asked, before the runs."""
        comparison, record = self.comparison, self.record
        question = journal.RunsQuestion(
            self.goal, self.arms[0].name, comparison.at, comparison.margin, self.runner.options.get("test"),
            seeds=comparison.seeds, variants=tuple(arm.name for arm in self.arms),
        )  # fmt: skip
        ended = sum(run_state.read_state(folder) in run_state.END_STATES for folder in record.folders)
        details = {"varied": list(record.varied or ()), "command": record.command, "until": comparison.until}
        details |= comparison.procedure.details(comparison)
        journal.append_event(self.place, journal.Event(journal.PLAN, question, ended, details))

    def describe(self) -> list[str]:
        """What is run: its differences, sizes, numbers of runs, how many are finished, their time, and notes."""
        options, seeds, lines = self.runner.options, self.comparison.seeds, self.comparison.procedure.describe(self)
        jobs, shard = options.get("jobs"), options.get("shard")
        for stage in self.stages:
            runs = plan.list_jobs(stage.arms, seeds)
            unfinished = plan.unfinished_jobs(runs)
            lines += [f"size {stage.label}"] if stage.label else []
            lines.append(
                f"{self.recipe}: {len(stage.arms)} variants x {len(seeds)} seeds = {len(runs)} runs, "
                f"{len(runs) - len(unfinished)} finished{f', shard {shard}' if shard else ''}"
            )
            if unfinished:
                length = {arm.name: arm.point.config["trainer"].get("max_steps") for arm in stage.arms}
                estimate = plan.estimate_seconds(unfinished, length, self.arms[0].point.root / self.recipe)
                time = "unknown: no run is finished yet" if estimate is None\
                    else f"about {format_duration(estimate / jobs)}"  # fmt: skip
                threads = int(self.runner.request.resources.get("cpus", 0)) or threads_per_run(jobs)
                lines.append(f"  {jobs} at once, {threads} threads each · time {time}")
        return lines + [f"  {note}" for note in (self.power, *self.comparison.procedure.notes(self)) if note]

    @property
    def power(self) -> str:
        """What the verdicts can decide; a grid's main effects and interactions are corrected along."""
        names = [arm.name for arm in self.arms]
        variants = len(names) - 1
        changes = [len(factor.values) - 1 for factor in self.comparison.vary]
        whole = len(changes) > 1 and math.prod(count + 1 for count in changes) == variants + 1
        effects = sum(changes) + sum(a * b for a, b in itertools.combinations(changes, 2)) if whole else 0
        return looks.describe_power(
            len(self.comparison.seeds), max(1, variants) + effects, self.runner.options.get("test"),
            self.comparison.until, error_budget.available_budget(self.runner.options, self.place, names),
        )  # fmt: skip

    def look(self) -> tuple[Answer, Path]:
        """The answer of the finished runs, after a look that the folder records, and the folder of its report."""
        return error_budget.look_and_record(self.record, self.runner.options, self.place)

    def print_answer(self, answer: Answer, folder: Path, charts: Sequence[ReportChart] = ()) -> int:
        """Print the answer, and write its report with further charts; the exit code."""
        return print_answer(answer, self.runner.options, folder, charts)

    def run_until_decided(self) -> None:
        """Run seed after seed of the undecided variants, or to the next planned look, and look after each.

        A variant is dropped once it is decided, if one of its runs or of the baseline's has failed, or if it would need
        more than all seeds even if its effect were as large as nine of ten such observations allow. Before the first
        seed that could decide, all are run together.
        """
        from zoo.compare.statistics import ALPHA, fewest_sequential_seeds

        runner, seeds, base = self.runner, self.comparison.seeds, self.arms[0]
        undecided, done, planned = list(self.arms[1:]), 0, looks.parse_planned(self.comparison.until)
        batch = planned[0] if planned else fewest_sequential_seeds(looks.UNTIL * ALPHA / len(undecided))
        self.folders = ()
        while undecided and done < len(seeds):
            now = seeds[done : done + batch]
            self.folders += tuple(arm.point.folder(seed) for seed in now for arm in (base, *undecided))
            run_records.save_record(self.place, self.record)
            runner((base, *undecided), now)
            done += len(now)
            self.measure_test_figures(self.folders)
            ledgers = run_records.read_ledgers(self.folders, self.record.budget)
            answer = error_budget.interim_answer(ledgers, runner.options, self.record, self.place)
            rows = {row.variant: row for row in answer.rows}
            failed = {arm.name for arm in (base, *undecided) for seed in now if arm.point.folder(seed) in runner.failed}
            failed |= {base.name} if StorageError.code in runner.failed.values() else set()  # no run goes on
            open_arms = []
            for arm in undecided:
                row = rows.get(arm.name)
                word = row.verdict.word if row else ""
                hopeless = (
                    row is not None and self.comparison.margin is None and not planned
                    and word == "not distinguishable" and bool(row.differences)
                    and (row.verdict.fewest or math.inf) > len(seeds)
                )  # fmt: skip
                ends = hopeless or word in looks.DECISIONS or {base.name, arm.name} & failed
                open_arms += [] if ends else [arm]
                if row is not None:
                    more = f": more than {len(seeds)} seeds would be needed" if hopeless else ""
                    outcome = word if word in looks.DECISIONS else f"undecided{more}"
                    runner.print_progress(f"{done} seeds  {row.label} · {outcome}")
            # the nearest to a decision first; as many seeds at once as there are jobs for
            undecided = sorted(open_arms, key=lambda arm: rows[arm.name].pair.p if arm.name in rows else 1.0)
            batch = (
                next((count for count in planned if count > done), done) - done if planned
                else max(1, runner.options.get("jobs") // (1 + len(undecided)))
            )  # fmt: skip


def output_stream(options: ParsedOptions) -> TextIO:
    """Where progress goes: not between the braces of a JSON document."""
    return sys.stderr if options.get("json") else sys.stdout


def command_line(options: ParsedOptions) -> str:
    """The command line, to be shown and repeated."""
    return shlex.join(["zoo", "compare", *options.argv])


def has_runs_left(jobs: Sequence[FitJob], runner: Runner) -> bool:
    """Whether runs of other shards are missing. Raises ZooError if all runs failed."""
    unfinished = plan.unfinished_jobs(jobs)
    elsewhere = [job for job in unfinished if job.folder not in runner.failed]
    if runner.options.get("shard") and elsewhere:
        failed = f", {len(unfinished) - len(elsewhere)} failed" if len(elsewhere) < len(unfinished) else ""
        runner.print_progress(
            f"{len(jobs) - len(unfinished)} of {len(jobs)} runs are finished{failed}; "
            "the others belong to other shards."
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
    from zoo.cli.table_printing import table

    rows = [[state, job.title, shlex.join(["zoo", "fit", *job.words])] for job, state in plan.job_states(jobs).items()]
    table(["state", "run", "command"], rows)


def answer_folders(folders: Sequence[Path], options: ParsedOptions) -> int:
    """`zoo compare FOLDER`: print the result of finished runs, without torch."""
    out = options.get("out")
    place = Path(out) if out else None
    record = run_records.load_record(folders[0]) if len(folders) == 1 else None
    if record is not None:
        if not options.get("at") and options.get("goal") != record.goal:
            check_target(record.at or "", goal=options.get("goal"))
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
    return print_answer(error_budget.look_without_record(ledgers, options, record), options, place)


def print_answer(answer: Answer, options: ParsedOptions, place: Path | None, more: Sequence[ReportChart] = ()) -> int:
    """Print the answer, and write the report if ``place`` is set. Returns the exit code."""
    from zoo.compare import table

    errors, report = answer.comparability_errors, table.compose_report(answer)
    code = print_report(answer.outcome, errors, report, lambda: table.as_json(answer), options)
    if place is not None:
        write_report(answer, options, Path(options.get("out") or place), more)
    return code


def print_report(
    outcome: Outcome, errors: Sequence[str], report: Report, as_json: Callable[[], str], options: ParsedOptions
) -> int:
    """Print a report, with --json as JSON.

    Returns 1 where the figures are not comparable, of which ``errors`` say why, else 0; with --exit-code that of the
    outcome.
    """
    from zoo.compare.document import terminal_width
    from zoo.compare.verdict import EXIT_CODES

    if options.get("json"):
        print(as_json())
    else:
        console.draw(report.as_text(terminal_width(), is_terminal()))
    return EXIT_CODES[outcome] if options.get("exit_code") else int(bool(errors))


def write_report(answer: Answer, options: ParsedOptions, place: Path, more: Sequence[ReportChart]) -> None:
    """Write the report and TensorBoard's summary, and print where they are."""
    from zoo.compare import tensorboard_summary
    from zoo.compare.report import write_report

    files = write_report(answer, place, more)
    pinned = tensorboard_summary.pinned_tags(answer.goal, tensorboard_summary.write_summary(place, answer))
    homes = [folder for folder in (place, place.parent) if (folder / run_records.RUNS_FILE).is_file()]
    runs = homes[0] if homes else next(iter(next(iter(answer.runs.values())).values())).path.absolute().parents[2]
    print_places(files, {}, runs, pinned, options)


def print_places(
    files: Sequence[Path], reports: Mapping[str, Path], runs: Path, pinned: tuple[str, ...], options: ParsedOptions
) -> None:
    """Print where the page of a report is, those of its recipes, and how to look at the runs in TensorBoard."""
    from zoo.compare.tensorboard_command import link

    lines = [f"\nreport  {next(file for file in files if file.suffix == '.html')}"]
    lines += [f"        {recipe}: {folder / 'comparison.html'}" for recipe, folder in reports.items()]
    print(
        *lines,
        f"look    zoo tensorboard {shlex.quote(str(runs))}",
        f"        {link(pinned=pinned)}",
        sep="\n",
        file=output_stream(options),
    )
