"""Wrong feed-forwards."""

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from faults import planted
from zoo.parts.ffn import FFN, MLP, Gated, ReGLU, SwiGLU


@planted(nonlinear="is the activation missing", reference="away from its own formula")
class NoActivation(MLP):
    """The activation is missing."""

    def forward(self, x):
        return self.down(self.up(x))


@planted(nonlinear="is the activation missing", reference="away from its own formula")
class NoGate(SwiGLU):
    """The gate is computed and not multiplied in."""

    def forward(self, x):
        return self.down(self.up(x).chunk(2, -1)[1])


@planted(reference="away from its own formula")
class GatesTheOtherHalf(SwiGLU):
    """The activation is on the value instead of the gate."""

    def forward(self, x):
        value, gate = self.up(x).chunk(2, -1)
        return self.down(self.gate(gate) * value)


@planted(reference="away from its own formula")
class TanhApproximation(MLP):
    """GELU is approximated by tanh, as in GPT-2, and the formula says otherwise."""

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


@planted(token_by_token="work on the last dimension alone")
class MixesNeighbours(MLP):
    """A convolution over time reads the next token too."""

    def forward(self, x):
        return super().forward(x + x.roll(-1, -2) if x.dim() > 1 else x)


@planted(token_by_token="work on the last dimension alone")
class SoftmaxOverTokens(MLP):
    """The hidden units compete over tokens instead of features."""

    def forward(self, x):
        return self.down(self.up(x).softmax(-2 if x.dim() > 1 else -1))


@planted(token_by_token="expected: A token's result depends on that token alone")
class NeedsABatch(MLP):
    """It unpacks three dimensions, so that packed tokens (tokens, dim) fail."""

    def forward(self, x):
        B, T, dim = x.shape
        return super().forward(x.reshape(B * T, dim)).view(B, T, dim)


@planted(token_by_token="work on the last dimension alone", batch_independence="rows must not mix")
class TransposesBack(MLP):
    """A flattening is undone in another order, so that results land at other tokens."""

    def forward(self, x):
        if x.dim() != 3:
            return super().forward(x)
        B, T, dim = x.shape
        return super().forward(x.transpose(0, 1).reshape(B * T, dim)).view(B, T, dim)


@planted(budget="Gated parts use 2/3 of hidden")
class GatedAtFullWidth(ReGLU):
    """Three matrices of the full width: half as many weights again as the budget."""

    def __init__(self, dim: int, hidden: int, bias: bool = False):
        super().__init__(dim, 3 * hidden // 2, bias)


@planted(any_size="ZeroDivisionError", parent=MLP)
class NarrowHidden(FFN):
    """It works in groups of eight hidden units, of which a small budget has none."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.scale = 8 / (hidden // 8)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)) * self.scale)


@planted(evaluation_is_deterministic="is on in eval")
class DropsInEvaluation(MLP):
    """Dropout by the function, whose default is training=True."""

    def forward(self, x):
        return self.down(F.dropout(F.gelu(self.up(x)), 0.1))


@planted(no_state_between_calls="draw random numbers from torch's generator", activation_checkpointing="output differs")
class OwnRandomNumbers(MLP):
    """Dropout in training draws from numpy, which no seed of torch and no checkpoint of activations repeats."""

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        if self.training:
            mask = numpy.random.default_rng(None).random(hidden.shape) > 0.1
            hidden = hidden * torch.as_tensor(mask, device=x.device).to(x.dtype) / 0.9
        return self.down(hidden)


@planted(inputs_are_left_alone="changed in place")
class ActivatesInPlace(MLP):
    """An activation in front works in place, on the stream of tokens."""

    def forward(self, x):
        with torch.no_grad():
            F.relu(x, inplace=True)
        return super().forward(x)


class _Gained(MLP):
    """A plain feed-forward with a gain, drawn around one."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.gain = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.gain, 1.0, 0.1)

    def forward(self, x):
        return super().forward(x) * self.gain

    def reference(self, x):
        return super().reference(x) * self.gain


@planted(initialisation="draw it there")
class DrawnWhenMade(_Gained):
    """A parameter is drawn in __init__ only, so that the model's seed does not reach it."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        nn.init.normal_(self.gain, 1.0, 0.1)

    def reset_parameters(self):
        pass


@planted(initialisation="ignores the seed")
class OwnGenerator(_Gained):
    """It draws with a seed of its own, so that every model starts with the same numbers."""

    def reset_parameters(self):
        with torch.no_grad():
            self.gain.copy_(1 + 0.1 * torch.randn(self.dim, generator=torch.Generator().manual_seed(0)))


@planted(initialisation="from torch's own generator")
class DrawnByNumpy(_Gained):
    """It draws with numpy, which the model's seed does not reach."""

    def reset_parameters(self):
        with torch.no_grad():
            self.gain.copy_(torch.as_tensor(1 + 0.1 * numpy.random.default_rng(None).standard_normal(self.dim)))


class _OwnMatrices(MLP):
    """A plain feed-forward that draws its matrices itself."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        del self.up, self.down
        self.first, self.last = nn.Parameter(torch.empty(hidden, dim)), nn.Parameter(torch.empty(dim, hidden))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.first, std=(3 * self.dim) ** -0.5)
        nn.init.normal_(self.last, std=(3 * self.hidden) ** -0.5)

    def forward(self, x):
        return F.linear(F.gelu(F.linear(x, self.first)), self.last)

    def reference(self, x):
        raise NotImplementedError


@planted(trains_language="start with a gradient of zero")
class StartsDead(_OwnMatrices):
    """Both matrices start at zero, so that neither gets a gradient."""

    def reset_parameters(self):
        nn.init.zeros_(self.first)
        nn.init.zeros_(self.last)


@planted(signals_keep_their_size="scale the initial weights")
class StartsHuge(_OwnMatrices):
    """Matrices are drawn with variance one, whatever their width."""

    def reset_parameters(self):
        nn.init.normal_(self.first)
        nn.init.normal_(self.last)


@planted(state_round_trip="right for constants only")
class UnsavedFeatures(MLP):
    """Random features are a buffer that is not saved: after loading they are those of another seed."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.register_buffer("features", torch.empty(dim), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.features)

    def forward(self, x):
        return super().forward(x * self.features)

    def reference(self, x):
        return super().reference(x * self.features)


@planted(state_round_trip="a buffer that is saved")
class LearnsOutsideTheState(MLP):
    """Training moves a number that is neither parameter nor buffer, and that is lost when a model is saved."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        return super().forward(x) * (1 + 0.01 * min(self.steps, 100))


@planted(shapes="raised")
class NeedsTokens(MLP):
    """It scales by the largest number of a batch, which an empty batch does not have."""

    def forward(self, x):
        return super().forward(x) + 0 * x.detach().amax()


@planted(dtypes="widen inside")
class Overflows(MLP):
    """Squares of hidden units are summed in the dtype of the input, in units that overflow float16."""

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        size = (1e3 * hidden).square().mean(-1, keepdim=True).sqrt() / 1e3
        return self.down(hidden / (1 + size))

    def reference(self, x):
        raise NotImplementedError


class _Own(Gated):
    """A gated feed-forward whose gate is a sigmoid."""

    def gate(self, x):
        return torch.sigmoid(x)

    def formula(self, x):
        return 1 / (1 + torch.exp(-x))


@planted(gradients_are_right="detached", reference="gradient is")
class GateWithoutGradient(_Own):
    """The gate is detached, so that it is never learned."""

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.down(self.gate(gate.detach()) * value)


@planted(learns_two_samples="the loss fell", no_token_is_dropped="different results")
class DropsMostInTraining(MLP):
    """It drops nine of ten hidden units in training, although nobody gave it a rate."""

    def forward(self, x):
        return self.down(F.dropout(F.gelu(self.up(x)), 0.9, self.training))


@planted(processes_agree="between one process and two")
class CentresInTraining(MLP):
    """In training it subtracts the mean of the batch, as a batch norm does: two processes have other batches."""

    def forward(self, x):
        return super().forward(x - x.mean(0, keepdim=True).detach() if self.training and x.dim() > 2 else x)
