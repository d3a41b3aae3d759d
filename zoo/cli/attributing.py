"""`zoo compare A B --attribute`: which part brought what."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli import answering
from zoo.cli.answering import Runner
from zoo.cli.asked import Asked, words
from zoo.compare import attribute, home, plan, variants
from zoo.compare.attribute import Difference, Share
from zoo.compare.execute import exit_code
from zoo.compare.plan import Arm
from zoo.errors import UsageError

if TYPE_CHECKING:
    from zoo.compare.charts import Chart

UNFIT = ("baseline", "design", "budget", "match", "tune", "probe", "at")


def run(asked: Asked) -> int:
    """Run every hybrid of two recipes with every seed, and say what each option brought."""
    if len(asked.words) != 2:
        raise UsageError(
            "--attribute needs two recipes: zoo compare transformer-2017-tiny llama-style-tiny --attribute"
        )
    for name in (*UNFIT, *(["vary"] if asked.vary else [])):
        if name == "vary" or asked.get(name):
            raise UsageError(f"--{name} does not go with --attribute: what varies is what the two recipes differ in.")
    seeds, options = variants.seeds(asked.get("seeds") or "5"), words(asked)
    fits, meter = answering.begin(asked, [(word, *options) for word in asked.words])
    from zoo.study.run import told

    one, other = (fits.point((word, *options)) for word in asked.words)
    found = attribute.differences(one, other, told)
    first = Arm((), (asked.words[0], *options), one)
    made = attribute.hybrids(first, found, fits, meter.check)
    arms = list(made.values())
    runner = Runner(asked, fits, asked.get("goal"), None)
    jobs = runner.jobs(arms, seeds)
    steps = plan.steps(jobs)
    runner.tell(f"{one.recipe} and {other.recipe} differ in {len(found)} options: {', '.join(map(str, found))}")
    answering.introduce(seeds, arms, steps, runner)
    if "dry-run" in asked.flags:
        answering.print_plan(steps)
        return 0
    place = home.place(one.root, one.recipe, f"attribute-{Path(other.recipe).name}")
    record = home.Record(
        tuple(job.folder for job in jobs), arms[0].name, asked.get("goal"), command=answering.written(asked)
    )
    home.keep(place, record)
    runner(arms, seeds, whole=False)
    left = answering.unfinished(jobs, runner)
    if left is not None:
        return left
    answer = answering.answered(home.ledgers(record.folders), asked, record)
    ledgers = [run for runs in answer.runs.values() for run in runs.values()]
    done = attribute.shares(found, attribute.figures(made, ledgers, answer.goal), answer.lower_is_better)
    code = answering.tell(answer, asked, place, [chart(done, answer.goal, answer.lower_is_better)])
    runner.tell("\n" + text(found, done, answer.goal))
    return max(code, exit_code(runner.failed))


def text(found: Sequence[Difference], done: Sequence[Share], goal: str) -> str:
    """The table of what each option brought, and how to read it."""
    rows = attribute.table(done)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    shares = "share: Shapley's, the mean over all orders of adding the options. " if done[0].shapley else ""
    legend = (
        f"What each option brought, in {goal}, paired by seed. {shares}alone: added to the first recipe alone; last: "
        "added last, to the second recipe without it. ± is the standard deviation over seeds."
    )
    return "\n".join([*lines, *textwrap.wrap(legend, 118)])


def chart(done: Sequence[Share], goal: str, lower: bool) -> Chart:
    """The shares as bars."""
    from zoo.compare.charts import Bar, bars

    pairs = [(share.difference, share.shapley or share.alone) for share in done]
    rows = [Bar(str(one), pair.mean, pair.low, pair.high) for one, pair in pairs]
    kind = "Shapley's shares" if done[0].shapley else "Effects on the first recipe"
    caption = f"{kind}, with 95 % intervals over seeds."
    return bars("What each option brought", rows, f"change in {goal}", "low" if lower else "high", caption)
