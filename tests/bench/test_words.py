"""Parallel files in words: what is one word, which are unknown, and that a translation model can be trained on them."""

import gzip

import numpy as np
import pytest

from bench import words
from zoo.data.parallel_files import PairOptions, ParallelFiles

GERMAN = ["Ein Mann, zwei Männer.", "Ein Mann's Hund", "<unk> Ein Hund"]
ENGLISH = ["A man, two men.", "A man's dog", "<unk> A dog"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    for language, lines in (("de", GERMAN), ("en", ENGLISH)):
        for split, text in (("train", lines[:2]), ("val", [lines[0], lines[2]])):
            content = gzip.compress(("\n".join(text) + "\n").encode())
            (tmp_path / f"files/{split}.{language}.gz").write_bytes(content)
    words.write_words(tmp_path / "files", tmp_path / "words", ("de", "en"))
    return tmp_path / "words"


def test_words_are_lower_case_and_punctuation_stands_alone(folder):
    assert (folder / "train.en").read_text().splitlines() == ["a man , two men .", "a man's dog"]
    assert (folder / "train.de").read_text().splitlines() == ["ein mann , zwei männer .", "ein mann's hund"]


def test_words_that_stand_once_are_unknown_and_a_text_cannot_write_a_special_token(folder):
    data = ParallelFiles(str(folder), "de", "en", options=PairOptions(tokenizer=str(folder)))
    data.ready()
    assert data.sizes() == {"source_vocab_size": 5, "target_vocab_size": 5}, "3 specials, <unk>, and `ein` or `a`"
    batch = data.datasets["val"].batch(np.arange(2), 0)
    assert batch["target"][0, :8].tolist() == [1, 4, 3, 3, 3, 3, 3, 2]
    assert batch["target"][1, :7].tolist() == [1, 3, 3, 3, 4, 3, 2], "< unk > a dog"
    assert batch["source"][1, :6].tolist() == [3, 3, 3, 4, 3, 2]
    assert data.detokenize(batch["target"][0].tolist()) == "a <unk> <unk> <unk> <unk> <unk>"
    assert batch["text"] == ["a man , two men .", "< unk > a dog"]
