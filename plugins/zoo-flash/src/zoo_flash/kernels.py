"""The kernels that exist for packed sequences, behind one signature, and what each needs of a machine."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.errors import UsageError
from zoo_flash.packing import Packed

Name = Literal["torch", "flash-attn"]
WIDEST = 256  # of a head
OTHERS = "Use SDPA, Flash or Tiled."


class Rates(NamedTuple):
    """The numbers of a call: the scale of scores, the rate of dropout, and a slope for each head (H,) with ALiBi."""

    scale: float
    dropout: float = 0.0
    slopes: Tensor | None = None


Run = Callable[[Tensor, Tensor, Tensor, Packed, Rates], Tensor]


class Kernel(NamedTuple):
    """q (Q, H, D), k (K, G, D) and v (K, G, D of v), packed, to (Q, H, D of v); and the features beyond the band."""

    run: Run
    supports: frozenset[str]


def find(name: Name | None) -> Kernel:
    """The kernel of that name, or the best there is. Raises UsageError where this machine has none."""
    if not torch.cuda.is_available():
        raise refusal("an NVIDIA GPU", "this machine has none")
    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        raise refusal("a GPU of compute capability 8.0 or newer", "this one has {}.{}".format(*capability))
    installed = find_spec("flash_attn") is not None
    if name == "flash-attn" and not installed:
        raise UsageError(
            "backend FlashVarlen needs the package flash-attn for kernel='flash-attn', and it is not installed. "
            "Run: pip install 'zoo-flash[flash-attn]', or use kernel='torch', which has no ALiBi and no dropout."
        )
    return KERNELS[name or ("flash-attn" if installed else "torch")]


def refusal(needs: str, has: str) -> UsageError:
    """The sentence for a machine or a call without a kernel."""
    return UsageError(f"backend FlashVarlen needs {needs}; {has}. {OTHERS}")


def of_torch(q: Tensor, k: Tensor, v: Tensor, call: Packed, rates: Rates) -> Tensor:
    """torch.nn.attention.varlen on packed q, k and v (N, H, D), to (N, H, D): no dropout, no ALiBi."""
    from torch.nn.attention.varlen import varlen_attn

    options = {"scale": rates.scale, "window_size": call.window, "enable_gqa": q.size(1) != k.size(1)}
    return launched(varlen_attn, (q, k, v), call, options)


def of_package(q: Tensor, k: Tensor, v: Tensor, call: Packed, rates: Rates) -> Tensor:
    """The package flash-attn (Dao, 2023) on packed q, k and v (N, H, D), to (N, H, D)."""
    slopes = None if rates.slopes is None else rates.slopes.float()
    options = {"softmax_scale": rates.scale, "window_size": call.window, "alibi_slopes": slopes}
    attend = import_module("flash_attn").flash_attn_varlen_func
    return launched(attend, (q, k, v), call, options | {"dropout_p": rates.dropout})


def launched(
    attend: Callable[..., Any], inputs: tuple[Tensor, Tensor, Tensor], call: Packed, options: dict[str, Any]
) -> Tensor:
    """A kernel's result (N, H, D of v) for packed q, k and v (N, H, D), padded to one width, a multiple of 8."""
    q, _, v = inputs
    check(q, v)
    width = -(-max(q.size(-1), v.size(-1)) // 8) * 8
    widened = (F.pad(x, (0, width - x.size(-1))) for x in inputs)
    ends = call.query_ends, call.key_ends, call.longest_query, call.longest_key
    return attend(*widened, *ends, **options)[..., : v.size(-1)]


def check(q: Tensor, v: Tensor) -> None:
    """Raise UsageError for tensors that no kernel takes."""
    if not q.is_cuda:
        raise refusal("tensors on a GPU", f"these are on {q.device}")
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise refusal("bfloat16 or float16 (--trainer.precision bf16-mixed)", f"these are {q.dtype}")
    if max(q.size(-1), v.size(-1)) > WIDEST:
        raise refusal(f"heads of at most {WIDEST} features", f"these have {max(q.size(-1), v.size(-1))}")


KERNELS: dict[Name, Kernel] = {
    "torch": Kernel(of_torch, frozenset()),
    "flash-attn": Kernel(of_package, frozenset({"alibi", "dropout"})),
}
