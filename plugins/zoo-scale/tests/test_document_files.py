"""Documents out of files of any size: nothing lost at a cut, and a message that names the file for every damage."""

import gzip
import json
import os
import pickle

import pytest
from zoo_scale import document_files as module
from zoo_scale import document_paths
from zoo_scale.document_files import DocumentFiles, Format

from zoo.data import table_files
from zoo.errors import UsageError

pyarrow = pytest.importorskip("pyarrow")
TEXT = "".join(f"line {n} ä€😀 of a text\n" + ("\n" if n % 5 == 0 else "") for n in range(400))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Sizes at which every cut occurs in a small text."""
    for name, value in {"LONGEST": 300, "SPAN": 1000, "BLOCK": 130, "LONGEST_RECORD": 5000}.items():
        monkeypatch.setattr(module, name, value)


def read(paths, separator="", field="text"):
    files = pickle.loads(pickle.dumps(DocumentFiles(paths, Format(separator, field))))
    return [document for unit in files.units() for document in files.read(unit)]


def texts(*arguments, **options):
    return [document.text for document in read(*arguments, **options)]


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, "zstd") as file:
            file.write(content)
        content = sink.getvalue().to_pybytes()
    path.write_bytes(content)
    return path


def write_table(path, **columns):
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.zst"])
def test_pieces_of_a_long_document_are_the_whole_of_it(tmp_path, suffix):
    pieces = texts([write(tmp_path / f"a{suffix}", TEXT)])
    assert "".join(pieces) == TEXT
    assert len(pieces) > 20
    assert all(piece.endswith("\n") for piece in pieces)
    assert max(len(piece.encode()) for piece in pieces) <= 300


@pytest.mark.parametrize("content", ["ä" * 5000, "😀" * 5000, "x\r\n" * 3000, "word " * 2000])
def test_a_text_without_ends_of_lines_is_cut_between_characters(tmp_path, content):
    file = write(tmp_path / "a.txt", content)
    assert "".join(texts([file])) == content.replace("\r\n", "\n")
    assert len(DocumentFiles([file], Format()).units()) > 1


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.zst"])
def test_documents_are_what_the_separator_divides(tmp_path, suffix):
    documents = [f"document {n} " + "of a few words " * (n % 9) for n in range(300)]
    file = write(tmp_path / f"a{suffix}", "<|end|>".join(documents))
    assert texts([file], separator="<|end|>") == documents


def test_units_of_a_plain_file_hold_each_document_once(tmp_path):
    documents = [f"{n} " + "w " * (n % 40) for n in range(500)]
    files = DocumentFiles([write(tmp_path / "a.txt", "\n\n".join(documents))], Format("\n\n"))
    units = files.units()
    assert len(units) > 10
    assert [one.text for unit in units for one in files.read(unit)] == documents


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_reading_goes_on_at_the_place_of_any_document(tmp_path, name):
    records = [f"text {n} " + "line\n" * (n % 150) for n in range(60)]
    if name == "a.parquet":
        file = write_table(tmp_path / name, text=[*records, ""])
    elif "jsonl" in name:
        file = write(tmp_path / name, "".join(json.dumps({"text": record}) + "\n" for record in records))
    else:
        file = write(tmp_path / name, "\n\n".join(records))
    files = DocumentFiles([file], Format("\n\n"))
    count = 0
    for unit in files.units():
        documents = list(files.read(unit))
        count += len(documents)
        for number in range(0, len(documents), 5):
            assert list(files.read(unit, documents[number].place)) == documents[number:]
    assert "".join(texts([file], separator="\n\n")).replace("\n", "") == "".join(records).replace("\n", "")
    assert count > len(records)


def test_a_mark_of_utf8_is_removed_and_one_of_utf16_refused(tmp_path):
    assert texts([write(tmp_path / "a.txt", b"\xef\xbb\xbfab")]) == ["ab"]
    file = write(tmp_path / "b.txt", "ab".encode("utf-16"))
    with pytest.raises(UsageError, match=r"b\.txt:1: the file is UTF-16"):
        texts([file])


def damaged(tmp_path):
    whole = gzip.compress(os.urandom(5000).hex().encode())
    yield write(tmp_path / "latin.txt", TEXT.encode() + b"caf\xe9\n"), r"latin\.txt:481: byte 0xe9 is not UTF-8"
    yield write(tmp_path / "nul.txt", TEXT[:2000] + "\n\0"), r"nul\.txt:\d+ holds a NUL"
    (tmp_path / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    yield tmp_path / "cut.txt.gz", r"cut\.txt\.gz is a damaged or truncated gzip file"
    (tmp_path / "bad.txt.gz").write_bytes(whole[:900] + b"zzzz" + whole[904:])
    yield tmp_path / "bad.txt.gz", r"bad\.txt\.gz is a damaged or truncated gzip file"
    (tmp_path / "not.txt.gz").write_bytes(b"plain text")
    yield tmp_path / "not.txt.gz", r"not\.txt\.gz is a damaged or truncated gzip file"
    zst = write(tmp_path / "cut.txt.zst", os.urandom(5000).hex())
    zst.write_bytes(zst.read_bytes()[:2000])
    yield zst, r"cut\.txt\.zst is a damaged or truncated zst file"
    yield write(tmp_path / "not.parquet", "plain text"), r"not\.parquet is a damaged or truncated parquet file"
    yield write(tmp_path / "empty.txt", ""), r"empty\.txt is empty"
    yield write(tmp_path / "empty.txt.gz", ""), r"empty\.txt\.gz is empty"
    yield write(tmp_path / "list.jsonl", '{"text": "a"}\n["a"]\n'), r"list\.jsonl:2 has no text under 'text'"
    yield write(tmp_path / "field.jsonl", '{"body": "a"}\n'), r"field\.jsonl:1 has no text under 'text'"
    yield write(tmp_path / "half.jsonl", '{"text": "a"}\n\n{"text": '), r"half\.jsonl:3 is not a line of JSON"
    yield write_table(tmp_path / "other.parquet", body=["a"]), r"no column 'text'; it has 'body'"
    yield write_table(tmp_path / "number.parquet", text=[1]), r"row 1: the text is a number and not a text"
    yield write_table(tmp_path / "null.parquet", text=[*"abcdefgh", None]), r"null\.parquet, row 9: the text is null"
    yield tmp_path / "absent.txt", r"absent\.txt cannot be read: No such file"


def test_damage_is_named_with_its_file(tmp_path):
    for file, message in damaged(tmp_path):
        with pytest.raises(UsageError, match=message) as error:
            texts([file])
        assert len(str(error.value).splitlines()) <= 4, file


def test_a_file_that_changes_is_noticed_when_it_is_opened(tmp_path):
    file = write(tmp_path / "a.txt", TEXT)
    files = DocumentFiles([file], Format())
    units = files.units()
    list(files.read(units[0]))
    file.write_text(TEXT[:-100])
    with pytest.raises(UsageError, match=r"a\.txt changed while a run reads it"):
        list(files.read(units[1]))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"a\.txt\.zst needs the package pyarrow: pip install 'zoo-transformers\["):
        DocumentFiles([write(tmp_path / "a.txt.zst", TEXT)], Format())


def test_a_folder_gives_its_text_files(tmp_path):
    for name in ("b.txt", "a.md.gz", "c.parquet", "d.jsonl.zst", "picture.png", ".hidden.txt", "empty.txt"):
        (tmp_path / name).write_bytes(b"" if name == "empty.txt" else b"x")
    names = [path.name for path in document_paths.document_files(str(tmp_path))]
    assert names == ["a.md.gz", "b.txt", "c.parquet", "d.jsonl.zst"]


def test_digests_follow_the_content(tmp_path, monkeypatch):
    file = write(tmp_path / "a.txt", TEXT * 2)
    first = DocumentFiles([file], Format()).digests
    assert DocumentFiles([file], Format()).digests == first
    write(file, TEXT + TEXT.replace("line 7 ", "line 8 "))
    assert DocumentFiles([file], Format()).digests != first
    monkeypatch.setattr(module, "HASHED_BYTES", 10)  # three pieces of each file, and its length
    pieces = DocumentFiles([file], Format()).digests
    write(file, file.read_text() + "x")
    assert DocumentFiles([file], Format()).digests != pieces


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_separator_of_lines_divides_files_with_crlf_too(tmp_path, ending):
    texts = [f"first line {number}\nsecond line" for number in range(5)]
    for name, line_end in (("lf", "\n"), ("crlf", "\r\n")):
        content = "\n\n".join(texts).replace("\n", line_end).encode()
        path = tmp_path / f"{name}.txt{ending}"
        path.write_bytes(gzip.compress(content) if ending else content)
        files = DocumentFiles([path], Format(separator="\n\n"))
        documents = [document.text for unit in files.units() for document in files.read(unit)]
        assert [text.strip() for text in documents] == texts, name
