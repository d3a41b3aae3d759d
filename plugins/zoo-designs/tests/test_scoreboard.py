"""The scoreboard over several recipes: what enters it, and that no run is dropped from it."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from fabricate import study
from zoo_designs import scoreboard
from zoo_designs.scoreboard import RecipeTask, make_scoreboard

from zoo.compare.looks import Question
from zoo.compare.simultaneous_tests import PairedTestPlan
from zoo.compare.verdict import answer
from zoo.errors import UsageError

NAMES = {"default": "LayerNorm", "norm=rmsnorm": "RMSNorm", "norm=none": "None"}
RECIPES = ("lm-tiny", "translation-tiny", "vit-tiny")


def task(recipe, effect, seeds=5, start=0, edit=lambda run: run, more=None):
    effects = {"default": 1.7, "norm=rmsnorm": 1.7 + effect, **(more or {})}
    runs = [edit(run) for run in study(effects, seeds, start=start, recipe=recipe)]
    return RecipeTask(answer(runs), {name: NAMES[name] for name in effects})


def fail(variant, seed, state="diverged"):
    """An edit that lets one run end without a figure."""

    def edit(run):
        if (run.variant, run.seed) != (variant, seed):
            return run
        return replace(run, diverged=state == "diverged", finished=False, outcome={"state": state, "step": 7})

    return edit


def board(effects=(-0.1, -0.1, -0.1), **options):
    return make_scoreboard([task(recipe, effect, start=i, **options)
                            for i, (recipe, effect) in enumerate(zip(RECIPES, effects, strict=True))])  # fmt: skip


def test_an_effect_in_every_task_is_found():
    result = board()
    row = result.rows[1]
    assert (row.name, row.verdict.word, row.pairs) == ("RMSNorm", "better", 15)
    assert row.verdict.sentence == "better over 3 tasks and 15 pairs of runs"
    assert row.improvement.low > 0.5
    assert row.score.value == pytest.approx(1.7 / 1.6, rel=0.03)
    assert result.rows[0].score.value == pytest.approx(1.0, abs=0.01)
    assert scoreboard.sentences(result)[0] == "Yes."


def test_effects_that_cancel_are_not_one():
    result = board((-0.1, 0.1, 0.0))
    assert result.rows[1].verdict.word == "not distinguishable"
    assert result.rows[1].improvement.low < 0.5 < result.rows[1].improvement.high


def test_a_variant_that_is_worse_everywhere_is_called_so():
    result = board((0.1, 0.1, 0.1))
    assert result.rows[1].verdict.word == "worse"
    assert result.rows[1].improvement.high < 0.5
    assert scoreboard.sentences(result)[0] == "No."


def test_a_diverged_run_is_counted_and_never_dropped():
    tasks = [task("lm-tiny", -0.1), task("vit-tiny", -0.1, edit=fail("norm=rmsnorm", 2))]
    row = make_scoreboard(tasks).rows[1]
    whole = make_scoreboard([task("lm-tiny", -0.1), task("vit-tiny", -0.1)]).rows[1]
    assert (row.failed, row.pairs) == (1, 10)
    assert row.scores["vit-tiny"][2] == 0.0
    # one of five runs loses against all five of the baseline
    assert row.improvement.value == pytest.approx(whole.improvement.value - 0.1)
    assert row.p > whole.p
    assert "1 of its runs failed" in scoreboard.sentences(make_scoreboard(tasks))[1]


def test_a_failed_run_of_the_baseline_leaves_no_score_and_a_verdict():
    tasks = [task("lm-tiny", -0.1), task("vit-tiny", -0.1, edit=fail("default", 2))]
    result = make_scoreboard(tasks)
    assert math.isnan(result.rows[1].score.value)
    assert result.rows[1].improvement.value > 0.9
    assert "Without a score, because a run of the baseline failed" in " ".join(scoreboard.legend(result))


@pytest.mark.parametrize("state", ["crashed", "out of memory"])
def test_a_crash_which_may_be_the_machines_fault_leaves_no_verdict(state):
    tasks = [task("lm-tiny", -0.1), task("vit-tiny", -0.1, edit=fail("norm=rmsnorm", 2, state))]
    verdict = make_scoreboard(tasks).rows[1].verdict
    assert verdict.word == "no verdict"
    assert verdict.sentence.startswith("vit-tiny: runs ")


def test_a_variant_that_a_recipe_refuses_or_lacks_has_no_estimate():
    unequal = task(
        "vit-tiny", -0.1, edit=lambda run: replace(run, tokens=run.tokens * (1 + (run.variant != "default")))
    )
    row = make_scoreboard([task("lm-tiny", -0.1), unequal]).rows[1]
    assert row.verdict.word == "not comparable"
    assert row.verdict.sentence.startswith("vit-tiny: not comparable: tokens")
    assert math.isnan(row.improvement.value)
    assert math.isnan(row.score.value)
    one_more = task("lm-tiny", -0.1, more={"norm=none": 1.7})
    lacking = next(row for row in make_scoreboard([one_more, task("vit-tiny", -0.1)]).rows if row.name == "None")
    assert lacking.verdict.sentence == "vit-tiny lacks it: no verdict"
    assert math.isnan(lacking.improvement.value)


def test_variants_are_corrected_for_each_other():
    more = {"norm=none": 1.7}
    one, two = board(), board(more=more)
    other = next(row for row in two.rows if row.name == "RMSNorm")
    assert other.p != other.adjusted
    assert one.rows[1].p == one.rows[1].adjusted


def test_different_baselines_are_refused():
    other = task("vit-tiny", -0.1)
    with pytest.raises(UsageError, match="different baselines: LayerNorm of lm-tiny, RMSNorm of vit-tiny"):
        make_scoreboard(
            [task("lm-tiny", -0.1), RecipeTask(other.answer, {"default": "RMSNorm", "norm=rmsnorm": "LayerNorm"})]
        )


def test_what_was_decided_stays_decided_unless_the_sign_turns():
    plan = PairedTestPlan("sequential", 1e-9, earlier={"RMSNorm": ("better", 5)})
    tasks = [task(recipe, -0.1) for recipe in RECIPES[:2]]
    assert make_scoreboard(tasks, plan).rows[1].verdict.word == "better"
    turned = [task(recipe, 0.1) for recipe in RECIPES[:2]]
    assert make_scoreboard(turned, plan).rows[1].verdict.word == "not distinguishable"
    assert Question("g", "b").test == "t"


def test_seeds_that_are_not_paired_do_not_enter():
    tasks = [task("lm-tiny", -0.1), task("vit-tiny", -0.1)]
    answer_of = tasks[0].answer
    row = replace(answer_of.rows[1], figures={**answer_of.rows[1].figures, 99: 0.001})
    changed = RecipeTask(replace(answer_of, rows=(answer_of.rows[0], row)), tasks[0].names)
    assert make_scoreboard([changed, tasks[1]]).rows[1].improvement == make_scoreboard(tasks).rows[1].improvement


def test_text_csv_and_json_say_the_same():
    result = board(more={"norm=none": 1.9})
    text = " ".join(scoreboard.describe(result).as_text().split())
    assert "Does RMSNorm or None instead of LayerNorm help in lm-tiny, translation-tiny and vit-tiny?" in text
    assert all(len(line) <= 100 for line in scoreboard.describe(result).as_text().splitlines())
    content = json.loads(scoreboard.as_json(result))
    assert (content["outcome"], content["exit_code"]) == ("better", 10)
    assert [each["recipe"] for each in content["recipes"]] == [*RECIPES]
    best = content["variants"][1]
    assert (best["name"], best["verdict"], best["pairs"]) == ("RMSNorm", "better", 15)
    assert best["p_improvement"]["low"] == result.rows[1].improvement.low
    rows = list(csv.DictReader(io.StringIO(scoreboard.as_csv(result))))
    assert len(rows) == 3 * 3 * 5
    of_one = [float(row["score"]) for row in rows if (row["recipe"], row["variant"]) == ("vit-tiny", "RMSNorm")]
    assert of_one == list(result.rows[1].scores["vit-tiny"].values())
    assert "| RMSNorm |" in scoreboard.describe(result).as_markdown()


def test_where_all_runs_of_both_failed_nothing_is_identical():
    def fail_all(run):
        for variant in ("default", "norm=rmsnorm"):
            for seed in range(1, 6):
                run = fail(variant, seed)(run)
        return run

    tasks = [task("lm-tiny", -0.1, edit=fail_all), task("vit-tiny", -0.1, edit=fail_all)]
    result = make_scoreboard(tasks)
    assert result.rows[1].verdict.word == "no verdict"
    assert scoreboard.sentences(result)[0] == "These runs cannot tell."
    assert scoreboard.sentences(result)[1].startswith("RMSNorm: all runs of both failed: no verdict")
    one = make_scoreboard([task("lm-tiny", -0.1, edit=fail_all), task("vit-tiny", -0.1)])
    assert one.rows[1].verdict.word != "no verdict"
