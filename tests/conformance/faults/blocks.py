"""Wrong blocks."""

from collections.abc import Sequence
from dataclasses import replace

from torch.utils.checkpoint import checkpoint

from faults import planted
from zoo.parts.block import Block, Context, PreNorm
from zoo.parts.pattern import Pattern


@planted(the_stream_is_kept="add the branch to its input")
class NoResidual(PreNorm):
    """A branch replaces the stream."""

    def join(self, x, branch, call, context):
        return branch.dropout(call(context, branch.part, branch.norm(x)))


@planted(the_stream_is_kept="closes = False")
class NormalisesStream(PreNorm):
    """The normalised stream is what the branch is added to."""

    def join(self, x, branch, call, context):
        x = branch.norm(x)
        return x + branch.dropout(call(context, branch.part, x))


@planted(gradients_are_right="detached")
class StreamDetached(PreNorm):
    """The stream passes without its gradient."""

    def join(self, x, branch, call, context):
        return x.detach() + branch.dropout(call(context, branch.part, branch.norm(x)))


@planted(every_branch_counts="cross-attention changes nothing", memory="looked at", trains_translation="reaches")
class IgnoresMemory(PreNorm):
    """The cross-attention is not run."""

    def steps(self, context):
        yield self.attend, Context.attend
        yield self.ffn, Context.feed


@planted(every_branch_counts="parts ran")
class AttendsTwice(PreNorm):
    """Attention is run twice, once for nothing."""

    def join(self, x, branch, call, context):
        call(context, branch.part, branch.norm(x))
        return super().join(x, branch, call, context)


@planted(every_branch_counts="feed-forward changes nothing")
class ForgetsFeedForward(PreNorm):
    """The feed-forward runs and is not added."""

    def join(self, x, branch, call, context):
        out = super().join(x, branch, call, context)
        return x + 0 * out if branch is self.ffn else out


@planted(dropout="made and never used")
class ForgetsDropout(PreNorm):
    """The dropout of the feed-forward is not applied."""

    def join(self, x, branch, call, context):
        out = call(context, branch.part, branch.norm(x))
        return x + (out if branch is self.ffn else branch.dropout(out))


@planted(dropout="falls on the stream itself")
class DropsTheStream(PreNorm):
    """Dropout falls on the sum, and so on the stream itself."""

    def join(self, x, branch, call, context):
        return branch.dropout(x + call(context, branch.part, branch.norm(x)))


@planted(dropout="dropouts, fewer than")
class MakesNoDropout(PreNorm):
    """It ignores the rate of dropout."""

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, norm, 0.0)


class _Calls(PreNorm):
    """A block whose calls of its parts a subclass changes."""

    def changed(self, context):
        """The context that its attention sees."""
        return context

    def looked(self, context):
        """The context that its cross-attention sees."""
        return context

    def join(self, x, branch, call, context):
        if branch is self.attend:
            context = self.changed(context)
        elif branch is self.cross:
            context = self.looked(context)
        return super().join(x, branch, call, context)


@planted(causality_by_perturbation="see the future")
class ForgetsPattern(_Calls):
    """Attention gets a pattern of its own, without causality."""

    def changed(self, context):
        return context._replace(pattern=replace(context.pattern, causal=False))


@planted(padding="Mask padding")
class ForgetsPadding(_Calls):
    """Attention gets the pattern without which tokens are real."""

    def changed(self, context):
        return context._replace(pattern=replace(context.pattern, valid=None))


@planted(context_is_passed_on="the position scheme does not reach attention")
class ForgetsPosition(_Calls):
    """Attention is not told the position scheme, so that queries are not turned."""

    def changed(self, context):
        return context._replace(position=None)


@planted(context_is_passed_on="the bias of a position scheme does not reach")
class ForgetsBias(_Calls):
    """Attention gets a pattern without the bias of the position scheme."""

    def changed(self, context):
        return context._replace(pattern=replace(context.pattern, bias=None))


@planted(decoding="differs by")
class ForgetsCache(_Calls):
    """Attention gets no cache."""

    def changed(self, context):
        return context._replace(cache=None)


@planted(memory="padding of a memory")
class MemoryUnmasked(_Calls):
    """Cross-attention is not told which states of the memory are real."""

    def looked(self, context):
        return context._replace(memory=context.memory._replace(valid=None))


@planted(memory="no order in time")
class MemoryIsCausal(PreNorm):
    """Cross-attention gets the causal pattern of self-attention."""

    def look(self, context, part, x):
        states, valid, _ = context.memory
        pattern = Pattern(causal=True, valid=valid, offset=context.pattern.offset)
        return part(x, states, pattern=pattern, cache=context.cache and context.cache.memory)

    def steps(self, context):
        for branch, call in super().steps(context):
            yield branch, (lambda c, part, x: self.look(c, part, x)) if call is Context.look else call


@planted(context_is_passed_on="call it by context.feed")
class FeedsPadding(PreNorm):
    """The feed-forward is called without which tokens are real."""

    def steps(self, context):
        for branch, call in super().steps(context):
            yield branch, (lambda c, part, x: part(x)) if call is Context.feed else call


@planted(every_parameter_learns="unused parameter")
class NormUnused(PreNorm):
    """The norm in front of the feed-forward is made and not used."""

    def join(self, x, branch, call, context):
        return x + branch.dropout(call(context, branch.part, x if branch is self.ffn else branch.norm(x)))


@planted(every_branch_counts="parts ran")
class SkipsLastBlock(PreNorm):
    """The last block of a stack does not run."""

    @classmethod
    def through(cls, blocks: Sequence[Block], x, contexts):
        return super().through(blocks[:-1] or blocks, x, contexts[:-1] or contexts)


@planted(decoding="expected: Token by token")
class OneContextForAll(PreNorm):
    """All blocks get the context of the first, and with it its cache."""

    @classmethod
    def through(cls, blocks: Sequence[Block], x, contexts):
        return super().through(blocks, x, [contexts[0]] * len(blocks))


@planted(copies="Keep no lambda on self")
class KeepsLambda(PreNorm):
    """It keeps the function that makes norms."""

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.make = lambda: norm()


@planted(gradients_are_right="draw the same random numbers")
class ForgetsRandomNumbers(PreNorm):
    """Blocks are computed again in the backward pass, with other random numbers."""

    def forward(self, x, context):
        return checkpoint(super().forward, x, context, use_reentrant=False, preserve_rng_state=False)


@planted(side_losses_survive="side loss")
class LosesSideLosses(PreNorm):
    """The feed-forward runs without a graph, and is computed again for its gradient by hand."""

    def join(self, x, branch, call, context):
        out = super().join(x, branch, call, context)
        for module in branch.part.modules():
            if getattr(module, "aux_loss", None) is not None:
                module.aux_loss = module.aux_loss.detach()
        return out


@planted(parts_are_those_given="attentions, not 4")
class HidesParts(PreNorm):
    """Its cross-attention is kept in a list, where no module is seen."""

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, norm, dropout)
        if cross is not None:
            self.hidden = [self.cross]
            del self.cross
            self.cross = None

    def steps(self, context):
        yield self.attend, Context.attend
        for branch in getattr(self, "hidden", []) if context.memory is not None else []:
            yield branch, Context.look
        yield self.ffn, Context.feed


@planted(batch_independence="rows must not mix")
class ScalesByBatch(PreNorm):
    """The stream is divided by its size over the batch."""

    def forward(self, x, context):
        out = super().forward(x, context)
        return out / (1 + out.detach().square().mean() if out.numel() else 1)


@planted(signals_keep_their_size="scale the initial weights")
class ExplodingStream(PreNorm):
    """Each branch is added three times as large to a stream that is doubled."""

    def join(self, x, branch, call, context):
        return 2 * x + 3 * branch.dropout(call(context, branch.part, branch.norm(x)))
