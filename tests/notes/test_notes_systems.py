"""Dialogue, several languages in one model, and long texts, trained as their recipes say, beside simple baselines."""

import json
from collections import Counter

import pytest

import zoo
from zoo.cli import main
from zoo.data.dialogue import Turn
from zoo.data.librarychat import LibraryDialogues
from zoo.data.phrasebook import MultilingualPhrasebook


def validated(folder, recipe, *options):
    """The newest metrics of a run of the command, and its folder."""
    assert main(["fit", recipe, "--runs", str(folder), "--trainer.enable_progress_bar", "false", *options]) == 0
    (record,) = folder.rglob("finished.json")
    return json.loads(record.read_text()), record.parent


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
def test_one_model_translates_into_each_of_four_languages_better_than_copying(tmp_path):
    pairs = MultilingualPhrasebook().corpus()["val"]
    metrics, _ = validated(tmp_path, "multilingual-tiny")
    for locale in ("de", "fr", "es", "it"):
        own = [pair for pair in pairs if pair.language == locale]
        copied = sum(pair.source == pair.target for pair in own) / len(own)
        assert copied < 0.1
        assert metrics[f"val/exact_{locale}"] > 0.7


@pytest.mark.campaign
def test_reading_all_blocks_of_a_long_text_beats_reading_its_beginning(tmp_path):
    metrics, _ = validated(tmp_path / "long", "long-topics-tiny")
    words = ["--data", "SourceTopics", "--data.batch_size", "16", "--model.depth", "2"]
    beginning, _ = validated(tmp_path / "beginning", "topics-tiny", *words, "--data.max_length", "64")
    assert metrics["val/accuracy"] > beginning["val/accuracy"] + 0.1
