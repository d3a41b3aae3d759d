"""Looks are recorded, and however many there are they spend 5 % together."""

import json
import math

import numpy as np
import pytest

from zoo.compare import simultaneous_tests
from zoo.compare.looks import (
    FIRST,
    UNTIL,
    Looks,
    Question,
    describe_power,
    load_looks,
    planned_levels,
    save_looks,
)
from zoo.compare.simultaneous_tests import PairResult, compare_samples, judge_all
from zoo.compare.statistics import ALPHA, fewest_sequential_seeds, least_p, paired_t_test
from zoo.errors import UsageError

LOSS = Question("loss", "default")


@pytest.fixture
def tmp_path(tmp_path):
    """A folder without other tests' folders beside it, where records of other looks are searched."""
    folder = tmp_path / "comparison"
    folder.mkdir()
    return folder


def seeds(count, *variants):
    return {name: tuple(range(1, count + 1)) for name in ("default", *(variants or ("a=1",)))}


def look_at(looks, question, numbers, until=False, **verdicts):
    look = looks.next_look(question, numbers, until)
    return look, looks.with_look(look, verdicts)


def test_the_first_look_is_a_t_test_and_the_next_one_is_sequential():
    first, looks = look_at(Looks(), LOSS, seeds(5))
    assert (first.test, first.level) == ("t", pytest.approx(FIRST * ALPHA))
    more, looks = look_at(looks, LOSS, seeds(12))
    assert (more.test, more.level) == ("sequential", pytest.approx(FIRST * (1 - FIRST) * ALPHA))
    again, looks = look_at(looks, LOSS, seeds(20))
    assert (again.test, again.level, again.spent) == ("sequential", more.level, 0.0)
    assert looks.remaining == pytest.approx(ALPHA - first.level - more.level)


def test_the_same_look_costs_nothing_and_has_its_level():
    first, looks = look_at(Looks(), LOSS, seeds(5))
    again, same = look_at(looks, LOSS, seeds(5))
    assert (again.test, again.level, again.spent) == (first.test, first.level, 0.0)
    assert same == looks


def test_another_question_takes_a_share_of_what_is_left():
    _, looks = look_at(Looks(), LOSS, seeds(5))
    for question in (
        Question("accuracy", "default"), Question("loss", "a=1"), Question("loss", "default", "last"),
        Question("loss", "default", margin=0.01), Question("loss", "default", test="dunnett"),
    ):  # fmt: skip
        look, looks = look_at(looks, question, seeds(5))
        assert look.test == question.test
        assert 0 < look.level < ALPHA * (1 - FIRST)
    assert sum(look.spent for look in looks.looks) < ALPHA
    grown, _ = look_at(looks, Question("accuracy", "a=1"), seeds(9))
    assert grown.test == "sequential"  # the number of seeds may depend on the looks before


def test_any_hundred_looks_spend_at_most_alpha():
    rng, looks = np.random.default_rng(0), Looks()
    for _ in range(100):
        question = Question(
            str(rng.choice(["loss", "accuracy"])), "default", test=str(rng.choice(["t", "permutation"]))
        )
        _, looks = look_at(looks, question, seeds(int(rng.integers(2, 30))), bool(rng.random() < 0.2))
    assert ALPHA * 0.9 < sum(look.spent for look in looks.looks) <= ALPHA


def test_until_decided_is_sequential_from_the_start():
    first, looks = look_at(Looks(), LOSS, seeds(6), True)
    assert (first.test, first.level) == ("sequential", pytest.approx(UNTIL * ALPHA))
    for count in (7, 8, 9):
        look, looks = look_at(looks, LOSS, seeds(count), count < 9)
        assert (look.test, look.level, look.spent) == ("sequential", first.level, 0.0)


def test_what_was_decided_stays_and_seeds_stand_in_the_order_in_which_they_came():
    first = PairResult(paired_t_test([0.9, 0.8], [1.0, 0.92]), 0.01)
    look = Looks().next_look(LOSS, {"default": (3, 7), "a=1": (3, 7)})
    looks = Looks().with_look(look, {"a=1": "better"}, {"a=1": first})
    look = looks.next_look(LOSS, {"default": (1, 3, 7), "a=1": (1, 3, 7)})
    plan = looks.plan(look)
    assert plan.earlier == {"a=1": ("better", first)}
    assert plan.sort_seeds([1, 3, 7]) == [3, 7, 1]
    assert plan.later_level == pytest.approx(looks.remaining * (1 - FIRST) * FIRST)
    assert looks.plan(looks.next_look(Question("accuracy", "default"), {})).earlier == {}


@pytest.mark.parametrize("until", [None, "decided", "5,10"])
@pytest.mark.parametrize("tests", [1, 3, 6])
def test_too_few_seeds_to_decide_are_named_before_anything_runs(until, tests):
    messages = [describe_power(count, tests, "t", until) for count in range(2, 40)]
    nothing = [count for count, text in enumerate(messages, 2) if "decide nothing" in text]
    assert nothing == list(range(2, len(nothing) + 2))
    assert nothing
    if until == "decided":
        assert nothing[-1] + 1 == fewest_sequential_seeds(UNTIL * ALPHA / tests)


def planned_look(looks, count, planned=(5, 10), variants=("a=1",), **verdicts):
    look = looks.next_look(LOSS, seeds(count, *variants), planned=planned)
    pair = paired_t_test([1.0, 1.1, 1.3][:3], [0.9, 0.8, 0.7])
    return look, looks.with_look(look, verdicts, {name: PairResult(pair, 0.001) for name in verdicts})


@pytest.mark.parametrize("planned", [(5, 10), (3, 6), (4, 8, 12), (5, 10, 15, 20), (2, 30)])
@pytest.mark.parametrize("variants", [1, 3, 6])
def test_planned_looks_spend_little_on_few_seeds_and_at_most_their_share(planned, variants):
    levels = planned_levels(planned, UNTIL * ALPHA, variants=variants)
    assert sum(levels) <= UNTIL * ALPHA * (1 + 1e-9)
    assert levels == sorted(levels)
    assert levels[-1] >= UNTIL * ALPHA / 2
    for count, level in zip(planned, levels, strict=True):
        assert level == 0 or least_p(count) * variants <= level  # what cannot decide spends nothing


def test_a_plan_of_looks_uses_its_test_at_every_look_and_nothing_between():
    first, looks = planned_look(Looks(), 5)
    between, looks = planned_look(looks, 7)
    last, looks = planned_look(looks, 10)
    again, looks = planned_look(looks, 10)
    assert [look.test for look in (first, between, last)] == ["t"] * 3
    assert 0 == between.level < first.level < last.level == again.level
    assert sum(look.spent for look in looks.looks) == pytest.approx(UNTIL * ALPHA)
    assert first.level + last.level == pytest.approx(UNTIL * ALPHA)
    assert looks.plan(between).next_look == 10
    one = compare_samples({"a=1": ([1.0, 2.0, 3.5], [9.0, 9.0, 9.0])}, looks.plan(between))
    assert judge_all(one, True, looks.plan(between))["a=1"].sentence == "next planned look after 10 seeds: no verdict"
    over, _ = planned_look(looks, 12)
    assert over.level == 0
    skipped, _ = planned_look(Looks(), 10)
    assert skipped.level == pytest.approx(UNTIL * ALPHA)


def test_a_plan_is_named_before_the_first_look_and_stays():
    _, looks = look_at(Looks(), LOSS, seeds(5))
    with pytest.raises(UsageError, match="--looks 5,10 is named before the first look"):
        planned_look(looks, 10)
    _, looks = planned_look(Looks(), 5)
    with pytest.raises(UsageError, match="before the first look"):
        planned_look(looks, 8, (8, 16))
    other = looks.next_look(Question("accuracy", "default"), seeds(5), planned=(5, 10))
    assert 0 < other.level < ALPHA * (1 - UNTIL)


def test_a_decision_of_a_plan_stays_with_its_figures_and_the_others_go_on(tmp_path):
    _, looks = planned_look(Looks(), 5, variants=("a=1", "a=2"), **{"a=1": "worse"})
    save_looks(tmp_path / "new", looks)
    looks = load_looks(tmp_path / "new", ["default", "a=1", "a=2"])
    numbers = {**seeds(10, "a=2"), "a=1": tuple(range(1, 6))}
    look = looks.next_look(LOSS, numbers, planned=(5, 10))
    assert look.level > 0
    (word, result) = looks.plan(look).earlier["a=1"]
    assert (word, result.pair.n, result.adjusted) == ("worse", 3, 0.001)
    assert result.pair == paired_t_test([1.0, 1.1, 1.3], [0.9, 0.8, 0.7])


def test_one_seed_is_no_look():
    assert look_at(Looks(), LOSS, seeds(1))[1] == Looks()
    assert look_at(Looks(), LOSS, {"default": (1, 2), "a=1": (3, 4)})[1] == Looks()


def test_looks_survive_on_disk(tmp_path):
    looks = Looks(0.01)
    for count in (5, 9):
        _, looks = look_at(looks, Question("loss", "default", margin=0.1), seeds(count), **{"a=1": "worse"})
    save_looks(tmp_path / "new", looks)
    assert load_looks(tmp_path / "new", ["default", "a=1", "a=2"], 0.05) == looks  # the smaller budget stays
    assert load_looks(tmp_path / "another" / "folder", ["default", "a=1"]) == Looks()


def test_who_tries_one_variant_after_another_spends_and_other_comparisons_in_one_folder_do_not(tmp_path):
    _, first = look_at(Looks(), LOSS, seeds(5))
    save_looks(tmp_path, first)
    other = load_looks(tmp_path, ["b=1", "b=2"])
    assert (other.remaining, other.looks, other.unrelated) == (ALPHA, (), first.looks)
    second = load_looks(tmp_path, ["default", "a=2"])
    look, second = look_at(second, LOSS, seeds(5, "a=2"))
    assert (look.test, look.level) == ("t", pytest.approx(FIRST * (1 - FIRST) * ALPHA))
    save_looks(tmp_path, second)
    assert len(load_looks(tmp_path, ["default", "a=1", "a=2"]).looks) == 2


def test_a_comparison_of_the_same_runs_under_another_name_spends_too(tmp_path):
    _, first = look_at(Looks(), LOSS, seeds(5))
    save_looks(tmp_path / "one", first)
    same = load_looks(tmp_path / "other", ["default", "a=1", "a=2"])
    assert (same.looks, same.elsewhere) == ((), first.looks)
    look, same = look_at(same, LOSS, seeds(5, "a=1", "a=2"))
    assert look.level == pytest.approx(FIRST * (1 - FIRST) * ALPHA)
    save_looks(tmp_path / "other", same)
    assert load_looks(tmp_path / "other", ["default", "a=1"]).looks == same.looks  # its own alone are written
    assert load_looks(tmp_path / "other", ["default", "b=1"]).elsewhere == ()  # the baseline's runs alone are shared


@pytest.mark.parametrize("place", [("level",), ("spent",), ("seeds", "default"), ("question", "goal"), ("verdicts",)])
def test_a_record_that_was_changed_by_hand_is_refused(tmp_path, place):
    _, looks = look_at(Looks(), LOSS, seeds(5), **{"a=1": "worse"})
    save_looks(tmp_path, looks)
    content = json.loads((tmp_path / "looks.json").read_text())
    inner = content["looks"][0]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = {"level": 0.01, "spent": 0.01, "default": [1, 2], "goal": "other", "verdicts": {}}[place[-1]]
    (tmp_path / "looks.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="it was changed after zoo wrote it"):
        load_looks(tmp_path, ["default", "a=1"])


@pytest.mark.parametrize("change", [{"format": 3}, {"looks": [{}]}, {"looks": 3}, {"format": 1, "looks": 3}])
def test_a_damaged_record_is_not_begun_again(tmp_path, change):
    save_looks(tmp_path, Looks())
    file = tmp_path / "looks.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UsageError, match=r"looks.json is damaged.*\nIt records what earlier looks have tested"):
        load_looks(tmp_path, ["default", "a=1"])


def test_a_variant_that_joins_a_sequential_test_spends_a_level_of_its_own():
    question = Question("loss", "default")
    seeds = {"default": range(1, 8), "a": range(1, 8)}
    looks = Looks()
    first = looks.next_look(question, seeds, until_decided=True)
    looks = looks.with_look(first, {"a": "not distinguishable"})
    more = looks.next_look(question, {name: range(1, 10) for name in seeds}, until_decided=True)
    joined = looks.next_look(question, {**seeds, "b": range(1, 8)}, until_decided=True)
    assert (more.spent, more.level) == (0.0, first.level)
    assert joined.spent == joined.level == pytest.approx((ALPHA - first.spent) * 0.9)


# what is chosen after a look


def test_seeds_that_were_looked_at_cannot_be_left_out_but_the_first_ones_and_those_of_a_look_may_be_asked_about():
    _, looks = look_at(Looks(), LOSS, seeds(5))
    _, looks = look_at(looks, LOSS, seeds(12))
    some = (1, 2, 4, 5, 6, 8, 9, 11)
    assert looks.find_missing_seeds({"default": some, "a=1": some}) == {
        "default": [3, 7, 10, 12],
        "a=1": [3, 7, 10, 12],
    }
    assert looks.find_missing_seeds({"default": (1, 2, 3, 4, 5, 6, 20), "a=1": tuple(range(1, 13))}).keys() == {
        "default"
    }
    assert looks.find_missing_seeds({"default": tuple(range(1, 8)), "b=1": (3, 5)}) == {}
    assert looks.find_missing_seeds(seeds(5)) == looks.find_missing_seeds(seeds(30)) == {}
    earlier, _ = look_at(looks, LOSS, seeds(8))
    assert (earlier.test, earlier.spent) == ("sequential", 0.0)  # a point on the path of the sequential test


def test_a_run_that_was_made_again_with_another_result_is_another_look():
    runs = {"default": {1: "a", 2: "b"}, "a=1": {1: "c", 2: "d"}}
    first = Looks().next_look(LOSS, seeds(2), runs=runs)
    looks = Looks().with_look(first, {"a=1": "better"})
    again = looks.next_look(LOSS, seeds(2), runs=runs)
    assert (again.level, again.spent, looks.number(again)) == (first.level, 0.0, 1)
    changed = looks.next_look(LOSS, seeds(2), runs={**runs, "a=1": {1: "c", 2: "e"}})
    assert changed.spent == changed.level == pytest.approx(FIRST * (1 - FIRST) * ALPHA)
    assert looks.plan(changed).earlier == {}
    assert len(looks.with_look(changed, {}).looks) == 2
    crashed = {**runs, "a=1": {1: "c", 2: ""}}  # nobody has seen its figure
    looks = Looks().with_look(Looks().next_look(LOSS, seeds(2), runs=crashed), {})
    assert looks.next_look(LOSS, seeds(2), runs=runs).spent == 0.0


def test_a_question_that_is_chosen_after_a_look_shares_what_is_spent_with_the_others():
    _, looks = look_at(Looks(), LOSS, seeds(5, "a", "b", "c"))
    share, choices = FIRST * (1 - FIRST) * ALPHA, {"goal": 5, "at": 4}
    for question, candidates in [
        (Question("accuracy", "default"), 4), (Question("loss", "a"), 3), (Question("loss", "default", "last"), 3),
        (Question("accuracy", "a"), 12), (Question("loss", "default", margin=0.1), 1),
        (Question("loss", "default", test="permutation"), 2),
    ]:  # fmt: skip
        look = looks.next_look(question, seeds(5, "a", "b", "c"), alternatives=choices)
        assert (look.candidates, look.spent) == (candidates, pytest.approx(share))
        assert look.level == pytest.approx(share / candidates)
    first = looks.next_look(Question("accuracy", "default"), seeds(5, "a", "b", "c"), alternatives=choices)
    looks = looks.with_look(first, {})
    second = looks.next_look(Question("perplexity", "default"), seeds(5, "a", "b", "c"), alternatives=choices)
    assert (second.level, second.spent) == (first.level, 0.0)  # paid for, as one of the four


def test_of_fewer_variants_each_is_one_of_those_that_were_looked_at():
    first, looks = look_at(Looks(), LOSS, seeds(5, "a", "b", "c"))
    best = looks.next_look(LOSS, seeds(5, "b"))
    assert (best.test, best.spent, best.level) == ("t", 0.0, pytest.approx(first.level / 3))
    more = looks.next_look(LOSS, seeds(9, "b"))
    assert (more.test, more.candidates) == ("sequential", 3)
    until, looks = look_at(Looks(), LOSS, seeds(9, "a", "b"), True)
    assert looks.next_look(LOSS, seeds(12, "b"), True).level == pytest.approx(until.level / 2)


class Searcher:
    """Somebody who looks at figures without any effect, and then asks whatever looks best."""

    def __init__(self, rng, seeds=16, variants=3, goals=4):
        self.figures = rng.standard_normal((goals, 1 + variants, seeds)) + rng.standard_normal((1, 1 + variants, seeds))
        self.looks, self.claims = Looks(), 0

    def ask(self, goal, variants, numbers, baseline=0):
        numbers, names = list(numbers), [f"v{each}" for each in variants]
        question = Question(f"g{goal}", f"v{baseline}")
        every = dict.fromkeys([*names, f"v{baseline}"], numbers)
        if self.looks.find_missing_seeds(every):
            return
        look = self.looks.next_look(question, every, alternatives={"goal": len(self.figures)})
        plan = self.looks.plan(look)
        order = [seed - 1 for seed in plan.sort_seeds(numbers)]
        samples = {
            name: (self.figures[goal, each, order].tolist(), self.figures[goal, baseline, order].tolist())
            for name, each in zip(names, variants, strict=True)
        }
        verdicts = judge_all(compare_samples(samples, plan), True, plan)
        words = {name: verdict.word for name, verdict in verdicts.items()}
        self.looks = self.looks.with_look(look, words)
        self.claims += any(word in ("better", "worse") for word in words.values())

    def differences(self, count):
        figures = self.figures[:, :, :count]
        pairs = figures[:, :, None] - figures[:, None]  # (goals, variants, baselines, seeds)
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.abs(pairs.mean(-1) / pairs.std(-1, ddof=1)))

    def search(self, count=5):
        """Look as planned, then at the goal, the baseline, the variant and the seeds that look best."""
        self.ask(0, (1, 2, 3), range(1, count + 1))
        sizes = self.differences(count)
        best_goal = int(sizes[:, 1:, 0].max(axis=1).argmax())
        self.ask(best_goal, (1, 2, 3), range(1, count + 1))
        best_baseline = int(sizes[0].max(axis=0).argmax())
        self.ask(0, [each for each in range(4) if each != best_baseline], range(1, count + 1), best_baseline)
        goal, variant, baseline = np.unravel_index(sizes.argmax(), sizes.shape)
        self.ask(int(goal), [int(variant)], range(1, count + 1), int(baseline))
        self.ask(0, [1 + int(sizes[0, 1:, 0].argmax())], range(1, count + 1))
        for more in (8, 12, 16):
            self.ask(0, (1, 2, 3), range(1, more + 1))
        difference = self.figures[0, 1] - self.figures[0, 0]
        self.ask(0, (1,), [1 + int(seed) for seed in np.argsort(difference)[:12]])
        return self.claims > 0


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.campaign)])
def test_who_looks_and_chooses_goal_baseline_variants_and_seeds_makes_no_more_false_claims(count, monkeypatch):
    # slow, and decides nothing
    monkeypatch.setattr(simultaneous_tests, "confidence_sequence", lambda *_: (math.nan, math.nan))
    monkeypatch.setattr(simultaneous_tests, "seeds_needed_sequentially", lambda *_: None)
    rng = np.random.default_rng(7)
    rate = np.mean([Searcher(rng).search() for _ in range(count)])
    assert 0.02 < rate <= ALPHA


def test_in_a_series_looks_at_other_variants_of_the_baseline_spend_nothing(tmp_path):
    """Each try has its own share of the series, however many values of one option are tried."""
    _, first = look_at(Looks(), LOSS, seeds(5))
    save_looks(tmp_path, first)
    other = load_looks(tmp_path, ["default", "a=2"], 0.005, tested=["a=2"])
    assert (other.remaining, other.looks, other.unrelated) == (0.005, (), first.looks)
    again = load_looks(tmp_path, ["default", "a=1"], 0.005, tested=["a=1"])
    assert again.looks == first.looks


@pytest.mark.parametrize("budget", [0.05, 0.0005])
def test_what_seeds_can_decide_is_told_by_what_the_looks_may_spend(budget):
    fewest = next(count for count in range(2, 40) if "decided with" in describe_power(count, 1, "t", None, budget))
    assert least_p(fewest) <= FIRST * budget < least_p(fewest - 1)
    assert f"at least {fewest} are needed" in describe_power(fewest - 1, 1, "t", None, budget)


def test_planned_looks_with_too_few_seeds_need_no_thousand():
    assert "at least 4 are needed" in describe_power(3, 2, "t", "2,3")
