"""Archives and pointers of Git LFS in the place of texts, weights or checkpoints are named, with the remedy."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from zoo.data.source_files import raw_lines, read_lines, read_text
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
    "7z x": b"7z\xbc\xaf\x27\x1c" + TEXT,
}  # fmt: skip
READERS = {
    "text": lambda path: read_text(path, "lm-tiny"), "lines": lambda path: read_lines(path, "lm-tiny"),
    "bytes of lines": lambda path: raw_lines(path, "lm-tiny"), "JSON": limits.read_json, "weights": open_tensors,
    "checkpoint": screen_pickle,
}  # fmt: skip


@pytest.mark.parametrize("remedy", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_another_kind_is_named(reader, remedy, tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(KINDS[remedy])
    if (reader, remedy) == ("checkpoint", "unzip"):  # which a checkpoint is
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
