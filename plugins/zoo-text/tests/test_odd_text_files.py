"""Files of texts with classes, of dialogues and of pairs: what is odd is read, named or refused."""

import gzip
import json
import logging
import unicodedata

import numpy as np
import pytest
from zoo_text.data.dialogue import DialogueFiles
from zoo_text.data.labelledfiles import LabelledFiles
from zoo_text.data.preferences import PreferenceFiles

from zoo.cli import main
from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError

LINES = [f"a sentence of {n} words" for n in range(40)]
GOOD = "".join(f"{line}\n" for line in LINES).encode()
TABLE = "".join(f"{'ab'[n % 2]}\t{line}\n" for n, line in enumerate(LINES)).encode()


def line(number, content, lines):
    """Lines of which one is replaced."""
    result = lines.split(b"\n")
    result[number - 1] = content
    return b"\n".join(result)


def refused(make, message):
    """Building the data is refused in at most four lines, one of which says this."""
    with pytest.raises(UsageError) as caught:
        make().setup()
    text = str(caught.value)
    assert message in text
    assert len(text.splitlines()) <= 4


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "is not on disk"),
        ("file", "has no column 'text'; it has 'a', 'b'"),
        ("folder", "data.csv has no column 'text'"),
        ("empty", "holds nothing"),
    ],
)
def test_the_place_is_called_what_it_is(kind, message, tmp_path):
    place = tmp_path / "place.csv"
    if kind == "file":
        place.write_text("a,b\n")
    elif kind != "missing":
        place.mkdir()
        if kind == "folder":
            (place / "data.csv").write_text("a,b\n")
    with pytest.raises(UsageError, match=message):
        LabelledFiles(str(place)).ready()


BROKEN_TABLES = {
    "no tab": (line(3, b"a text", TABLE), "train.tsv:3"), "no class": (line(3, b"\ta text", TABLE), "train.tsv:3"),
    "no text": (line(3, b"a\t ", TABLE), "train.tsv:3"), "a blank line": (line(3, b"", TABLE), "train.tsv:3"),
    "not UTF-8": (line(3, b"a\tcaf\xe9", TABLE), "train.tsv:3"),
    "UTF-16": (TABLE.decode().encode("utf-16"), "train.tsv:1"),
    "empty": (b"", "train.tsv"), "a NUL": (line(3, b"a\tx\0y", TABLE), "train.tsv:3"),
    "one class": (TABLE.replace(b"b\t", b"a\t"), "single class"), "one text": (b"a\tb\n", "single class"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_TABLES)
def test_broken_tables_of_labels(tmp_path, name):
    content, message = BROKEN_TABLES[name]
    (tmp_path / "train.tsv").write_bytes(content)
    refused(lambda: LabelledFiles(str(tmp_path), vocab_size=300), message)


def test_a_class_that_training_has_not(tmp_path):
    (tmp_path / "train.tsv").write_bytes(TABLE)
    (tmp_path / "val.tsv").write_bytes(b"c\tanother\n")
    refused(lambda: LabelledFiles(str(tmp_path), vocab_size=300), "'c'")


@pytest.mark.parametrize("source", [DialogueFiles, PreferenceFiles])
def test_a_folder_without_tables_is_refused(tmp_path, source):
    Tokenizer.bytes([EOS]).save(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"the folder .* holds 1 .json .*, and no table"):
        source(str(tmp_path), tokenizer=str(tmp_path)).ready()


@pytest.mark.parametrize("seed", range(6))
def test_equal_texts_are_on_one_side_and_each_class_is_in_training(tmp_path, seed):
    draw = np.random.default_rng(seed)
    classes = ["a", "b", "rare", unicodedata.normalize("NFD", "caf\u00e9"), "caf\u00e9"]
    rows = [
        f"{classes[int(draw.integers(5)) if n > 9 else n % 2]}\ttext {n % int(draw.integers(20, 40))}"
        for n in range(80)
    ]
    header = ["label\ttext"] * (seed % 2)
    (tmp_path / "train.tsv").write_text("\n".join([*header, *rows, "single\tthe only one of its class"]), "utf-8")
    texts = LabelledFiles(str(tmp_path), val_fraction=float(draw.choice([0.05, 0.3, 0.6]))).texts()
    sides = [{one.text for one in texts[split]} for split in ("train", "val")]
    assert not sides[0] & sides[1]
    labels = {one.label for one in texts["train"]}
    assert "single" in labels
    assert "label" not in labels
    assert sum(label.startswith("caf") for label in labels) <= 1
    assert {one.label for one in texts["val"]} <= labels
    assert len(texts["train"]) + len(texts["val"]) == 81


@pytest.mark.parametrize("first", ["label\ttext", "Category\tSentence", "y\tx", "star_rating\treview"])
def test_a_header_is_left_out_and_named(tmp_path, first, caplog):
    (tmp_path / "train.tsv").write_text(f"{first}\n" + "".join(f"{n % 2}\ta text of {n}\n" for n in range(20)))
    with caplog.at_level(logging.WARNING):
        texts = LabelledFiles(str(tmp_path)).texts()
    assert {one.label for split in texts.values() for one in split} == {"0", "1"}
    assert "left out as the header" in caplog.text


@pytest.mark.parametrize("first", ["label\ta text of 99", "0\ttext", "topic\ttext\nx\ty\ntopic\tz"])
def test_what_only_looks_like_a_header_stays(tmp_path, first):
    (tmp_path / "train.tsv").write_text(f"{first}\n" + "".join(f"{n % 2}\ta text of {n}\n" for n in range(20)))
    texts = LabelledFiles(str(tmp_path)).texts()
    assert len(texts["train"]) + len(texts["val"]) == 20 + first.count("\n") + 1


@pytest.mark.parametrize("source", ["dialogue", "preference"])
def test_equal_lines_are_on_one_side(tmp_path, source):
    lines = []
    for n in range(60):
        number = n % 17
        turns = [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"}]
        pair = {"prompt": f"q{number}", "chosen": "yes", "rejected": "no"}
        lines.append(json.dumps({"messages": turns} if source == "dialogue" else pair))
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    Tokenizer.bytes([EOS]).save(tmp_path / "tokenizer.json")
    kind = DialogueFiles if source == "dialogue" else PreferenceFiles
    data = kind(str(tmp_path / "x.jsonl"), tokenizer=str(tmp_path), val_fraction=0.3)
    data.ready()

    def contents(split):
        key = "inputs" if source == "dialogue" else "chosen"
        return {tuple(data.datasets[split][n][key][0].tolist()) for n in range(len(data.datasets[split]))}

    assert not contents("train") & contents("val")


@pytest.mark.parametrize("role", ["tool", "developer", "human"])
def test_a_role_without_tokens_is_named(role, tmp_path):
    turns = [{"role": one, "content": "a"} for one in (role, "user", "assistant")]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    with pytest.raises(UsageError, match=f"chat.jsonl:1: message 1 has the role '{role}'"):
        DialogueFiles(str(tmp_path / "chat.jsonl")).conversations()


def test_a_table_beside_odd_files_is_found_and_the_others_are_named(tmp_path, caplog):
    lines = [f"{'ab'[n % 2]}\tthis is text {n}" for n in range(40)]
    (tmp_path / "TRAIN.TSV.GZ").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "valid.tsv").write_text("\n".join(lines[:5]))
    (tmp_path / "scan.pdf").write_bytes(b"%PDF")
    (tmp_path / "deep").mkdir()
    with caplog.at_level(logging.WARNING):
        LabelledFiles(str(tmp_path), vocab_size=300).ready()
    messages = [record.getMessage() for record in caplog.records]
    assert sum("left out" in one and "scan.pdf" in one for one in messages) == 1
    assert any("5 of 5 val texts are texts of training, too" in one for one in messages)


@pytest.mark.parametrize(
    ("recipe", "remedy"),
    [
        ("topics-tiny", "--data LabelledFiles"),
        ("mlm-tiny", "--data.text TextFiles"),
        ("dialogue-tiny", "--data DialogueFiles"),
    ],
)
def test_an_option_of_other_data_offers_data_of_the_same_sort(recipe, remedy, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", recipe, "--data.path", "place"]) == 2
    assert f"Add {remedy}" in capsys.readouterr().err


def test_the_path_of_data_made_of_a_text_is_that_of_the_text(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "bert-base"]) == 2
    assert "Give another: --data.text.path PLACE" in capsys.readouterr().err
