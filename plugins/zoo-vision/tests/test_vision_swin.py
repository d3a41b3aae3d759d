"""Windows against loops over cells, counts against those published, logits against another implementation."""

import re

import pytest
import torch
from torch import nn
from zoo_vision.swin import Merge, Swin, SwinBlock
from zoo_vision.windows import WindowAttention, join, offsets, split, visible_cells

from zoo.errors import UsageError
from zoo.finetuning.finetune import depth_of
from zoo.parts.norm import LayerNorm, RMSNorm

COUNTS = {  # of 1,000 classes at 224 x 224
    "tiny": ((96, [2, 2, 6, 2], [3, 6, 12, 24]), 28_288_354),
    "small": ((96, [2, 2, 18, 2], [3, 6, 12, 24]), 49_606_258),
    "base": ((128, [2, 2, 18, 2], [4, 8, 16, 32]), 87_768_224),
}


@pytest.mark.parametrize("size", COUNTS)
def test_it_has_as_many_parameters_as_published(size):
    (dim, depths, heads), count = COUNTS[size]
    with torch.device("meta"):
        net = Swin(1000, 224, 3, dim=dim, depths=depths, heads=heads)
    assert sum(p.numel() for p in net.parameters()) == count


def together(one, two, window, shift):
    """Whether two cells of a grid are in one window, when the windows' edges are moved by ``shift``."""
    return all((a - shift) // window == (b - shift) // window for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("rows", "window", "shift"), [(8, 4, 0), (8, 4, 2), (6, 3, 1), (9, 3, 2), (4, 2, 1)])
def test_no_cell_sees_across_windows_or_around_the_edge(rows, window, shift):
    cells = [(r, c) for r in range(rows) for c in range(rows)]
    grid = torch.arange(rows * rows).view(1, rows, rows).roll((-shift, -shift), (1, 2))
    windows, allowed = split(grid, window)[0], visible_cells(rows, rows, window, shift)
    reach = {
        (int(a), int(b))
        for numbers, mask in zip(windows, allowed, strict=True)
        for i, a in enumerate(numbers)
        for j, b in enumerate(numbers)
        if mask[i, j]
    }
    assert reach == {
        (a, b) for a, one in enumerate(cells) for b, two in enumerate(cells) if together(one, two, window, shift)
    }


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_attention_is_that_of_a_loop_over_cells(shift):
    layer = WindowAttention(6, 2, grid=8, window=4, shift=shift).eval()
    nn.init.normal_(layer.biases.weight)
    x = torch.randn(1, 8, 8, 6)
    result, cells = layer(x), [(r, c) for r in range(8) for c in range(8)]
    q, k, v = layer.qkv(x[0]).unflatten(-1, (3, 2, 3)).unbind(2)
    for one in cells:
        others = [two for two in cells if together(one, two, 4, shift)]
        heads = []
        for head in range(2):
            scores = torch.stack([
                q[one][head] @ k[two][head] / 3**0.5
                + layer.biases.weight[(one[0] - two[0] + 3) * 7 + one[1] - two[1] + 3, head]
                for two in others
            ])  # fmt: skip
            heads.append(sum(w * v[two][head] for w, two in zip(scores.softmax(0), others, strict=True)))
        assert torch.allclose(result[0, one[0], one[1]], layer.out(torch.cat(heads)), atol=1e-10)


def test_two_layers_see_past_a_window_and_the_first_does_not():
    unshifted, shifted = (WindowAttention(4, 1, grid=8, window=4, shift=shift) for shift in (0, 2))
    x = torch.randn(1, 8, 8, 4, requires_grad=True)

    def reach(y):
        (slope,) = torch.autograd.grad(y[0, 3, 3].sum(), x)
        return {(r, c) for r, c in slope[0].abs().sum(-1).nonzero().tolist()}

    assert reach(unshifted(x)) == {(r, c) for r in range(4) for c in range(4)}
    assert reach(shifted(x)) == {(r, c) for r in range(2, 6) for c in range(2, 6)}
    assert reach(shifted(unshifted(x))) == {(r, c) for r in range(8) for c in range(8)}


def test_splitting_and_joining_is_nothing_and_offsets_are_unique():
    x = torch.randn(2, 6, 6, 3)
    assert torch.equal(join(split(x, 3), 6, 6), x)
    assert split(x, 3)[0, 1, 5].tolist() == x[0, 1, 5].tolist()
    table = offsets(3)
    assert table.min() == 0
    assert table.max() == 24
    assert (table.diagonal() == 12).all()


def test_merging_takes_the_four_corners_in_the_order_of_the_paper():
    merge = Merge(1, LayerNorm)
    with torch.no_grad():
        merge.reduce.weight.copy_(torch.tensor([[0.0, 1, 0, 0], [0, 0, 1, 0]]))
    x = torch.tensor([[1.0, 2], [3, 4]]).view(1, 2, 2, 1)
    four = nn.functional.layer_norm(torch.tensor([1.0, 3, 2, 4]), (4,))
    assert torch.allclose(merge(x).flatten(), four[[1, 2]], atol=1e-6)


def test_images_go_around_branches_the_more_often_the_deeper_the_block():
    timm = pytest.importorskip("timm.models.swin_transformer", reason="timm is not installed")
    theirs = timm.SwinTransformer(depths=(2, 2, 6, 2), drop_path_rate=0.3, img_size=56, patch_size=1)
    ours = Swin(5, 56, 3, patch_size=1, dim=12, depths=[2, 2, 6, 2], heads=[1, 2, 3, 4], stochastic_depth=0.3)
    rates = [block.skip.p for block in ours.modules() if isinstance(block, SwinBlock)]
    expected = [getattr(b.drop_path1, "drop_prob", 0.0) for layer in theirs.layers for b in layer.blocks]
    assert rates == pytest.approx(expected)
    assert rates[0] == 0
    assert rates[-1] == 0.3
    with pytest.raises(UsageError, match="stochastic_depth must be at least 0 and below 1, got 1"):
        Swin(5, 16, 1, patch_size=2, window=2, dim=8, depths=[1], heads=[1], stochastic_depth=1.0)


def test_an_image_goes_around_a_branch_as_a_whole_and_the_mean_is_that_of_no_skipping():
    net = Swin(5, 16, 1, patch_size=2, window=2, dim=8, depths=[2], heads=[1], stochastic_depth=0.4)
    block = net.stages[0][1]
    block.attention.out.weight.data.zero_()
    block.attention.out.bias.data.fill_(1.0)  # its attention adds 1 everywhere, its feed-forward nothing
    block.ffn.down.weight.data.zero_()
    block.ffn.down.bias.data.zero_()
    x = torch.zeros(4000, 8, 8, 8)
    assert (block.eval()(x) == 1).all()
    added = block.train()(x).flatten(1)
    assert (added == added[:, :1]).all()
    assert added[:, 0].unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert added.mean().item() == pytest.approx(1, abs=0.05)


def test_norm_and_feed_forward_are_parts():
    net = Swin(5, 16, 1, patch_size=2, window=2, dim=8, depths=[2, 2], heads=[1, 2], norm=RMSNorm)
    assert not any(isinstance(module, LayerNorm) for module in net.modules())
    assert net(torch.randn(2, 1, 16, 16)).shape == (2, 5)


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(UsageError, match="image_size=30 must be a multiple of 4"):
        Swin(5, 30, 1, patch_size=2, depths=[1, 1], heads=[1, 1])
    with pytest.raises(UsageError, match="a grid of 10 x 10 cells cannot be cut into windows of 7 x 7"):
        Swin(5, 20, 1, patch_size=2, depths=[1, 1], heads=[1, 1])
    with pytest.raises(UsageError, match="must name as many stages"):
        Swin(5, 16, 1, depths=[2, 2], heads=[2])


NAMES = [
    (r"patch_embed\.proj", "embedding"), (r"patch_embed\.norm", "embedding_norm"),
    (r"layers\.(\d)\.downsample\.norm", r"stages.\1.0.norm"),
    (r"layers\.(\d)\.downsample\.reduction", r"stages.\1.0.reduce"),
    (r"\.attn\.qkv", ".attention.qkv"), (r"\.attn\.proj", ".attention.out"),
    (r"\.attn\.relative_position_bias_table", ".attention.biases.weight"),
    (r"\.norm1\.", ".attention_norm."), (r"\.norm2\.", ".ffn_norm."),
    (r"\.mlp\.fc1", ".ffn.up"), (r"\.mlp\.fc2", ".ffn.down"), (r"head\.fc", "head"),
]  # fmt: skip


def renamed(name):
    """Our name of a tensor of timm."""
    block = re.match(r"layers\.(\d)\.blocks\.(\d+)\.", name)
    if block:
        stage, number = map(int, block.groups())
        name = f"stages.{stage}.{number + (stage > 0)}.{name[block.end() :]}"
    for pattern, ours in NAMES:
        name = re.sub(pattern, ours, name)
    return name


def test_its_logits_are_those_of_timm():
    timm = pytest.importorskip("timm.models.swin_transformer", reason="timm is not installed")
    sizes = {"img_size": 56, "window_size": 7, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    theirs = timm.SwinTransformer(num_classes=9, patch_size=2, **sizes).eval().double()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.1)
    ours = Swin(9, 56, 3, patch_size=2, window=7, dim=24, depths=[2, 2], heads=[2, 4]).eval().double()
    buffers = ("attn_mask", "relative_position_index")
    tensors = {renamed(name): t for name, t in theirs.state_dict().items() if not name.endswith(buffers)}
    ours.load_state_dict(tensors)
    images = torch.randn(2, 3, 56, 56, dtype=torch.float64)
    with torch.no_grad():
        assert (ours(images) - theirs(images)).abs().max() < 1e-10


def test_layers_of_all_stages_are_counted_from_the_output():
    """By timm's rule each is slower than the one behind it, what makes cells of a stage counts as its first layer."""
    depth = depth_of(Swin(5, 32, 3, 4, 4, 16, (2, 2), (2, 4)))
    stages = [depth[name] for name in depth if name.startswith("stages.")]
    assert stages == sorted(stages, reverse=True)
    assert {*stages} == {1, 2, 3, 4, 5}
    assert {depth[name] for name in depth if name.startswith("embedding")} == {6}
    assert {depth[name] for name in ("norm.weight", "head.weight")} == {0}


def test_a_net_without_layers_has_no_decay_by_them():
    with pytest.raises(UsageError, match="count blocks from the output, and there are none"):
        depth_of(torch.nn.Linear(2, 2))
