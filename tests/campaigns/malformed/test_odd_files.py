# ruff: noqa: E501 - tables of cases
"""Data files as they come: what is meant is read, what cannot be meant is refused by file and line before the first step."""

import gzip
import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from zoo.data.image_sources import ImageFolder
from zoo.data.parallel_files import PairOptions, ParallelFiles
from zoo.data.text import TextFiles
from zoo.errors import UsageError

LINES = [f"a sentence of {n} words" for n in range(40)]
GOOD = "".join(f"{line}\n" for line in LINES).encode()
TABLE = "".join(f"{'ab'[n % 2]}\t{line}\n" for n, line in enumerate(LINES)).encode()
MB = 10**6


def line(number, content, lines=GOOD):
    result = lines.split(b"\n")
    result[number - 1] = content
    return b"\n".join(result)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def refused(make, message):
    """Building the data is refused in at most four lines, one of which says this."""
    with pytest.raises(UsageError) as caught:
        make().setup()
    text = str(caught.value)
    assert message in text
    assert len(text.splitlines()) <= 4


def pairs(folder, files, **options):
    for name, content in ({"train.en": GOOD, "train.de": GOOD, "val.en": GOOD, "val.de": GOOD} | files).items():
        if content is not None:
            (folder / name).write_bytes(content)
    return ParallelFiles(
        str(folder), vocab_size=300, max_length=options.pop("max_length", 64), options=PairOptions(**options)
    )


BROKEN_PAIRS = {
    "UTF-16 without a mark": ({"train.en": GOOD.decode().encode("utf-16-le")}, "train.en has 41"),
    "big-endian UTF-16 without a mark": ({"train.de": GOOD.decode().encode("utf-16-be")}, "train.de:1 holds a NUL"),
    "UTF-16 with a mark": ({"val.de": GOOD.decode().encode("utf-16")}, "val.de:1: the file is UTF-16"),
    "UTF-32": ({"train.en": GOOD.decode().encode("utf-32")}, "train.en:1"),
    "Latin-1": ({"train.en": line(3, "déjà vu".encode("latin1"))}, "train.en:3: byte 0xe9"),
    "a surrogate": ({"train.en": line(4, b"\xed\xa0\x80")}, "train.en:4: byte 0xed"),
    "an overlong form": ({"train.en": line(4, b"\xc0\xaf")}, "train.en:4: byte 0xc0"),
    "a character that is cut off": ({"train.de": GOOD[:-1] + b"\xe2\x82"}, "train.de:40: byte 0xe2"),
    "a line of 10 MB": ({"train.en": line(9, b"x" * 10 * MB)}, "train.en:9 has 10000000 bytes"),
    "one line too many": ({"val.en": GOOD + b"more\n"}, "val.en has 41"),
    "an empty line at the end": ({"train.en": GOOD + b"\n"}, "train.en has 41"),
    "one side empty": ({"train.de": b""}, "train.de has 0 lines"),
    "one side of validation empty": ({"val.de": b""}, "val.de has 0 lines"),
    "spaces for a sentence": ({"train.en": line(2, b"   \t ")}, "train.en:2 is blank"),
    "a no-break space for a sentence": ({"train.en": line(2, "\u00a0".encode())}, "train.en:2 is blank"),
    "a carriage return for a sentence": ({"train.en": line(2, b"\r")}, "train.en:2 is blank"),
    "a mark for a sentence": ({"train.en": line(1, b"\xef\xbb\xbf")}, "train.en:1 is blank"),
    "a column too many": ({"train.en": None, "train.de": None, "train.tsv": line(4, b"a\tb\tc", b"a\tb\n" * 9)}, "train.tsv:4 has 3 columns"),
    "a table in UTF-16": ({"train.en": None, "train.de": None, "train.tsv": "a\tb\n".encode("utf-16")}, "train.tsv:1: the file is UTF-16"),
    "a table cut off in its archive": ({"train.en": None, "train.de": None, "train.tsv.gz": gzip.compress(b"a b\tc d\n" * 99, mtime=0)[:-6]}, "train.tsv.gz is a damaged"),
    "an archive with a flipped bit": ({"train.en": None, "train.en.gz": bytes(b ^ (n == 40) for n, b in enumerate(gzip.compress(os.urandom(200).hex().encode(), mtime=0)))}, "train.en.gz is a damaged"),
    "an archive of something else": ({"train.en": None, "train.en.gz": b"PK\x03\x04" + bytes(60)}, "train.en.gz is a ZIP archive"),
    "no target": ({"train.de": None}, "train.de"),
    "nothing for training": ({"train.en": None, "train.de": None}, "train.en"),
    "nothing at all": (dict.fromkeys(["train.en", "train.de", "val.en", "val.de"]), "holds nothing, and not the files"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_PAIRS)
def test_broken_pairs(tmp_path, name):
    files, message = BROKEN_PAIRS[name]
    refused(lambda: pairs(tmp_path, files), message)


def test_long_pairs_are_an_error_where_asked(tmp_path):
    files = {"train.en": line(7, b"word " * 300)}
    refused(lambda: pairs(tmp_path, files, too_long="error"), "pair 7 of the train split has")
    refused(lambda: pairs(tmp_path, {}, max_length=2), "all 40 pairs of the train split are longer than max_length=2")


SOUND_PAIRS = {
    "CRLF": {"train.en": GOOD.replace(b"\n", b"\r\n")},
    "a mark": {"train.de": b"\xef\xbb\xbf" + GOOD},
    "no end of the last line": {"train.en": GOOD[:-1], "val.de": GOOD[:-1]},
    "compressed": {"train.en": None, "train.en.gz": gzip.compress(GOOD, mtime=0)},
    "compressed in two parts": {"train.en": None, "train.en.gz": gzip.compress(GOOD[:99], mtime=0) + gzip.compress(GOOD[99:], mtime=0)},
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND_PAIRS)
def test_pairs_that_mean_the_same(tmp_path, name):
    reference, other = tmp_path / "plain", tmp_path / "other"
    reference.mkdir()
    other.mkdir()
    result = [pairs(reference, {}), pairs(other, SOUND_PAIRS[name])]
    for data in result:
        data.setup()
    first, second = (data.datasets["train"].batch(np.arange(40), 0) for data in result)
    assert all(first[key].tolist() == second[key].tolist() for key in first if hasattr(first[key], "tolist"))


def test_separators_of_unicode_and_doubles_end_no_line(tmp_path):
    odd = ["a\u2028b", "c\u2029d", "e\x0bf", "g\x0ch", "i\x1cj", "k\u0085l", "same", "same"]
    content = "".join(f"{one}\n" for one in odd).encode() + GOOD
    data = pairs(tmp_path, {"train.en": content, "train.de": content})
    data.setup()
    assert len(data.datasets["train"]) == 48


BROKEN_TEXTS = {
    "a NUL": line(3, b"a\0b"), "UTF-16": GOOD.decode().encode("utf-16"),
    "Latin-1": line(5, b"caf\xe9"), "a program": b"\x7fELF\x02\x01\x01" + bytes(range(256)), "an archive": gzip.compress(GOOD),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_TEXTS)
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_broken_texts(tmp_path, name, tokenizer):
    (tmp_path / "t.txt").write_bytes(BROKEN_TEXTS[name])
    refused(lambda: TextFiles(str(tmp_path / "t.txt"), tokenizer=tokenizer, max_length=8), "t.txt")


def test_a_text_that_is_no_file(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "link.txt").symlink_to("nowhere")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("folder.txt", "link.txt", "loop.txt", "no*.txt", "none.txt"):
        refused(lambda name=name: TextFiles(str(tmp_path / name), tokenizer="bytes"), name)


def picture(form, mode="RGB", size=(12, 9), **options):
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def png(width, height, data=b"", crc=0):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c) ^ crc) for n, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


BROKEN_IMAGES = {
    "nothing": ("x.png", b""), "a text": ("x.jpg", b"no image"), "SVG": ("x.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    "PDF": ("x.png", b"%PDF-1.7\n"), "HTML": ("x.jpg", b"<html>404 not found</html>"),
    **{f"{form} cut off": (f"x.{form.lower()}", picture(form, size=(64, 64))[:-900]) for form in ("PNG", "JPEG", "WEBP", "TIFF", "BMP")},
    "GIF cut off": ("x.gif", picture("GIF", size=(64, 64))[:700]),
    "16 bits": ("x.png", picture("PNG", "I;16")), "floats": ("x.tiff", picture("TIFF", "F")), "32 bits": ("x.tiff", picture("TIFF", "I")),
    "no pixels": ("x.png", png(0, 0)), "no width": ("x.png", png(0, 5)), "a wrong checksum": ("x.png", png(4, 4, zlib.compress(bytes(52)), 1)),
    "a wrong length": ("x.png", png(4, 4, zlib.compress(bytes(5)))), "60,000 by 60,000": ("x.png", png(60_000, 60_000)),
    "a size beyond any": ("x.png", png(2**31 - 1, 2**31 - 1)), "a text that unpacks to 99 MB": ("x.png", b""),
}  # fmt: skip


@pytest.fixture
def images(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for n in range(3):
                (tmp_path / "images" / split / name / f"{n}.png").write_bytes(picture("PNG", size=(12 + n, 9)))
    return tmp_path / "images"


def bomb():
    whole = picture("PNG")
    content = b"Comment\0\0" + zlib.compress(bytes(99 * MB))
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    return whole[:33] + chunk + whole[33:]


@pytest.mark.parametrize("name", BROKEN_IMAGES)
@pytest.mark.parametrize("split", ["train", "val"])
def test_broken_images(images, name, split):
    file, content = BROKEN_IMAGES[name]
    (images / split / "dog" / file).write_bytes(bomb() if "unpacks" in name else content)
    refused(lambda: ImageFolder(str(images), image_size=8), file)


ODD_IMAGES = {
    "CMYK": ("x.jpg", picture("JPEG", "CMYK")), "grey": ("x.png", picture("PNG", "L")), "a palette": ("x.png", picture("PNG", "P")),
    "one bit": ("x.png", picture("PNG", "1")), "transparent": ("x.png", picture("PNG", "RGBA")), "grey and transparent": ("x.png", picture("PNG", "LA")),
    "one pixel": ("x.png", picture("PNG", size=(1, 1))), "a stripe": ("x.png", picture("PNG", size=(900, 1))),
    "animated": ("x.gif", picture("GIF", save_all=True, append_images=[Image.new("RGB", (12, 9))])), "another name": ("x.png", picture("JPEG")),
    "Lab": ("x.tiff", picture("TIFF", "LAB")), "YCbCr": ("x.tiff", picture("TIFF", "YCbCr")),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_odd_images_are_read(images, name):
    file, content = ODD_IMAGES[name]
    try:
        Image.open(io.BytesIO(content)).load()
    except OSError as error:
        pytest.skip(f"this Pillow cannot read the picture that it wrote: {error}")
    (images / "train" / "dog" / file).write_bytes(content)
    data = ImageFolder(str(images), image_size=8, batch_size=7)
    data.setup()
    batch = data.datasets["train"].batch(np.arange(7), 0)
    assert batch["images"].shape == (7, 3, 8, 8)
    assert batch["images"].isfinite().all()


def test_images_that_are_no_files(images):
    (images / "train/dog/x.png").symlink_to("nowhere.png")
    refused(lambda: ImageFolder(str(images), image_size=8), "x.png")


def test_an_image_that_vanishes_is_named(images):
    data = ImageFolder(str(images), image_size=8)
    data.setup()
    (images / "train/dog/1.png").unlink()
    with pytest.raises(UsageError, match=r"dog.1\.png"):
        data.datasets["train"].batch(np.arange(6), 0)


def test_folders_of_classes(images):
    (images / "train" / "emu").mkdir()
    refused(lambda: ImageFolder(str(images), image_size=8), "emu")
    (images / "train" / "emu" / "notes.txt").write_text("no image")
    refused(lambda: ImageFolder(str(images), image_size=8), "emu")
    refused(lambda: ImageFolder(str(images / "train" / "cat"), image_size=8), "train")
