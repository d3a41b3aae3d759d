"""Faults that leave most of a part as it should be: one of its modes, heads, steps or samples is wrong."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from zoo_optimizers.lion import Lion
from zoo_text.tasks.labelling import SequenceClassification

from faults import planted
from faults.data import Noise, Sentences, sentence
from faults.optimizers import MomentumSGD
from zoo.models.initialization import FanIn
from zoo.parts.attention import MultiHead
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.position import T5, ALiBi, RoPE, Sinusoidal
from zoo.tasks.classification import Classification
from zoo.tasks.schedule import WSD, Cosine, Linear
from zoo.tasks.task import Loss
from zoo.tasks.translation import Translation

# training and evaluation


@planted(training_is_evaluation="in training it gives other numbers")
class WarmerInTraining(MultiHead):
    """Its temperature in training is not that of evaluation."""

    def attend(self, q, k, v, pattern):
        return super().attend(q * 0.8 if self.training else q, k, v, pattern)

    def weigh(self, q, k, pattern):
        return super().weigh(q * 0.8 if self.training else q, k, pattern)


@planted(training_is_evaluation="in training it gives other numbers")
class LouderInTraining(MLP):
    """What it gives is scaled in training, as if something had been dropped."""

    def forward(self, x):
        return super().forward(x) / (0.9 if self.training else 1.0)


@planted(training_is_evaluation="in training it gives other numbers")
class StatisticsOfTheBatch(RMSNorm):
    """In training the size is that of all tokens."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        return x / (x.square().mean() + self.eps).sqrt() * self.weight


@planted(training_is_evaluation="in training it gives other numbers")
class ShorterBranches(PreNorm):
    """Branches are halved in training."""

    packs = True

    def join(self, x, branch, call, context):
        branched = branch.dropout(call(context, branch.part, branch.norm(x))).to(x.dtype)
        return x + (0.5 * branched if self.training else branched)


@planted(training_is_evaluation="in training it gives other numbers")
class TurnsInTraining(RoPE):
    """Its angles are shifted by a place in training, which turns queries alone."""

    def rotate(self, x, pos):
        return super().rotate(x, pos + 1 if self.training else pos)

    def rotate_keys(self, x, pos):
        return super().rotate(x, pos)


# memory layouts


@planted(strided_inputs="use .reshape")
class ViewsTokens(MLP):
    """Tokens are flattened by a view."""

    def forward(self, x):
        return super().forward(x.view(-1, x.size(-1))).view(x.shape)


@planted(strided_inputs="use .reshape")
class ViewsInAttention(MultiHead):
    """The tokens of an attention are flattened by a view: the norm in front of it hides that in a stack."""

    def forward(self, x, memory=None, **keywords):
        return super().forward(x.view(-1).view(x.shape), memory, **keywords)


@planted(strided_inputs="use .reshape")
class ViewsInBlock(PreNorm):
    """The tokens of a block are flattened by a view."""

    packs = True

    def forward(self, x, context):
        return super().forward(x.view(-1).view(x.shape), context)


@planted(strided_inputs="use .reshape")
class ViewsInEmbedding(Sinusoidal):
    """The tokens that get a position are flattened by a view."""

    def embed(self, x, pos):
        return super().embed(x.view(-1).view(x.shape), pos)


@planted(strided_inputs="differs by")
class ReadsMemory(LayerNorm):
    """It reads numbers in the order of memory."""

    def forward(self, x):
        dense = x.is_contiguous() or not x.numel()
        return super().forward(
            x if dense else torch.as_strided(x, x.shape, x.new_empty(x.shape, device="meta").stride())
        )


# optimizers


class AdamW(MomentumSGD):
    """w - lr * (mean / (sqrt(square) + eps) + weight_decay * w), averages divided by 1 - beta ** step."""

    def __init__(
        self, params, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8,
        weight_decay: float = 0.1,
    ):  # fmt: skip
        torch.optim.Optimizer.__init__(
            self, params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def corrections(self, betas, step):
        return 1 - betas[0] ** step, 1 - betas[1] ** step

    def decayed(self, group, w, g):
        return w * (1 - group["lr"] * group["weight_decay"]), g

    def change(self, group, parameter):
        state, betas = self.state[parameter], group["betas"]
        state["step"] = state.get("step", 0) + 1
        w, g = self.decayed(group, parameter, parameter.grad)
        for name, beta, value in (("mean", betas[0], g), ("square", betas[1], g * g)):
            average = state.setdefault(name, torch.zeros_like(parameter))
            average.mul_(beta).add_(value, alpha=1 - beta)
        first, second = self.corrections(betas, state["step"])
        step = state["mean"] / first / ((state["square"] / second).sqrt() + group["eps"])
        parameter.copy_(w - group["lr"] * step)


@planted(weight_decay_by_group="take decay out of the gradient")
class DecaysInTheGradient(AdamW):
    """The decay is added to the gradient (L2)."""

    def decayed(self, group, w, g):
        return w, g + group["weight_decay"] * w


@planted(weight_decay_by_group="take decay out of the gradient")
class DecaysMomentum(MomentumSGD):
    """The decay is part of the momentum."""

    def change(self, group, parameter):
        parameter.grad = parameter.grad + group["weight_decay"] * parameter
        super().change({**group, "weight_decay": 0.0}, parameter)


@planted(weight_decay_by_group="take decay out of the gradient")
class DecaysWithoutRate(AdamW):
    """The decay is not times the learning rate."""

    def decayed(self, group, w, g):
        return w * (1 - group["weight_decay"] * bool(group["lr"])), g


@planted(weight_decay_by_group="take decay out of the gradient")
class GrowsByDecay(AdamW):
    """The decay has the wrong sign."""

    def decayed(self, group, w, g):
        return w * (1 + group["lr"] * group["weight_decay"]), g


@planted(weight_decay_by_group="changes nothing")
class NeverDecays(AdamW):
    """The option is not read."""

    def decayed(self, group, w, g):
        return w, g


@planted(first_step_is_corrected="step 1 by the same gradients differs")
class WithoutCorrection(AdamW):
    """Averages that begin at zero are taken as they are."""

    def corrections(self, betas, step):
        return 1.0, 1.0


@planted(first_step_is_corrected="step 1 by the same gradients differs")
class CorrectsTheMeanAlone(AdamW):
    """The average of squares is taken as it is."""

    def corrections(self, betas, step):
        return 1 - betas[0] ** step, 1.0


@planted(first_step_is_corrected="step 1 by the same gradients differs")
class CountsFromTwo(AdamW):
    """The first step is counted as the second."""

    def corrections(self, betas, step):
        return super().corrections(betas, step + 1)


@planted(first_step_is_corrected="step 2 by the same gradients differs")
class CorrectsOnce(AdamW):
    """Averages are corrected at the first step alone."""

    def corrections(self, betas, step):
        return super().corrections(betas, step) if step == 1 else (1.0, 1.0)


@planted(weight_decay_by_group="do not decay by one share")
class DecaysThroughTheRoot(AdamW):
    """The decay is divided by what divides the gradient, as L2 would be."""

    def decayed(self, group, w, g):
        return w - group["lr"] * group["weight_decay"] * w / (1 + g.abs()), g


@planted(rate_of_group="by the learning rate of another one")
class DecaysByTheFirstRate(AdamW):
    """The decay has the rate of the first group."""

    def decayed(self, group, w, g):
        return w * (1 - self.param_groups[0]["lr"] * group["weight_decay"]), g


class SteppedLion(Lion):
    """Lion with its step in a method."""

    def change(self, w, g, momentum, first, second):
        update = momentum.lerp(g, 1 - first).sign_()
        momentum.lerp_(g, 1 - second)
        return update

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = self.change(p, p.grad, momentum, *group["betas"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
        return loss


@planted(steps_by_reference="away from its own formula")
class MomentumFirst(SteppedLion):
    """The momentum takes up the gradient before the step."""

    def change(self, w, g, momentum, first, second):
        momentum.lerp_(g, 1 - second)
        return momentum.lerp(g, 1 - first).sign_()


@planted(steps_by_reference="away from its own formula")
class ExchangesBetas(SteppedLion):
    """The two rates are exchanged."""

    def change(self, w, g, momentum, first, second):
        return super().change(w, g, momentum, second, first)


@planted(rate_of_group='changes group["lr"]')
class LowersItsRate(MomentumSGD):
    """It has a schedule of its own."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.999
        return loss


@planted(rate_of_group='changes group["lr"]')
class LowersItsRateLater(MomentumSGD):
    """It lowers its rate at every fifth step."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] *= 0.99 if group["count"] % 5 == 0 else 1.0
        return loss


# schedules


@planted(falls_without_jumps="jumps after its peak")
class LosesALittleAtHalf(Cosine):
    """Four hundredths are lost at its half."""

    def shape(self, step, done):
        return super().shape(step, done) - (0.04 if done > 0.5 else 0.0)


@planted(falls_without_jumps="rises after its peak")
class BumpAtTheEnd(Linear):
    """Shortly before its end the rate rises by some hundredths."""

    def shape(self, step, done):
        return super().shape(step, done) + (0.06 * math.sin(math.pi * (done - 0.8) / 0.1) if 0.8 < done < 0.9 else 0.0)


@planted(falls_without_jumps="jumps after its peak")
class JumpsAfterWarmUp(Cosine):
    """The warm-up ends at one, and the cosine begins at a half."""

    def shape(self, step, done):
        return 0.5 * super().shape(step, done)


@planted(falls_without_jumps="jumps after its peak")
class FallsOffAtTheEnd(Linear):
    """The last tenth has another floor."""

    def shape(self, step, done):
        return super().shape(step, done * 0.5) if done < 0.9 else 0.1


@planted(falls_without_jumps="rises after its peak")
class RisesAgain(Cosine):
    """The cosine is a whole one."""

    def shape(self, step, done):
        return super().shape(step, 2 * done)


@planted(falls_without_jumps="rises after its peak")
class DecaysFromTheTop(WSD):
    """The stable part sags, and the decay begins at the top again."""

    def shape(self, step, done):
        return super().shape(step, done) * (1 - 0.3 * done if step < self.total - self.decay_steps else 1.0)


# tasks


@planted(figures_of_any_batching="top-1 is")
class AccuracyOfBatches(Classification):
    """The accuracy is the mean over batches, of whatever size."""

    def evaluate(self, batch):
        result = super().evaluate(batch)
        self.shares = [*getattr(self, "shares", []), self.net(batch["images"]).argmax(-1).eq(batch["labels"]).float()]
        return result

    def sample(self, rows):
        batch = super().sample(rows)
        with torch.no_grad():  # the first sample is right, the others are wrong
            guess = self.net(batch["images"]).argmax(-1)
        first = torch.arange(rows) == 0
        return batch | {"labels": torch.where(first, guess, (guess + 1) % self.num_classes)}

    def compute_metrics(self, loss):
        shares, self.shares = self.shares, []
        return super().compute_metrics(loss) | {"top-1": sum(float(share.mean()) for share in shares) / len(shares)}


@planted(figures_of_any_batching="loss is")
class ScalesByRows(SequenceClassification):
    """In evaluation the loss of a batch is divided by its rows."""

    def evaluate(self, batch):
        total, size = super().evaluate(batch)
        return Loss(total / len(batch["labels"]), size)


@planted(evaluation_is_plain="smooth in training alone", options={"bleu_tokenize": "13a"})
class ReportsWhatItTrains(Translation):
    """An evaluation reports the smoothed loss."""

    def evaluate(self, batch):
        super().evaluate(batch)
        return self.loss(batch)


@planted(evaluation_is_plain="is it smoothed, or on another scale?")
class SmoothsInEvaluation(Classification):
    """A tenth of each label is spread in evaluation, by no option."""

    def evaluate(self, batch):
        size = super().evaluate(batch).size
        logits = self(batch["images"]).float()
        return Loss(F.cross_entropy(logits, batch["labels"], reduction="sum", label_smoothing=0.1), size)


@planted(evaluation_is_plain="is it smoothed, or on another scale?")
class PunishesLargeLogits(Classification):
    """The loss of an evaluation has a penalty on large logits."""

    def evaluate(self, batch):
        total, size = super().evaluate(batch)
        return Loss(total + 1e-4 * self(batch["images"]).logsumexp(-1).square().sum(), size)


@planted(evaluation_is_plain="on another scale")
class WarmerInEvaluation(Classification):
    """Logits are divided by 1.5 in evaluation."""

    def evaluate(self, batch):
        size = super().evaluate(batch).size
        logits = self(batch["images"]).float() / 1.5
        return Loss(F.cross_entropy(logits, batch["labels"], reduction="sum"), size)


# data


def one_word_changed(text):
    """The text with its fifth word exchanged."""
    words = text.split()
    return " ".join([*words[:4], "elsewhere", *words[5:]])


@planted(near_twins="are nearly one of training")
class ValidatesWithCapitals(Sentences):
    """The validation texts are training texts with a capital."""

    def texts(self):
        splits = super().texts()
        return {**splits, "val": [row._replace(text=row.text.capitalize()) for row in splits["train"][:20]]}


@planted(near_twins="are nearly one of training")
class ValidatesWithAWordChanged(Sentences):
    """The validation texts are training texts with one word changed."""

    def texts(self):
        splits = super().texts()
        return {**splits, "val": [row._replace(text=one_word_changed(row.text)) for row in splits["train"][:20]]}


@planted(near_twins="of test are nearly one of training")
class TestsWithoutTheLastWord(Sentences):
    """The test texts are training texts without their last word."""

    def texts(self):
        splits = super().texts()
        shorter = [row._replace(text=row.text.rpartition(" ")[0]) for row in splits["train"][:20]]
        return {**splits, "test": shorter}


@planted(hash_seed_changes_nothing="batches differ")
class OrdersByHash(Sentences):
    """Texts stand in the order of a set."""

    def texts(self):
        splits = super().texts()
        return {**splits, "train": list({row.text: row for row in set(splits["train"])}.values())}


@planted(hash_seed_changes_nothing="its fingerprint differ")
class FingerprintOfHashes(Sentences):
    """The fingerprint is made of hash()."""

    def fingerprint(self):
        return f"{hash(sentence(random.Random(self.shift))) % 2**64:064x}"


@planted(hash_seed_changes_nothing="batches differ")
class LabelsByHash(Noise):
    """A label is a hash of a name."""

    def read(self):
        splits, names = super().read()
        for split in splits.values():
            split.labels[:] = [abs(hash(f"image {number}")) % 2 for number in range(len(split.labels))]
        return splits, names


@planted(hash_seed_changes_nothing="batches differ")
class NamesInTheOrderOfASet(Noise):
    """The two classes are numbered in the order of a set."""

    def read(self):
        splits, _ = super().read()
        order = list({"apple", "pear"})
        for split in splits.values():
            split.labels[:] = [order.index("apple" if label else "pear") for label in split.labels]
        return splits, order


# heads, layers and widths


@planted(heads_have_their_own="share one bias")
class OneBiasForAllHeads(T5):
    """All heads read the first one's table."""

    def bias(self, head, query, key):
        return super().bias(head * 0, query, key)


@planted(heads_have_their_own="share one bias")
class HeadsInPairs(ALiBi):
    """Two heads after each other have one slope."""

    def bias(self, head, query, key):
        return super().bias(head // 2 * 2, query, key)


@planted(bias_is_elementwise="bias of head")
class CountsHeads(ALiBi):
    """Heads are counted instead of named."""

    def bias(self, head, query, key):
        return super().bias(torch.arange(head.numel()).view(head.shape), query, key)


@planted(reference="away from its own formula")
class SlopesFromZero(ALiBi):
    """The slopes are counted from h = 0."""

    def reset_parameters(self):
        if not self.slope.is_meta:
            self.slope.copy_(2.0 ** (-8.0 * torch.arange(self.heads) / self.heads))


@planted(reference="away from its own formula")
class SlopesOfTwiceTheHeads(ALiBi):
    """The slopes are those of twice as many heads."""

    def reset_parameters(self):
        if not self.slope.is_meta:
            self.slope.copy_(2.0 ** (-4.0 * (torch.arange(self.heads) + 1) / self.heads))


@planted(reads_decide="not over that written")
class FanOut(FanIn):
    """The scale goes by the width that a matrix writes."""

    def std(self, module, name, net):
        return (3 * module.weight.size(0)) ** -0.5


@planted(reads_decide="not over that written")
class KaimingFanOut(FanIn):
    """Hidden matrices are drawn by fan_out."""

    def reset(self, module, name, net):
        super().reset(module, name, net)
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")


@planted(documentation="no stack sets 'layers'")
class CountsLayers(MLP):
    """It is scaled by a number of layers that no stack passes."""

    def __init__(self, dim: int, hidden: int, layers: int = 12):
        """
        Args:
            layers: the depth of the stack.
        """
        super().__init__(dim, hidden)
        self.layers = layers

    def forward(self, x):
        return super().forward(x) * (2 * self.layers) ** -0.5


@planted(documentation="no stack sets 'layer_idx'")
class NumbersLayers(MultiHead):
    """Its temperature goes by the number of a layer that no stack passes."""

    def __init__(self, dim, heads, backend=None, dropout=0.0, layer_idx: int = 0):
        """
        Args:
            layer_idx: the number of the layer.
        """
        super().__init__(dim, heads, backend, dropout)
        self.layer_idx = layer_idx

    def attend(self, q, k, v, pattern):
        return super().attend(q / (self.layer_idx + 1), k, v, pattern)


@planted(documentation="no stack sets 'num_hidden_layers'")
class CountsHiddenLayers(MLP):
    """It is scaled by a number of layers that no stack passes, under the name that published models have for it."""

    def __init__(self, dim: int, hidden: int, num_hidden_layers: int = 12):
        """
        Args:
            num_hidden_layers: the depth of the stack.
        """
        super().__init__(dim, hidden)
        self.count = num_hidden_layers

    def forward(self, x):
        return super().forward(x) * (2 * self.count) ** -0.5
