"""The private names of torch that zoo needs, all of them; tests/system/test_torch_internals.py watches each.

Every function says which name it stands for and why no public one does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

# `TorchDispatchMode` sees every operation on tensors, and its public kin, `torch.overrides.TorchFunctionMode`, only
# calls of Python functions: what a module like `nn.MultiheadAttention` computes inside of one stays hidden from it.
__all__ = ["TorchDispatchMode"]

F = TypeVar("F", bound=Callable[..., Any])


def fake_tensors() -> Any:
    """A context in which tensors have shape, type and device, and no memory: `FakeTensorMode`.

    The public "meta" device has no kernels of a CPU, and autograd keeps other tensors for other kernels.
    """
    count_devices()
    return FakeTensorMode(allow_non_fake_inputs=True)


@cache
def count_devices() -> None:
    """Have autograd count the devices of this machine, which it does at the first backward pass of a process.

    It starts a thread for each. Fake tensors pretend to a GPU where there is none: if that pass has them, the thread of
    that GPU is started, after which no process can be forked, and which ends a process that was forked.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones(1, requires_grad=True).sum().backward()


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor (any shape) has no memory, since it was made by ``fake_tensors``: it is a `FakeTensor`."""
    return isinstance(tensor, FakeTensor)


def outside_fake_tensors() -> Any:
    """A context in which tensors have memory again, although it stands in that of ``fake_tensors``.

    `unset_fake_temporarily`: the public way leaves every mode, also those that only watch.
    """
    return unset_fake_temporarily()


def archive_reader(path: str) -> Any:
    """The reader of archives that `torch.load` uses, whose names of records lack the archive's: `PyTorchFileReader`.

    Python's zipfile may see another archive in the same file; torch has no public way to ask for what it reads.
    """
    return torch._C.PyTorchFileReader(path)


def change_count(tensor: Tensor) -> int:
    """How often a tensor (any shape) was changed in place: `Tensor._version`, which autograd keeps for itself."""
    return tensor._version


def function_transforms_active() -> bool:
    """Whether torch.func (grad, vmap, jvp) or forward-mode derivatives run: there is no public name for either."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def call_is_altered(module: nn.Module) -> bool:
    """Whether calling a module does something else than its class's ``forward``: hooks, a compiled call, an own method.

    `_forward_hooks` and `_forward_pre_hooks` of the module and of all modules, and `_compiled_call_impl`; torch has no
    public question for any of them.
    """
    every = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or every._global_forward_hooks
        or every._global_forward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in vars(module)
    )


def is_view(operation: Any) -> bool:
    """Whether an operation (OpOverload) returns views of its arguments: from its `_schema`."""
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write for argument in operation._schema.arguments
    )


def written_arguments(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operation (OpOverload) writes into, by its `_schema`; none of a higher-order operator.

    Fused optimizers declare their gradients as written, which they divide by the scale of a `grad_scale` only.
    """
    schema = getattr(operation, "_schema", None)
    if schema is None:
        return []
    values = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    names = {
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    if values.get("grad_scale") is None:
        names.discard("grads")
    return [value for name, value in values.items() if name in names]


def packs_sequences(operation: Any) -> bool:
    """Whether an operation (OpOverload) packs padded sequences, of a shape that depends on lengths.

    `aten::_pack_padded_sequence`, which the public function of that name calls.
    """
    return operation is torch.ops.aten._pack_padded_sequence.default


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the scores from that of their softmax over the last dimension, all (..., T, S).

    One kernel, `aten::_softmax_backward_data`; autograd reaches it in public, hand-written gradients do not.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)


def can_reorder_weights(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this torch has oneDNN's products with reordered weights of a type on this processor.

    `mkldnn::_is_mkldnn_bf16_supported`: oneDNN refuses bfloat16 on processors that torch itself multiplies it on. Where
    OMP_DYNAMIC lets OpenMP give an operation fewer threads than it asks for, oneDNN leaves a part of a product out.
    """
    if os.environ.get("OMP_DYNAMIC", "").strip().lower() in ("true", "1", "yes", "on"):
        return False
    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(ops, "_reorder_linear_weight"):
        return False
    return dtype is not torch.bfloat16 or ops._is_mkldnn_bf16_supported()


def reorder_weight(weight: Tensor) -> Tensor:
    """A float32 or bfloat16 weight (out, in) in oneDNN's own layout, as `reordered_linear` reads it.

    `mkldnn::_reorder_linear_weight`; torch.compile reaches it when it freezes weights, and no public function does.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def reordered_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., in) W^T + b to (..., out) with a reordered W: `mkldnn::_linear_pointwise`."""
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (N, in) W^T + b to (N, out) by oneDNN, without a graph: `mkldnn::_linear_pointwise`. Both may be transposes.

    Public products of float32 are MKL's.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def operations_are_observed() -> bool:
    """Whether a `TorchDispatchMode` sees the operations of this thread: `torch._C._len_torch_dispatch_stack`."""
    return torch._C._len_torch_dispatch_stack() > 0


def keep_autocast_cache() -> None:
    """Have autocast leave its cache as it is from now on, in this thread: `torch.autocast_increment_nesting`.

    The cache is that of all threads, and the outermost context of any of them clears it; no public name prevents that.
    """
    torch.autocast_increment_nesting()


def compile_backward_with_forward() -> None:
    """Have torch.compile make the program of the gradients in the call that makes that of the values, or raise there.

    `torch._functorch.config.force_non_lazy_backward_lowering`: otherwise it is made in the first backward pass, whose
    caller cannot take another way any more.
    """
    import torch._functorch.config  # here: it imports the compiler

    torch._functorch.config.force_non_lazy_backward_lowering = True


def keep_programs_of_own_gradients() -> None:
    """Have torch.compile keep the program of a loss with an own `torch.autograd.Function` for later processes, as it
    does with others: `torch._functorch.config.autograd_cache_allow_custom_autograd_functions`, where torch has it.

    The operations of both passes are part of the key. Without it, every process derives the gradients anew.
    """
    import torch._functorch.config  # here: it imports the compiler

    if hasattr(torch._functorch.config, "autograd_cache_allow_custom_autograd_functions"):
        torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True


def assume_constant_result(function: F) -> F:
    """Have a compiler call a function once and keep its result: `_dynamo_marked_constant`.

    `torch.compiler.assume_constant_result` sets the same, and imports the whole compiler for it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def with_sizes_of_data(compiled: F) -> F:
    """A compiled function whose graphs include operations that the data decide the size of, such as the tokens of an
    expert: `torch._dynamo.config.capture_dynamic_output_shape_ops`. By default a graph ends before each of them.
    """
    import torch._dynamo.config  # here: it imports the compiler

    function: F = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)(compiled)
    return function


def default_compiler_cache() -> str:
    """The folder that torch's compiler keeps programs in, and writes into the environment, where that names none.

    Modules of torch that Lightning imports ask for the folder, so that the variable is set before anything is compiled.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


def raised_by_compiler(error: BaseException) -> bool:
    """Whether torch.compile could not take a function: its errors are classes of `torch._dynamo`, and have no other."""
    return "torch._dynamo" in type(error).__module__ or "dynamo" in str(error).lower()
