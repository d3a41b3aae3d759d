"""Which verdicts rest on a learning rate that was chosen for the baseline alone, and what tuning took."""

from __future__ import annotations

from zoo.compare import tuning_runs
from zoo.compare.number_format import join_words
from zoo.compare.verdict import Answer, VariantRow, describe_values

RATE = "lr"


def learning_rate(answer: Answer, variant: str) -> str:
    """The learning rate of a variant's runs as text; empty where they record none."""
    values = [run.choices.get(RATE) for run in answer.runs[variant].values()]
    return next((describe_values(value) for value in values if value is not None), "")


def is_tuned(row: VariantRow) -> bool:
    """Whether a learning rate was chosen for a variant."""
    return any(piece.split()[0].rpartition(".")[2] == RATE for piece in row.tuned.split("; ") if piece)


def has_rate_of_baseline(answer: Answer, row: VariantRow) -> bool:
    """Whether a variant was trained at the baseline's learning rate, and none was chosen for it."""
    base = learning_rate(answer, answer.baseline)
    return row.variant != answer.baseline and not is_tuned(row) and learning_rate(answer, row.variant) == base


def notes(answer: Answer) -> list[str]:
    """A sentence about the verdicts whose rate is the baseline's, and one about what tuning took."""
    result = []
    rows = [row.label for row in answer.rows if has_rate_of_baseline(answer, row)]
    if rows:
        rate = learning_rate(answer, answer.baseline)
        number = f" {rate}" if rate else ""
        who = "any other variant" if len(rows) == len(answer.rows) - 1 > 1 else join_words(rows)
        result.append(
            f"The learning rate{number} was chosen for {answer.base.label} or the recipe, not for {who}: "
            f"--tune model.{RATE}=… chooses one for each variant."
        )
    cost = tuning_runs.total_cost(answer.tuning)
    if cost is not None:
        numbers = answer.tuning["seeds"]
        seeds = (
            f"seeds {join_words([*map(str, numbers)])}, which are"
            if len(numbers) > 1
            else f"seed {numbers[0]}, which is"
        )
        result.append(f"Tuning of all variants took {cost} more, with {seeds} not compared.")
    return result
