"""What a fingerprint covers, and which archives are opened."""

import itertools
import zipfile

import pytest
from zoo_text.data.labelledfiles import LabelledFiles

from zoo.errors import UsageError
from zoo.io import limits

LINES = {
    "train": [f"{'ab'[n % 2]}\ttext number {n}" for n in range(20)],
    "val": ["a\tthe first", "b\tthe second"],
    "test": ["a\tthe third", "b\tthe fourth"],
}


@pytest.fixture
def fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))

    def of(lines, **options) -> str:
        for split in LINES:
            (tmp_path / f"{split}.tsv").unlink(missing_ok=True)
        for split, rows in lines.items():
            (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")
        return LabelledFiles(
            str(tmp_path), **{"tokenizer": None, "vocab_size": 280, "max_length": 16, **options}
        ).fingerprint()

    return of


def test_every_text_and_every_label_is_in_the_fingerprint(fingerprint):
    result = {"as it was": fingerprint(LINES)}
    assert fingerprint(LINES) == result["as it was"]
    for split in LINES:
        label, _, text = LINES[split][1].partition("\t")
        other = {"a": "b", "b": "a"}[label]
        for what, line in (("text", f"{label}\t{text} again"), ("label", f"{other}\t{text}")):
            changed = [LINES[split][0], line, *LINES[split][2:]]
            result[f"{what} of {split}"] = fingerprint({**LINES, split: changed})
        result[f"order of {split}"] = fingerprint({**LINES, split: LINES[split][::-1]})
    result["a shorter row"] = fingerprint(LINES, max_length=12)
    result["another vocabulary"] = fingerprint(LINES, vocab_size=270)
    result["fewer labels"] = fingerprint(LINES, labels=4)
    result["no test"] = fingerprint({split: lines for split, lines in LINES.items() if split != "test"})
    for (one, first), (two, second) in itertools.combinations(result.items(), 2):
        assert first != second, (one, two)


def test_a_table_whose_columns_are_swapped_is_refused(fingerprint):
    swapped = [f"the text number {n}\t{'ab'[n % 2]}" for n in range(40)]
    with pytest.raises(UsageError, match="40 classes for 40 training texts"):
        fingerprint({**LINES, "train": swapped})
    indexed = [f"{n}\t{'ab'[n % 2]}\tthe text number {n}" for n in range(40)]
    for lines in (swapped, indexed):  # nor does the split for validation refuse first
        with pytest.raises(UsageError, match="40 classes for 40 training texts"):
            fingerprint({"train": lines})


LEAVING = ["../a.npy", "a/../../b.npy", "..\\a.npy", "a/..", "/a.npy", "C:a.npy", "\\a.npy", ".."]


@pytest.mark.parametrize("name", LEAVING)
def test_no_member_of_an_archive_leaves_its_folder(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("images.npy", b"x")
        archive.writestr(zipfile.ZipInfo(name), b"y")
    with pytest.raises(UsageError, match="would leave the archive's folder"):
        limits.zip_members(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a..npy", "..a/b.npy", "a/b..c", "...", "a.b/c"])
def test_dots_in_a_name_leave_nothing(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"y")
    assert list(limits.zip_members(tmp_path / "a.zip")) == [name]
