"""An encoder-decoder."""

from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.decoding_state import Seq2SeqState
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.loss import cross_entropy
from zoo.models.stack import Stack
from zoo.parts.block import Memory
from zoo.parts.cache import Caches
from zoo.parts.few_row_linear import linear
from zoo.parts.packing import Packing
from zoo.parts.position import Extent
from zoo.value_checks import at_least

Tie: TypeAlias = Literal["none", "output", "inputs", "all"]


class EncoderDecoder(nn.Module):
    """What encoder-decoders of text share, whatever their sources are: a subclass builds the modules and encodes."""

    max_length: int
    decoder: Stack
    target_embedding: nn.Embedding
    head: nn.Linear | None
    bias: "TokenBias | None"
    scale: float  # factor on embeddings
    out_scale: float  # factor on what the output reads

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Memory:
        """Sources (B, S, ...), real where ``valid`` (B, S), to what a decoder looks at."""
        raise NotImplementedError

    def decode(self, target: Tensor, memory: Memory, caches: Caches | None = None) -> Tensor:
        """Target tokens (B, T), after those in the caches, to logits (B, T, target_vocab_size)."""
        x = self.decoder(self.target_embedding(target) * self.scale, memory=memory, caches=caches)
        return self.logits(x * self.out_scale)

    def logits(self, states: Tensor) -> Tensor:
        """States (..., dim), as ``states`` gives them, to logits (..., target_vocab_size)."""
        logits = linear(states, self.output)
        return logits if self.bias is None else self.bias(logits)

    def token_loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of -log p(target), (), over states (..., dim) and targets (...), -100 for none."""
        return cross_entropy(states, self.output, targets, None if self.bias is None else self.bias.weight, smoothing)

    @property
    def output(self) -> Tensor:
        """The matrix (target_vocab_size, dim) that turns states into logits."""
        return self.target_embedding.weight if self.head is None else self.head.weight

    def states(
        self, source: Tensor, target: Tensor, source_valid: Tensor | None, packing: Packing | None = None
    ) -> Tensor:
        """What ``logits`` turns into logits: (B, T, dim), or (1, N, dim) by a ``packing`` of the target.

        The target's padding stands on the right, where causality hides it from the tokens.
        """
        memory = self.encode(source, source_valid)
        x = self.decoder(self.target_embedding(target) * self.scale, memory=memory, packing=packing)
        return x * self.out_scale

    def begin(self, source: Tensor, valid: Tensor | None, capacity: int) -> Seq2SeqState:
        """A state for writing up to ``capacity`` tokens for sources (B, S), which are encoded here, once."""
        return Seq2SeqState(self, self.encode(source, valid), capacity)

    def forward(self, source: Tensor, target: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Source (B, S) and target (B, T) to logits (B, T, target_vocab_size)."""
        return self.decode(target, self.encode(source, source_valid))


class Seq2Seq(EncoderDecoder):
    """Logits of the next target token, from a source and the target so far (Vaswani et al., 2017)."""

    tensor_parallel: ClassVar = dict.fromkeys(("source_embedding", "target_embedding", "head", "bias"), "vocabulary")

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int = 1024,
        tie: Tie = "output",
        scale_embedding: bool = True,
        scale_logits: bool = False,
        output_bias: bool = False,
        decoder_depth: int | None = None,
        depth: int = 6,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            source_vocab_size: number of source tokens.
            target_vocab_size: number of target tokens.
            max_length: longest source or target the model is made for.
            tie: which matrices are one: the target embedding and the output, the two embeddings (inputs), or all three.
            scale_embedding: multiply embeddings by sqrt(dim), as in the original Transformer.
            scale_logits: divide what the output reads by sqrt(dim), as T5 does where it is tied.
            output_bias: add a number per target token to the logits, as Marian does.
            decoder_depth: number of decoder blocks; as many as the encoder has unless given.
            depth: number of encoder blocks.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, max_length=max_length)
        at_least(1, depth=depth, decoder_depth=decoder_depth)
        if tie in ("inputs", "all") and source_vocab_size != target_vocab_size:
            raise UsageError(
                f"tie={tie} needs one vocabulary for both sides, got {source_vocab_size} source and "
                f"{target_vocab_size} target tokens. Use tie=output, or data with a shared vocabulary."
            )
        with preserve_rng():
            self.max_length = max_length
            self.encoder = Stack(Extent((max_length,)), cross=False, padded=True, depth=depth, **stack)
            # a decoder needs no mask for its own padding: it stands on the right, where causality hides it
            extent = Extent((max_length,), causal=True)
            self.decoder = Stack(extent, cross=True, padded=False, depth=decoder_depth or depth, **stack)
            self.dim: int = self.encoder.dim
            self.target_embedding = nn.Embedding(target_vocab_size, self.dim)
            shared = tie in ("inputs", "all")
            self.source_embedding = self.target_embedding if shared else nn.Embedding(source_vocab_size, self.dim)
            untied = tie in ("none", "inputs")
            self.head = nn.Linear(self.dim, target_vocab_size, bias=False) if untied else None
            self.bias = TokenBias(target_vocab_size) if output_bias else None
            self.scale = self.dim**0.5 if scale_embedding else 1.0
            self.out_scale = self.dim**-0.5 if scale_logits else 1.0
            initialize(self, seed)

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Memory:
        """Source tokens (B, S) to what a decoder looks at."""
        packing = Packing.of(valid) if self.training else None
        return Memory(self.encoder(self.source_embedding(source) * self.scale, valid, packing=packing), valid, packing)


class TokenBias(nn.Module):
    """A learned number per token, added to its logit."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Zeros."""
        nn.init.zeros_(self.weight)

    def forward(self, logits: Tensor) -> Tensor:
        """(..., vocab_size) to the same shape."""
        return logits + self.weight
