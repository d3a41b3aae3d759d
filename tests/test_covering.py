"""Covering arrays hold what they promise."""

import itertools

from tests.covering import choices_in_turn, covering, covering_params, uncovered

FACTORS = {"a": "xyz", "b": [1, 2, 3, 4], "c": "pq", "d": [True, False], "e": "uvw"}
ALL = [dict(zip(FACTORS, row, strict=True)) for row in itertools.product(*FACTORS.values())]


def test_all_triples_occur_in_few_rows():
    rows = covering(FACTORS)
    assert uncovered(rows, ALL) == set()
    assert len(rows) <= 48 < len(ALL) / 2  # 36 is the least: the product of the three longest factors
    assert uncovered(rows[:-1], ALL)
    assert rows == covering(FACTORS)


def test_what_is_refused_is_neither_chosen_nor_asked_for():
    def accepted(row):
        return not (row["a"] == "x" and row["b"] == 2) and not (row["c"] == "p" and row["d"])

    rows = covering(FACTORS, accepted=accepted)
    assert all(map(accepted, rows))
    assert uncovered(rows, filter(accepted, ALL)) == set()
    assert uncovered(rows, ALL)


def test_pairs_and_everything():
    assert len(covering(FACTORS, 2)) <= 16
    assert len(covering({"a": "xy", "b": "pq"})) == 4
    assert covering({"a": "x"}, 1) == [{"a": "x"}]


def test_every_choice_is_in_the_default_run_and_every_row_in_a_campaign():
    rows = choices_in_turn("abcde", [1, 2, 3])
    assert [row.values for row in rows] == list(itertools.product("abcde", [1, 2, 3]))
    default = [row.values for row in rows if not row.marks]
    assert default == [("a", 1), ("b", 2), ("c", 3), ("d", 1), ("e", 2)]
    assert {mark.name for row in rows for mark in row.marks} == {"campaign"}


def test_pairs_are_in_the_default_run_and_every_row_in_a_campaign():
    rows = covering_params("abcde", [1, 2, 3], "xy")
    assert [row.values for row in rows] == list(itertools.product("abcde", [1, 2, 3], "xy"))
    every_row = [dict(zip("nop", row.values, strict=True)) for row in rows]
    default = [row for row, param in zip(every_row, rows, strict=True) if not param.marks]
    assert uncovered(default, every_row, 2) == set()
    assert len(default) <= 18 < len(rows)
