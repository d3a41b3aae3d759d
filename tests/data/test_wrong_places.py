"""A place of the wrong kind is called what it is, and the remedy is what reads it."""

import unicodedata

import pytest
from PIL import Image

from zoo.cli import main
from zoo.data.image_sources import ImageFolder
from zoo.data.parallel_files import ParallelFiles
from zoo.data.source_files import find_place
from zoo.errors import UsageError

SOURCES = {"images": ImageFolder, "pairs": ParallelFiles}


def ready(source, path):
    SOURCES[source](str(path)).ready()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "is not on disk"),
        ("file", r"has no column '(en|image)'; it has 'a', 'b'"),
        ("folder", r"holds 1 \.csv .*, and not|data\.csv has no column 'en'"),
        ("empty", "holds nothing"),
    ],
)
def test_the_place_is_called_what_it_is(source, kind, message, tmp_path):
    place = tmp_path / "place.csv"
    if kind == "file":
        place.write_text("a,b\n")
    elif kind != "missing":
        place.mkdir()
        if kind == "folder":
            (place / "data.csv").write_text("a,b\n")
    with pytest.raises(UsageError, match=message):
        ready(source, place)


def test_a_single_class_of_images_is_refused(tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "cat" / f"{number}.png")
    with pytest.raises(UsageError, match="a single class, cat"):
        ready("images", tmp_path)


@pytest.mark.parametrize("name", ["café.txt", "Ångström.txt", "한글.txt", "ü"])
@pytest.mark.parametrize(("disk", "typed"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")])
def test_a_name_is_found_in_either_unicode_form(name, disk, typed, tmp_path):
    file = tmp_path / unicodedata.normalize(disk, name)
    file.write_text("text")
    assert find_place(tmp_path / unicodedata.normalize(typed, name)).samefile(file)


@pytest.mark.parametrize(
    ("recipe", "remedy"),
    [
        ("lm-tiny", "--data TextFiles"),
        ("vit-glyphs", "--data ImageFolder"),
        ("translation-tiny", "--data ParallelFiles"),
    ],
)
def test_an_option_of_other_data_offers_data_of_the_same_sort(recipe, remedy, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", recipe, "--data.path", "place"]) == 2
    assert f"Add {remedy}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["fit", "lm-tiny", "model.position=alibi"], "Did you mean '--model.position=alibi'?"),
     (["fit", "data.path=x"], "Did you mean '--data.path=x'?"),
     (["compare", "lm-tiny", "model.norm=a,b"], "Did you mean '--vary model.norm=a,b'?"),
      (["generate", "x", "--length", "-3"], "'--length' must be a whole number above 0"),
     (["generate", "x", "--top-p", "2"], "'--top-p' must be a number above 0 and at most 1"),
      (["fit", "lm-shakespeare"], "Give another: --data.path PLACE"),
     *((["fit", "lm-tiny", "--data", path], f"--data TextFiles --data.path {path} for texts")
       for path in ("a.txt", "./a.txt", "/etc", "texts/", "a.jsonl", "here")),
     (["fit", "lm-tiny", "--model.label_smoothing", "0.1"], "unknown key 'model.label_smoothing'. See: zoo show task"),
     (["fit", "lm-tiny", "--model.activation", "relu"], "Did you mean 'model.ffn'?"),
     (["fit", "lm-tiny", "--model.schedule.floor", "-1"], "schedule.floor must be at least 0, got -1.0.")],
)  # fmt: skip
def test_the_remedy_fits_the_mistake(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("a text without an ending")
    assert main(words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "folder" not in output.out
    assert not (tmp_path / "runs").exists()
