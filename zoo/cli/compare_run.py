"""Run a comparison, and show its result: table, report, TensorBoard."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from filelock import FileLock

from zoo import console
from zoo.cli.tables import is_terminal
from zoo.compare import comparison_folder, device_shares, journal, plan, run_records
from zoo.compare.execute import FailedRun, Job, RunOptions, execute, exit_code, threads_per_run
from zoo.compare.fairness import Flag
from zoo.compare.looks import FILE as LOOKS
from zoo.compare.number_format import format_duration
from zoo.compare.plan import Arm, Comparison, Step
from zoo.compare.validation_counts import check_validations
from zoo.config.option_parser import ParsedOptions
from zoo.errors import StorageError, UsageError, ZooError
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.compare.charts import Chart
    from zoo.compare.looks import Alternatives
    from zoo.compare.paired_tests import PairedTestPlan
    from zoo.compare.run_records import RunRecord
    from zoo.compare.verdict import Answer


Finish = Callable[[Sequence[Arm], comparison_folder.Record, Path], int]


class PendingError(Exception):
    """A dry run has reached runs whose results decide which runs follow."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps


class Runner:
    """Runs variants with the number of jobs and the shard of a command line; runs nothing in a dry run."""

    def __init__(self, options: ParsedOptions, fits: plan.Fits, goal: str | None, budget: str | None) -> None:
        self.options, self.fits, self.goal, self.budget = options, fits, goal, budget
        self.failed: list[FailedRun] = []
        plan.take_shard([], options.get("shard"))  # checked before anything is run

    def __call__(self, arms: Sequence[Arm], seeds: Sequence[int], whole: bool = True) -> None:
        """Run what is missing; ``whole``: all of it, not only this shard, because later steps need it."""
        jobs = self.jobs(arms, seeds)
        if self.options.get("dry_run"):
            unfinished = [step for step in plan.list_steps(jobs) if step.state != "finished"]
            if unfinished:
                raise PendingError(unfinished)
            return
        shard = self.options.get("shard")
        own_jobs = list(jobs) if whole else plan.take_shard(jobs, shard)
        devices = device_shares.device_shares(arms[0].point.config["trainer"], self.options.get("jobs"))
        self.failed += execute(own_jobs, replace(self.run_options(wait=whole or shard is None), devices=devices))

    def jobs(self, arms: Sequence[Arm], seeds: Sequence[int]) -> list[Job]:
        """The jobs of the variants. Raises UsageError where an existing run has another configuration."""
        plan.verify_runs(arms, seeds, self.fits)
        return plan.list_jobs(arms, seeds, self.goal)

    def run_options(self, wait: bool) -> RunOptions:
        """How runs are executed; ``wait``: until those of other processes have ended too."""
        environment = {"ZOO_BUDGET": self.budget} if self.budget else {}
        return RunOptions(jobs=self.options.get("jobs"), environment=environment, wait=wait, report=self.print_progress)

    def print_progress(self, line: str) -> None:
        """Print a line of progress."""
        print(line, file=output_stream(self.options), flush=True)


def open_comparison(options: ParsedOptions, command_lines: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """A planner of runs and a meter of costs; checks each of ``command_lines``, then imports torch."""
    from zoo.cli import compare_fits, doctor, warning_filters

    for words in command_lines:
        compare_fits.draft(words)
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.compare.measure_model import CostMeter

    allow = (*options.get("allow_import"), *(["*"] if options.get("trust") else []))
    return compare_fits.ZooFit(options.get("runs")), CostMeter(allow)


def compare(options: ParsedOptions, comparison: Comparison, finish: Finish | None = None) -> int:
    """`zoo compare RECIPE --vary …`: run what is missing, then print and write the result, or call ``finish``."""
    from zoo.compare import figures_on_test_split, length_probe, prepare_runs

    probe_factors = length_probe.parse_factors(comparison.probe) if comparison.probe else ()
    fits, meter = open_comparison(options, prepare_runs.check_comparison(comparison))
    runner = Runner(options, fits, comparison.goal, comparison.budget)
    try:
        ready = prepare_runs.prepare(comparison, fits, meter, runner)
    except PendingError as pending:
        print_plan(pending.steps, "These runs decide how the compared ones are made.")
        return 0
    arms, runner.goal = ready.arms, ready.goal
    jobs = runner.jobs(arms, comparison.seeds)
    check_goal(meter, arms[0], comparison.goal)
    check_validations(comparison.at, [(arm.name, arm.point.config["trainer"]) for arm in arms])
    if comparison.at == "test":
        figures_on_test_split.check_test_split(arms, meter)
    print_introduction(comparison.seeds, arms, plan.list_steps(jobs), runner)
    if power := describe_power(comparison, len(arms) - 1, options):
        runner.print_progress(f"  {power}")
    for note in ready.notes:
        runner.print_progress(f"  {note}")
    for one in ready.invalid:
        runner.print_progress(f"  left out {one.name}: {one.sentence}")
    if options.get("dry_run"):
        print_plan(plan.list_steps(jobs))
        return 0
    record = comparison_folder.Record(
        tuple(job.folder for job in jobs),
        arms[0].name,
        comparison.goal,
        comparison.budget,
        ready.tuned,
        command_line(options),
        tuple(factor.key for factor in comparison.vary),
        comparison.at,
        comparison.margin,
        comparison.until,
        ready.tuning,
    )
    point = arms[0].point
    place = comparison_folder.comparison_path(point.root, point.recipe, comparison.title)
    check_series(options, place, [arm.name for arm in arms[1:]])
    comparison_folder.save_record(place, record)
    ended_runs = sum(run_records.read_state(job.folder) in run_records.END_STATES for job in jobs)
    question = journal.Question(
        (comparison.goal or first_goal(meter, arms[0])).removeprefix("val/"), comparison.at, arms[0].name,
        comparison.seeds, tuple(arm.name for arm in arms), comparison.margin, options.get("test") or "t",
    )  # fmt: skip
    details = {"varied": list(record.varied or ()), "command": record.command, "until": comparison.until}
    journal.append_event(place, journal.Event(journal.PLAN, question, ended_runs, details))
    if comparison.until:
        record = run_until_decided(arms, comparison.seeds, record, place, runner)
        jobs = [job for job in jobs if job.folder in record.folders]
    else:
        runner(arms, comparison.seeds, whole=False)
    if (early_code := exit_code_if_unfinished(jobs, runner)) is not None:
        return early_code
    if comparison.at == "test":
        figures_on_test_split.measure_test_figures(
            [job.folder for job in jobs], options.get("allow_import"), runner.print_progress
        )
    figures = []
    if probe_factors:
        answer = answer_records(comparison_folder.read_ledgers(record.folders), options, record)
        figures.append(probe(arms, answer, comparison.seeds, probe_factors, place, meter.allow, runner))
    code = finish(arms, record, place) if finish else show_comparison(record, options, place, place, figures)
    return exit_code(runner.failed) or code


def describe_power(comparison: Comparison, variants: int, options: ParsedOptions) -> str:
    """What the verdicts on so many variants can decide; a grid's main effects and interactions are corrected along."""
    from zoo.compare import looks

    changes = [len(factor.choices()) - 1 for factor in comparison.vary]
    whole = len(changes) > 1 and math.prod(count + 1 for count in changes) == variants + 1
    effects = sum(changes) + sum(a * b for a, b in itertools.combinations(changes, 2)) if whole else 0
    return looks.describe_power(
        len(comparison.seeds), max(1, variants) + effects, options.get("test") or "t", comparison.until
    )


def check_goal(meter: Any, arm: Arm, goal: str | None) -> None:
    """Raise UsageError, before anything is run, for a --goal that the task does not report."""
    names = meter.goals(arm.point.config)[1]
    if goal is not None and goal.removeprefix("val/") not in names:
        raise UsageError(
            f"--goal {goal!r} is no figure of the task.{suggest(goal, names)} There are: {', '.join(names)}."
        )


def first_goal(meter: Any, arm: Arm) -> str:
    """The figure that decides unless one is named: the first that the task monitors."""
    return next(iter(meter.task_class(arm.point.config).monitored_metrics))


def run_until_decided(
    arms: Sequence[Arm], seeds: Sequence[int], record: comparison_folder.Record, place: Path, runner: Runner
) -> comparison_folder.Record:
    """Run seed after seed of the undecided variants, or to the next planned look, and look after each; the record of
    all runs.

    A variant is dropped once it is decided, or if it would need more than all seeds even if its effect were as large as
    nine of ten such observations allow. Before the first seed that could decide, all are run together.
    """
    from zoo.compare.looks import DECISIONS, UNTIL, parse_planned
    from zoo.compare.sequential import fewest_seeds
    from zoo.compare.statistics import ALPHA

    undecided, done, folders, planned = list(arms[1:]), 0, [], parse_planned(record.until)
    batch = planned[0] if planned else fewest_seeds(UNTIL * ALPHA / len(undecided))
    while undecided and done < len(seeds) and not runner.failed:
        now = seeds[done : done + batch]
        folders += [arm.point.folder(seed) for seed in now for arm in (arms[0], *undecided)]
        record = replace(record, folders=tuple(folders))
        comparison_folder.save_record(place, record)
        runner((arms[0], *undecided), now)
        done += len(now)
        ledgers = comparison_folder.read_ledgers(record.folders, record.budget)
        answer = look_at_comparison(ledgers, runner.options, record, place)
        rows = {row.variant: row for row in answer.rows}
        hopeless = [
            name for name, row in rows.items()
            if record.margin is None and not planned and row.verdict.word == "not distinguishable" and row.differences
            and (row.verdict.fewest or math.inf) > len(seeds)
        ]  # fmt: skip
        for arm in undecided:
            if arm.name in rows:
                more = f": more than {len(seeds)} seeds would be needed" if arm.name in hopeless else ""
                word = rows[arm.name].verdict.word
                runner.print_progress(
                    f"{done} seeds  {rows[arm.name].label} · {word if word in DECISIONS else f'undecided{more}'}"
                )
        undecided = [
            arm for arm in undecided
            if arm.name not in hopeless and (arm.name not in rows or rows[arm.name].verdict.word not in DECISIONS)
        ]  # fmt: skip
        # the nearest to a decision first; as many seeds at once as there are jobs for
        undecided.sort(key=lambda arm: rows[arm.name].pair.p if arm.name in rows else 1.0)
        if planned:
            batch = next((count for count in planned if count > done), done) - done
            continue
        batch = max(1, runner.options.get("jobs") // (1 + len(undecided)))
    return record


def check_series(options: ParsedOptions, place: Path, variants: Sequence[str]) -> None:
    """Reserve the tries of a comparison in the file of --series, before anything is run.

    Raises UsageError if there are none left, if the file is damaged, and if the comparison was looked at before.
    """
    from zoo.compare.looks import load_looks
    from zoo.compare.series import check_series_file, load_series, save_series

    if options.get("series"):
        path = Path(options.get("series"))
        check_series_file(path)
        with hold_lock(path):
            series = load_series(path, options.get("tries"))
            entry = series.entry(series_key(options, place), variants)
            load_looks(place, variants).check_budget(entry.level)
            save_series(path, series.with_entry(entry, entry.decided))


def series_key(options: ParsedOptions, place: Path) -> str:
    """The name of a comparison in the file of a series: its folder, relative to that file."""
    return os.path.relpath(place, Path(options.get("series")).parent)


def output_stream(options: ParsedOptions) -> TextIO:
    """Where progress goes: not between the braces of a JSON document."""
    return sys.stderr if options.get("json") else sys.stdout


def command_line(options: ParsedOptions) -> str:
    """The command line, to be shown and repeated."""
    return shlex.join(["zoo", "compare", *options.argv])


def exit_code_if_unfinished(jobs: Sequence[Job], runner: Runner) -> int | None:
    """The exit code where runs of other shards are missing, else None. Raises ZooError if all runs failed."""
    unfinished = [step for step in plan.list_steps(jobs) if step.state != "finished"]
    if runner.options.get("shard") and unfinished and not runner.failed:
        runner.print_progress(
            f"{len(jobs) - len(unfinished)} of {len(jobs)} runs are finished; the others belong to other shards."
        )
        return 0
    if len(unfinished) == len(jobs):
        of_disk = exit_code(runner.failed) == StorageError.code
        kind = StorageError if of_disk else ZooError
        raise kind(
            f"all {len(jobs)} runs failed: {unfinished[0].job.title} and the others. See their logs."
            + (" When the disk works again, repeat the command." if of_disk else "")
        )
    return None


def print_introduction(seeds: Sequence[int], arms: Sequence[Arm], steps: Sequence[Step], runner: Runner) -> None:
    """Print how many runs there are, how many are finished, and how long the others take."""
    unfinished, jobs = [step for step in steps if step.state != "finished"], runner.options.get("jobs")
    point = arms[0].point
    length = {arm.name: arm.point.config["trainer"].get("max_steps") for arm in arms}
    estimate = plan.estimate_seconds(steps, length, point.root / point.recipe)
    time_text = "unknown: no run is finished yet" if estimate is None else f"about {format_duration(estimate / jobs)}"
    share = f", shard {runner.options.get('shard')}" if runner.options.get("shard") else ""
    runner.print_progress(
        f"{point.recipe}: {len(arms)} variants x {len(seeds)} seeds = {len(steps)} runs, "
        f"{len(steps) - len(unfinished)} finished{share}"
    )
    if unfinished:
        runner.print_progress(f"  {jobs} at once, {threads_per_run(jobs)} threads each · time {time_text}")


def print_plan(steps: Sequence[Step], note: str = "") -> None:
    """The runs, their states and their commands."""
    from zoo.cli.tables import table

    table(
        ["state", "run", "command"], [[s.state, s.job.title, shlex.join(["zoo", "fit", *s.job.words])] for s in steps]
    )
    if note:
        print(note)


def probe(
    arms: Sequence[Arm], answer: Answer, seeds: Sequence[int], factors: Sequence[int], place: Path, allow: Any,
    runner: Runner,
) -> Chart:  # fmt: skip
    """Measure every finished run on longer texts, print the table, and draw the chart in the answer's colours."""
    from zoo.compare import length_probe
    from zoo.compare.charts import draw_lines, variant_looks
    from zoo.compare.outcomes import failure_text

    labels = {row.variant: row.label for row in answer.rows}
    looks = {labels[variant]: look for variant, look in variant_looks(answer).items()}
    folders = {
        labels.get(arm.name, arm.name): {
            s: arm.point.folder(s) for s in seeds if run_records.read_state(arm.point.folder(s)) == "finished"
        }
        for arm in arms
    }
    losses = length_probe.probe(folders, factors, place, allow, runner.print_progress)
    failures = {row.label: failure_text(row.failures, len(row.figures)) for row in answer.rows if row.failures}
    differences = length_probe.length_differences(losses, answer.base.label, failures)
    tables = [length_probe.table(losses, failures)]
    tables += [length_probe.differences_table(differences)] if differences else []
    for rows in tables:
        for row in rows:
            widths = [max(len(other[i]) for other in rows) for i in range(len(row))]
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            runner.print_progress(line.rstrip())
        runner.print_progress("")
    length_probe.save_differences(place, differences)
    legend = length_probe.differences_legend(answer.base.label, differences)
    for line in textwrap.wrap(legend, 100):
        runner.print_progress(line)
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
    losses = {label: each for label, each in losses.items() if label not in failures} or losses
    return draw_lines(title, length_probe.mean_losses(losses), axis_labels, ticks, caption=caption, looks=looks)


def answer_folders(folders: Sequence[Path], options: ParsedOptions) -> int:
    """`zoo compare FOLDER`: print the result of finished runs, without torch."""
    out = options.get("out")
    place = Path(out) if out else None
    record = comparison_folder.load_record(folders[0]) if len(folders) == 1 else None
    if record is not None:
        new_record = replace(
            record, baseline=options.get("baseline") or record.baseline, goal=options.get("goal") or record.goal,
            at=options.get("at") or record.at, margin=options.get("margin") or record.margin,
        )  # fmt: skip
        return show_comparison(new_record, options, folders[0], place)
    if options.get("series"):
        raise UsageError("--series is for a comparison that zoo compare has run: RECIPE --vary …, or its folder.")
    ledgers = run_records.read_records(*folders)
    run_records.check_one_task(ledgers)
    from zoo.compare.paired_tests import PairedTestPlan

    once = PairedTestPlan(options.get("test") or "t", margin=options.get("margin"))  # nothing records looks at these
    answer = answer_records(ledgers, options, comparison_folder.Record((), options.get("baseline")), once)
    return print_answer(answer, options, place)


def answer_records(
    ledgers: Sequence[RunRecord], options: ParsedOptions, record: comparison_folder.Record,
    test_plan: PairedTestPlan | None = None, refusals: Sequence[Flag] = (),
) -> Answer:  # fmt: skip
    """The verdict over finished runs, with the goal and the moment of the command line."""
    from zoo.compare.paired_tests import T_TEST
    from zoo.compare.verdict import answer

    at = options.get("at") or record.at or run_records.DECISIVE
    commands = [record.command] if record.command else []
    goal = record.goal or options.get("goal")
    return answer(
        ledgers, record.baseline, goal, at, record.tuned, commands, record.varied, test_plan or T_TEST, refusals
    )


def look_at_comparison(
    ledgers: Sequence[RunRecord], options: ParsedOptions, record: comparison_folder.Record, home: Path
) -> Answer:
    """The verdict over a comparison's finished runs, with what earlier looks have left to spend; records the look."""
    from zoo.compare.digests import run_digest
    from zoo.compare.looks import DECISIONS, Question, load_looks, parse_planned, save_looks
    from zoo.compare.paired_tests import PairResult
    from zoo.compare.series import check_series_file, load_series, save_series
    from zoo.compare.statistics import ALPHA

    first = answer_records(ledgers, options, record)
    seeds = {row.variant: tuple(row.figures) for row in first.rows}
    variants = [row.variant for row in first.rows[1:]]
    alpha, path = ALPHA, Path(options.get("series") or "")
    if options.get("series"):
        check_series_file(path)
    with hold_lock(path) if options.get("series") else nullcontext(), hold_lock(home / LOOKS):
        series = load_series(path, options.get("tries")) if options.get("series") and variants else None
        if series is not None:
            entry = series.entry(series_key(options, home), variants)
            alpha = entry.level
        looks = load_looks(home, seeds, alpha)
        if not looks.looks and journal.has_tested(journal.read_events(home), seeds):
            raise UsageError(
                f"{home / LOOKS} is gone, and {journal.FILE} beside it has looks at this comparison.\n"
                "It records what they have tested. Restore it, or begin a comparison with other seeds: --runs DIR"
            )
        if series is not None:
            looks.check_budget(alpha)
        question = Question(first.goal, first.baseline, first.at, record.margin, options.get("test") or "t")
        refusals = refuse_missing_seeds(looks.find_missing_seeds(seeds), [first.baseline, *variants])
        refused = {name for flag in refusals for name in flag.variants}
        tested = {name: numbers for name, numbers in seeds.items() if name not in refused}
        runs = {name: {seed: run_digest(first.runs[name][seed]) for seed in tested[name]} for name in tested}
        look = looks.next_look(question, tested, record.until == "decided", runs, count_alternatives(first),
                               parse_planned(record.until))  # fmt: skip
        answer = answer_records(ledgers, options, record, looks.plan(look), refusals)
        verdicts = {row.variant: row.verdict.word for row in answer.rows[1:]}
        results = {row.variant: PairResult(row.pair, row.adjusted, row.equivalent) for row in answer.rows[1:]}
        new = looks.with_look(look, {name: word for name, word in verdicts.items() if name not in refused}, results)
        if new != looks:
            save_or_warn(home, lambda: save_looks(home, new))
        if series is not None:
            save_series(path, series.with_entry(entry, [name for name in verdicts if verdicts[name] in DECISIONS[:2]]))
    return replace(answer, looks=new.looks, look_number=new.number(look), look=look, looks_elsewhere=len(new.elsewhere))


def refuse_missing_seeds(missing_seeds: Mapping[str, Sequence[int]], variants: Sequence[str]) -> list[Flag]:
    """Flags that refuse a verdict on variants, the baseline first, of which seeds are left out that were looked at.

    Whoever leaves out seeds after a look chooses the difference.
    """
    result = []
    for name, numbers in missing_seeds.items():
        seeds = journal.list_seeds(sorted(numbers))
        sentence = (
            f"{name}: seeds were left out that a look at this comparison has had, {seeds}; a verdict needs all that "
            "were looked at, or the first ones of them"
        )
        result.append(Flag(sentence, True, "seeds left out", tuple(variants[1:]) if name == variants[0] else (name,)))
    return result


def count_alternatives(answer: Answer) -> Alternatives:
    """How many figures could decide, and how many moments of runs."""
    from zoo.compare.looks import Alternatives

    runs = [run for seeds in answer.runs.values() for run in seeds.values() if run.finished]
    validations = min((len(run.validations) for run in runs), default=1)
    moments = validations + (validations > 1) + all(run.test for run in runs)  # last, last:2 and so on, best, test
    others = [mean for mean, _ in (answer.base.others or {}).values() if math.isfinite(mean)]
    return Alternatives(1 + len(others), max(1, moments))


def save_or_warn(home: Path, save: Callable[[], object]) -> None:
    """Record a look, or warn in a folder that may only be read. Raises StorageError where another folder fails.

    A verdict whose look is not recorded would let later looks spend its share of the error once more.
    """
    try:
        save()
    except (OSError, StorageError) as error:
        if os.access(home, os.W_OK):
            raise StorageError(f"this look cannot be recorded: {error}") from error
        print(f"warning: this look cannot be recorded: {error}", file=sys.stderr)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file meanwhile; without a lock where its folder cannot be written."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def show_comparison(
    record: comparison_folder.Record, options: ParsedOptions, home: Path, place: Path | None, more: Sequence[Chart] = ()
) -> int:
    """Answer a comparison that was run, and record the look in its journal in ``home``.

    The report goes into ``place``; of another question than the first into a folder below ``home``.
    """
    answer, folder = look_and_record(record, options, home)
    return print_answer(answer, options, folder if place == home else place, more)


def look_and_record(record: comparison_folder.Record, options: ParsedOptions, home: Path) -> tuple[Answer, Path]:
    """The verdict over a comparison's finished runs, after a look that ``home`` records, and the folder of its report.

    Raises UsageError if there is no run.
    """
    from zoo.compare.scale_runs import answer_scale

    ledgers = comparison_folder.read_ledgers(record.folders, record.budget)
    if not ledgers:
        raise UsageError("all runs of this comparison have been removed.")
    earlier_looks = (home / LOOKS).exists()
    answer = look_at_comparison(ledgers, options, record, home)
    events = journal.read_events(home)
    seeds = tuple(sorted({seed for row in answer.rows for seed in (*row.figures, *row.unfinished)}))
    variants, test = tuple(row.variant for row in answer.rows), options.get("test") or "t"
    question = journal.Question(answer.goal, answer.at, answer.baseline, seeds, variants, record.margin, test)
    figures = journal.run_figures(answer, home)
    changes = journal.changed_runs(
        events, question, figures, [os.path.relpath(folder, home) for folder in record.folders]
    )
    late = journal.choices_after_looking(events, question)
    gaps = journal.describe_gaps(home, earlier_looks)
    flags = (*answer.flags, *([Flag(gaps, about="journal")] if gaps else []))
    answer = replace(
        answer, late_choices=None if late is None else late + changes, flags=flags, tuning=record.tuning,
        scaling=answer_scale(home, record, answer.goal, answer.at),
    )  # fmt: skip
    ended_runs = sum(len(row.figures) for row in answer.rows)
    details = {"verdicts": {row.variant: row.verdict.word for row in answer.rows}, "runs": figures}
    save_or_warn(home, lambda: journal.append_event(home, journal.Event(journal.LOOK, question, ended_runs, details)))
    return answer, journal.report_folder(home, events, question, bool(changes))


def print_answer(answer: Answer, options: ParsedOptions, place: Path | None, more: Sequence[Chart] = ()) -> int:
    """Print the answer, and write the report if ``place`` is set.

    Returns 1 where the figures are not comparable, else 0; with --exit-code that of the outcome.
    """
    from zoo.compare import outcome, table

    if options.get("json"):
        print(table.as_json(answer))
    else:
        width = min(shutil.get_terminal_size((table.WIDTH, 0)).columns, 160) if is_terminal() else table.WIDTH
        console.draw(table.as_text(answer, width, is_terminal()))
    if place is not None:
        write_report(answer, options, Path(options.get("out") or place), more)
    if options.get("exit_code"):
        return outcome.EXIT_CODES[outcome.outcome(answer)]
    return 1 if answer.comparability_errors else 0


def write_report(answer: Answer, options: ParsedOptions, place: Path, more: Sequence[Chart]) -> None:
    """Write the report and TensorBoard's summary, and print where they are."""
    from zoo.cli.tensorboard import link
    from zoo.compare import tensorboard_summary
    from zoo.compare.report import write_report

    out = output_stream(options)
    files = write_report(answer, place, more)
    goals = write_tensorboard_summary(answer, place)
    homes = [one for one in (place, place.parent) if (one / comparison_folder.FILE).is_file()]
    runs = homes[0] if homes else next(iter(next(iter(answer.runs.values())).values())).path.parents[2]
    page = next((file for file in files if file.suffix == ".html"), place)
    print(f"\nreport  {page}\nlook    zoo tensorboard {runs}", file=out)
    print(f"        {link(pinned=tensorboard_summary.pinned_tags(answer.goal, goals))}", file=out)


def write_tensorboard_summary(answer: Answer, place: Path) -> list[str]:
    """Write TensorBoard's part of a report; the goals, the headline first."""
    from zoo.compare import table, tensorboard_summary

    goals = [answer.goal, *(answer.base.others or {})]
    tensorboard_summary.write_summary(place, table.as_markdown(answer), goals)
    return goals
