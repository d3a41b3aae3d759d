"""Wrong mixtures of experts."""

import torch
import torch.nn.functional as F

from faults import planted
from zoo.parts.ffn import MoE, aux_losses, leave_loss, losses_apart


def mixed(part, tokens, weight, choice):
    """The weighted sum of the chosen experts."""
    out = torch.zeros_like(tokens)
    for number, expert in enumerate(part.experts):
        row, slot = (choice == number).nonzero(as_tuple=True)
        out = out.index_add(0, row, expert(tokens[row]).to(tokens.dtype) * weight[row, slot, None].to(tokens.dtype))
    return out


class _Routed(MoE):
    """A mixture whose choice a subclass changes."""

    def choose(self, tokens):
        """Weights and numbers of the chosen experts, (tokens, top_k) each."""
        weight, choice = self.route(tokens).topk(self.top_k, -1)
        return weight / weight.sum(-1, keepdim=True), choice

    def forward(self, x):
        tokens = x.reshape(-1, self.dim)
        weight, choice = self.choose(tokens)
        if self.training:
            probability = self.route(tokens)
            share = F.one_hot(choice, len(self.experts)).sum((0, 1)) / max(1, choice.numel())
            leave_loss(self, self.aux_loss_weight * len(self.experts) * (share * probability.mean(0)).sum())
        return mixed(self, tokens, weight, choice).view_as(x)


@planted(no_token_is_dropped="were dropped", token_by_token="work on the last dimension alone")
class Capacity(_Routed):
    """Experts take a quarter of the tokens at most, and the rest are dropped."""

    def choose(self, tokens):
        weight, choice = super().choose(tokens)
        one = F.one_hot(choice, len(self.experts)).flatten(0, 1)
        turn = (one.cumsum(0) * one).sum(-1).view_as(choice)
        return weight * (turn <= max(1, len(tokens) // 4)), choice


@planted(reference="away from its own formula")
class NotRenormalised(_Routed):
    """The probabilities of the chosen experts are not divided by their sum."""

    def choose(self, tokens):
        return self.route(tokens).topk(self.top_k, -1)


@planted(batch_independence="rows must not mix")
class ExpertsChoose(_Routed):
    """Experts choose their tokens: a token's experts depend on the other tokens."""

    def choose(self, tokens):
        probability = self.route(tokens)
        rows_of_experts = probability.topk(max(1, len(tokens) // 2), 0).indices if len(tokens) else probability.long()
        mine = torch.zeros_like(probability).scatter(0, rows_of_experts, 1.0) * probability
        weight, choice = mine.topk(self.top_k, -1)
        return weight / weight.sum(-1, keepdim=True).clamp(min=1e-9), choice


@planted(gradients_are_right="detached", reference="gradient is")
class RouterWithoutGradient(_Routed):
    """The weights of the experts are detached: only the side loss teaches the router."""

    def choose(self, tokens):
        weight, choice = super().choose(tokens)
        return weight.detach(), choice


@planted(many_tokens="must decide in float32")
class RoutesInHalf(_Routed):
    """The router computes in bfloat16, where many experts are equally likely."""

    def route(self, tokens):
        return F.linear(tokens, self.router.weight).softmax(-1)


@planted(evaluation_is_deterministic="noise is on in eval")
class NoisyRouter(_Routed):
    """The noise that spreads tokens over experts in training is on in evaluation."""

    def route(self, tokens):
        wide = F.linear(tokens.float(), self.router.weight.float())
        return (wide + torch.randn_like(wide)).softmax(-1).to(torch.promote_types(tokens.dtype, torch.float32))


@planted(every_parameter_learns="with a single token no gradient reaches")
class SkipsIdleExperts(MoE):
    """An expert without tokens does not run, and two processes wait for its gradients."""

    def forward(self, x):
        tokens = x.reshape(-1, self.dim)
        weight, choice = self.route(tokens).topk(self.top_k, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(tokens)
        for number in choice.unique().tolist():
            row, slot = (choice == number).nonzero(as_tuple=True)
            out = out.index_add(0, row, self.experts[number](tokens[row]) * weight[row, slot, None])
        return out.view_as(x)


class _OtherLoss(MoE):
    """A mixture whose side loss a subclass changes."""

    def change_loss(self, loss):
        """The side loss that it leaves."""
        return loss

    def forward(self, x):
        with losses_apart(self):
            out, losses = super().forward(x), aux_losses(self)
        for loss in losses:
            leave_loss(self, self.change_loss(loss))
        return out


@planted(aux_loss="it is detached")
class SideLossDetached(_OtherLoss):
    """The side loss is detached, as one that is only logged."""

    def change_loss(self, loss):
        return loss.detach()


@planted(aux_loss="without dimensions")
class SideLossPerExpert(_OtherLoss):
    """The side loss is one number per expert."""

    def change_loss(self, loss):
        return loss.expand(len(self.experts))


@planted(aux_loss="is not finite")
class SideLossOfLogs(_OtherLoss):
    """The side loss is the logarithm of a share that may be zero."""

    def change_loss(self, loss):
        return loss - (loss.detach() - loss.detach()).log()


@planted(aux_loss="the mean over its calls")
class SideLossOfTheLastCall(MoE):
    """The side loss of the last call replaces those of the calls before."""

    def forward(self, x):
        self.aux_loss = None
        return super().forward(x)


@planted(aux_loss="the mean over its calls")
class SideLossKept(MoE):
    """The side loss of the first call stays."""

    def forward(self, x):
        loss_before, out = self.aux_loss, super().forward(x)
        if loss_before is not None:
            self.aux_loss = loss_before
        return out


@planted(aux_loss="computed in evaluation")
class SideLossInEvaluation(MoE):
    """The side loss is computed in evaluation too."""

    def forward(self, x):
        if not self.training:
            leave_loss(self, self.route(x.reshape(-1, self.dim)).square().mean())
        return super().forward(x)


@planted(side_loss_of_real_tokens="set real_tokens = True")
class BalancesPadding(MoE):
    """It does not ask for real tokens, so that padding takes part in the side loss."""

    real_tokens = False


@planted(autocast="index_add")
class MixesDtypes(_Routed):
    """What experts give is not brought to the dtype of the sum, which autocast makes another."""

    def forward(self, x):
        tokens = x.reshape(-1, self.dim)
        weight, choice = self.choose(tokens)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, slot = (choice == number).nonzero(as_tuple=True)
            result = expert(tokens[row])
            out = out.index_add(0, row, result * weight[row, slot, None].to(result.dtype))
        return out.view_as(x)
