"""Pairs of answers: from a text, where one goes on as the text does, and from files of JSON lines."""

import json

import numpy as np
import pytest
from zoo_text.data.preferences import EOS, PreferenceFiles, Preferences

from zoo.data.text import TextFiles
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

LINES = [{"prompt": f"q{n}", "chosen": f"yes {n}", "rejected": "no" * (n + 1)} for n in range(10)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"word{n * n % 101}" for n in range(400)))
    return str(path)


def made_from(text, **options):
    source = TextFiles(text, max_length=16, batch_size=4, seed=1)
    data = Preferences(lambda: source, **options)
    data.ready()
    return data


def answers(batch, name):
    rows = zip(batch[name], batch[f"{name}_valid"], batch["prompt"], strict=True)
    return [row[valid][int(prompt) :].tolist() for row, valid, prompt in rows]


@pytest.mark.parametrize("against", ["shuffled", "elsewhere"])
def test_the_preferred_answer_is_what_the_text_says(text, against):
    data = made_from(text, against=against)
    stream = data.text.datasets["train"].tokens.tolist()
    joined = " ".join(map(str, stream))
    batch = data.datasets["train"].batch(np.arange(8), 0)
    for row, valid in zip(batch["chosen"], batch["chosen_valid"], strict=True):
        assert " ".join(map(str, row[valid].tolist())) in joined
    pairs = list(zip(answers(batch, "chosen"), answers(batch, "rejected"), strict=True))
    assert all(4 <= len(one) <= 8 and 4 <= len(other) <= 8 for one, other in pairs)
    assert any(one != other for one, other in pairs)
    if against == "shuffled":
        assert all(sorted(one) == sorted(other) for one, other in pairs)
    else:
        assert all(" ".join(map(str, other)) in joined for _, other in pairs)
    assert (batch["chosen"][:, :8] == batch["rejected"][:, :8]).all()


def test_epochs_differ_and_evaluations_do_not(text):
    data, again = made_from(text), made_from(text)
    one, two = (data.datasets["train"].batch(np.arange(6), epoch)["rejected"] for epoch in (0, 1))
    assert not (one.shape == two.shape and (one == two).all())
    assert (again.datasets["train"].batch(np.arange(6), 0)["rejected"] == one).all()
    values = [data.datasets["val"].batch(np.arange(2), epoch)["rejected"] for epoch in (0, 5)]
    assert (values[0] == values[1]).all()


def test_options_of_pairs_are_checked(text):
    assert len({made_from(text, **one).fingerprint() for one in ({}, {"prompt": 3}, {"against": "elsewhere"})}) == 3
    with pytest.raises(UsageError, match="an answer needs 2"):
        made_from(text, prompt=15)
    with pytest.raises(UsageError, match="shuffled or elsewhere"):
        made_from(text, against="reversed")
    source = TextFiles(text, max_length=400, batch_size=4, seed=1)
    with pytest.raises(UsageError, match="no pair fits"):
        Preferences(lambda: source).ready()


@pytest.fixture
def files(tmp_path):
    Tokenizer.bytes([EOS]).save(tmp_path / "tokenizer.json")
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def read_from(path, **options):
    data = PreferenceFiles(str(path), str(path.parent), **options)
    data.ready()
    return data


def test_pairs_of_a_file_are_encoded_with_an_end(files):
    data = read_from(files, val_fraction=0.2)
    assert [len(data.datasets[split]) for split in ("train", "val", "test")] == [8, 2, 2]
    batch = data.datasets["train"].batch(np.arange(8), 0)
    prompts = [
        bytes(row[: int(size)].tolist()).decode() for row, size in zip(batch["chosen"], batch["prompt"], strict=True)
    ]
    lines = [line for line in LINES if line["prompt"] in prompts]
    assert [line["prompt"] for line in lines] == prompts
    for number, line in enumerate(lines):
        for name in ("chosen", "rejected"):
            tokens = batch[name][number][batch[f"{name}_valid"][number]].tolist()
            assert bytes(tokens[:-1]).decode() == line["prompt"] + line[name]
            assert tokens[-1] == data.tokenizer.eos
        assert int(batch["prompt"][number]) == len(line["prompt"])


def test_long_pairs_are_left_out_and_a_file_may_validate(files):
    data = read_from(files, max_length=16, val_path=str(files))
    assert len(data.datasets["train"]) == len(data.datasets["val"]) == 6  # 2 + 2 (n + 1) + 1 tokens
    shorter = read_from(files, max_length=15, val_path=str(files))
    assert shorter.fingerprint() != data.fingerprint()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], r"pairs.jsonl:1 is no line of JSON"),
        (['{"prompt": "a", "chosen": "b"}'], r"pairs.jsonl:1 has no column 'rejected'; it has 'prompt', 'chosen'"),
        (['["a"]'], r"pairs.jsonl:1 is a list: a row is an object"),
        (['{"prompt": "a", "chosen": "b", "rejected": "b"}'], r"pairs.jsonl:1: chosen and rejected are the same"),
        ([json.dumps(LINES[0])], "at least 2 are needed"),
        ([b'{"prompt": "\xff", "chosen": "b", "rejected": "c"}'], r"pairs.jsonl:1: byte 0xff is not UTF-8"),
        (
            [json.dumps({**LINES[0], "prompt": letter * 300}) for letter in "xyz"],
            "has no pair of at most max_length=256",
        ),
    ],
)
def test_what_is_no_pair_is_named(files, lines, message):
    files.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    with pytest.raises(UsageError, match=message):
        read_from(files)


def test_an_answer_needs_an_end(files):
    Tokenizer.bytes([]).save(files.parent / "tokenizer.json")
    with pytest.raises(UsageError, match="has no <eos>"):
        read_from(files)
