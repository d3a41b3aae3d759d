"""FlexAttention as a backend."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from zoo.errors import UsageError
from zoo.parts.backend import Backend, Naive
from zoo.parts.pattern import Pattern
from zoo_flex.lowering import lower

NARROWEST = 16  # the narrowest head that a fused kernel takes
FORWARD_ONLY = ("cpu", "mps")  # devices on which flex_attention has no backward pass
KERNELS = 64  # versions that torch may compile: with and without gradients, padding, a memory, for one token, ...
UNTRAINED = """gradients rows_without_keys large_scores autocast causality_by_gradient every_parameter_learns
gradients_are_right activation_checkpointing compiles learns_two_samples signals_keep_their_size processes_agree
fits_somewhere trains_language trains_translation trains_vision memory_claim state_round_trip packed_rows
no_state_between_calls"""


class Flex(Backend):
    """torch's flex_attention: softmax(q k' scale + bias) v, a kernel compiled from the pattern (Dong et al., 2024).

    Blocks of keys that nobody sees are skipped. On a GPU the kernel is fused and takes O(N) memory. On a CPU it keeps
    all scores and has no backward pass.
    """

    memory = "linear"
    supports = Backend.supports - {"dropout", "content"}
    known_failures: ClassVar = dict.fromkeys(UNTRAINED.split(), "on a CPU flex_attention has no backward")

    def __init__(self, compile: bool = True):
        """
        Args:
            compile: whether a GPU runs a kernel fused by torch.compile; slow, and good for finding bugs, if not.
        """
        self.compile = compile

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        if dropout:
            raise UsageError("backend Flex cannot lower dropout. Use SDPA, Tiled or Naive.")
        if pattern.content is not None:
            raise UsageError("backend Flex cannot lower content. Use SDPA, Tiled or Naive.")
        if q.is_meta:  # where costs are counted; flex_attention takes no such tensors
            return Naive()(q, k, v, pattern, scale=scale)
        attend = functools.partial(self._attend, pattern=pattern, scale=scale)
        if q.device.type in FORWARD_ONLY and any(x.requires_grad for x in (q, k, v)):
            return _ForwardOnly.apply(q, k, v, attend)
        return attend(q, k, v)

    def check_training(self, device):
        """Raise UsageError on devices where flex attention has no backward pass."""
        if device.type in FORWARD_ONLY:
            raise UsageError(no_backward(device.type))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float | None) -> Tensor:
        score, block = lower(pattern, q.size(2), k.size(2), q.device)
        scale = q.size(-1) ** -0.5 if scale is None else scale
        shared = q.size(1) != k.size(1)
        options: dict[str, Any] = {"score_mod": score, "block_mask": block, "scale": scale, "enable_gqa": shared}
        if not self._fuses(q):  # it would round weights to q's dtype in front of their sum
            wide = torch.promote_types(q.dtype, torch.float32)
            with warnings.catch_warnings():  # that it is not fused is what was asked for
                warnings.filterwarnings("ignore", message="flex_attention called without")
                return flex_attention(q.to(wide), k.to(wide), v.to(wide), **options).to(v.dtype)
        padded = (F.pad(x, (0, max(0, NARROWEST - x.size(-1)))) for x in (q, k, v))
        with torch._dynamo.config.patch(recompile_limit=KERNELS):
            return _fused()(*padded, **options)[..., : v.size(-1)]

    def _fuses(self, q: Tensor) -> bool:
        return self.compile and q.is_cuda


@functools.cache
def _fused() -> Callable[..., Tensor]:
    """flex_attention, compiled whole: torch's way out where it cannot is to keep all scores, without a word."""
    return torch.compile(flex_attention, fullgraph=True)


class _ForwardOnly(torch.autograd.Function):
    """A forward pass whose backward pass says that there is none."""

    @staticmethod
    def forward(ctx, q, k, v, attend):
        ctx.device = q.device.type
        return attend(q.detach(), k.detach(), v.detach())

    @staticmethod
    def backward(ctx, grad):
        raise UsageError(no_backward(ctx.device))


def no_backward(device: str) -> str:
    """Why there is no training on this kind of device."""
    return f"backend Flex trains on a GPU only: on a {device} flex_attention has no backward. Use SDPA or Tiled."
