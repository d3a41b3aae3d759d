# ruff: noqa: E501 - tables of cases
"""Malformed data: each is answered by file and line or index, before the first step; or left out, counted, if asked."""

import gzip
import json
import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from zoo.data.image_sources import ImageFolder, NpzImages
from zoo.data.parallel_files import PairOptions, ParallelFiles
from zoo.data.text import TextFiles
from zoo.data.tokenizer import Tokenizer
from zoo.errors import ZooError

GOOD = "".join(f"a sentence of {n} words\n" for n in range(40)).encode()
CPU = ["--trainer.accelerator", "cpu", "--trainer.max_steps", "1"]
PAIRS = ["fit", "translation-tiny", "--data", "ParallelFiles", "--data.path", "pairs", "--data.vocab_size", "300", *CPU]
LM = ["fit", "lm-tiny", "--data", "TextFiles", "--data.path", "t.txt", *CPU]
VIT = [
    "fit",
    "vit-glyphs",
    "--data",
    "ImageFolder",
    "--data.path",
    "images",
    "--data.image_size",
    "8",
    "--model.patch_size",
    "4",
    *CPU,
]


def line(number: int, content: bytes) -> bytes:
    lines = GOOD.split(b"\n")
    lines[number - 1] = content
    return b"\n".join(lines)


# files of a folder, beside sound ones of the names that are not given
PAIR_FILES = [
    ({"train.en": line(7, b"")}, "train.en:7 is blank"), ({"train.de": line(3, b" \t ")}, "train.de:3 is blank"),
    ({"train.de": GOOD[:-3].rpartition(b"\n")[0]}, "train.de has 39 lines and train.en has 40"),
    ({"train.de": GOOD + b"x\n"}, "train.de has 41 lines"), ({"train.en": b"", "train.de": b""}, "train.en and train.de are empty"),
    ({"train.en": line(5, b"caf\xe9")}, "train.en:5: byte 0xe9 is not UTF-8"), ({"val.de": line(9, b"\xff")}, "val.de:9"),
    ({"train.en": GOOD.decode().encode("utf-16")}, "train.en"), ({"train.en": b"\xff\xfe" + GOOD}, "train.en"),
    ({"train.en": line(2, b"a\0b")}, "train.en:2 holds a NUL"), ({"train.de": line(40, b"x" * 1_100_000)}, "train.de:40 has 1100000 bytes"),
    ({"train.en": None}, "train.en"), ({"val.en": None, "val.de": None, "train.en": b"a\n", "train.de": b"b\n"}, "too few"),
    ({"train.en": None, "train.en.gz": gzip.compress(GOOD, mtime=0)[:-9]}, "train.en.gz is a damaged or truncated gzip"),
    ({"train.en": None, "train.en.gz": GOOD}, "train.en.gz is a damaged"), ({"train.en": None, "train.en.gz": b""}, "train.en.gz is a damaged"),
    ({"train.en": None, "train.en.gz": gzip.compress(bytes(2**27))}, "train.en.gz expands"),
    ({"train.en": None, "train.de": None, "train.tsv": b"a\tb\na b\n"}, "train.tsv:2 has 1 columns"),
    ({"train.en": None, "train.de": None, "train.tsv": b"a\tb\tc\n"}, "train.tsv:1 has 3 columns"),
    ({"train.en": None, "train.de": None, "train.tsv": b"a\t\n"}, "train.tsv:1: the target is blank"),
]  # fmt: skip


def a_few(rows):
    """Every fifth row, and the others as a campaign: what the data module says of each row is tried without a command."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=[pytest.mark.campaign] if place % 5 else []) for place, row in enumerate(rows)]


def assert_refused(data, message):
    """A data module refuses its files by a short sentence."""
    with pytest.raises((ValueError, OSError, ZooError)) as caught:
        data.sizes()
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_pairs(folder, files):
    folder.mkdir()
    sound = dict.fromkeys(["train.en", "train.de", "val.en", "val.de"], GOOD)
    for name, content in (sound | files).items():
        if content is not None:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize(("files", "message"), PAIR_FILES)
def test_pairs(place, files, message):
    write_pairs(place / "pairs", files)
    assert_refused(ParallelFiles("pairs", vocab_size=300), message)


@pytest.mark.parametrize(("files", "message"), a_few(PAIR_FILES))
def test_pairs_of_a_command(answered, tmp_path, files, message):
    write_pairs(tmp_path / "pairs", files)
    assert message in answered(*PAIRS)


def test_bad_lines_are_left_out_where_asked_and_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    content = line(7, b"").replace(b"of 9 words", b"caf\xe9").replace(b"of 20 words", b"\0")
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    (tmp_path / "train.de").write_bytes(GOOD)
    (tmp_path / "val.tsv").write_bytes(b"a\tb\n")
    data = ParallelFiles(str(tmp_path), vocab_size=300, options=PairOptions(bad="skip"))
    with caplog.at_level(logging.WARNING):
        data.ready()
    assert len(data.datasets["train"]) == 37
    message = " ".join(record.getMessage() for record in caplog.records)
    assert "1 of 40 lines are left out, blank: 7" in message
    assert "not UTF-8: 10" in message
    assert "with NUL: 21" in message


TEXTS = [(b"", "t.txt is empty"), (b"caf\xe9 " * 9, "t.txt:1: byte 0xe9"), (b"a\nb\n\xff", "t.txt:3: byte 0xff"),
         ("text".encode("utf-16"), "t.txt"), (b"a", "at least 2"), (None, "t.txt is not on disk")]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), TEXTS)
def test_texts(answered, tmp_path, content, message):
    if content is not None:
        (tmp_path / "t.txt").write_bytes(content)
    assert message in answered(*LM)


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "t.txt"
    file.write_bytes(GOOD)
    data = TextFiles(str(file), tokenizer="bytes")
    documents = data.documents
    monkeypatch.setattr(data, "documents", lambda: (documents(), file.write_bytes(GOOD * 2))[0])
    with pytest.raises(ValueError, match="changed while they were read"):
        data.ready()
    assert not list((tmp_path / "cache").glob("text-*/"))
    again = TextFiles(str(file), tokenizer="bytes")
    again.ready()
    assert again.fingerprint() != data.fingerprint


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Two classes of four sound images for training and for validation."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for n in range(4):
                pixels = np.random.default_rng(n).integers(0, 255, (12, 9, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{n}.png")
    return tmp_path / "images"


def truncate(path, share=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


SPOILT = {
    "text": (lambda f: (f / "train/cat/1.png").write_text("no image"), "1.png cannot be read"),
    "empty": (lambda f: (f / "train/cat/1.png").write_bytes(b""), "1.png cannot be read"),
    "truncated": (lambda f: truncate(f / "val/dog/2.png"), "2.png cannot be read"),
    "16 bits": (lambda f: Image.fromarray(np.zeros((9, 9), np.uint16)).save(f / "train/dog/3.png"), "more than 8 bits"),
    "postscript": (lambda f: (f / "train/dog/3.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n"), "3.png cannot be read"),
    "huge": (lambda f: Image.new("1", (9000, 9000)).save(f / "train/dog/3.png"), "9000 × 9000 pixels"),
    "no class": (lambda f: [p.unlink() for p in (f / "train/cat").iterdir()], "cat"),
    "a class of training only": (lambda f: (f / "val/dog").rename(f / "gone"), "dog only in train"),
    "a class of validation only": (lambda f: (f / "val/dog").rename(f / "val/cow"), "cow only in val"),
    "two folders of validation": (lambda f: shutil.copytree(f / "val", f / "valid"), "val and valid"),
    "one image of each class": (
        lambda f: [shutil.rmtree(f / "val"), *(p.unlink() for p in f.glob("train/*/[123].png"))],
        "too few",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_images(place, images, name):
    spoil, message = SPOILT[name]
    spoil(images)
    assert_refused(ImageFolder("images", image_size=8), message)


@pytest.mark.parametrize("name", a_few(SPOILT))
def test_images_of_a_command(answered, images, name):
    spoil, message = SPOILT[name]
    spoil(images)
    assert message in answered(*VIT)


def test_bad_images_are_left_out_where_asked_and_counted(images, caplog):
    truncate(images / "train/cat/1.png")
    (images / "train/dog/2.png").write_text("no image")
    data = ImageFolder(str(images), image_size=8, bad="skip")
    with caplog.at_level(logging.WARNING):
        data.ready()
    assert len(data.datasets["train"]) == 6
    assert "2 of 8 images are left out. The first: " in caplog.text


ARRAYS = [
    ({"labels": np.zeros(3, int)}, "4 images but 3 labels"), ({"labels": np.array([0, 1, -1, 0])}, "label of image 2 is -1"),
    ({"labels": np.zeros(4)}, "labels are float64"), ({"images": np.zeros((4, 8, 8))}, "images are float64"),
    ({"images": np.zeros((4, 8), np.uint8)}, "images are uint8 (4, 8)"), ({"images": np.zeros((0, 8, 8), np.uint8)}, "no images"),
    ({"images": np.zeros((4, 8, 8, 2), np.uint8)}, "channels"), ({"images": np.zeros((4, 8, 9), np.uint8)}, "8 × 9"),
    ({"names": np.array(["only"]), "labels": np.array([0, 1, 2, 3])}, "label of image 1 is 1"), ({"labels": None}, "no array 'labels'"),
]  # fmt: skip


def write_arrays(folder, changes):
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.array([0, 1, 0, 1])} | changes
    np.savez(folder / "a.npz", **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(("changes", "message"), ARRAYS)
def test_arrays(place, changes, message):
    write_arrays(place, changes)
    assert_refused(NpzImages("a.npz", "a.npz"), message)


@pytest.mark.parametrize(("changes", "message"), a_few(ARRAYS))
def test_arrays_of_a_command(answered, tmp_path, changes, message):
    write_arrays(tmp_path, changes)
    words = ["fit", "vit-glyphs", "--data", "NpzImages", "--data.train", "a.npz", "--data.val", "a.npz", *CPU]
    assert message in answered(*words)


def changed(**model):
    def change(content):
        content["model"] |= model

    return change


TOKENIZERS = {
    "dropout": changed(dropout=0.5), "unigram": changed(type="Unigram"), "a list for a vocabulary": changed(vocab=[["a", 0]]),
    "a text for a number": changed(vocab={"a": "0"}), "a fraction": changed(vocab={"a": 0.5}), "true": changed(vocab={"a": True}),
    "negative": changed(vocab={"a": -1}), "a hole": changed(vocab={"a": 0, "b": 7}), "twice": changed(vocab={"a": 0, "b": 0}),
    "a huge token": changed(vocab={"a" * 20_000: 0}),
    "a normalizer": lambda c: c.update(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}),
    "a pattern": lambda c: c.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
                                                   "invert": False}),
    "a step inside": lambda c: c["pre_tokenizer"]["pretokenizers"].append({"type": "Metaspace"}),
    "truncation": lambda c: c.update(truncation={"max_length": 1}), "padding": lambda c: c.update(padding={"strategy": 1}),
    "a processor": lambda c: c.update(post_processor={"type": "BertProcessing"}), "no model": lambda c: c.pop("model"),
    "no added tokens": lambda c: c.pop("added_tokens"), "an added list": lambda c: c.update(added_tokens=[3]),
    "an added token without text": lambda c: c.update(added_tokens=[{"content": "", "id": 0, "special": True}]),
    "a decoder": lambda c: c.update(decoder={"type": "CTC"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(tmp_path, name):
    content = json.loads(Tokenizer.bpe(["a text of some words"], 280).to_json())
    TOKENIZERS[name](content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json") as caught:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"null", b'{"model": 3}', b"NaN"])
def test_what_is_no_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"\xff", b"{"])
def test_what_is_no_list_of_names_beside_a_tokenizer(tmp_path, content):
    Tokenizer.chars(["a b c"]).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"special_tokens_map\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")
