"""Every built-in part goes through the compiler: the compiled loss is the plain one, and nothing falls back.

The default run compiles one part of each kind and those whose shapes the data decide; a campaign all.
"""

import functools
import logging

import pytest
import torch
from torch._dynamo.utils import counters

from zoo import registry
from zoo.parts.ffn import MoE, feeds, pop_aux_losses
from zoo.parts.position import NoPosition
from zoo.tasks.lm import CausalLM
from zoo.training.compilation import compile_loss

KINDS = ("position", "attention", "backend", "norm", "ffn", "block")
PARTS = [(kind, part.name) for kind in KINDS for part in registry.parts(kind) if part.distribution == registry.BUILTIN]
SIZED_BY_DATA = {"MoE"}  # how many tokens an expert gets is known when they are there
# by default models with a part of each kind and those of SIZED_BY_DATA: Additive takes no other backend than Naive
TOGETHER = [
    {"position": "ALiBi", "backend": "SDPA", "norm": "RMSNorm", "ffn": "Bilinear", "block": "Parallel"},
    {"attention": "Additive", "backend": "Naive", "ffn": "MoE"},
]
ALONE = [pytest.param({kind: name}, marks=pytest.mark.campaign) for kind, name in PARTS]


def test_a_part_of_each_kind_is_compiled_by_default():
    together = {pair for parts in TOGETHER for pair in parts.items()}
    assert together <= set(PARTS)
    assert {kind for kind, _ in together} == set(KINDS)
    assert {name for _, name in together} >= SIZED_BY_DATA


@pytest.mark.parametrize("parts", [*TOGETHER, *ALONE], ids=lambda parts: "-".join(parts.values()))
def test_a_compiled_loss_equals_the_plain_one(parts, monkeypatch, caplog):
    compare(parts, monkeypatch, caplog)


def test_it_does_so_in_bfloat16(monkeypatch, caplog):
    # torch 2.11 rounds some products of a compiled graph once more or less than without a compiler, 2.15 does not
    rounding = 2**-7 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15) else None
    with torch.autocast("cpu", torch.bfloat16):
        compare({"backend": "SDPA", "position": "T5"}, monkeypatch, caplog, rounding)


def compare(parts, monkeypatch, caplog, rounding=None):
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    options = {"position": NoPosition}  # which every attention takes
    options |= {kind: registry.get(kind, name) for kind, name in parts.items()}
    tasks = []
    for _ in range(2):
        torch.manual_seed(0)
        tasks.append(CausalLM(31, 8, dim=16, depth=1, heads=2, **options).train())
    torch.manual_seed(0)
    batch = tasks[0].sample(2)
    compile_loss(tasks[1])
    gradients = []
    with caplog.at_level(logging.WARNING):
        for task in tasks:
            total, size = task.loss(batch)
            (total / size).backward()
            gradients.append([p.grad for p in task.parameters()])
    for got, want in zip(*gradients, strict=True):
        bounds = {} if rounding is None else {"rtol": 0.0, "atol": rounding * float(want.abs().max())}
        torch.testing.assert_close(got, want, **bounds)
    assert not [record for record in caplog.records if "not compiled" in record.getMessage()]
    assert not counters["graph_break"], dict(counters["graph_break"])


@pytest.mark.parametrize(
    ("backend", "depth", "experts", "top_k"),
    [
        ("aot_eager", 1, 2, 1),
        *(pytest.param(name, 2, 4, 2, marks=pytest.mark.campaign) for name in ("aot_eager", "inductor")),
    ],
)
def test_a_mixture_of_experts_is_one_graph_whatever_its_experts_serve(backend, depth, experts, top_k, monkeypatch):
    """Forward and backward of batches after which experts have many, few and no tokens, without a new graph.

    That it is one graph is seen before kernels are compiled; that their results are right, in a campaign.
    """
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend=backend))
    monkeypatch.setenv("ZOO_KERNELS", "plain")
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    mixture = functools.partial(MoE, experts=experts, top_k=top_k)
    task = CausalLM(31, 8, dim=16, depth=depth, heads=2, ffn=mixture).train()
    eager = task.loss
    compile_loss(task)
    shares = []
    for factor in (1.0, 1.0, 40.0):
        batch = task.sample(3)
        with torch.no_grad():
            for module in task.modules():
                if isinstance(module, MoE):
                    module.router.weight.mul_(factor)
                    module.router.weight[0].fill_(0.0 if factor == 1.0 else -40.0)
                    module.load.zero_()
        results = []
        for loss in (eager, task.loss):
            total, size = loss(batch)
            side = sum(pop_aux_losses(feeds(task.net)))
            results.append([total.detach(), *torch.autograd.grad(total / size + side, list(task.net.parameters()))])
        for got, want in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        shares.append([module.load.tolist() for module in task.modules() if isinstance(module, MoE)])
    assert len({str(share) for share in shares}) == 3
    assert not counters["graph_break"], dict(counters["graph_break"])
    assert counters["stats"]["unique_graphs"] == 1
