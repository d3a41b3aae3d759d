"""What is read below a folder of runs: everything that is there, and what is wrong with it."""

import json
import math
import subprocess
import sys

import pytest
from fabricate import lay, ledger

from zoo.compare.run_records import duplicate_runs, group_by_variant, parse_record, read_records
from zoo.errors import UsageError


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    content = ledger("position=alibi", 3, choices={"position": "ALiBi"})
    (record,) = read_records(tmp_path if lay(content, tmp_path) else "")
    content.pop("format")
    assert {name: getattr(record, name) for name in content} == content
    assert record.problem == ""
    assert record.name == "position=alibi s3"
    assert record.figure("loss") == content["best"]["loss"]
    assert record.figure("loss", "last") == content["last"]["loss"]
    assert record.figure("bleu") is None


def test_variants_and_seeds_are_grouped_in_their_order(tmp_path):
    for variant in ("position=rope", "default"):
        for seed in (10, 2, 1):
            lay(ledger(variant, seed), tmp_path)
    groups = group_by_variant(read_records(tmp_path))
    assert {name: list(seeds) for name, seeds in groups.items()} == {"default": [1, 2, 10], "position=rope": [1, 2, 10]}
    assert [each.seed for each in read_records(tmp_path)] == [1, 2, 10] * 2
    assert len(read_records(tmp_path / "lm-tiny" / "default")) == 3
    assert len(read_records(tmp_path / "lm-tiny" / "default", tmp_path)) == 6  # none twice


def test_the_order_of_options_in_a_name_makes_no_other_variant(tmp_path):
    lay(ledger("max_steps=9,position=rope", seed=1), tmp_path)
    lay(ledger("position=rope,max_steps=9", seed=2), tmp_path)
    assert {name: list(seeds) for name, seeds in group_by_variant(read_records(tmp_path)).items()} == {
        "max_steps=9,position=rope": [1, 2]
    }
    assert duplicate_runs(read_records(tmp_path)) == []


def test_several_recipes_keep_their_names(tmp_path):
    lay(ledger(recipe="a"), tmp_path)
    lay(ledger(recipe="b"), tmp_path)
    assert list(group_by_variant(read_records(tmp_path))) == ["a/default", "b/default"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not valid JSON: Expecting value"),
        ('{"format": 1, "variant"', "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        ("[1, 2]", "is not a run record of zoo"),
        ('{"accounts": [], "currency": "EUR"}', "is not a run record of zoo"),
        ("null", "is not a run record of zoo"),
        ('{"format": 2, "variant": "default"}', "has format 2, and this version of zoo reads format 1"),
        ('{"format": 1, "variant": "default"}', "no valid recipe, seed, unit, prediction, steps"),
        ("[" * 100_000, "is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_in_the_list_and_says_why(tmp_path, text, why):
    path = lay(ledger("default", 4), tmp_path)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (record,) = read_records(tmp_path)
    assert why in record.problem
    assert str(path) in record.problem
    assert (record.recipe, record.variant, record.seed) == ("lm-tiny", "default", 4)
    assert record.figure("loss") is None
    assert group_by_variant([record]) == {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("goals", {}, "goals"), ("goals", {"loss": "down"}, "goals"), ("seed", "1", "seed"), ("best", [], "best"),
        ("validations", [1], "validations"), ("validations", {}, "validations"), ("tokens", None, "tokens"),
        ("finished", "yes", "finished"), ("choices", None, "choices"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_damage(tmp_path, name, value, message):
    path = lay(ledger(), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    problem = parse_record(path).problem
    assert "is damaged: no valid" in problem
    assert message in problem


def test_a_run_that_has_written_nothing_yet_is_named(tmp_path):
    lay(ledger(), tmp_path)
    started = tmp_path / "lm-tiny" / "default" / "s2"
    started.mkdir()
    (started / "config.yaml").write_text("model: {}\n")
    records = read_records(tmp_path)
    assert [each.seed for each in records if each.problem] == [2]
    assert "has no ledger.json" in records[1].problem or "has no ledger.json" in records[0].problem


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"holds no run: no ledger.json below it"):
        read_records(tmp_path)
    with pytest.raises(UsageError, match=r"is not a folder of runs"):
        read_records(tmp_path / "nowhere")


@pytest.mark.parametrize("null", ["NaN", "null", "Infinity"])
def test_a_run_that_diverged_is_an_outcome(tmp_path, null):
    path = lay(ledger(diverges=1000), tmp_path)
    path.write_text(path.read_text().replace("NaN", null))
    (record,) = read_records(tmp_path)
    assert not record.finished
    assert record.diverged_on("loss")
    assert math.isnan(record.figure("loss"))
    assert math.isnan(record.figure("loss", "last"))


def test_a_run_may_say_itself_that_it_diverged(tmp_path):
    lay(ledger(finished=False, diverged=True), tmp_path)
    assert math.isnan(read_records(tmp_path)[0].figure("loss"))


def test_a_run_that_is_not_finished_has_no_figure(tmp_path):
    lay(ledger(finished=False), tmp_path)
    assert read_records(tmp_path)[0].figure("loss") is None


def test_of_two_runs_of_a_seed_the_finished_one_counts(tmp_path):
    lay(ledger(loss=1.0, finished=False), tmp_path / "a")
    lay(ledger(loss=2.0), tmp_path / "b")
    lay(ledger(loss=3.0), tmp_path / "c")
    records = read_records(tmp_path)
    assert group_by_variant(records)["default"][1].best["loss"] == pytest.approx(2.0, abs=0.1)
    assert sorted(each.path.parts[-5] for each in duplicate_runs(records)) == ["a", "c"]


def test_reading_and_judging_need_neither_torch_nor_a_plotting_library():
    heavy = ("torch", "lightning", "scipy", "matplotlib", "jinja2", "pandas", "tensorboard", "yaml", "rich")
    code = f"import sys, zoo.compare.report; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_runs_behind_links_are_read_once(tmp_path):
    lay(ledger("default"), tmp_path / "runs")
    lay(ledger("position=t5"), tmp_path / "disk")
    moved = tmp_path / "disk/lm-tiny/position=t5"
    (tmp_path / "runs/lm-tiny/position=t5").symlink_to(moved, target_is_directory=True)
    (tmp_path / "runs/lm-tiny/again").symlink_to(moved, target_is_directory=True)
    (tmp_path / "runs/lm-tiny/circle").symlink_to(tmp_path / "runs", target_is_directory=True)
    assert sorted(group_by_variant(read_records(tmp_path / "runs"))) == ["default", "position=t5"]
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen/a").symlink_to(moved, target_is_directory=True)
    assert [*group_by_variant(read_records(tmp_path / "chosen"))] == ["position=t5"]
