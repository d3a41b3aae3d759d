"""Looks are recorded, and however many there are they spend 5 % together."""

import json

import numpy as np
import pytest

from zoo.compare.looks import FIRST, UNTIL, Looks, Question, load_looks, save_looks
from zoo.compare.statistics import ALPHA
from zoo.errors import UsageError

LOSS = Question("loss", "default")


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
        Question("loss", "default", margin=0.01), Question("loss", "default", test="moderated"),
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
    _, looks = look_at(Looks(), LOSS, {"default": (3, 7), "a=1": (3, 7)}, **{"a=1": "better"})
    look = looks.next_look(LOSS, {"default": (1, 3, 7), "a=1": (1, 3, 7)})
    plan = looks.plan(look)
    assert plan.earlier == {"a=1": ("better", 2)}
    assert plan.sort_seeds([1, 3, 7]) == [3, 7, 1]
    assert plan.later_level == pytest.approx(looks.remaining * (1 - FIRST) * FIRST)
    assert looks.plan(looks.next_look(Question("accuracy", "default"), {})).earlier == {}


def test_one_seed_is_no_look():
    assert look_at(Looks(), LOSS, seeds(1))[1] == Looks()
    assert look_at(Looks(), LOSS, {"default": (1, 2), "a=1": (3, 4)})[1] == Looks()


def test_looks_survive_on_disk(tmp_path):
    looks = Looks(0.01)
    for count in (5, 9):
        _, looks = look_at(looks, Question("loss", "default", margin=0.1), seeds(count), **{"a=1": "worse"})
    save_looks(tmp_path / "new", looks)
    assert load_looks(tmp_path / "new", ["default", "a=1", "a=2"], 0.05) == looks  # the smaller budget stays
    assert load_looks(tmp_path, ["default", "a=1"]) == Looks()


def test_comparisons_of_other_variants_in_one_folder_have_budgets_of_their_own(tmp_path):
    _, first = look_at(Looks(), LOSS, seeds(5))
    save_looks(tmp_path, first)
    other = load_looks(tmp_path, ["default", "a=2"])
    assert (other.remaining, other.looks, other.unrelated) == (ALPHA, (), first.looks)
    _, other = look_at(other, LOSS, seeds(5, "a=2"))
    save_looks(tmp_path, other)
    assert load_looks(tmp_path, ["default", "a=1"]).looks == first.looks
    assert len(load_looks(tmp_path, ["default", "a=1", "a=2"]).looks) == 2


@pytest.mark.parametrize("change", [{"format": 2}, {"looks": [{}]}, {"looks": 3}])
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
