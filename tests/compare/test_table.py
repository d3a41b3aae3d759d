"""The table on a terminal, as Markdown, as CSV and as JSON: the same figures, and all digits where machines read."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from fabricate import run, study

from zoo.compare import number_format, prose, table
from zoo.compare.simultaneous_tests import PairedTestPlan
from zoo.compare.verdict import answer
from zoo.console import format_bytes

EFFECTS = {"default": 1.7, "position=ALiBi": 1.6, "position=Learned": 1.71, "position=NoPosition": 2.0}


@pytest.fixture(scope="module")
def result():
    return answer(
        study(EFFECTS), tuned={"position=ALiBi": "lr 0.003, best of 3 on validation"}, commands=["zoo compare x"]
    )


@pytest.fixture(scope="module")
def hard():
    """Everything that can go wrong at once, with long names."""
    long = "norm=" + "a-very-long-name-of-a-norm" * 3
    runs = [*study({"default": 1.7, long: 1.6}, seeds=4), run("a|b=<i>`", 1, loss=1.7), run("a=late", 1, tokens=5)]
    runs += [run("a=never", seed, diverges=500) for seed in (1, 2, 3)] + [run("a=half", 9, finished=False)]
    return answer(runs)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_terminal_s_lines_fit(result, hard, width):
    for each in (result, hard):
        text = table.compose_report(each).as_text(width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text


def test_a_terminal_shows_everything_that_matters(result):
    text = table.compose_report(result).as_text()
    lines = text.splitlines()
    assert lines[0] == "Does another position than RoPE lower the validation loss of lm-tiny?"
    head = next(line for line in lines if line.startswith("position "))
    assert head.split("  ")[0] == "position"
    assert all(word in head for word in ("loss (nats)", "difference, 95 % interval", "p", "verdict"))
    alibi = next(line for line in lines if line.startswith("ALiBi"))
    assert prose.figure(result, result.rows[1]) in alibi
    assert prose.difference_and_interval(result, result.rows[1].pair)[1] in alibi
    assert alibi.endswith("better")
    assert "ALiBi: lr 0.003, best of 3 on validation" in text
    assert "mean ± standard deviation over 5 seeds, 6.14M tokens, 3,000 steps each; lower is better." in " ".join(lines)
    assert "p after Holm's correction for 3 comparisons" in " ".join(lines)
    assert "918k        1.84M" in text


@pytest.mark.parametrize(
    ("budget", "message"),
    [("time=10m", "10m of training"), ("flops=1e15", "1e15 FLOPs"), ("tokens=2M", "6.14M tokens, 3,000 steps")],
)
def test_what_was_equal_is_told(result, budget, message):
    runs = result.runs[result.baseline]
    equal = {seed: replace(one, setting={**one.setting, "budget": budget}) for seed, one in runs.items()}
    assert prose.spent(replace(result, runs={**result.runs, result.baseline: equal})) == message


def test_colour_is_for_terminals(result):
    text = table.compose_report(result).as_text(colour=True)
    assert "\x1b[32m" in text
    assert "\x1b[31m" in text
    assert "\n".join(line for line in text.splitlines() if "ALiBi " in line and "\x1b[32m" in line)


def test_seeds_are_a_column_only_where_they_differ(result, hard):
    assert table.verdicts(result)[0] == ["position", "loss (nats)", "difference", "95 % interval", "p", "verdict"]
    assert table.verdicts(hard)[0][1] == "seeds"


def test_flags_stand_below_the_table(hard):
    text = table.compose_report(hard).as_text()
    assert (
        "! these runs are not comparable: tokens 5 (a=late) against 6144000" in text or "! these runs are not" in text
    )
    assert "! not finished and not counted: a=half" in text
    assert "! 3 of 3 diverged: a=never s1 s2 s3" in text


def test_markdown_is_whole(result, hard):
    text = table.compose_report(result).as_markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows[:6]} == {7}
    assert text.startswith("# Does ")
    assert "| ALiBi |" in text
    assert "## Made by\n\n```bash\nzoo compare x\n```" in text
    assert "## Other figures" in text
    assert "- ALiBi: lr 0.003" in text
    escaped = table.compose_report(hard).as_markdown()
    assert "a\\|b=\\<i>\\`" in escaped
    assert "**refused** these runs are not comparable" in escaped


def test_csv_has_all_digits(result):
    rows = list(csv.DictReader(io.StringIO(table.as_csv(result))))
    assert [row["variant"] for row in rows] == [row.variant for row in result.rows]
    for line, row in zip(rows, result.rows, strict=True):
        assert float(line["mean"]) == row.mean
        assert line["difference"] == ("" if row.variant == "default" else repr(row.pair.mean))
        assert line["verdict"] == row.verdict.word
        assert float(line["bits_per_byte.mean"]) == row.others["bits_per_byte"][0]
    assert rows[1]["choice.position"] == "ALiBi"
    assert rows[1]["tuned"] == "lr 0.003, best of 3 on validation"
    assert "nan" not in table.as_csv(result).lower()


def test_json_is_strict_and_has_all_digits(result, hard):
    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads(table.as_json(result), parse_constant=refuse)
    for each, row in zip(content["variants"], result.rows, strict=True):
        assert each["mean"] == row.mean
        assert each["p_holm"] == (None if math.isnan(row.adjusted) else row.adjusted)
        assert each["figures"] == {str(seed): figure for seed, figure in row.figures.items()}
    assert content["answer"] == prose.sentences(result)
    assert content["baseline"] == "default"
    hard_content = json.loads(table.as_json(hard), parse_constant=refuse)
    never = next(each for each in hard_content["variants"] if each["variant"] == "a=never")
    assert never["figures"] == {"1": None, "2": None, "3": None}
    assert hard_content["flags"][0]["fatal"] is True


@pytest.mark.parametrize(
    ("value", "expected"),
    [(950, "950"), (1_234_567, "1.23M"), (918_000, "918k"), (9_500, "9.50k"), (999_999, "1.00M"), (0, "0"),
     (0.5, "0.5"), (2e12, "2.00T"), (math.nan, "–"), (5, "5")],
)  # fmt: skip
def test_amounts(value, expected):
    assert number_format.format_short(value) == expected


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.00001, "<0.0001"), (0.00042, "0.0004"), (0.0123, "0.012"), (0.05, "0.050"), (0.462, "0.46"), (1.0, "1.00"),
     (math.nan, "–")],
)  # fmt: skip
def test_p_values(p, expected):
    assert number_format.format_probability(p) == expected


def test_other_numbers():
    assert number_format.format_fixed(-0.1126, 3, sign=True) == "−0.113"
    assert number_format.format_fixed(0.1126, 3, sign=True) == "+0.113"
    assert number_format.format_fixed(-0.0001, 3, sign=True) == "0.000"
    assert number_format.format_fixed(-math.inf, 2) == "−∞"
    assert number_format.decimal_places([0.031, 0.028, math.nan]) == 3
    assert number_format.decimal_places([3.1]) == 1
    assert number_format.decimal_places([]) == 3
    assert number_format.format_apart(3_100_000, 3_101_000) == ("3.100M", "3.101M")
    assert [number_format.format_duration(s) for s in (4.2, 45, 200, 7500, math.nan)] == [
        "4.2 s",
        "45 s",
        "3 min 20 s",
        "2 h 05 min",
        "–",
    ]
    sizes = (0, 1023, 1536, 612_000_000, -(2**20), 3 * 2**30, math.nan)
    texts = ["0 B", "1023 B", "1.5 KiB", "584 MiB", "-1.0 MiB", "3.0 GiB", "–"]
    assert [format_bytes(1024**power - 1) for power in (2, 3, 4)] == ["1.0 MiB", "1.0 GiB", "1.0 TiB"]
    assert list(map(format_bytes, sizes)) == texts
    assert number_format.join_words(["a"]) == "a"
    assert number_format.join_words(["a", "b", "c"]) == "a, b and c"
    assert number_format.join_words([*"abcdef"]) == "a, b, c and 3 more"
    assert number_format.join_words([]) == ""


def test_places_follow_the_noise():
    coarse = study({"default": 17.0, "a=1": 18.0}, noise=1.0)
    assert prose.figure(answer(coarse), answer(coarse).base).count(".") == 2
    assert prose.places(answer(coarse)) < prose.places(answer(study({"default": 1.7, "a=1": 1.6}, noise=0.001)))
    assert np.isfinite(answer(coarse).base.sd)


def test_a_test_that_too_few_seeds_cannot_decide_has_an_unbounded_interval():
    runs = study({"default": 1.7, "position=ALiBi": 1.6}, seeds=4)
    few = answer(runs, plan=PairedTestPlan("sequential", 0.01))
    assert math.isnan(few.rows[1].pair.low)
    assert "[−∞, +∞]" in table.compose_report(few).as_text()
    assert table.verdicts(answer(runs[:1]))[1][0][-3] == ""
