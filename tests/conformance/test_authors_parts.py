"""Parts as authors of packages write them: what is right is not refused, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from zoo.conformance import checks
from zoo.parts.attention import MultiHead
from zoo.parts.ffn import FFN, MLP
from zoo.parts.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Sequence


class ParameterListMLP(FFN):
    """Its matrices are in a list of parameters alone."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.matrices = nn.ParameterList([torch.empty(hidden, dim), torch.empty(dim, hidden)])
        self.reset_parameters()

    def reset_parameters(self):
        for matrix in self.matrices:
            nn.init.normal_(matrix, std=(3 * matrix.size(1)) ** -0.5)

    def forward(self, x):
        up, down = self.matrices
        return F.linear(F.gelu(F.linear(x, up)), down)


class ClosedMLP(MLP):
    """Its second matrix starts at zero."""

    def reset_parameters(self):
        nn.init.zeros_(self.down.weight)


class WeightNormed(MLP):
    """Direction and length of a matrix are parameters."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        weight_norm(self.up)


class CheckersTypes(RMSNorm):
    """The type of an option is imported for type checkers alone."""

    def __init__(self, dim: int, eps: float = 1e-6, sizes: Sequence[int] = ()):
        super().__init__(dim, eps)
        self.sizes = sizes


class Mode(Enum):
    """Which mean is taken."""

    SQUARES = 2


class Choices(RMSNorm):
    """Options with nested defaults and a member of an Enum."""

    def __init__(
        self, dim: int, eps: float = 1e-6, spans: tuple[tuple[float, float], ...] = ((0.0, 1.0), (0.5, 1.0)),
        mode: Mode = Mode.SQUARES,
    ):  # fmt: skip
        super().__init__(dim, eps)
        self.spans, self.mode = spans, mode


class Unwritable(RMSNorm):
    """A recipe can hold no generator."""

    def __init__(self, dim: int, eps: float = 1e-6, pairs: tuple[object, ...] = ((torch.Generator,), {1: 2})):
        super().__init__(dim, eps)


class Quantised(RMSNorm):
    """A table of whole numbers beside its gain."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.codes = nn.Parameter(torch.zeros(dim, dtype=torch.int8), requires_grad=False)

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "codes"):
            nn.init.zeros_(self.codes)

    def forward(self, x):
        return super().forward(x) + self.codes.to(x.dtype)

    def reference(self, x):
        raise NotImplementedError


class TorchsRate(MLP):
    """Dropout in front of its second matrix, with the name that torch gives its rate."""

    def __init__(self, dim: int, hidden: int, p: float = 0.1):
        super().__init__(dim, hidden)
        self.p = p

    def forward(self, x):
        return self.down(F.dropout(F.gelu(self.up(x)), self.p, self.training))


class CentredInTraining(TorchsRate):
    """In training, where it draws, it takes the mean over all tokens off."""

    def forward(self, x):
        hidden = self.up(x)
        if self.training:
            hidden = hidden - hidden.mean(-2, keepdim=True)
        return self.down(F.dropout(F.gelu(hidden), self.p, self.training))


class SeesTheFuture(MultiHead):
    """The way of its attention that drops has no mask (`scaled_dot_product_attention` without one)."""

    def attend(self, q, k, v, pattern):
        if self.training and self.dropout:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return super().attend(q, k, v, pattern)


class SeesPaddingInTraining(MultiHead):
    """The mask of its padding is for evaluation alone."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, replace(pattern, valid=None) if self.training else pattern)


class StaysOnTheCPU(MLP):
    """It makes a tensor without a device, in training alone."""

    def forward(self, x):
        hidden = self.up(x)
        if self.training:
            hidden = hidden + 0 * torch.zeros(hidden.shape[-1])
        return self.down(F.gelu(hidden))


class ByPosition(RMSNorm):
    """Its option cannot be named."""

    def __init__(self, dim: int, eps: float = 1e-6, /):
        super().__init__(dim, eps)


class FrozenGain(RMSNorm):
    """Its weight does not learn."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.weight.requires_grad_(False)


def outcome(part, name):
    return next(check for check in checks(part) if check.name == name).outcome()


RIGHT = {
    ParameterListMLP: ("initialisation", "dtypes", "strided_inputs", "no_state_between_calls", "meta_construction"),
    ClosedMLP: ("initialisation", "meta_construction", "nonlinear", "signals_keep_their_size", "trains_language"),
    WeightNormed: ("initialisation", "meta_construction", "state_round_trip"),
    CheckersTypes: ("documentation", "shapes"),
    Choices: ("documentation",),
    Quantised: ("shapes", "dtypes", "autocast", "token_by_token"),
    TorchsRate: ("no_token_is_dropped", "token_by_token"),
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in RIGHT.items() for name in names])
def test_a_right_part_passes(part, name):
    assert outcome(part, name).sentence == ""


@pytest.mark.parametrize(("part", "name", "words"), [
    (CentredInTraining, "token_by_token", "in training token 0 depends on token 1"),
    (SeesTheFuture, "causality_by_gradient", "in training of 8 tokens token 0 depends on a later one"),
    (SeesPaddingInTraining, "padding", "in training padding on the left: a real token differs"),
    (SeesPaddingInTraining, "packed_rows", "in training packed: a sentence differs"),
    (StaysOnTheCPU, "moves_with_the_module", "in training with tensors without data: a tensor stays behind"),
    (ByPosition, "documentation", "option 'eps' cannot be given by its name"),
    (FrozenGain, "trains_language", "is frozen: register it as a buffer"),
    (Unwritable, "documentation", "which a recipe cannot hold"),
])  # fmt: skip
def test_a_wrong_part_is_named(part, name, words):
    assert words in outcome(part, name).sentence
