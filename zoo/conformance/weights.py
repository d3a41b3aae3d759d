"""Promises about parameters: initialisation, gradients, saving, copying, devices, compilation, several processes."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.conformance.check import Broken, Inapplicable, require
from zoo.conformance.common import any_layer, apart, built
from zoo.conformance.subject import Refused, Subject
from zoo.models.init import initialise
from zoo.parts.ffn import FFN


def side_losses(layer: nn.Module) -> Tensor:
    """What parts add to the loss."""
    return sum(
        (m.side_loss for m in layer.modules() if isinstance(m, FFN) and m.side_loss is not None), torch.zeros(())
    )


def initialisation(subject: Subject) -> None:
    """``reset_parameters`` sets every parameter and buffer, to the same numbers for the same seed, and finite ones."""
    layer, twin = any_layer(subject), any_layer(subject)
    for made in (layer, twin):
        with torch.no_grad():
            for tensor in (*made.parameters(), *made.buffers()):
                tensor.fill_(float("nan") if made is layer and tensor.is_floating_point() else 7)
        initialise(made, 3)
    for (name, one), (_, other) in zip(state(layer), state(twin), strict=True):
        require(
            torch.equal(one, other),
            f"{name} is not set again by reset_parameters(): draw it there, from torch's own generator.",
        )
        require(bool(one.isfinite().all()), f"{name} starts with numbers that are not finite.")
    initialise(twin, 4)
    drawn = [name for name, p in layer.named_parameters() if p.numel() > 8 and p.detach().std() > 0]
    drawn_again = dict(twin.named_parameters())
    for name, parameter in layer.named_parameters():
        if name in drawn:
            require(
                not torch.equal(parameter, drawn_again[name]), f"{name} ignores the seed: draw from torch's generator."
            )


def state(layer: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    return [*layer.named_parameters(), *layer.named_buffers()]


def meta_construction(subject: Subject) -> None:
    """Built on the meta device, moved and initialised, it equals one that was built where it is used."""
    torch.manual_seed(0)
    plain = any_layer(subject)
    initialise(plain, 5)
    with torch.device("meta"):
        ghost = any_layer(subject)
    strays = [name for name, tensor in state(ghost) if not tensor.is_meta]
    require(
        not strays, f"built on the meta device, {', '.join(strays)} holds memory: make tensors in reset_parameters()."
    )
    ghost = ghost.to_empty(device="cpu")
    initialise(ghost, 5)
    for (name, one), (_, other) in zip(state(plain), state(ghost), strict=True):
        require(torch.equal(one, other), f"{name} is lost on the meta device: write it in reset_parameters().")
    x = subject.tokens()
    gap = apart(ghost.eval()(x), plain.eval()(x))
    require(gap == 0, "a tensor that is neither parameter nor buffer is lost on the meta device: register_buffer it.")


def moves_with_the_module(subject: Subject) -> None:
    """No tensor stays behind when the module moves: each is a parameter or a buffer."""
    layer = any_layer(subject).to("meta")
    try:
        out = layer(subject.tokens().to("meta"))
    except Exception as error:
        kind = "it needs numbers to go on (.item(), .tolist(), an if on a tensor, nonzero)"
        stays = "a tensor stays behind"
        told = stays if "device" in str(error) and "item" not in str(error) else f"{kind} or {stays}"
        raise Broken(
            f"with tensors without data: {told}: {str(error).splitlines()[0]}. On a GPU each would wait or fail."
        ) from error
    require(out.is_meta, "it computes on another device than its input's.")


def every_parameter_learns(subject: Subject) -> None:
    """One backward pass gives every parameter a finite gradient that is not zero everywhere."""
    layer = any_layer(subject).train()
    out = layer(subject.tokens(8, 16))
    ((out * torch.randn_like(out)).sum() + side_losses(layer)).backward()
    for name, parameter in layer.named_parameters():
        if not parameter.requires_grad:
            continue
        grad = parameter.grad
        require(grad is not None, f"no gradient reaches {name}: DDP stops at an unused parameter. Use it or remove it.")
        assert grad is not None
        require(bool(grad.isfinite().all()), f"the gradient of {name} is not finite.")
        require(bool(grad.any()), f"the gradient of {name} is zero: is its use detached?")


def gradients_are_right(subject: Subject) -> None:
    """Gradients by the backward pass equal differences of the output, in float64."""
    layer = any_layer(subject).double()
    x = subject.tokens(1, 3, torch.float64).requires_grad_()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    pick = torch.Generator().manual_seed(0)
    probe = torch.randn(x.shape, generator=pick, dtype=torch.float64)
    leaves = [x, *parameters]
    grads = torch.autograd.grad((layer(x) * probe).sum(), leaves, allow_unused=True, materialize_grads=True)
    names = ["x", *(name for name, p in layer.named_parameters() if p.requires_grad)]
    for name, leaf, grad in zip(names, leaves, grads, strict=True):
        way = torch.randn(leaf.shape, generator=pick, dtype=torch.float64)
        with torch.no_grad():
            kept, values = leaf.clone(), []
            for step in (1e-5, -1e-5):
                leaf.copy_(kept + step * way)
                values.append((layer(x) * probe).sum())
            leaf.copy_(kept)
        slope, said = (values[0] - values[1]).item() / 2e-5, (grad * way).sum().item()
        off = abs(slope - said) / max(1.0, abs(slope))
        require(
            off < 1e-4, f"the gradient of {name} is wrong by {off:.0%}: detached, halved, or computed in low precision?"
        )


def state_round_trip(subject: Subject) -> None:
    """Saved and loaded as plain tensors, it computes the same."""
    layer, twin, x = any_layer(subject), any_layer(subject), subject.tokens()
    for tensor in (*twin.parameters(), *twin.buffers()):
        with torch.no_grad():
            tensor.zero_()
    saved = layer.state_dict()
    odd = [name for name, value in saved.items() if not isinstance(value, torch.Tensor)]
    require(not odd, f"the state holds {', '.join(odd)}, which is no tensor.")
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    # constants are not saved: a model is initialised before its weights are loaded
    for name, buffer in layer.named_buffers():
        if name not in saved:
            twin.get_buffer(name).copy_(buffer)
    require(
        apart(twin(x), layer(x)) == 0, "after saving and loading it computes something else: register what it needs."
    )


def copies(subject: Subject) -> None:
    """A deep copy and a pickled copy compute the same."""
    layer, x = any_layer(subject), subject.tokens()
    layer(x)
    require(apart(copy.deepcopy(layer)(x), layer(x)) == 0, "a deep copy computes something else.")
    parts = [m for m in layer.modules() if isinstance(m, subject.part)] or [
        getattr(m, "backend", None) for m in layer.modules()
    ]
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


def activation_checkpointing(subject: Subject) -> None:
    """Computed again in the backward pass, with the same random numbers, it has the same gradients."""
    try:
        layer = subject.layer(dropout=0.3)
    except Refused:
        layer = any_layer(subject)
    layer.train()
    x = subject.tokens().requires_grad_()
    found = []
    for again in (False, True):
        torch.manual_seed(3)
        layer.zero_grad()
        out = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        grads = torch.autograd.grad(
            (out**2).sum(), [x, *(p for p in layer.parameters() if p.requires_grad)], allow_unused=True
        )
        found.append((out, [g for g in grads if g is not None]))
    (one, ones), (other, others) = found
    require(apart(other, one) <= 1e-6, "with activation checkpointing the output differs.")
    fine = all(apart(b, a) <= 1e-5 for a, b in zip(ones, others, strict=True))
    require(fine, "with activation checkpointing gradients differ: random numbers from a generator of its own?")


def compiles(subject: Subject) -> None:
    """torch.compile takes it as one graph, for several lengths, and it computes the same."""
    layer = any_layer(subject)
    torch._dynamo.reset()
    try:
        fast = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=None)
        for length in (7, 5, 9):
            x = subject.tokens(2, length)
            try:
                out = fast(x)
            except Exception as error:
                if "torch._dynamo" not in type(error).__module__ and "dynamo" not in str(error).lower():
                    raise
                told = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise Broken(f"torch.compile breaks its graph: {told[0] if told else error!r}") from error
            require(apart(out, layer(x)) <= 1e-5, f"compiled, it gives other numbers at length {length}.")
    finally:
        torch._dynamo.reset()


def signals_keep_their_size(subject: Subject) -> None:
    """At initialisation a unit signal keeps its size within 0.05 to 5, and gradients stay alive through 12 blocks."""
    try:
        net = subject.stack(depth=12)
    except Refused:
        raise Inapplicable("it cannot be stacked by itself") from None
    initialise(net, 0)
    layer = any_layer(subject)
    initialise(layer, 0)
    size = layer(subject.tokens(8, 16)).std().item()
    require(
        0.05 <= size <= 5, f"a unit signal comes out with standard deviation {size:.2g}: scale the initial weights."
    )
    x = subject.tokens(4, 16).requires_grad_()
    (net(x) * torch.randn(4, 16, x.size(-1))).sum().backward()

    def first_and_last(number: int) -> float:
        grads = [
            p.grad.square().mean()
            for n, p in net.named_parameters()
            if f"blocks.{number}." in n and p.grad is not None and p.dim() > 1
        ]
        return torch.stack(grads).mean().sqrt().item()

    ratio = first_and_last(0) / max(first_and_last(11), 1e-30)
    require(1e-2 <= ratio <= 1e2, f"gradients of the first of 12 blocks are {ratio:.1e} times those of the last.")


def processes_agree(subject: Subject) -> None:
    """Two processes that share a batch (DDP) learn what one learns."""
    from zoo.conformance.processes import together

    layer = built(subject) if subject.kind in ("norm", "ffn") else any_layer(subject)
    x = subject.tokens(4, 6)
    target = torch.randn_like(x)
    alone = copy.deepcopy(layer).train()
    optimiser = torch.optim.SGD(alone.parameters(), 0.01)
    for _ in range(3):
        optimiser.zero_grad()
        (alone(x) - target).square().mean().backward()
        optimiser.step()
    shared = together(layer, x, target)
    for name, parameter in alone.named_parameters():
        gap = apart(shared[name], parameter.detach())
        require(gap <= 1e-5, f"after three steps {name} differs by {gap:.1e} between one process and two.")


WEIGHTS = [initialisation, meta_construction, moves_with_the_module, every_parameter_learns, gradients_are_right,
           state_round_trip, copies, activation_checkpointing, compiles, signals_keep_their_size,
           processes_agree]  # fmt: skip
