"""Flash attention over packed sequences as a backend."""

from types import MethodType
from typing import ClassVar, cast

import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UsageError
from zoo.parts.backend import Backend
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi
from zoo_flash import kernels
from zoo_flash.packing import Packed, pack


class FlashVarlen(Backend):
    """softmax(q k' scale + bias) v by a flash kernel that is shown no padding (Dao, 2023).

    Rows are packed one after the other, which also leaves windows and ALiBi's slopes to the kernel. It needs a GPU and
    bfloat16 or float16; ALiBi and dropout need the package flash-attn.
    """

    memory = "linear"
    supports = frozenset({"causal", "window", "valid"})
    known_failures: ClassVar = {
        "compiles": "the lengths of sequences are numbers, read from the mask of padding",
        "moves_with_the_module": "its kernels run on a GPU only",
    }

    def __init__(self, kernel: kernels.Name | None = None, skip_padding: bool = False):
        """
        Args:
            kernel: torch's own or that of the package flash-attn; the package's where it is installed, unless given.
            skip_padding: give zeros to tokens that are padding, instead of computing what nobody reads.
        """
        self.kernel, self.skips_padding = kernels.find(kernel), skip_padding
        self.supports = self.supports | self.kernel.supports

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        slopes = self._slopes(pattern)
        unmet = pattern.needs - self.supports - ({"bias"} if slopes is not None else set())
        unmet |= {"dropout"} - self.supports if dropout else set()
        if unmet:
            raise UsageError(f"backend FlashVarlen cannot lower {', '.join(sorted(unmet))}. {kernels.OTHERS}")
        shape = q.size(0), q.size(2), k.size(2)
        calls = pack(pattern, shape, q.device, self.skips_padding)
        rates = kernels.Rates(q.size(-1) ** -0.5 if scale is None else scale, dropout, slopes)
        none = F.pad(q[..., :0], (0, v.size(-1)))  # zeros that a gradient can reach
        out, q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (none, q, k, v))  # (B*T or B*S, heads, width)
        for call in calls:
            out = self._add(out, call, q, k, v, rates)
        return out.unflatten(0, shape[:2]).transpose(1, 2)

    def _add(self, out: Tensor, call: Packed, q: Tensor, k: Tensor, v: Tensor, rates: kernels.Rates) -> Tensor:
        """``out`` with the results of one call in their places."""
        if call.keys is not None:
            k, v = k[call.keys], v[call.keys]
        if call.queries is None:
            return self.kernel.run(q, k, v, call, rates)
        return out.index_copy(0, call.queries, self.kernel.run(q[call.queries], k, v, call, rates))

    def _slopes(self, pattern: Pattern) -> Tensor | None:
        """ALiBi's slopes, where the bias is nothing else and the kernel takes them."""
        if "alibi" not in self.supports or getattr(pattern.bias, "__func__", None) is not ALiBi.bias:
            return None
        scheme = cast(ALiBi, cast(MethodType, pattern.bias).__self__)
        return scheme.slope if scheme.feature == "alibi" else None
