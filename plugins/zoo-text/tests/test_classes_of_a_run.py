"""Classes are numbered as in the run whose tokenizer the data take, where it has the same; documents end with <sep>."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import models, pre_tokenizers, processors
from zoo_text.data.labelledfiles import LabelledFiles
from zoo_text.data.masked import MaskedText
from zoo_text.data.taggedfiles import TaggedFiles

from zoo.data.text import TextFiles
from zoo.data.tokenizer import SEP, Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
MARKS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder with the tokenizer of a BERT, as transformers names its special tokens: none of them ends a text."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    inner = Inner(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    inner.add_special_tokens(WORDS[:5])
    names = {f"<{key.removesuffix('_token')}>": value for key, value in MARKS.items()}
    folder = tmp_path / "run"
    folder.mkdir()
    Tokenizer(inner, names).save(folder / "tokenizer.json")
    return folder


def labelled(folder, run):
    lines = [f"{label}\t{word} b c" for label in ("bad", "fine", "good") for word in "defgh"]
    (folder / "train.tsv").write_text("\n".join(lines))
    return LabelledFiles(str(folder), tokenizer=run, max_length=16, seed=0)


def tagged(folder, run):
    rows = [{"tokens": ["a", "b", word], "tags": ["bad", "fine", "good"]} for word in "defghijk"]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return TaggedFiles(str(folder), tokenizer=run, max_length=16, seed=0)


@pytest.mark.parametrize("make", [labelled, tagged])
@pytest.mark.parametrize(
    ("theirs", "numbered"),
    [
        (["good", "bad", "fine"], ["good", "bad", "fine"]),
        (["bad", "fine", "good"], ["bad", "fine", "good"]),
        (["good", "bad", "other"], ["bad", "fine", "good"]),
        (["good", "bad"], ["bad", "fine", "good"]),
    ],
)
def test_classes_are_numbered_as_in_the_run_of_the_tokenizer(make, theirs, numbered, run, tmp_path):
    (run / "labels.json").write_text(json.dumps({"names": theirs}))
    (tmp_path / "texts").mkdir()
    data = make(tmp_path / "texts", str(run))
    data.ready()
    assert data.names == numbered
    rows = data.datasets["train"].batch(np.arange(len(data.datasets["train"])), 0)["labels"].numpy()
    by_name = make(tmp_path / "texts", str(run / "tokenizer.json"))
    by_name.ready()
    before = by_name.datasets["train"].batch(np.arange(len(rows)), 0)["labels"].numpy()
    assert (rows < 0).tolist() == (before < 0).tolist()
    assert [numbered[row] for row in rows[rows >= 0]] == [by_name.names[row] for row in before[before >= 0]]
    assert (data.fingerprint() == by_name.fingerprint()) == (numbered == by_name.names)


@pytest.mark.parametrize("next_sentence", [False, True])
def test_documents_of_a_tokenizer_without_an_end_are_separated_by_sep(next_sentence, run, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in "xyz":
        (tmp_path / "texts" / f"{name}.txt").write_text(" ".join([name, *"abcdefghijklmnopqrst"] * 3))
    options = {"tokenizer": str(run), "max_length": 32, "val_path": str(tmp_path / "texts"), "seed": 0}
    text = TextFiles(str(tmp_path / "texts"), **options)
    data = MaskedText(lambda: text, next_sentence=next_sentence)
    data.ready()
    tokens, end = np.asarray(text.datasets["train"].tokens), text.tokenizer.special(SEP)
    assert np.flatnonzero(tokens == end).tolist() == [63, 127]
    whole = data.datasets["train"].batch(np.arange(2), 0)["whole"].numpy()
    names = {name: text.tokenizer.encode(name)[0] for name in "xyz"}
    for row in whole if next_sentence else ():  # no piece reaches into another document
        first, second = np.split(row, np.flatnonzero(row == end)[:1])
        assert all(len({*part.tolist()} & {*names.values()}) <= 1 for part in (first, second))
