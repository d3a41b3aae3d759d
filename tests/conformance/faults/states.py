"""Wrong decoding states."""

from dataclasses import replace

from published import Retention, RetentionState, TokenShift

from faults import planted
from zoo.parts.attention import MultiHead
from zoo.parts.cache import PartState


@planted(decoding_is_exact="by turns")
class SharesItsState(Retention):
    """All texts that are decoded at once have one state."""

    def cache(self, capacity, window=None):
        vars(self).setdefault("state", RetentionState())
        return self.state

    def attend_after(self, state, q, k, v, pattern):
        if not pattern.offset:
            state.total = None
        return super().attend_after(state, q, k, v, pattern)


@planted(decoding_is_exact="beams")
class DoesNotSelect(Retention):
    """The state is kept where ``select`` does not find it, and copied for more rows as they come."""

    class State(PartState):
        def __init__(self):
            self.tensors = {"total": None}

        @property
        def total(self):
            return self.tensors["total"]

        @total.setter
        def total(self, value):
            self.tensors["total"] = value

    def cache(self, capacity, window=None):
        return self.State()

    def attend_after(self, state, q, k, v, pattern):
        if state.total is not None:
            copies = -(-len(q) // len(state.total))
            state.total = state.total.repeat(copies, 1, 1, 1)[: len(q)]
        return super().attend_after(state, q, k, v, pattern)


@planted(decoding_is_exact="padded on the left")
class TakesPaddingUp(Retention):
    """Padding is taken up into the state."""

    def attend_after(self, state, q, k, v, pattern):
        return super().attend_after(state, q, k, v, replace(pattern, valid=None))


@planted(decoding="differs by", decoding_is_exact="token by token")
class DoesNotFade(Retention):
    """What is in the state does not fade."""

    def attend_after(self, state, q, k, v, pattern):
        before = state.total
        out = super().attend_after(state, q, k, v, pattern)
        if before is not None:
            state.total = state.total + before * (1 - self.fade(q.new_tensor([[q.size(2)]]), q))
        return out


@planted(decoding_memory_claim="declared constant")
class KeepsEverything(MultiHead):
    """Declares a state of constant size, and keeps all keys and values."""

    decoding_memory = "constant"


@planted(decoding="differs by")
class ForgetsTheTokenBefore(TokenShift):
    """A step of decoding begins without the token before it."""

    def cache(self, capacity, window=None):
        class Forgets(PartState):
            attend = ffn = property(lambda self: None, lambda self, value: None)

        return super().cache(capacity, window)._replace(block=Forgets())
