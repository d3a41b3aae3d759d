"""Pictures of attention: their size, the colours of known cells, and text that does not break them."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from tests import forks
from zoo import plotting
from zoo.logging import attention_figures
from zoo.logging.attention_figures import (
    CMAP,
    FRAME,
    ORANGE,
    TILE,
    Page,
    _tiles,
    alignment,
    head_grid,
    max_pool,
    over_images,
    text_pixels,
    to_colours,
)

ODD = ["größe", "日本語", "שלום", "🙂", "\n", "\x00\u200b", "", " ", "�", "x" * 300, "e\u0301", "<eos>", "$x_1$"]


def rgb(colour):
    return np.round(np.array(to_rgb(colour)) * 255)


def pixels(image):
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def matrix(image):
    """The upper left corner of the first panel: just inside its frame."""
    spots = np.argwhere((pixels(image) == rgb(FRAME)).all(-1))  # by rows: the legend has such a frame, too
    return spots[0] + 2


def test_the_colours_of_weights_darken_evenly_from_almost_white():
    luminance = (CMAP(np.arange(256))[:, :3]) ** 2.2 @ [0.2126, 0.7152, 0.0722]
    lightness = np.cbrt(luminance)
    assert (np.diff(lightness) < 0).all()
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
        assert (middle == to_colours(np.float32(weights[row, column] / 0.5))).all()


def test_what_belongs_together_is_outlined():
    weights = torch.rand(4, 5)
    without_spans, gold = (alignment(weights, "abcde", "wxyz", spans) for spans in (None, [(1, 3, 2, 4)]))
    top, left = matrix(gold)
    spots = np.argwhere((pixels(gold) == rgb(ORANGE)).all(-1)) - [top, left]
    assert spots.min(0).tolist() == [2 * 48, 1 * 48]
    assert spots.max(0).tolist() == [4 * 48 - 1, 3 * 48 - 1]
    assert not (pixels(without_spans) == rgb(ORANGE)).all(-1).any()


@pytest.mark.parametrize("installed", [True, False])
def test_odd_and_long_tokens_are_drawn_with_any_fonts(monkeypatch, recwarn, installed):
    if not installed:
        monkeypatch.setattr(plotting, "_fonts", lambda: ("DejaVu Sans",))
    text_pixels.cache_clear()
    image = alignment(torch.eye(len(ODD)), ODD, ODD, title="Übersetzung 日本")
    assert image.width < 1600
    for word in ODD:
        has_ink = text_pixels(word, 26, "#000000")[..., 3].any()
        assert has_ink == bool(word.strip() or word == "\n"), repr(word)
    assert text_pixels("ä", 26, "#000000").tobytes() != text_pixels("a", 26, "#000000").tobytes()
    assert text_pixels("e\u0301", 26, "#000000").tobytes() == text_pixels("é", 26, "#000000").tobytes()
    assert not recwarn.list
    text_pixels.cache_clear()


def test_text_is_where_it_was_asked_for_and_not_cut():
    for word in ("gjpqy", "ÄÖÜ", "<eos>", "mmmm"):
        alpha = text_pixels(word, 26, "#000000")[..., 3]
        assert alpha.shape[0] == round(1.3 * 26)
        assert not alpha[0].any()  # room above and below
        assert not alpha[-1].any()
        columns = np.flatnonzero(alpha.any(0))
        assert columns[0] <= 4
        assert alpha.shape[1] - columns[-1] <= 4


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 2), (2000, 1500)])
def test_an_alignment_of_any_length_stays_a_picture(shape):
    image = alignment(torch.rand(shape), ["token"] * shape[1], ["Wort"] * shape[0], [(0, 1, 0, 1)])
    assert max(image.size) < 2200


def test_pooling_keeps_the_largest_weight():
    values = np.zeros((5, 3))
    values[4, 1] = 0.7
    small, steps = max_pool(values, 2)
    assert small.tolist() == [[0, 0], [0.7, 0]]
    assert steps == (3, 2)


def test_a_grid_has_a_panel_per_layer_and_head_and_colours_roots():
    layers = [torch.eye(6).repeat(3, 1, 1) * 0.25, torch.zeros(3, 6, 6)]
    image = head_grid(layers)
    top, left = matrix(image)
    cell, step = 20, 6 * 20 + 24
    half, nothing = to_colours(np.array(0.5)), to_colours(np.array(0.0))  # sqrt(0.25)
    for head in range(3):
        result = pixels(image)
        assert (result[top + 10, left + head * step + 10] == half).all()
        assert (result[top + 10, left + head * step + cell + 10] == nothing).all()
        assert (result[top + step + 10, left + head * step + 10] == nothing).all()
    labelled = head_grid(layers, list("abcdef"), "title", ["first", "last"])
    assert labelled.height > image.height


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_heaviest_patch_of_an_image_is_the_most_orange(channels):
    weights = torch.zeros(2, 2, 2)
    weights[0, 0, 1], weights[1, 0, 1], weights[1, 1, 0] = 0.9, 0.5, 0.2
    grey = torch.full((channels, 8, 8), 0.5)
    image = over_images([(grey, weights, "7")])
    result = pixels(image)
    top, left = matrix(image) - 1
    step = TILE + 24
    assert (result[top + 50, left + 50] == 128).all()  # the image as it is
    for tile in (1, 2, 3):
        spots = ((50, 150), (50, 50))
        near, far = (np.abs(result[top + y, left + tile * step + x] - rgb(ORANGE)).sum() for y, x in spots)
        assert near < 60 < far
    assert image.height < over_images([(grey, weights, "7")] * 2).height < 2 * image.height


def test_one_map_has_no_mean_and_many_heads_take_several_lines():
    image = torch.rand(3, 100, 100)
    two, four, five, ten = (over_images([(image, torch.rand(heads, 5, 5), "")]) for heads in (2, 4, 5, 10))
    assert four.width - two.width == 2 * (TILE + 24)
    assert ten.size == five.size == (four.width, five.height)
    assert five.height > four.height + TILE
    assert [name for name, _, _ in _tiles(image, np.ones((1, 5, 5)))] == ["image", "attention"]
    assert [name for name, _, _ in _tiles(image, np.ones((2, 5, 5)))] == ["image", "mean", "head 1", "head 2"]


@pytest.fixture
def texts(monkeypatch):
    """The texts that are drawn, with their sizes in pixels and edges: left, top, right, bottom."""
    boxes, real, turned = [], Page.pixels, {}

    def remember(words, size, colour):
        pixels = text_pixels(words, size, colour)
        turned[pixels.tobytes()] = words, size
        return pixels

    def place(page, values, x, y):
        upright = next((one for one in (values, np.rot90(values, -1)) if one.tobytes() in turned), None)
        if upright is not None:
            words, size = turned[upright.tobytes()]
            edge = 0.15 * size  # without ink, as between lines of a text
            box = x + edge, y + edge, x + values.shape[1] - edge, y + values.shape[0] - edge
            boxes.append((words, size, box))
        real(page, values, x, y)

    monkeypatch.setattr(attention_figures, "text_pixels", remember)
    monkeypatch.setattr(Page, "pixels", place)
    return boxes


PICTURES = {
    "heads": lambda: head_grid([torch.rand(4, 48, 48)] * 2, None, "Heads on the first 48 tokens of the text"),
    "many heads": lambda: head_grid([torch.rand(8, 48, 48)] * 6, None, "Heads", [f"layer {2 * n}" for n in range(6)]),
    "one head": lambda: head_grid([torch.rand(1, 7, 7)], None, "Heads on the first 7 tokens of the validation text"),
    "sentence": lambda: alignment(torch.rand(18, 16), ["Donnerstag"] * 16, ["of"] * 18, [(0, 1, 0, 1)], "Last layer"),
    "words": lambda: alignment(torch.rand(2, 2), ["a", "b"], ["c", "d"], title="Cross-attention, last layer"),
    "patches": lambda: over_images([(torch.rand(3, 32, 32), torch.rand(8, 8, 8), "deer, predicted: ship")] * 4),
    "one map": lambda: over_images([(torch.rand(1, 28, 28), torch.rand(1, 7, 7), "7, predicted correctly")], "Patches"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_text_is_legible_in_a_card_of_tensorboard_and_within_the_picture(texts, name):
    image = PICTURES[name]()
    assert texts
    for words, size, (left, top, right, bottom) in texts:
        assert size * min(1.0, 330 / image.width) >= 9, words
        assert min(left, top) >= 0, words
        assert right <= image.width, words
        assert bottom <= image.height, words
    for number, (one, _, first) in enumerate(texts):
        for other, _, second in texts[number + 1 :]:
            apart = first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1] or second[3] <= first[1]
            assert apart or not one.strip() or not other.strip(), (one, other)


def test_a_picture_is_the_same_every_time_and_leaves_no_global_state():
    import matplotlib

    before = dict(matplotlib.rcParams)
    first = alignment(torch.eye(3), "abc", "xyz", title="a title")
    text_pixels.cache_clear()
    assert alignment(torch.eye(3), "abc", "xyz", title="a title").tobytes() == first.tobytes()
    assert dict(matplotlib.rcParams) == before


def test_the_module_that_draws_is_loaded_when_something_is_drawn():
    names = ("zoo.plotting", "zoo.logging.attention_figures")
    code = f"import sys, zoo.logging.attention_maps; print(*[name in sys.modules for name in {names}])"
    done = forks.run([sys.executable, "-c", code], text=True)
    assert done.stdout == "False False\n"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "attention.md"
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))
    exec(compile(code, str(page), "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alignment.png", "heads.png", "patches.png"]
    for name in re.findall(r"\]\((images/.*?)\)", page.read_text("utf-8")):
        assert 10_000 < (page.parent / name).stat().st_size < 150_000
