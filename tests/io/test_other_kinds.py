"""Archives and pointers of Git LFS in the place of texts, weights or checkpoints are named, with the remedy."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
from zoo_scale.document_files import DocumentFiles, Format

from zoo.data.image_decoding import open_header
from zoo.data.image_sources import NpzImages
from zoo.data.source_files import raw_lines, read_lines, read_text
from zoo.data.table_files import Columns, read_rows
from zoo.errors import CheckpointError, UsageError
from zoo.inference.safe_pickle import screen_pickle
from zoo.inference.weight_files import open_tensors
from zoo.io import limits

TEXT = b"a line of text\n" * 40


def pack(archive):
    """The bytes of a ZIP or tar archive of one text."""
    buffer = io.BytesIO()
    if archive is zipfile:
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("book.txt", TEXT)
    else:
        with tarfile.open(fileobj=buffer, mode="w") as file:
            entry = tarfile.TarInfo("book.txt")
            entry.size = len(TEXT)
            file.addfile(entry, io.BytesIO(TEXT))
    return buffer.getvalue()


KINDS = {
    "git lfs pull": b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 7\n",
    "unzip": pack(zipfile), "tar -xf": pack(tarfile), "gunzip": gzip.compress(TEXT), "bunzip2": bz2.compress(TEXT),
    "xz -d": lzma.compress(TEXT), "pdftotext": b"%PDF-1.7\n" + TEXT, "zstd -d": b"\x28\xb5\x2f\xfd" + TEXT,
    "7z x": b"7z\xbc\xaf\x27\x1c" + TEXT, "unrar x": b"Rar!\x1a\x07\x01\x00" + TEXT,
    "plain text": b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + TEXT,
    "table of it": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
}  # fmt: skip
PAGE = b"\n<!doctype HTML>\n<title>Sign in</title>\n"
READERS = {
    "text": lambda path: read_text(path, "lm-tiny"), "lines": lambda path: read_lines(path, "lm-tiny"),
    "bytes of lines": lambda path: raw_lines(path, "lm-tiny"), "JSON": limits.read_json, "weights": open_tensors,
    "checkpoint": screen_pickle,
}  # fmt: skip


COLUMNS = Columns({"text": ["text"]})
NAMES = ("a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet", "a.arrow", "a.csv.gz", "a.jsonl.gz", "a.png", "a.jpg",
         "a.npz", "documents.jsonl", "documents.parquet")  # fmt: skip


def read(path):
    """Read a file as its name says."""
    if path.suffix == ".npz":
        NpzImages(str(path), str(path)).read()
    elif path.suffix in (".png", ".jpg"):
        open_header(str(path))
    elif path.name.startswith("documents"):
        files = DocumentFiles([path], Format(separator="\n"))
        [list(files.read(unit)) for unit in files.units()]
    else:
        list(read_rows(path, COLUMNS))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_kind_in_the_place_of_data_is_named(name, tmp_path):
    if name.endswith((".parquet", ".arrow")):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    own = {".npz": "unzip", ".gz": "gunzip"}.get(path.suffix)  # which such a file is
    for remedy, content in ({**KINDS, "in place of its page": PAGE}).items():
        path.write_bytes(content)
        if remedy != own:
            with pytest.raises(UsageError, match=remedy) as caught:
                read(path)
            assert str(path) in str(caught.value)


def test_a_page_is_a_text_and_no_table(tmp_path):
    (tmp_path / "page.txt").write_bytes(PAGE)
    assert read_text(tmp_path / "page.txt", "lm-tiny") == PAGE.decode()


@pytest.mark.parametrize("remedy", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_another_kind_is_named(reader, remedy, tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(KINDS[remedy])
    if reader == "checkpoint" and remedy in ("unzip", "plain text"):  # archives, as a checkpoint is
        remedy = "not a whole checkpoint"
    with pytest.raises((UsageError, CheckpointError), match=remedy) as caught:
        READERS[reader](path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("reader", [read_lines, raw_lines])
def test_lines_that_end_with_cr_alone_are_refused(reader, tmp_path):
    path = tmp_path / "mac.en"
    path.write_bytes(b"first\rsecond\rthird\r")
    with pytest.raises(UsageError, match="CR alone"):
        reader(path, "translation-tiny")
    path.write_bytes(b"first\r\nsecond\rhalf\r\n")
    assert len(reader(path, "translation-tiny")) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "documents.jsonl", "a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("rows", [2, 3, 200])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_tables_whose_lines_end_with_cr_alone_are_refused(name, rows, mark, tmp_path):
    cells = [b'{"text": "a b"}'] * rows if "jsonl" in name else [b"text", *[b"a b"] * (rows - 1)]
    for end in (b"\r", b"\r\n", b"\n"):
        content = mark + b"".join(cell + end for cell in cells)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        if end == b"\r":
            with pytest.raises(UsageError, match=rf"{name}: its lines end with CR alone"):
                read(tmp_path / name)
        else:
            read(tmp_path / name)


def test_a_line_of_csv_that_ends_with_cr_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\na,b\nc,d\re,f\n")
    with pytest.raises(UsageError, match=r"a.csv:3 is no row of CSV: a line of it ends with CR alone"):
        list(read_rows(tmp_path / "a.csv", COLUMNS))
