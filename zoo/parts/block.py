"""Blocks: how attention and feed-forward are joined to the stream of tokens that runs through a stack."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from zoo.parts.attention import Attention
from zoo.parts.cache import LayerCache, MemoryCache, PartState
from zoo.parts.ffn import RealTokens
from zoo.parts.norm import Norm
from zoo.parts.packing import Packing
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position
from zoo.system.torch_internals import call_is_altered


class Memory(NamedTuple):
    """What a decoder may look at: states (B, S, dim), and which of them are not padding."""

    states: Tensor
    valid: Tensor | None = None
    packing: Packing | None = None  # the states are packed, (1, N, dim)

    def padded(self) -> "Memory":
        """The same with states that are not packed."""
        return self if self.packing is None else Memory(self.packing.spread(self.states), self.valid)


class Context(NamedTuple):
    """The arguments of one forward of a stack, and how a block calls its parts with them."""

    pattern: Pattern
    position: Position | None = None
    memory: Memory | None = None
    tokens: Tensor | None = None  # (B, T) bool, False at padding
    cache: LayerCache | None = None
    packing: Packing | None = None  # the stream of tokens is packed, (1, N, dim)
    earlier_layers: dict[str, Tensor] | None = None  # what parts of this forward leave for those of later layers

    def attend(self, part: nn.Module, x: Tensor) -> Tensor:
        """Tokens (B, T, dim) look at each other."""
        if self.packing is not None and not getattr(part, "packs", False):
            whole = self._replace(pattern=self.pattern.padded(), packing=None)
            return self.packing.pack(whole.attend(part, self.packing.spread(x)))
        options: dict[str, Any] = {"cache": self.cache and self.cache.own}
        if getattr(part, "reads_earlier_layers", False):
            options["earlier_layers"] = self.earlier_layers
        return part(x, pattern=self.pattern, position=self.position, **options)

    def look(self, part: nn.Module, x: Tensor) -> Tensor:
        """Tokens (B, T, dim) look at the memory."""
        states, valid, packing = cast(Memory, self.memory)
        if (self.packing or packing) and not getattr(part, "packs", False):
            whole = self._replace(memory=cast(Memory, self.memory).padded(), packing=None)
            if self.packing is None:
                return whole.look(part, x)
            return self.packing.pack(whole.look(part, self.packing.spread(x)))
        pattern = Pattern(valid=valid, queries=self.packing, keys=packing)
        return part(x, states, pattern=pattern, cache=self.cache and self.cache.memory)

    def feed(self, part: nn.Module, x: Tensor) -> Tensor:
        """Tokens (B, T, dim) are computed one by one."""
        return part(x, self.tokens) if isinstance(part, RealTokens) else part(x)


Call = Callable[[Context, nn.Module, Tensor], Tensor]


def is_altered(module: nn.Module) -> bool:
    """Whether a call of a module does something else than its class's ``forward``: hooks, an own method."""
    return call_is_altered(module)


class Branch(nn.Module):
    """A part, with the norm and the dropout of its residual branch."""

    def __init__(self, part: nn.Module, norm: nn.Module, dropout: float):
        super().__init__()
        self.part, self.norm, self.dropout = part, norm, nn.Dropout(dropout)


SLOTS = frozenset({"attention", "cross", "ffn"})


class Block(nn.Module):
    """One layer of a stack: self-attention, cross-attention where there is a memory, feed-forward.

    A block is given its parts, and makes the norms that it needs by calling ``norm``. The base gives each part a
    branch; a subclass defines in ``join`` how a branch changes the stream, or overrides ``forward``.

    Rows are padded, one sentence each, unless the class declares ``packs``: then x may be (1, N, dim) in training, with
    the sentences of the batch side by side, and nothing but its parts may carry anything from one token to another.

    A class that uses fewer parts says so in ``slots``: what is not in it is not built, and comes as None.
    """

    kind = "block"
    slots: frozenset[str] = SLOTS  # which of attention, cross (which looks at a memory) and ffn the block uses
    packs = False  # x may be packed: between parts each token is computed alone; a subclass with own code declares it
    closes = True  # the stack normalises what its last block gives
    computes_all = True  # every token; one that selects some says so, and attention then sees these alone
    residual_streams = 1  # with more, x is (B, T, streams, dim) in ``forward``: copies of the stream side by side

    def __init__(
        self,
        attend: Attention | None,
        cross: Attention | None,
        ffn: nn.Module | None,
        norm: Callable[[], Norm],
        dropout: float,
    ):
        super().__init__()
        self.attend = Branch(attend, norm(), dropout) if attend is not None else None
        self.cross = Branch(cross, norm(), dropout) if cross is not None else None
        self.ffn = Branch(ffn, norm(), dropout) if ffn is not None else None

    def cache(self, capacity: int, window: int | None = None) -> LayerCache:
        """Empty decoding states for ``capacity`` tokens: that of its first attention, and one of its memory.

        A subclass that remembers something itself adds it as ``LayerCache.block`` and finds it in
        ``context.cache.block``.
        """
        attention = next((part for part in self.modules() if isinstance(part, Attention)), None)
        return LayerCache(PartState() if attention is None else attention.cache(capacity, window), MemoryCache())

    def steps(self, context: Context) -> Iterator[tuple[Branch, Call]]:
        """The branches in their order, and how the part of each is called."""
        if self.attend is not None:
            yield self.attend, Context.attend
        if self.cross is not None and context.memory is not None:
            yield self.cross, Context.look
        if self.ffn is not None:
            yield self.ffn, Context.feed

    def join(self, x: Tensor, branch: Branch, call: Call, context: Context) -> Tensor:
        """The stream x (B, T, dim), or the streams (B, T, streams, dim), after one branch."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x (B, T, dim), or (B, T, streams, dim), to the same shape."""
        for branch, call in self.steps(context):
            x = self.join(x, branch, call, context)
        return x

    @classmethod
    def through(cls, blocks: Sequence["Block"], x: Tensor, contexts: Sequence[Context]) -> Tensor:
        """x (B, T, dim) through all blocks of a stack; a subclass may keep less for the backward pass."""
        for block, context in zip(blocks, contexts, strict=True):
            x = block(x, context)
        return x


class PreNorm(Block):
    """Normalised in front of each part: x + scale * part(norm(x)) (Xiong et al., 2020).

    Paper: On Layer Normalization in the Transformer Architecture, Xiong et al., 2020.
    """

    packs = True
    scale = 1.0

    def __init__(
        self,
        attend: Attention | None,
        cross: Attention | None,
        ffn: nn.Module | None,
        norm: Callable[[], Norm],
        dropout: float,
        scale: float = 1.0,
        attention_norm: bool = True,
    ):
        """
        Args:
            scale: factor on what each part gives (Granite).
            attention_norm: normalise in front of self-attention; ModernBERT's first layer, whose input is normalised
                already, does not.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        self.scale = scale
        if self.attend is not None and not attention_norm:
            self.attend.norm = nn.Identity()

    def join(self, x, branch, call, context):
        """x (B, T, dim) + scale * part(norm(x)), shaped like x."""
        out = branch.dropout(call(context, branch.part, branch.norm(x)))
        return x + (out if self.scale == 1 else out * self.scale)


class PostNorm(Block):
    """Normalised after each sum: norm(x + part(x)) (Vaswani et al., 2017).

    Paper: Attention Is All You Need, Vaswani et al., 2017.
    """

    closes = False
    packs = True

    def join(self, x, branch, call, context):
        """norm(x + part(x)) of x (B, T, dim), shaped like x."""
        return branch.norm(x + branch.dropout(call(context, branch.part, x)))


class Sandwich(Block):
    """Normalised in front of each part and behind it: x + norm'(part(norm(x))) (Ding et al., 2021).

    Without the norm in ``front`` it is x + norm'(part(x)), the block of Swin 2 and OLMo 2.
    """

    packs = True

    def __init__(
        self,
        attend: Attention | None,
        cross: Attention | None,
        ffn: nn.Module | None,
        norm: Callable[[], Norm],
        dropout: float,
        front: bool = True,
    ):
        """
        Args:
            front: normalise in front of each part too.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        for branch in (self.attend, self.cross, self.ffn):
            if branch is not None:
                branch.behind = norm()
                branch.norm = branch.norm if front else nn.Identity()

    def join(self, x, branch, call, context):
        """x (B, T, dim) + norm'(part(norm(x))), shaped like x."""
        return x + branch.dropout(branch.behind(call(context, branch.part, branch.norm(x))))


class Parallel(Block):
    """All parts read the same normalised stream: y = norm(x), x + attention(y) + ffn(y) (Chowdhery et al., 2022).

    With ``own_norms`` each part has a norm of its own: x + attention(norm(x)) + ffn(norm'(x)) (GPT-NeoX).
    """

    packs = True

    def __init__(
        self,
        attend: Attention | None,
        cross: Attention | None,
        ffn: nn.Module | None,
        norm: Callable[[], Norm],
        dropout: float,
        own_norms: bool = False,
    ):
        """
        Args:
            own_norms: a norm for each part instead of one for all.
        """
        nn.Module.__init__(self)  # not Block's: there may be one norm for all branches
        branch_norm: Callable[[], nn.Module] = norm if own_norms else nn.Identity
        self.norm = nn.Identity() if own_norms else norm()
        self.attend = Branch(attend, branch_norm(), dropout) if attend is not None else None
        self.cross = Branch(cross, branch_norm(), dropout) if cross is not None else None
        self.ffn = Branch(ffn, branch_norm(), dropout) if ffn is not None else None

    def forward(self, x, context):
        """x (B, T, dim) + the sum of all parts of norm(x), shaped like x."""
        y = self.norm(x)
        return x + sum(
            branch.dropout(call(context, branch.part, branch.norm(y))) for branch, call in self.steps(context)
        )
