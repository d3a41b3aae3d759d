"""The scoreboard's folder: its report, and its part of TensorBoard."""

import re

import pytest
from fabricate import lay, ledger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_report import Balanced
from test_scoreboard import RECIPES, board
from zoo_designs import scoreboard, scoreboard_folder
from zoo_designs.scoreboard_folder import load_members, save_members, scoreboard_path

from zoo.compare import run_records, tensorboard_summary
from zoo.compare.tensorboard_summary import tensorboard_folder
from zoo.errors import UsageError


@pytest.fixture(scope="module")
def result():
    return board((-0.1, -0.02, 0.03), more={"norm=none": 1.9})


def test_the_report_is_complete_and_needs_nothing_else(result, tmp_path):
    files = scoreboard.write_report(result, {"lm-tiny": tmp_path / "lm-tiny"}, tmp_path / "board")
    assert {path.name for path in files} == {
        "scoreboard.md", "scoreboard.csv", "scoreboard.json", "scoreboard.html", "improvement.png", "scores.png",
    }  # fmt: skip
    text = (tmp_path / "board" / "scoreboard.html").read_text()
    parsed = Balanced(text)
    links = [attrs["href"] for tag, attrs in parsed.tags if tag == "a"]
    assert links == ["../lm-tiny/comparison.html"]
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink)\")", text)
    words = " ".join(parsed.text)
    for expected in ("P(improvement)", "Over all tasks", "Every recipe", "Every run, by task", "stratified", *RECIPES):
        assert expected in words


def test_tensorboard_has_a_run_per_variant_and_a_figure_per_task(result, tmp_path):
    scoreboard_folder.write_summary(tmp_path, result)
    scoreboard_folder.write_summary(tmp_path, result)  # replaces the earlier one
    folder = tmp_path / tensorboard_summary.NAME
    events = EventAccumulator(str(folder / "RMSNorm")).Reload()
    tags = events.Tags()["scalars"]
    assert tags == [f"scoreboard/{name}" for name in (*RECIPES, "all tasks", "P(improvement)")]
    value = events.Scalars("scoreboard/P(improvement)")
    assert [each.value for each in value] == pytest.approx([result.rows[1].improvement.value])
    assert "_hparams_/session_start_info" in events.summary_metadata
    text = EventAccumulator(str(folder)).Reload().Tensors("scoreboard/text_summary")[0].tensor_proto.string_val[0]
    assert b"| RMSNorm |" in text


def test_tensorboard_shows_the_runs_of_every_recipe_beside_the_scoreboard(tmp_path):
    members = {}
    for recipe in ("a", "b"):
        runs = [lay(ledger(name, seed, choices={"norm": name.removeprefix("norm=")}, recipe=recipe), tmp_path).parent
                for name in ("default", "norm=x") for seed in (1, 2)]  # fmt: skip
        home = run_records.comparison_path(tmp_path, recipe, "norm")
        run_records.save_record(home, run_records.Record(tuple(runs), "default"))
        members[home] = {"default": "default", "norm=x": "x"}
    place = scoreboard_path(tmp_path, ["a", "b"], "norm")
    save_members(place, members, "zoo compare a b")
    (place / "tensorboard").mkdir()
    assert load_members(place) == (members, "zoo compare a b")
    with tensorboard_folder(place) as (folder, pinned):
        links = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*/s*"))
        assert links == sorted(f"{recipe}/{name}/s{s}" for recipe in "ab" for name in ("norm=default", "norm=x")
                               for s in (1, 2))  # fmt: skip
        assert (folder / "scoreboard").resolve() == place / "tensorboard"
        assert pinned[:3] == ("scoreboard/all tasks", "scoreboard/P(improvement)", "val/loss")


@pytest.mark.parametrize("content", ["{", "[]", '{"comparisons": [{"folder": "x"}], "command": ""}'])
def test_a_damaged_record_is_refused(tmp_path, content):
    (tmp_path / scoreboard_folder.SCOREBOARD).write_text(content)
    with pytest.raises(UsageError, match="is damaged"):
        load_members(tmp_path)


def test_the_order_in_which_recipes_are_named_makes_no_other_scoreboard(tmp_path):
    places = {}
    for recipes in (["a", "b"], ["b", "a"], ["a", "b", "c"], ["a", "c"]):
        members = {tmp_path / recipe / "compare" / "norm": {"default": "x"} for recipe in recipes}
        places["".join(recipes)] = scoreboard_path(tmp_path, recipes, "norm")
        save_members(places["".join(recipes)], members, "zoo compare")
    again = scoreboard_path(tmp_path, ["a", "b"], "again")
    save_members(again, {tmp_path / each / "compare" / "again": {} for each in ("a", "b")}, "zoo compare")
    assert scoreboard_folder.same_recipes(places["ab"]) == sorted([places["ab"], places["ba"], again])
    (places["ba"] / scoreboard_folder.SCOREBOARD).write_text("{")
    assert scoreboard_folder.same_recipes(places["ab"]) == sorted([places["ab"], again])
    assert scoreboard_folder.same_recipes(tmp_path / "compare" / "other" / "norm") == []
