"""A series of tries has one budget, which decided tries pass on."""

import json
from pathlib import Path

import numpy as np
import pytest

from zoo.compare.error_budget import Series, check_series_file, load_series, save_series
from zoo.compare.simultaneous_tests import PairedTestPlan, compare_samples, judge_all
from zoo.compare.statistics import ALPHA
from zoo.errors import StorageError, UsageError


def test_every_try_has_its_share_and_a_decided_one_passes_it_on():
    series, each = Series(10), ALPHA / 10
    for number in range(3):
        entry = series.entry(f"c{number}", ["v"])
        assert entry.level == pytest.approx(each)
        series = series.with_entry(entry, [])
    series = series.with_entry(series.entries[-1], ["v"])  # decided by more seeds
    entry = series.entry("c3", ["a", "b"])
    assert entry.level == pytest.approx(3 * each)
    series = series.with_entry(entry, ["a"])  # one of two
    assert series.entry("c4", ["v"]).level == pytest.approx(each)


def test_the_same_comparison_is_one_try():
    series = Series(2).with_entry(Series(2).entry("c", ["a"]), [])
    assert series.entry("c", ["a"]).level == pytest.approx(ALPHA / 2)
    assert series.with_entry(series.entry("c", ["a"]), ["a"]).used == 1


def test_a_series_ends():
    series = Series(3).with_entry(Series(3).entry("c", ["a", "b"]), [])
    with pytest.raises(UsageError, match="1 of its 3 tries left, and this comparison has 2 variants"):
        series.entry("d", ["a", "b"])


def test_all_levels_of_undecided_tries_sum_to_alpha():
    series = Series(7)
    while series.used < 7:
        series = series.with_entry(series.entry(f"c{series.used}", ["v"]), [])
    assert sum(entry.level for entry in series.entries) == pytest.approx(ALPHA)


def test_a_series_survives_on_disk(tmp_path):
    path = tmp_path / "below" / "tries.json"
    assert load_series(path, 40) == Series(40)
    series = Series(40).with_entry(Series(40).entry("c", ["a", "b"]), ["b"])
    save_series(path, series)
    assert load_series(path) == load_series(path, 40) == series
    with pytest.raises(UsageError, match="was begun with 40 tries, which --tries 50 cannot change"):
        load_series(path, 50)
    content = json.loads(path.read_text())
    for change in ({"format": 9}, {"entries": [{}]}, {"tries": "many"}):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(UsageError, match=r"is damaged, or no series of zoo: (?!.*Error\()"):
            load_series(path)
    with pytest.raises(UsageError, match="cannot write --series"):
        save_series(path / "inside", series)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (".", UsageError), ("/", UsageError), ("folder", UsageError), ("file/below.json", UsageError),
        ("/dev/null", UsageError), ("x" * 300, UsageError), ("/proc/tries", StorageError),
        ("new/tries.json", None), ("file", None),
    ],
)  # fmt: skip
def test_a_place_where_no_series_can_be_is_refused_in_a_sentence(tmp_path, monkeypatch, path, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    if error is None:
        check_series_file(Path(path))
        assert not (tmp_path / "new" / "tries.json").exists()
    else:
        with pytest.raises(error, match="--series"):
            check_series_file(Path(path))


@pytest.mark.campaign
def test_sixty_null_changes_in_a_row_are_kept_in_five_percent_of_series():
    """Each of the changes is compared with one baseline's runs, as an automatic search does it."""
    trials, tries, seeds, with_a_change = 400, 60, 6, 0
    rng = np.random.default_rng(5)
    for _ in range(trials):
        series, keeps = Series(tries), 0
        shared = rng.standard_normal(seeds)
        baseline = shared + rng.standard_normal(seeds)
        for number in range(tries):
            entry = series.entry(f"c{number}", ["v"])
            samples = {"v": ((shared + rng.standard_normal(seeds)).tolist(), baseline.tolist())}
            plan = PairedTestPlan(level=entry.level)
            word = judge_all(compare_samples(samples, plan), True, plan)["v"].word
            series = series.with_entry(entry, ["v"] if word in ("better", "worse") else [])
            keeps += word == "better"
        with_a_change += keeps > 0
    print(f"a change without an effect was kept in {with_a_change} of {trials} series")
    assert with_a_change <= 0.05 * trials
