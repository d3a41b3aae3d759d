"""What masked language models are shown: 80/10/10, other masks in every epoch, whole words, pairs of texts."""

import itertools

import numpy as np
import pytest
import tokenizers
import torch
from text_helpers import documents as text
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from zoo_text.data.masked import MaskedText
from zoo_text.data.masking import IGNORE, Masker, Words

from zoo.data.tokenizer import CLS, MASK, PAD, SEP, Tokenizer
from zoo.errors import UsageError


def data(folder, **options):
    module = MaskedText(text(folder), seed=1, **options)
    module.setup()
    return module


def test_statistics_are_those_of_bert():
    """15 % chosen; of these 80 % hidden, 10 % replaced by any token, 10 % as they were."""
    tokens = np.random.default_rng(0).integers(10, 1000, (500, 400))
    masker = Masker(0.15, mask=3, ordinary=np.arange(10, 1000))
    masked, targets = masker(tokens, np.ones(tokens.shape, bool), 1, 0, np.arange(500))
    is_target = targets != IGNORE
    assert is_target.mean() == pytest.approx(0.15, abs=0.0025)
    assert (targets[is_target] == tokens[is_target]).all()
    assert (masked[~is_target] == tokens[~is_target]).all()
    hidden, same = masked[is_target] == 3, masked[is_target] == tokens[is_target]
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 990, abs=0.01)
    replaced = masked[is_target][~hidden & ~same]
    assert len(replaced) / is_target.sum() == pytest.approx(0.1, abs=0.01)
    assert set(np.unique(replaced)) <= set(range(10, 1000))
    assert len(np.unique(replaced)) > 900


def test_only_allowed_places_are_chosen():
    tokens = np.random.default_rng(0).integers(10, 50, (40, 30))
    allowed = np.random.default_rng(1).random(tokens.shape) < 0.5
    masked, targets = Masker(0.9, 3, np.arange(10, 50))(tokens, allowed, 1, 0, np.arange(40))
    assert (targets[~allowed] == IGNORE).all()
    assert (masked[~allowed] == tokens[~allowed]).all()


def test_masks_depend_on_seed_epoch_and_row_alone(folder):
    module = data(folder)
    rows = module.datasets["train"]
    one = rows.batch(np.array([3, 5]), 2)["targets"]
    two = rows.batch(np.array([5, 0, 3]), 2)["targets"]
    assert torch.equal(one, two[[2, 0]])
    targets = [rows.batch(np.array([3]), epoch)["targets"] != IGNORE for epoch in range(6)]
    assert len({tuple(one.flatten().tolist()) for one in targets}) == 6
    val, again = module.datasets["val"], data(folder).datasets["val"]
    assert torch.equal(val.batch(np.array([0]), 0)["inputs"], again.batch(np.array([0]), 5)["inputs"])


def test_each_place_is_hidden_sooner_or_later(folder):
    """Dynamic masking: over 60 epochs no place of a row of evaluation's length stays untold."""
    module = data(folder)
    masker, tokens = module.datasets["train"].masker, np.full((1, 40), 5)
    times_hidden = sum(
        (masker(tokens, np.ones((1, 40), bool), 1, epoch, np.array([0]))[1] != IGNORE) for epoch in range(80)
    )
    assert (times_hidden > 0).all()


def test_an_epoch_of_evaluation_holds_every_token_once(folder):
    module = data(folder)
    val, stream = module.datasets["val"], module.text.datasets["val"].tokens
    batch = val.batch(np.arange(len(val)), 0)
    assert torch.equal(batch["whole"][:, 1:][batch["valid"][:, 1:]], torch.from_numpy(stream.astype(np.int64)))
    assert (batch["whole"][:, 0] == module.number(CLS)).all()


def slow_words(tokenizer: Tokenizer, row: list[int]) -> list[int]:
    """The column in which the word of each token begins, from the text of the tokens."""

    def kind(character):
        return "a" if character.isalpha() or ord(character) > 127 else "1" if character.isdigit() else "."

    result, before = [], ""
    for column, token in enumerate(row):
        name = tokenizer.tokens[token]
        special = name in tokenizer.specials
        piece = "\0" if special else tokenizer.decode([token])
        starts = not before or special or before == "\0" or (piece[0].isspace() and not before[-1].isspace())
        if not starts and not before[-1].isspace():
            starts = piece[0].isspace() or kind(piece[0]) != kind(before[-1])
        result.append(column if starts else result[-1])
        before = piece
    return result


@pytest.mark.parametrize("scheme", ["bpe", "chars", "bytes"])
def test_whole_words_are_hidden_together(folder, scheme):
    module = MaskedText(text(folder, tokenizer=scheme), rate=0.3, whole_words=True, seed=1)
    module.setup()
    words = Words.of(module.tokenizer)
    batch = module.datasets["train"].batch(np.arange(6), 0)
    parts = 0
    for row, targets in zip(batch["whole"].numpy(), batch["targets"].numpy(), strict=True):
        expected = slow_words(module.tokenizer, row.tolist())
        assert words.numbers(row[None])[0].tolist() == expected
        for start in set(expected):
            members = np.array(expected) == start
            ordinary = ~np.isin(row[members], list(module.tokenizer.specials.values()))
            hidden = (targets[members] != IGNORE)[ordinary]
            assert hidden.all() or not hidden.any()
            parts += len(hidden) > 1 and bool(hidden.all())
    assert parts > 3


def test_whole_words_keep_the_rate(folder):
    module = data(folder, rate=0.15, whole_words=True)
    targets = torch.cat(
        [
            batch["targets"]
            for epoch in range(30)
            for batch in [module.datasets["train"].batch(np.arange(len(module.datasets["train"])), epoch)]
        ]
    )
    assert float((targets != IGNORE).float().mean()) == pytest.approx(0.15, abs=0.01)


def test_specials_are_never_hidden(folder):
    module = data(folder, rate=0.9)
    batch = module.datasets["train"].batch(np.arange(10), 0)
    special = torch.isin(batch["whole"], torch.tensor(list(module.tokenizer.specials.values())))
    assert special.any()
    assert (batch["targets"][special] == IGNORE).all()
    assert torch.equal(batch["inputs"][special], batch["whole"][special])


def test_the_text_keeps_its_numbers(folder):
    module = data(folder)
    assert module.tokenizer.tokens[: module.text.tokenizer.vocab_size] == module.text.tokenizer.tokens
    assert [module.tokenizer.tokens[module.number(name)] for name in (PAD, CLS, SEP, MASK)] == [PAD, CLS, SEP, MASK]
    assert module.sizes() == {"vocab_size": len(module.tokenizer.tokens), "mask_token": module.number(MASK)}
    assert (
        Tokenizer(module.tokenizer.inner).decode([*module.tokenizer.encode("the fox"), module.number(MASK)])
        == "the fox"
    )


def documents(module):
    tokens = module.text.datasets["train"].tokens
    edges = [-1, *np.flatnonzero(tokens == module.tokenizer.eos).tolist(), len(tokens)]
    return [tokens[a + 1 : b].tolist() for a, b in itertools.pairwise(edges)]


def inside(piece, document):
    return any(document[i : i + len(piece)] == piece for i in range(len(document) - len(piece) + 1))


def test_next_sentences_follow_or_come_from_another_document(folder):
    module = data(folder, next_sentence=True)
    rows, texts = module.datasets["train"], documents(module)
    batch = rows.batch(np.arange(len(rows)), 0)
    sep, cls = module.number(SEP), module.number(CLS)
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
    module = MaskedText(text(tmp_path / "one.txt"), next_sentence=True, seed=1)
    with pytest.raises(UsageError, match="at least two documents"):
        module.setup()


def test_other_noise_is_other_data(folder):
    prints = {data(folder, **options).fingerprint() for options in ({}, {"rate": 0.3}, {"whole_words": True})}
    assert len(prints) == 3
    assert data(folder).fingerprint() in prints


def wordpiece():
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    return inner, trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]"], show_progress=False)


def sentencepiece():
    inner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    marks = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return inner, trainers.BpeTrainer(vocab_size=350, special_tokens=marks[:1], show_progress=False)


@pytest.mark.parametrize("make", [wordpiece, sentencepiece])
def test_words_of_published_tokenizers_are_those_of_the_library(make):
    """The library numbers the words of a text; a word of ours may not hold pieces of two, nor begin within one."""
    inner, trainer = make()
    inner.train_from_iterator(["the cat plays and the cats are playing with 中文 letters"] * 9, trainer)
    inner.add_tokens(["…é"])
    tokenizer = Tokenizer(inner, {})
    words = Words.of(tokenizer)
    for line in ("the cats play", "playing with the letters", "the 中文 cat", "a cat with plays"):
        encoding = inner.encode(line, add_special_tokens=False)
        starts = words.starts(np.array([encoding.ids]))[0]
        theirs = np.array(
            [
                number is None or number != before
                for number, before in zip(encoding.word_ids, [None, *encoding.word_ids], strict=False)
            ]
        )
        assert starts.tolist() == theirs.tolist(), encoding.tokens
