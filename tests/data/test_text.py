import gzip
import itertools
import json

import numpy as np
import pytest
import torch

from zoo.data.batches import Batches, Loader
from zoo.data.stdlib import StdlibDocs
from zoo.data.text import Blocks, Corpus, TextData, TextFiles, split_validation
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("".join(chr(97 + (i * i) % 26) + ("\n" if i % 9 == 8 else "") for i in range(900)))
    return path


def loader(data, split, rank, world):
    plan = data.plan(split, world, data.seed if split == "train" else None)
    return Loader(data.datasets[split], Batches(plan, rank))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("length", [16, 17, 200])
def test_validation_predicts_each_token_once_over_all_processes(file, world, length):
    data = TextFiles(str(file), max_length=length, batch_size=2, seed=0)
    data.setup()
    stream = np.asarray(data.datasets["val"].tokens)
    predicted, total = [], 0
    for rank in range(world):
        for batch in loader(data, "val", rank, world):
            real = batch["targets"] >= 0
            predicted += batch["targets"][real].tolist()
            total += int(batch["bytes"].sum())
            assert batch["inputs"].shape == batch["targets"].shape
            assert torch.equal(batch["inputs"][:, 1:][real[:, 1:]], batch["targets"][:, :-1][real[:, 1:]])
    assert sorted(predicted) == sorted(stream[1:].tolist())
    assert total == len(stream) - 1  # every character is one byte


@pytest.mark.parametrize(("tokens", "rows"), [(2, 1), (4, 1), (5, 2), (7, 2), (8, 3), (10, 3)])
def test_evaluation_has_no_row_without_a_prediction(tokens, rows):
    ids = np.arange(tokens)
    blocks = Blocks(ids, np.ones(tokens, dtype=int), 3, None)
    assert len(blocks) == rows
    targets = blocks.batch(np.arange(rows), 0)["targets"]
    assert (targets >= 0).any(1).all()
    assert targets[targets >= 0].tolist() == ids[1:].tolist()


def test_training_blocks_move_with_the_epoch_and_never_overlap(file):
    data = TextFiles(str(file), max_length=16, batch_size=4, seed=3)
    data.setup()
    stream, offsets = np.asarray(data.datasets["train"].tokens), set()
    rows = data.datasets["train"]
    for epoch in range(8):
        block = rows.batch(np.arange(len(rows)), epoch)
        assert (block["targets"] >= 0).all()
        flat = np.append(block["inputs"].flatten().numpy(), block["targets"][-1, -1])
        places = [i for i in range(len(stream) - len(flat) + 1) if np.array_equal(stream[i : i + len(flat)], flat)]
        offsets.add(tuple(places))
        assert places
        assert len(stream) - len(flat) < 32
    assert len(offsets) > 3


def test_the_last_part_is_validation_as_in_nanogpt(file):
    data = TextFiles(str(file), seed=0)
    data.setup()
    text, tokens = file.read_text(), data.datasets
    edge = int(len(text) * 0.9)
    assert data.tokenizer.decode(tokens["train"].tokens) == text[:edge]
    assert data.tokenizer.decode(tokens["val"].tokens) == text[edge:]
    assert data.sizes() == {"vocab_size": len(set(text))}  # no special token for one document
    assert data.datasets["test"] is data.datasets["val"]


def test_shakespeare_would_have_65_tokens(tmp_path):
    letters = "".join(map(chr, itertools.chain(range(65, 91), range(97, 123)))) + "\n !$&',-.3:;?"
    (tmp_path / "s.txt").write_text(letters * 30)
    assert TextFiles(str(tmp_path / "s.txt"), seed=0).sizes() == {"vocab_size": 65}


@pytest.mark.parametrize("scheme", ["chars", "bytes", "bpe"])
def test_several_files_are_separated(tmp_path, scheme):
    for name, text in [
        ("b.md", "second 文件 " * 40),
        ("a.txt", "first one " * 41),
        (".hidden.txt", "no"),
        ("x.png", "no"),
    ]:
        (tmp_path / name).write_text(text, "utf-8")
    data = TextFiles(str(tmp_path), tokenizer=scheme, vocab_size=270, val_fraction=0.5, seed=0)
    data.setup()
    stream = np.concatenate([np.asarray(data.datasets[split].tokens) for split in ("train", "val")])
    assert data.tokenizer.decode(stream) == "first one " * 41 + "second 文件 " * 40
    assert (stream == data.tokenizer.eos).sum() == 1
    files = TextFiles([str(tmp_path / "a.txt"), str(tmp_path / "b.m*")], scheme, 270, val_fraction=0.5, seed=0)
    files.setup()
    assert files.fingerprint() == data.fingerprint()


def test_bytes_count_utf8_not_characters(tmp_path):
    (tmp_path / "zh.txt").write_text("文" * 100, "utf-8")
    data = TextFiles(str(tmp_path / "zh.txt"), max_length=4, val_fraction=0.5, seed=0)
    data.setup()
    assert sum(int(batch["bytes"].sum()) for batch in data.val_dataloader()) == 49 * 3


def test_marks_and_line_ends_are_normalised(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n" * 1 + b"three\r\n" * 20)
    data = TextFiles(str(tmp_path / "dos.txt"), seed=0)
    data.setup()
    assert set(data.tokenizer.tokens) == set("onetwhr\n")


def test_own_validation_and_test_files(tmp_path, file):
    (tmp_path / "val.txt").write_text("abc" * 10)
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"xyz!" * 9, mtime=0))
    data = TextFiles(str(file), val_path=str(tmp_path / "val.txt"), test_path=str(tmp_path / "test.txt.gz"), seed=0)
    data.setup()
    assert data.tokenizer.decode(data.datasets["train"].tokens) == file.read_text()
    assert data.tokenizer.decode(data.datasets["val"].tokens) == "abc" * 10
    assert data.tokenizer.decode(data.datasets["test"].tokens) == "xyz!" * 9


def test_fingerprint_follows_content_tokenizer_and_split(tmp_path, file):
    def of(path=file, **options):
        return TextFiles(str(path), **options, seed=0).fingerprint()

    copy = tmp_path / "copy.txt"
    copy.write_text(file.read_text())
    assert of() == of(copy) == of(max_length=32, batch_size=3)
    copy.write_text(file.read_text() + "z")
    assert len({of(), of(copy), of(tokenizer="bytes"), of(val_fraction=0.2)}) == 4


def test_data_of_a_tokenizer_that_splits_special_tokens_are_others_and_cached_apart(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("one </s> two\n" * 30)
    inner = Tokenizer.bpe(["one two one two"], 262, ["</s>", "<pad>"]).inner
    prints = []
    for splits in (False, True):
        folder = tmp_path / f"{splits}"
        folder.mkdir()
        Tokenizer(inner, {"<eos>": "</s>", "<pad>": "<pad>"}, splits).save(folder / "tokenizer.json")
        data = TextFiles(str(path), tokenizer=str(folder), max_length=8, seed=0)
        data.ready()
        assert data.tokenizer.splits_specials == splits
        texts = data.tokenizer.encode(path.read_text())[: len(data.datasets["train"].tokens)]
        assert data.datasets["train"].tokens.tolist() == texts
        prints.append(data)
    assert len({data.fingerprint() for data in prints}) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo\nth\xffree\n", r"bad\.txt:3: byte 0xff is not UTF-8"),
        (b"", r"bad\.txt is empty"),
        ("utf-16".encode("utf-16"), r"bad\.txt:1: the file is UTF-16 and not UTF-8"),
        (b"ab", "the (train|val) split has"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        TextFiles(str(tmp_path / "bad.txt"), seed=0).setup()
    assert len(str(caught.value).splitlines()) <= 4


def test_missing_files_name_the_recipe(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path / "*.txt"):
        with pytest.raises(UsageError, match="Recipes with embedded data: lm-tiny"):
            TextFiles(str(path)).setup()
    with pytest.raises(UsageError, match="has no text file"):
        TextFiles(str(tmp_path)).setup()
    for options in (
        {"tokenizer": "words"},
        {"val_fraction": 0.0},
        {"max_length": 0},
        {"batch_size": 0},
        {"num_workers": -1},
    ):
        with pytest.raises(UsageError):
            TextFiles("x.txt", **options)


def test_cut_may_divide_a_document():
    assert split_validation(["abcd", "efgh"], 0.25) == {"train": ["abcd", "ef"], "val": ["gh"]}


def test_the_seed_defaults_to_torchs(file):
    torch.manual_seed(77)
    assert TextFiles(str(file)).seed == 77


def test_save_writes_the_tokenizer(file, tmp_path):
    data = TextFiles(str(file), seed=0)
    data.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text("utf-8") == data.tokenizer.to_json()


def test_the_standard_library_is_text(tmp_path):
    data = StdlibDocs(seed=0)
    assert 90 <= data.sizes()["vocab_size"] <= 100
    train, val = (np.asarray(data.datasets[split].tokens) for split in ("train", "val"))
    assert 1.2e6 < len(train) + len(val) < 3e6
    assert 0.1 <= len(val) / (len(train) + len(val)) < 0.12
    documents = data.documents().splits
    assert not set(documents["train"]) & set(documents["val"])
    assert all(text.isascii() for texts in documents.values() for text in texts)
    assert data.fingerprint() == StdlibDocs(seed=1).fingerprint()


def test_a_python_without_sources_says_so(monkeypatch, tmp_path, fresh_cache):
    for folder in (tmp_path, tmp_path / "none"):
        monkeypatch.setattr("sysconfig.get_paths", lambda folder=folder: {"stdlib": str(folder)})
        with pytest.raises(UsageError, match="carries no sources"):
            StdlibDocs().setup()


class Tale(TextData):
    """Sixty documents of different lengths."""

    def __init__(self, test_fraction=None):
        super().__init__("chars", 100, 32, 4, 0.2, 0, 0, test_fraction)

    def source(self):
        return {"tale": 1}

    def documents(self):
        texts = [f"{number:02d} " + "abc " * (1 + number % 7) for number in range(60)]
        return Corpus({"train": texts[:50], "val": texts[50:]}, True)


def test_an_untouched_test_split_comes_out_of_the_training_text(fresh_cache):
    full, split = Tale(), Tale(0.1)
    full.setup()
    split.setup()
    assert full.datasets["test"] is full.datasets["val"]
    train, test, val = (split.datasets[name].tokens for name in ("train", "test", "val"))
    assert 0.1 <= len(test) / (len(train) + len(test)) < 0.15
    assert split.tokenizer.decode(test.tolist()).startswith("4")  # a whole document
    joined = [*train.tolist(), split.tokenizer.eos, *test.tolist()]
    assert joined == full.datasets["train"].tokens.tolist()
    assert val.tolist() == full.datasets["val"].tokens.tolist()
    assert split.fingerprint() != full.fingerprint()
    with pytest.raises(UsageError, match="test_fraction is 1"):
        Tale(1.0)


def test_the_tokenizer_of_a_run(tmp_path):
    """Text takes a run's tokenizer with all its tokens, those that another task has added among them."""
    texts, run = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    run.mkdir()
    for name in "ab":
        (texts / f"{name}.txt").write_text(f"document {name} of words and other words\n" * 20)
    options = {"path": str(texts), "max_length": 8, "val_fraction": 0.3, "seed": 0}
    own = TextFiles(tokenizer="bpe", vocab_size=280, **options)
    own.ready()
    extended = own.tokenizer.extended(["<more>"])
    extended.save(run / "tokenizer.json")
    again = TextFiles(tokenizer=str(run), **options)
    assert again.sizes() == {"vocab_size": own.tokenizer.vocab_size + 1}
    assert again.tokenizer.tokens == extended.tokens
    for split in ("train", "val"):
        assert np.array_equal(again.datasets[split].tokens, own.datasets[split].tokens)
    again.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text("utf-8") == (run / "tokenizer.json").read_text("utf-8")


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, file):
    Tokenizer.chars(["xyz"]).save(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"character 'a' .* is not in the vocabulary of 3 characters"):
        TextFiles(str(file), tokenizer=str(tmp_path)).ready()
    with pytest.raises(UsageError, match="has no token <eos>, which separates documents"):
        StdlibDocs(tokenizer=str(tmp_path)).ready()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"a tokenizer\.json was expected there"):
        TextFiles(str(file), tokenizer=str(tmp_path / "empty")).ready()
    with pytest.raises(
        UsageError, match=r"'bpee': it must be chars, bytes, bpe, .* no such file .* Did you mean 'bpe'"
    ):
        TextFiles(str(file), tokenizer="bpee")


def test_the_names_of_a_published_tokenizer_go_into_the_run(tmp_path):
    texts, published, run = (tmp_path / name for name in ("texts", "published", "run"))
    for folder in (texts, published, run):
        folder.mkdir()
    for name in "ab":
        (texts / f"{name}.txt").write_text("words and other words\n" * 20)
    Tokenizer.bytes(["<|end|>"]).save(published / "tokenizer.json")
    (published / "special_tokens_map.json").write_text('{"eos_token": "<|end|>"}')
    options = {"tokenizer": str(published), "max_length": 8, "val_fraction": 0.3, "seed": 0}
    for data in (TextFiles(str(texts), **options), TextFiles(str(texts), **options)):  # the second from the cache
        data.save(run)
        assert (np.asarray(data.datasets["train"].tokens) == 256).sum() == 1
        assert Tokenizer.load(run / "tokenizer.json").eos == data.tokenizer.eos == 256


def test_a_folder_whose_files_are_named_as_splits_does_not_train_on_all_of_them(tmp_path):
    for name in ("train.txt", "valid.txt", "test.txt"):
        (tmp_path / name).write_text(f"{name} has words\n" * 60)
    with pytest.raises(UsageError, match=r"train\.txt and valid\.txt, test\.txt, .*\n.* --data\.path .*/train\.txt"):
        TextFiles(str(tmp_path)).documents()
    paths = {"path": tmp_path / "train.txt", "val_path": tmp_path / "valid.txt"}
    assert set(TextFiles(**{name: str(path) for name, path in paths.items()}).documents().splits) == {"train", "val"}
    (tmp_path / "train.txt").rename(tmp_path / "chapter.txt")
    assert TextFiles(str(tmp_path)).documents().splits


@pytest.mark.parametrize("scheme", ["chars", "bytes", "bpe"])
def test_a_long_text_is_encoded_in_parts_to_the_same_tokens(tmp_path, file, scheme, monkeypatch):
    file.write_text("Grüße, 你好 🙂\n" + file.read_text(), "utf-8")
    other = tmp_path / "other.txt"
    other.write_text("ab\n" * 40)
    results = []
    for part in (1 << 24, 7):
        monkeypatch.setenv("ZOO_CACHE", str(tmp_path / str(part)))
        monkeypatch.setattr("zoo.data.text.PART", part)
        monkeypatch.setattr("zoo.data.tokenizer.PART", part)
        data = TextFiles([str(file), str(other)], tokenizer=scheme, vocab_size=300, seed=0)
        tokens = [np.asarray(data.datasets[split].tokens) for split in ("train", "val") if data.ready() is None]
        results.append((data.fingerprint(), *((row.dtype, row.tolist()) for row in tokens)))
    assert results[0] == results[1]


def test_an_unknown_character_is_named_by_its_place_in_the_whole_text(monkeypatch):
    monkeypatch.setattr("zoo.data.tokenizer.PART", 4)
    with pytest.raises(UsageError, match=r"'z' .* at index 9 "):
        list(Tokenizer.chars(["abc"]).encode_parts("abcabcabcz", np.uint16))


def test_documents_on_both_sides_of_the_split_are_counted(tmp_path, caplog):
    rows = [json.dumps({"text": f"the text of number {number % 20}"}) for number in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    data = TextFiles(f"{tmp_path}/rows.jsonl#text", max_length=16, batch_size=4, val_fraction=0.1)
    documents = data.documents().splits
    both = sum(text in documents["train"] for text in documents["val"])
    assert both >= 18
    assert f"{both} of {len(documents['val'])} val rows are rows of training, too" in caplog.text
