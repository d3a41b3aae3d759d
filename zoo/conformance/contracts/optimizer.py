"""The contract of an optimizer: named groups in, one step per call, a state that a run goes on from exactly."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.short_training import loss_of_language_falls
from zoo.conformance.subject import OptimizerSubject
from zoo.conformance.token_checks import clean_import, difference, documentation, reloaded, unknown_options_are_refused


def pull(net: nn.Module, target: dict[str, Tensor]) -> Tensor:
    """The quadratic () whose minimum is ``target``, by name: half the squared distance of all parameters."""
    return sum(((p - target[name]) ** 2).sum() for name, p in net.named_parameters() if p.requires_grad) / 2  # type: ignore[return-value]


LR = 1e-2
ENOUGH = 25  # steps after which an optimizer may have changed its rate


def start(subject: OptimizerSubject, lr: float = LR) -> tuple[nn.Module, Optimizer, dict[str, Tensor]]:
    """A network, an optimizer of its parameters, and the minimum of its quadratic, each of any shape."""
    net = subject.network()
    target = {name: p.detach() + torch.randn_like(p) for name, p in net.named_parameters()}
    return net, subject.build(net, lr), target


def make_steps(net: nn.Module, optimizer: Optimizer, target: dict[str, Tensor], count: int = 1) -> None:
    """So many steps on the quadratic."""
    for _ in range(count):
        optimizer.zero_grad()
        pull(net, target).backward()
        optimizer.step()


def values(net: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter, of any shape, by its name."""
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def moved(net: nn.Module, before: dict[str, Tensor]) -> list[str]:
    """The names of the parameters that are not what they were."""
    return [name for name, p in net.named_parameters() if not torch.equal(p.detach(), before[name])]


def loss_falls(subject: OptimizerSubject) -> None:
    """Every parameter of a quadratic comes nearer to its minimum: matrices, embeddings, heads and vectors."""
    net, optimizer, target = start(subject, lr=3e-2)
    before = values(net)
    make_steps(net, optimizer, target, 60)
    for name, p in net.named_parameters():
        if p.requires_grad:
            start_gap, gap = (before[name] - target[name]).norm(), (p.detach() - target[name]).norm()
            require(bool(p.isfinite().all()), f"{name} is not finite after 60 steps of lr 0.03 on a quadratic.")
            far = float(gap / start_gap)
            require(far <= 0.9, f"{name} is {far:.2f} times as far from its minimum after 60 steps.")


@once
def groups_hold_each_parameter(subject: OptimizerSubject) -> None:
    """Every parameter that it is given is in exactly one of ``param_groups``, under its name, and no other one."""
    net, optimizer, _ = start(subject)
    expected = sorted(name for name, p in net.named_parameters() if p.requires_grad)
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): name for name, p in net.named_parameters()}
    got = sorted(names.get(number, "a stranger") for number in ids)
    missing, extra = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    require(not missing, f"no group has {', '.join(missing)}: pass every group on.")
    require(not extra, f"a group has {', '.join(extra)}, which it was not given.")
    require(len(got) == len(expected), "a parameter is in more than one group.")
    declared = [name for group in optimizer.param_groups for name in group.get("param_names", [])]
    require(sorted(declared) == expected, "param_groups lack param_names: pass the named groups to super().__init__.")


@once
def untouched_without_gradient(subject: OptimizerSubject) -> None:
    """A parameter without a gradient (frozen, or not thawed yet) stays bit for bit, weight decay included."""
    net, optimizer, target = start(subject)
    make_steps(net, optimizer, target, 2)
    for name, p in net.named_parameters():
        if not p.requires_grad:
            continue
        before = values(net)
        optimizer.zero_grad()
        pull(net, target).backward()
        p.grad = None
        optimizer.step()
        message = f"{name} has no gradient and moves: skip what has grad None, weight decay and momentum too."
        require(name not in moved(net, before), message)
        require(not {"frozen.weight", "frozen.bias"} & set(moved(net, before)), "a frozen parameter moves.")


def weight_decay_by_group(subject: OptimizerSubject) -> None:
    """A gradient of zero shrinks a number by lr · ``weight_decay`` of its group at most, where that is 0 not at all."""
    net, optimizer, _ = start(subject)
    decoupled = getattr(subject.part, "decoupled_decay", not subject.part.__module__.startswith("torch."))
    names = {id(p): name for name, p in net.named_parameters()}
    for _ in range(3):
        before = values(net)
        for p in net.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        optimizer.step()
        for group in optimizer.param_groups:
            decay, lr = group.get("weight_decay", 0.0), group["lr"]
            for name, p in ((names[id(p)], p.detach()) for p in group["params"]):
                message = f"{name} moves by a gradient of zero: read weight_decay from the group, not from the options."
                require(bool(decay) or torch.equal(p, before[name]), message)
                change = (p - before[name]) / before[name].abs().clamp(min=1e-3) * before[name].sign()
                fine = bool(((change <= 1e-6) & (change >= -1.5 * lr * decay - 1e-6)).all())
                sizes = f"by up to {float(change.abs().max()):.1e} of its value instead of {lr:g} * {decay:g}"
                advice = "take decay out of the gradient and its averages, or declare decoupled_decay = False"
                require(fine or not decay or not decoupled, f"weight decay alone changes {name} {sizes}: {advice}.")
    if "weight_decay" in inspect.signature(subject.part).parameters:
        undecayed, decayed = (equal_steps(subject, {"weight_decay": decay}, 2) for decay in (0.0, 0.3))
        require(not torch.equal(undecayed, decayed), "--weight_decay 0.3 changes nothing: read it from the group.")
        counts, moved_by = [p.numel() for p in net.parameters()], float((undecayed[1] - undecayed[0]).abs().max())
        for change, numbers in zip((decayed[2] - undecayed[2]).split(counts), undecayed[0].split(counts), strict=True):
            shrunk = change.abs() > 1e-6  # some optimizers decay some numbers alone
            if not shrunk.any():
                continue
            shares = change[shrunk] / numbers[shrunk]
            slack = 1e-4 + float(shares.median().abs()) * moved_by  # the second step decays what the first one has made
            fine = bool(((shares - shares.median()) * numbers[shrunk]).abs().max() <= slack)
            message = "beside gradients the numbers of a parameter do not decay by one share of their values"
            require(fine or not decoupled, f"{message}: leave decay out of what divides the gradient.")


def equal_steps(subject: OptimizerSubject, options: dict[str, Any], count: int) -> Tensor:
    """All numbers before and after each of some steps by the same gradients, with other options, (1 + count, n)."""
    torch.manual_seed(0)
    net, optimizer, target = start(subject.changed(**options))
    pull(net, target).backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    states = [torch.cat([p.detach().flatten() for p in net.parameters()])]
    for _ in range(count):
        for p, gradient in zip(net.parameters(), gradients, strict=True):
            p.grad = None if gradient is None else gradient.clone()
        optimizer.step()
        states.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    return torch.stack(states)


def first_step_is_corrected(subject: OptimizerSubject) -> None:
    """Steps by equal gradients do not depend on how slowly averages forget: their bias towards zero is corrected."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(subject.part).parameters.items()}
    slower: dict[str, Any] = {}
    for name, value in (defaults | subject.options).items():
        rates = value if isinstance(value, (tuple, list)) else (value,)
        if name.startswith(("beta", "momentum")) and all(isinstance(rate, float) and 0 < rate < 1 for rate in rates):
            changed = [1 - (1 - rate) / 2 for rate in rates]
            slower[name] = tuple(changed) if isinstance(value, (tuple, list)) else changed[0]
    if not slower:
        raise Inapplicable("no option says how slowly an average forgets")
    if not getattr(subject.part, "corrects_bias", True):
        raise Inapplicable("it declares corrects_bias = False")
    count = 4 if all(name.startswith("beta") for name in slower) else 1  # a momentum may be a sum, which grows
    usual, slow = (equal_steps(subject, options, count).diff(dim=0) for options in ({}, slower))
    for step, (change, changed) in enumerate(zip(usual, slow, strict=True), 1):
        share = float((changed - change).norm() / change.norm().clamp(min=1e-12))
        message = f"with {slower} step {step} by the same gradients differs by {share:.0%}"
        advice = "divide averages by 1 - beta ** step, or declare corrects_bias = False"
        require(share <= 0.01, f"{message}: {advice}.")


@once
def steps_by_reference(subject: OptimizerSubject) -> None:
    """Three steps of known gradients give what ``reference(w, gradients, group)`` gives, in float64."""
    net = subject.network().double()
    optimizer, starts = subject.build(net), values(net)
    if not callable(formula := getattr(optimizer, "reference", None)):
        raise Inapplicable("it gives no reference")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients: dict[str, list[Tensor]] = {name: [] for name in trained}
    for step in (1, 2, 3):
        for name, p in trained.items():
            p.grad = torch.randn_like(p)
            gradients[name].append(p.grad.clone())
        optimizer.step()
        for name, p in trained.items():
            gap = difference(p.detach(), formula(starts[name], gradients[name], groups[id(p)]))
            advice = "change step, or, where it is another formula, override reference too"
            require(gap <= 1e-6, f"step {step} of {name} is {gap:.1e} away from its own formula: {advice}.")


def rate_of_group(subject: OptimizerSubject) -> None:
    """The learning rate is ``group["lr"]`` at each step, which a schedule and layer-wise rates set."""
    net, optimizer, target = start(subject)
    rates = [group["lr"] for group in optimizer.param_groups]
    make_steps(net, optimizer, target, ENOUGH)
    same = rates == [group["lr"] for group in optimizer.param_groups]
    require(same, 'a step changes group["lr"], which a schedule sets: keep a rate of its own under another name.')
    optimizer.zero_grad()
    LambdaLR(optimizer, lambda step: 0.0)
    before = values(net)
    make_steps(net, optimizer, target, 2)
    wrong = moved(net, before)
    require(not wrong, f'{", ".join(wrong[:3])} moves where a schedule gives 0: read group["lr"] at each step.')
    for active in optimizer.param_groups:
        for group in optimizer.param_groups:
            group["lr"] = LR if group is active else 0.0
            if "weight_decay" in group:
                group["weight_decay"] = 0.1
        before = values(net)
        make_steps(net, optimizer, target)
        mine = {id(p) for p in active["params"]}
        names = {name for name, p in net.named_parameters() if id(p) in mine}
        moving = set(moved(net, before))
        require(moving == names, "a group moves by the learning rate of another one.")


def resumes(subject: OptimizerSubject) -> None:
    """Saved as plain tensors and loaded into a new one, it goes on bit for bit."""
    net, optimizer, target = start(subject)
    make_steps(net, optimizer, target, 3)
    twin = copy.deepcopy(net)
    twin_optimizer = subject.build(twin, 1e-2)
    saved = reloaded(optimizer.state_dict(), "state_dict holds more than tensors and plain values")
    twin_optimizer.load_state_dict(saved)
    make_steps(net, optimizer, target, 3)
    make_steps(twin, twin_optimizer, target, 3)
    wrong = moved(twin, values(net))
    message = f"after a resume {', '.join(wrong[:3])} differs: keep all that steps need in self.state and param_groups."
    require(not wrong, message)


@once
def closure(subject: OptimizerSubject) -> None:
    """``step(closure)`` computes the loss with gradients, once, steps by these, and returns it."""
    net, optimizer, target = start(subject)
    twin = copy.deepcopy(net)
    calls: list[Tensor] = []

    def compute() -> Tensor:
        require(torch.is_grad_enabled(), "step(closure) calls it without gradients: use torch.enable_grad().")
        optimizer.zero_grad()
        loss = pull(net, target)
        loss.backward()
        calls.append(loss.detach())
        return loss

    result: Any = optimizer.step(compute)  # type: ignore[arg-type]
    require(len(calls) == 1, f"step(closure) computes the loss {len(calls)} times: once is what a training step does.")
    require(result is not None and float(result.detach()) == float(calls[0]), "step(closure) does not return the loss.")
    make_steps(twin, subject.build(twin, 1e-2), target)
    require(not moved(net, values(twin)), "step(closure) makes another step than step().")


def repeatable(subject: OptimizerSubject) -> None:
    """The same gradients give the same steps, without a random number."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(0)
        net, optimizer, target = start(subject)
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        make_steps(net, optimizer, target, 3)
        require(torch.equal(torch.get_rng_state(), state), "a step draws random numbers: a resumed run would differ.")
        results.append(values(net))
    wrong = [name for name, value in results[0].items() if not torch.equal(value, results[1][name])]
    require(not wrong, f"two runs of the same gradients differ in {', '.join(wrong[:3])}.")


def finite(subject: OptimizerSubject) -> None:
    """Gradients of zero, tiny and huge ones leave finite parameters."""
    for size in (0.0, 1e-30, 1e-8, 1e8):
        net, optimizer, _ = start(subject)
        for _ in range(3):
            for p in net.parameters():
                p.grad = size * torch.randn_like(p) if p.requires_grad else None
            optimizer.step()
        wrong = [name for name, p in net.named_parameters() if not bool(p.isfinite().all())]
        require(not wrong, f"gradients of size {size:g} make {', '.join(wrong[:3])} not finite: add an eps.")


@once
def dtypes(subject: OptimizerSubject) -> None:
    """Parameters stay the tensors that they are, in float64, float32 and bfloat16."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        net = subject.network().to(dtype)
        places = {name: p.data_ptr() for name, p in net.named_parameters()}
        optimizer = subject.build(net, 1e-2)
        make_steps(net, optimizer, {name: torch.zeros_like(p) for name, p in net.named_parameters()}, 2)
        for name, p in net.named_parameters():
            require(p.dtype == dtype, f"{name} was {dtype} and is {p.dtype}.")
            require(p.data_ptr() == places[name], f"{name} is another tensor after a step: change it in place.")


@once
def trains(subject: OptimizerSubject) -> None:
    """A small language model trains with it as with a recipe: its loss on one batch falls."""
    loss_of_language_falls(0.005, lr=3e-3, optimizer=subject.factory)


PROMISES = [documentation, unknown_options_are_refused, clean_import, loss_falls, groups_hold_each_parameter,
            untouched_without_gradient, weight_decay_by_group, rate_of_group,
            first_step_is_corrected, steps_by_reference, resumes, closure, repeatable, finite,
            dtypes, trains]  # fmt: skip
