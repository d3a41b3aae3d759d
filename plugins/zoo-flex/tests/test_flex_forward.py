"""Flex is Naive for every pattern and every place of queries and keys."""

import gc
import weakref

import pytest
import torch
import zoo_flex.flex
from torch.nn.attention.flex_attention import flex_attention
from torch.testing import assert_close
from zoo_flex import Flex
from zoo_flex.lowering import lower

from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, RoPE

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
FEATURES = {"causal": {"causal": True}, "window": {"window": 2}, "valid": {"valid": True}, "bias": {"bias": True},
            "sparse": {"sparse": lambda query, key: (query - key) % 2 == 0}, "cap": {"score_cap": 0.7}}  # fmt: skip
PATTERNS = ["", "cap", "causal window valid bias cap",
            "causal", "window", "valid", "bias", "sparse", "causal window", "causal valid bias",
            "causal window valid bias", "window valid bias", "causal sparse valid bias"]  # fmt: skip
# queries, keys, positions of the first query and key
SHAPES = {"whole": (5, 5, 0, 0), "step": (1, 6, 5, 0), "chunk": (3, 7, 4, 0), "memory": (6, 3, 0, 0),
          "ahead": (2, 7, 3, 0), "one": (1, 1, 0, 0), "kept step": (1, 3, 7, 5), "kept chunk": (3, 5, 7, 5),
          "behind": (4, 4, 0, 2), "blocks": (130, 257, 127, 0)}  # fmt: skip


def call(words, shape, groups, heads=4, width=3, out=3):
    T, S, offset, start = SHAPES[shape]
    make = torch.Generator().manual_seed(T + S)
    shapes = (2, heads, T, width), (2, groups, S, width), (2, groups, S, out)
    options = {key: value for word in words.split() for key, value in FEATURES[word].items()}
    if "valid" in options:  # the first row has nothing but padding, the second has it on the left and inside
        options["valid"] = torch.stack([torch.zeros(S, dtype=torch.bool), torch.arange(S) % 3 != 0])
    if "bias" in options:  # neither symmetric nor a function of the distance
        table = torch.linspace(-0.4, 0.5, heads, dtype=torch.float64)
        options["bias"] = lambda head, query, key: table[head] * (query - 2 * key) / S
    inputs = [torch.randn(each, generator=make, dtype=torch.float64) for each in shapes]
    return inputs, Pattern(offset=offset, start=start, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("words", PATTERNS)
def test_flex_is_naive(words, shape):
    inputs, pattern = call(words, shape, 2)
    assert_close(Flex()(*inputs, pattern), Naive()(*inputs, pattern), atol=1e-12, rtol=0)
    for ours, expected in zip(Flex().with_lse(*inputs, pattern), Naive().with_lse(*inputs, pattern), strict=True):
        assert_close(ours, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("groups", [4, 1])
def test_heads_are_counted_by_queries_when_they_share_keys(groups):
    inputs, pattern = call("causal bias", "chunk", groups)
    assert_close(Flex()(*inputs, pattern), Naive()(*inputs, pattern), atol=1e-12, rtol=0)


def test_values_may_have_another_width_and_the_scale_is_a_choice():
    for out in (2, 7):
        inputs, pattern = call("causal", "whole", 2, out=out)
        ours, expected = (part(*inputs, pattern, scale=0.7) for part in (Flex(), Naive()))
        assert_close(ours, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("words", ["valid", "causal window valid bias"])
def test_a_query_without_keys_gets_zeros(words, dtype):
    inputs, pattern = call(words, "whole", 2)
    out = Flex()(*(x.to(dtype) for x in inputs), pattern)
    assert out.dtype == dtype
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert out[1].abs().sum() > 0


@pytest.mark.parametrize(
    "extent", [Extent((40,)), Extent((40,), causal=True), Extent((5, 8)), Extent((5, 8), 1)], ids=str
)
@pytest.mark.parametrize("position", [ALiBi, T5, RoPE])
def test_every_scheme_of_positions_in_a_stack(position, extent):
    outputs = {}
    for backend in (Naive, Flex):
        torch.manual_seed(0)
        outputs[backend] = Stack(extent, dim=48, heads=4, depth=2, position=position, backend=backend).eval()
    x = torch.randn(2, 33, 48)
    with torch.no_grad():
        assert_close(outputs[Flex](x), outputs[Naive](x), atol=1e-5, rtol=0)


def test_all_layers_share_one_mask_which_goes_with_its_pattern():
    pattern = Pattern(causal=True, valid=torch.ones(2, 6, dtype=torch.bool))
    device = torch.device("cpu")
    first, second = lower(pattern, 6, 6, device), lower(pattern, 6, 6, device)
    assert first is second
    assert lower(pattern, 5, 6, device) is not first
    reference = weakref.ref(pattern)
    del pattern, first, second
    gc.collect()
    assert reference() is None


def test_nothing_is_lowered_for_one_newest_query():
    assert lower(Pattern(causal=True, offset=5), 1, 6, torch.device("cpu")) == (None, None)
    assert lower(Pattern(causal=True, offset=4), 1, 6, torch.device("cpu")).block is not None


def test_empty_blocks_of_keys_are_known():
    causal = lower(Pattern(causal=True), 1024, 1024, torch.device("cpu")).block
    window = lower(Pattern(causal=True, window=128), 1024, 1024, torch.device("cpu")).block
    assert causal.sparsity() == pytest.approx(100 * 28 / 64)
    assert window.sparsity() > 75


@pytest.mark.parametrize("extent", [Extent((64,), causal=True), Extent((64,), 1, causal=True)], ids=str)
def test_a_compiled_kernel_serves_all_steps_of_decoding(monkeypatch, extent):
    """Dynamo's part of a fused kernel: one whole graph, and no new one for a new position or length."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, backend=count)
    monkeypatch.setattr(zoo_flex.flex, "_fused", lambda: compiled)
    monkeypatch.setattr(Flex, "_fuses", lambda self, q: True)
    nets = []
    for backend in (Naive, Flex):
        torch.manual_seed(0)
        nets.append(Stack(extent, dim=24, heads=2, depth=2, position=ALiBi, backend=backend, window=20).eval())
    x, valid = torch.randn(2, 60, 24), torch.arange(60) >= torch.tensor([[0], [3]])
    with torch.no_grad():
        naive, flex = ([net(x[:, :length], valid[:, :length]) for length in (60, 50, 40)] for net in nets)
        assert_close(flex, naive, atol=1e-5, rtol=0)
        caches, steps, counts = nets[1].caches(60), [], 0
        for t in range(60):
            steps.append(nets[1](x[:, t : t + 1], valid[:, : t + 1], caches=caches))
            counts = len(graphs) if t == 5 else counts
        assert_close(torch.cat(steps, 1), naive[0], atol=1e-5, rtol=0)
    assert len(graphs) == counts <= 6
    torch._dynamo.reset()


def test_training_on_a_processor_is_refused_and_inference_works_with_gradients_on():
    inputs, pattern = call("causal", "whole", 2)
    leaves = [x.requires_grad_() for x in inputs]
    out = Flex()(*leaves, pattern)
    assert_close(out.detach(), Naive()(*inputs, pattern).detach(), atol=1e-12, rtol=0)
    with pytest.raises(UsageError, match="backend Flex trains on a GPU only: on a cpu flex_attention has no backward"):
        out.sum().backward()


def test_dropout_is_refused_when_called_and_when_a_stack_is_built():
    inputs, pattern = call("", "whole", 4)
    with pytest.raises(UsageError, match="backend Flex cannot lower dropout"):
        Flex()(*inputs, pattern, 0.1)
    with pytest.raises(UsageError, match=r"attention_dropout=0.1 .* which backend Flex cannot take"):
        Stack(Extent((8,)), dim=8, heads=2, depth=1, backend=Flex, attention_dropout=0.1)


def test_a_stack_on_a_cpu_is_refused_by_its_first_forward_in_training():
    stack = Stack(Extent((8,), causal=True), dim=32, depth=1, heads=2, backend=Flex)
    x = torch.randn(1, 8, 32)
    stack.eval()(x)
    with pytest.raises(UsageError, match="trains on a GPU only"):
        stack.train()(x)
