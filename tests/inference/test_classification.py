"""A trained classifier sees an image as training saw it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from zoo.data.image_decoding import FilePixels
from zoo.data.image_sources import ImageFolder
from zoo.errors import UsageError
from zoo.inference.classification import TrainedClassification, open_image, resize_of_training
from zoo.inference.find_run import ModelLocation
from zoo.tasks.classification import Classification


@pytest.fixture
def glyphs(runs, monkeypatch):
    """Validation images as uint8 (B, 14, 14), and the batch that evaluation makes of them."""
    from zoo.data.glyphs import Glyphs

    monkeypatch.setenv("ZOO_CACHE", str(runs.parent / "cache"))
    data = Glyphs(size=300)
    data.ready()
    rows = np.arange(70)
    return data.datasets["val"].pixels.fetch(rows)[:, 0].numpy(), data.datasets["val"].batch(rows, 0)


def test_arrays_images_and_files_get_the_probabilities_of_evaluation(model, glyphs, tmp_path):
    trained, (pixels, batch) = model("glyphs"), glyphs
    expected = torch.cat([trained.task(part) for part in batch["images"].split(64)]).double().softmax(-1)
    paths = [tmp_path / f"{number}.png" for number in range(len(pixels))]
    for path, array in zip(paths, pixels, strict=True):
        Image.fromarray(array).save(path)
    for images in (list(pixels), [Image.fromarray(array) for array in pixels], paths, [str(path) for path in paths]):
        answer = trained.classify(images, top=10)
        assert [guesses[0].label for guesses in answer] == [str(one) for one in expected.argmax(1).tolist()]
        for guesses, row in zip(answer, expected, strict=True):
            assert [guess.probability for guess in guesses] == row.sort(descending=True).values.tolist()
    assert trained.classify(paths[0]) == trained.classify(paths[:1])
    assert [len(trained.classify(paths[0], top=top)[0]) for top in (1, 5, 99)] == [1, 5, 10]


def test_colours_become_grey_as_the_model_wants(model, glyphs, tmp_path):
    grey = glyphs[0][0]
    Image.fromarray(np.stack([grey] * 3, -1)).save(tmp_path / "colour.png")
    assert model("glyphs").classify(tmp_path / "colour.png") == model("glyphs").classify(grey)
    assert model("glyphs").classify(grey[..., None]) == model("glyphs").classify(grey)


def test_another_size_is_refused_or_resized_as_asked(model, tmp_path):
    Image.new("RGB", (640, 480)).save(tmp_path / "photo.png")
    with pytest.raises(UsageError, match=r"photo.png is 640 × 480 pixels, and this model needs 14 × 14.\nResize"):
        model("glyphs").classify(tmp_path / "photo.png")
    wide = np.zeros((14, 28), np.uint8)
    wide[:, 7:21] = np.arange(14)[:, None] * 10
    assert model("glyphs").classify(wide, resize="crop") == model("glyphs").classify(wide[:, 7:21].copy())
    assert model("glyphs").classify(wide, resize="stretch") != model("glyphs").classify(wide, resize="crop")
    with pytest.raises(UsageError, match="resize must be crop or stretch"):
        model("glyphs").classify(wide, resize="no")


def test_what_is_no_image_is_named(model, tmp_path):
    (tmp_path / "text.png").write_text("text")
    Image.fromarray(np.zeros((14, 14), np.uint16)).save(tmp_path / "deep.png")
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (14, 14), np.uint8)).save(whole)
    (tmp_path / "half.png").write_bytes(whole.read_bytes()[:-90])
    for images, message in (
        (tmp_path / "text.png", "text.png cannot be read as an image"),
        (tmp_path / "half.png", "half.png cannot be read as an image"),
        (tmp_path / "deep.png", "more than 8 bits per pixel"),
        (tmp_path / "none.png", "no image file"),
        (tmp_path, "It is a folder"),
        ([whole, np.zeros((14, 14))], r"image 2 is an array of float64 \(14, 14\)"),
        (np.zeros((0, 5, 3), np.uint8), r"image 1 is an array of uint8 \(0, 5, 3\)"),
        (np.zeros(5, np.uint8), r"image 1 is an array of uint8 \(5,\)"),
    ):
        with pytest.raises(UsageError, match=message):
            model("glyphs").classify(images)
    with pytest.raises(UsageError, match="top must be at least 1"):
        model("glyphs").classify(whole, top=0)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L"])
@pytest.mark.parametrize("library", [None, "timm", "transformers"])
def test_pictures_are_prepared_as_a_folder_of_images_was(tmp_path, monkeypatch, library, mode):
    """Of any size, turned, transparent or not, for models that were trained here and for published ones."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(1)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(2):
                pixels = draw.integers(0, 255, (*draw.integers(20, 60, 2), 4), np.uint8)
                pixels[::2, :, 3] = 0
                clear = {"transparency": 3} if mode == "P" else {}
                Image.fromarray(pixels).convert(mode).save(folder / f"{number}.png", exif=exif, **clear)
    data = ImageFolder(str(tmp_path / "photos"), image_size=16)
    task = Classification(**data.sizes(), patch_size=8, dim=16, depth=1, heads=2).eval()
    data.save(tmp_path)
    if library is not None:
        way = {"library": library, "resize": 20, "crop": [16, 16], "interpolation": "bilinear"}
        content = json.loads((tmp_path / "images.json").read_text())
        (tmp_path / "images.json").write_text(json.dumps({**content, "prepare": way}))
        data.adopt(tmp_path)
    about = {"class_path": "zoo.data.image_sources.ImageFolder", "init_args": {"image_size": 16}}
    trained = TrainedClassification(task, ModelLocation(tmp_path, tmp_path, {"data": about, "model": {}}, tmp_path))
    paths = sorted((tmp_path / "photos" / "val").rglob("*.png"))
    pixels_of_task = trained.normal(torch.cat([trained.pixels(path) for path in paths]))
    assert torch.equal(pixels_of_task, data.datasets["val"].batch(np.arange(4), 0)["images"])
    assert {guess.label for guess in trained.classify(paths[0])[0]} == {"cat", "dog"}


def test_an_image_of_the_caller_stays_as_large_as_it_was(tmp_path):
    Image.new("RGB", (400, 400)).save(tmp_path / "a.jpg")
    image = open_image(Image.open(tmp_path / "a.jpg"), "image 1")
    FilePixels(1, 16, lambda _: image, None).fetch(np.array([0]))
    assert image.size == (400, 400)
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:700])
    with pytest.raises(UsageError, match="image 1 cannot be read as an image"):
        open_image(Image.open(tmp_path / "a.jpg"), "image 1")


def test_only_data_that_resized_its_images_resizes_others():
    for module in ("zoo.data.image_sources", "zoo.data.images"):  # where the class was until 0.2.0
        resized, untouched = (
            {"data": {"class_path": f"{module}.NpzImages", "init_args": {"image_size": size}}} for size in (8, None)
        )
        assert resize_of_training(resized) == "stretch"
        assert resize_of_training(untouched) is None
    glyphs = {"class_path": "zoo.data.glyphs.Glyphs", "init_args": {"image_size": 14}}
    assert resize_of_training({"data": glyphs}) is None
    assert resize_of_training({}) is None
    assert resize_of_training({"data": glyphs, "resize": "crop"}) == "crop"


def test_an_export_remembers_how_images_were_made_fit(model, tmp_path):
    folder = model("glyphs").export(tmp_path / "out")
    assert json.loads(Path(folder / "config.json").read_text())["resize"] is None
