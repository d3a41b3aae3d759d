"""Every autograd function through torch.compile: values, gradients, and gradients of gradients or a refusal.

    python -m tests.parts.compiled_derivatives
    python -m tests.parts.compiled_derivatives --backends eager aot_eager inductor --only _Products

Compiles each case of `test_derivatives` with fixed and open sizes, and compares it with the same call that is not
compiled. Prints one JSON object; ends with 1 where a value differs. The backend "eager" is tried without second
derivatives: there torch traces the backward pass without a graph, and takes gradients for constants in silence. Cases
that draw dropout masks again are tried there without gradients too: torch's own checkpoint, compiled for that backend,
draws other masks in its backward pass (backends that train, which trace it by AOTAutograd, draw the same). Inductor may
draw other masks than torch without a compiler: gradients are compared there with finite differences of the same call.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch._inductor.config
from torch import Tensor

from tests.parts.test_derivatives import CASES, attention, draws
from zoo.errors import UsageError

BACKENDS = ("eager", "aot_eager", "inductor")
# of a second derivative: by zoo of its functions, by torch of compiled graphs
REFUSALS = ("second derivatives", "double backward", "create_graph=False")
TOLERANCE = {"rtol": 1e-6, "atol": 1e-8}


def scalar(out: Tensor) -> Tensor:
    """A function of a result whose gradient is no constant."""
    return (out * out).sum() + out.sum()


def derivatives(call: Callable[..., Tensor], inputs: Sequence[Tensor], order: int) -> list[Tensor]:
    """The result for order 0, its gradients for 1, the gradients of their squared norm for 2."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    value = scalar(call(*leaves))
    if order == 0:
        return [value.detach()]
    grads = torch.autograd.grad(value, leaves, create_graph=order == 2)
    if order == 1:
        return list(grads)
    norm = sum((grad * grad).sum() for grad in grads)
    return list(torch.autograd.grad(norm, leaves, materialize_grads=True))


def outcome(call: Callable[..., Tensor], inputs: Sequence[Tensor], order: int, expected: Sequence[Tensor]) -> str:
    """ "equal", how it was refused, or what is wrong."""
    try:
        result = derivatives(call, inputs, order)
    except (RuntimeError, UsageError, NotImplementedError) as error:
        sentence = str(error).strip().splitlines()[0]
        refused = order == 2 and any(words in sentence for words in REFUSALS)
        return "refused" if refused else f"{type(error).__name__}: {sentence:.200}"
    for got, want in zip(result, expected, strict=True):
        if not torch.allclose(got, want, **TOLERANCE):
            return f"differs by {(got - want).abs().max():.2e}"
    return "equal"


def slopes(call: Callable[..., Tensor], inputs: Sequence[Tensor], step: float = 1e-6) -> list[tuple[float, float]]:
    """Along one direction of each input: the slope by finite differences, and by the gradient of a call."""

    def value(point: Sequence[Tensor]) -> Tensor:
        return scalar(call(*(x.clone().requires_grad_() for x in point)))

    gradients = derivatives(call, inputs, 1)
    result = []
    for number, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(number))
        ends = [value([*inputs[:number], x + sign * step * direction, *inputs[number + 1 :]]) for sign in (1, -1)]
        result.append(((ends[0] - ends[1]).item() / (2 * step), (gradient * direction).sum().item()))
    return result


def draws_masks(call: Callable[..., Tensor]) -> bool:
    """Whether a case drops random weights of attention."""
    return isinstance(call, partial) and call.func is attention and 0 < call.args[2] < 1


def orders(backend: str, call: Callable[..., Tensor]) -> tuple[int, ...]:
    """Which derivatives torch computes right of its own functions, compiled for a backend."""
    if backend == "eager":
        return (0,) if draws_masks(call) else (0, 1)
    return (1, 2) if draws_masks(call) and backend == "inductor" else (0, 1, 2)


def campaign(backends: Sequence[str], only: str = "") -> dict:
    """The counts of each outcome by order of the derivative, and every problem."""
    torch._inductor.config.fallback_random = True  # the same masks as without the compiler
    counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in ("0", "1", "2")}
    problems = []
    cases = [(name, n, *case) for name, row in CASES.items() for n, case in enumerate(row) if only in name]
    for name, number, call, shapes in cases:
        inputs = draws(*shapes)
        expected = [derivatives(call, inputs, order) for order in (0, 1, 2)]
        for backend in backends:
            for dynamic in (False, True):
                for order in orders(backend, call):
                    torch.compiler.reset()
                    compiled = torch.compile(call, backend=backend, dynamic=dynamic)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        if backend == "inductor" and order == 1 and draws_masks(call):
                            gap = max(abs(x - y) for x, y in slopes(compiled, inputs))
                            result = "equal" if gap <= 1e-6 else f"differs by {gap:.2e}"
                        else:
                            result = outcome(compiled, inputs, order, expected[order])
                    counts[str(order)][result if result in ("equal", "refused") else "wrong"] += 1
                    what = f"{name.rpartition('.')[2]}{number} {backend} {'open' if dynamic else 'fixed'} order {order}"
                    print(what, result, file=sys.stderr, flush=True)
                    if result not in ("equal", "refused"):
                        problems.append(f"{what}: {result}")
    return {
        "cases": len(cases),
        **{f"order {order}": dict(each) for order, each in counts.items()},
        "problems": problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    counts = campaign(options.backends, options.only)
    json.dump(counts, sys.stdout, indent=1)
    print()
    sys.exit(bool(counts["problems"]))


if __name__ == "__main__":
    main()
