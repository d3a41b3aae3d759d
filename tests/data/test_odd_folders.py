"""One folder of odd files through every data source: each file is read, counted and named by its kind, or refused."""

import gzip
import logging
import os

import numpy as np
import pytest
from PIL import Image
from zoo_scale.text_stream import TextStream

from zoo.data import image_sources
from zoo.data.image_decoding import FilePixels, Files, decode
from zoo.data.image_sources import ImageFolder
from zoo.data.parallel_files import ParallelFiles
from zoo.data.source_files import count_kinds, list_folder, match_files
from zoo.data.text import TextFiles, text_files
from zoo.errors import UsageError
from zoo.io import limits

TEXT = "".join(f"the quick brown fox {n} jumps over a lazy dog\n" for n in range(60)).encode()
# names and contents: what a language model reads as text, and what it does not
READ = {
    "a.txt": TEXT, "B.TXT": TEXT + b"b", "c.Md": TEXT + b"c", "d.txt.gz": gzip.compress(TEXT + b"d"),
    "E.TXT.GZ": gzip.compress(TEXT + b"e"), "[v2] book.txt": TEXT + b"f", "*.txt": TEXT + b"g",
    "a b\u00e9.txt": TEXT + b"h", "mark.txt": b"\xef\xbb\xbf" + TEXT, "crlf.txt": TEXT.replace(b"\n", b"\r\n"),
    "-n.txt": TEXT + b"i", "table.csv": b"label,text\n" + TEXT, "page.html": b"<p>" + TEXT,
}  # fmt: skip
OTHERS = {
    "empty.txt": b"", ".hidden.txt": TEXT, "._a.txt": TEXT, "Thumbs.db": b"x", ".DS_Store": b"x", "desktop.ini": b"x",
    "state.json": b'{"_data_files": []}', "dataset_info.json": b"{}", "DATASET_INFO.JSON": b"{}",
    "data-00000-of-00001.arrow": b"ARROW1", "photo.jpg": b"\xff\xd8", "scan.pdf": b"%PDF", "word.docx": b"PK",
    "archive.zip": b"PK", "a.txt~": TEXT, "a.txt.bak": TEXT, "a.txt.part": TEXT, "README": TEXT, "noending.": TEXT,
    "weights.bin": b"\0\1", "run.log": TEXT,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def odd(tmp_path):
    """Forty files and folders of the kinds that people have."""
    folder = tmp_path / "odd"
    folder.mkdir()
    for name, content in {**READ, **OTHERS}.items():
        (folder / name).write_bytes(content)
    for place in (".git", "deep/er", "elsewhere"):
        ((tmp_path if place == "elsewhere" else folder) / place).mkdir(parents=True)
    (folder / ".git/config.txt").write_bytes(TEXT)
    (folder / "deep/er/deep.txt").write_bytes(TEXT + b"j")
    (tmp_path / "elsewhere/linked.txt").write_bytes(TEXT + b"k")
    (folder / "elsewhere").symlink_to(tmp_path / "elsewhere")
    (folder / "deep/back").symlink_to(folder)
    (folder / "deep/round").symlink_to(folder / "deep")
    (folder / "again.txt").symlink_to(folder / "deep/er/deep.txt")
    (folder / "gone.pdf").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe.txt")
    return folder


def everything(folder):
    """Every file below a folder by its real place, hidden folders as a whole."""
    return (
        set(folder.iterdir())
        | set((folder / "deep").iterdir())
        | {folder / "deep/er/deep.txt", folder / "elsewhere/linked.txt"}
    )


def readable(folder):
    files = {folder / name for name in READ}
    return files | {folder / "again.txt", folder / "elsewhere/linked.txt"}


def test_every_file_of_a_folder_is_read_or_has_a_reason(odd):
    listing = list_folder(odd, lambda name: name.lower().endswith((".txt", ".gz")), empty=False)
    entries = everything(odd) - {odd / "deep", odd / "deep/er", odd / "elsewhere"}
    assert set(listing.files) | listing.others.keys() == entries
    assert not set(listing.files) & listing.others.keys()
    assert len(listing.files) == len({file.resolve() for file in listing.files})


@pytest.mark.parametrize("source", [TextFiles, TextStream])
def test_texts_of_an_odd_folder(odd, source, caplog):
    with caplog.at_level(logging.WARNING):
        assert set(text_files(str(odd))) == readable(odd)
        data = source(str(odd), tokenizer="bytes")
        data.ready()
    messages = next(record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    for words in ("hidden", "empty", "no ordinary file", ".arrow", ".json", ".pdf", ".bak", "without an ending"):
        assert words in messages
    assert "a link to what is read already" in messages
    if source is TextStream:
        assert {path.resolve() for path in data.files["train"].paths} == {path.resolve() for path in readable(odd)}


@pytest.mark.parametrize("settled", [True, False])
def test_names_of_image_files_and_classes_that_are_not_utf_8(tmp_path, monkeypatch, settled):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_sources, "UNSETTLED", -(10**12) if settled else 10**12)
    for number in range(8):
        place = tmp_path / "n" / ("train", "val")[number % 2] / ("cat", "dog")[number // 4]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(place / f"{number}.png")
    root = os.fsencode(tmp_path / "n")
    os.rename(root + b"/train/cat/0.png", root + b"/train/cat/caf\xe9.png")
    for _ in range(2):
        assert ImageFolder(str(tmp_path / "n"), image_size=8).fingerprint()
    os.rename(root + b"/train/cat", root + b"/train/caf\xe9")
    with pytest.raises(UsageError, match=r"the name of the class 'caf.udce9' is not UTF-8: rename the folder"):
        ImageFolder(str(tmp_path / "n"), image_size=8).ready()


def test_patterns_and_names_with_brackets(odd):
    assert match_files(str(odd / "[[]v2]*.txt")) == [odd / "[v2] book.txt"]
    assert text_files(str(odd / "[v2] book.txt")) == [odd / "[v2] book.txt"]
    assert text_files(str(odd / "*.txt")) == [odd / "*.txt"]  # a file of that very name
    (odd / "deep [1]").mkdir()
    (odd / "deep [1]/x.txt").write_bytes(TEXT)
    assert text_files(str(odd / "deep [1]/*.txt")) == [odd / "deep [1]/x.txt"]
    every = text_files(str(odd / "**/*.txt"))
    assert len(every) == len({file.resolve() for file in every})
    assert odd / "elsewhere/linked.txt" in every
    assert not any(part.startswith(".") for file in every for part in file.relative_to(odd).parts)


@pytest.mark.parametrize("links", range(2, 7))
def test_folders_that_link_to_each_other_end(tmp_path, links):
    places = [tmp_path / f"f{n}" for n in range(links)]
    for place in places:
        place.mkdir()
        (place / "a.txt").write_bytes(TEXT + place.name.encode())
    for one in places:
        for two in places:
            (one / f"to-{two.name}").symlink_to(two)
    assert len(list_folder(tmp_path, lambda name: name.endswith(".txt")).files) == links


@pytest.mark.parametrize("name", ["state.json", "scan.pdf", "empty.txt", ".hidden.txt"])
def test_a_folder_without_text_says_what_it_holds(tmp_path, name):
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / name).write_bytes(OTHERS[name])
    kind = list_folder(tmp_path / "only", lambda _: False, empty=False).others
    with pytest.raises(UsageError, match=r"has no text file with content.*1 "):
        text_files(str(tmp_path / "only"))
    assert len(kind) == 1


def test_pairs_beside_odd_files_are_found_and_the_others_named(odd, caplog):
    (odd / "Train.En").write_text("\n".join(f"this is text {n}" for n in range(40)))
    (odd / "train.de.gz").write_bytes(gzip.compress("\n".join(f"das ist Text {n}" for n in range(40)).encode()))
    with caplog.at_level(logging.WARNING):
        ParallelFiles(str(odd), vocab_size=300).ready()
    messages = [record.getMessage() for record in caplog.records]
    assert sum("left out" in one and "scan.pdf" in one for one in messages) == 1


@pytest.mark.parametrize("form", ["folders of splits", "folders of classes"])
def test_images_among_odd_files(odd, form, caplog):
    root = odd / "train" if form == "folders of splits" else odd
    if form == "folders of classes":
        for entry in (odd / "deep", odd / "elsewhere"):
            entry.rename(odd.parent / f"moved-{entry.name}") if not entry.is_symlink() else entry.unlink()
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for n in range(6):
            noise = np.random.default_rng((n, len(label), ord(label[0]))).integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(noise).save(root / label / f"{n}.PNG")
        for name in (".hidden.png", "._0.PNG", "notes.txt"):
            (root / label / name).write_bytes(b"x")
        (root / label / ".ipynb_checkpoints").mkdir()
        (root / label / "up").symlink_to(odd)
    with caplog.at_level(logging.WARNING):
        data = ImageFolder(str(odd), image_size=8, val_fraction=0.3)
        data.ready()
    assert data.names == ["cat", "dog"]
    assert [len(data.datasets[split]) for split in ("train", "val")] == [8, 4]
    assert any("hidden" in record.getMessage() and ".txt" in record.getMessage() for record in caplog.records)


def image_folder(root, count=8, classes=("a", "b")):
    for label in classes:
        (root / label).mkdir(parents=True)
        for n in range(count):
            Image.new("RGB", (9, 9), (20 * n, 9 * len(label), ord(label[0]) % 256)).save(root / label / f"{n}.png")


@pytest.mark.parametrize("seed", range(4))
def test_equal_images_are_on_one_side(tmp_path, seed):
    draw = np.random.default_rng(seed)
    root = tmp_path / "photos"
    image_folder(root)
    for n in range(12):
        label = "ab"[int(draw.integers(2))]
        source = root / label / f"{draw.integers(8)}.png"
        (root / label / f"copy{n}.png").write_bytes(source.read_bytes())
    data = ImageFolder(str(root), image_size=8, val_fraction=float(draw.choice([0.1, 0.3, 0.5])))
    data.ready()
    sides = [{digest for _, digest in data.datasets[split].pixels.identity} for split in ("train", "val")]
    assert not sides[0] & sides[1]
    assert len(data.datasets["train"]) + len(data.datasets["val"]) == 28


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("decoded", [2**28, 0])
def test_other_pixels_of_the_same_size_and_time_are_other_data(tmp_path, place, decoded, monkeypatch):
    """Whatever the number of bytes: every byte of every file counts, also behind a cache of what was read."""
    monkeypatch.setattr(image_sources, "DECODED_BYTES", decoded)
    monkeypatch.setattr(image_sources, "UNSETTLED", 0)
    marks, root = [], tmp_path / "photos"
    for shade in (0, 1):
        for label in "ab":
            (root / label).mkdir(parents=True, exist_ok=True)
            for n in range(4):
                pixels = np.full((80, 80, 3), 40 * n + 7 * (label == "b"), np.uint8)
                pixels[{"first": 0, "middle": 31, "last": -1}[place], 11] += shade
                path = root / label / f"{n}.bmp"
                Image.fromarray(pixels).save(path)
                os.utime(path, (0, 0))
        data = ImageFolder(str(root), image_size=8)
        marks.append(data.fingerprint())
    assert marks[0] != marks[1]


@pytest.mark.parametrize("size", [(100_000, 1), (1, 100_000), (300_000, 2), (5, 64_000)])
def test_a_thin_image_is_read_without_enlarging_all_of_it(tmp_path, size):
    import resource

    Image.linear_gradient("L").resize(size).convert("RGB").save(tmp_path / "x.png")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pixels = FilePixels(1, 224, Files([str(tmp_path / "x.png")]), None).fetch(np.array([0]))
    assert pixels.shape == (1, 3, 224, 224)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    assert abs(float(pixels.float().mean()) - 127.5) < 8  # the middle of the gradient


@pytest.mark.parametrize(
    "tag", ["1a01 0100 01000000 00000000", "1201 0200 ffffff7f 00000000", "1201 ffff 01000000 06000000",
            "6987 0400 01000000 ffffffff"],
)  # fmt: skip
@pytest.mark.parametrize("mark", [1, 6])
def test_malformed_exif_stops_nothing(tmp_path, tag, mark):
    turn = b"\x12\x01\x03\x00\x01\x00\x00\x00" + bytes([mark]) + b"\0\0\0"
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + turn + bytes.fromhex(tag) + b"\0\0\0\0"
    Image.new("RGB", (20, 16), (9, 99, 200)).save(tmp_path / "x.jpg", exif=exif)
    pixels = FilePixels(1, 8, Files([str(tmp_path / "x.jpg")]), None).fetch(np.array([0]))
    assert pixels.shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    "tag", ["1a01 0200 04000000 61626300", "1b01 0b00 01000000 00006040", "1c01 0900 01000000 fdffffff"]
)  # a resolution as a text, numbers of other types, which Pillow cannot write again
def test_a_photo_is_turned_whatever_else_its_exif_data_hold(tmp_path, tag):
    turn = b"\x12\x01\x03\x00\x01\x00\x00\x00\x06\0\0\0"
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + turn + bytes.fromhex(tag) + b"\0\0\0\0"
    Image.new("RGB", (20, 16), (9, 99, 200)).save(tmp_path / "x.jpg", exif=exif)
    with Image.open(tmp_path / "x.jpg") as image:
        assert decode(image, "RGB", "x").size == (16, 20)


@pytest.mark.parametrize("members", [1, 1000, 8000])
def test_gzip_of_many_members_takes_linear_time(members):
    import time

    data = gzip.compress(TEXT[:45]) * members
    began = time.process_time()
    assert len(limits.gunzip(data, "x.gz")) == 45 * members
    assert time.process_time() - began < 1 + members / 2000


def test_kinds_are_counted_with_an_example(tmp_path):
    others = {tmp_path / "a" / f"{n}.avif": ".avif" for n in range(3)} | {tmp_path / "x": "hidden"}
    assert count_kinds(others).startswith("3 .avif (a/0.avif, …), 1 hidden (")
