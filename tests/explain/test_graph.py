"""Charts traced from models are those that course notes draw, and follow what the model computes."""

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from zoo.explain.graph import flow_chart
from zoo.explain.trace import trace
from zoo.models import Seq2Seq
from zoo.models.stack import Stack
from zoo.parts.attention import Additive, Attention, MultiHead
from zoo.parts.backend import Naive
from zoo.parts.block import Block, Memory, Parallel, PostNorm, PreNorm
from zoo.parts.ffn import FFN, MLP, SwiGLU
from zoo.parts.norm import LayerNorm, Norm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, Sinusoidal

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "checklist.md"
WHOLE = (Attention, Norm, FFN)
X = torch.randn(1, 5, 16)


def chart_of(net, *inputs, whole=(), **more):
    return flow_chart("", net, trace(net, *inputs, call=lambda: net(*inputs, **more)), "", whole)


def edge_names(net, *inputs, **options):
    """Edges by the names of their nodes; a number distinguishes nodes of one name: add, add 2."""
    chart, names = chart_of(net, *inputs, **options), []
    for label in chart.nodes:
        count = chart.nodes[: len(names) + 1].count(label)
        names.append(label if count == 1 else f"{label} {count}")
    return [(names[a], names[b]) for a, b in chart.edges]


def stack(**options):
    defaults = {"backend": Naive, "position": NoPosition, "block": PostNorm, "norm": LayerNorm, "ffn": MLP}
    return Stack(Extent((9,)), **{"dim": 16, "depth": 1, "heads": 2} | defaults | options).eval()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = stack(cross=True)

    def forward(self, x, memory):
        return self.stack(x, memory=Memory(memory))


def test_a_layer_of_the_encoder_is_that_of_the_notes():
    assert edge_names(stack(), X, whole=WHOLE) == [
        ("x", "MultiHead"),
        ("x", "add"),
        ("MultiHead", "add"),
        ("add", "LayerNorm"),
        ("LayerNorm", "MLP"),
        ("LayerNorm", "add 2"),
        ("MLP", "add 2"),
        ("add 2", "LayerNorm 2"),
    ]


def test_a_layer_of_the_decoder_is_that_of_the_notes():
    result = edge_names(Decoder(), X, torch.randn(1, 4, 16), whole=WHOLE)
    assert set(result) == {
        ("x", "MultiHead"), ("x", "add"), ("MultiHead", "add"), ("add", "LayerNorm"),
        ("LayerNorm", "MultiHead 2"), ("memory", "MultiHead 2"), ("LayerNorm", "add 2"), ("MultiHead 2", "add 2"),
        ("add 2", "LayerNorm 2"), ("LayerNorm 2", "MLP"), ("LayerNorm 2", "add 3"), ("MLP", "add 3"),
        ("add 3", "LayerNorm 3"),
    }  # fmt: skip


def test_self_attention_and_a_feed_forward_are_those_of_the_notes():
    result = edge_names(MultiHead(16, 2, Naive()), X, pattern=Pattern())
    assert result == [
        ("x", "linear qkv"),
        ("linear qkv", "product"),
        ("product", "mul"),
        ("mul", "softmax"),
        ("softmax", "product 2"),
        ("linear qkv", "product 2"),
        ("product 2", "linear out"),
    ]
    masked = chart_of(MultiHead(16, 2, Naive()), X, pattern=Pattern(causal=True)).nodes
    assert masked.index("mul") < masked.index("masked_fill") < masked.index("softmax")
    assert edge_names(MLP(16, 64, "relu"), X) == [
        ("x", "linear up"),
        ("linear up", "relu"),
        ("relu", "linear down"),
    ]


def test_the_whole_model_is_that_of_the_notes():
    sizes = {"dim": 16, "depth": 6, "heads": 2, "tie": "none"}
    net = Seq2Seq(11, 11, 9, position=Sinusoidal, block=PostNorm, norm=LayerNorm, backend=Naive, **sizes).eval()
    result = edge_names(net, torch.tensor([[1, 2]]), torch.tensor([[3, 4, 5]]), whole=(Block,))
    layers = ["PostNorm", *(f"PostNorm {n}" for n in range(2, 13))]
    encoder, decoder = layers[:6], layers[6:]
    for side, start, first in (("source", "", encoder[0]), ("target", " 2", decoder[0])):
        chain = [side, f"embedding{start}", f"mul{start}", f"add{start}", first]
        assert set(itertools.pairwise(chain)) <= set(result)
    for one in (encoder, decoder):
        assert set(itertools.pairwise(one)) <= set(result)
    assert {b for a, b in result if a == encoder[-1]} == set(decoder)  # every layer of the decoder reads the last one
    assert [b for a, b in result if a == decoder[-1]] == ["mul 3"]
    assert result[-1][1].startswith("linear")


def test_another_part_is_another_chart():
    charts = {block: edge_names(stack(block=block), X, whole=WHOLE) for block in (PostNorm, PreNorm, Parallel)}
    assert charts[PreNorm][:2] == [("x", "LayerNorm"), ("LayerNorm", "MultiHead")]
    assert ("LayerNorm", "MLP") in charts[Parallel]
    assert ("LayerNorm", "MultiHead") in charts[Parallel]
    assert "tanh" in chart_of(Additive(16, 2), X, pattern=Pattern()).nodes
    assert chart_of(SwiGLU(16, 32), X).nodes.count("linear up") == 1
    assert "silu" in chart_of(SwiGLU(16, 32), X).nodes


@pytest.mark.parametrize("block", [PreNorm, PostNorm])
def test_tracing_changes_nothing(block):
    net = stack(block=block, depth=2)
    before, during = net(X), []
    whole = nn.Sequential(net)
    last = whole.register_forward_hook(lambda *args: during.append(args[2]))
    chart_of(whole, X, whole=WHOLE)
    last.remove()
    assert torch.equal(during[0], before)
    assert torch.equal(net(X), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_the_chart_of_the_page_is_what_its_program_prints():
    page = PAGE.read_text(encoding="utf-8")
    code, chart = (re.search(rf"```{kind}\n(.*?)```", page, re.S)[1] for kind in ("python", "text"))
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(code, "checklist.md", "exec"), {})
    assert output.getvalue() == chart
