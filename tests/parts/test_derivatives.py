"""Every hand-written gradient of zoo, by every way that torch has of asking for derivatives: right, or refused."""

import ast
import copy
import itertools
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import zoo
from tests.covering import covering_params
from tests.models.small import SIZES, WORDS, names, spread
from zoo import registry
from zoo.errors import UsageError
from zoo.models.loss import cross_entropy
from zoo.parts import cpu_attention, training_products
from zoo.parts.backend import Tiled
from zoo.parts.derivatives import differentiable_gradients, first_derivatives_only
from zoo.parts.pattern import Pattern
from zoo.parts.recompute import recomputed
from zoo.tasks.lm import CausalLM
from zoo.tasks.translation import Translation

TARGETS = torch.tensor([1, -100, 4, 0, -100])
VALID = torch.tensor([[True, True, False], [True, True, True]])
PATTERNS = {"": {}, "causal": {"causal": True}, "window": {"causal": True, "window": 2}, "valid": {"valid": VALID}}


def draws(*shapes):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def loss(x, weight, bias=None, smoothing=0.0):
    return cross_entropy(x, weight, TARGETS, bias, smoothing, rows=2)


def attention(function, kind, dropout, q, k, v, bias=None):
    torch.manual_seed(4)  # the same weights are dropped whenever it is called
    added = None if bias is None else (lambda head, query, key: bias[head, query, key])
    return function(q, k, v, Pattern(bias=added, **PATTERNS[kind]), dropout)


def twice(x, weight):
    return recomputed(lambda x, weight: (x @ weight).tanh(), x, weight)


LOSS, HEADS, TABLE = ((5, 3), (6, 3)), ((2, 2, 3, 2),) * 3, (2, 3, 3)
# what calls each function, with which inputs
CASES = {
    "zoo.models.loss._Chunked": [
        (loss, LOSS),
        (partial(loss, smoothing=0.1), LOSS),
        (partial(loss, smoothing=0.1), (*LOSS, (6,))),
    ],
    "zoo.parts.cpu_attention._Products": [
        *[(partial(attention, cpu_attention.attention, kind, 0.0), HEADS) for kind in PATTERNS],
        (partial(attention, cpu_attention.attention, "causal", 0.0), (*HEADS, TABLE)),
        *[(partial(attention, cpu_attention.attention, "valid", rate), (*HEADS, TABLE)) for rate in (0.5, 1.0)],
    ],
    "zoo.parts.training_products._Linear": [
        (training_products.linear, LOSS),
        (training_products.linear, (*LOSS, (6,))),
        (training_products.linear, ((2, 4, 3), (6, 3), (6,))),
        (partial(loss, smoothing=0.1), (*LOSS, (6,))),
    ],
    "zoo.parts.recompute._Recomputed": [
        (twice, ((2, 3), (3, 4))),
        *[(partial(attention, Tiled(2), "causal", rate), HEADS) for rate in (0.0, 0.5, 1.0)],
        (partial(attention, Tiled(2), "valid", 0.5), HEADS),
    ],
}  # fmt: skip
EACH = [
    pytest.param(*case, id=f"{name.rpartition('.')[2]}{n}") for name, row in CASES.items() for n, case in enumerate(row)
]


@pytest.fixture(autouse=True)
def _products_in_float64(request, monkeypatch):
    """For the cases of training products: oneDNN has none in the type that derivatives are checked in."""
    if "_Linear" in request.node.name:
        monkeypatch.setattr(training_products, "TYPE", torch.float64)
        monkeypatch.setattr(training_products, "LEAST", 1)
        monkeypatch.setattr(training_products, "_is_faster", lambda: True)
        monkeypatch.setattr(training_products.torch_internals, "dense_linear", torch.nn.functional.linear)


def functions(folder):
    """The names of the autograd functions below a package's folder."""
    for path in sorted(Path(folder).rglob("*.py")):
        module = ".".join(path.relative_to(Path(folder).parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
                yield f"{module}.{node.name}"


def test_every_autograd_function_is_tried_here():
    assert {*functions(Path(zoo.__file__).parent)} == {*CASES}


@pytest.mark.parametrize(("call", "shapes"), EACH)
def test_gradients_and_their_gradients(call, shapes):
    inputs = [x.requires_grad_() for x in draws(*shapes)]
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs, atol=1e-5, rtol=1e-5, fast_mode=True)


@pytest.mark.parametrize(("call", "shapes"), EACH)
def test_a_hessian_vector_product_behind_a_linear_end(call, shapes):
    """The gradient that enters the backward pass is a constant here, behind which a missing derivative hides."""
    inputs = [x.requires_grad_() for x in draws(*shapes)]
    along = draws(*reversed(shapes))[::-1]
    product = torch.autograd.grad(dot(gradients(call, inputs, create_graph=True), along), inputs, allow_unused=True)
    step = 1e-5
    moved = [
        gradients(call, [(x.detach() + sign * step * a).requires_grad_() for x, a in zip(inputs, along, strict=True)])
        for sign in (1, -1)
    ]
    for got, above, below in zip(product, *moved, strict=True):
        got = torch.zeros_like(above) if got is None else got
        torch.testing.assert_close(got, (above - below) / (2 * step), rtol=1e-5, atol=1e-7)


def gradients(call, inputs, **options):
    out = call(*inputs)
    return torch.autograd.grad(out, inputs, torch.ones_like(out), **options)


def dot(ones, others):
    return sum((one * other).sum() for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize(("call", "shapes"), EACH)
def test_torch_func_and_forward_mode(call, shapes):
    inputs = draws(*shapes)
    numbers = tuple(range(len(inputs)))
    expected = gradients(call, [x.clone().requires_grad_() for x in inputs])
    result = torch.func.grad(lambda *x: call(*x).sum(), numbers)(*inputs)
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want)
    along = draws(*reversed(shapes))[::-1]
    value, slope = torch.func.jvp(call, tuple(inputs), tuple(along))
    torch.testing.assert_close(value, call(*inputs))
    torch.testing.assert_close(slope.sum(), dot(expected, along))
    with forward_ad.dual_level():
        dual = call(*(forward_ad.make_dual(x, a) for x, a in zip(inputs, along, strict=True)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent.sum(), dot(expected, along))
    many = [torch.stack([x, 2 * x]) for x in inputs]
    each = torch.func.vmap(call, randomness="same")(*many)
    for number, got in enumerate(each):
        torch.testing.assert_close(got, call(*(x[number] for x in many)))


@pytest.mark.parametrize(("call", "shapes"), EACH)
def test_whatever_is_frozen_the_rest_has_the_same_gradient(call, shapes):
    inputs = draws(*shapes)
    whole = gradients(call, [x.clone().requires_grad_() for x in inputs])
    for needed in itertools.product([False, True], repeat=len(inputs)):
        leaves = [x.clone().requires_grad_(learns) for x, learns in zip(inputs, needed, strict=True)]
        out = call(*leaves)
        assert out.requires_grad == any(needed)
        if any(needed):
            out.sum().backward()
        for leaf, want, learns in zip(leaves, whole, needed, strict=True):
            assert (leaf.grad is not None) == learns
            if learns:
                torch.testing.assert_close(leaf.grad, want)


@pytest.mark.parametrize(("call", "shapes"), EACH)
@pytest.mark.parametrize("reentrant", [False, True])
def test_computed_again_by_torch(call, shapes, reentrant):
    inputs = [x.requires_grad_() for x in draws(*shapes)]
    result = gradients(lambda *x: checkpoint(call, *x, use_reentrant=reentrant), inputs) if not reentrant else None
    if reentrant:  # which knows .backward() alone
        checkpoint(call, *inputs, use_reentrant=True).sum().backward()
        result = [x.grad for x in inputs]
    for got, want in zip(result, gradients(call, inputs), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("call", "shapes"), EACH)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(call, shapes, dtype):
    inputs = [x.float().requires_grad_() for x in draws(*shapes)]
    with torch.autocast("cpu", dtype):
        result = gradients(call, inputs)
        again = gradients(call, inputs, create_graph=True)  # by the formula
    exact = gradients(call, [x.detach().double().requires_grad_() for x in inputs])
    for got, formula, want in zip(result, again, exact, strict=True):
        assert got.dtype is formula.dtype is torch.float32
        assert (got - want).norm() <= 0.03 * want.norm() + 1e-3
        assert (formula - want).norm() <= 0.03 * want.norm() + 1e-3


@pytest.mark.parametrize(("call", "shapes"), EACH)
def test_what_is_kept_may_be_kept_elsewhere(call, shapes):
    inputs = [x.requires_grad_() for x in draws(*shapes)]
    expected = gradients(call, inputs)
    with torch.autograd.graph.saved_tensors_hooks(pickle.dumps, pickle.loads):
        result = gradients(call, inputs)
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_a_target_that_is_ignored_may_hold_anything_in_every_derivative():
    x, weight = (x.requires_grad_() for x in draws(*LOSS))
    spoiled = x.detach().clone()
    spoiled[TARGETS < 0] = float("nan")
    slopes = []
    for states in (x, spoiled.requires_grad_()):
        grad = torch.autograd.grad(loss(states, weight), (states, weight), create_graph=True)
        slopes.append([*grad, *torch.autograd.grad(sum(g.square().sum() for g in grad), (states, weight))])
    for got, want in zip(*slopes, strict=True):
        torch.testing.assert_close(got, want)


def test_a_function_without_second_derivatives_says_so():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @first_derivatives_only("function Once")
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    x = torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.grad(Once.apply(x), x)[0] == 12
    with pytest.raises(UsageError, match="function Once has no second derivatives"):
        torch.autograd.grad(Once.apply(x), x, create_graph=True)


# whole models


def language(backend, **options):
    torch.manual_seed(0)
    task = CausalLM(WORDS, 16, backend=registry.get("backend", backend), **{**SIZES, "depth": 1, **options})
    tokens = torch.arange(14).view(2, 7) % WORDS
    return task, {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def translation(backend, **options):
    torch.manual_seed(0)
    backend = registry.get("backend", backend)
    task = Translation(WORDS, WORDS, 16, backend=backend, output_bias=True, **{**SIZES, "depth": 1, **options})
    tokens = torch.arange(14).view(2, 7) % WORDS
    valid = torch.arange(7) < torch.tensor([[7], [4]])
    return task, {"source": tokens, "source_valid": valid, "target": tokens, "target_valid": valid}


@pytest.mark.parametrize("build", [language, translation])
@pytest.mark.parametrize("backend", names("backend"))
@pytest.mark.parametrize("recompute", [False, True])
def test_a_hessian_vector_product_of_a_loss_is_right_or_refused(build, backend, recompute):
    try:
        task, batch = build(backend, recompute=recompute)
    except UsageError as error:
        pytest.skip(str(error))
    spread(task.net)
    task.double().train()
    leaves = [*task.net.parameters()]
    along = [torch.randn_like(x) for x in leaves]
    try:
        slopes = torch.autograd.grad(task.loss(batch).total, leaves, create_graph=True)
        product = torch.autograd.grad(dot(slopes, along), leaves, allow_unused=True)
    except RuntimeError as error:
        if backend not in ("SDPA", "Flash") or "_backward is not implemented" not in str(error):
            raise
        return  # torch's fused kernels refuse
    moved = []
    for sign in (1, -1):
        with torch.no_grad():
            for leaf, a in zip(leaves, along, strict=True):
                leaf += sign * 1e-5 * a
        moved.append(torch.autograd.grad(task.loss(batch).total, leaves))
        with torch.no_grad():
            for leaf, a in zip(leaves, along, strict=True):
                leaf -= sign * 1e-5 * a
    got = torch.cat(
        [torch.zeros_like(x).flatten() if p is None else p.flatten() for p, x in zip(product, leaves, strict=True)]
    )
    want = torch.cat([(above - below).flatten() / 2e-5 for above, below in zip(*moved, strict=True)])
    assert (got - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("build", [language, translation])
@pytest.mark.parametrize("backend", names("backend"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torch_func_through_a_loss(build, backend, dtype):
    try:
        task, batch = build(backend, recompute=dtype is torch.float64)
    except UsageError as error:
        pytest.skip(str(error))
    task.to(dtype)
    weights = {name: p.detach() for name, p in task.named_parameters()}

    class Total(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task

        def forward(self):
            return task.loss(batch).total

    total = Total()
    weights_by_name = {f"task.{name}": value for name, value in weights.items()}
    result = torch.func.grad(lambda w: torch.func.functional_call(total, w, ()))(weights_by_name)
    task.loss(batch).total.backward()
    for name, parameter in task.named_parameters():
        want, tolerance = parameter.grad, 1e-9 if dtype is torch.float64 else 0.1
        assert (result[f"task.{name}"] - want).norm() <= tolerance * want.norm() + tolerance, name
    if dtype is torch.float64:
        along = {name: torch.randn_like(value) for name, value in weights_by_name.items()}
        _, slope = torch.func.jvp(lambda w: torch.func.functional_call(total, w, ()), (weights_by_name,), (along,))
        torch.testing.assert_close(slope, sum((result[name] * along[name]).sum() for name in weights_by_name))


@pytest.mark.parametrize("build", [language, translation])
def test_a_model_may_be_copied_and_pickled_after_a_step(build):
    task, batch = build("SDPA")
    task.loss(batch).total.backward()
    for other in (copy.deepcopy(task.net), pickle.loads(pickle.dumps(task.net))):
        for one, two in zip(task.net.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("build", [language, translation])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_may_learn_alone(build, dtype):
    task, batch = build("SDPA")
    task.to(dtype)
    task.loss(batch).total.backward()
    whole = {name: p.grad for name, p in task.named_parameters()}
    task.requires_grad_(False)
    for name, parameter in task.named_parameters():
        parameter.requires_grad_(True).grad = None
        task.loss(batch).total.backward()
        torch.testing.assert_close(parameter.grad, whole[name])
        parameter.requires_grad_(False)


@pytest.mark.parametrize(
    ("rate", "backend", "dtype"), covering_params([0.0, 0.5, 1.0], names("backend"), [torch.float32, torch.bfloat16])
)
def test_any_rate_of_dropout_trains(rate, backend, dtype):
    try:
        task, batch = language(backend, attention_dropout=rate, dropout=rate)
    except UsageError as error:
        pytest.skip(str(error))
    task.to(dtype).train().loss(batch).total.backward()
    assert all(p.grad.isfinite().all() for p in task.parameters())


@pytest.mark.parametrize(
    "needed", [[True, True, True], [False, True, True], [True, False, False], [False, False, True]]
)
def test_gradients_are_those_of_the_inputs_that_need_one(needed):
    """Whichever inputs need none, with a derivative of their own."""
    a, b, c = (torch.tensor([one, one + 1], dtype=torch.float64, requires_grad=True) for one in (2.0, 3.0, 5.0))
    expected = (b * c, a * c, a * b)
    results = differentiable_gradients(lambda a, b, c: a * b * c, (a, b, c), needed, torch.ones(2, dtype=torch.float64))
    assert [one is not None for one in results] == needed
    for number, (result, product) in enumerate(zip(results, expected, strict=True)):
        if result is not None:
            assert torch.equal(result, product)
            others = [one for place, one in enumerate((a, b, c)) if place != number]
            again = torch.autograd.grad(result.sum(), others, retain_graph=True)
            assert all(torch.equal(one, other) for one, other in zip(again, others[::-1], strict=True))
