"""What course notes claim of attention and of the body around it, each as a measurement."""

import itertools
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.tasks.training import build
from zoo.models import LanguageModel, Seq2Seq
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.block import PostNorm, PreNorm
from zoo.parts.ffn import MoE, SwiGLU
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, Sinusoidal


@pytest.mark.parametrize("d", [16, 64, 256, 1024])
def test_a_dot_product_has_the_variance_of_its_width_and_scaled_of_one(d):
    q, k = torch.randn(2, 1, 1, 700, d)
    scores = (q @ k.mT).flatten()
    assert scores.mean().abs() < 4 * (d / 700) ** 0.5
    assert scores.var() == pytest.approx(d, rel=0.1)
    assert (scores / d**0.5).var() == pytest.approx(1, rel=0.1)
    # of unscaled scores the largest takes all: that is what the root is for
    raw, scaled = ((q[0, :, :64] * scale @ k[0, :, :64].mT).softmax(-1).amax(-1).mean() for scale in (1, d**-0.5))
    assert scaled < 0.35
    assert raw > 0.5
    naive = Naive().weights(q[:, :, :64], k[:, :, :64], Pattern())
    assert_close(naive.amax(-1).mean(), scaled, atol=1e-5, rtol=1e-4)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.size = max(self.size, out.numel())
        return out


def test_naive_attention_makes_a_number_for_each_pair_of_tokens_and_head():
    result = []
    for length in (128, 256, 512):
        with Largest() as largest, torch.no_grad():
            MultiHead(64, 4, Naive())(torch.randn(1, length, 64), pattern=Pattern())
        result.append(largest.size)
    assert result == [65_536, 262_144, 1_048_576]


@pytest.mark.parametrize(("N", "D", "heads"), [(50, 32, 4), (128, 64, 1)])
def test_self_attention_takes_8nd2_and_4n2d_operations(N, D, heads):
    part = MultiHead(D, heads, Naive())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        part(torch.randn(1, N, D), pattern=Pattern())
    assert counter.get_total_flops() == 2 * (4 * N * D**2 + 2 * N**2 * D)


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_cells_work_grows_with_the_length_and_attentions_with_its_square(cell):
    def flops(net, length, **options):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(torch.randn(1, length, 16, device="meta"), **options)
        return counter.get_total_flops()

    carrying = cell(16, 16, batch_first=True, device="meta")
    attention = MultiHead(16, 2, Naive()).to("meta")
    assert flops(carrying, 128) == 4 * flops(carrying, 32)
    scores = [flops(attention, n, pattern=Pattern()) - 8 * n * 16**2 for n in (32, 128)]
    assert scores[1] == 16 * scores[0]


@pytest.mark.usefixtures("double")
def test_order_moves_with_the_tokens_and_a_mean_forgets_it():
    """Self-attention without positions is equivariant; what is invariant, as notes say of it, is its mean."""
    x, order = torch.randn(1, 7, 16), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for position, blind in ((NoPosition, True), (Sinusoidal, False)):
        net = Stack(Extent((7,)), dim=16, depth=2, heads=2, position=position).eval()
        original, moved = net(x), net(x[:, order])
        assert torch.allclose(moved, original[:, order], atol=1e-12) == blind
        assert torch.allclose(moved.mean(1), original.mean(1), atol=1e-12) == blind
        assert not torch.allclose(moved, original, atol=1e-3)  # so it is not invariant


@pytest.mark.parametrize("backend", [Naive, SDPA, Flash, Tiled])
def test_scores_beyond_ten_thousand_are_no_nan(backend):
    q = torch.full((1, 2, 6, 8), 60.0) * torch.tensor([1.0, -1.0])[None, :, None, None]
    q.requires_grad_()
    out = backend()(q, q.detach() * 3, torch.randn(1, 2, 6, 8), Pattern(causal=True))
    assert float((q @ q.mT * 3 / 8**0.5).detach().abs().max()) > 1e4
    out.sum().backward()
    assert out.isfinite().all()
    assert q.grad.isfinite().all()


# residuals and norms


@pytest.mark.parametrize(("block", "identity"), [(PreNorm, True), (PostNorm, False)])
def test_layers_that_say_nothing_are_skipped_by_pre_norm_and_normalised_by_post_norm(block, identity):
    net = Stack(Extent((9,)), dim=16, depth=3, heads=2, block=block, norm=LayerNorm, position=NoPosition)
    x, inner = torch.randn(2, 5, 16) * 3 + 1, []
    for layer in net.blocks:
        for matrix in (layer.attend.part.out, layer.ffn.part.down):
            nn.init.zeros_(matrix.weight)
            nn.init.zeros_(matrix.bias)
        layer.register_forward_hook(lambda module, inputs, out: inner.append(out))
    net(x)
    assert torch.equal(inner[-1], x) == identity
    if not identity:
        assert_close(inner[-1], F.layer_norm(x, (16,)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_norm_of_tokens_knows_neither_its_batch_nor_whether_it_is_trained(norm):
    def alike(part):
        x = torch.randn(8, 5, 16) * torch.arange(1, 9)[:, None, None]
        batch = part.train()(x)
        alone = torch.cat([part(row[None]) for row in x])
        return torch.allclose(batch, alone, atol=1e-6) and torch.allclose(batch, part.eval()(x), atol=1e-6)

    class Batch(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x.mT).mT

    assert alike(norm(16))
    assert not alike(Batch(16))


def test_a_deep_stream_grows_with_pre_norm_and_not_with_post_norm():
    grown, ratios = {}, {PreNorm: [], PostNorm: []}
    for seed, block in itertools.product(range(12), (PreNorm, PostNorm)):  # one draw may say the contrary
        torch.manual_seed(seed)
        net = Stack(Extent((16,)), dim=32, depth=24, heads=4, block=block, norm=LayerNorm, position=Sinusoidal)
        sizes = []
        for layer in net.blocks:
            layer.register_forward_hook(
                lambda *args, to=sizes: to.append(float(args[2].detach().var(-1, correction=0).mean()))
            )
        x = torch.randn(4, 16, 32)
        (net(x) * torch.randn(4, 16, 32)).sum().backward()
        grads = [layer.ffn.part.down.weight.grad.norm() for layer in net.blocks]
        grown[block] = sizes
        ratios[block].append(float(grads[0] / grads[-1]))
        assert block is PreNorm or sizes == pytest.approx([1.0] * 24, rel=1e-3)
    assert grown[PreNorm][-1] > 2 * grown[PreNorm][0]
    assert statistics.geometric_mean(ratios[PreNorm]) > 1 > statistics.geometric_mean(ratios[PostNorm])


# mixtures, embeddings, outputs


def test_eight_experts_of_which_two_work_are_eight_times_the_parameters_and_twice_the_work():
    def cost(part, *args, **more):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            part(*args, **more)
        return sum(p.numel() for p in part.parameters()), counter.get_total_flops()

    with torch.device("meta"):
        x = torch.randn(1, 64, 512)
        one, eight = cost(SwiGLU(512, 2048).eval(), x), cost(MoE(512, 2048, 8, 2).eval(), x)
        stacks = [
            Stack(Extent((64,)), dim=512, depth=1, heads=8, ffn=ffn, norm=RMSNorm).eval() for ffn in (SwiGLU, MoE)
        ]
        whole = [cost(stack, x) for stack in stacks]
    assert eight[0] / one[0] == pytest.approx(8.0, abs=0.01)
    assert eight[1] / one[1] == pytest.approx(2.0, abs=0.02)  # and the router
    assert whole[1][0] / whole[0][0] == pytest.approx(5.67, abs=0.05)  # attention is as it was
    assert 1.6 < whole[1][1] / whole[0][1] < 1.7


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_a_tied_matrix_is_given_to_the_optimiser_once(tie, tmp_path):
    module, _ = build("translation", 8, tmp_path, tie=tie)
    module._trainer = type("Ends", (), {"estimated_stepping_batches": 10})()
    groups = module.configure_optimizers()["optimizer"].param_groups
    module._trainer = None
    ids = [id(p) for group in groups for p in group["params"]]
    assert len(ids) == len(set(ids)) == len({id(p) for p in module.parameters()})
    tables = {p.data_ptr() for p in module.parameters() if p.dim() == 2 and p.size(0) > 150}
    assert len(tables) == {"all": 1, "output": 2, "none": 3}[tie]


def test_scaled_embeddings_are_about_as_large_as_positions_and_outputs_are_shares():
    net = Seq2Seq(1000, 1000, 64, tie="all", dim=256, depth=1, heads=4, position=Sinusoidal)
    x = torch.randint(1000, (4, 50))
    embedded = net.target_embedding(x) * net.scale
    assert 0.4 < embedded.std() < 1.6
    shares = net(x, x).softmax(-1)
    assert_close(shares.sum(-1), torch.ones(4, 50))
    sizes = [sum(p.numel() for p in LanguageModel(1000, 16, t, dim=32, depth=1, heads=2).parameters()) for t in (0, 1)]
    assert sizes[0] - sizes[1] == 1000 * 32


def test_attention_is_all_you_need_is_learned_word_by_word():
    words = "Attention is all you need".split()
    ids = torch.arange(len(words))[None]
    inputs, targets = ids[:, :-1], ids[:, 1:]
    assert [words[i] for i in inputs[0]] == "Attention is all you".split()
    assert [words[i] for i in targets[0]] == "is all you need".split()
    net = LanguageModel(len(words), 8, dim=16, depth=1, heads=2)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs)[0], targets[0]).backward()
        optimizer.step()
    assert torch.equal(net(inputs).argmax(-1), targets)
