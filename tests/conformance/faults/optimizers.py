"""Wrong optimizers: which parameters they move, by which rate, and what a checkpoint holds of them."""

import torch
from torch.optim import Optimizer
from zoo_optimizers.lion import Lion

from faults import planted
from zoo.tasks.muon import Muon


class MomentumSGD(Optimizer):
    """w - lr * (m + weight_decay * w), with m = 0.5 * m + g."""

    def __init__(self, params, lr: float = 1e-2, weight_decay: float = 0.1):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def change(self, group, parameter):
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        momentum.mul_(0.5).add_(parameter.grad)
        parameter.sub_(group["lr"] * (momentum + group["weight_decay"] * parameter))

    def loss_of(self, closure):
        with torch.enable_grad():
            return closure()

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.loss_of(closure) if closure else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.change(group, parameter)
        return loss


@planted(loss_falls="times as far from its minimum")
class GoesUp(MomentumSGD):
    """The step has the wrong sign."""

    def change(self, group, parameter):
        parameter.add_(group["lr"] * parameter.grad)


@planted(loss_falls="times as far from its minimum", rate_of_group="by the learning rate of another")
class MovesOnlyMatrices(MomentumSGD):
    """Vectors get no step."""

    def change(self, group, parameter):
        if parameter.dim() > 1:
            super().change(group, parameter)


@planted(groups_hold_each_parameter="no group has")
class ForgetsVectors(MomentumSGD):
    """Vectors are left out of the groups."""

    def __init__(self, params, lr: float = 1e-2, weight_decay: float = 0.1):
        super().__init__([group for group in params if "weight_decay" not in group], lr, weight_decay)


@planted(groups_hold_each_parameter="lack param_names")
class DropsNames(MomentumSGD):
    """The names are thrown away."""

    def __init__(self, params, lr: float = 1e-2, weight_decay: float = 0.1):
        groups = [{**group, "params": [p for _, p in group["params"]]} for group in params]
        super().__init__(groups, lr, weight_decay)


@planted(untouched_without_gradient="has no gradient and moves")
class DecaysEverything(MomentumSGD):
    """Parameters without a gradient decay."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
        return loss


@planted(weight_decay_by_group="read weight_decay from the group")
class OneDecay(MomentumSGD):
    """The decay is that of the options, for every group."""

    def change(self, group, parameter):
        super().change({**group, "weight_decay": self.defaults["weight_decay"]}, parameter)


@planted(rate_of_group="where a schedule gives 0")
class OneRate(MomentumSGD):
    """The rate is that of the start."""

    def change(self, group, parameter):
        super().change({**group, "lr": self.defaults["lr"]}, parameter)


@planted(rate_of_group="by the learning rate of another")
class RateOfTheFirst(MomentumSGD):
    """Every group learns by the rate of the first one."""

    def change(self, group, parameter):
        super().change({**group, "lr": self.param_groups[0]["lr"]}, parameter)


@planted(resumes="after a resume")
class CountsBesideItsState(MomentumSGD):
    """The step grows smaller by a count that is not part of the state."""

    count = 0

    def change(self, group, parameter):
        self.count += 1
        super().change({**group, "lr": group["lr"] / self.count**0.5}, parameter)


@planted(resumes="after a resume", parent=Muon)
class ForgetsItsMembers(Muon):
    """After loading, its members go on with the state of before."""

    def _share(self):
        if not self.state:
            super()._share()


@planted(resumes="more than tensors")
class KeepsAFunction(MomentumSGD):
    """The state holds a function."""

    def change(self, group, parameter):
        super().change(group, parameter)
        self.state[parameter]["rule"] = torch.nn.Linear(1, 1)


@planted(closure="computes the loss 0 times")
class IgnoresClosures(MomentumSGD):
    """It does not compute the loss."""

    def loss_of(self, closure):
        return None


@planted(closure="computes the loss 2 times")
class LooksTwice(MomentumSGD):
    """It computes the loss twice."""

    def loss_of(self, closure):
        super().loss_of(closure)
        return super().loss_of(closure)


@planted(closure="without gradients")
class WithoutGradients(MomentumSGD):
    """It computes the loss without gradients."""

    def loss_of(self, closure):
        return closure()


@planted(repeatable="draws random numbers")
class AddsNoise(MomentumSGD):
    """Each step has some noise."""

    def change(self, group, parameter):
        super().change(group, parameter)
        parameter.add_(1e-4 * torch.randn_like(parameter))


@planted(finite="add an eps")
class DividesByZero(MomentumSGD):
    """A gradient is divided by its size."""

    def change(self, group, parameter):
        parameter.sub_(group["lr"] * parameter.grad / parameter.grad.norm())


@planted(dtypes="is another tensor", parent=Lion)
class ReplacesData(Lion):
    """A step makes new tensors."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.clone()
        return loss


@planted(trains="take the loss from")
class FarTooSlow(MomentumSGD):
    """It moves by a thousandth."""

    def change(self, group, parameter):
        super().change({**group, "lr": 1e-3 * group["lr"]}, parameter)
