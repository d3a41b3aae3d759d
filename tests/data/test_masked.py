"""What masked language models are shown: 80/10/10, other masks in every epoch, whole words, pairs of texts."""

import itertools

import numpy as np
import pytest
import torch

from tests.data.documents import text
from zoo.data.masked import MaskedText
from zoo.data.masking import IGNORE, Masker, Words
from zoo.data.tokenizer import CLS, MASK, PAD, SEP, Tokenizer
from zoo.errors import UsageError


def data(folder, **options):
    made = MaskedText(text(folder), seed=1, **options)
    made.setup()
    return made


def test_statistics_are_those_of_bert():
    """15 % chosen; of these 80 % hidden, 10 % replaced by any token, 10 % as they were."""
    tokens = np.random.default_rng(0).integers(10, 1000, (500, 400))
    masker = Masker(0.15, mask=3, ordinary=np.arange(10, 1000))
    shown, targets = masker(tokens, np.ones(tokens.shape, bool), 1, 0, np.arange(500))
    chosen = targets != IGNORE
    assert chosen.mean() == pytest.approx(0.15, abs=0.0025)
    assert (targets[chosen] == tokens[chosen]).all()
    assert (shown[~chosen] == tokens[~chosen]).all()
    hidden, same = shown[chosen] == 3, shown[chosen] == tokens[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 990, abs=0.01)
    replaced = shown[chosen][~hidden & ~same]
    assert len(replaced) / chosen.sum() == pytest.approx(0.1, abs=0.01)
    assert set(np.unique(replaced)) <= set(range(10, 1000))
    assert len(np.unique(replaced)) > 900


def test_only_allowed_places_are_chosen():
    tokens = np.random.default_rng(0).integers(10, 50, (40, 30))
    allowed = np.random.default_rng(1).random(tokens.shape) < 0.5
    shown, targets = Masker(0.9, 3, np.arange(10, 50))(tokens, allowed, 1, 0, np.arange(40))
    assert (targets[~allowed] == IGNORE).all()
    assert (shown[~allowed] == tokens[~allowed]).all()


def test_masks_depend_on_seed_epoch_and_row_alone(folder):
    made = data(folder)
    rows = made.datasets["train"]
    one = rows.batch(np.array([3, 5]), 2)["targets"]
    two = rows.batch(np.array([5, 0, 3]), 2)["targets"]
    assert torch.equal(one, two[[2, 0]])
    targets = [rows.batch(np.array([3]), epoch)["targets"] != IGNORE for epoch in range(6)]
    assert len({tuple(one.flatten().tolist()) for one in targets}) == 6
    held, again = made.datasets["val"], data(folder).datasets["val"]
    assert torch.equal(held.batch(np.array([0]), 0)["inputs"], again.batch(np.array([0]), 5)["inputs"])


def test_each_place_is_hidden_sooner_or_later(folder):
    """Dynamic masking: over 60 epochs no place of a row of evaluation's length stays untold."""
    made = data(folder)
    masker, tokens = made.datasets["train"].masker, np.full((1, 40), 5)
    seen = sum((masker(tokens, np.ones((1, 40), bool), 1, epoch, np.array([0]))[1] != IGNORE) for epoch in range(80))
    assert (seen > 0).all()


def test_an_epoch_of_evaluation_holds_every_token_once(folder):
    made = data(folder)
    held, stream = made.datasets["val"], made.text.datasets["val"].tokens
    batch = held.batch(np.arange(len(held)), 0)
    assert torch.equal(batch["whole"][:, 1:][batch["valid"][:, 1:]], torch.from_numpy(stream.astype(np.int64)))
    assert (batch["whole"][:, 0] == made.number(CLS)).all()


def slow_words(tokenizer: Tokenizer, row: list[int]) -> list[int]:
    """The column in which the word of each token begins, from the text of the tokens."""

    def kind(character):
        return "a" if character.isalpha() or ord(character) > 127 else "1" if character.isdigit() else "."

    found, before = [], ""
    for column, token in enumerate(row):
        name = tokenizer.tokens[token]
        special = name in tokenizer.specials
        piece = "\0" if special else tokenizer.decode([token])
        starts = not before or special or before == "\0" or (piece[0].isspace() and not before[-1].isspace())
        if not starts and not before[-1].isspace():
            starts = piece[0].isspace() or kind(piece[0]) != kind(before[-1])
        found.append(column if starts else found[-1])
        before = piece
    return found


@pytest.mark.parametrize("scheme", ["bpe", "chars", "bytes"])
def test_whole_words_are_hidden_together(folder, scheme):
    made = MaskedText(text(folder, tokenizer=scheme), rate=0.3, whole_words=True, seed=1)
    made.setup()
    words = Words.of(made.tokenizer)
    batch = made.datasets["train"].batch(np.arange(6), 0)
    parts = 0
    for row, targets in zip(batch["whole"].numpy(), batch["targets"].numpy(), strict=True):
        expected = slow_words(made.tokenizer, row.tolist())
        assert words.numbers(row[None])[0].tolist() == expected
        for start in set(expected):
            members = np.array(expected) == start
            ordinary = ~np.isin(row[members], list(made.tokenizer.specials.values()))
            told = (targets[members] != IGNORE)[ordinary]
            assert told.all() or not told.any()
            parts += len(told) > 1 and bool(told.all())
    assert parts > 3


def test_whole_words_keep_the_rate(folder):
    made = data(folder, rate=0.15, whole_words=True)
    targets = torch.cat(
        [
            batch["targets"]
            for epoch in range(30)
            for batch in [made.datasets["train"].batch(np.arange(len(made.datasets["train"])), epoch)]
        ]
    )
    assert float((targets != IGNORE).float().mean()) == pytest.approx(0.15, abs=0.01)


def test_specials_are_never_hidden(folder):
    made = data(folder, rate=0.9)
    batch = made.datasets["train"].batch(np.arange(10), 0)
    special = torch.isin(batch["whole"], torch.tensor(list(made.tokenizer.specials.values())))
    assert special.any()
    assert (batch["targets"][special] == IGNORE).all()
    assert torch.equal(batch["inputs"][special], batch["whole"][special])


def test_the_text_keeps_its_numbers(folder):
    made = data(folder)
    assert made.tokenizer.tokens[: made.text.tokenizer.vocab_size] == made.text.tokenizer.tokens
    assert [made.tokenizer.tokens[made.number(name)] for name in (PAD, CLS, SEP, MASK)] == [PAD, CLS, SEP, MASK]
    assert made.sizes() == {"vocab_size": len(made.tokenizer.tokens), "mask_token": made.number(MASK)}
    assert Tokenizer(made.tokenizer.inner).decode([*made.tokenizer.encode("the fox"), made.number(MASK)]) == "the fox"


def documents(made):
    tokens = made.text.datasets["train"].tokens
    edges = [-1, *np.flatnonzero(tokens == made.tokenizer.eos).tolist(), len(tokens)]
    return [tokens[a + 1 : b].tolist() for a, b in itertools.pairwise(edges)]


def inside(piece, document):
    return any(document[i : i + len(piece)] == piece for i in range(len(document) - len(piece) + 1))


def test_next_sentences_follow_or_come_from_another_document(folder):
    made = data(folder, next_sentence=True)
    rows, texts = made.datasets["train"], documents(made)
    batch = rows.batch(np.arange(len(rows)), 0)
    sep, cls = made.number(SEP), made.number(CLS)
    for row in range(len(rows)):
        line = batch["whole"][row][batch["valid"][row]].tolist()
        middle = line.index(sep)
        first, second = line[1:middle], line[middle + 1 : -1]
        assert (line[0], line[-1]) == (cls, sep)
        assert first
        assert second
        segments = batch["segments"][row][batch["valid"][row]].tolist()
        assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        home = [number for number, document in enumerate(texts) if inside(first, document)]
        follows = any(inside(first + second, texts[number]) for number in home)
        assert follows == bool(batch["follows"][row])
        if not follows:
            assert any(inside(second, document) for n, document in enumerate(texts) if n not in home)
    assert 0.3 < float(batch["follows"].float().mean()) < 0.7
    assert not torch.equal(batch["follows"], rows.batch(np.arange(len(rows)), 1)["follows"])


def test_one_document_has_no_next_sentence(tmp_path):
    (tmp_path / "one.txt").write_text("a text of its own. " * 200)
    made = MaskedText(text(tmp_path / "one.txt"), next_sentence=True, seed=1)
    with pytest.raises(UsageError, match="at least two documents"):
        made.setup()


def test_other_noise_is_other_data(folder):
    prints = {data(folder, **options).fingerprint() for options in ({}, {"rate": 0.3}, {"whole_words": True})}
    assert len(prints) == 3
    assert data(folder).fingerprint() in prints
