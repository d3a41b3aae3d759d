"""Boxes against pixels that were really painted, splits that share no scene, and turns that move both alike."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from zoo_vision.boxes import corners
from zoo_vision.scenes import DrawnScenes, moved, normal
from zoo_vision.setloss import NOTHING
from zoo_vision.shapes import CONTRAST, KINDS, MIN_VISIBLE, RADII, Thing, picture, random_things, visible_shares

from zoo.errors import UsageError


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    scenes = DrawnScenes(size=40, seed=3)
    monkeypatch.setattr("zoo_vision.scenes.EVALUATION_SIZE", 30)
    scenes.ready()
    return scenes


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("turn", [0.0, 0.4, 2.0])
def test_a_box_fits_what_is_painted(kind, turn):
    thing = Thing(kind, 30.0, 25.0, 14.0, turn)
    page = Image.new("L", (640, 640))
    thing.draw(ImageDraw.Draw(page), 255, 10)
    assert np.abs(np.array(page.getbbox()) / 10 - thing.box()).max() < 0.25
    outline = thing.outline() if KINDS[kind] not in ("circle", "ring") else []
    assert all(math.dist(point, (30, 25)) <= 14 + 1e-9 for point in outline)
    x0, top, x1, bottom = thing.box()
    assert 16 - 1e-9 <= x0 < x1 <= 44 + 1e-9
    assert 11 - 1e-9 <= top < bottom <= 39 + 1e-9


def test_kinds_are_told_apart_by_their_area():
    areas = {}
    for kind, name in enumerate(KINDS):
        page = Image.new("L", (600, 600))
        Thing(kind, 30, 30, 20, 0.3).draw(ImageDraw.Draw(page), 1, 10)
        areas[name] = np.asarray(page).sum() / (math.pi * 200**2)
    assert areas["circle"] == pytest.approx(1, abs=0.01)
    assert areas["ring"] == pytest.approx(0.75, abs=0.02)
    assert areas["square"] == pytest.approx(2 / math.pi, abs=0.01)
    assert areas["triangle"] == pytest.approx(3 * math.sqrt(3) / 4 / math.pi, abs=0.01)
    assert 0.3 < areas["star"] < 0.5
    assert 0.5 < areas["cross"] < 0.7


def test_what_is_covered_is_counted():
    big, small = Thing(2, 30, 30, 20, math.pi / 4), Thing(2, 30, 30, 10, math.pi / 4)
    assert visible_shares([big, small], 64) == pytest.approx([0.75, 1], abs=0.05)
    assert visible_shares([small, big], 64) == [0, 1]


def test_scenes_are_drawn_as_promised():
    draw = np.random.default_rng(5)
    counts = set()
    for _ in range(60):
        things = random_things(4, 64, draw)
        counts.add(len(things))
        assert all(share >= MIN_VISIBLE for share in visible_shares(things, 64))
        for thing in things:
            assert RADII[0] * 64 <= thing.radius <= RADII[1] * 64
            assert thing.radius <= min(thing.x, thing.y, 64 - thing.x, 64 - thing.y) + 1e-9
    assert counts == {1, 2, 3, 4}
    ground, painted = (picture(things, 64, np.random.default_rng(9)).astype(int) for things in ([], [things[0]]))
    x, y = round(things[0].x), round(things[0].y)
    apart = np.abs(ground - painted).sum(-1)
    assert apart.max() > CONTRAST / 2
    x0, top, x1, bottom = things[0].box()
    assert apart[apart > 90].size
    assert x0 <= x <= x1
    assert top <= y <= bottom


def test_splits_share_no_scene_and_are_the_same_for_every_seed(data, tmp_path):
    other = DrawnScenes(size=40, seed=4)
    other.ready()
    assert other.fingerprint() == data.fingerprint()
    prints = {name: {image.numpy().tobytes() for image in rows.images} for name, rows in data.datasets.items()}
    assert {name: len(digests) for name, digests in prints.items()} == {"train": 40, "val": 30, "test": 30}
    assert not prints["train"] & prints["val"]
    assert not prints["train"] & prints["test"]
    assert not prints["val"] & prints["test"]
    longer = DrawnScenes(size=50, seed=3)
    longer.ready()
    assert torch.equal(longer.datasets["val"].images, data.datasets["val"].images)
    assert longer.fingerprint() != data.fingerprint()


def test_a_batch_says_what_is_where(data):
    batch = data.datasets["val"].batch(np.arange(30), 0)
    classes, boxes = batch["classes"], batch["boxes"]
    there = classes != NOTHING
    assert batch["images"].shape == (30, 3, 64, 64)
    assert classes.shape == (30, 5)
    assert there[:, 0].all()
    assert set(classes[there].tolist()) == set(range(6))
    assert (boxes[~there] == 0).all()
    edges = corners(boxes[there])
    assert (edges[:, :2] >= -1e-6).all()
    assert (edges[:, 2:] <= 1 + 1e-6).all()
    assert (boxes[there][:, 2:] > 0.1).all()
    again = data.datasets["val"].batch(np.arange(30), 1)
    assert torch.equal(batch["images"], again["images"])


def test_turning_and_mirroring_moves_boxes_with_what_is_in_them():
    images, boxes = torch.zeros(8, 1, 10, 10), torch.tensor([0.2, 0.65, 0.2, 0.5]).expand(8, 1, 4)
    images[:, :, 4:9, 1:3] = 1.0
    flips = torch.tensor([[n >> bit & 1 for bit in range(3)] for n in range(8)]).bool()
    orientations = set()
    turned, frames = moved(images, boxes, flips)
    for image, box in zip(turned, frames, strict=True):
        x0, top, x1, bottom = (corners(box[0]) * 10).round().int().tolist()
        assert image.sum() == image[0, top:bottom, x0:x1].sum() == (x1 - x0) * (bottom - top) == 10
        orientations.add((x0, top, x1, bottom))
    assert len(orientations) == 8
    assert torch.equal(turned[0], images[0])


def test_training_scenes_are_moved_by_seed_and_epoch_and_not_without_augment(data):
    rows = data.datasets["train"]
    first, again, later = (rows.batch(np.arange(40), epoch) for epoch in (0, 0, 1))
    assert torch.equal(first["images"], again["images"])
    assert not torch.equal(first["images"], later["images"])
    assert not torch.equal(first["boxes"], later["boxes"])
    unmoved = DrawnScenes(size=40, seed=3, augment=False)
    unmoved.ready()
    still = unmoved.datasets["train"].batch(np.arange(40), 1)
    assert torch.equal(still["images"], normal(rows.images.permute(0, 3, 1, 2)))


def test_sizes_that_cannot_be_are_refused():
    for options, sentence in (
        ({"objects": 13}, "objects is 13: 12 shapes at most have room"),
        ({"objects": 0}, "objects must be at least 1, got 0"),
        ({"image_size": 16}, "image_size must be at least 32, got 16"),
    ):
        with pytest.raises(UsageError, match=sentence):
            DrawnScenes(**options)
