"""Every feed-forward is its paper's formula, token by token."""

from functools import partial

import oracle
import pytest
import torch
from torch.testing import assert_close

from zoo.errors import UsageError
from zoo.parts.ffn import GEGLU, MLP, Bilinear, MoE, ReGLU, SwiGLU, aux_losses

pytestmark = pytest.mark.usefixtures("double")
GATES = {SwiGLU: "swish", GEGLU: "gelu", ReGLU: "relu", Bilinear: "none"}
gates = pytest.mark.parametrize("part", GATES)


def lists(linear):
    return linear.weight.tolist(), None if linear.bias is None else linear.bias.tolist()


def count(part):
    return sum(p.numel() for p in part.parameters())


def exact(actual, expected):
    assert_close(actual, torch.tensor(expected), atol=1e-10, rtol=0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish"])
@pytest.mark.parametrize("bias", [True, False])
def test_plain_is_the_formula(activation, bias):
    part, x = MLP(4, 10, activation, bias), torch.randn(2, 3, 4)
    assert (part.up.bias is not None) == bias
    up, down = lists(part.up), lists(part.down)
    exact(part(x), [[oracle.mlp(row, up, down, activation) for row in rows] for rows in x.tolist()])


@gates
@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_one_is_the_formula(part, bias):
    ffn, x = part(4, 10, bias), torch.randn(2, 3, 4)
    expected = [[oracle.gated(row, lists(ffn.up), lists(ffn.down), GATES[part]) for row in rows] for rows in x.tolist()]
    exact(ffn(x), expected)


@gates
@pytest.mark.parametrize(("hidden", "multiple", "width"), [(2048, 1, 1365), (3072, 1, 2048), (16384, 256, 11008)])
def test_a_gated_one_is_two_thirds_as_wide_rounded_up_to_a_multiple(part, hidden, multiple, width):
    with torch.device("meta"):
        assert part(8, hidden, multiple_of=multiple).down.in_features == width


def test_plain_has_2_099_712_parameters_at_512():
    assert count(MLP(512, 2048)) == 2_099_712


def test_a_swap_for_swiglu_keeps_the_parameters():
    mlp, gated = (count(MLP(512, 2048, bias=False)), count(SwiGLU(512, 2048)))
    assert round(100 * (gated / mlp - 1), 3) == -0.024
    assert count(MLP(768, 3072, bias=False)) == count(SwiGLU(768, 3072))


@pytest.mark.parametrize("part", [MLP, *GATES, MoE])
def test_a_token_is_changed_by_itself_alone(part):
    ffn, x, order = part(4, 10), torch.randn(2, 5, 4), torch.randperm(5)
    assert_close(ffn(x)[:, order], ffn(x[:, order]), atol=1e-10, rtol=0)


def experts_of(moe):
    def run(expert):
        if isinstance(expert, MLP):
            return lambda row: oracle.mlp(row, lists(expert.up), lists(expert.down), "gelu")
        return lambda row: oracle.gated(row, lists(expert.up), lists(expert.down), "swish")

    return [run(expert) for expert in moe.experts]


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (3, 1), (3, 3), (1, 1)])
@pytest.mark.parametrize("expert", [SwiGLU, MLP])
def test_moe_is_the_weighted_sum_of_its_best_experts(experts, top_k, expert):
    moe, x = MoE(4, 10, experts, top_k, expert=expert), torch.randn(2, 6, 4)
    rows = [oracle.mixture(row, moe.router.weight.tolist(), experts_of(moe), top_k) for row in x.view(-1, 4).tolist()]
    exact(moe(x).view(-1, 4), [row[0] for row in rows])
    share = [sum(e in row[1] for row in rows) / len(rows) / top_k for e in range(experts)]
    mean = [sum(row[2][e] for row in rows) / len(rows) for e in range(experts)]
    exact(moe.aux_loss, 0.01 * experts * sum(s * m for s, m in zip(share, mean, strict=True)))
    assert moe.load.tolist() == [sum(e in row[1] for row in rows) for e in range(experts)]


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (4, 1), (5, 5)])
def test_every_token_is_served_by_exactly_the_active_experts(experts, top_k):
    moe = MoE(4, 10, experts, top_k)
    moe(torch.randn(3, 7, 4))
    moe(torch.randn(2, 4))
    assert moe.load.sum() == (21 + 2) * top_k


def test_evaluation_counts_no_load():
    moe = MoE(4, 10).eval()
    moe(torch.randn(3, 7, 4))
    assert moe.load.sum() == 0
    assert moe.aux_loss is None


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_side_loss_is_the_mean_over_calls_until_it_is_taken(calls):
    moe = MoE(4, 10, experts=4)
    batches = torch.randn(calls, 7, 4)
    for _ in range(2):  # what was taken is not counted again
        single = [(moe(batch), *aux_losses(moe))[1] for batch in batches]
        for batch in batches:
            moe(batch)
        (loss,) = aux_losses(moe)
        assert_close(loss, sum(single) / calls, atol=0 if calls == 1 else 1e-12, rtol=0)
        gradients = [torch.autograd.grad(value, moe.router.weight)[0] for value in (loss, sum(single) / calls)]
        assert_close(*gradients, atol=1e-12, rtol=0)
    assert aux_losses(moe) == []


def test_the_side_loss_is_the_balance_at_uniform_load():
    moe = MoE(4, 10, experts=4, top_k=1, aux_loss_weight=0.3)
    with torch.no_grad():
        moe.router.weight.copy_(torch.eye(4) * 5)
    moe(torch.eye(4))  # each token prefers an expert of its own
    assert moe.load.tolist() == [1, 1, 1, 1]
    assert moe.aux_loss.item() == pytest.approx(0.3, abs=1e-12)


def test_the_side_loss_grows_when_one_expert_takes_all_and_reaches_the_router():
    moe = MoE(4, 10, experts=4, top_k=1, aux_loss_weight=1.0)
    with torch.no_grad():
        moe.router.weight.zero_()[2] = 9.0
    moe(torch.rand(6, 4) + 1)
    assert moe.aux_loss.item() == pytest.approx(4.0, abs=1e-3)
    (grad,) = torch.autograd.grad(moe.aux_loss, moe.router.weight)
    assert grad.abs().sum() > 0


@pytest.mark.parametrize("tokens", [1, 0])
def test_an_idle_expert_has_zero_gradients_and_not_none(tokens):
    moe = MoE(4, 10, experts=4, top_k=1)
    (moe(torch.randn(tokens, 4)).sum() + moe.aux_loss).backward()
    assert (moe.load == 0).sum() >= 3
    for name, parameter in moe.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("top_k", [0, 3])
def test_more_active_experts_than_there_are_are_refused(top_k):
    with pytest.raises(UsageError, match=f"ffn MoE sends each token to top_k={top_k} of experts=2"):
        MoE(4, 10, experts=2, top_k=top_k)


def test_moe_has_eight_times_the_parameters_of_one_expert_and_a_router():
    with torch.device("meta"):
        one, eight = SwiGLU(512, 2048), MoE(512, 2048)
    assert count(eight) == 8 * count(one) + 8 * 512


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", [MLP, *GATES, MoE, partial(MoE, expert=MLP)])
def test_low_precision_stays_low_and_close(part, dtype):
    ffn, x = part(8, 24).eval(), torch.randn(2, 5, 8).to(dtype)
    ffn = ffn.to(dtype)
    out = ffn(x)
    assert out.dtype == dtype
    assert_close(out.double(), ffn.double()(x.double()), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (3, 1), (2, 2)])
def test_the_meta_device_counts_the_products_that_a_mixture_computes(experts, top_k):
    from torch.utils.flop_counter import FlopCounterMode

    def flops(device):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            MoE(4, 9, experts, top_k).to(device).eval()(torch.randn(5, 4, device=device))
        return counter.get_total_flops()

    assert flops("meta") == flops("cpu") == 5 * (2 * 4 * experts + top_k * 2 * 3 * 4 * 6)
