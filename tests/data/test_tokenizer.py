import itertools
import json
import random
import time

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from zoo.data import tokenizer as tokenizer_module
from zoo.data.tokenizer import BOS, CLS, EOS, PAD, SEP, Tokenizer
from zoo.errors import UsageError

TEXT = "To be, or not to be 2018! 2018年4月20日星期五\n  naïve 👍🏽\t<eos> \r\n"
CORPUS = [TEXT * 3, "the cat sat on the mat, the cat sat"]
MAKERS = {
    "chars": lambda: Tokenizer.chars(CORPUS, [EOS]),
    "bytes": lambda: Tokenizer.bytes([EOS]),
    "bpe": lambda: Tokenizer.bpe(CORPUS, 300, [PAD, BOS, EOS], split_digits=True, split_ideographs=True),
}


@pytest.fixture(params=MAKERS, ids=str)
def tokenizer(request):
    return MAKERS[request.param]()


def test_what_is_encoded_decodes_to_the_same(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.eos not in ids  # "<eos>" in a text is plain text
    assert tokenizer.decode([tokenizer.eos, *ids, tokenizer.eos]) == TEXT
    assert tokenizer.encode_batch([TEXT, "cat"]) == [ids, tokenizer.encode("cat")]


def test_the_fast_path_agrees_with_the_library(tokenizer):
    assert tokenizer.encode(TEXT) == tokenizer.inner.encode(TEXT).ids


def test_byte_lengths_add_up_to_the_text(tokenizer):
    lengths = tokenizer.byte_lengths()
    assert lengths[tokenizer.encode(TEXT)].sum() == len(TEXT.encode())
    assert lengths[tokenizer.eos] == 0
    assert len(lengths) == tokenizer.vocab_size


def test_offsets_cover_the_text(tokenizer):
    ids, spans = tokenizer.offsets(TEXT)
    assert ids == tokenizer.encode(TEXT)
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == set(range(len(TEXT)))


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
    assert (loaded.pad, loaded.bos, loaded.eos) == (tokenizer.pad, tokenizer.bos, tokenizer.eos)
    assert loaded.decode(loaded.encode("<eos>")) == "<eos>"


def test_pairs_have_their_special_tokens_first():
    tokenizer = MAKERS["bpe"]()
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos) == (0, 1, 2)
    assert Tokenizer.bytes().eos is None
    assert Tokenizer.bytes().vocab_size == 256


def test_digits_and_ideographs_are_single_tokens():
    tokenizer = Tokenizer.bpe(["20182018 星期五星期五 " * 50], 400, split_digits=True, split_ideographs=True)
    _, spans = tokenizer.offsets("2018星期五")
    assert spans == [(i, i + 1) for i in range(7)]


def test_an_unknown_character_is_named():
    with pytest.raises(UsageError, match=r"'ö' \(U\+00F6\) at index 4"):
        Tokenizer.chars(["Hello"]).encode("Hellö")
    with pytest.raises(UsageError, match="U\\+10FFFF"):
        Tokenizer.chars(["Hello"]).encode("\U0010ffff")


NORMALIZERS = {
    "none": None,
    "lower case": normalizers.Lowercase(),
    "U to T": normalizers.Replace("U", "T"),
    "no accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
}
PATTERNS = {"each": Regex(r"[\s\S]"), "empty": "", "atoms": Regex(r"Cl|Br|[\s\S]")}


def letters(pattern, unknown):
    """A tokenizer of letters that somebody else made: of characters, DNA, or atoms."""
    words = ["[PAD]", "[SEP]", *(["[UNK]"] * unknown), *"ACGTUabcé ", *(["Cl", "Br"] if pattern == "atoms" else [])]
    inner = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(PATTERNS[pattern], "isolated")
    inner.add_special_tokens(["[PAD]", "[SEP]", *(["[UNK]"] * unknown)])
    return inner


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("pattern", "unknown"), [*itertools.product(PATTERNS, (True, False)), ("bytes", False)])
def test_tokenizers_of_letters_read_as_the_library(published, normalizer, pattern, unknown):
    inner = Tokenizer.bytes(["[SEP]"]).inner if pattern == "bytes" else letters(pattern, unknown)
    inner.normalizer = NORMALIZERS[normalizer]
    own = Tokenizer(inner, {SEP: "[SEP]"} if published else None)
    for text in ("ACGU", "aAé", "AC[SEP]CClBr", "a b", ""):
        try:
            expected = inner.encode(text, add_special_tokens=False).ids
        except Exception:  # a letter that is no token, without one for unknown letters
            with pytest.raises(UsageError, match=r"is not in the vocabulary|has no token for"):
                own.encode(text)
            continue
        assert own.encode(text) == own.offsets(text)[0] == expected, text
        assert [number for part in own.encode_parts(text, np.uint16) for number in part] == expected


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(UsageError, match="at least 257"):
        Tokenizer.bpe(["abc"], 256)


def hole(content):
    content["model"]["vocab"]["t"] += 1000


def twice(content):
    content["model"]["vocab"]["t"] = content["model"]["vocab"]["e"]


def not_special(content):
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != EOS]


def two_numbers(content):
    content["added_tokens"][0]["id"] = 5


def other_model(content):
    content["model"]["type"] = "Unigram"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (hole, "without a hole"),
        (twice, "the same number"),
        (not_special, "must be listed in added_tokens"),
        (two_numbers, "two numbers"),
        (other_model, "WordLevel or byte-level BPE"),
    ],
)
def test_a_damaged_file_is_refused(damage, message, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = json.loads(MAKERS["bpe"]().to_json())
    damage(content)
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        Tokenizer.load(file)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x00", '{"model": {"vocab": {}, "vocab": {}}}'])
def test_what_is_no_tokenizer_is_refused(text, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        Tokenizer.load(file)
    with pytest.raises(UsageError, match="not on disk"):
        Tokenizer.load(tmp_path / "none.json")


def test_offsets_of_characters_are_theirs_and_an_unknown_one_is_named():
    tokenizer = Tokenizer.chars(["abc"])
    assert tokenizer.offsets("cab") == (tokenizer.encode("cab"), [(0, 1), (1, 2), (2, 3)])
    with pytest.raises(UsageError, match="character 'z'"):
        tokenizer.offsets("az")


@pytest.mark.parametrize(("special", "ends"), [([CLS], []), ([CLS, SEP], [SEP])])
def test_a_text_to_classify_begins_with_its_class_token(special, ends):
    tokenizer = Tokenizer(Tokenizer.chars(["cat"], special).inner, {name: name for name in special})
    assert [tokenizer.tokens[number] for number in tokenizer.marked(tokenizer.encode("at"))] == [CLS, "a", "t", *ends]


LETTERS = {
    "dna": "ACGT", "ideographs": "".join(map(chr, range(0x4E00, 0x4E00 + 300))), "spaces": " ", "breaks": "\n",
    "digits": "0123456789", "marks": "!?.,;", "thai": "".join(map(chr, range(0x0E01, 0x0E2F))),
    "faces": "\U0001f600\U0001f601",
}  # fmt: skip


@pytest.mark.parametrize("kind", LETTERS)
def test_text_without_spaces_is_learned_in_linear_time(kind):
    draw, seconds = random.Random(0), []
    for length in (20_000, 80_000):
        text = "".join(draw.choices(LETTERS[kind], k=length))
        start = time.process_time()
        result = Tokenizer.bpe([text], 330)
        seconds.append(time.process_time() - start)
        assert result.decode(result.encode(text)) == text
    assert seconds[1] < 10 * seconds[0] + 0.5  # 16 times as long where the time is quadratic, from seconds on
    assert result.vocab_size > 260


@pytest.mark.parametrize("seed", range(4))
def test_words_are_learned_as_by_the_library_alone(seed, monkeypatch):
    """No piece of a usual text is long enough to be cut: the file is the same to the byte."""
    draw = random.Random(seed)
    letters = "abcdeéß 汉字12\n." + "x" * seed
    words = ["".join(draw.choices(letters, k=draw.randint(1, 300))) for _ in range(300)]
    texts = [" ".join(draw.choices(words, k=40)) for _ in range(20)]
    ours = Tokenizer.bpe(texts, 400, split_digits=bool(seed % 2)).to_json()
    monkeypatch.setattr(tokenizer_module, "LONGEST_PIECE", 10**9)
    assert Tokenizer.bpe(texts, 400, split_digits=bool(seed % 2)).to_json() == ours
    assert "FixedLength" not in ours


MARKED = {"<unk>": 0, "▁": 1, "#": 2, "##": 3, "###": 4, "a": 5, "▁a": 6, "<0x0A>": 7, "é": 8}
PIECES = {"[UNK]": 0, "a": 1, "##a": 2, "##é": 3, "#": 4, "##": 5}


@pytest.mark.parametrize(
    ("model", "decoder", "sizes"),
    [
        (models.BPE(MARKED, [("#", "#"), ("##", "#"), ("▁", "a")], unk_token="<unk>"),
         decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]), [5, 1, 1, 2, 3, 1, 2, 1, 2]),
        (models.WordPiece(PIECES, unk_token="[UNK]"), decoders.WordPiece(), [5, 1, 1, 2, 1, 0]),
        (models.BPE({"Ã": 0, "©": 1, "Ġ": 2, "#": 3, "##": 4}, [("#", "#")]), decoders.ByteLevel(), [1, 1, 1, 1, 2]),
    ],
)  # fmt: skip
def test_bytes_of_tokens_of_each_kind_of_tokenizer(model, decoder, sizes):
    """Of tokens that were added, what is no special token stands for its own text."""
    inner = tokenizers.Tokenizer(model)
    inner.decoder = decoder
    inner.add_tokens(["…é", "##ü▁"])
    inner.add_special_tokens(["<end>"])
    assert Tokenizer(inner, {}).byte_lengths().tolist() == [*sizes, 5, 7, 0]
