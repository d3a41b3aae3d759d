"""Sentences of a comparison: the question, the answer, the legend, and the text of each figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from zoo.compare.number_format import (
    UNITS,
    decimal_places,
    format_fixed,
    format_probability,
    format_short,
    format_span,
    join_words,
)
from zoo.compare.run_records import describe_values, target_of
from zoo.compare.simultaneous_tests import ASSUMPTIONS, failure_text
from zoo.compare.statistics import MAX_SEEDS, Paired, Verdict, round_count, seeds_text
from zoo.compare.verdict import Answer, Row, tuned_options

GRID_LEGEND = (
    "Main effects and interactions are corrected together with the verdicts, and all intervals hold together. An "
    "interaction is what two values change beyond the sum of what each changes alone."
)
WORDS = ("better", "worse", "as good as", "not distinguishable", "no verdict", "not comparable")
BETWEEN, MANY = "95 % interval", 4
NEEDED = (  # by whether a later look uses the sequential test
    "seeds needed are for 80 % power at the difference observed, and their range for the 10 % and 90 % quantiles of it",
    "seeds needed are those with which the sequential test decides in 80 % of cases if the true difference is the "
    "observed one, and their range is that for the 10 % and 90 % quantiles of it",
)


def question(answer: Answer) -> str:
    """The question of the comparison: "Does another position than RoPE lower the validation loss of lm-tiny?"."""
    verb = "lower" if answer.lower_is_better else "raise"
    subject = f"the {'test' if answer.at == 'test' else 'validation'} {goal(answer)} of {answer.recipe}"
    if (target := target_of(answer.at)) is not None:
        verb, subject = "reach", f"{metric(answer)} {target:g} of {answer.recipe} in fewer steps"
    if len(answer.rows) == 1:
        return f"What is {subject}?" if target is None else f"Does {answer.base.label} {verb} {subject} than another?"
    if len(answer.rows) == 2 and target is not None:
        return f"Does {answer.rows[1].label} {verb} {subject} than {answer.base.label}?"
    if len(answer.varied) == 1 and answer.base.label != answer.baseline:
        return f"Does another {answer.varied[0]} than {answer.base.label} {verb} {subject}?"
    if answer.varied:
        return f"Does changing {join_words(answer.varied)} {verb} {subject}?"
    return f"Does any variant but {answer.baseline} {verb} {subject}?"


def sentences(answer: Answer) -> list[str]:
    """The answer: a word, then the variants that are better, worse, undecided and not comparable."""
    base, others = answer.base.label, answer.rows[1:]
    if not others:
        return [f"{base}: {figure(answer, answer.base)}{unit(answer)}.", "There is nothing yet to compare it with."]
    by = {word: [row for row in others if row.verdict.word == word] for word in WORDS}
    result = [opening({row.verdict.word for row in others})]
    result += [f"{row.label} is {_by_how_much(answer, row)}." for row in (*by["better"], *by["worse"])]
    if equivalent := by["as good as"]:
        result.append(f"As good as {base} within {_margin(answer)}: {join_words([row.label for row in equivalent])}.")
    if undecided := by["not distinguishable"]:
        result.append(f"Not distinguishable from {base} with {_seeds(undecided)}: {_needing(undecided)}.")
    for reason in dict.fromkeys(row.verdict.sentence for row in by["no verdict"]):
        these = [row.label for row in by["no verdict"] if row.verdict.sentence == reason]
        result.append(f"No verdict on {join_words(these)}: {reason.removesuffix(': no verdict')}.")
    if excluded := by["not comparable"]:
        result.append(f"Not comparable with {base}: {join_words([row.label for row in excluded])}.")
    return result


def legend(answer: Answer) -> list[str]:
    """How to read the figures: statistics, units, corrections, and what was chosen after looking."""
    better = "lower" if answer.lower_is_better else "higher"
    counts = sorted({len(row.figures) for row in answer.rows})
    result = [
        f"{goal(answer)}: {moment(answer.at)} of each run, mean ± standard deviation over {format_span(counts)} "
        f"{'seed' if counts == [1] else 'seeds'}, {spent(answer)} each; {better} is better."
    ]
    if len(answer.rows) > 1:
        corrected = f"p after {answer.correction}'s correction for {answer.tests} comparisons"
        together = "for all variants and looks together" if answer.looks else "for all variants together"
        result.append(
            f"Differences from {answer.base.label} are paired by seed; the {BETWEEN} holds {together}; "
            f"{corrected if answer.tests > 1 else 'p two-sided'}; "
            f"{NEEDED[answer.plan.test == 'sequential' or answer.plan.later_level is not None]}."
        )
    if len(answer.rows) > 1:
        result += _how_tested(answer)
    if any(row.outcome for row in answer.rows):
        result.append(
            "Where runs failed, the figures of the others are a selection: no mean, difference or interval is given. p "
            "is then of how runs ended: twice the smaller of Fisher's exact test on diverged runs and the sign test "
            "over seeds, a diverged run being worse than any figure."
        )
        lengths = {run.steps for runs in answer.runs.values() for run in runs.values()}
        if target_of(answer.at) is not None and len(lengths) > 1:
            result.append("Runs of unequal length are compared up to the end of the shorter of each pair.")
    return result + learning_rate_notes(answer) + late_choices(answer)


def late_choices(answer: Answer) -> list[str]:
    """A sentence about what was chosen after a look at the runs; none where nothing was, or no journal can tell."""
    if not answer.late_choices:
        return []
    return [f"Chosen after looking at runs of this comparison: {'; '.join(answer.late_choices)}."]


def moment(at: str) -> str:
    """``last validation``, ``mean of the last 3 validations``, ``test split``."""
    what, _, count = at.partition(":")
    if what == "to":
        return "straight lines between validations"
    if count:
        return f"mean of the last {count} validations"
    return "figure on the test split" if what == "test" else f"{what} validation"


def _how_tested(answer: Answer) -> list[str]:
    """The test, where it is not the usual one, and what this look has left for later ones."""
    plan, result = answer.plan, []
    if plan.test != "t":
        result.append(f"Test: {plan.test}. It assumes: {ASSUMPTIONS[plan.test]}.")
    if plan.margin is not None:
        result.append(f"Margin: {_margin(answer)}, by two one-sided tests.")
    if answer.look_number:
        later = "" if plan.later_level is None else f", and looks at more seeds may spend {plan.later_level:.2g}"
        total = f" of {len(answer.looks)}" if answer.look_number < len(answer.looks) else ""
        number = f"Look {answer.look_number}{total} at this comparison"
        result.append(
            f"{number}: verdicts are false with a probability of at most {plan.level:.2g}{later}.{_look_price(answer)}"
        )
    elif answer.look is not None:
        why = "the folder is of no comparison" if answer.late_choices is None else "it has tested nothing"
        result.append(
            f"Nothing records this look, because {why}: verdicts are false with a probability "
            f"of at most {plan.level:.2g} if nobody looks at other seeds or asks anything else.{_look_price(answer)}"
        )
    return result


def _look_price(answer: Answer) -> str:
    """Why a look may spend so little: the questions that could have been chosen, and looks of other comparisons."""
    look, many = answer.look, answer.looks_elsewhere
    result = ""
    if look is not None and look.candidates > 1:
        result += (
            f" Its question is one of {look.candidates} that could be chosen after a look, and may spend 1 / "
            f"{look.candidates} of what all of them may."
        )
    if many:
        result += f" {many} look{'s' * (many != 1)} at the same runs by other comparisons of {answer.recipe} count too."
    return result


def goal(answer: Answer) -> str:
    """The headline's name without underscores, "log2 steps to loss 4.2" for a target."""
    target, name = target_of(answer.at), metric(answer)
    return name if target is None else f"log2 steps to {name} {target:g}"


def metric(answer: Answer) -> str:
    """The name of the goal itself, without underscores."""
    return answer.goal.replace("_", " ")


def unit(answer: Answer) -> str:
    """The headline's unit with a space before it, or nothing."""
    return f" {UNITS[answer.goal]}" if answer.goal in UNITS and target_of(answer.at) is None else ""


def places(answer: Answer) -> int:
    """Decimal places of all headline figures."""
    return decimal_places([deviation for row in answer.rows for deviation in (row.sd, row.pair.sd)])


def figure(answer: Answer, row: Row) -> str:
    """``1.632 ± 0.031``, the mean alone for one seed, "2 of 5 diverged" where runs failed."""
    if row.failures and math.isnan(row.mean):
        return failure_text(row.failures, len(row.figures))
    if math.isnan(row.mean):
        return format_fixed(math.nan, 0)
    return plusminus(row.mean, row.sd, places(answer))


def plusminus(mean: float, sd: float, digits: int) -> str:
    """Mean ± standard deviation."""
    return format_fixed(mean, digits) + (f" ± {format_fixed(sd, digits)}" if math.isfinite(sd) else "")


def difference_and_interval(answer: Answer, pair: Paired) -> tuple[str, str]:
    """``−0.113`` and ``[−0.141, −0.085]``; empty without seeds in common, and where runs failed: that of the survivors
    would mislead.

    A test that so few seeds cannot decide rejects no difference, however large: ``[−∞, +∞]``.
    """
    if not pair.n:
        return "", ""
    mean, *ends = (format_fixed(value, places(answer), sign=True) for value in (pair.mean, *pair.bounds))
    return mean, "" if math.isnan(pair.bounds[0]) else f"[{ends[0]}, {ends[1]}]"


def figure_cells(answer: Answer, row: Row) -> list[str]:
    """Figure, difference, its interval and the corrected p value; empty for what runs do not tell."""
    return [figure(answer, row), *difference_and_interval(answer, row.pair), chance(row.adjusted)]


def chance(p: float) -> str:
    """The corrected p value; empty without a test."""
    return "" if math.isnan(p) else format_probability(p)


def seeds(row: Row) -> str:
    """The number of seeds, ``5``; ``4 of 5`` if one failed or is not finished."""
    good, all_ = len(row.figures) - len(row.failures), len(row.figures) + len(row.unfinished)
    return str(good) if good == all_ else f"{good} of {all_}"


def brief(row: Row) -> str:
    """The verdict for narrow columns: ``not distinguishable; ~14 needed``."""
    pieces = [row.verdict.sentence if row.pair.identical or row.outcome is not None else brief_verdict(row.verdict)]
    pieces += [failure_text(row.failures, len(row.figures))] if row.failures else []
    pieces += [f"{len(row.unpaired)} unpaired"] if row.unpaired else []
    return "; ".join(pieces)


def spent(answer: Answer) -> str:
    """The budget of a baseline run: ``6.14M tokens, 3,000 steps``; a budget of time or FLOPs as in --budget."""
    run = next((run for run in answer.runs[answer.baseline].values() if run.finished), None)
    if run is None:
        return ""
    what, _, size = str(run.setting.get("budget") or "").partition("=")
    if what in ("time", "flops"):
        return f"{size} of training" if what == "time" else f"{size} FLOPs"
    return f"{format_short(run.tokens)} {answer.unit}s, {run.steps:,} steps"


def _margin(answer: Answer) -> str:
    return f"{answer.plan.margin:g}{unit(answer)}"


def opening(words: Collection[str]) -> str:
    """The first word of an answer, from the words of its verdicts."""
    if "better" in words:
        return "Yes."
    if not {*words} - {"worse", "as good as"}:
        return "No."
    return "Not shown by these runs." if {"worse", "not distinguishable"} & {*words} else "These runs cannot tell."


def _by_how_much(answer: Answer, row: Row) -> str:
    """``better by 0.113 nats (…)``; where runs failed, how often it ended better and worse."""
    if row.outcome is None:
        return f"{row.verdict.word} by {_size(answer, row)}"
    base = answer.base
    failures = " and ".join(
        f"{failure_text(side.failures, len(side.figures))} ({side.label})" for side in (row, base) if side.failures
    )
    return f"{row.verdict.sentence}; {failures}"


def _size(answer: Answer, row: Row) -> str:
    """``0.113 nats (95 % interval 0.085 to 0.141)``: a difference without its sign, which the verdict implies."""
    if target_of(answer.at) is not None and math.isfinite(row.pair.low):
        value, low, high = (f"{2.0**value:.2g}" for value in (row.pair.mean, row.pair.low, row.pair.high))
        return f"a factor of {value} in steps ({BETWEEN} {low} to {high})"
    if math.isnan(row.pair.low):  # decided at an earlier look
        return f"{format_fixed(abs(row.pair.mean), places(answer))}{unit(answer)}"
    sign = -1 if row.pair.mean < 0 else 1
    ends = sorted((sign * row.pair.low, sign * row.pair.high))
    low, high = (format_fixed(end, places(answer)) for end in ends)
    return f"{format_fixed(abs(row.pair.mean), places(answer))}{unit(answer)} ({BETWEEN} {low} to {high})"


def _needing(rows: Sequence[Row]) -> str:
    """The variants with the seeds that each would need, or their number if they are more than MANY."""
    if len(rows) > MANY:
        counts = sorted(row.verdict.needed or math.inf for row in rows)
        low, high = (
            f"about {round_count(int(n))}" if n < math.inf else f"more than {MAX_SEEDS:,}"
            for n in counts[:: len(counts) - 1]
        )
        return f"{len(rows)} variants ({low}{f' to {high}' if low != high else ''} would be needed)"
    result = []
    for row in rows:
        seeds = seeds_text(row.verdict.needed, row.verdict.fewest, row.verdict.most, bracketed=True)
        pieces = [failure_text(row.failures, len(row.figures))] if row.failures else []
        if row.outcome is None:
            pieces.append("identical" if row.pair.identical else seeds)
        result.append(f"{row.label} ({'; '.join(pieces)})" if pieces else row.label)
    return join_words(result, MANY)


def brief_verdict(verdict: Verdict) -> str:
    """``not distinguishable; ~14 needed``."""
    if verdict.word != "not distinguishable":
        return verdict.sentence
    count = f"~{round_count(verdict.needed)}" if verdict.needed else f">{MAX_SEEDS:,}"
    return f"{verdict.word}; {count} needed"


def _seeds(rows: Sequence[Row]) -> str:
    return f"{format_span(sorted({row.outcome.n if row.outcome else row.pair.n for row in rows}))} seeds"


RATE = "lr"


def learning_rate(answer: Answer, variant: str) -> str:
    """The learning rate of a variant's runs as text; empty where they record none."""
    values = [run.choices.get(RATE) for run in answer.runs[variant].values()]
    return next((describe_values(value) for value in values if value is not None), "")


def has_rate_of_baseline(answer: Answer, row: Row) -> bool:
    """Whether a variant was trained at the baseline's learning rate, and none was chosen for it."""
    base = learning_rate(answer, answer.baseline)
    is_tuned = RATE in {name.rpartition(".")[2] for name in tuned_options([row.tuned])}
    return row.variant != answer.baseline and not is_tuned and learning_rate(answer, row.variant) == base


def learning_rate_notes(answer: Answer) -> list[str]:
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
    if answer.tuning:
        from zoo.compare.match_and_tune import total_cost  # which loads a parser of YAML

        cost = total_cost(answer.tuning)
        numbers = answer.tuning["seeds"]
        seeds, are = ("seeds", "are") if len(numbers) > 1 else ("seed", "is")
        result.append(
            f"Tuning of all variants took {cost} more, with {seeds} {join_words([*map(str, numbers)])}, which {are} "
            "not compared."
        )
    return result
