"""One initialisation for every model, drawn per module from a generator named after it.

The rule is FanIn unless the model has another one: matrices, embeddings included, are normal with standard deviation
1 / sqrt(3 * width read), GPT-2's 0.02 at width 768 and torch's default scale at any width. Biases: zero. Everything
else: the module's own ``reset_parameters``, which has the last word on the modules below it. Since each module draws
from (seed, its name), two variants start equal wherever they have the same parts.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn, optim
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.models.parameter_roles import parameter_role, parameter_roles
from zoo.parts.attention import Attention
from zoo.value_checks import above_zero

# torch's optimizers whose steps have one size for every number, whatever the gradient's
ADAM_FAMILY = frozenset({optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RMSprop, optim.Adagrad})
LATER = "initialize"  # a function in a module on the meta device: initialises it when it is in memory
RESIDUAL = ("out", "down", "write")  # names of the matrices of a block that write into the stream of tokens


class Init:
    """A rule for the initial weights of a network whose tokens have width ``dim``, and for their learning rates.

    Called for each module that has parameters, with torch's generators seeded for that module, and for a part whose
    ``reset_parameters`` sets the modules below it when these are drawn.
    """

    kind: ClassVar = "init"
    scales_with_width: ClassVar[bool] = False  # whether training changes activations alike at any width

    def __init__(self, dim: int):
        """
        Args:
            dim: width of a token, given by the model.
        """
        self.dim = dim

    def reset(self, module: nn.Module, name: str, net: nn.Module) -> None:
        """Draw the parameters that belong to ``module`` itself, of any shape; ``name`` is its name in ``net``."""
        if isinstance(module, (nn.Linear, nn.Embedding)) and not defines_reset(module):
            nn.init.normal_(module.weight, std=self.std(module, name, net))
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif callable(own := getattr(module, "reset_parameters", None)):
            own()

    def std(self, module: nn.Linear | nn.Embedding, name: str, net: nn.Module) -> float:
        """The standard deviation of a matrix (out, in), or of an embedding (rows, dim)."""
        # an embedding is read as a row of width dim, and as the output matrix it is tied to it reads dim features
        return (3 * module.weight.size(1)) ** -0.5

    def rates(self, net: nn.Module) -> dict[str, float]:
        """Factors on the learning rate by the name of a parameter of ``net``; those that it does not name have 1.

        Raises UsageError where the rule does not hold for the network.
        """
        return {}

    def fit_optimizer(self, optimizer: Optimizer, net: nn.Module) -> None:
        """Change the learning rates of an optimizer's groups where ``rates`` are not made for the size of its steps.

        Raises UsageError for an optimizer for which the rule does not hold.
        """


class FanIn(Init):
    """Matrices and embeddings N(0, 1 / (3 * width read)), biases zero: zoo's rule for every model."""


class Xavier(Init):
    """Matrices uniform within sqrt(6 / (in + out)) (Glorot and Bengio, 2010), of each matrix as it is stored."""

    def reset(self, module: nn.Module, name: str, net: nn.Module) -> None:
        """As the base does, with uniform matrices."""
        super().reset(module, name, net)
        if isinstance(module, nn.Linear) and not defines_reset(module):
            nn.init.xavier_uniform_(module.weight)


class GPT2(Init):
    """N(0, std²), and std / sqrt(2N) for the 2N matrices that write into the stream of tokens (Radford et al., 2019).

    N blocks write twice each, by attention and feed-forward; a decoder that looks at a memory thrice.
    """

    def __init__(self, dim: int, std: float = 0.02):
        """
        Args:
            std: standard deviation of every other matrix and of embeddings.
        """
        super().__init__(dim)
        above_zero(**{"init.std": std})
        self.size = std

    def std(self, module: nn.Linear | nn.Embedding, name: str, net: nn.Module) -> float:
        """std, or std / sqrt(2N)."""
        return self.size / residual_writes(name, net) ** 0.5


class MuP(Init):
    """Maximal update parametrisation (Yang et al., 2022): the best learning rate does not depend on the width.

    With m = dim / base_dim, Adam's rates and these weights: hidden matrices as FanIn, rate / m; embeddings as FanIn has
    them at base_dim; the output FanIn / sqrt(m), rate / m; vectors as ever. Hidden
    matrices of Muon have rate / sqrt(m) with the size of Adam's steps, and the rate itself with the original size. The
    output has a matrix of its own (``tie``), heads keep their width: model.heads grows with model.dim, depth stays.
    """

    scales_with_width = True

    def __init__(self, dim: int, base_dim: int = 64):
        """
        Args:
            base_dim: the width at which all is as without muP, and at which the learning rate was tuned.
        """
        super().__init__(dim)
        if base_dim < 1:
            raise UsageError(f"init.base_dim is a width, got {base_dim}.")
        self.base_dim = base_dim

    def std(self, module: nn.Linear | nn.Embedding, name: str, net: nn.Module) -> float:
        """1 / sqrt(3 * width read), for embeddings at base_dim, for the output times sqrt(base_dim / dim)."""
        role, fan_in = parameter_role(f"{name}.weight", module.weight, module), module.weight.size(1)
        if isinstance(module, nn.Embedding):
            return (3 * fan_in * self.base_dim / self.dim) ** -0.5
        return (3 * fan_in) ** -0.5 * ((self.base_dim / self.dim) ** 0.5 if role == "head" else 1.0)

    def rates(self, net: nn.Module) -> dict[str, float]:
        """base_dim / dim for hidden matrices and the output."""
        roles = parameter_roles(net)
        if "head" not in roles.values():
            raise UsageError("init MuP needs an output matrix of its own: set model.tie to false (or to none).")
        return {name: self.base_dim / self.dim for name, role in roles.items() if role in ("matrix", "head")}

    def fit_optimizer(self, optimizer: Optimizer, net: nn.Module) -> None:
        """Take (base_dim / dim) ** p in place of base_dim / dim, by the optimizer's ``width_exponents``: role → p.

        Raises UsageError for an optimizer that has none and is not one of Adam's family.
        """
        exponents = getattr(optimizer, "width_exponents", {} if type(optimizer) in ADAM_FAMILY else None)
        if exponents is None:
            names = ", ".join(sorted(cls.__name__ for cls in ADAM_FAMILY))
            raise UsageError(
                f"init MuP has rates for {names}, Lion, Muon and AdamW8bit, and model.optimizer is "
                f"{type(optimizer).__name__}, whose steps grow otherwise with the width. Take AdamW."
            )
        roles = parameter_roles(net)
        for group in optimizer.param_groups if exponents else ():
            powers = {
                exponents.get(roles.get(name.removeprefix("net."), "vector"), 1.0) for name in group["param_names"]
            }
            if len(powers) > 1:
                raise UsageError(
                    f"{type(optimizer).__name__} steps parameters of several width_exponents in one group."
                )
            group["lr"] *= (self.base_dim / self.dim) ** (powers.pop() - 1)


def residual_writes(name: str, net: nn.Module) -> int:
    """How many matrices write into the stream that the module of this name writes into; 1 if it writes into none."""
    stream, blocks, _ = name.rpartition("blocks.")
    modules = dict(net.named_modules()) if blocks and name.endswith(RESIDUAL) else {}
    if not modules or not writes_residual(name, modules):
        return 1
    writes = set()
    for module_name in modules:
        if module_name.startswith(f"{stream}{blocks}") and writes_residual(module_name, modules):
            number, _, inside = module_name.removeprefix(f"{stream}{blocks}").partition(".")
            writes.add((number, inside.partition(".")[0]))  # the experts of a mixture write once
    return len(writes)


def writes_residual(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the module of this name is a matrix that writes into a stream; ``down`` of an attention compresses."""
    owner, _, last = name.rpartition(".")
    return last in RESIDUAL and not (last == "down" and isinstance(modules[owner], Attention))


def rule_of(net: nn.Module) -> Init:
    """The rule that a stack of the network was given, or else FanIn."""
    rules = (getattr(module, "init_rule", None) for module in net.modules())
    return next((rule for rule in rules if rule is not None), FanIn(0))


def initialize(net: nn.Module, seed: int = 0) -> nn.Module:
    """Set every parameter of ``net`` in place, leaving torch's global random state as it was."""
    rule = rule_of(net)
    for name, module in in_order_of_reset(net):
        initialize_module(module, name, net, rule, seed)
    return net


def in_order_of_reset(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of ``net`` by name, those that set what is below them behind it: the inner before the outer."""
    modules = [(sets_below(module), name, module) for name, module in net.named_modules()]
    outer = [(name, module) for last, name, module in modules if last]
    return [(name, module) for last, name, module in modules if not last] + outer[::-1]


def defines_reset(module: nn.Module) -> bool:
    """Whether the class of a module has a ``reset_parameters`` that is not torch's."""
    own = getattr(type(module), "reset_parameters", None)
    return own is not None and not own.__module__.startswith("torch.")


def sets_below(module: nn.Module) -> bool:
    """Whether a module has a ``reset_parameters`` of its own and tensors in modules below it."""
    return defines_reset(module) and any([*child.parameters(), *child.buffers()] for child in module.children())


def initialize_module(module: nn.Module, name: str, net: nn.Module, rule: Init, seed: int) -> None:
    """Set what belongs to one module of ``net`` itself; on the meta device, leave this call to whoever moves it."""
    deep = sets_below(module) or parametrize.is_parametrized(module)
    tensors = [*module.parameters(deep), *module.buffers(deep)]
    if any(is_lazy(tensor) for tensor in tensors):
        kind = type(module).__name__
        raise UsageError(f"{name}: {kind} has no sizes before its first input: take {kind.removeprefix('Lazy')}.")
    if any(tensor.is_meta for tensor in tensors):
        vars(module)[LATER] = partial(initialize_module, module, name, net, rule, seed)
    elif tensors:
        cuda = {tensor.device for tensor in tensors if tensor.is_cuda}
        with torch.random.fork_rng(cuda), settable_weights(module):
            # not torch.manual_seed: it seeds every GPU, and fork_rng gives back only those named
            for generator in (torch.default_generator, *(torch.cuda.default_generators[d.index] for d in cuda)):
                generator.manual_seed(derive_seed(seed, name))
            rule.reset(module, name, net)


@contextlib.contextmanager
def settable_weights(module: nn.Module) -> Iterator[None]:
    """Pass what is drawn in place in a module's parametrized weights in here on to the tensors they are computed from.

    A parametrization without ``right_inverse`` keeps these: they are drawn in a ``reset_parameters``.
    """
    if not parametrize.is_parametrized(module):
        yield
        return
    with torch.no_grad(), parametrize.cached():
        lists = dict(module.get_submodule("parametrizations").named_children())
        before = {name: getattr(module, name).clone() for name in lists}
        yield
        for name, weight in before.items():
            fresh = getattr(module, name)
            steps: list[Any] = [*lists[name].children()]
            if not torch.allclose(fresh, weight, 0, 0, True) and all(hasattr(step, "right_inverse") for step in steps):
                setattr(module, name, fresh)
                for step in steps:
                    if type(step).__name__ == "_SpectralNorm" and fresh.dim() > 1:  # with another matrix's vectors
                        type(step).__init__(step, fresh, step.n_power_iterations, step.dim, step.eps)
                        step.train(module.training)


@contextlib.contextmanager
def preserve_rng() -> Iterator[None]:
    """Build a model in here: torch's layers draw when they are made, how much depends on the parts, and dropout and
    shuffling would differ after it.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        yield


def derive_seed(seed: int, name: str) -> int:
    """A seed for one name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
