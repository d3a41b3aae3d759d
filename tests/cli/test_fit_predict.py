"""`zoo predict` writes down what a run says of each test sample."""

import json

import pytest

from zoo.cli import main


@pytest.fixture
def zoo(capsys):
    """Run a command in this process: all that it prints."""

    def run(*words, code=0):
        result = main([*words])
        output = "".join(capsys.readouterr())
        assert result == code, output
        return output

    return run


def test_predictions_of_images_are_kept_with_their_labels(zoo, tmp_path):
    few = ["--data.size", "300", "--runs", str(tmp_path)]
    zoo("fit", "vit-glyphs", "--trainer.max_steps", "2", "--name", "short", *few)
    folder = tmp_path / "vit-glyphs" / "short" / "s1"
    output = zoo("predict", str(folder), "--runs", str(tmp_path))
    records = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert f"{len(records)} predictions" in output
    assert len(records) > 10
    assert all(set(record) == {"class", "probability", "label"} for record in records)


def test_a_language_model_says_what_to_do_instead(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    zoo("fit", "lm-tiny", *words, "--data.path", str(tmp_path / "text.txt"))
    output = zoo("predict", str(tmp_path / "lm-tiny" / "short" / "s1"), "--runs", str(tmp_path), code=2)
    assert "zoo test" in output
    assert len(output.strip().splitlines()) <= 4


def test_figures_of_other_data_than_those_of_training_are_called_so(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the quick brown fox {number} jumps over the lazy dog\n" for number in range(60)))
    zoo("fit", "lm-tiny", *words, "--data.path", str(text))
    run = str(tmp_path / "lm-tiny" / "short" / "s1")
    assert "warning" not in zoo("validate", run)
    text.write_text(text.read_text()[:-300])
    assert "the data are not those that the run was trained with" in zoo("validate", run)
