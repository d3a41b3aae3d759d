"""The contract of an initialisation rule: every parameter, from the seed alone, and rates for parameters that exist."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.coordinates import slopes
from zoo.conformance.short_training import loss_of_language_falls
from zoo.conformance.subject import InitSubject
from zoo.conformance.token_checks import clean_import, documentation, unknown_options_are_refused
from zoo.models.initialization import initialize, rule_of

STEEP = 0.3  # slope of log change over log width; without muP it is above 0.5


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    """The names of the parameters and buffers that are not equal bit for bit."""
    tensors = b.state_dict()
    return [name for name, value in a.state_dict().items() if not torch.equal(value, tensors[name])]


def follows_the_seed(subject: InitSubject) -> None:
    """The same seed gives the same weights, whatever was drawn before; another seed gives other matrices."""
    model = subject.build(1)
    torch.rand(7)
    wrong = differing(subject.build(1), model)
    require(not wrong, f"two models of one seed differ in {', '.join(wrong[:3])}: draw from torch's generator alone.")
    changes = set(differing(subject.build(2), model))
    same = [name for name, p in model.named_parameters() if p.dim() > 1 and name not in changes]
    require(not same, f"another seed gives the same {', '.join(same[:3])}.")


def sets_every_parameter(subject: InitSubject) -> None:
    """Every parameter is set, to finite numbers, whatever it held."""
    net = subject.build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float("nan"))
    initialize(net, 0)
    wrong = [name for name, p in net.named_parameters() if not bool(p.isfinite().all())]
    require(not wrong, f"{', '.join(wrong[:3])} is not set: call super().reset for modules that it leaves alone.")
    require(not differing(net, subject.build()), "weights that were nan give another start than those of a new model.")


@once
def meta_construction(subject: InitSubject) -> None:
    """Built on the meta device, moved and initialised, a model equals one that was built where it is used."""
    with torch.device("meta"):
        net = subject.build()
    wrong = differing(initialize(net.to_empty(device="cpu"), 0), subject.build())
    require(not wrong, f"built on the meta device {', '.join(wrong[:3])} starts otherwise.")


@once
def keeps_dtype(subject: InitSubject) -> None:
    """float64 and bfloat16 weights stay that, and stay the same tensors."""
    for dtype in (torch.float64, torch.bfloat16):
        net = subject.build().to(dtype)
        places = {name: p.data_ptr() for name, p in net.named_parameters()}
        initialize(net, 0)
        for name, p in net.named_parameters():
            require(p.dtype == dtype, f"{name} was {dtype} and is {p.dtype}.")
            require(p.data_ptr() == places[name], f"{name} is another tensor: change it in place.")


def signals_keep_their_size(subject: InitSubject) -> None:
    """At the start the logits are not far from a guess, and gradients reach the first block as they do the last."""
    net = subject.build(depth=6)
    tokens = torch.randint(23, (8, 16))
    loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), torch.randint(23, (128,)))
    far = float(loss.detach()) - math.log(23)
    require(far < 1.0, f"the first loss is {far:.2f} above that of a guess: scale the initial weights.")
    loss.backward()
    sizes = []
    for block in (0, 5):
        grads = [p.grad.square().mean() for n, p in net.named_parameters() if f"blocks.{block}." in n and p.dim() > 1
                 and p.grad is not None]  # fmt: skip
        sizes.append(float(torch.stack(grads).mean().sqrt()))
    ratio = sizes[0] / max(sizes[1], 1e-30)
    require(1e-2 <= ratio <= 1e2, f"gradients of the first of 6 blocks are {ratio:.1e} times those of the last.")


@once
def reads_decide(subject: InitSubject) -> None:
    """A matrix that reads many numbers and writes few does not enlarge them: its scale goes by what it reads."""
    for name, module in subject.build(dim=16, heads=2, hidden=4096, depth=1).named_modules():
        if isinstance(module, nn.Linear) and module.in_features >= 100 * module.out_features:
            size = float(module.weight.detach().square().sum(1).mean().sqrt())
            sentence = f"{name} reads {module.in_features} numbers of size 1, and writes {size:.2g}"
            require(size <= 3, f"{sentence}: the variance of a weight is 1 over the width read, not over that written.")


@once
def rates_are_factors(subject: InitSubject) -> None:
    """``rates`` names parameters of the network, with finite factors above zero, and changes nothing."""
    for dim in (16, 48, 192):
        net = subject.build(dim=dim)
        before = copy.deepcopy(net)
        rates = rule_of(net).rates(net)
        names = {name for name, _ in net.named_parameters()}
        strange = sorted(set(rates) - names)
        require(not strange, f"rates names {', '.join(strange[:3])}, which is no parameter.")
        wrong = [name for name, rate in rates.items() if not 0 < rate < float("inf")]
        require(not wrong, f"the rate of {', '.join(wrong[:3])} is not a finite number above 0.")
        require(not differing(net, before), "rates changes the weights.")


@once
def trains(subject: InitSubject) -> None:
    """A small language model that starts with it learns: its loss on one batch falls."""
    loss_of_language_falls(0.1, lr=1e-2, init=subject.factory, tie=False)


@once
def changes_keep_their_size(subject: InitSubject) -> None:
    """Three steps of AdamW change activations as much at width 128 as at width 32, if it declares this."""
    if not getattr(subject.part, "scales_with_width", False):
        raise Inapplicable("it does not declare scales_with_width")
    steep = {name: value for name, value in slopes(subject.factory, (32, 128), steps=3).items() if abs(value) > STEEP}
    message = ", ".join(f"those of {name} by width^{value:.2f}" for name, value in steep.items())
    require(not steep, f"changes depend on the width, {message}: scale rates and initial weights with it.")


PROMISES = [documentation, unknown_options_are_refused, clean_import, follows_the_seed, sets_every_parameter,
            meta_construction, keeps_dtype, signals_keep_their_size, reads_decide, rates_are_factors,
            changes_keep_their_size,
            trains]  # fmt: skip
