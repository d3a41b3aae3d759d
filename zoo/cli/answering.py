"""Run a comparison, and show its answer: table, report, TensorBoard."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import console
from zoo.cli.asked import Asked, fancy, stream
from zoo.compare import home, plan
from zoo.compare.execute import FailedRun, How, Job, execute, exit_code, threads
from zoo.compare.numbers import duration
from zoo.compare.plan import Arm, Comparison, Step
from zoo.errors import StorageError, UsageError, ZooError

if TYPE_CHECKING:
    from zoo.compare.answer import Answer
    from zoo.compare.charts import Chart
    from zoo.compare.ledgers import Ledger


class PendingError(Exception):
    """A dry run has come to runs that decide how it goes on."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps


class Runner:
    """Runs variants as a command line says: how many at once, whose share, and not at all in a dry run."""

    def __init__(self, asked: Asked, fits: plan.Fits, goal: str | None, budget: str | None) -> None:
        self.asked, self.fits, self.goal, self.budget = asked, fits, goal, budget
        self.failed: list[FailedRun] = []
        plan.share([], asked.get("shard"))  # a wrong one is refused before anything is run

    def __call__(self, arms: Sequence[Arm], seeds: Sequence[int], whole: bool = True) -> None:
        """Run what is missing; ``whole``: all of it and not only a share, since what follows needs it."""
        jobs = self.jobs(arms, seeds)
        if "dry-run" in self.asked.flags:
            left = [step for step in plan.steps(jobs) if step.state != "finished"]
            if left:
                raise PendingError(left)
            return
        shard = self.asked.get("shard")
        mine = list(jobs) if whole else plan.share(jobs, shard)
        self.failed += execute(mine, self.how(wait=whole or shard is None))

    def jobs(self, arms: Sequence[Arm], seeds: Sequence[int]) -> list[Job]:
        """The runs, after a look at those that exist already."""
        plan.verify(arms, seeds, self.fits)
        return plan.jobs(arms, seeds, self.goal)

    def how(self, wait: bool) -> How:
        environment = {"ZOO_BUDGET": self.budget} if self.budget else {}
        return How(jobs=self.asked.jobs, environment=environment, wait=wait, tell=self.tell)

    def tell(self, line: str) -> None:
        print(line, file=stream(self.asked), flush=True)


def begin(asked: Asked, several: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """`zoo fit` to be asked, and what measures configurations; checks the names of ``several``, then imports torch."""
    from zoo.cli import comparing, doctor, quiet

    for words in several:
        comparing.draft(words)
    doctor.check_torch()
    quiet.quiet("debug" in asked.flags)
    from zoo.compare.build import Meter

    allow = [word.partition("=")[2] for word in asked.options if word.startswith("--allow-import=")]
    allow += ["*"] if "--trust" in asked.options else []
    return comparing.ZooFit(asked.get("runs") or "runs"), Meter(tuple(allow))


def compare(asked: Asked, wanted: Comparison) -> int:
    """`zoo compare RECIPE --vary …`: run, then answer."""
    from zoo.compare import conduct, lengths

    probed = lengths.factors(wanted.probe) if wanted.probe else ()
    fits, meter = begin(asked, conduct.check(wanted))
    runner = Runner(asked, fits, wanted.goal, wanted.budget)
    try:
        ready = conduct.prepare(wanted, fits, meter, runner)
    except PendingError as pending:
        print_plan(pending.steps, "These runs decide how the compared ones are made.")
        return 0
    arms = ready.arms
    jobs = runner.jobs(arms, wanted.seeds)
    introduce(wanted.seeds, arms, plan.steps(jobs), runner)
    for note in ready.notes:
        runner.tell(f"  {note}")
    for one in ready.refused:
        runner.tell(f"  left out {one.name}: {one.sentence}")
    if "dry-run" in asked.flags:
        print_plan(plan.steps(jobs))
        return 0
    record = home.Record(
        tuple(job.folder for job in jobs), arms[0].name, wanted.goal, wanted.budget, ready.tuned, written(asked)
    )
    point = arms[0].point
    place = home.place(point.root, point.recipe, wanted.title)
    home.keep(place, record)
    runner(arms, wanted.seeds, whole=False)
    if left := unfinished(jobs, runner):
        return left
    figures = []
    if probed:
        answer = answered(home.ledgers(record.folders), asked, record)
        figures.append(probe(arms, answer, wanted.seeds, probed, place, meter.allow, runner))
    return max(show(record, asked, place, figures), exit_code(runner.failed))


def written(asked: Asked) -> str:
    """The command line, to be shown and repeated."""
    return shlex.join(["zoo", *asked.argv])


def unfinished(jobs: Sequence[Job], runner: Runner) -> int | None:
    """What to say, and the exit code, where the table has to wait for other shards or for what failed."""
    left = [step for step in plan.steps(jobs) if step.state != "finished"]
    if runner.asked.get("shard") and left and not runner.failed:
        runner.tell(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished; the others are other shards'.")
        return 0
    if len(left) == len(jobs):
        of_disk = exit_code(runner.failed) == StorageError.code
        kind = StorageError if of_disk else ZooError
        raise kind(
            f"all {len(jobs)} runs failed: {left[0].job.title} and the others. See their logs."
            + (" When the disk works again, the same command goes on." if of_disk else "")
        )
    return None


def introduce(seeds: Sequence[int], arms: Sequence[Arm], steps: Sequence[Step], runner: Runner) -> None:
    """Say what is about to be run, and how long it takes."""
    left, jobs = [step for step in steps if step.state != "finished"], runner.asked.jobs
    point = arms[0].point
    length = {arm.name: arm.point.config["trainer"].get("max_steps") for arm in arms}
    estimate = plan.seconds(steps, length, point.root / point.recipe)
    took = "unknown: no run is finished yet" if estimate is None else f"about {duration(estimate / jobs)}"
    share = f", shard {runner.asked.get('shard')}" if runner.asked.get("shard") else ""
    runner.tell(
        f"{point.recipe}: {len(arms)} variants x {len(seeds)} seeds = {len(steps)} runs, "
        f"{len(steps) - len(left)} finished{share}"
    )
    if left:
        runner.tell(f"  {jobs} at once, {threads(jobs)} threads each · time {took}")


def print_plan(steps: Sequence[Step], note: str = "") -> None:
    """The runs, their states and their commands."""
    from zoo.cli.output import table

    table(
        ["state", "run", "command"], [[s.state, s.job.title, shlex.join(["zoo", "fit", *s.job.words])] for s in steps]
    )
    if note:
        print(note)


def probe(
    arms: Sequence[Arm], answer: Answer, seeds: Sequence[int], wanted: Sequence[int], place: Path, allow: Any,
    runner: Runner,
) -> Chart:  # fmt: skip
    """Measure every finished run on longer texts, print the table, and draw the chart in the answer's colours."""
    from zoo.compare import lengths, state
    from zoo.compare.charts import lines, variant_looks

    labels = {row.variant: row.label for row in answer.rows}
    looks = {labels[variant]: look for variant, look in variant_looks(answer).items()}
    folders = {
        labels.get(arm.name, arm.name): {
            s: arm.point.folder(s) for s in seeds if state.look(arm.point.folder(s)) == "finished"
        }
        for arm in arms
    }
    found = lengths.probe(folders, wanted, place, allow, runner.tell)
    rows = lengths.table(found)
    for row in rows:
        widths = [max(len(other[i]) for other in rows) for i in range(len(row))]
        runner.tell("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    ticks = [f"{factor}×" for factor in wanted]
    title = "Loss in the last quarter of texts longer than in training"
    caption = "Mean over seeds of each run's best checkpoint on the validation text."
    axis_labels = ("length, in training lengths", "nats per token")
    return lines(title, lengths.means(found), axis_labels, ticks, caption=caption, looks=looks)


def read(folders: Sequence[Path], asked: Asked) -> int:
    """`zoo compare FOLDER`: answer what is there, without torch."""
    from zoo.compare import ledgers

    out = asked.get("out")
    place = Path(out) if out else None
    record = home.kept(folders[0]) if len(folders) == 1 else None
    if record is not None:
        return show(replace(record, baseline=asked.get("baseline") or record.baseline), asked, place)
    answer = answered(ledgers.read(*folders), asked, home.Record((), asked.get("baseline")))
    return tell(answer, asked, place)


def answered(found: Sequence[Ledger], asked: Asked, record: home.Record) -> Answer:
    from zoo.compare.answer import answer

    at, commands = asked.get("at") or "best", [record.command] if record.command else []
    return answer(found, record.baseline, record.goal or asked.get("goal"), at, record.tuned, commands)


def show(record: home.Record, asked: Asked, place: Path | None, more: Sequence[Chart] = ()) -> int:
    """Answer a comparison that was run; into ``place`` goes the report."""
    found = home.ledgers(record.folders, record.budget)
    if not found:
        raise UsageError("none of the runs of this comparison is there any more.")
    answer = answered(found, asked, record)
    return tell(answer, asked, place, more)


def tell(answer: Answer, asked: Asked, place: Path | None, more: Sequence[Chart] = ()) -> int:
    """Print the answer, write the report where there is a place for it; 1 where figures are not comparable."""
    from zoo.compare import table

    if "json" in asked.flags:
        print(table.as_json(answer))
    else:
        width = min(shutil.get_terminal_size((table.WIDTH, 0)).columns, 160) if fancy() else table.WIDTH
        console.draw(table.terminal(answer, width, fancy()))
    if place is not None:
        report(answer, asked, Path(asked.get("out") or place), more)
    return 1 if answer.refused else 0


def report(answer: Answer, asked: Asked, place: Path, more: Sequence[Chart]) -> None:
    """Write the files and what TensorBoard shows, and say where they are."""
    from zoo.cli.tensorboard import link
    from zoo.compare import board, table
    from zoo.compare.write import write

    out = stream(asked)
    files = write(answer, place, more)
    goals = [answer.goal, *(answer.base.others or {})]
    board.board(place, table.markdown(answer), goals)
    runs = next(iter(next(iter(answer.runs.values())).values())).path.parents[2]
    page = next((file for file in files if file.suffix == ".html"), place)
    print(f"\nreport  {page}\nlook    zoo tensorboard {runs}", file=out)
    print(f"        {link(pinned=board.pinned(answer.goal, goals))}", file=out)
