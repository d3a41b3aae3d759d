"""Texts with classes and tags, conversations and preferences by the columns of tables."""

import json

import numpy as np
import pytest
from zoo_text.data.dialogue import DialogueFiles
from zoo_text.data.labelledfiles import LabelledFiles
from zoo_text.data.preferences import PreferenceFiles
from zoo_text.data.taggedfiles import TaggedFiles
from zoo_text.data.textpairs import TextPairFiles

from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError


def write_rows(path, rows):
    """The rows in the format that a file's name says: JSON lines, CSV, TSV, Parquet."""
    if path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(mark.join(map(str, row)) + "\n" for row in [rows[0], *map(dict.values, rows)]))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")
        parquet = pytest.importorskip("pyarrow.parquet", reason="writes Parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "train.tsv", "train.csv"])
@pytest.mark.parametrize("stars", [True, False])
def test_texts_with_classes_by_columns(tmp_path, name, stars):
    rows = [{"id": n, "body": f"text number {n}", "stars": n % 3 if stars else "abc"[n % 3]} for n in range(90)]
    write_rows(tmp_path / name, rows)
    path = tmp_path if name.startswith("train") else tmp_path / name
    data = LabelledFiles(str(path), columns={"text": "body", "label": "stars"}, vocab_size=300, seed=0)
    texts = [text for split in data.texts().values() for text in split]
    assert {(text.text, text.label) for text in texts} == {(row["body"], str(row["stars"])) for row in rows}
    data.ready()
    assert data.names == (["0", "1", "2"] if stars else ["a", "b", "c"])


def test_the_order_of_columns_is_that_of_the_header(tmp_path):
    write_rows(tmp_path / "train.tsv", [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(40)])
    assert {text.label for text in LabelledFiles(str(tmp_path)).texts()["train"]} == {"a", "b"}


def test_labels_that_are_none_are_named(tmp_path):
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(40)]
    for label, message in (
        (None, "jsonl:41: the label is null"), (1.5, "jsonl:41: the label is a number and not a text"),
        (-1, "jsonl:41: the label is -1"), ("1", "of another kind than before"), (" ", "jsonl:41: the label is blank"),
        ([1], "the label is a list"),
    ):  # fmt: skip
        write_rows(tmp_path / "a.jsonl", [*rows, {"text": "a", "label": label}])
        with pytest.raises(UsageError, match=message):
            LabelledFiles(str(tmp_path / "a.jsonl")).texts()
    with pytest.raises(UsageError, match="columns has 'body': it names the columns of text, label"):
        LabelledFiles(str(tmp_path / "a.jsonl"), columns={"body": "text"})


def test_a_split_to_test_without_labels_is_left_out(tmp_path, caplog):
    write_rows(tmp_path / "train.jsonl", [{"text": f"text {n}", "label": n % 2} for n in range(40)])
    write_rows(tmp_path / "test.jsonl", [{"text": f"test {n}", "label": -1} for n in range(5)])
    assert set(LabelledFiles(str(tmp_path)).texts()) == {"train", "val"}
    assert "none of the 5 test rows has a label" in caplog.text
    write_rows(tmp_path / "test.jsonl", [{"text": f"test {n}", "label": n - 1} for n in range(3)])
    with pytest.raises(UsageError, match="another kind"):
        LabelledFiles(str(tmp_path)).texts()


@pytest.mark.parametrize("kind", [LabelledFiles, TaggedFiles, PreferenceFiles, DialogueFiles, TextPairFiles])
def test_data_of_a_tokenizer_that_splits_special_tokens_are_others(tmp_path, kind):
    (tmp_path / "files").mkdir()
    options, prints = kind.sample_files(tmp_path / "files", 0), set()
    inner = Tokenizer.bpe(["one two"], 270, ["<cls>", "<sep>", "<pad>", "<mask>", "<bos>", "<eos>"]).inner
    for splits in (False, True):
        (tmp_path / f"{splits}").mkdir()
        names = {token: token for token in ("<cls>", "<sep>", "<pad>", "<mask>", "<bos>", "<eos>")}
        Tokenizer(inner, names, splits).save(tmp_path / f"{splits}" / "tokenizer.json")
        data = kind(**options | {"tokenizer": str(tmp_path / f"{splits}"), "seed": 0})
        data.ready()
        prints.add(data.fingerprint())
    assert len(prints) == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_tag_stands_at_the_first_token_of_its_word(tmp_path, seed):
    draw = np.random.default_rng(seed)
    letters = ["a", "bc", "é", "🦊", "-", "Ada", "."]
    rows = []
    for _ in range(80):
        words = ["".join(draw.choice(letters, draw.integers(1, 5))) for _ in range(draw.integers(1, 8))]
        rows.append({"tokens": words, "tags": [f"T{len(word) % 3}" for word in words]})
    write_rows(tmp_path / "train.jsonl", rows[:70])
    write_rows(tmp_path / "validation.jsonl", rows[70:])
    data = TaggedFiles(str(tmp_path), vocab_size=320, max_length=64, seed=0)
    data.ready()
    for split, own in (("train", rows[:70]), ("val", rows[70:])):
        batch = data.datasets[split].batch(np.arange(len(own)), 0)
        for row, labels in zip(own, batch["labels"].tolist(), strict=True):
            assert [data.names[label] for label in labels if label >= 0] == row["tags"]
    for row, message in (
        ({"tokens": ["a"], "tags": ["x", "y"]}, "1 tokens and 2 tags"), ({"tokens": "a", "tags": ["x"]}, "must be a l"),
        ({"tokens": ["a", None], "tags": ["x", "y"]}, "the token is null"), ({"tokens": [], "tags": []}, "must be a l"),
        ({"tokens": ["a", " "], "tags": ["x", "y"]}, "token 2 is b"), ({"tokens": ["a"], "tags": [-1]}, "tag is -1"),
    ):  # fmt: skip
        write_rows(tmp_path / "train.jsonl", [*rows, row])
        with pytest.raises(UsageError, match=f"train.jsonl:81.*{message}"):
            TaggedFiles(str(tmp_path), seed=0).ready()


def test_every_tag_trains_whichever_rows_validate_and_however_few_labels_are_taken(tmp_path):
    for place in range(30):
        rows = [{"tokens": [f"w{n}", "x"], "tags": ["RARE" if n == place else "A", "B"]} for n in range(30)]
        write_rows(tmp_path / "train.jsonl", rows)
        data = TaggedFiles(str(tmp_path), vocab_size=300, val_fraction=0.5, seed=0)
        data.ready()
        assert data.names == ["A", "B", "RARE"]
        assert len(data.datasets["val"]) == 15
    rows = [{"tokens": [f"w{n}", "x"], "tags": ["ABC"[n // 10], "B"]} for n in range(30)]
    write_rows(tmp_path / "train.jsonl", rows)
    few, whole = (TaggedFiles(str(tmp_path), vocab_size=300, labels=labels, seed=0) for labels in (5, None))
    assert few.sizes() == whole.sizes()
    assert len(few.datasets["train"]) == 5


@pytest.mark.parametrize("form", ["messages", "sharegpt", "renamed"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_both_forms_of_conversations_are_read(tmp_path, form, name):
    draw = np.random.default_rng(0)
    rows, expected = [], []
    for number in range(40):
        system = "Be brief." if draw.random() < 0.5 else ""
        turns = [
            (role, f"{role} {number} {turn}") for turn in range(draw.integers(1, 4)) for role in ("user", "assistant")
        ]
        texts = [text for _, text in turns]
        expected.append((f"{system}\n\n{texts[0]}" if system else texts[0], *texts[1:]))
        speakers = {"user": "human", "assistant": "gpt"} if form == "sharegpt" else {}
        whole = [("system", system)] * bool(system) + turns
        keys = ("from", "value") if form == "sharegpt" else ("role", "content")
        messages = [dict(zip(keys, (speakers.get(role, role), text), strict=True)) for role, text in whole]
        column = {"messages": "messages", "sharegpt": "conversations", "renamed": "chat"}[form]
        rows.append({"id": str(number), column: messages})
    write_rows(tmp_path / name, rows)
    if name == "a.json":
        (tmp_path / name).write_text(json.dumps(rows))
    columns = {"messages": "chat"} if form == "renamed" else None
    splits = DialogueFiles(str(tmp_path / name), columns=columns, seed=0).conversations()
    read = {tuple(turn.text for turn in turns) for split in splits.values() for turns in split}
    assert read == set(expected)


def test_a_system_message_in_the_middle_is_refused(tmp_path):
    messages = [{"role": role, "content": "a"} for role in ("user", "assistant", "system", "user", "assistant")]
    write_rows(tmp_path / "a.jsonl", [{"messages": messages}])
    with pytest.raises(UsageError, match=r"message 3 has the role 'system'.* and system at the beginning"):
        DialogueFiles(str(tmp_path / "a.jsonl")).conversations()


def test_preferences_by_columns(tmp_path):
    Tokenizer.bytes([EOS]).save(tmp_path / "tokenizer.json")
    write_rows(tmp_path / "a.csv", [{"question": f"q{n}", "good": "yes", "bad": "no"} for n in range(40)])
    columns = {"prompt": "question", "chosen": "good", "rejected": "bad"}
    data = PreferenceFiles(str(tmp_path / "a.csv"), str(tmp_path), columns=columns, seed=0)
    data.ready()
    assert len(data.datasets["train"]) == 36
    with pytest.raises(UsageError, match=r"no column 'prompt'; it has 'question', 'good', 'bad'"):
        PreferenceFiles(str(tmp_path / "a.csv"), str(tmp_path), seed=0).ready()
