"""Tables by the names of columns: each format gives the rows that its library wrote, and what is wrong is named."""

import csv
import gzip
import io
import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from zoo_scale.text_stream import TextStream

from zoo.data import table_files
from zoo.data.image_sources import ImageFolder
from zoo.data.parallel_files import PairOptions, ParallelFiles
from zoo.data.table_files import (
    Columns,
    Tables,
    choose_columns,
    find_splits,
    is_columnar,
    read_rows,
    split_columns,
    text_of,
)
from zoo.data.text import TextFiles
from zoo.errors import UsageError

pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet and Arrow: the extra data")
from pyarrow import ipc, parquet  # noqa: E402 - behind the check

ALPHABET = ["a", "b c", "é", "\u2028", "\U0001f98a", '"', "'", ",", ";", "\\", "\t", "\n", "  ", "#", "NA", "null", "0"]
ROLES = Columns({"text": ["text"], "label": ["label"], "inner": ["pair.en"]})


def draw_rows(seed, count=150):
    """Rows with odd texts; more than one batch of them."""
    draw = np.random.default_rng(seed)
    texts = ["".join(draw.choice(ALPHABET, draw.integers(1, 12))) for _ in range(count)]
    return [{"text": text, "label": "ab"[n % 2], "pair": {"en": f"{text}!", "de": "x"}} for n, text in enumerate(texts)]


def write_arrow(path, rows, file_format=False):
    table = pyarrow.Table.from_pylist(rows)
    with (ipc.new_file if file_format else ipc.new_stream)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


def write_csv(path, rows, dialect="excel"):
    with io.StringIO(newline="") as text:
        writer = csv.writer(text, dialect)
        writer.writerows([list(rows[0]), *(row.values() for row in rows)])
        path.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())


def write_tables(folder, rows):
    """The same rows in every format that can hold objects."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.ndjson.gz").write_bytes(gzip.compress(lines))
    (folder / "lines.json").write_bytes(lines)
    (folder / "list.json").write_text(json.dumps(rows, indent=1))
    with pyarrow.CompressedOutputStream(str(folder / "a.jsonl.zst"), "zstd") as file:
        file.write(lines)
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=60)
    write_arrow(folder / "a.arrow", rows)
    write_arrow(folder / "file.arrow", rows, file_format=True)
    return sorted(file for file in folder.iterdir() if file.is_file())


@pytest.mark.parametrize("seed", range(4))
def test_all_formats_hold_the_same_rows(tmp_path, seed):
    rows = draw_rows(seed)
    files = write_tables(tmp_path, rows)
    assert len(files) == 8
    for file in files:
        values = [row.values for row in read_rows(file, ROLES)]
        assert values == [{"text": r["text"], "label": r["label"], "inner": r["pair"]["en"]} for r in rows], file.name
        assert [row.values for row in read_rows(file, ROLES, start=77)] == values[77:]
    part = [row.values["text"] for row in read_rows(tmp_path / "a.parquet", ROLES, group=1, start=5)]
    assert part == [row["text"] for row in rows][65:120]
    assert next(read_rows(tmp_path / "a.parquet", ROLES, group=1)).place.endswith("a.parquet, row 61")


@pytest.mark.parametrize("seed", range(4))
def test_csv_is_what_pythons_csv_writes(tmp_path, seed):
    rows = [{"id": n, "text": row["text"], "label": row["label"]} for n, row in enumerate(draw_rows(seed))]
    for dialect in ("excel", "unix"):
        write_csv(tmp_path / "a.csv", rows, dialect)
        read = list(read_rows(tmp_path / "a.csv", Columns({"label": ["label"], "text": ["text"]})))
        assert [row.values for row in read] == [{"label": row["label"], "text": row["text"]} for row in rows]
        content = (tmp_path / "a.csv").read_bytes().splitlines(keepends=True)
        assert len(content) > len(rows) + 1  # there are fields of several lines
    line = next(row.place for row in read if row.values["text"] == rows[-1]["text"])
    assert int(line.rpartition(":")[2]) > len(rows) or "\n" not in "".join(row["text"] for row in rows)


def test_tsv_knows_no_quotes(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b'text\tlabel\r\n"one\tx\r\ntwo"\ty\r\n')
    values = [row.values for row in read_rows(tmp_path / "a.tsv", Columns({"text": ["text"], "label": ["label"]}))]
    assert values == [{"text": '"one', "label": "x"}, {"text": 'two"', "label": "y"}]


@pytest.mark.parametrize("quoted", [True, False])
def test_fields_that_a_program_quoted_in_tsv_are_told(tmp_path, caplog, quoted):
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t", quoting=quoting, quotechar='"' if quoted else None).writerows(
            [["text"], ['she said "no"'], ['"no"'], ["no"]]
        )
    assert len(list(read_rows(tmp_path / "a.tsv", Columns({"text": ["text"]})))) == 3
    assert ("a.tsv:2: fields in quotes keep these" in caplog.text) == quoted
    assert caplog.text.count("fields in quotes") == quoted  # once, however many there are


BROKEN = {
    "no column": ("a.csv", b"body,label\na,b\n", r"has no column 'text'; it has 'body', 'label'"),
    "another delimiter": ("a.csv", b"text;label\na;b\n", "divided by another character"),
    "two columns of a name": ("a.csv", b"text,text\na,b\n", "several columns of the name 'text'"),
    "too few fields": ("a.csv", b"text,label\na,b\nc\n", r"a\.csv:3 has 1 fields, and the header has 2"),
    "too many fields": ("a.csv", b"text,label\na,b,c\n", r"a\.csv:2 has 3 fields"),
    "a line end in a field": ("a.tsv", b"text\tlabel\na\tb\nc\n", r"a\.tsv:3 .* save it as \.csv"),
    "an open quote": ("a.csv", b'text,label\n"a,b\nc,d\n', r"a\.csv:2 is no row of CSV"),
    "a quote inside": ("a.csv", b'text,label\n"a"b,c\n', r"a\.csv:2 is no row of CSV"),
    "Latin-1": ("a.csv", b"text,label\na,b\ncaf\xe9,d\n", r"a\.csv:3: byte 0xe9 is not UTF-8"),
    "UTF-16": ("a.csv", "text,label\na,b\n".encode("utf-16"), "is UTF-16"),
    "a NUL": ("a.csv", b"text,label\na\0,b\n", r"a\.csv:2 holds a NUL"),
    "empty": ("a.csv", b"", "is empty"),
    "a header alone": ("a.csv", b"text,label\n", "holds no row"),
    "no JSON": ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text"\n', r"a\.jsonl:2 is no line of JSON"),
    "no object": ("a.jsonl", b'{"text": "a", "label": "b"}\n["a"]\n', r"a\.jsonl:2 is a list"),
    "a missing key": ("a.jsonl", b'{"text": "a", "label": "b"}\n{"label": "b"}\n', r"jsonl:2 has no column 'text'"),
    "half a character": ("a.jsonl", b'{"text": "\\ud800", "label": "b"}\n', "half a character"),
    "truncated gzip": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99)[:-20], "damaged or truncated gzip"),
    "no Parquet": ("a.parquet", b"PAR1 and no more", "damaged or truncated parquet"),
    "no Arrow": ("a.arrow", b"\0" * 100, "damaged or truncated arrow"),
    "another ending": ("a.xlsx", b"PK", "is no table: columns are read from files that end in"),
}


def read_all(path):
    return list(Tables({"train": str(path)}, Columns({"text": ["text"], "label": ["label"]}), "r").rows("train"))


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_with_a_table_is_named(tmp_path, kind):
    name, content, message = BROKEN[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_all(tmp_path / name)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (1, "a number"), (1.5, "a number"), (True, "a truth value"), (["a"], "a list"),
     ({"a": "b"}, "an object"), (b"a", "bytes"), ("a\0", "a NUL")],
)  # fmt: skip
def test_a_value_that_is_no_text_is_named_with_its_row(tmp_path, value, kind):
    rows = [{"text": "a"}] * 70
    files = ["a.arrow"]
    write_arrow(tmp_path / "a.arrow", [{"text": value}])
    if not isinstance(value, bytes):
        files.append("a.jsonl")
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": value}]))
    for file in files:
        place = "row 1" if file == "a.arrow" else "jsonl:71"
        with pytest.raises(UsageError, match=f"{place}: the text .*{kind}"):
            [text_of(row, "text") for row in read_rows(tmp_path / file, Columns({"text": ["text"]}))]


def test_a_field_inside_of_what_is_no_object_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"pair": {"fr": "x"}}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:1 has no field 'en' .* it has 'fr'"):
        list(read_rows(tmp_path / "a.jsonl", Columns({"inner": ["pair.en"]})))
    with pytest.raises(UsageError, match="columns has 'txet': it names the columns of text"):
        choose_columns({"txet": "a"}, {"text": ["text"]})


def test_a_long_field_is_refused_where_it_is_too_long(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("text\n" + "x" * 5000 + "\n")
    assert len(next(read_rows(tmp_path / "a.csv", Columns({"text": ["text"]}))).values["text"]) == 5000
    monkeypatch.setattr(table_files, "LONGEST_RECORD", 1000)
    with pytest.raises(UsageError, match="field larger than field limit"):
        list(read_rows(tmp_path / "a.csv", Columns({"text": ["text"]})))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.csv"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    peaks = []
    for count in (2000, 20000):
        rows = [{"text": f"{n} " + "word " * 40} for n in range(count)]
        if name == "a.parquet":
            parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name, row_group_size=1000)
        elif name == "a.arrow":
            write_arrow(tmp_path / name, rows)
        elif name == "a.csv":
            write_csv(tmp_path / name, rows)
        else:
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        del rows
        tracemalloc.start()
        assert sum(1 for _ in read_rows(tmp_path / name, Columns({"text": ["text"]}))) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + 10**6 < 8 * 10**6, peaks


# folders


@pytest.fixture
def datasets():
    module = pytest.importorskip("datasets", reason="writes the folders that are read")
    module.disable_progress_bars()
    return module


def test_folders_of_the_library_datasets(tmp_path, datasets):
    names = ["O", "B-PER", "I-PER"]
    features = datasets.Features({
        "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"]),
        "tags": datasets.Sequence(datasets.ClassLabel(names=names)), "translation": datasets.Translation(["en", "de"]),
    })  # fmt: skip
    draw = np.random.default_rng(0)
    content = {
        "text": [f"text {n}" for n in range(130)], "label": [n % 2 for n in range(130)],
        "tags": [[int(tag) for tag in draw.integers(0, 3, n % 4)] for n in range(130)],
        "translation": [{"en": f"e{n}", "de": f"d{n}"} for n in range(130)],
    }  # fmt: skip
    whole = datasets.Dataset.from_dict(content, features=features)
    splits = {"train": whole, "validation": whole.select(range(9)), "test": whole.select([5, 3]), "extra": whole}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "dict", num_shards=dict.fromkeys(splits, 2))
    whole.select(range(129, -1, -1)).save_to_disk(tmp_path / "backwards", num_shards=3)
    whole.to_parquet(tmp_path / "a.parquet")
    roles = Columns({"text": ["text"], "label": ["label"], "tags": ["tags"], "de": ["translation.de"]})
    expected = [
        {"text": f"text {n}", "label": ["neg", "pos"][n % 2], "tags": [names[tag] for tag in tags], "de": f"d{n}"}
        for n, tags in enumerate(content["tags"])
    ]
    folder = Tables({"train": str(tmp_path / "dict")}, roles, "r")
    assert {split: len(list(folder.rows(split))) for split in folder.splits} == {"train": 130, "val": 9, "test": 2}
    for path, rows in (("dict", expected), ("backwards", expected[::-1]), ("a.parquet", expected)):
        assert [row.values for row in Tables({"train": str(tmp_path / path)}, roles, "r").rows("train")] == rows
        assert is_columnar(tmp_path / path, lambda name: True)
    stream = TextStream(str(tmp_path / "dict"), tokenizer="bytes", seed=0)
    stream.ready()
    texts = {
        split: [d.text for unit in files.units() for d in files.read(unit)] for split, files in stream.files.items()
    }
    assert texts == {"train": content["text"], "val": content["text"][:9]}
    (tmp_path / "backwards" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UsageError, match=r"data-00001-of-00003\.arrow is not there, which state\.json names"):
        Tables({"train": str(tmp_path / "backwards")}, roles, "r")


@pytest.mark.parametrize("seed", range(5))
def test_files_are_dealt_to_splits_by_their_names(tmp_path, seed):
    draw = np.random.default_rng(seed)
    place = tmp_path / "data" if draw.random() < 0.5 else tmp_path
    place.mkdir(exist_ok=True)
    names = {"train": draw.choice(["train", "Train", "training"]), "val": draw.choice(["val", "validation", "dev"])}
    counts = {split: int(draw.integers(1, 4)) for split in names}
    for split, word in names.items():
        for part in range(counts[split]):
            write_arrow(place / f"{word}-{part:05}-of-{counts[split]:05}.arrow", [{"text": f"{split} {part}"}])
    write_arrow(place / "unsupervised-00000-of-00001.arrow", [{"text": "x"}])
    (place / "dataset_infos.json").write_text("{}")
    read = Tables({"train": str(tmp_path)}, Columns({"text": ["text"]}), "r")
    for split in names:
        assert [row.values["text"] for row in read.rows(split)] == [f"{split} {part}" for part in range(counts[split])]
    write_arrow(place / "eval-00000-of-00003.arrow", [{"text": "x"}])
    with pytest.raises(UsageError, match=r"eval-00001-of-00003\.arrow is not there: 1 of 3 parts are"):
        Tables({"train": str(tmp_path)}, Columns({"text": ["text"]}), "r")


def test_folders_without_a_split_to_train_on_are_refused(tmp_path):
    (tmp_path / "test.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match="has the splits test and none to train on"):
        Tables({"train": str(tmp_path)}, Columns({"text": ["text"]}), "r")
    for name in ("train", "dev", "validation"):
        (tmp_path / f"{name}.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match=r"has .* which are both the val split|both the val split"):
        Tables({"train": str(tmp_path)}, Columns({"text": ["text"]}), "r")
    deeper = tmp_path / "deep"
    (deeper / "en").mkdir(parents=True)
    (deeper / "en" / "train.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match=r"Name a folder with tables: .*/deep/en"):
        Tables({"train": str(deeper)}, Columns({"text": ["text"]}), "r")


# sources


def test_sources_of_texts_read_the_same_column(tmp_path):
    rows = draw_rows(1, 200)
    write_tables(tmp_path, rows)
    prints = set()
    for file in write_tables(tmp_path, rows):
        data = TextFiles(f"{file}#pair.en", tokenizer="bytes", seed=0)
        data.ready()
        prints.add(data.fingerprint())
        assert data.documents().splits["train"][0] == rows[0]["pair"]["en"]
    assert len(prints) == 1
    write_csv(tmp_path / "a.csv", rows)
    for name in ("a.parquet", "a.arrow", "a.jsonl", "a.csv#text", "list.json#text"):
        stream = TextStream(str(tmp_path / name), tokenizer="bytes", val_fraction=0.3, seed=0)
        stream.ready()
        texts = [
            document.text for unit in stream.files["train"].units() for document in stream.files["train"].read(unit)
        ]
        assert texts == [row["text"] for row in rows], name


def test_rows_without_a_text_are_left_out_and_counted(tmp_path, caplog):
    write_csv(tmp_path / "a.csv", [{"text": text, "n": "1"} for text in ["a text"] * 50 + [""] * 3])
    assert len(TextFiles(f"{tmp_path}/a.csv#text", seed=0).documents().splits["train"]) == 45
    assert "3 of 53 train rows hold no text and are left out" in caplog.text
    (tmp_path / "a.csv").write_text('text,n\n"",1\n')
    with pytest.raises(UsageError, match="has no row with a text"):
        TextFiles(f"{tmp_path}/a.csv#text", seed=0).ready()
    with pytest.raises(UsageError, match=r"--data\.path 'PATH#NAME'"):
        TextFiles(f"{tmp_path}/a.csv#body", seed=0).ready()


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "train.tsv"])
def test_pairs_by_columns(tmp_path, name, caplog):
    rows = [{"id": n, "de": f"ein Satz {n}", "en": f"a sentence {n}"} for n in range(60)]
    if name == "a.parquet":
        parquet.write_table(pyarrow.Table.from_pylist([{"translation": row} for row in rows]), tmp_path / name)
    elif name == "a.jsonl":
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_csv(tmp_path / name, rows, "excel" if name == "a.csv" else "excel-tab")
    path = tmp_path if name == "train.tsv" else tmp_path / name
    data = ParallelFiles(str(path), vocab_size=300, seed=0, options=PairOptions(val_fraction=0.1))
    pairs = [pair for split in data.corpus().values() for pair in split]
    assert {(pair.source, pair.target) for pair in pairs} == {(row["en"], row["de"]) for row in rows}
    data.ready()
    message = {"a.parquet": "row 1 has no field 'fr'", "train.tsv": "it must have two, source, a tab, target"}
    with pytest.raises(
        UsageError, match=message.get(name, r"no column 'fr'; it has .*\nName one: --data\.source NAME")
    ):
        ParallelFiles(str(tmp_path / name), source="fr", seed=0).ready()
    if name == "a.jsonl":
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"en": None, "de": "x"}]))
        with pytest.raises(UsageError, match=r"a\.jsonl:61: the source is null and not a text\.\nLeave such lines out"):
            data.corpus()
        skipping = ParallelFiles(str(path), options=PairOptions(val_fraction=0.1, bad="skip"), seed=0)
        assert sum(map(len, skipping.corpus().values())) == 60
        assert "1 of 61 rows are left out, null: 61" in caplog.text


@pytest.mark.parametrize("kind", ["bytes", "structs", "paths", "metadata.csv"])
def test_images_by_columns(tmp_path, kind, monkeypatch):
    draw = np.random.default_rng(0)
    rows = []
    for number in range(40):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(file, "PNG")
        (tmp_path / f"{number}.png").write_bytes(file.getvalue())
        own = {"bytes": file.getvalue(), "structs": {"bytes": file.getvalue(), "path": None}}
        rows.append({"image": own.get(kind, f"{number}.png"), "label": number % 2 + 9})
    if kind == "metadata.csv":
        write_csv(tmp_path / kind, [{"file_name": row["image"], "label": row["label"]} for row in rows])
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    path = tmp_path / (kind if kind == "metadata.csv" else "a.parquet")
    data = ImageFolder(str(path), image_size=10, seed=0)
    data.ready()
    assert data.names == ["9", "10"]
    assert {split: len(rows) for split, rows in data.datasets.items()} == {"train": 36, "val": 4, "test": 4}
    pixels = {
        split.tobytes() for name in ("train", "val") for split in data.datasets[name].pixels.fetch(np.arange(4)).numpy()
    }
    assert len(pixels) == 8
    with monkeypatch.context() as patch:  # a second start reads no image
        patch.setattr("zoo.data.image_sources.image_file", lambda *_: pytest.fail("read again"))
        again = ImageFolder(str(path), image_size=10, seed=0)
        assert again.fingerprint() == data.fingerprint()
    (tmp_path / "3.png").write_bytes(b"no image")
    if kind in ("paths", "metadata.csv"):
        with pytest.raises(UsageError, match="cannot be read as an image"):
            ImageFolder(str(path), image_size=10, seed=0).ready()
        skipping = ImageFolder(str(path), image_size=10, seed=0, bad="skip")
        skipping.ready()
        assert len(skipping.datasets["train"]) + len(skipping.datasets["val"]) == 39


def write_rows(folder, **files):
    for name, count in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n" + "".join(f"{path.stem} {number}\n" for number in range(count)))


@pytest.mark.parametrize("names", [
    ("my_train.csv", "my_val.csv", "my_test.csv"), ("train1.csv", "dev1.csv", "test1.csv"),
    ("corpus-TRAIN.v2.csv", "corpus-valid.v2.csv", "corpus.test.csv"),
    ("train 1.csv", "validation 1.csv", "test 1.csv"),
])  # fmt: skip
def test_the_word_of_a_split_anywhere_in_a_name_counts(names, tmp_path):
    write_rows(tmp_path, **dict.fromkeys(names, 3))
    for path in (str(tmp_path), [str(tmp_path)]):
        splits = find_splits(path, "x")
        assert {split: [file.name for file in files] for split, files in splits.items()} == {
            split: [name] for split, name in zip(("train", "val", "test"), names, strict=True)
        }
        assert [file.name for file in find_splits(path, "x", "val")["val"]] == [names[1]]


@pytest.mark.parametrize(("files", "words"), [
    (("train.csv", "train.tsv"), "have one name"), (("train_test.csv", "val.csv"), "words of several splits"),
    (("train.csv", "validation.csv", "dev.csv"), "both the val split"), (("val.csv",), "none to train on"),
])  # fmt: skip
def test_tables_that_may_be_counted_twice_or_wrongly_are_refused(files, words, tmp_path):
    write_rows(tmp_path, **dict.fromkeys(files, 3))
    with pytest.raises(UsageError, match=words):
        find_splits(str(tmp_path), "x")


def test_a_stray_table_does_not_hide_those_of_the_splits_and_is_named(tmp_path, caplog):
    write_rows(tmp_path, **{"stats.csv": 2, "data__train-00000-of-00001.csv": 3, "data__validation.csv": 2})
    (tmp_path / "data" / "test.csv").touch()
    assert {split: len(files) for split, files in find_splits(str(tmp_path), "x").items()} == {"train": 1, "val": 1}
    assert "stats.csv" in caplog.text
    assert "1 empty" in caplog.text


@pytest.mark.parametrize("names", [("en", "fr"), ("source", "target"), ("EN", "text"), ("x", "de")])
def test_a_first_line_of_names_that_the_options_do_not_say_is_no_pair(names, tmp_path):
    (tmp_path / "pairs.tsv").write_text("\t".join(names) + "\n" + "good day\tguten Tag\n" * 20)
    with pytest.raises(UsageError, match=r"pairs\.tsv:1 looks like the names of columns"):
        ParallelFiles(str(tmp_path / "pairs.tsv"), "en", "de").files()


@pytest.mark.parametrize(("train", "val"), [("a.csv#text", "b.csv#body"), ("a.csv", "b.csv#text")])
@pytest.mark.parametrize("source", [TextFiles, TextStream])
def test_one_column_is_read_in_all_tables(source, train, val, tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text,body\n" + "the fox,a dog\n" * 50)
    data = source(f"{tmp_path}/{train}", val_path=f"{tmp_path}/{val}", max_length=8)
    with pytest.raises(UsageError, match="the same in every table"):
        data.ready()


def test_a_row_names_an_image_from_the_folder_of_its_own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    for channel, folder in enumerate(("blue", "green", "red")):
        (tmp_path / folder).mkdir()
        rows = []
        for number in range(9):
            colour = np.eye(3, dtype=int)[2 - channel] * 200 + number
            Image.new("RGB", (8, 8), tuple(map(int, colour))).save(tmp_path / folder / f"{number}.png")
            rows.append({"file_name": f"{number}.png", "label": folder})
        (tmp_path / folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path, columns = str(tmp_path / "*" / "metadata.jsonl"), {"label": "label"}
    data = ImageFolder(path, image_size=8, val_fraction=0.3, columns=columns)
    data.ready()
    assert data.names == ["blue", "green", "red"]
    for split in ("train", "val"):
        images = data.datasets[split]
        pixels = images.pixels.fetch(np.arange(len(images)))[..., 0, 0]
        assert (2 - pixels.argmax(-1)).tolist() == images.labels.tolist()


@pytest.mark.parametrize("name", ["notes #1.txt", "p#2.parquet", "a#b.csv", "c#.jsonl", "#4.md"])
def test_a_file_with_a_number_sign_that_is_not_there_is_named_whole(name, tmp_path):
    assert split_columns(f"{tmp_path}/{name}") == (f"{tmp_path}/{name}", set())
    assert split_columns(f"{tmp_path}/{name}#text") == (f"{tmp_path}/{name}", {"text"})
    assert split_columns(f"{tmp_path}/part-*.parquet#a.b") == (f"{tmp_path}/part-*.parquet", {"a.b"})


def test_a_table_of_another_ending_is_read_as_such_and_not_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.tsv").write_text("text\n" + "".join(f'"he said ""no"", line {n}"\n' for n in range(30)))
    prints, texts = set(), []
    for name in ("a.tsv", "a.csv"):
        path = (tmp_path / "a.tsv").rename(tmp_path / name)
        data = TextFiles(f"{path}#text", max_length=8)
        data.ready()
        texts.append(data.tokenizer.decode(data.datasets["train"].tokens[:20]))
        prints.add(data.fingerprint())
    assert [text[:10] for text in texts] == ['"he said "', 'he said "n']
    assert len(prints) == 2


def test_labels_of_equal_numbers_keep_their_order_in_every_process(tmp_path):
    labels = ["1", "01", "001", "0001", "00001", "2", "02", "002", "0002", "a"]
    rows = [f"{number}.png,{labels[number % 10]}" for number in range(40)]
    for number in range(40):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "train.csv").write_text("\n".join(["image,label", *rows]))
    data = ImageFolder(str(tmp_path / "train.csv"), image_size=8, val_fraction=0.3)
    data.ready()
    assert data.names == ["00001", "0001", "001", "01", "1", "0002", "002", "02", "2", "a"]
