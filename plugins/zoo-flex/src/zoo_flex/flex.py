"""FlexAttention as a backend."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from zoo.errors import UsageError
from zoo.parts.backend import Backend, Naive
from zoo.parts.pattern import Pattern
from zoo_flex.lowering import lower

NARROWEST = 16  # the narrowest head that a fused kernel takes
FORWARD_ONLY = ("cpu", "mps")  # devices on which flex_attention has no backward pass
KERNELS = 64  # versions that torch may compile: with and without gradients, padding, a memory, for one token, ...
UNTRAINED = """gradients log_sum_exp_gradients rows_without_keys large_scores autocast causality_by_gradient
every_parameter_learns gradients_are_right activation_checkpointing compiles learns_two_samples
signals_keep_their_size processes_agree fits_somewhere trains_language trains_translation trains_vision
memory_claim state_round_trip packed_rows no_state_between_calls training_is_evaluation"""


class Flex(Backend):
    """torch's flex_attention: softmax(q k' scale + bias) v, a kernel compiled from the pattern (Dong et al., 2024).

    Blocks of keys that nobody sees are skipped. On a GPU the kernel is fused and takes O(N) memory. On a CPU it keeps
    all scores and has no backward pass.
    """

    memory = "linear"
    supports = Backend.supports - {"dropout", "content"} | {"score_cap", "lse"}
    known_failures: ClassVar = dict.fromkeys(UNTRAINED.split(), "on a CPU flex_attention has no backward")

    def __init__(self, compile: bool = True):
        """
        Args:
            compile: whether a GPU runs a kernel fused by torch.compile; slow, and good for finding bugs, if not.
        """
        self.compile = compile

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        return self._run(q, k, v, pattern, dropout, scale, lse=False)[0]

    def with_lse(self, q, k, v, pattern, dropout=0.0, scale=None):
        """The result (B, H, T, D of v), and ln sum_s e^(score_s) of each query, (B, H, T)."""
        return self._run(q, k, v, pattern, dropout, scale, lse=True)

    def _run(self, q, k, v, pattern, dropout, scale, lse: bool) -> tuple[Tensor, Tensor]:
        """The result (B, H, T, D of v), and with ``lse`` the log-sum-exp (B, H, T)."""
        if dropout:
            raise UsageError("backend Flex cannot lower dropout. Use SDPA, Tiled or Naive.")
        if pattern.content is not None:
            raise UsageError("backend Flex cannot lower content. Use SDPA, Tiled or Naive.")
        self.check_pattern(pattern)
        if q.is_meta:  # where costs are counted; flex_attention takes no such tensors
            return Naive().with_lse(q, k, v, pattern, scale=scale)
        attend = functools.partial(self._attend, pattern=pattern, scale=scale, lse=lse)
        if q.device.type in FORWARD_ONLY and any(x.requires_grad for x in (q, k, v)):
            return _ForwardOnly.apply(q, k, v, attend)
        return attend(q, k, v)

    def check_training(self, device):
        """Raise UsageError on devices where flex attention has no backward pass."""
        if device.type in FORWARD_ONLY:
            raise UsageError(no_backward(device.type))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float | None, lse: bool
    ) -> tuple[Tensor, Tensor]:
        score, block = lower(pattern, q.size(2), k.size(2), q.device)
        scale = q.size(-1) ** -0.5 if scale is None else scale
        shared = q.size(1) != k.size(1)
        options: dict[str, Any] = {"score_mod": score, "block_mask": block, "scale": scale, "enable_gqa": shared}
        options["return_aux"] = AuxRequest(lse=True) if lse else None
        wide = torch.promote_types(q.dtype, torch.float32)  # of scores; a bias may be wider
        if not self._fuses(q):  # it would round weights to q's dtype in front of their sum
            with warnings.catch_warnings():  # that it is not fused is what was asked for
                warnings.filterwarnings("ignore", message="flex_attention called without")
                out, sums = split(flex_attention(q.to(wide), k.to(wide), v.to(wide), **options))
            return out.to(v.dtype), sums.to(wide)
        padded = (F.pad(x, (0, max(0, NARROWEST - x.size(-1)))) for x in (q, k, v))
        with torch._dynamo.config.patch(recompile_limit=KERNELS):
            out, sums = split(_fused()(*padded, **options))
        return out[..., : v.size(-1)], sums.to(wide)

    def _fuses(self, q: Tensor) -> bool:
        return self.compile and q.is_cuda


def split(result: Any) -> tuple[Tensor, Tensor]:
    """What flex_attention gives, (B, H, T, D) alone or with the log-sum-exp (B, H, T), which is empty without one."""
    if isinstance(result, Tensor):
        return result, result.new_empty(0)
    return result[0], result[1].lse


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
    def backward(ctx, *grads):
        raise UsageError(no_backward(ctx.device))


def no_backward(device: str) -> str:
    """Why there is no training on this kind of device."""
    return f"backend Flex trains on a GPU only: on a {device} flex_attention has no backward. Use SDPA or Tiled."
