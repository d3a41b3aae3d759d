"""Pictures of attention: their size, the colours of known cells, and text that does not break them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.study import lettering
from zoo.study.pictures import TILE, alignment, head_grid, over_image, pooled, stacked
from zoo.study.ramp import FRAME, GOLD, TABLE, colours

ODD = ["größe", "日本語", "🙂", "\n", "\x00\u200b", "", " ", "�", "x" * 300, "e\u0301", "<eos>"]


def pixels(image):
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def matrix(image):
    """The upper left corner of the first panel: just inside its frame."""
    found = np.argwhere((pixels(image) == FRAME).all(-1))
    return found.min(0) + 2


def test_the_ramp_darkens_evenly_from_almost_white():
    luminance = (TABLE / 255) ** 2.2 @ [0.2126, 0.7152, 0.0722]
    lightness = np.cbrt(luminance)
    assert (np.diff(lightness) < 0.002).all()
    assert lightness[0] > 0.98
    assert lightness[-1] < 0.33
    halves = lightness[0] - lightness[128], lightness[128] - lightness[-1]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)


def test_cells_of_an_alignment_have_the_colours_of_their_weights():
    weights = torch.tensor([[0.5, 0.25, 0.0], [0.0, 0.1, 0.4]])
    image = alignment(weights, ["a", "bb", "c"], ["x", "yyyy"])
    top, left = matrix(image)
    for row, column in np.ndindex(2, 3):
        middle = pixels(image)[top + 48 * row + 24, left + 48 * column + 24]
        assert (middle == colours(np.float32(weights[row, column] / 0.5))).all()


def test_what_belongs_together_is_outlined():
    weights = torch.rand(4, 5)
    plain, gold = (alignment(weights, "abcde", "wxyz", slots) for slots in (None, [(1, 3, 2, 4)]))
    top, left = matrix(gold)
    spots = np.argwhere((pixels(gold) == GOLD).all(-1)) - [top, left]
    assert spots.min(0).tolist() == [2 * 48, 1 * 48]
    assert spots.max(0).tolist() == [4 * 48 - 1, 3 * 48 - 1]
    assert not (pixels(plain) == GOLD).all(-1).any()


@pytest.mark.parametrize("machine", [True, False])
def test_odd_and_long_tokens_are_drawn_with_any_fonts(monkeypatch, machine):
    if not machine:
        monkeypatch.setattr(lettering, "faces", tuple)
    for cached in (lettering.fonts, lettering.font_of, lettering.text):
        cached.cache_clear()
    image = alignment(torch.eye(len(ODD)), ODD, ODD, title="Übersetzung 日本")
    assert image.width < 1600
    for character in "ä日ō":
        assert np.asarray(lettering.text(character, 26)).any()
    assert lettering.text("ä", 26).tobytes() != lettering.text("a", 26).tobytes()
    for cached in (lettering.fonts, lettering.font_of, lettering.text):
        cached.cache_clear()


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 2), (2000, 1500)])
def test_an_alignment_of_any_length_stays_a_picture(shape):
    image = alignment(torch.rand(shape), ["token"] * shape[1], ["Wort"] * shape[0], [(0, 1, 0, 1)])
    assert max(image.size) < 2200


def test_pooling_keeps_the_largest_weight():
    values = np.zeros((5, 3))
    values[4, 1] = 0.7
    small, steps = pooled(values, 2)
    assert small.tolist() == [[0, 0], [0.7, 0]]
    assert steps == (3, 2)


def test_a_grid_has_a_panel_per_layer_and_head_and_colours_roots():
    layers = [torch.eye(6).repeat(3, 1, 1) * 0.25, torch.zeros(3, 6, 6)]
    image = head_grid(layers)
    top, left = matrix(image)
    cell, step = 20, 6 * 20 + 24
    for head in range(3):
        found = pixels(image)
        assert (found[top + 10, left + head * step + 10] == TABLE[128]).all()  # sqrt(0.25)
        assert (found[top + 10, left + head * step + cell + 10] == TABLE[0]).all()
        assert (found[top + step + 10, left + head * step + 10] == TABLE[0]).all()
    labelled = head_grid(layers, list("abcdef"), "title", ["first", "last"])
    assert labelled.height > image.height


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_heaviest_patch_of_an_image_is_the_most_orange(channels):
    weights = torch.zeros(2, 2, 2)
    weights[0, 0, 1], weights[1, 0, 1], weights[1, 1, 0] = 0.9, 0.5, 0.2
    image = over_image(torch.full((channels, 8, 8), 0.5), weights, "7", headings=False)
    found = pixels(image)
    top, left = matrix(image) - 1
    step = TILE + 24
    assert (found[top + 50, left + 50] == 128).all()  # the image as it is
    orange = np.array(GOLD)
    for tile in (1, 2, 3):
        near, far = (np.abs(found[top + y, left + tile * step + x] - orange).sum() for y, x in ((50, 150), (50, 50)))
        assert near < 60 < far
    assert stacked([image, image]).height < 2 * image.height


def test_one_map_has_no_mean():
    image = torch.rand(3, 100, 100)
    one, two = over_image(image, torch.rand(1, 5, 5)), over_image(image, torch.rand(2, 5, 5))
    assert two.width - one.width == 2 * (TILE + 24)


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "attention.md"
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))
    exec(compile(code, str(page), "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alignment.png", "heads.png", "patches.png"]
    for name in re.findall(r"\]\((images/.*?)\)", page.read_text("utf-8")):
        assert 10_000 < (page.parent / name).stat().st_size < 150_000
