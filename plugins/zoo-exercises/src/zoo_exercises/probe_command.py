"""`zoo probe`: a scorecard of a trained model, or of the parts of a recipe."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli import doctor, table_printing, warning_filters
from zoo.command_line import ParsedOptions
from zoo.console import printable
from zoo.errors import UsageError

if TYPE_CHECKING:
    from zoo_exercises.probe import Scorecard


def run(options: ParsedOptions) -> int:
    """Measure one model and print its scorecard."""
    from zoo import recipe_files

    name = options.words[0]
    if not Path(name).exists():
        recipe_files.find_recipe(name)
    steps = options.get("steps")
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.explain.subjects import find_subject

    allow = options.allowed
    subject = find_subject([name], list(options.settings), {"runs": options.get("runs"), "allow": allow})
    if subject.trained and steps is not None:
        raise UsageError(f"--steps is for recipes: {name} is trained.")
    card = _probe(subject, options, steps, allow)
    if options.get("json"):
        table_printing.as_json(as_values(card))
    else:
        _print(card)
    return 0


def _probe(subject: Any, options: ParsedOptions, steps: int | None, allow: tuple[str, ...]) -> Scorecard:
    from zoo.inference.load import choose_device
    from zoo_exercises.probe import probe_trained
    from zoo_exercises.probe_recipe import STEPS, probe_recipe

    if subject.trained:
        with ExitStack() as stack:
            return probe_trained(subject, stack, str(choose_device(options.get("device"))), allow)
    return probe_recipe(subject, steps or STEPS, allow, lambda line: print(line, file=sys.stderr, flush=True))


def as_values(card: Scorecard) -> dict[str, Any]:
    """A scorecard as plain values."""
    return {
        "title": card.title, "model": card.model, "texts": card.texts,
        "scores": [one._asdict() for one in card.scores],
        "heads": [{**one._asdict(), "roles": one.roles} for one in card.heads],
        "induction_heads": len(card.induction_heads),
        "ranks": [one._asdict() for one in card.ranks],
        "experts": [{**one._asdict(), "dead": one.dead} for one in card.experts],
        "gradients": [one._asdict() for one in card.gradients],
        "notes": card.notes,
    }  # fmt: skip


def _print(card: Scorecard) -> None:
    print(printable(card.title))
    print(printable(card.model))
    for note in card.notes:
        print(f"note: {printable(note)}")
    rows = [[one.task, _share(one.accuracy), _share(one.longer), _share(one.chance), one.texts] for one in card.scores]
    _table("Right answers", ["task", "accuracy", "longer", "chance", "texts"], rows)
    print(f"\nInside: {printable(card.texts)}")
    heads = [
        [one.layer, str(one.head), _share(one.previous), _share(one.first), _with_uniform(one.induction, one.uniform),
         _with_uniform(one.repeated, one.repeated_uniform), ", ".join(one.roles)]
        for one in card.heads
    ]  # fmt: skip
    headings = ["layer", "head", "previous", "first", "induction", "on repeated tokens", "role"]
    _table("Heads: mean attention weights (in brackets: of uniform attention)", headings, heads)
    count = len(card.induction_heads)
    print(f"{count or 'no'} induction head{'' if count == 1 else 's'}")
    ranks = [[one.layer, f"{one.rank:.1f}", str(one.most)] for one in card.ranks]
    _table("Effective rank of the residual stream", ["layer", "rank", "at most"], ranks)
    experts = [
        [
            one.layer,
            str(len(one.tokens)),
            ", ".join(map(str, one.dead)) or "none",
            _share(max(one.tokens) / sum(one.tokens)),
        ]
        for one in card.experts
        if sum(one.tokens)
    ]
    _table("Experts", ["layer", "experts", "dead", "largest share"], experts)
    gradients = [[one.layer, f"{one.norm:.3g}", str(one.weights)] for one in card.gradients]
    _table("Gradients of the mean loss", ["layer", "norm", "weights"], gradients)


def _table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    if rows:
        print(f"\n{title}")
        table_printing.table(headings, rows)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _with_uniform(value: float | None, uniform: float | None) -> str:
    return "–" if value is None or uniform is None else f"{value:.3f} ({uniform:.3f})"
