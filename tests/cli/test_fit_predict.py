"""`zoo predict` writes down what a run says of each test sample."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from zoo.cli import main

SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2"]


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
    zoo("fit", "vit-glyphs", *SMALL, "--trainer.max_steps", "2", "--name", "short", *few)
    folder = tmp_path / "vit-glyphs" / "short" / "s1"
    output = zoo("predict", str(folder), "--runs", str(tmp_path))
    records = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert f"{len(records)} predictions" in output
    assert len(records) > 10
    assert all(set(record) == {"class", "probability", "label"} for record in records)


def test_a_language_model_says_what_to_do_instead(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    zoo("fit", "lm-tiny", *SMALL, *words, "--data.path", str(tmp_path / "text.txt"))
    output = zoo("predict", str(tmp_path / "lm-tiny" / "short" / "s1"), "--runs", str(tmp_path), code=2)
    assert "zoo test" in output
    assert len(output.strip().splitlines()) <= 4


def test_figures_of_other_data_than_those_of_training_are_called_so(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the quick brown fox {number} jumps over the lazy dog\n" for number in range(60)))
    zoo("fit", "lm-tiny", *SMALL, *words, "--data.path", str(text))
    run = str(tmp_path / "lm-tiny" / "short" / "s1")
    assert "warning" not in zoo("validate", run)
    text.write_text(text.read_text()[:-300])
    assert "the data are not those that the run was trained with" in zoo("validate", run)


@pytest.mark.parametrize("scheme", ["chars", "bpe", "bytes"])
def test_a_model_is_not_measured_by_another_vocabulary(scheme, zoo, tmp_path):
    texts = {name: tmp_path / f"{name}.txt" for name in ("mine", "theirs")}
    texts["mine"].write_text("".join(f"the quick brown fox {number} jumps over the dog\n" for number in range(60)))
    texts["theirs"].write_text("".join(f"dog over the brown fox {number} quick\n" for number in range(60)))
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    words += ["--data.tokenizer", scheme, "--data.vocab_size", "300"]
    zoo("fit", "lm-tiny", *SMALL, *words, "--data.path", str(texts["mine"]))
    run = tmp_path / "lm-tiny" / "short" / "s1"
    other = ["validate", str(run), "--data.path", str(texts["theirs"])]
    if scheme == "bytes":  # the same for every text
        assert "val/loss" in zoo(*other)
        return
    message = zoo(*other, code=2)
    assert "tokenizer of the data is not that of" in message or "vocab_size" in message, message
    assert f"--data.tokenizer {run}" in message or "--data.tokenizer RUN" in message
    assert "val/loss" in zoo(*other, "--data.tokenizer", str(run))


@pytest.mark.parametrize("size", ["280", "320"])
def test_a_resume_on_data_of_another_vocabulary_changes_no_file(zoo, tmp_path, size):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the quick brown fox {number} jumps over the dog\n" for number in range(400)))
    words = ["fit", "lm-tiny", *SMALL, "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    words += ["--data.path", str(text), "--data.tokenizer", "bpe"]
    zoo(*words, "--data.vocab_size", "300", "--trainer.max_steps", "1")
    run = tmp_path / "lm-tiny" / "short" / "s1"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = ["--data.vocab_size", size, "--trainer.max_steps", "2", "--resume", "--accept-changes"]
    assert f"has vocab_size 300, and these data make it {size}" in zoo(*words, *other, code=2)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_resume_on_other_tokens_of_the_same_number_changes_no_file(zoo, tmp_path):
    words = ["fit", "lm-tiny", *SMALL, "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    words += ["--data.tokenizer", "bpe", "--data.vocab_size", "290"]
    for name, line in {"mine": "the quick brown fox {} jumps", "theirs": "over {} lazy dogs she stood"}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{line.format(number)}\n" for number in range(400)))
    zoo(*words, "--data.path", str(tmp_path / "mine.txt"), "--trainer.max_steps", "1")
    run = tmp_path / "lm-tiny" / "short" / "s1"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = ["--data.path", str(tmp_path / "theirs.txt"), "--trainer.max_steps", "2", "--resume", "--accept-changes"]
    message = zoo(*words, *other, code=2)
    assert f"the tokenizer of the data is not that of {run}" in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    zoo(*words, *other, "--data.tokenizer", str(run))


def test_a_translation_is_measured_on_other_pairs_by_the_vocabulary_of_its_training(zoo, tmp_path):
    for folder, word in {"mine": "red", "theirs": "green", "same": "red"}.items():
        (tmp_path / folder).mkdir()
        for split in ("train", "val", "test"):
            noun = "fish" if folder == "same" and split != "train" else "bird"
            for language in ("en", "de"):
                lines = [f"{word} {noun} {language} {number} {split}\n" for number in range(40)]
                (tmp_path / folder / f"{split}.{language}").write_text("".join(lines))
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "ParallelFiles"]
    words += ["--data.vocab_size", "290", *SMALL]
    zoo("fit", "translation-tiny", *words, "--data.path", str(tmp_path / "mine"))
    run = str(tmp_path / "translation-tiny" / "short" / "s1")
    theirs = ["--data.path", str(tmp_path / "theirs")]
    message = zoo("validate", run, *theirs, code=2)
    assert "tokenizer of the data is not that of" in message
    assert f"--data.options.tokenizer {run}" in message
    assert "val/loss" in zoo("validate", run, "--data.path", str(tmp_path / "same"))
    for command in ("validate", "test", "predict"):
        zoo(command, run, *theirs, "--data.options.tokenizer", run)
    changed = ["fit", "translation-tiny", *words, *theirs, "--name", "on", "--tune.start", run]
    assert f"tune.start: the tokenizer of the data is not that of {run}" in zoo(*changed, code=2)
    zoo(*changed, "--data.options.tokenizer", run)
    fates = (tmp_path / "translation-tiny" / "on" / "s1" / "start.tsv").read_text()
    assert "new" not in fates
    own = ["--data.options.test", str(tmp_path / "theirs" / "test")]  # the own training files, other pairs to test
    assert "test/loss" in zoo("test", run, *own)


def test_data_without_the_option_say_what_can_be_changed(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), *SMALL]
    zoo("fit", "translation-tiny", *words, "--data.size", "200", "--data.vocab_size", "290")
    message = zoo("validate", str(tmp_path / "translation-tiny" / "short" / "s1"), "--data.size", "300", code=2)
    assert "keep those of the run, and change the other splits alone" in message
    assert ".tokenizer" not in message


def draw_classes(root, **folders):
    """Folders of grey images for `ImageFolder`, with these classes."""
    for folder, names in folders.items():
        for number, name in enumerate(names):
            for split in ("train", "val"):
                (root / folder / split / name).mkdir(parents=True)
                for image in range(4):
                    pixels = np.full((8, 8, 3), 40 * number + image, dtype=np.uint8)
                    Image.fromarray(pixels).save(root / folder / split / name / f"{image}.png")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A run that tells three classes apart, and the options of its kind of data."""
    home = tmp_path_factory.mktemp("classes")
    draw_classes(home, mine=("ape", "bee", "cow"))
    words = ["--trainer.max_steps", "1", "--data", "ImageFolder", "--data.image_size", "8"]
    runs = ["--data.path", str(home / "mine"), "--name", "mine", "--runs", str(home)]
    assert main(["fit", "vit-tiny", *SMALL, *words, *runs]) == 0
    return home / "vit-tiny" / "mine" / "s1", words


@pytest.mark.parametrize(
    ("names", "new"),
    [(("ape", "bee", "cow"), False), (("bee", "cow", "dog"), True), (("Ape", "bee", "cow"), True),
     (("ape", "bee"), True), (("ape", "bee", "cow", "dog"), True)],
)  # fmt: skip
def test_a_head_is_kept_for_equal_classes_alone(names, new, zoo, classifier, tmp_path, caplog):
    draw_classes(tmp_path, theirs=names)
    run, words = classifier
    start = ["--data.path", str(tmp_path / "theirs"), "--name", "theirs", "--tune.start", str(run)]
    zoo("fit", "vit-tiny", *SMALL, *words, *start, "--runs", str(tmp_path))
    lines = (tmp_path / "vit-tiny" / "theirs" / "s1" / "start.tsv").read_text().splitlines()
    fates = {name: fate for fate, name, _ in (line.split("\t") for line in lines[1:])}
    assert {name for name, fate in fates.items() if fate == "new"} == ({"head.weight", "head.bias"} if new else set())
    same_number = new and len(names) == 3
    assert ("What belongs to classes is new: head.bias, head.weight" in caplog.text) == same_number


def test_a_classifier_is_not_measured_by_other_classes(zoo, classifier, tmp_path):
    draw_classes(tmp_path, theirs=("bee", "cow", "dog"))
    message = zoo("validate", str(classifier[0]), "--data.path", str(tmp_path / "theirs"), code=2)
    assert "classes of the data are not those of" in message
    assert "class 0 is 'bee' here and 'ape' there" in message


def test_images_are_normalised_as_those_of_training(zoo, tmp_path):
    """The same validation images beside brighter images of training: the same figures."""
    draw = np.random.default_rng(0)
    for folder, light in {"mine": 0, "theirs": 120}.items():
        for number, name in enumerate(("ape", "bee")):
            for split in ("train", "val"):
                (tmp_path / folder / split / name).mkdir(parents=True)
                for image in range(6):
                    dark = np.random.default_rng([number, image]).integers(0, 120, (8, 8, 3))
                    pixels = dark if split == "val" else draw.integers(0, 120, (8, 8, 3)) + light
                    place = tmp_path / folder / split / name / f"{image}.png"
                    Image.fromarray(pixels.astype(np.uint8)).save(place)
    words = ["--trainer.max_steps", "3", "--name", "short", "--runs", str(tmp_path), "--data", "ImageFolder"]
    zoo("fit", "vit-tiny", *SMALL, *words, "--data.image_size", "8", "--data.path", str(tmp_path / "mine"))
    run = str(tmp_path / "vit-tiny" / "short" / "s1")
    figures = [
        re.search(r"^val/loss \S+$", zoo("validate", run, "--data.path", str(tmp_path / name)), re.M)[0]
        for name in ("mine", "theirs")
    ]
    assert figures[0] == figures[1]


NAN_PART = '''
from zoo.parts.norm import RMSNorm


class Odd(RMSNorm):
    """nan for batches of some sizes in evaluation."""

    def forward(self, x):
        y = super().forward(x)
        return y if self.training or x.shape[0] in ({fine}) else y * float("nan")
'''


@pytest.mark.parametrize(("fine", "wrong"), [("1, 8", "1 batch "), ("1, 5", "batches "), ("1,", "batches ")])
def test_a_loss_that_is_nan_in_some_batches_is_no_figure(zoo, tmp_path, monkeypatch, fine, wrong):
    monkeypatch.chdir(tmp_path)
    name = f"odd_{abs(hash(fine))}"
    (tmp_path / f"{name}.py").write_text(NAN_PART.format(fine=fine))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 65)
    size = ["--data.tokenizer", "chars", "--data.max_length", "8", "--data.batch_size", "8", "--model.dim", "16"]
    part = ["--model.norm", f"{name}.Odd", "--allow-import", name, "--on-imprecise", "warn", "--name", "odd"]
    few = ["--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--data", "TextFiles"]
    output = zoo("fit", "lm-tiny", *few, "--data.path", "text.txt", *size, *part, "--model.depth", "1")
    assert "is not a number (nan)" in output
    assert [*json.loads((tmp_path / "runs/lm-tiny/odd/s1/finished.json").read_text())] == ["step"]
    ledger = json.loads((tmp_path / "runs/lm-tiny/odd/s1/ledger.json").read_text())
    assert ledger["validations"][-1]["loss"] is None
    for command in ("validate", "test"):
        output = zoo(command, "runs/lm-tiny/odd/s1", "--allow-import", name, code=4)
        assert wrong in output
        assert "/loss " not in output
        assert "UserWarning" not in output


def test_a_checkpoint_file_is_measured_and_what_has_no_data_is_refused(zoo, tmp_path):
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    home = tmp_path / "lm-tiny" / "short" / "s1"
    zoo("fit", "lm-tiny", *SMALL, *words, "--data.path", str(tmp_path / "text.txt"), "--model.optimizer", "SGD")
    figures = [line for line in zoo("test", str(home)).splitlines() if line.startswith("test/")]
    output = zoo("test", str(home / "checkpoints" / "last.ckpt"))
    assert figures == [line for line in output.splitlines() if line.startswith("test/")]
    assert "differs from" not in output  # SGD's momentum is 0 in its signature, and 0.0 in a file
    moved = tmp_path / "moved.ckpt"
    shutil.copy(home / "checkpoints" / "last.ckpt", moved)
    path = ["--data", "TextFiles", "--data.path", str(tmp_path / "text.txt"), "--model.dim", "32"]
    output = zoo("test", "lm-tiny", *path, "--ckpt_path", str(moved), code=5)
    assert "belongs to another model" in output
    assert "Traceback" not in output
    zoo("export", str(home), str(tmp_path / "export"))
    for command in ("test", "fit"):
        assert "says nothing of data" in zoo(command, str(tmp_path / "export"), code=2)
    assert "is a file of weights" in zoo("fit", str(home / "checkpoints" / "last.ckpt"), code=2)


def test_a_vocabulary_that_the_text_cannot_fill_is_said_when_it_is_learned(zoo, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    words = ["--trainer.max_steps", "1", "--name", "short", "--runs", str(tmp_path), "--data", "TextFiles"]
    size = ["--data.tokenizer", "bpe", "--data.vocab_size", "4321"]
    zoo("fit", "lm-tiny", *SMALL, *words, "--data.path", str(tmp_path / "text.txt"), *size)
    assert "vocab_size is 4321, and the text gives 2" in caplog.text


def test_an_option_of_one_of_several_callbacks_says_where_it_belongs(zoo, tmp_path):
    (tmp_path / "c.yaml").write_text("trainer: {callbacks: [EMA]}\n")
    words = ["-c", str(tmp_path / "c.yaml"), "--trainer.callbacks.decay", "0.5", "--print_config"]
    output = zoo("fit", "lm-tiny", *words, code=2)
    assert "means one of the callbacks of a list" in output
    assert "trainer.callbacks: [{class_path: NAME, init_args: {decay: …}}]" in output
