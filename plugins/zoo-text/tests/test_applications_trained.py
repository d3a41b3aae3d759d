"""Every application of the package is a recipe of the same parts; dialogue and long texts beside simple baselines."""

import json
from collections import Counter

import pytest
from text_helpers import SMALL
from zoo_text.data.librarychat import LibraryDialogues

import zoo
from zoo.cli import main
from zoo.data.conversation import Turn


def validated(folder, recipe, *options):
    """The newest metrics of a run of the command, and its folder."""
    assert main(["fit", recipe, "--runs", str(folder), "--trainer.enable_progress_bar", "false", *options]) == 0
    (record,) = folder.rglob("finished.json")
    return json.loads(record.read_text()), record.parent


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("summary-tiny", []),
        pytest.param("questions-tiny", [], marks=pytest.mark.campaign),
        ("roles-tiny", ["--data.pieces", "200"]),
        pytest.param("bart-style-tiny", [], marks=pytest.mark.campaign),
        ("t5-style-tiny", []),
    ],
)
def test_every_application_is_a_recipe_of_the_same_parts(recipe, options, tmp_path):
    steps = ["--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--trainer.limit_val_batches", "1"]
    words = [*SMALL, *steps, *options]
    if recipe != "roles-tiny":
        words += ["--data.eval_limit", "1"]
    assert 0 < validated(tmp_path, recipe, *words)[0]["val/loss"] < 20


@pytest.mark.campaign
def test_a_dialogue_of_three_turns_is_held_about_facts_of_the_library(tmp_path):
    data = LibraryDialogues()
    splits = data.conversations()
    commonest = Counter(turn.text for one in splits["train"] for turn in one[1::2]).most_common(1)[0][0]
    answers = [turn.text for one in splits["val"] for turn in one[1::2]]
    assert sum(answer == commonest for answer in answers) / len(answers) < 0.2
    metrics, run = validated(tmp_path, "dialogue-tiny")
    assert metrics["val/exact"] > 0.9
    model, right = zoo.load(run), 0
    for conversation in splits["test"][:50]:  # with its own answers, and not the true ones, before it
        turns = []
        for question in conversation[::2]:
            turns.append(question)
            turns.append(Turn("assistant", model.chat(turns).text))
        right += tuple(turns) == tuple(conversation)
    assert right > 35


@pytest.mark.campaign
def test_reading_all_blocks_of_a_long_text_beats_reading_its_beginning(tmp_path):
    metrics, _ = validated(tmp_path / "long", "long-topics-tiny")
    words = ["--data", "SourceTopics", "--data.batch_size", "16", "--model.depth", "2"]
    beginning, _ = validated(tmp_path / "beginning", "topics-tiny", *words, "--data.max_length", "64")
    assert metrics["val/accuracy"] > beginning["val/accuracy"] + 0.1
