"""Checks of every part that computes tokens: documentation, shapes, dtypes, reproducibility."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zoo.conformance.check import Broken, Inapplicable, describe_error, in_situations, once, require
from zoo.conformance.subject import GRID, SHORT_AND_LONG, TEXT, Refused, Subject, spread
from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.position import Extent
from zoo.plugins.description import CLASS_PARAMETERS, PLACE_PARAMETERS
from zoo.registry import STACK_KINDS
from zoo.system.fresh_process import measure_in_fresh_process

EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}
CAP = {torch.bfloat16: 4e-2, torch.float16: 6e-3}
TRIALS = 4  # random changes of the size of rounding


def difference(actual: Tensor, expected: Tensor) -> float:
    """max |a - e| / max(1, max |e|) of two tensors of any equal shape; infinite for other shapes and NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.numel():
        return 0.0
    gap = (actual.double() - expected.double()).abs().max().item()
    scale = max(1.0, expected.double().abs().max().item())
    return gap / scale if gap == gap else float("inf")


def build_part(subject: Subject, causal: bool = False) -> nn.Module:
    """The subject's layer. Raises Inapplicable if the part does not support these arguments."""
    try:
        return subject.layer(causal)
    except Refused as refusal:
        raise Inapplicable(f"it refuses: {refusal}") from refusal


def stack_on(subject: Subject, *extents: Extent, **options: Any) -> Stack:
    """A stack on the first of these extents that the part takes. Raises Inapplicable where it refuses all of them."""
    for extent in extents:
        try:
            return subject.stack(extent, **options)
        except Refused as error:
            refusal = error
    raise Inapplicable(f"it refuses: {refusal}") from refusal


def any_layer(subject: Subject, dropout: float = 0.0) -> nn.Module:
    """The subject's layer, with dropout where it takes some; causal, or on a grid, if it supports nothing else.

    Raises Broken if it cannot be built.
    """
    if dropout:
        with suppress(Refused):
            return subject.layer(dropout=dropout)
    refusal = None
    for extent in (TEXT, Extent(TEXT.sizes, causal=True), GRID):
        try:
            return subject.layer(extent.causal) if extent is not GRID else subject.stack(GRID)
        except Refused as error:
            refusal = refusal or error
    raise Broken(f"it cannot be built: {refusal}") from refusal


def each_layer(subject: Subject) -> Iterator[nn.Module]:
    """The subject's layer, causal and not, as far as it can be used."""
    yield any_layer(subject)
    with suppress(Refused):
        subject.layer()
        yield subject.layer(causal=True)


def need_parameters(layer: nn.Module) -> None:
    """Raise Inapplicable where a layer has nothing to learn."""
    if not any(parameter.requires_grad for parameter in layer.parameters()):
        raise Inapplicable("it has no parameters")


def takes_padding(layer: nn.Module) -> bool:
    """Whether a layer accepts a mask of real tokens."""
    return not (isinstance(layer, Stack) and any(part.unsupported(frozenset({"valid"})) for part in layer.attentions()))


NEARLY_A_PLACE = re.compile(
    r"(n_?|num_?|total_?)?((hidden|encoder|decoder)_?)?(layer|depth|block)s?(_?(i|id|idx|index|no|num|number|count))?"
)


def is_a_place(subject: Subject, name: str) -> bool:
    """Whether an option, a whole number, changes no shape of a parameter, as the number of a layer does not."""
    if name in PLACE_PARAMETERS:
        return False
    shapes = []
    for value in (2, 3):
        try:
            shapes.append([p.shape for p in any_layer(subject.changed(**{name: value})).parameters()])
        except (Broken, UsageError, TypeError, ValueError):
            return False
    return shapes[0] == shapes[1]


@once
def documentation(subject: Subject) -> None:
    """The class has a docstring, and every option has a type and a default that a recipe can hold."""
    part, skipped = subject.part, CLASS_PARAMETERS.get(subject.kind, 0)
    doc = part.__dict__.get("__doc__") or ""
    require(bool(doc.strip()), f"{subject.name} has no docstring: write its formula or one sentence, and its paper.")
    parameters = list(inspect.signature(part).parameters.values())
    message = f"{subject.name} takes {len(parameters)} arguments, but zoo gives the first {skipped}."
    require(len(parameters) >= skipped, message)
    for option in parameters[skipped:]:
        nearly = subject.kind in STACK_KINDS and NEARLY_A_PLACE.fullmatch(option.name)
        require(
            not nearly or not is_a_place(subject, option.name),
            f"no stack sets {option.name!r}: what receives the number of its layer is named layer, and depth what "
            "receives the number of layers, with defaults.",
        )
        if option.kind is option.VAR_KEYWORD and subject.kind == "task":
            continue  # the options of its model
        if option.kind in (option.VAR_POSITIONAL, option.VAR_KEYWORD):
            require(False, f"{subject.name} takes *{option.name}: name every option, so that typing errors are found.")
        behind = option.kind is not option.POSITIONAL_ONLY
        require(behind, f"option {option.name!r} cannot be given by its name: remove the / behind it.")
        require(option.annotation is not option.empty, f"option {option.name!r} needs a type, for `zoo show`.")
        needed = subject.kind == "data" and option.default is option.empty  # it may have to be told where files are
        if option.name in subject.options or needed:
            continue
        require(option.default is not option.empty, f"option {option.name!r} needs a default.")
        default = option.default
        if not isinstance(default, type):  # a part as a default is written by its name
            value = in_recipe(default)
            try:
                same = json.loads(json.dumps(value)) == value
            except TypeError:
                same = False
            require(same, f"option {option.name!r} has the default {default!r}, which a recipe cannot hold.")


def in_recipe(value: Any) -> Any:
    """A value as a recipe has it: lists for tuples, and names for members of an Enum."""
    if isinstance(value, (list, tuple)):
        return [in_recipe(item) for item in value]
    if isinstance(value, dict):
        return {key: in_recipe(item) for key, item in value.items()}
    return value.name if isinstance(value, Enum) else value


@once
def unknown_options_are_refused(subject: Subject) -> None:
    """An option that does not exist is an error, not ignored."""
    skipped = CLASS_PARAMETERS.get(subject.kind, 0)
    names = list(inspect.signature(subject.part).parameters)[:skipped]
    try:
        inspect.signature(subject.part).bind(*names, **subject.options, no_such_option=1)
    except TypeError:
        return
    require(False, f"{subject.name} accepts an option no_such_option: do not take **kwargs that nobody reads.")


def shapes(subject: Subject) -> None:
    """Any batch and any length keep their shape: one token, one row, no row, odd lengths."""
    layer = any_layer(subject)
    for batch, length in ((1, 1), (1, 7), (3, 1), (2, 13), (0, 5), (1, 65), (2, 90)):
        x = subject.tokens(batch, length)
        out = layer(x)
        message = f"x of shape {tuple(x.shape)} came back as {tuple(out.shape)}: a part keeps the shape (B, T, dim)."
        require(out.shape == x.shape, message)
        require(bool(out.isfinite().all()), f"x of shape {tuple(x.shape)} gave numbers that are not finite.")


def rounding_sensitivity(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> float:
    """By how much a float64 layer's output on x (B, T, dim) changes at most when its parameters and x are changed at
    random by as much as ``dtype`` rounds: the scale of errors that a right part of this steepness has in ``dtype``.
    """
    twin, unit, worst = copy.deepcopy(layer), torch.finfo(dtype).eps / 2, 0.0
    with torch.random.fork_rng([]), torch.no_grad():
        expected = layer(x)
        for _ in range(TRIALS):
            for parameter, exact in zip(twin.parameters(), layer.parameters(), strict=True):
                if exact.is_floating_point() or exact.is_complex():
                    parameter.copy_(exact * (1 + unit * (2 * torch.rand_like(exact) - 1)))
            worst = max(worst, difference(twin(x * (1 + unit * (2 * torch.rand_like(x) - 1))), expected))
    return worst


def dtypes(subject: Subject) -> None:
    """What comes in as float64, float32, bfloat16 or float16 goes out as that, finite and nearly the same numbers."""
    exact = any_layer(subject).double()
    for dtype, length in itertools.product(
        (torch.float64, torch.float32, torch.bfloat16, torch.float16), SHORT_AND_LONG
    ):
        x = subject.tokens(2, length, torch.float64)
        layer, inputs = any_layer(subject).to(dtype), x.to(dtype)
        try:
            out = layer(inputs)
        except RuntimeError as error:
            raise Broken(
                f"in {dtype} it {describe_error(error)}. Does a result, or a tensor, stay in another dtype? End with "
                ".to(x.dtype)."
            ) from error
        require(
            out.dtype == dtype,
            f"{dtype} came back as {out.dtype}: end with .to(x.dtype), and keep tensors that are no parameters in x's.",
        )
        rounded = exact
        if dtype in CAP:  # the same rounded weights, computed in float64: what is left is the arithmetic
            rounded = any_layer(subject).to(dtype).double()
        gap = difference(out, rounded(inputs.double()))
        bound = CAP.get(dtype, 2e-5 if dtype == torch.float32 else 1e-12)
        if gap > bound and dtype in CAP:  # steep functions, such as sharp softmaxes, enlarge what rounding does
            bound = max(bound, 2 * rounding_sensitivity(rounded, inputs.double(), dtype))
        require(gap <= bound, f"in {dtype} it is {gap:.1e} away from float64, more than {bound:.0e}: widen inside.")


def autocast(subject: Subject) -> None:
    """Under bfloat16 autocast float32 weights give finite numbers near float32's, and finite float32 gradients."""
    layer = any_layer(subject)
    with torch.random.fork_rng([]):
        rounded = copy.deepcopy(layer).to(torch.bfloat16).double()
    for length in SHORT_AND_LONG:
        x = subject.tokens(2, length).requires_grad_()
        expected = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        gap = difference(out, expected)
        # rounded weights and inputs alone, computed exactly: a part cannot be nearer to float32 than that
        rounding = difference(rounded(x.to(torch.bfloat16).double()), expected.double())
        bound = max(CAP[torch.bfloat16], 2 * rounding)
        if gap > bound:
            exact = copy.deepcopy(layer).double()
            bound = max(bound, 2 * rounding_sensitivity(exact, x.double(), torch.bfloat16))
        message = f"under autocast it is {gap:.1e} away from float32, more than {bound:.0e}: widen sums and softmax."
        require(gap <= bound, message)
    out.float().square().sum().backward()
    for name, leaf in (("x", x), *layer.named_parameters()):
        if leaf.grad is not None:
            fine = leaf.grad.dtype == torch.float32 and bool(leaf.grad.isfinite().all())
            require(fine, f"under autocast the gradient of {name} is not finite float32.")


def inputs_are_left_alone(subject: Subject) -> None:
    """No input is changed in place, neither tokens nor which of them are real, nor what reaches the part itself."""
    layer = any_layer(subject)
    before: list[list[tuple[Tensor, Tensor]]] = []

    def note(module: nn.Module, args: Any, keywords: dict[str, Any]) -> None:
        tensors = [value for value in (*args, *keywords.values()) if isinstance(value, Tensor)]
        before.append([(value, value.clone()) for value in tensors])

    def compare(module: nn.Module, args: Any, output: Any) -> None:
        same = all(torch.equal(value, copied) for value, copied in before.pop())
        require(same, "x was changed in place: other branches still read it. Use out-of-place operations.")

    for module in own_modules(subject, layer):
        module.register_forward_pre_hook(note, with_kwargs=True)
        module.register_forward_hook(compare)
    for length in SHORT_AND_LONG:
        x, place = subject.tokens(2, length), torch.arange(length)
        valid = torch.stack([place >= 2, place < length - 1])
        copies = x.clone(), valid.clone()
        layer(x)
        if takes_padding(layer):
            layer(x, valid)
            require(torch.equal(valid, copies[1]), "valid was changed in place: all layers share it. Make a new mask.")
        same = torch.equal(x, copies[0])
        require(same, "x was changed in place: other branches still read it. Use out-of-place operations.")


def reloaded(value: Any, what: str) -> Any:
    """What a checkpoint gives back, which holds tensors and plain values alone. Raises Broken, for ``what`` it is."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    try:
        return torch.load(file, weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise Broken(f"{what}: {reason}") from error


METHODS = ("forward", "attend", "embed", "rotate", "rotate_keys")  # methods of parts that take tensors


def own_modules(subject: Subject, layer: nn.Module) -> list[nn.Module]:
    """The instances of the part that a layer holds."""
    return [module for module in layer.modules() if isinstance(module, subject.part)]


def with_strides(value: Any) -> Any:
    """A tensor of numbers with the same values in another order of memory; everything else as it is."""
    if not isinstance(value, Tensor) or value.dim() < 2 or not value.is_floating_point():
        return value
    return value.transpose(0, -1).contiguous().transpose(0, -1)


def strided_inputs(subject: Subject) -> None:
    """A transposed or expanded view gives what its copy gives, also where it reaches the part itself."""
    layer, strided = any_layer(subject), any_layer(subject)
    for module in own_modules(subject, strided):
        for name in METHODS:
            if inspect.ismethod(method := getattr(module, name, None)):

                def call(*args: Any, method: Callable[..., Any] = method, **keywords: Any) -> Any:
                    return method(*map(with_strides, args), **keywords)

                setattr(module, name, call)
    for length in SHORT_AND_LONG:
        x, row = subject.tokens(2, length), subject.tokens(1, length)
        for view, copied in ((with_strides(x), x), (row.expand(3, -1, -1), row.repeat(3, 1, 1))):
            try:
                gap = difference(strided(view), layer(copied))
            except RuntimeError as error:
                raise Broken(f"a transposed or expanded view {describe_error(error)}: use .reshape.") from error
            require(gap <= 1e-5, f"a transposed or expanded view differs by {gap:.1e} from its copy: use .reshape.")


def batch_independence(subject: Subject) -> None:
    """A row's result does not depend on the other rows of its batch, nor on their order."""
    layer = any_layer(subject)
    order = torch.tensor([2, 0, 3, 1])
    for length in SHORT_AND_LONG:
        x = subject.tokens(4, length)
        whole = layer(x)
        for row in range(4):
            gap = difference(layer(x[row : row + 1]), whole[row : row + 1])
            message = f"row {row} alone differs by {gap:.1e} from the same row in a batch: rows must not mix."
            require(gap <= 1e-5, message)
        require(difference(layer(x[order]), whole[order]) <= 1e-5, "another order of rows changes their results.")
        loud = torch.cat([x[:1], 1e3 * x[1:]])
        message = "other rows' size changes a row's result: rows must not mix."
        require(difference(layer(loud)[:1], whole[:1]) <= 1e-5, message)


def evaluation_is_deterministic(subject: Subject) -> None:
    """In evaluation the same input gives the same output, and no random number is drawn."""
    layer = any_layer(subject, dropout=0.5)
    for length in SHORT_AND_LONG:
        x = subject.tokens(2, length)
        torch.manual_seed(1)
        output = layer(x)
        torch.manual_seed(2)
        require(torch.equal(layer(x), output), "two evaluations differ: dropout or noise is on in eval().")
        torch.manual_seed(1)
        state = torch.get_rng_state()
        layer(x)
        same = torch.equal(torch.get_rng_state(), state)
        require(same, "evaluation draws random numbers: what follows would change.")


def training_is_evaluation(subject: Subject) -> None:
    """Without dropout training computes what evaluation does, unless it declares ``differs_in_training``."""
    if len(trained_and_not(subject)) == 1:
        raise Inapplicable("it declares that it computes something else in training")
    layer = any_layer(subject.changed(**dict.fromkeys(rates_of_dropping(subject), 0.0)))
    for length in SHORT_AND_LONG:
        x, state = subject.tokens(2, length), torch.get_rng_state()
        out = layer.train()(x)
        if not torch.equal(torch.get_rng_state(), state):
            raise Inapplicable("it draws random numbers in training")
        gap = difference(out, layer.eval()(x))
        require(
            gap <= 1e-5,
            f"in training it gives other numbers than in evaluation, by {gap:.1e}: one scale, one temperature, no "
            "statistics of a batch; or declare differs_in_training = True.",
        )


def trained_and_not(subject: Subject) -> list[tuple[bool, str]]:
    """Whether a part is looked at in training, and how that is said: not where it declares to differ there."""
    differs = getattr(subject.part, "differs_in_training", not getattr(subject.part, "computes_all", True))
    return [(False, ""), *([] if differs else [(True, "in training ")])]


def rates_of_dropping(subject: Subject) -> list[str]:
    """The names of the part's options that drop something."""
    skipped = CLASS_PARAMETERS.get(subject.kind, 0)
    return [name for name in list(inspect.signature(subject.part).parameters)[skipped:] if "drop" in name]


class Interrupted(TorchFunctionMode):
    """Within, something else runs before every operation, as if another thread had its turn."""

    def __init__(self, meanwhile: Callable[[], object]):
        super().__init__()
        self.meanwhile = meanwhile

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.meanwhile()
        return func(*args, **kwargs or {})


@once
def dropping_options(subject: Subject) -> None:
    """An option that drops (its name holds "drop") does so in training alone, repeatably, and is right on average."""
    for name in rates_of_dropping(subject):
        variant = subject.changed(**{name: 0.3})
        layer, x = any_layer(variant), variant.tokens(16, 5)
        if hasattr(layer, "norm"):
            layer.norm = nn.Identity()  # the mean of normalised tokens is shorter than the normalised mean
        whole = layer(x)
        situation = f"with {name}=0.3"
        require(torch.equal(layer(x), whole), f"{situation} it drops in evaluation.")
        layer.train()

        def run(seed: int, layer: nn.Module = layer, x: Tensor = x) -> Tensor:
            torch.manual_seed(seed)
            return layer(x).detach()

        require(torch.equal(run(1), run(1)), f"{situation} the same seed drops others: draw from torch's generator.")
        require(not torch.equal(run(1), run(2)), f"{situation} nothing is dropped in training.")
        mean = torch.stack([run(seed) for seed in range(60)]).mean(0)
        share = ((mean * whole).sum() / whole.square().sum()).item()
        require(
            0.8 <= share <= 1.2,
            f"{situation} it gives on average {share:.2f} times what it gives without: what is kept is divided by "
            "1 - rate, once.",
        )


@in_situations("options")
def no_state_between_calls(subject: Subject) -> None:
    """What a call gives does not depend on earlier calls, in evaluation or training, nor on calls at the same time."""
    a, b, c = subject.tokens(2, 7), subject.tokens(3, 5), subject.tokens(2, 7)

    def call(layer: nn.Module, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return layer(x)

    for mode in (True, False):
        layer, used = any_layer(subject).train(mode), any_layer(subject).train(mode)
        expected = call(layer, a)
        call(used, b)
        call(used, c)
        require(
            torch.equal(call(used, a), expected),
            "a call changes what the next one gives: keep nothing between calls on self, and draw random numbers from "
            "torch's generator.",
        )
    layer = any_layer(subject)
    expected = layer(a)
    try:
        with Interrupted(lambda: layer(c)):
            out = layer(a)
    except Exception as error:
        if not type(error).__module__.startswith("torch."):
            raise
        return  # torch's compilers do not run within a mode
    require(
        torch.equal(out, expected),
        "a call in the middle of another changes what that one gives, as calls at the same time would: keep nothing on "
        "self in forward.",
    )


def reference(subject: Subject) -> None:
    """``forward`` equals ``reference``, the formula in plain steps, values and gradients in float64."""
    layer = any_layer(subject).double()
    calls: list[tuple[nn.Module, Any, Any]] = []
    for module in own_modules(subject, layer):
        module.register_forward_hook(lambda *call: calls.append(call[:3]), with_kwargs=True)
    for scale in (1.0, 1e-3):
        layer(scale * subject.tokens(2, 5, torch.float64))
    if not calls or not callable(getattr(calls[0][0], "reference", None)):
        raise Inapplicable("it gives no reference")
    for module, (x, *others), keywords in list(calls):
        leaf, reference_leaf = x.detach().requires_grad_(), x.detach().clone().requires_grad_()
        try:
            expected = cast(Any, module).reference(reference_leaf, *others, **keywords)
        except NotImplementedError:
            raise Inapplicable("it gives no reference") from None
        out = module(leaf, *others, **keywords)
        gap = difference(out, expected)
        advice = "or, where it is another formula, override reference too"
        require(gap <= 1e-10, f"it is {gap:.1e} away from its own formula: change forward, {advice}.")
        probe = torch.randn_like(out)
        (slope,) = torch.autograd.grad((out * probe).sum(), leaf)
        (truth,) = torch.autograd.grad((expected * probe).sum(), reference_leaf)
        gap = difference(slope, truth)
        require(gap <= 1e-8, f"its gradient is {gap:.1e} away from its own formula's.")


IMPORTS: dict[tuple[str, str], dict[str, Any]] = {}  # what is known of modules, by name and by what was there before
PATIENCE = 60.0  # seconds of processor time for one import


def ready_for(kind: str) -> str:
    """The modules that are imported before a part of this kind is."""
    return "zoo.models.stack" if kind in STACK_KINDS else "zoo.tasks.task, zoo.data.data"


def import_in_fresh_processes(ready: str, modules: list[str]) -> None:
    """Note how each module is imported in a process that has torch and what is ``ready``, and nothing else.

    One process imports these, and forks for each module.
    """
    calls = [[module] for module in modules]
    outcomes = measure_in_fresh_process(
        f"import torch, {ready}", "importlib:import_module", calls, PATIENCE, offline=True
    )
    for module, imported in zip(modules, outcomes, strict=True):
        IMPORTS.setdefault((module, ready), imported)


@once
def clean_import(subject: Subject) -> None:
    """Importing the module takes under two seconds, prints nothing, opens no connection and starts no GPU."""
    module, ready = subject.part.__module__, ready_for(subject.kind)
    if (module, ready) not in IMPORTS:
        import_in_fresh_processes(ready, [module])
    report = IMPORTS[module, ready]
    require("error" not in report, f"it cannot be imported in a fresh process: {report.get('error')}")
    message = f"importing it takes {report['seconds']:.1f} s: import heavy packages where they are used."
    require(report["seconds"] < 2, message)
    require(not report["said"], f"importing it prints {report['said'][:200]!r}: say nothing on import.")
    require(not report["network"], "importing it opens a network connection.")
    require(not report["cuda"], "importing it starts CUDA, which breaks processes that fork afterwards.")


def token_by_token(subject: Subject) -> None:
    """A token's result depends on that token alone, by perturbation and by gradient, in training too."""
    part = spread(cast(Any, subject).build())
    x = subject.tokens(2, 6)
    whole = part(x)
    loud = x.clone()
    loud[:, 1:] = 1e3 * torch.randn_like(loud[:, 1:])
    gap = difference(part(loud)[:, :1], whole[:, :1])
    require(gap <= 1e-6, f"the first token changes by {gap:.1e} with the others: work on the last dimension alone.")
    part, x = part.double(), subject.tokens(1, 5, torch.float64).requires_grad_()
    for t, (training, where) in itertools.product(range(5), trained_and_not(subject)):
        (grad,) = torch.autograd.grad((part.train(training)(x)[0, t] ** 2).sum(), x)
        others = [s for s in range(5) if s != t and bool(grad[0, s].any())]
        require(not others, f"{where}token {t} depends on token {others[0] if others else ''}: tokens must not mix.")
        require(training or bool(grad[0, t].any()), f"token {t} does not depend on itself: is its input detached?")
    part.eval()
    flat = part(x.reshape(-1, x.size(-1)))
    require(difference(flat, part(x)[0]) <= 1e-10, "(tokens, dim) gives other numbers than (B, T, dim).")


# what else compares two calls says nothing where evaluation is random
COMMON = [documentation, unknown_options_are_refused, clean_import, evaluation_is_deterministic, shapes, dtypes,
          autocast, inputs_are_left_alone, strided_inputs, batch_independence, training_is_evaluation, dropping_options,
          no_state_between_calls]  # fmt: skip
