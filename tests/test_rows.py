"""One test of many rows fails where a row does, and names each of them."""

import pytest

from tests.rows import try_each

MET = []


@try_each([(1, 2), (3, 4)])
def test_fixtures_and_values_reach_each_row(one, two, tmp_path):
    MET.append((one, two, tmp_path.is_dir()))


def test_every_row_was_met(tmp_path):
    MET.clear()
    test_fixtures_and_values_reach_each_row(tmp_path=tmp_path)
    assert MET == [(1, 2, True), (3, 4, True)]


def test_all_rows_that_fail_are_named_and_those_after_them_are_tried():
    @try_each(range(5), name=lambda row: f"row {row}")
    def check(row):
        if row == 3:
            pytest.fail("three")
        assert row % 2 == 0, "odd"

    with pytest.raises(AssertionError, match=r"(?s)2 of 5 rows fail:\nrow 1: .*odd.*row 3: Failed: three$"):
        check()


def test_no_rows_are_refused():
    with pytest.raises(AssertionError, match="has no rows"):
        try_each([])(lambda row: None)
