"""Each part's results on a batch against its formula in float64, and how much of a difference rounding explains.

The formula is the part's own ``reference``, for an attention its weights (``weigh``) times the values, and for a
position or a part without a formula its code in float64.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.io import atomic_files
from zoo.logging.best_effort import BestEffort
from zoo.parts.attention import Attention
from zoo.parts.ffn import FFN
from zoo.parts.norm import Norm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position

FILE = "numerics.json"
TOKENS, QUERIES, PLACES = 256, 16, 4096  # how many of each part's outputs are compared, from the first on
SLACK = 4  # times what rounding changes; right parts were measured at up to 1.1
ANGLE = 2**-24  # relative rounding of an angle, which parts compute in float32
SUM = 2**-23  # relative rounding of a sum, which every precision computes in float32, times the root of its terms


class PartError(NamedTuple):
    """How far a part is from its formula, relative to the formula's largest value, and how far it may be."""

    name: str
    part: str  # kind and class: "norm RMSNorm"
    error: float
    tolerance: float

    @property
    def share(self) -> float:
        """The error in units of the tolerance; above one the part is wrong."""
        return self.error / self.tolerance if math.isfinite(self.error) else math.inf


def write_parts(path: Path, dtype: torch.dtype, parts: list[PartError]) -> None:
    """Write the errors of parts; a disk that fails is a warning."""
    effort = BestEffort(f"{path}", "the errors of parts are missing", "it is complete")
    with effort.attempt():
        atomic_files.write_json(path, {"dtype": str(dtype)[6:], "parts": [part._asdict() for part in parts]})
    effort.end()


def read_parts(path: Path) -> tuple[str, list[PartError]]:
    """The type that a run computed in, and the errors of its parts; none without a readable file."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return str(content["dtype"]), [PartError(**row) for row in content["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "", []


class Call(NamedTuple):
    """The arguments of a part's first call and its result, (..., dim) of a token-wise part, (B, H, T, D) of heads."""

    arguments: tuple[Any, ...]
    result: Tensor


@contextmanager
def record_calls(net: nn.Module) -> Iterator[dict[str, Call]]:
    """The first call of each norm, feed-forward and attention of a net within the block, by the module's name."""
    calls: dict[str, Call] = {}
    undo: list[Callable[[], None]] = []
    try:
        for name, module in net.named_modules():
            if isinstance(module, (Norm, FFN)):
                undo.append(module.register_forward_hook(_keep_tokens(calls, name)).remove)
            elif isinstance(module, Attention) and module.shows_weights:
                module.attend = _keep_heads(calls, name, module.attend)  # type: ignore[method-assign]
                undo.append(lambda module=module: delattr(module, "attend"))  # type: ignore[misc]
        yield calls
    finally:
        for restore in undo:
            restore()


def _keep_tokens(calls: dict[str, Call], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        alone = len(arguments) == 1 and isinstance(arguments[0], Tensor) and isinstance(result, Tensor)
        if name not in calls and alone and arguments[0].shape == result.shape:
            x, y = (value.detach().flatten(0, -2)[:TOKENS].clone() for value in (arguments[0], result))
            calls[name] = Call((x,), y)

    return hook


def _keep_heads(calls: dict[str, Call], name: str, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def recorded(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
        heads = attend(q, k, v, pattern)
        if name not in calls and pattern.places is None:  # places of selected queries would have to be selected too
            queries = slice(0, QUERIES)
            calls[name] = Call((q[:, :, queries].clone(), k.clone(), v.clone(), pattern), heads[:, :, queries].clone())
        return heads

    return recorded


def measure(
    net: nn.Module, exact: nn.Module, calls: dict[str, Call], dtype: torch.dtype, eps: float
) -> list[PartError]:
    """The errors of the recorded parts of ``net`` and of its positions, in the order of the net's modules.

    ``exact`` is the same net in float64, ``dtype`` what ``net`` computes in, and ``eps`` the relative rounding of its
    matrix products.
    """
    errors = []
    head_dim = next((module.head_dim for module in net.modules() if isinstance(module, Attention)), 0)
    with torch.no_grad(), torch.random.fork_rng([]):
        for name, module in net.named_modules():
            copy = exact.get_submodule(name)
            if name in calls:
                compared = compare_call(copy, calls[name], eps)
            elif isinstance(module, Position):
                compared = compare_position(module, copy, head_dim, dtype)
            else:
                continue
            if compared is not None:
                errors.append(PartError(name, f"{module.kind} {type(module).__name__}", *compared))
    return errors


def compare_call(exact: nn.Module, call: Call, eps: float) -> tuple[float, float] | None:
    """Error and tolerance of a recorded call; None where the part has nothing to compare with."""
    formula: Callable[..., Tensor] = heads_by_weights if isinstance(exact, Attention) else tokens_by_formula
    *tensors, pattern = call.arguments if isinstance(exact, Attention) else (*call.arguments, None)
    inputs = [value.double() for value in tensors]
    if isinstance(exact, Norm):  # no matrix product: what comes out in float32 was not rounded to less
        eps = torch.finfo(call.result.dtype).eps
    try:
        truth = formula(exact, *inputs, pattern)
        moved = formula(exact, *(value * (1 + eps * random_signs(value)) for value in inputs), pattern)
    except NotImplementedError:
        return None
    result, counts = call.result.double(), real_queries(pattern, truth)
    if counts is not None:
        result, truth, moved = result[counts], truth[counts], moved[counts]
    if not truth.numel():
        return None
    largest = float(truth.abs().max()) or 1.0
    explained = float((moved - truth).abs().max()) / largest
    # a sum of n equal terms, as of a flat image, was measured at up to 1.4 * sqrt(n) * SUM from float64
    terms = inputs[1].size(-2) if isinstance(exact, Attention) else inputs[0].size(-1)
    return float((result - truth).abs().max()) / largest, SLACK * (explained + eps + SUM * terms**0.5)


def is_of(part: nn.Module, formula: str, method: str) -> bool:
    """Whether a formula is that of a part's method: a subclass that changes the method alone has no formula."""
    order = [vars(cls) for cls in type(part).__mro__]
    position = {name: next(i for i, names in enumerate(order) if name in names) for name in (formula, method)}
    return position[formula] <= position[method]


def tokens_by_formula(part: Any, x: Tensor, pattern: None) -> Tensor:
    """x (tokens, dim) to the same shape, by the part's ``reference`` or, where it has none, its forward."""
    if is_of(part, "reference", "forward"):
        with contextlib.suppress(NotImplementedError):
            return part.reference(x)
    return part(x)


def heads_by_weights(part: Any, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """Queries (B, H, T, D), keys and values (B, G, S, D) to the weighted values (B, H, T, D)."""
    if not is_of(part, "weigh", "attend"):
        return part.attend(q, k, v, replace(pattern))
    weights = part.weigh(q, k, replace(pattern))  # a copy, which remembers no mask of the live one
    return weights @ v.repeat_interleave(weights.size(1) // v.size(1), 1)


def real_queries(pattern: Pattern | None, truth: Tensor) -> Tensor | None:
    """Which of (B, H, T, D) belong to tokens that are no padding, a mask (B, H, T); None: all."""
    if pattern is None:
        return None
    B, H, T, _ = truth.shape
    real = pattern.real_tokens(T) if pattern.queries is None else pattern.queries.valid[:, :T]
    if real is None or real.shape != (B, T):
        return None
    return real[:, None].expand(B, H, T)


def random_signs(x: Tensor) -> Tensor:
    """One or minus one for each number of x, of any shape, at random."""
    return torch.randint(0, 2, x.shape, device=x.device).to(x.dtype) * 2 - 1


def compare_position(part: Position, exact: Any, head_dim: int, dtype: torch.dtype) -> tuple[float, float] | None:
    """Error and tolerance of a position: what it adds to tokens, how it turns heads, and what it adds to scores."""
    device = next((tensor.device for tensor in part.parameters()), torch.device("cpu"))
    places = min(math.prod(part.extent.sizes), PLACES)
    pos = torch.arange(places, device=device)
    cases: list[tuple[str, tuple[Tensor, ...]]] = []
    if type(part).embed is not Position.embed:
        cases.append(("embed", (torch.zeros(1, places, part.dim, device=device), pos)))
    if part.rotates:
        x = random_signs(torch.empty(1, part.heads, places, head_dim, device=device))  # none larger than another
        cases += [("rotate", (x, pos)), ("rotate_keys", (x, pos))]
    if part.biases:
        head, key = torch.arange(part.heads, device=device)[:, None, None], pos[None, None]
        cases.append(("bias", (head, torch.full_like(key, places - 1), key)))
    worst = None
    for method, arguments in cases:
        rounded = tuple(x.to(dtype) if x.is_floating_point() else x for x in arguments)
        truth = getattr(exact, method)(*(x.double() if x.is_floating_point() else x for x in rounded))
        result = getattr(part, method)(*rounded).double()
        largest = float(truth.abs().max()) or 1.0
        error = float((result - truth).abs().max()) / largest
        worst = error if worst is None else max(worst, error)
    return None if worst is None else (worst, torch.finfo(dtype).eps + SLACK * places * ANGLE)
