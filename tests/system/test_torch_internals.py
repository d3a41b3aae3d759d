"""One canary for each private name of torch: it sings until torch changes the name."""

import os
import sys
import types

import pytest
import torch
import torch._functorch.config
import torch._inductor.runtime.cache_dir_utils
import torch._subclasses.fake_tensor
import torch.utils._python_dispatch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.tensorboard import SummaryWriter

from tests import forks
from tests.private_names import ROOT, Canary, check, uses
from zoo.system import torch_internals

PATH = "zoo/system/torch_internals.py"
CANARIES = [
    Canary("torch", torch._subclasses.fake_tensor, "FakeTensorMode"),
    Canary("torch", torch._subclasses.fake_tensor, "FakeTensor"),
    Canary("torch", torch._subclasses.fake_tensor, "unset_fake_temporarily"),
    Canary("torch", torch.utils._python_dispatch, "TorchDispatchMode"),
    Canary("torch", torch.Tensor, "_version"),
    Canary("torch", torch, "_C"),
    Canary("torch", torch._C, "_are_functorch_transforms_active"),
    Canary("torch", torch._C, "_len_torch_dispatch_stack"),
    Canary("torch", forward_ad, "_current_level"),
    Canary("torch", torch.nn.Module(), "_forward_hooks"),
    Canary("torch", torch.nn.Module(), "_forward_pre_hooks"),
    Canary("torch", torch.nn.Module(), "_compiled_call_impl"),
    Canary("torch", torch.nn.modules.module, "_global_forward_hooks"),
    Canary("torch", torch.nn.modules.module, "_global_forward_pre_hooks"),
    Canary("torch", torch, "_functorch"),
    Canary("torch", torch._functorch, "config"),
    Canary("torch", torch.ops.aten.view.default, "_schema"),
    Canary("torch", torch.ops.aten, "_pack_padded_sequence"),
    Canary("torch", torch.ops.aten, "_softmax_backward_data"),
    Canary("torch", torch.ops.mkldnn, "_reorder_linear_weight"),
    Canary("torch", torch.ops.mkldnn, "_linear_pointwise"),
    Canary("torch", torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),
    Canary("torch", lambda: torch.compiler.assume_constant_result(lambda: 0), "_dynamo_marked_constant"),
    Canary("torch", torch, "_dynamo"),
    Canary("torch", torch._inductor.runtime.cache_dir_utils, "default_cache_dir"),
]
WRITER = Canary("torch", SummaryWriter, "_get_file_writer", ("self",))
EVENT_FILES = "zoo/logging/event_files.py"  # beside the module: TensorBoard is imported only where a run logs


def test_torch_has_the_options_of_its_compiler_that_zoo_sets():
    assert torch._functorch.config.force_non_lazy_backward_lowering in (True, False)
    assert torch._functorch.config.autograd_cache_allow_custom_autograd_functions in (True, False)
    assert torch._dynamo.config.capture_dynamic_output_shape_ops in (True, False)


def test_torch_has_the_folder_of_its_compiler():
    assert torch_internals.default_compiler_cache() == torch._inductor.runtime.cache_dir_utils.default_cache_dir()


@pytest.mark.parametrize("canary", CANARIES, ids=str)
def test_torch_has_the_name(canary):
    if canary.owner is torch.ops.mkldnn and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN, and zoo uses none of it")
    check(canary, PATH)


def test_a_writer_of_summaries_asks_for_its_file():
    check(WRITER, EVENT_FILES)


@pytest.mark.parametrize("canary", [*CANARIES, WRITER], ids=str)
def test_a_missing_name_is_said_in_one_sentence(canary):
    with pytest.raises(AssertionError, match=rf"^torch 2\.\S+ has no {canary.name}: {PATH} needs it\.") as failed:
        check(canary._replace(owner=types.SimpleNamespace()), PATH)
    assert "\n" not in str(failed.value).partition("needs it.")[0]


def test_every_name_has_a_canary():
    assert {one.name.rpartition(".")[2] for one in uses(ROOT / PATH)} == {canary.name for canary in CANARIES}


def test_transforms_are_seen():
    calls = []
    assert not torch_internals.function_transforms_active()
    torch.func.grad(lambda x: calls.append(torch_internals.function_transforms_active()) or x.sum())(torch.ones(2))
    with forward_ad.dual_level():
        calls.append(torch_internals.function_transforms_active())
    assert calls == [True, True]
    assert not torch_internals.function_transforms_active()


def test_observers_of_operations_are_seen():
    assert not torch_internals.operations_are_observed()
    with FlopCounterMode(display=False):
        assert torch_internals.operations_are_observed()
    with torch_internals.fake_tensors():
        assert torch_internals.operations_are_observed()
    assert not torch_internals.operations_are_observed()


def test_tensors_without_memory_are_known_and_left_for_those_that_have_it():
    with torch_internals.fake_tensors():
        fake = torch.zeros(2)
        with torch_internals.outside_fake_tensors():
            real = torch.ones(2)
    assert torch_internals.is_fake(fake)
    assert not torch_internals.is_fake(real)
    assert real.tolist() == [1.0, 1.0]


def test_changes_are_counted():
    x = torch.zeros(2)
    before = torch_internals.change_count(x)
    x.add_(1)
    assert torch_internals.change_count(x) > before


def test_the_reader_of_archives_is_that_of_torch(tmp_path, monkeypatch):
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    reader = torch_internals.archive_reader(str(tmp_path / "a.pt"))
    assert {"data.pkl", "data/0"} <= set(reader.get_all_records())
    assert reader.get_record_size("data/0") == 12
    assert reader.get_record("data.pkl")[:2] == b"\x80\x02"
    monkeypatch.setattr(torch._C, "PyTorchFileReader", lambda *_: pytest.fail("as torch.load"))
    with pytest.raises(pytest.fail.Exception, match=r"as torch\.load"):
        torch.load(tmp_path / "a.pt", weights_only=True)


def test_views_are_told_from_copies():
    aten = torch.ops.aten
    assert torch_internals.is_view(aten.view.default)
    assert torch_internals.is_view(aten.transpose.int)
    assert not torch_internals.is_view(aten.clone.default)
    assert not torch_internals.is_view(aten.add_.Tensor)


def test_what_an_operation_writes_into_is_known():
    x, y = torch.ones(2), torch.ones(2)
    arguments = torch_internals.written_arguments
    assert arguments(torch.ops.aten.add_.Tensor, (x, y), {}) == [x]
    assert arguments(torch.ops.aten.add.Tensor, (x, y), {}) == []
    assert arguments(torch.ops.aten.add.out, (x, y), {"out": x}) == [x]
    fused, lists = torch.ops.aten._fused_adamw_.default, [[x], [y], [x], [x], [], [x]]
    assert arguments(fused, lists, {}) == [[x], [x], [x], []]
    assert arguments(fused, lists, {"grad_scale": y}) == [[x], [y], [x], [x], []]
    assert arguments(torch.cond, lists, {}) == []


def test_the_gradient_of_a_softmax_is_autograds():
    scores = torch.randn(2, 3, 5, requires_grad=True)
    weights, grad = scores.softmax(-1), torch.randn(2, 3, 5)
    expected = torch.autograd.grad(weights, scores, grad)[0]
    assert torch.allclose(torch_internals.softmax_backward(grad, weights.detach()), expected, atol=1e-6)


def test_errors_of_the_compiler_are_told_from_others():
    def breaks(x):
        print("a graph break")
        return x + 1

    with pytest.raises(Exception) as failed:  # noqa: PT011  (the class is the compiler's own)
        torch.compile(breaks, fullgraph=True, backend="eager")(torch.ones(1))
    assert torch_internals.raised_by_compiler(failed.value)
    assert not torch_internals.raised_by_compiler(ValueError("shapes do not match"))


@pytest.mark.skipif(torch.cuda.is_available() or not os.path.isdir("/proc/self/task"), reason="counts threads of a CPU")
def test_an_estimate_of_memory_starts_no_thread_for_a_gpu_that_is_not_there():
    """Such a thread ended a process that was forked."""
    program = """
import os, torch
from zoo.system.torch_internals import fake_tensors
torch.set_num_threads(1)
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
with fake_tensors():
    (torch.ones(3, requires_grad=True) * 2).sum().backward()
print(threads() - before)
"""
    done = forks.run([sys.executable, "-c", program], text=True)
    assert done.stdout.split() == ["0"], done.stderr
