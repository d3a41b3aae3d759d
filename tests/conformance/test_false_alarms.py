"""Parts as other people write them: what is right fails no check, and what is wrong is named by its own sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zoo.conformance import checks
from zoo.models.language import LanguageModel
from zoo.parts.ffn import FFN
from zoo.parts.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Sequence


class TwoMatrices(FFN):
    """W2 gelu(W1 x)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Closed(TwoMatrices):
    """W2 gelu(W1 x), where W2 starts at zero and W1 as Glorot and Bengio have it."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.up.weight, gain=0.5)
        nn.init.constant_(self.up.bias, -2.0)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)


class Outer(FFN):
    """A closed feed-forward inside of another part, which opens it."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.inner = Closed(dim, hidden)

    def reset_parameters(self):
        nn.init.ones_(self.inner.down.bias)

    def forward(self, x):
        return self.inner(x)


class InLists(FFN):
    """W2 gelu(W1 x) with the matrices in a list, and a gain in a dictionary."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.matrices = nn.ParameterList(torch.empty(shape) for shape in ((hidden, dim), (dim, hidden)))
        self.gains = nn.ParameterDict({"up": torch.empty(hidden)})
        self.reset_parameters()

    def reset_parameters(self):
        for matrix in self.matrices:
            nn.init.normal_(matrix, std=(3 * matrix.size(1)) ** -0.5)
        nn.init.ones_(self.gains["up"])

    def forward(self, x):
        up, down = self.matrices
        return F.linear(F.gelu(F.linear(x, up)) * self.gains["up"], down)


class LateTypes(RMSNorm):
    """A norm with an option whose type is imported for type checkers alone."""

    def __init__(self, dim: int, eps: float = 1e-6, sizes: Sequence[int] = ()):
        super().__init__(dim, eps)


class NestedDefault(RMSNorm):
    """A norm with pairs as the default of an option."""

    def __init__(self, dim: int, eps: float = 1e-6, spans: tuple[tuple[float, float], ...] = ((0.0, 1.0),)):
        super().__init__(dim, eps)


class WholeNumbers(RMSNorm):
    """A norm with a table of whole numbers among its parameters."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__(dim, eps)
        self.table = nn.Parameter(torch.empty(dim, dtype=torch.int8), requires_grad=False)
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "table"):
            nn.init.zeros_(self.table)


class Dropping(TwoMatrices):
    """W2 dropout(gelu(W1 x)), with torch's name for the rate."""

    def __init__(self, dim: int, hidden: int, p: float = 0.1):
        super().__init__(dim, hidden)
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        return self.down(self.dropout(F.gelu(self.up(x))))


class Jittered(TwoMatrices):
    """Its input is multiplied by numbers near one in training (Fedus et al., 2021)."""

    def forward(self, x):
        return super().forward(x * (1 + 0.01 * (2 * torch.rand_like(x) - 1)) if self.training else x)


class Centred(Dropping):
    """In training the mean over tokens is taken off, which lets every token see the others."""

    def forward(self, x):
        return super().forward(x - x.mean(-2, keepdim=True) if self.training else x)


class ByPlace(RMSNorm):
    """A norm whose option has no name."""

    def __init__(self, dim: int, eps: float = 1e-6, /):
        super().__init__(dim, eps)


class LeftBehind(TwoMatrices):
    """In training something is drawn on the CPU, wherever the module is."""

    def forward(self, x):
        return super().forward(x + torch.zeros(x.shape[-1]) if self.training else x)


def outcome(part, name):
    (check,) = [check for check in checks(part) if check.name == name]
    return check.outcome()


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (Closed, ("initialisation", "meta_construction")),
        (InLists, ("initialisation", "meta_construction", "dtypes", "strided_inputs")),
        (LateTypes, ("documentation", "shapes", "dtypes")),
        (NestedDefault, ("documentation",)),
        (WholeNumbers, ("initialisation", "dtypes", "copies")),
        (Dropping, ("no_token_is_dropped", "training_is_evaluation")),
        (Jittered, ("no_token_is_dropped", "training_is_evaluation")),
    ],
)
def test_what_is_right_fails_no_check(part, names):
    outcomes = {name: outcome(part, name) for name in names}
    assert not {name: result.sentence for name, result in outcomes.items() if result.status == "FAIL"}


def test_what_others_see_in_training_alone_is_found_beside_random_numbers():
    result = outcome(Centred, "training_is_evaluation")
    assert (result.status, "a token changes what others become" in result.sentence) == ("FAIL", True)


@pytest.mark.parametrize(
    ("part", "name", "sentence"),
    [(ByPlace, "documentation", "leave out the slash"), (LeftBehind, "moves_with_the_module", "a tensor stays behind")],
)
def test_what_is_wrong_is_named(part, name, sentence):
    result = outcome(part, name)
    assert (result.status, sentence in result.sentence) == ("FAIL", True), result.sentence


def test_a_frozen_parameter_is_named_as_one():
    result = outcome(WholeNumbers, "trains_language")
    assert result.status == "FAIL"
    assert "frozen (requires_grad=False). Register as a buffer" in result.sentence


def model(part, before=0, device="cpu"):
    torch.manual_seed(before)
    with torch.device(device):
        return LanguageModel(19, 16, dim=16, depth=2, heads=2, hidden=24, ffn=part, seed=0)


def test_a_part_has_the_last_word_on_what_is_inside():
    for block in model(Outer).stack.blocks:
        inner = next(module for module in block.modules() if isinstance(module, Closed))
        up, down = inner.up, inner.down
        assert (up.bias == -2).all()
        assert up.weight.abs().max() <= 0.5 * (6 / (16 + 24)) ** 0.5
        assert up.weight.std().item() == pytest.approx(0.5 * (2 / (16 + 24)) ** 0.5, rel=0.1)
        assert (down.weight == 0).all()
        assert (down.bias == 1).all()


@pytest.mark.parametrize("part", [Closed, Outer, InLists])
def test_initial_weights_depend_on_the_seed_alone(part):
    nets = [model(part, before).state_dict() for before in (1, 2)]
    assert all(torch.equal(value, nets[1][name]) for name, value in nets[0].items())
    assert all(value.isfinite().all() for value in nets[0].values())
