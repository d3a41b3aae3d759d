"""What FlashVarlen refuses, and the sentences."""

import pytest
import torch
from zoo_flash import FlashVarlen, kernels

from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent


def machine(monkeypatch, capability=(9, 0), package=False):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object() if package else None)


def test_a_machine_without_a_gpu_is_told_so(monkeypatch):
    machine(monkeypatch, None)
    with pytest.raises(UsageError) as caught:
        FlashVarlen()
    assert str(caught.value) == (
        "backend FlashVarlen needs an NVIDIA GPU; this machine has none. Use SDPA, Flash or Tiled."
    )


def test_an_old_gpu_is_told_its_capability(monkeypatch):
    machine(monkeypatch, (7, 5))
    with pytest.raises(UsageError, match=r"needs a GPU of compute capability 8.0 or newer; this one has 7.5. Use SDPA"):
        FlashVarlen()


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    machine(monkeypatch)
    with pytest.raises(UsageError, match=r"not installed. Run: pip install 'zoo-flash\[flash-attn\]', or use kernel="):
        FlashVarlen("flash-attn")


def test_the_package_is_preferred_where_it_is_and_lowers_more(monkeypatch):
    machine(monkeypatch)
    assert FlashVarlen().supports == {"causal", "window", "valid"}
    machine(monkeypatch, package=True)
    assert (
        FlashVarlen().supports
        == FlashVarlen("flash-attn").supports
        == {*FlashVarlen("torch").supports, "alibi", "dropout"}
    )


@pytest.mark.parametrize(
    ("q", "sentence"),
    [
        (torch.randn(1, 2, 3, 4), "needs tensors on a GPU; these are on cpu"),
        (torch.randn(1, 2, 3, 4, device="meta"), "needs tensors on a GPU; these are on meta"),
    ],
)
def test_a_call_without_a_kernel_is_refused(monkeypatch, q, sentence):
    machine(monkeypatch)
    with pytest.raises(UsageError, match=sentence):
        FlashVarlen()(q, q, q, Pattern())


class Pretended:
    """A tensor of a GPU, as far as ``check`` looks."""

    is_cuda = True

    def __init__(self, dtype, width):
        self.dtype, self.width = dtype, width

    def size(self, dim):
        return self.width


def test_precision_and_width_are_named():
    half = Pretended(torch.bfloat16, 256)
    kernels.check(half, half)
    with pytest.raises(
        UsageError, match=r"needs bfloat16 or float16 \(--trainer.precision bf16-mixed\); these are torch.f"
    ):
        kernels.check(Pretended(torch.float32, 64), half)
    with pytest.raises(UsageError, match="needs heads of at most 256 features; these have 264"):
        kernels.check(half, Pretended(torch.bfloat16, 264))


@pytest.mark.usefixtures("slow_kernels")
def test_what_is_not_claimed_is_refused_when_called():
    q = torch.randn(1, 4, 6, 8)
    scheme = ALiBi(32, 4, Extent((99,)))

    class Steeper(ALiBi):
        """A bias of its own, under the name of ALiBi's."""

        def bias(self, head, query, key):
            return 2 * super().bias(head, query, key)

    for bias in (lambda h, i, j: h * (i - j), ALiBi(32, 4, Extent((9, 11))).bias, Steeper(32, 4, Extent((99,))).bias):
        with pytest.raises(UsageError, match="backend FlashVarlen cannot lower bias"):
            FlashVarlen()(q, q, q, Pattern(bias=bias))
    with pytest.raises(UsageError, match="cannot lower bias, dropout"):
        FlashVarlen("torch")(q, q, q, Pattern(bias=scheme.bias), 0.1)
    with pytest.raises(UsageError, match="cannot lower sparse"):
        FlashVarlen()(q, q, q, Pattern(sparse=lambda i, j: i == j))


@pytest.mark.usefixtures("slow_kernels")
def test_a_stack_takes_alibi_alone_and_only_with_the_package():
    options = {"dim": 32, "heads": 4, "depth": 1}
    text, classed, grid = Extent((64,), causal=True), Extent((64,), 1), Extent((8, 8))
    net = Stack(text, position=ALiBi, backend=FlashVarlen, padded=True, attention_dropout=0.1, **options)
    assert net(torch.randn(2, 9, 32), torch.arange(9) < torch.tensor([[9], [5]])).isfinite().all()
    for extent, position, kernel in (
        (text, T5, None),
        (grid, ALiBi, None),
        (classed, ALiBi, None),
        (text, ALiBi, "torch"),
    ):
        with pytest.raises(
            UsageError, match=rf"position {position.__name__} adds a bias to the scores, which backend Fl"
        ):
            Stack(extent, position=position, backend=lambda kernel=kernel: FlashVarlen(kernel), **options)
