"""TensorBoard on runs and comparisons: which charts are pinned, short names of runs, and a comparison's own table."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoo.compare import run_records
from zoo.compare.design import FILES, design_of_folder
from zoo.compare.run_records import RUNS_FILE, planned_steps, short_names, target_of
from zoo.compare.targets import survival
from zoo.compare.verdict import Answer, answer
from zoo.config.run_folder import slug
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.io.linked_folders import files_below
from zoo.logging import run_state

NAME, MARK = "tensorboard", ".zoo"  # of the summary; a folder without the mark may be the user's, who named --out
PINNED = ("val/loss", "train/loss", "val_by_tokens/loss")  # where no run says what it measures
MOST = 6  # pinned charts
LABEL = 60  # characters of a folder that is named after a label
COLUMNS = 110  # characters of a line: TensorBoard's Text does not wrap


def write_summary(home: Path, answer: Answer) -> list[str]:
    """Write the table, the layout of the Custom Scalars page, and a run per variant with its figure and verdict.

    Into a folder of the comparison's own. Returns the names of the figures, the headline first.
    """
    from zoo.compare import table

    folder, writer = start_summary(home, "comparison", table.compose_report(answer).as_markdown())
    figures = [answer.goal, *(answer.base.others or {})]
    writer.add_custom_scalars(
        {
            "comparison": {
                **{name: ["Multiline", [f"val/{name}$"]] for name in figures},
                **{f"best {name}": ["Multiline", [f"best/{name}$"]] for name in figures},
                "by tokens seen": ["Multiline", [f"val_by_tokens/{figures[0]}$"]],
            },
            "cost": {"speed": ["Multiline", ["cost/tokens_per_s"]], "memory": ["Multiline", ["cost/peak_memory_mb"]]},
        }
    )
    writer.close()
    tracked: dict[Path, dict[str, float | str]] = {}
    for index, row in enumerate(answer.rows):
        run = next(iter(answer.runs[row.variant].values()))
        values = {
            f"{answer.goal} ({answer.at})": row.mean, "difference": row.pair.mean, "interval, low": row.pair.low,
            "interval, high": row.pair.high, "p": row.adjusted,
        }  # fmt: skip
        scalars = {f"comparison/{name}": value for name, value in values.items() if math.isfinite(value)}
        choices = {**row.choices, "verdict": row.verdict.word}
        verdict = scalars | {"comparison/verdict": row.verdict.word, "comparison/baseline": answer.base.variant}
        folders = [record.path.parent for record in answer.runs[row.variant].values()]
        tracked |= {folder: verdict for folder in folders if (folder / "trackers").is_dir()}
        # the row of HParams that the runs of the variant share
        steps = planned_steps(answer.runs[row.variant])
        curve = survival(row.figures, float(max(steps.values())), steps) if target_of(answer.at) is not None else ()
        write_row(
            folder / f"{index}-{slug(row.variant)[:60]}", f"{run.variant} ({run.recipe})", choices, scalars, curve
        )
    if tracked:
        from zoo.logging.trackers import write_verdicts  # which loads Lightning

        write_verdicts(tracked)
    return figures


def start_summary(home: Path, tag: str, markdown: str) -> tuple[Path, Any]:
    """The folder of a summary and its writer, with a text in it and nothing of an earlier answer.

    Beside a folder of this name that holds something else, such as another program's logs, it is tensorboard-1.
    """
    from zoo.logging.event_files import Events

    is_comparison = any((place / name).exists() for place in (home, home.parent) for name in (RUNS_FILE, *FILES))
    folders = (home / (f"{NAME}-{number}" if number else NAME) for number in itertools.count())
    folder = next(path for path in folders if is_comparison or not path.exists() or (path / MARK).exists())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_files.write_text(folder / MARK, "")
    writer = Events(str(folder))
    writer.add_text(tag, wrap_markdown(printable(markdown, lines=True)), 0)
    return folder, writer


def write_row(
    folder: Path,
    group: str,
    choices: Mapping[str, str],
    scalars: Mapping[str, float],
    curve: Iterable[tuple[float, float]] = (),
) -> None:
    """Write a run that is a row of HParams, or part of the row of its ``group``: its values and its figures.

    ``curve`` is the share of runs short of a target, by steps.
    """
    from tensorboard.plugins.hparams import summary_v2

    from zoo.logging.event_files import Events

    writer = Events(str(folder))
    texts = {printable(name): printable(value) for name, value in choices.items()}
    writer.add_summary(summary_v2.hparams_pb(texts, trial_id=printable(group)))
    for name, value in scalars.items():
        writer.add_scalar(name, value, 0)
    for step, share in curve:
        writer.add_scalar("comparison/share short of the target", share, round(step))
    writer.close()


def wrap_markdown(markdown: str) -> str:
    """Markdown with its paragraphs and items in lines of COLUMNS characters; tables, headings and code stay."""
    lines, code = [], False
    for line in markdown.split("\n"):
        code ^= line.startswith("```")
        fixed = code or line.startswith(("|", "#", "```"))
        indent = "  " if line.startswith("- ") else ""
        lines += [line] if fixed else textwrap.wrap(line, COLUMNS, subsequent_indent=indent) or [""]
    return "\n".join(lines)


def pinned_tags(goal: str, goals: Iterable[str]) -> tuple[str, ...]:
    """The charts that the link pins: the headline first, over steps and over tokens, then the other figures."""
    others = [f"val/{name}" for name in goals if name != goal]
    return (f"val/{goal}", f"val_by_tokens/{goal}", *others, "cost/tokens_per_s")[:MOST]


def headline_tags(folder: Path) -> tuple[str, ...]:
    """The charts to pin for all runs below a folder: the headlines of their tasks, then their other figures."""
    examples = {
        path.absolute().parents[2]: path for path in files_below(folder, run_state.LEDGER.__eq__)
    }  # one run per recipe
    goals = [list(run_state.read_record(path.parent).get("goals") or ()) for path in examples.values()]
    headlines = [name for names in goals for name in names[:1]]
    others = [name for names in goals for name in names[1:]]
    tags = [f"val/{name}" for name in (*headlines, *others)] + [f"val_by_tokens/{name}" for name in headlines]
    return tuple(dict.fromkeys([*tags, "train/loss"]))[:MOST] if headlines else PINNED


@contextmanager
def tensorboard_folder(folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The folder for TensorBoard to read, and the charts to pin.

    For a comparison's folder it is a temporary one of links to the runs, `RoPE/s1`: their own names hold what all have
    in common, too. Where the folder has several comparisons, each has a folder of its name. Raises UsageError for a
    damaged record of a comparison.
    """
    design = design_of_folder(folder)
    records, tag, tags = (
        design.load().views(folder) if design else ({"": run_records.load_record(folder)}, "comparison", ())
    )
    if not design and not records[""]:
        yield folder, headline_tags(folder)
        return
    goals: list[str] = []
    with tempfile.TemporaryDirectory(prefix="zoo-tensorboard-") as place:
        for recipe, comparison in records.items():
            labels, pinned = _labels(comparison) if comparison else ({}, ())
            goals += pinned[:1] if recipe else pinned
            for run in comparison.folders if comparison else ():
                link = Path(place, recipe, re.sub(r"[/\\:]", "_", labels[run.parent.name])[:LABEL], run.name)
                if os.path.lexists(link):  # the replacement gave the name of another variant
                    link = Path(place, recipe, run.parent.name, run.name)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(run.absolute(), target_is_directory=True)
        Path(place, tag).symlink_to((folder / NAME).absolute(), target_is_directory=True)
        yield Path(place), tuple(dict.fromkeys((*tags, *goals)))[:MOST]


def _labels(record: run_records.Record) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the tables call each variant, by its folder's name, and the charts to pin."""
    names: Sequence[str] = list(dict.fromkeys(run.parent.name for run in record.folders))
    ledgers = run_records.read_ledgers(record.folders)
    goals = list(next((run.goals for run in ledgers if run.goals), {}))
    try:
        result = answer(ledgers, record.baseline, record.goal)
        labels = {
            run.path.parents[1].name: row.label for row in result.rows for run in result.runs[row.variant].values()
        }
    except UsageError:  # no run is finished
        labels = {}
    goal = record.goal or (goals[0] if goals else "loss")
    return short_names(names) | labels, pinned_tags(goal, goals)
