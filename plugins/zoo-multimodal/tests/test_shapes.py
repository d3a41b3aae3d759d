"""Captions say what is drawn, words go to numbers and back, and held-out kinds are in the test images alone."""

import numpy as np
import pytest
import torch
from zoo_multimodal.captions import (
    COLOURS,
    KINDS,
    PAD,
    PLACES,
    SHAPES,
    SIZES,
    WORDS,
    Thing,
    caption,
    decode,
    encode,
    held_out,
    longest,
    wordings,
)
from zoo_multimodal.drawing import PAINT, picture
from zoo_multimodal.shapes import CaptionedShapes, normal, pixels

from zoo.errors import UsageError

EVERY = [
    Thing(size, colour, shape, place)
    for size in range(len(SIZES)) for colour in range(len(COLOURS))
    for shape in range(len(SHAPES)) for place in range(len(PLACES))
]  # fmt: skip


def test_every_caption_is_another_and_comes_back_from_its_numbers():
    texts = [caption((thing,)) for thing in EVERY]
    assert len(set(texts)) == 240
    rows = encode(texts, longest(1))
    assert [decode(row) for row in rows.tolist()] == texts
    assert rows.max() < len(WORDS)
    both = caption((EVERY[3], EVERY[0]))
    assert both == f"{EVERY[0]} and {EVERY[3]}"
    assert longest(2) == len(both.split()) + 2


def test_unknown_words_and_long_captions_are_refused_by_name():
    with pytest.raises(UsageError, match="'pink'"):
        encode(["a small pink ring at the top left"], 10)
    with pytest.raises(UsageError, match="at most 8"):
        encode(["a small red ring at the top left and"], 10)
    with pytest.raises(UsageError, match="there are 4 corners"):
        CaptionedShapes(objects=5)


def test_a_caption_is_true_of_its_picture():
    """Seen by counting pixels: the corner that differs from the ground, its colour, how much of it, and its middle."""
    draw = np.random.default_rng(0)
    area = {}
    for thing in EVERY:
        image = picture((thing,), 32, draw).astype(float)
        ground = np.median(image.reshape(3, -1), 1)[:, None, None]
        ink = np.abs(image - ground).sum(0) > 110
        corners = ink.reshape(2, 16, 2, 16).sum((1, 3)).ravel()
        assert int(np.argmax(corners)) == thing.place, thing
        inmost = np.argsort(np.abs(image - ground).sum(0).ravel())[-4:]  # away from edges, which mix with the ground
        colour = image.reshape(3, -1)[:, inmost].mean(1)
        nearest = min(PAINT, key=lambda name: np.abs(colour - np.array(PAINT[name])).sum())
        assert nearest == COLOURS[thing.colour], thing
        area.setdefault((thing.shape, thing.size), []).append(ink.sum())
    for shape in range(len(SHAPES)):
        assert max(area[shape, 0]) < min(area[shape, 1]), SHAPES[shape]
    means = [np.mean(area[shape, 1]) for shape in range(len(SHAPES))]
    assert len({round(mean / 8) for mean in means}) >= 4  # and shapes are not one blob


def test_held_out_kinds_are_tested_and_never_trained_on(shapes):
    held_out_kinds = {KINDS[thing.kind] for thing in EVERY if held_out(thing)}
    assert held_out_kinds == {"red circle", "green square", "blue triangle", "yellow cross", "purple ring"}
    for split, alone in (("train", False), ("val", False), ("test", True)):
        for row in shapes.datasets[split].captions.tolist():
            words = decode(row).split()
            kinds = {f"{words[i + 2]} {words[i + 3]}" for i in range(0, len(words), 9)}
            assert kinds <= held_out_kinds if alone else not kinds & held_out_kinds, (split, words)


def test_a_batch_serves_images_and_language_models_alike(shapes):
    batch = shapes.datasets["val"].batch(np.arange(20), 0)
    assert batch["images"].shape == (20, 3, 32, 32)
    assert batch["images"].abs().max() <= 1
    assert torch.equal(batch["valid"], batch["captions"] != PAD)
    assert torch.equal(batch["inputs"], batch["captions"][:, :-1])
    real = batch["targets"] >= 0
    assert torch.equal(batch["targets"][real], batch["captions"][:, 1:][real])
    assert torch.equal(real, batch["valid"][:, 1:])
    texts = [decode(row) for row in batch["captions"].tolist()]
    assert batch["bytes"].tolist() == [len(text) for text in texts]
    for text, label in zip(texts, batch["labels"].tolist(), strict=True):
        assert (label == -1) == (" and " in text)
        assert label == -1 or text in wordings(label)
    for kind, rows in enumerate(batch["prompts"].tolist()):
        assert [decode(row) for row in rows] == wordings(kind)


def test_pixels_are_the_way_back(shapes):
    images = shapes.datasets["train"].images[:8]
    assert torch.equal(pixels(normal(images)), images)
