"""Rows with their middles moved: what was there can be put back, nothing is lost, and every epoch draws anew."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from zoo_text.data.infill import InfillText, Parts, arrange
from zoo_text.data.infill_prompt import MIDDLE, PREFIX, SUFFIX, Marks, prompt_tokens
from zoo_text.data.masked import MaskedText
from zoo_text.data.preferences import Preferences

from zoo.data.text import TextFiles
from zoo.data.tokenizer import EOS
from zoo.errors import UsageError

LENGTH = 48


@pytest.fixture
def files(tmp_path):
    for number in range(12):
        words = " ".join(f"wörd{number * k % 17} läuft" for k in range(1, 9 + number))
        (tmp_path / f"{number:02}.txt").write_text(words)
    return str(tmp_path)


def data_of(files, tokenizer="bytes", **options):
    text = TextFiles(
        files, tokenizer=tokenizer, vocab_size=300, max_length=LENGTH, batch_size=4, val_fraction=0.3, seed=1
    )
    data = InfillText(lambda: text, **options)
    data.ready()
    return data


def rows_of(data, split="train", epoch=0):
    """Each row of a split as the text has it, and rearranged, without padding."""
    dataset = data.datasets[split]
    batch = dataset.batch(np.arange(len(dataset)), epoch)
    for number in range(len(dataset)):
        pair = []
        for names in (("inputs", "targets"), ("infill_inputs", "infill_targets")):
            first, following = batch[names[0]][number, :1], batch[names[1]][number]
            pair.append([*first.tolist(), *following[following >= 0].tolist()])
        middle = batch["middle_targets"][number]
        yield *pair, middle[middle >= 0].tolist()


def restored(tokens, marks, level="document", spm=True):
    """The documents of a row in their own order without <eos> between them, and the middles, with <eos>, of PSM.

    PSM without a prefix looks as SPM does without one, which is told apart by ``spm``.
    """
    documents, middles, at = [], [], 0
    while at < len(tokens):
        ends = level == "document" and marks.end in tokens[at:]
        end = tokens.index(marks.end, at) + 1 if ends else len(tokens)
        document = tokens[at:end]
        if document[0] == marks.prefix:
            suffix, middle = document.index(marks.suffix), document.index(marks.middle)
            if suffix == 1:  # SPM: where the middle begins is no longer said
                documents += [*document[middle + 1 : -1], *document[2:middle]]
                middles.append([] if spm else document[middle + 1 :])
            else:
                documents += [*document[1:suffix], *document[middle + 1 : -1], *document[suffix + 1 : middle]]
                middles.append(document[middle + 1 :])
        else:
            documents += document
        at = end
    return documents if level == "block" else [token for token in documents if token != marks.end], middles


def marks_of(data):
    return Marks(*(data.number(name) for name in (PREFIX, SUFFIX, MIDDLE, EOS)))


def test_arrange_is_psm_and_spm():
    parts, marks = Parts(*(np.array(one) for one in ([1, 2], [3], [4, 5, 6]))), Marks(10, 11, 12, 13)
    tokens, middle = arrange(parts, marks, suffix_first=False)
    assert tokens.tolist() == [10, 1, 2, 11, 4, 5, 6, 12, 3, 13]
    assert tokens[middle].tolist() == [3, 13]
    tokens, middle = arrange(parts, marks, suffix_first=True)
    assert tokens.tolist() == [10, 11, 4, 5, 6, 12, 1, 2, 3, 13]
    assert tokens[middle].tolist() == [3, 13]
    assert prompt_tokens([1, 2], [4, 5, 6], marks) == [10, 1, 2, 11, 4, 5, 6, 12]


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe"])
@pytest.mark.parametrize("level", ["document", "block"])
@pytest.mark.parametrize("split_at", ["character", "token"])
def test_a_row_can_be_put_back_and_is_full(files, tokenizer, level, split_at):
    data = data_of(files, tokenizer, rate=1.0, level=level, split_at=split_at)
    marks, count = marks_of(data), 0
    for source_row, moved, _ in rows_of(data):
        assert len(source_row) == len(moved) == LENGTH + 1
        text, middles = restored(moved, marks, level)
        source = source_row if level == "block" else [token for token in source_row if token != marks.end]
        if split_at == "token" or tokenizer != "bpe":
            assert text == source[: len(text)]
        else:  # other tokens of the same text, of which the end of a suffix may be missing
            assert len(text) <= len(source)
            ours, theirs = (Counter(data.tokenizer.decode(one)) for one in (text, source))
            assert sum((ours - theirs).values()) <= 4  # of a character that the row's end cut through
        count += len(middles)
    assert count >= 5


def test_targets_of_middles_are_the_middles(files):
    data = data_of(files, "chars", rate=1.0, spm=0.0)
    for _, moved, middle in rows_of(data):
        _, middles = restored(moved, marks_of(data), spm=False)
        assert middle == [token for one in middles for token in one]


@pytest.mark.parametrize(("rate", "spm"), [(0.25, 0.5), (0.75, 0.0), (1.0, 0.8)])
def test_rates_are_those_of_the_options(files, rate, spm):
    data = data_of(files, "bytes", rate=rate, spm=spm, level="block")
    rows = [moved for epoch in range(60) for _, moved, _ in rows_of(data, epoch=epoch)]
    rearranged = [row for row in rows if row[0] == data.number(PREFIX)]
    suffix_first = [row for row in rearranged if row[1] == data.number(SUFFIX)]
    spread = 4 * (0.25 / len(rearranged)) ** 0.5
    assert abs(len(rearranged) / len(rows) - rate) < spread
    # a prefix may be empty: then PSM looks alike
    assert abs(len(suffix_first) / len(rearranged) - spm) < spread + 0.05


def test_evaluation_moves_every_middle_alike_and_training_anew(files):
    data = data_of(files, "bytes", rate=0.3)
    assert all(data.number(PREFIX) in moved for _, moved, _ in rows_of(data, "val"))
    assert list(rows_of(data, "val", 0)) == list(rows_of(data, "val", 3))
    assert [row[1] for row in rows_of(data, epoch=1)] != [row[1] for row in rows_of(data, epoch=2)]
    again = data_of(files, "bytes", rate=0.3)
    assert list(rows_of(again, epoch=2)) == list(rows_of(data, epoch=2))


def test_plain_rows_are_those_of_the_text(files):
    data = data_of(files, "bytes")
    batch, text = data.datasets["train"].batch(np.arange(3), 2), data.text.datasets["train"].batch(np.arange(3), 2)
    assert all((batch[name] == tensor).all() for name, tensor in text.items())
    assert data.sizes()["vocab_size"] == 256 + 4


def test_options_change_the_fingerprint(files):
    prints = {
        data_of(files, **one).fingerprint()
        for one in ({}, {"rate": 0.6}, {"spm": 0.1}, {"level": "block"}, {"split_at": "token"})
    }
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rate": 0.0}, "For none: --model CausalLM"), ({"spm": 1.0}, "below 1"), ({"level": "row"}, "document or block")],
)
def test_what_is_refused(files, options, message):
    with pytest.raises(UsageError, match=message):
        data_of(files, **options)


def test_the_tokenizer_of_a_run(tmp_path):
    """Text takes a run's tokenizer with all its tokens, those of another task among them; so do data made from it."""
    texts, run = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    run.mkdir()
    for name in "ab":
        (texts / f"{name}.txt").write_text(f"document {name} of words and other words\n" * 20)
    options = {"path": str(texts), "max_length": 8, "val_fraction": 0.3, "seed": 0}
    own = InfillText(partial(TextFiles, tokenizer="bpe", vocab_size=280, **options))
    own.ready()
    own.save(run)
    again = TextFiles(tokenizer=str(run), **options)
    assert again.sizes() == own.sizes()
    assert again.tokenizer.tokens == own.tokenizer.tokens
    for split in ("train", "val"):
        assert np.array_equal(again.datasets[split].tokens, own.text.datasets[split].tokens)
    again.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text("utf-8") == (run / "tokenizer.json").read_text("utf-8")
    for derived in (MaskedText, InfillText, Preferences):
        data = derived(partial(TextFiles, tokenizer=str(run / "tokenizer.json"), **options))
        data.ready()
        assert data.tokenizer.tokens[: len(own.tokenizer.tokens)] == own.tokenizer.tokens
