"""Patches of clips: tubelets are blocks of pixels, and positions have an axis of time."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close
from zoo_multimodal.clip_transformer import ClipTransformer

from zoo.errors import UsageError
from zoo.models.vit import ViT
from zoo.parts.position import Learned, NoPosition, Sinusoidal

SIZES = {"image_size": 6, "patch_size": 3, "dim": 24, "depth": 1, "heads": 2}


@pytest.mark.parametrize("tubelet", [1, 2, 4])
def test_patches_of_a_clip_are_blocks_in_time_and_space(tubelet):
    net = ClipTransformer(3, 4, tubelet, channels=2, **SIZES)
    clips = torch.randn(2, 4, 2, 6, 6)
    blocks = [
        clips[:, t : t + tubelet, :, r : r + 3, c : c + 3].flatten(1)
        for t in range(0, 4, tubelet) for r in (0, 3) for c in (0, 3)
    ]  # fmt: skip
    assert torch.equal(net.patches(clips), torch.stack(blocks, 1))
    assert net(clips).shape == (2, 3)


def test_a_clip_of_one_frame_is_an_image():
    torch.manual_seed(0)
    clip, image = (net(3, channels=3, position=Learned, **SIZES) for net in (partial(ClipTransformer, frames=1), ViT))
    image.load_state_dict(clip.state_dict())
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(clip.eval()(x[:, None]), image.eval()(x))


@pytest.mark.parametrize(("position", "orders"), [(NoPosition, False), (Sinusoidal, True)])
def test_the_order_of_frames_matters_with_a_position_alone(position, orders):
    net = ClipTransformer(3, 3, **SIZES, position=position).double().eval()
    clips = torch.randn(2, 3, 1, 6, 6, dtype=torch.float64)
    assert torch.allclose(net(clips), net(clips.flip(1)), atol=1e-10) != orders


def test_times_rows_and_columns_are_three_axes_of_positions():
    net = ClipTransformer(3, 3, **SIZES, position=Sinusoidal)
    assert net.stack.position.extent.sizes == (3, 2, 2)
    place = torch.arange(12)
    axes = [axis.tolist() for axis in net.stack.position.extent.axes(place)]
    assert axes == [[0] * 4 + [1] * 4 + [2] * 4, [0, 0, 1, 1] * 3, [0, 1] * 6]
    x = net.stack.position.embed(torch.zeros(1, 12, 24), place)
    assert_close(x[0, :, 0], torch.tensor([0.0] * 4 + [1.0] * 4 + [2.0] * 4).sin())


def test_frames_that_do_not_fill_tubelets_are_refused():
    with pytest.raises(UsageError, match=r"frames=4 is not divisible by tubelet_size=3\. Try tubelet_size=2 or"):
        ClipTransformer(3, 4, 3, **SIZES)
