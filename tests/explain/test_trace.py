"""The operations of a call are those that torch counts, and tracing changes nothing."""

import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests import forks
from tests.explain.operation_counts import check_flops, check_operations, part_task
from tests.plugin_paths import write_metadata
from tests.test_recipes import DISTINCT, RECIPES, build
from zoo import registry
from zoo.explain.trace import trace
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent
from zoo.tasks.lm import CausalLM
from zoo.training.model_cost import cost, meta_copy

BUILTIN_PARTS = [part for kind in registry.STACK_KINDS for part in registry.parts(kind) if part.builtin]


def counts_agree(task):
    arguments, units = task.example()
    net = meta_copy(task.net)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(*arguments)
    traced = trace(net, *arguments)
    assert traced.flops == counter.get_total_flops() == cost(task).flops * units
    by_module = {name.partition(".")[2]: sum(each.values()) for name, each in counter.get_flop_counts().items()}
    for name in {one.module for one in traced.operations if one.flops and ".blocks." in one.module}:
        inside = [one for one in traced.operations if one.module == name or one.module.startswith(f"{name}.")]
        assert sum(one.flops for one in inside) == by_module[name], name
    return traced


def one_in(step, choices, first=0):
    """For pytest's parametrize: in the default run every so-manyeth choice from the first on, in a campaign all."""
    return [
        pytest.param(choice, marks=[] if number % step == first else [pytest.mark.campaign], id=str(choice))
        for number, choice in enumerate(choices)
    ]


# each recipe is the subject of one of these in the default run, or of the check of test_costs.py, or of none


@pytest.mark.parametrize("name", one_in(5, DISTINCT, 0))
def test_flops_of_every_recipe_are_those_of_flop_counter_mode(name):
    assert counts_agree(build(name, small=True)).flops >= 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", RECIPES)
def test_flops_of_every_recipe_at_its_own_size_are_those_of_flop_counter_mode(name):
    counts_agree(build(name))


@pytest.mark.parametrize("name", one_in(5, DISTINCT, 1))
def test_operations_of_every_recipe_are_those_that_the_profiler_counts(name):
    assert check_operations(build(name, torch.device("cpu"), small=True)) > 0


@pytest.mark.parametrize("part", one_in(2, BUILTIN_PARTS))
def test_operations_of_every_part_are_those_that_the_profiler_counts(part):
    check_flops(part_task(part.kind, part.load(), "meta"))
    check_operations(part_task(part.kind, part.load()))


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.campaign)])
def test_flops_and_operations_of_recipes_and_parts_of_plugins_are_right(tmp_path, every):
    env = {**write_metadata(tmp_path / "site"), "KINETO_LOG_LEVEL": "5"}
    command = [sys.executable, "-m", "tests.explain.operation_counts", str(every)]
    done = forks.run(command, env=env, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert {name.partition(" ")[0] for name in outcomes} == {"recipe", *registry.STACK_KINDS}
    assert len(outcomes) > 80 / every
    differences = {name: outcome for name, outcome in outcomes.items() if outcome != "agrees"}
    if "backend Flex: operations" in outcomes:  # its kernel is compiled: it has no operations to count
        assert "torch.compile" in differences.pop("backend Flex: operations")
    if "backend FlashVarlen: FLOPs" in outcomes and not torch.cuda.is_available():
        for count in ("FLOPs", "operations"):
            assert "needs an NVIDIA GPU" in differences.pop(f"backend FlashVarlen: {count}")
    assert every > 1 or {"backend Flex: operations", "backend FlashVarlen: FLOPs"} <= set(outcomes)
    assert differences == {}


@pytest.mark.parametrize("name", ["lm-tiny", "translation-tiny", "vit-tiny"])
def test_a_traced_call_returns_what_an_untraced_one_returns(name):
    task = build(name, torch.device("cpu"), small=True).eval()
    arguments = [
        torch.randn(one.shape) if one.is_floating_point() else torch.randint(2, 60, one.shape)
        for one in task.example()[0]
    ]
    with torch.no_grad():
        expected = task.net(*arguments)
    assert torch.equal(trace(task.net, *arguments).output, expected)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.net.modules())


def test_self_attention_is_four_products_and_an_encoder_block_six():
    pattern, x = Pattern(), torch.randn(1, 5, 16)
    part = MultiHead(16, 2, Naive())
    attention = trace(part, x, call=lambda: part(x, pattern=pattern))
    assert sum(one.products for one in attention.operations) == 4
    stack = Stack(Extent((9,)), dim=16, depth=1, heads=2, backend=Naive).eval()
    assert sum(one.products for one in trace(stack, x).operations) == 6


def test_a_fused_attention_is_two_products():
    query = torch.randn(1, 2, 8, 4)

    class Fused(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    assert sum(one.products for one in trace(Fused(), query).operations) == 2


def test_operations_know_whose_results_they_read():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

        def forward(self, x):
            return x + self.linear(self.norm(x).view(2, 4)).view(1, 2, 4)

    result = trace(Residual(), torch.randn(1, 2, 4))
    assert [(one.module, one.name, one.inputs) for one in result.operations] == [
        ("norm", "native_layer_norm", (-1,)), ("linear", "addmm", (0,)), ("", "add", (-1, 1)),
    ]  # fmt: skip
    assert result.inputs == ["x"]
    assert result.shapes == {"norm": (1, 2, 4), "linear": (2, 4)}


def test_repeated_numbers_are_read_once():
    class Spread(nn.Module):
        def forward(self, x):
            return x.expand(100, 4) * 2.0

    (one,) = trace(Spread(), torch.randn(4)).operations
    assert (one.read, one.write, one.traffic) == (16, 1600, 1616)


def test_a_part_of_a_part_counts_in_its_own_module():
    task = CausalLM(31, 8, dim=16, depth=2, heads=2)
    paths = {one.module for one in trace(meta_copy(task.net), *task.example()[0]).operations}
    assert {"embedding", "stack.blocks.1.ffn.part.up", "stack.norm", ""} <= paths
