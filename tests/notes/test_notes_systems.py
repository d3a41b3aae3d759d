"""Several languages in one model, trained as the recipe says, beside a simple baseline."""

import json

import pytest

from zoo.cli import main
from zoo.data.phrasebook import MultilingualPhrasebook


def validated(folder, recipe, *options):
    """The newest metrics of a run of the command, and its folder."""
    assert main(["fit", recipe, "--runs", str(folder), "--trainer.enable_progress_bar", "false", *options]) == 0
    (record,) = folder.rglob("finished.json")
    return json.loads(record.read_text()), record.parent


@pytest.mark.campaign
def test_one_model_translates_into_each_of_four_languages_better_than_copying(tmp_path):
    pairs = MultilingualPhrasebook().corpus()["val"]
    metrics, _ = validated(tmp_path, "multilingual-tiny")
    for locale in ("de", "fr", "es", "it"):
        own = [pair for pair in pairs if pair.language == locale]
        copied = sum(pair.source == pair.target for pair in own) / len(own)
        assert copied < 0.1
        assert metrics[f"val/exact_{locale}"] > 0.7
