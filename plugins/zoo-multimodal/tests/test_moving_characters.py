"""Moving characters: the class is the motion, and a single frame does not tell it."""

import numpy as np
import pytest
import torch
from zoo_multimodal import moving_characters
from zoo_multimodal.moving_characters import MOTIONS, MovingCharacters, move, place_glyph

from zoo.data.glyphs import stamp
from zoo.errors import UsageError

SIDE = 16


@pytest.fixture(scope="module")
def seven():
    return stamp("7", SIDE, moving_characters.TIMES)


def centre(frame):
    """Where the brightness of a frame lies on average, (column, row), of a frame whose edges are joined."""
    weight, angle = frame / frame.sum(), 2j * np.pi * np.arange(SIDE) / SIDE
    return [float(np.angle(weight.sum(axis) @ np.exp(angle)) % (2 * np.pi)) * SIDE / (2 * np.pi) for axis in (0, 1)]


@pytest.mark.parametrize(("motion", "step"), [(0, (1.5, 0)), (1, (0, 1.5)), (2, (-1.5, 0)), (3, (0, -1.5))])
def test_a_character_moves_by_the_pixels_of_its_speed_and_across_the_edge(seven, motion, step):
    frames = move(seven, SIDE, 8, motion, np.array([0.9, 0.9, 0.1, 0.5, 0.5])).astype(float)
    steps = np.diff([centre(frame) for frame in frames], axis=0)
    wrapped = (steps + SIDE / 2) % SIDE - SIDE / 2
    np.testing.assert_allclose(wrapped, np.tile(step, (7, 1)), atol=0.15)


def test_a_turn_is_the_rotation_of_the_picture(seven):
    """By a quarter of a turn, which numpy makes without interpolation."""
    draws = np.array([0.5, 0.5, 0.0, 0.5, 0.0])
    upright = place_glyph(seven, SIDE, draws[:2] * SIDE, 0, 1.0).astype(float)
    turned = place_glyph(seven, SIDE, draws[:2] * SIDE, 90, 1.0).astype(float)
    right = [abs(turned - np.rot90(upright, turns)).mean() for turns in (1, -1)]
    assert right[1] < 0.2 * right[0]  # clockwise on a screen
    clockwise, counterclockwise = (move(seven, SIDE, 4, motion, draws).astype(float) for motion in (4, 5))
    np.testing.assert_array_equal(clockwise[2], place_glyph(seven, SIDE, draws[:2] * SIDE, 24, 1.0))
    np.testing.assert_array_equal(counterclockwise[2], place_glyph(seven, SIDE, draws[:2] * SIDE, -24, 1.0))


def test_the_first_frame_is_the_same_for_every_motion(seven):
    draws = np.random.default_rng(0).random(5)
    first = [move(seven, SIDE, 1, motion, draws) for motion in range(len(MOTIONS))]
    assert all(np.array_equal(one, first[0]) for one in first)


def test_batches_hold_normalised_clips_of_six_equally_common_motions():
    data = MovingCharacters("17", frames=3, image_size=8, size=60)
    data.ready()
    assert data.sizes() == {"num_classes": 6, "frames": 3, "image_size": 8, "channels": 1}
    train = data.datasets["train"]
    batch = train.batch(np.arange(60), 0)
    assert batch["images"].shape == (60, 3, 1, 8, 8)
    assert abs(float(batch["images"].mean())) < 1e-3
    assert float(batch["images"].std()) == pytest.approx(1, abs=1e-3)
    counts = torch.cat([one.labels for one in data.datasets.values()]).bincount()
    assert len(counts) == 6
    assert int(counts.max() - counts.min()) <= 1


def test_what_cannot_move_is_refused():
    with pytest.raises(UsageError, match="none may be blank"):
        MovingCharacters("1 7")
    with pytest.raises(UsageError, match="frames"):
        MovingCharacters(frames=0)
