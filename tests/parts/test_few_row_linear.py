"""Products with few rows are the products, whichever kernel computes them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.models import LanguageModel
from zoo.models.generation import GenerationConfig, generate
from zoo.parts import few_row_linear as module
from zoo.parts.few_row_linear import COLUMNS, FEW, Linear, Packed, linear, pack_once, packs
from zoo.parts.int8 import Int8, quantize
from zoo.system import torch_internals


@pytest.fixture(autouse=True)
def _rivals_of_torch_are_the_fastest(monkeypatch):
    """Whatever this machine is fast at, the kernels of this module are used."""
    monkeypatch.setattr(module, "fastest_kernel", lambda rows, weight: "columns" if rows <= COLUMNS else "packed")
    monkeypatch.setattr(module, "is_faster_packed", lambda rows, weight: rows > COLUMNS)


needs_onednn = pytest.mark.skipif(not torch_internals.can_reorder_weights(), reason="torch has no products of oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 48), (1, 1, 48), (2, 48), (2, 1, 48), (3, 48), (4, 8, 48), (33, 48), (0, 48)])
@torch.no_grad()
def test_any_number_of_rows_gives_the_product(shape, bias):
    x, weight, b = torch.randn(shape), torch.randn(40, 48), torch.randn(40) if bias else None
    rows = x.numel() // 48
    for packed in ([], packs([weight], rows)):
        result = linear(x, weight, b)
        want = F.linear(x.double(), weight.double(), None if b is None else b.double())
        assert result.dtype == torch.float32
        assert result.is_contiguous()
        torch.testing.assert_close(result.double(), want, atol=1e-4, rtol=1e-5)
        del packed


@torch.no_grad()
def test_rows_that_are_not_contiguous_are_read_as_they_stand():
    x, weight, bias = torch.randn(48, 4), torch.randn(40, 48), torch.randn(40)
    for rows in (1, 2, 3):
        packed = packs([weight], rows)
        torch.testing.assert_close(linear(x.t()[:rows], weight, bias), F.linear(x.t()[:rows], weight, bias))
        del packed


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_gradients_other_types_and_autocast_go_the_ordinary_way(rows):
    part = Linear(8, 5)
    part(torch.randn(rows, 8)).sum().backward()
    assert part.weight.grad is not None
    with torch.no_grad():
        assert torch.equal(part.double()(torch.ones(rows, 8).double()), F.linear(torch.ones(rows, 8).double(),
                                                                                part.weight, part.bias))  # fmt: skip
        with torch.autocast("cpu", torch.bfloat16):
            assert part.float()(torch.randn(rows, 8)).dtype == torch.bfloat16


@needs_onednn
@torch.no_grad()
def test_a_packed_matrix_serves_while_it_is_held_and_not_changed():
    weight, x = torch.randn(40, 48), torch.randn(8, 48)
    packed = packs([weight, torch.randn(3)], 8)
    assert [type(one) for one in packed] == [Packed]
    assert packs([weight], 8)[0] is packed[0]
    weight.mul_(2)
    assert not packed[0].current
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))
    packed = packs([weight], 8)
    assert packed[0].current
    weight.data = torch.randn(40, 48)
    assert not packed[0].current
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))
    del packed
    assert id(weight) not in module._packed


@pytest.mark.skipif(not torch_internals.can_reorder_weights(torch.bfloat16), reason="oneDNN refuses bfloat16 here")
@pytest.mark.parametrize("rows", [1, 2, 8, FEW])
@torch.no_grad()
def test_matrices_in_bfloat16_are_packed_for_any_few_rows(rows, monkeypatch):
    monkeypatch.setattr(module, "is_faster_packed", lambda rows, weight: True)
    products, product = [], Packed.product
    monkeypatch.setattr(Packed, "product", lambda *call: products.append(1) or product(*call))
    x, weight, bias = (torch.randn(*sizes).bfloat16() for sizes in ((rows, 48), (40, 48), (40,)))
    exact = F.linear(x.double(), weight.double(), bias.double())
    packed = packs([weight], rows)
    result = linear(x, weight, bias)
    assert (len(packed), len(products), result.dtype) == (1, 1, torch.bfloat16)
    torch.testing.assert_close(result.double(), exact, atol=0.05, rtol=0.01)
    weight.data.mul_(2)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))
    assert len(products) == 1, "the matrix was changed behind torch's back"


@torch.no_grad()
def test_kernels_of_each_type_are_measured_apart(monkeypatch):
    monkeypatch.undo()
    classes = []
    monkeypatch.setattr(module.kernel_choice, "choose", lambda call, kernels, prepare: classes.append((call, kernels)))
    for dtype in (torch.float32, torch.bfloat16):
        module.fastest_kernel(1, torch.empty(40, 48, dtype=dtype))
    assert classes == [
        (("products in 64 MB", 1, 48, 40), ("linear", "columns")),
        (("bf16 products in 64 MB", 1, 48, 40), ("linear", "packed")),
    ]
    kernels = module._examples(2, 48, 40, ("linear", "packed"), torch.bfloat16, 1)
    assert list(kernels) == ["linear", "packed"]
    for kernel in kernels.values():
        kernel()


@pytest.mark.parametrize("unpacked", ["linear", "columns"])
@pytest.mark.parametrize("answer", [True, False])
@torch.no_grad()
def test_a_packed_matrix_competes_with_the_faster_of_both_others(answer, unpacked, monkeypatch):
    """For one or two rows of float32; for other products the other kernel is torch's own, and there is one question."""
    monkeypatch.undo()
    classes = []

    def choose(call, kernels, prepare):
        classes.append((call, kernels))
        packed = call[0].startswith("packed") or call[1] > COLUMNS or "bf16" in call[0]
        return ("packed" if answer else kernels[0]) if packed else unpacked

    monkeypatch.setattr(module.kernel_choice, "choose", choose)
    weight = torch.empty(40, 48)
    assert [module.is_faster_packed(rows, weight) for rows in (1, 2, 3)] == [answer] * 3
    assert module.is_faster_packed(1, weight.bfloat16()) == answer
    assert classes == [
        (("products in 64 MB", 1, 48, 40), ("linear", "columns")),
        (("packed products in 64 MB", 1, 48, 40), (unpacked, "packed")),
        (("products in 64 MB", 2, 48, 40), ("linear", "columns")),
        (("packed products in 64 MB", 2, 48, 40), (unpacked, "packed")),
        (("products in 64 MB", 3, 48, 40), ("linear", "packed")),
        (("bf16 products in 64 MB", 1, 48, 40), ("linear", "packed")),
    ]


@needs_onednn
@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_one_and_two_rows_are_multiplied_with_a_packed_matrix_where_that_is_faster(rows, monkeypatch):
    monkeypatch.setattr(module, "is_faster_packed", lambda rows, weight: True)
    products, product = [], Packed.product
    monkeypatch.setattr(Packed, "product", lambda *call: products.append(1) or product(*call))
    x, weight, bias = torch.randn(rows, 1, 48), torch.randn(40, 48), torch.randn(40)
    exact = F.linear(x.double(), weight.double(), bias.double())
    packed = packs([weight], rows)
    torch.testing.assert_close(linear(x, weight, bias).double(), exact, atol=1e-4, rtol=1e-5)
    assert len(packed) == len(products) == 1
    assert not module.uses_torch_kernel(rows, weight)
    weight.mul_(2)
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight), atol=1e-4, rtol=1e-5)
    assert len(products) == 1
    del packed


@needs_onednn
@pytest.mark.parametrize("rows", [1, 2, 8])
@torch.no_grad()
def test_a_matrix_in_eight_bits_stays_so_when_texts_ask_for_the_fastest_layout(rows, monkeypatch):
    monkeypatch.setattr(module, "is_faster_packed", lambda rows, weight: True)
    weight, x = torch.randn(40, 48), torch.randn(rows, 48)
    (rounded_matrix,) = quantize([weight])
    rounded = linear(x, weight)
    assert packs([weight], rows) == [rounded_matrix]
    assert torch.equal(linear(x, weight), rounded)
    assert not torch.equal(rounded, F.linear(x, weight))


@torch.no_grad()
def test_nothing_is_packed_where_it_would_not_serve(monkeypatch):
    weight = torch.randn(40, 48)
    assert packs([weight], 1) == packs([weight], 2) == packs([weight], FEW + 1) == []
    assert packs([weight.double()], 8) == packs([weight.half()], 8) == []
    with monkeypatch.context() as patch:
        patch.setattr(torch_internals, "can_reorder_weights", lambda dtype: dtype is torch.float32)
        assert packs([weight.to(torch.bfloat16)], 8) == []
    monkeypatch.setattr(module, "LARGEST", weight.nbytes - 1)
    assert packs([weight], 8) == []
    with torch.enable_grad():
        assert packs([weight], 8) == []


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@torch.no_grad()
def test_a_model_writes_what_it_writes_without_these_kernels(rows, packed, monkeypatch):
    """Log-probabilities of the written tokens, step by step, against those of one float64 forward."""
    monkeypatch.setattr(module, "is_faster_packed", lambda rows, weight: packed)
    model = LanguageModel(61, 32, dim=32, depth=2, heads=4).eval()
    for parameter in model.parameters():
        parameter.mul_(2)
    prompt = torch.randint(61, (rows, 5))
    answer = generate(model.begin(32), prompt, None, GenerationConfig(max_length=12))
    assert not module._packed  # nobody writes any more, nothing is kept
    wide = LanguageModel(61, 32, dim=32, depth=2, heads=4).double().eval()
    wide.load_state_dict(model.state_dict())
    for row, (best, *_) in enumerate(answer):
        tokens = torch.tensor([[*prompt[row].tolist(), *best.tokens]])
        log_probs = wide(tokens[:, :-1]).log_softmax(-1)[0, 4:]
        assert log_probs.gather(1, tokens[0, 5:, None]).sum().item() == pytest.approx(best.score, abs=1e-3)
        assert best.tokens == log_probs.argmax(-1).tolist()


@needs_onednn
@pytest.mark.parametrize("kind", [Packed, Int8])
@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.data.copy_(torch.randn(weight.shape)),
        lambda weight: weight.detach().numpy().__imul__(3),
        lambda weight: setattr(weight, "data", weight.data * 2),
        lambda weight: weight.mul_(2),
        lambda weight: weight.requires_grad_(False)[5:6].fill_(1.0),
    ],
    ids=["data.mul_", "data.copy_", "numpy", "data =", "mul_", "a row of a view"],
)
@torch.no_grad()
def test_a_matrix_that_was_changed_is_not_the_one_that_was_laid_out(kind, change):
    weight, x = torch.nn.Parameter(torch.randn(96, 64)), torch.randn(8, 64)
    holder = pack_once(weight, kind)
    assert holder.current
    change(weight)
    assert not holder.current
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@needs_onednn
@torch.no_grad()
def test_the_kernel_that_was_measured_as_faster_computes(monkeypatch):
    weight, calls = torch.randn(40, 48), []
    monkeypatch.setattr(module, "product_by_columns", lambda x, weight: calls.append("columns") or x @ weight.T)
    monkeypatch.setattr(Packed, "product", lambda self, x, bias: calls.append("packed") or x @ self.weight.T)
    for kernel in ("columns", "packed", "linear"):
        monkeypatch.setattr(module, "fastest_kernel", lambda rows, weight, kernel=kernel: kernel)
        monkeypatch.setattr(
            module, "is_faster_packed", lambda rows, weight, kernel=kernel: rows > COLUMNS and kernel == "packed"
        )
        packed = packs([weight], 8)
        assert len(packed) == (kernel == "packed")
        for rows in (1, 2, 8):
            linear(torch.randn(rows, 48), weight)
        del packed
    assert calls == ["columns", "columns", "packed"]


@pytest.mark.parametrize(("megabytes", "size"), [(0.1, 4), (4, 4), (4.1, 16), (16, 16), (17, 64), (64, 64), (300, 64)])
@torch.no_grad()
def test_a_choice_is_that_of_as_many_bytes_as_a_step_reads(megabytes, size, monkeypatch):
    """Matrices of a small model stay in the caches: torch's kernel was twice as fast there, W x^T elsewhere."""
    monkeypatch.undo()
    calls = []
    monkeypatch.setattr(module.kernel_choice, "choose", lambda call, kernels, prepare: calls.append(call) or kernels[0])
    part, others = torch.empty(48, 40), torch.empty(1, int(megabytes * 2**20 / 4) - 48 * 40)
    packs([part, others, torch.empty(3)], 1)
    linear(torch.empty(1, 40), part)
    assert {call[0].removeprefix("packed ") for call in calls} == {f"products in {size} MB"}
    packs([part], 1)
    assert module.size_class(part) == 4  # now that of a step which reads nothing else
    assert module.size_class(torch.empty(48, 40)) == 64  # of which nothing is known


@torch.no_grad()
def test_a_short_prompt_has_the_kernels_of_the_texts_after_it(monkeypatch):
    """Its products had been chosen for an unknown model, so that the first of equal prompts had another score."""
    monkeypatch.undo()
    calls = []
    monkeypatch.setattr(module.kernel_choice, "choose", lambda call, kernels, prepare: calls.append(call) or kernels[0])
    model = LanguageModel(61, 32, dim=32, depth=2, heads=4).eval()
    for _ in range(2):
        generate(model.begin(32), torch.tensor([[1, 2]]), None, GenerationConfig(max_length=3))
    assert {call[1] for call in calls} == {1, 2}
    assert all(call[0].endswith(" in 4 MB") for call in calls)


@pytest.mark.parametrize("value", ["true", "TRUE", " True ", "1"])
def test_onednn_is_no_rival_where_operations_get_fewer_threads_than_they_ask_for(value, monkeypatch):
    """It leaves a part of the product out: trainings with OMP_DYNAMIC=true began with a loss of nan."""
    available = torch_internals.can_reorder_weights()
    monkeypatch.setenv("OMP_DYNAMIC", value)
    assert not torch_internals.can_reorder_weights()
    monkeypatch.setenv("OMP_DYNAMIC", "false")
    assert torch_internals.can_reorder_weights() == available


@pytest.mark.parametrize(
    ("rows", "kernels"),
    [
        (1, ("linear", "columns")), (2, ("linear", "columns")), (3, ("linear", "packed")), (9, ("linear", "packed")),
        (1, ("columns", "packed")), (2, ("linear", "packed")),
    ],
)  # fmt: skip
def test_what_is_measured_are_the_kernels_that_are_used(rows, kernels, monkeypatch):
    """Each example calls its kernel with one matrix after the other, so that each comes back after all others."""
    if "packed" in kernels and not torch_internals.can_reorder_weights():
        pytest.skip("torch has no products of oneDNN")
    count = 2**20 // (4 * 300 * 200)
    monkeypatch.setattr(module, "EXAMPLE", 3 * 4 * 300 * 200)
    shapes, calls = [], {name: [] for name in ("linear", "columns", "packed")}
    product, reordered, ordinary = module.product_by_columns, torch_internals.reordered_linear, F.linear

    def record(name, function, matrix):
        def call(x, weight, *others):
            calls[name].append(matrix(weight))
            shapes.append(function(x, weight, *others).shape)

        return call

    monkeypatch.setattr(F, "linear", record("linear", ordinary, Tensor.data_ptr))
    monkeypatch.setattr(module, "product_by_columns", record("columns", product, Tensor.data_ptr))
    monkeypatch.setattr(torch_internals, "reordered_linear", record("packed", reordered, id))
    examples = module._examples(rows, 200, 300, kernels, torch.float32, 1)
    assert list(examples) == list(kernels)
    for kernel in (*examples.values(), *examples.values()):
        kernel()
    assert set(shapes) == {(rows, 300)}
    for name in kernels:
        assert len(calls[name]) == 6
        assert len(set(calls[name])) == min(count, 6)
        assert calls[name] == (calls[name][:count] * 3)[:6]
    assert not any(calls[name] for name in set(calls) - set(kernels))


@pytest.mark.parametrize("out", [1, 40, 10**6])
def test_a_measurement_takes_no_more_memory_than_its_size(out, monkeypatch):
    sizes = []
    monkeypatch.setattr(torch, "full", lambda shape, *_, **__: sizes.append(shape) or torch.empty(1))
    module._examples(1, 48, out, ("linear", "columns"), torch.float32, 1)
    count, height, width = sizes[1]
    assert count * height * width * 4 <= 2**20
    assert count <= module.MATRICES
