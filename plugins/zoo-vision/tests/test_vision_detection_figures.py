"""A trained detector, from a run of the command line: what it says of images, and what is drawn of it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from zoo_vision.detection_figures import INKS, TILE, boxed, compared, main, truth
from zoo_vision.scenes import DrawnScenes
from zoo_vision.setloss import Predictions
from zoo_vision.trained import DetectedObject, likely_objects

import zoo
from zoo.errors import UsageError

OPTIONS = """--model.dim 16 --model.depth 1 --model.heads 2 --model.hidden 16 --model.stride 16 --model.queries 12
--data.size 64 --trainer.max_steps 3 --trainer.val_check_interval 3 --trainer.limit_val_batches 1 --seed 1""".split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of three steps."""
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "zoo", "fit", "detr-shapes", *OPTIONS, "--runs", str(folder), "--name", "short"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "detr-shapes" / "short" / "s1"


def test_a_trained_detector_finds_in_pixels_of_the_image(run):
    model = zoo.load(run)
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    (objects,) = model.detect(image, threshold=0.0)
    assert len(objects) == 12
    assert [one.probability for one in objects] == sorted((one.probability for one in objects), reverse=True)
    for one in objects:
        x0, top, x1, bottom = one.box
        assert one.label in model.names
        assert 0 <= x0 <= x1 <= 120
        assert 0 <= top <= bottom <= 90
    assert model.detect(image, threshold=1.0) == [[]]
    small = image.resize((64, 64))
    grey = np.asarray(small.convert("L"))
    assert len(model.detect([small, np.asarray(small), grey], 0.0)) == 3
    assert model.detect(small, 0.0) == model.detect([np.asarray(small)], 0.0)
    with pytest.raises(UsageError, match="threshold is a probability, got 2"):
        model.detect(small, 2)
    with pytest.raises(UsageError, match="no image file"):
        model.detect("nowhere.png")


def test_a_detector_sees_pictures_as_viewers_show_them(run, tmp_path):
    """Upright, with boxes in pixels of the upright picture, and over white where they are transparent."""
    model = zoo.load(run)
    pixels = np.random.default_rng(1).integers(0, 256, (90, 120, 4), dtype=np.uint8)
    pixels[:, :60, 3], pixels[:, 60:, 3] = 0, 255
    view = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    view.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    pixels[:, :60] = 255
    assert model.detect(tmp_path / "a.png", 0.0) == model.detect(pixels[..., :3], 0.0)


def test_an_export_finds_the_same(run, tmp_path):
    model = zoo.load(run)
    image = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert zoo.load(model.export(tmp_path / "out")).detect(image, 0.0) == model.detect(image, 0.0)


def test_predictions_are_named_and_the_surest_first():
    logits = torch.tensor([[0.0, 0, 9], [0, 3, 0], [9, 0, 0]])  # nothing, the second, the first
    objects = likely_objects(Predictions(logits, torch.tensor([[0.5, 0.5, 0.2, 0.4]] * 3)), ["a", "b"], (100, 50))
    assert [(one.label, round(one.probability, 2)) for one in objects] == [("a", 1.0), ("b", 0.91)]
    assert objects[0].box == pytest.approx((40, 15, 60, 35))


def test_boxes_are_drawn_where_they_are():
    image = Image.new("RGB", (64, 64), (128, 128, 128))
    picture = boxed(image, [DetectedObject("b", 0.87, (16, 32, 48, 48))], ["a", "b"])
    assert picture.shape == (TILE, TILE, 3)
    ink = (picture == INKS[1]).all(-1)
    rows, columns = np.flatnonzero(ink[:, 100]), np.flatnonzero(ink[150])
    assert abs(rows.max() - 48 * 4) <= 2
    assert abs(columns.min() - 16 * 4) <= 2
    assert abs(columns.max() - 48 * 4) <= 2
    assert not (boxed(image, [], ["a"]) != 128).any()


def test_truth_and_answers_stand_below_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr("zoo_vision.scenes.EVALUATION_SIZE", 4)
    data = DrawnScenes(size=4, seed=1)
    data.ready()
    batch = data.datasets["test"].batch(np.arange(3), 0)
    logits = torch.nn.functional.one_hot(batch["classes"] % 7, 7) * 40.0
    real = truth(batch, data.names, 64)
    assert [len(things) for things in real] == (batch["classes"] >= 0).sum(1).tolist()
    page = np.asarray(compared(lambda images: Predictions(logits, batch["boxes"]), data, batch))
    half = page.shape[0] // 2
    tiles = [page[start : start + TILE] for start in (28 + 36, 28 + 36 + TILE + 36 + 12)]
    assert half > TILE
    assert np.abs(tiles[0].astype(int) - tiles[1]).mean() < 1  # what is right looks like what there is


def test_the_picture_is_in_tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), {"images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["detection/boxes"]


def test_the_program_draws_scenes_and_images(run, tmp_path, capsys):
    assert main([str(run), str(tmp_path / "scenes.png")]) == 0
    assert Image.open(tmp_path / "scenes.png").width > 8 * TILE
    Image.new("RGB", (80, 60)).save(tmp_path / "one.png")
    assert main([str(run), str(tmp_path / "found.png"), str(tmp_path / "one.png")]) == 0
    assert Image.open(tmp_path / "found.png").width < 2 * TILE
    assert main([str(run)]) == 2
    assert main([str(tmp_path), str(tmp_path / "no.png")]) == 2
    assert "error:" in capsys.readouterr().err
