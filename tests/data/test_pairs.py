import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import processors

from zoo.data import parallel_files
from zoo.data.batches import Batches, Loader
from zoo.data.pair_data import Pair, select_by_kind, token_slots
from zoo.data.parallel_files import PairOptions, ParallelFiles, split_validation
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "multi30k"
DRAW = np.random.default_rng(0)
WORDS = ["a", "little", "red", "house", "stands", "near", "the", "old", "river", "where", "nobody", "ever", "goes"]


def sentences(count, suffix):
    return [f"{i} " + " ".join(f"{WORDS[w]}{suffix}" for w in DRAW.integers(0, 13, 2 + i % 12)) for i in range(count)]


EN, DE = sentences(300, ""), sentences(300, "en")


def write(folder, name, lines, compress=False):
    content = "".join(line + "\n" for line in lines).encode()
    (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(content, mtime=0) if compress else content)


@pytest.fixture
def corpus(tmp_path):
    for name, part in (("train", slice(0, 250)), ("val", slice(250, 300))):
        write(tmp_path, f"{name}.en", EN[part])
        write(tmp_path, f"{name}.de", DE[part], compress=True)
    return tmp_path


def make(path, **options):
    return ParallelFiles(str(path), **{"vocab_size": 300, "max_tokens": 512, "seed": 1, **options})


def test_pairs_of_tokenizers_that_split_special_tokens_are_others_and_cached_apart(tmp_path, corpus):
    for name in ("train", "val"):
        write(corpus, f"{name}.en", [f"{line} </s> too" for line in EN[:40]])
        write(corpus, f"{name}.de", DE[:40], compress=True)
    inner = Tokenizer.bpe(EN + DE, 300, ["<pad>", "<s>", "</s>"]).inner
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"<eos>": "</s>", "<pad>": "<pad>", "<bos>": "<s>"}
    prints = []
    for splits in (False, True):
        for side in ("source", "target"):
            (tmp_path / f"{splits}").mkdir(exist_ok=True)
            Tokenizer(inner, names, splits).save(tmp_path / f"{splits}" / f"{side}-tokenizer.json")
        data = make(corpus, options=PairOptions(tokenizer=str(tmp_path / f"{splits}")))
        batch = next(iter(data.val_dataloader()))
        row = batch["source"][0][batch["source_valid"][0]].tolist()
        assert row.count(2) == (1 if splits else 2)
        prints.append(data.fingerprint())
    assert len({*prints}) == 2


def test_batches_hold_whole_sentences_and_their_marks(corpus):
    data = make(corpus)
    texts = []
    for batch in data.val_dataloader():
        source, target = batch["source"], batch["target"]
        assert source.shape[1] % 8 == 0
        assert target.shape[1] % 8 == 1  # the decoder sees one less
        assert torch.equal(batch["source_valid"], source != 0)
        assert torch.equal(batch["target_valid"], target != 0)
        assert (target[:, 0] == 1).all()
        for row, text in enumerate(batch["source_text"]):
            ids = source[row][batch["source_valid"][row]].tolist()
            assert ids[-1] == 2
            assert 1 not in ids
            assert data.source_tokenizer.decode(ids) == text
            assert target[row][batch["target_valid"][row]][-1] == 2
            assert data.detokenize(target[row].tolist()) == batch["text"][row]
        assert batch["type"] == [""] * len(source)
        assert batch["slots"].shape == (0, 5)
        texts += zip(batch["source_text"], batch["text"], strict=True)
    assert sorted(texts) == sorted(zip(EN[250:], DE[250:], strict=True))


def test_training_batches_keep_to_the_budget_and_see_each_pair_once(corpus):
    data = make(corpus)
    pairs_read = []
    for batch in data.train_dataloader():
        assert set(batch) == {"source", "source_valid", "target", "target_valid"}
        assert len(batch["source"]) * max(batch["source"].shape[1], batch["target"].shape[1] - 1) <= 512
        pairs_read += [data.source_tokenizer.decode(row) for row in batch["source"]]
    assert sorted(pairs_read) == sorted(EN[:250])


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_evaluation(corpus, world):
    data = make(corpus)
    data.setup()
    loaders = [Loader(data.datasets["val"], Batches(data.plan("val", world, None), rank)) for rank in range(world)]
    texts = [text for loader in loaders for batch in loader for text in batch["source_text"]]
    assert sorted(texts) == sorted(EN[250:])


def test_plain_compressed_and_table_are_the_same_data(corpus, tmp_path):
    other = tmp_path / "table"
    other.mkdir()
    for name, part in (("train", slice(0, 250)), ("val", slice(250, 300))):
        write(other, f"{name}.tsv", [f"{en}\t{de}" for en, de in zip(EN[part], DE[part], strict=True)], name == "val")
    assert make(corpus).fingerprint() == make(other).fingerprint()
    direct = make(corpus / "train", options=PairOptions(val=str(corpus / "val")))
    assert make(corpus).fingerprint() == direct.fingerprint()
    backwards = make(corpus, source="de", target="en")
    assert backwards.fingerprint() != direct.fingerprint()
    assert next(iter(backwards.val_dataloader()))["source_text"][0] in DE


def test_validation_is_set_aside_by_sentence():
    pairs = [Pair(f"s{i % 20}", f"t{i}") for i in range(100)]
    parts = split_validation(pairs, 0.25)
    sides = {name: {pair.source for pair in part} for name, part in parts.items()}
    assert len(sides["val"]) == 5
    assert not sides["val"] & sides["train"]
    assert sorted(parts["train"] + parts["val"], key=pairs.index) == pairs
    with pytest.raises(UsageError, match="too few"):
        split_validation(pairs[:1], 0.5)


def test_separate_vocabularies(corpus, tmp_path):
    data = make(corpus, options=PairOptions(shared=False))
    assert data.source_tokenizer.to_json() != data.target_tokenizer.to_json() if data.sizes() else False
    assert set(data.sizes()) == {"source_vocab_size", "target_vocab_size"}
    data.save(tmp_path)
    assert Tokenizer.load(tmp_path / "target-tokenizer.json").to_json() == data.target_tokenizer.to_json()


def test_long_pairs_are_counted_or_refused(corpus, caplog):
    with caplog.at_level("WARNING"):
        data = make(corpus, max_length=24)
        data.setup()
    count = sum(len(batch["source"]) for batch in data.train_dataloader())
    assert 0 < count < 250
    assert [f"{250 - count} of 250 train pairs" in record.message for record in caplog.records].count(True) == 1
    assert all(batch["source"].shape[1] <= 24 for batch in data.train_dataloader())
    with pytest.raises(UsageError, match=r"pair \d+ of the \w+ split has \d+ tokens"):
        make(corpus, max_length=24, options=PairOptions(too_long="error")).setup()
    with pytest.raises(UsageError, match="all 250 pairs"):
        make(corpus, max_length=2).setup()


def test_decode_marks_some_of_validation_and_all_of_test(corpus):
    data = make(corpus, eval_limit=7)
    assert sum(int(batch["decode"].sum()) for batch in data.val_dataloader()) == 7
    assert sum(int(batch["decode"].sum()) for batch in data.test_dataloader()) == 50


def test_decoded_samples_are_spread_over_kinds():
    kinds = ["a"] * 10 + ["b"] * 3 + ["c"]
    assert sorted(select_by_kind(kinds, np.arange(14), 6)) == [0, 1, 2, 10, 11, 13]
    assert select_by_kind(kinds, np.array([4, 5, 12]), 2) == [4, 12]


def test_slots_become_the_tokens_that_touch_them():
    tokenizer = Tokenizer.bytes()
    pair = Pair("am 3. Mai", "5月3日", slots=(((3, 4), (2, 3)), ((6, 9), (0, 1))))
    assert token_slots(pair, tokenizer, tokenizer) == [[3, 4, 4, 5], [6, 9, 0, 1]]


def test_files_that_are_not_parallel_are_named(tmp_path):
    write(tmp_path, "train.en", EN[:99])
    write(tmp_path, "train.de", DE[:100])
    with pytest.raises(UsageError, match=r"train\.de has 100 lines and train\.en has 99: they must be parallel\."):
        make(tmp_path).setup()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.de", b"eins\n  \ndrei\n", r"train\.de:2 is blank"),
        ("train.de", b"eins\nzw\xe9i\ndrei\n", r"train\.de:2: byte 0xe9 is not UTF-8"),
        (
            "train.de.gz",
            gzip.compress(b"eins\nzwei\ndrei\n" * 50, mtime=0)[:-9],
            r"train\.de\.gz is a damaged or truncated gzip",
        ),
        ("train.de.gz", b"eins\nzwei\ndrei\n", r"train\.de\.gz is a damaged or truncated gzip"),
        ("train.xx", b"", r"train\.de \(or \.gz\), the other half"),
        ("train.de", b"", "has 0 lines"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    write(tmp_path, "train.en", ["one", "two", "three"])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        make(tmp_path).setup()
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a\tb\nc\n", ":2 has 1 columns"),
        ("a\tb\tc\n", ":1 has 3 columns"),
        ("a\t \n", ":1: the target is blank"),
        ("", "empty"),
    ],
)
def test_bad_tables_are_named(tmp_path, table, message):
    (tmp_path / "train.tsv").write_text(table)
    with pytest.raises(UsageError, match=message):
        make(tmp_path).setup()


def test_options_are_checked(tmp_path):
    with pytest.raises(UsageError, match="Recipes with embedded data: translation-tiny"):
        make(tmp_path).setup()
    for wrong in ({"target": "en"}, {"max_tokens": 64}, {"options": PairOptions(too_long="cut")}, {"eval_limit": -1}):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            make(tmp_path, **wrong)


def test_a_second_start_does_not_encode_again(corpus, monkeypatch):
    first = make(corpus).fingerprint()
    monkeypatch.setattr(Tokenizer, "bpe", None)
    assert make(corpus).fingerprint() == first


def test_multi30k():
    if not SHARED.is_dir():
        pytest.skip("Multi30k is not on disk: it is for measuring only")
    corpus = ParallelFiles(str(SHARED), seed=0).corpus()
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 29000, "val": 1014}


def test_a_line_of_many_megabytes_is_no_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_files, "LONGEST_LINE", 50)
    file = tmp_path / "train.de"
    assert parallel_files._decode_line(file, b"x" * 50, 3) == "x" * 50
    with pytest.raises(parallel_files.ValueKindError, match=r"train\.de:3 has 51 bytes: no sentence has more than 50"):
        parallel_files._decode_line(file, b"x" * 51, 3)
