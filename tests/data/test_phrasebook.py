import re
import time

import pytest
from babel import Locale
from babel.dates import format_date

from zoo.data import cldr, phrasebook
from zoo.data.cldr import Book, locale
from zoo.data.phrasebook import MultilingualPhrasebook, Phrasebook
from zoo.errors import UsageError

TARGETS = ["de", "zh", "fr", "ja", "ru", "ar", "vi", "hu"]


@pytest.fixture(scope="module")
def corpora():
    return {target: Phrasebook(target=target, size=2000, seed=0).corpus() for target in ("de", "zh")}


def test_the_whole_corpus_takes_seconds():
    start = time.process_time()
    corpus = Phrasebook(seed=0).corpus()
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 20000, "val": 1000, "test": 1000}
    assert time.process_time() - start < 8
    sources = [pair.source for pairs in corpus.values() for pair in pairs]
    assert len(set(sources)) == 22000  # so no pair and no source sentence is in two splits
    assert {pair.kind for pair in corpus["val"]} == set(phrasebook.KINDS) == set(cldr.KINDS)


def test_the_corpus_does_not_depend_on_the_runs_seed(corpora):
    assert Phrasebook(size=2000, seed=9).corpus() == corpora["de"]


@pytest.mark.parametrize("target", ["de", "zh"])
def test_sentences_are_clean(corpora, target):
    for pairs in corpora[target].values():
        for pair in pairs:
            for text in (pair.source, pair.target):
                assert not re.search("[\xa0\u202f\u200e\u200f\n\t]", text)
                assert not any(unit in text for unit in cldr.UNITS)
                assert not re.search(r"\b(USD|EUR|GBP|JPY)\b", text)
                assert text == text.strip()


def test_a_pattern_that_lacks_one_plural_only_is_left_out(monkeypatch):
    book = Book("en", "de", 0)
    for text, is_whole in [("3 length-mile", False), ("3 Meilen", True)]:
        monkeypatch.setitem(cldr.KINDS, "unit", lambda book, text=text: lambda one: cldr.Phrase(text))
        assert (book.pair("unit") is not None) == is_whole


@pytest.mark.parametrize("target", TARGETS)
def test_slots_say_the_same_field_on_both_sides(target):
    """Each field is formatted again through a pattern of its own letters alone."""
    book = Book("en", target, 3)
    for _ in range(60):
        value, length = cldr.some_day(book, 1900, 2099), book.random.choice(["full", "long", "medium"])
        for one in book.locales:
            phrase = cldr.day(value, length)(one)
            assert phrase.text == cldr.normalize_spaces(format_date(value, length, locale=one))
            pattern = re.sub("'[^']*'", "", one.date_formats[length].pattern)
            assert {"day", "year", "month"} <= set(phrase.slots)
            for name, (start, end) in phrase.slots.items():
                letters = {"weekday": "[Ec]+", "month": "[ML]+", "day": "d+", "year": "y+"}[name]
                letter = re.search(letters, pattern)
                assert letter is not None
                assert phrase.text[start:end] == cldr.normalize_spaces(format_date(value, letter[0], locale=one))


def test_a_day_is_not_confused_with_the_same_digits_elsewhere():
    import datetime

    for value in (datetime.date(2020, 2, 20), datetime.date(2001, 1, 1), datetime.date(1911, 11, 11)):
        phrase = "Chad, " + cldr.day(value, "medium")(Locale("de"))
        places = [phrase.slots[name][0] for name in ("day", "month", "year")]
        assert places == [6, 9, 12]


@pytest.mark.parametrize("target", ["de", "zh"])
def test_token_slots_decode_to_the_field(target):
    data = Phrasebook(target=target, size=2000, kinds=["date", "country_date", "date_time"], vocab_size=600, seed=0)
    slots = exact = 0
    for batch in data.val_dataloader():
        for row, s0, s1, t0, t1 in batch["slots"].tolist():
            ours = data.source_tokenizer.decode(batch["source"][row, s0:s1].tolist()).strip(" ,.")
            theirs = data.target_tokenizer.decode(batch["target"][row, 1:][t0:t1].tolist()).strip(" ,.")
            assert ours in batch["source_text"][row]
            assert theirs in batch["text"][row]
            slots += 1
            exact += ours.isdigit() == theirs.isdigit() and (not ours.isdigit() or int(ours) == int(theirs))
    assert slots > 3000
    # a month may be a name on one side and a number on the other; day and year always agree
    assert exact > 0.7 * slots


def test_chinese_characters_and_digits_are_tokens(corpora):
    data = Phrasebook(target="zh", size=2000, vocab_size=800, seed=0)
    data.setup()
    text = next(pair.target for pair in corpora["zh"]["train"] if pair.kind == "date" and "年" in pair.target)
    for start, end in data.target_tokenizer.offsets(text)[1]:
        assert end - start == 1 or not re.search(r"[\d\u4e00-\u9fff]", text[start:end])


def test_kinds_reach_the_batches():
    data = Phrasebook(size=500, kinds=["unit", "money"], vocab_size=400, eval_limit=10, seed=0)
    kinds = [
        kind for batch in data.val_dataloader() for kind, on in zip(batch["type"], batch["decode"], strict=True) if on
    ]
    assert sorted(kinds) == ["money"] * 5 + ["unit"] * 5


def test_fingerprint_follows_babel(monkeypatch):
    def of(**options):
        return Phrasebook(size=300, vocab_size=300, seed=0, **options)

    assert of().fingerprint() == of().fingerprint()
    assert of().fingerprint() != of(target="fr").fingerprint()
    before = of().fingerprint()
    monkeypatch.setattr("babel.__version__", "0.0")
    assert of().fingerprint() != before


@pytest.mark.parametrize(("name", "message"), [("frr_", "Did you mean 'frr'"), ("germn", "no locale 'germn'")])
def test_an_unknown_locale_is_named(name, message):
    with pytest.raises(UsageError, match=message):
        Phrasebook(target=name, seed=0).setup()


def test_locales_ignore_case_and_dashes():
    assert str(locale("pt-br")) == "pt_BR"


def test_a_locale_with_few_names_is_refused():
    with pytest.raises(UsageError, match="Choose languages with fuller data") as caught:
        Phrasebook(target="aa", seed=0).setup()
    assert len(str(caught.value).splitlines()) <= 4


def test_kinds_are_checked():
    with pytest.raises(UsageError, match="Did you mean 'money'"):
        Phrasebook(kinds=["mony"])
    with pytest.raises(UsageError, match="kinds is empty"):
        Phrasebook(kinds=[])
    with pytest.raises(UsageError, match="different sentences, 3000 are needed"):
        Phrasebook(kinds=["relative_time"], size=1000, seed=0).setup()


def test_sources_begin_with_the_token_of_their_language_and_no_source_is_in_two_splits():
    data = MultilingualPhrasebook(targets=["de", "ja", "fr"], size=1000, vocab_size=700, seed=0)
    corpus = data.corpus()
    counts = {split: [sum(pair.language == one for pair in pairs) for one in ("de", "ja", "fr")]
              for split, pairs in corpus.items()}  # fmt: skip
    assert counts == {"train": [334, 333, 333], "val": [334, 333, 333], "test": [334, 333, 333]}
    sources = {split: {pair.source for pair in pairs} for split, pairs in corpus.items()}
    assert not sources["train"] & sources["val"] | sources["train"] & sources["test"] | sources["val"] & sources["test"]
    data.ready()
    numbers = data.source_tokenizer.languages()
    assert list(numbers) == ["de", "ja", "fr"]
    locales = set()
    for batch in data.val_dataloader():
        for row, kind in enumerate(batch["type"]):
            ids = batch["source"][row][batch["source_valid"][row]].tolist()
            assert ids == [
                numbers[kind],
                *data.source_tokenizer.encode(batch["source_text"][row]),
                data.source_tokenizer.eos,
            ]
            locales.add(kind)
        for row, s0, s1, *_ in batch["slots"].tolist():
            field = data.source_tokenizer.decode(batch["source"][row, s0:s1].tolist()).strip(" ,.")
            assert field in batch["source_text"][row]
            assert s0 > 0  # the token of the language is no part of a date
    assert locales == {"de", "ja", "fr"}


def test_languages_that_cannot_be_are_refused(monkeypatch):
    for targets in (["de"], ["de", "de"], []):
        with pytest.raises(UsageError, match="two or more different locales"):
            MultilingualPhrasebook(targets=targets)
    monkeypatch.setattr(phrasebook, "TRIES", 1)
    with pytest.raises(UsageError, match="en and de have too few different phrases for size=1000"):
        MultilingualPhrasebook(targets=["de", "fr"], size=1000).corpus()
