"""Wrong initialisation rules: seeds that count for nothing, weights that stay, and rates of nothing."""

import random

import torch
from torch import nn

from faults import planted
from zoo.models.initialization import FanIn, MuP


@planted(follows_the_seed="another seed gives the same")
class IgnoresTheSeed(FanIn):
    """Every model starts alike."""

    def reset(self, module, name, net):
        torch.manual_seed(0)
        super().reset(module, name, net)


@planted(follows_the_seed="draw from torch's generator alone")
class DrawsElsewhere(FanIn):
    """The size is drawn by Python."""

    def std(self, module, name, net):
        return super().std(module, name, net) * random.SystemRandom().uniform(0.9, 1.1)


@planted(sets_every_parameter="is not set")
class ForgetsNorms(FanIn):
    """Only matrices are set."""

    def reset(self, module, name, net):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            super().reset(module, name, net)


@planted(sets_every_parameter="another start")
class ScalesWhatIsThere(FanIn):
    """The output is scaled by a size that was measured before."""

    def reset(self, module, name, net):
        factor = 1.0
        if name == "head":
            factor = 1.0 if module.weight.isfinite().all() else 0.5
        super().reset(module, name, net)
        if name == "head":
            module.weight.data.mul_(factor)


@planted(meta_construction="starts otherwise")
class LooksAtTheDevice(FanIn):
    """A model that is built on the meta device gets a smaller start."""

    def __init__(self, dim: int):
        super().__init__(dim)
        self.factor = 0.5 if torch.empty(()).is_meta else 1.0

    def std(self, module, name, net):
        return self.factor * super().std(module, name, net)


@planted(keeps_dtype="and is torch.float32")
class MakesFloat32(FanIn):
    """Weights become float32."""

    def reset(self, module, name, net):
        super().reset(module, name, net)
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.float()


@planted(keeps_dtype="is another tensor")
class MakesNewTensors(FanIn):
    """Weights become new tensors."""

    def reset(self, module, name, net):
        super().reset(module, name, net)
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.clone()


@planted(signals_keep_their_size="above that of a guess")
class StandardNormal(FanIn):
    """Every number is of size one."""

    def std(self, module, name, net):
        return 1.0


@planted(rates_are_factors="which is no parameter")
class RatesOfModules(MuP):
    """The rates are by the names of modules."""

    def rates(self, net):
        return {name.removesuffix(".weight"): rate for name, rate in super().rates(net).items()}


@planted(rates_are_factors="not a finite number above 0")
class WholeRates(MuP):
    """The rates are rounded down."""

    def rates(self, net):
        return {name: rate // 1 for name, rate in super().rates(net).items()}


@planted(changes_keep_their_size="changes depend on the width")
class ForgetsRates(MuP):
    """The initial weights are muP's, and the learning rates are not."""

    def rates(self, net):
        return {}


@planted(changes_keep_their_size="changes depend on the width")
class SquaresRates(MuP):
    """The rates fall with the square of the width."""

    def rates(self, net):
        return {name: rate**2 for name, rate in super().rates(net).items()}


@planted(trains="take the loss from")
class LearnsNothing(FanIn):
    """The rates are far too small."""

    def rates(self, net):
        return dict.fromkeys((name for name, _ in net.named_parameters()), 1e-6)
