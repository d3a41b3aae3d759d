"""Checks of parameters: initialisation, devices, gradients, saving, copying."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo.conformance.check import Broken, require
from zoo.conformance.run_checks import RUNNING
from zoo.conformance.subject import SHORT_AND_LONG, Subject
from zoo.conformance.token_checks import any_layer, difference, each_layer, need_parameters, reloaded, takes_padding
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.parts.ffn import aux_losses


def initialisation(subject: Subject) -> None:
    """``reset_parameters`` sets every parameter and buffer, to the same numbers for the same seed, and finite ones."""
    layer, twin = any_layer(subject), any_layer(subject)
    for module in (layer, twin):
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.fill_(float("nan") if module is layer and tensor.is_floating_point() else 7)
        initialize(module, 3)
    for (name, value), (_, twin_value) in zip(state(layer), state(twin), strict=True):
        message = f"{name} is not set again by reset_parameters(): draw it there, from torch's own generator."
        require(torch.equal(value, twin_value), message)
        require(bool(value.isfinite().all()), f"{name} starts with numbers that are not finite.")
    initialize(twin, 4)
    drawn_again, declared = dict(twin.named_parameters()), fixed_starts(layer)
    unknown = sorted(declared - set(drawn_again))
    require(not unknown, f"fixed_start names {', '.join(unknown)}, which is no parameter.")
    for name, parameter in layer.named_parameters():
        same = torch.equal(parameter, drawn_again[name])
        if name in declared:
            require(same, f"{name} is declared in fixed_start, and begins with other numbers for another seed.")
        elif parameter.numel() > 8 and bool((parameter != parameter.flatten()[0]).any()):  # constants need no seed
            advice = "draw from torch's generator, or declare fixed_start"
            require(not same, f"{name} ignores the seed: {advice}.")


def fixed_starts(layer: nn.Module) -> set[str]:
    """Names of the parameters that are declared (``fixed_start``) to begin alike whatever the seed is."""
    return {
        f"{place}.{name}" if place else name
        for place, module in layer.named_modules()
        for name in getattr(module, "fixed_start", ())
    }


def state(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, of any shape, by name."""
    return [*layer.named_parameters(), *layer.named_buffers()]


def meta_construction(subject: Subject) -> None:
    """Built on the meta device, moved and initialised, it equals one that was built where it is used."""
    torch.manual_seed(0)
    reference = any_layer(subject)
    initialize(reference, 5)
    with torch.device("meta"):
        ghost = any_layer(subject)
    strays = [name for name, tensor in state(ghost) if not tensor.is_meta]
    message = f"built on the meta device, {', '.join(strays)} holds memory: make tensors in reset_parameters()."
    require(not strays, message)
    ghost = ghost.to_empty(device="cpu")
    initialize(ghost, 5)
    for (name, value), (_, ghost_value) in zip(state(reference), state(ghost), strict=True):
        require(torch.equal(value, ghost_value), f"{name} is lost on the meta device: write it in reset_parameters().")
    x = subject.tokens()
    gap = difference(ghost.eval()(x), reference.eval()(x))
    require(gap == 0, "a tensor that is neither parameter nor buffer is lost on the meta device: register_buffer it.")


def moves_with_the_module(subject: Subject) -> None:
    """No tensor stays behind when the module moves, in training too: each is a parameter or a buffer."""
    for layer, where in itertools.product(each_layer(subject), ("", "in training ")):
        layer = layer.to("meta").train(bool(where))
        x, valid = subject.tokens().to("meta"), torch.ones(2, 7, dtype=torch.bool, device="meta")
        try:
            outs = [layer(x), layer(x, valid)] if takes_padding(layer) else [layer(x)]
        except UsageError:  # an option is refused: the sentence is the part's own
            raise
        except Exception as error:
            kind = "it needs numbers to go on (.item(), .tolist(), an if on a tensor, nonzero)"
            stays = "a tensor stays behind"
            if "unsupported scalarType" in str(error):  # what torch.autocast says of a device that it does not know
                kind = "it enters torch.autocast on a device without autocast (torch.amp.is_autocast_available)"
            reason = stays if "device" in str(error) and "item" not in str(error) else f"{kind} or {stays}"
            message = str(error).splitlines()[0]
            raise Broken(
                f"{where}with tensors without data: {reason}: {message}. On a GPU each would wait or fail."
            ) from error
        require(all(out.is_meta for out in outs), "it computes on another device than its input's.")


def every_parameter_learns(subject: Subject) -> None:
    """One backward pass gives every parameter a finite gradient that is not zero everywhere."""
    layer = any_layer(subject).train()
    need_parameters(layer)
    out = layer(subject.tokens(8, 16))
    ((out * torch.randn_like(out)).sum() + sum(aux_losses(layer))).backward()
    for name, parameter in layer.named_parameters():
        if not parameter.requires_grad:
            continue
        grad = parameter.grad
        require(grad is not None, f"no gradient reaches {name}: DDP stops at an unused parameter. Use it or remove it.")
        assert grad is not None
        require(bool(grad.isfinite().all()), f"the gradient of {name} is not finite.")
        require(bool(grad.any()), f"the gradient of {name} is zero: is its use detached?")
    layer = any_layer(subject).train()
    (layer(subject.tokens(1, 1)).sum() + sum(aux_losses(layer))).backward()
    missing = [
        name for name, parameter in layer.named_parameters() if parameter.requires_grad and parameter.grad is None
    ]
    require(
        not missing,
        f"with a single token no gradient reaches {', '.join(missing[:3])}: DDP waits for it. What has no tokens must "
        "run on none: a gradient of zeros is one.",
    )


def gradients_are_right(subject: Subject) -> None:
    """Gradients by the backward pass equal differences of the output, in float64, and in training with dropout too."""
    layer = any_layer(subject).double()
    for length in (3, SHORT_AND_LONG[-1]):
        for name, off in slopes_off(layer, subject.tokens(1, length, torch.float64)):
            message = f"the gradient of {name} is wrong by {off:.2g}: detached, halved, or computed in low precision?"
            require(off < MOST_OFF, message)
    layer = any_layer(subject, dropout=0.3)
    for name, off in slopes_off(layer.double().train(), subject.tokens(1, 3, torch.float64)):
        require(
            off < MOST_OFF,
            f"in training the gradient of {name} is wrong by {off:.2g}: what is computed again in the backward pass "
            "must draw the same random numbers.",
        )


MOST_OFF = 1e-4  # tolerance of a derivative, relative where it is larger than 1
STEPS = (1e-5, 1e-7)  # a kink, as of relu, lies within the longer one by chance; what is wrong is wrong at both


def slopes_off(layer: nn.Module, x: Tensor) -> Iterator[tuple[str, float]]:
    """How far gradients of x and of each parameter are from differences along a random way, at one seed."""
    leaves = {"x": x.requires_grad_()} | {name: p for name, p in layer.named_parameters() if p.requires_grad}
    pick = torch.Generator().manual_seed(0)
    probe = torch.randn(x.shape, generator=pick, dtype=torch.float64)

    def value() -> Tensor:
        torch.manual_seed(7)
        return (layer(x) * probe).sum()

    grads = torch.autograd.grad(value(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        way = torch.randn(leaf.shape, generator=pick, dtype=torch.float64)
        derivative, gaps = (grad * way).sum().item(), []
        for step in STEPS:
            with torch.no_grad():
                original, values = leaf.clone(), []
                for signed in (step, -step):
                    leaf.copy_(original + signed * way)
                    values.append(value())
                leaf.copy_(original)
            slope = (values[0] - values[1]).item() / (2 * step)
            gaps.append(abs(slope - derivative) / max(1.0, abs(slope)))
            if gaps[-1] < MOST_OFF:
                break
        yield name, min(gaps)


def state_round_trip(subject: Subject) -> None:
    """Trained, saved and loaded as plain tensors into a model of another seed, it computes the same."""
    layer, twin, x = any_layer(subject), any_layer(subject), subject.tokens()
    layer.train()(x)
    layer.eval()
    initialize(twin, 9)
    saved = layer.state_dict()
    odd = [name for name, value in saved.items() if not isinstance(value, torch.Tensor)]
    require(not odd, f"the state holds {', '.join(odd)}, which is no tensor.")
    twin.load_state_dict(reloaded(saved, "the state cannot be loaded"))
    unsaved = [name for name, _ in layer.named_buffers() if name not in saved]
    note = f" ({', '.join(unsaved)} is not saved, which is right for constants only)" if unsaved else ""
    require(
        difference(twin(x), layer(x)) == 0,
        f"after saving and loading it computes something else{note}: what a seed or training sets must be a parameter, "
        "or a buffer that is saved.",
    )


def copies(subject: Subject) -> None:
    """A deep copy and a pickled copy compute the same."""
    layer, x = any_layer(subject), subject.tokens()
    layer(x)
    require(difference(copy.deepcopy(layer)(x), layer(x)) == 0, "a deep copy computes something else.")
    parts: list[Any] = [*layer.modules(), *(getattr(module, "backend", None) for module in layer.modules())]
    part = next((part for part in parts if isinstance(part, subject.part)), None)
    if part is None or "<locals>" in subject.part.__qualname__:
        return
    try:
        again = pickle.loads(pickle.dumps(part))
    except Exception as error:
        raise Broken(f"it cannot be pickled, as starting processes does: {error}. Keep no lambda on self.") from error
    if isinstance(part, nn.Module):
        same = all(
            torch.equal(a, b) for a, b in zip(part.state_dict().values(), again.state_dict().values(), strict=True)
        )
        require(same, "a pickled copy has other weights.")


WEIGHTS = [initialisation, meta_construction, moves_with_the_module, every_parameter_learns, gradients_are_right,
           state_round_trip, copies, *RUNNING]  # fmt: skip
