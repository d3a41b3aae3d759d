"""Parts that compute in too low a precision, or something else than their formula, are noticed on the first batch."""

import copy
from types import SimpleNamespace

import pytest
import torch

from tests.covering import covering
from tests.models.small import covering_rows, ours, refused
from tests.tasks.training import build, text_file, train
from zoo import registry
from zoo.data.text import TextFiles
from zoo.errors import ImpreciseError
from zoo.models.initialization import initialize
from zoo.parts import position
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.tasks.lm import CausalLM
from zoo.training.part_numerics import FILE, compare_call, read_parts, record_calls
from zoo.training.precision_check import PrecisionCheck, compare_with_float64

KINDS = ("position", "backend", "attention", "norm", "ffn", "block")
PRECISIONS = ("32-true", "bf16-mixed")
MODELS = {"lm": "LanguageModel", "translation": "Seq2Seq", "vit": "ViT"}
FACTORS = {kind: ours(kind) for kind in KINDS} | {"precision": PRECISIONS}


def accepted(row):
    return not refused(MODELS[row["task"]], {kind: row[kind] for kind in KINDS})


# any two parts, and each in every task and precision; in a campaign any two parts in every task
ROWS = covering({"task": tuple(MODELS)} | FACTORS, 2, accepted)
MORE = [{"task": task} | row for task in MODELS for row in covering_rows(MODELS[task], *KINDS, precision=PRECISIONS)]
CASES = [*ROWS, *(pytest.param(row, marks=pytest.mark.campaign) for row in MORE if row not in ROWS)]


def trainer(precision):
    """What the comparison reads of a Trainer."""

    def forward_context():
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")

    plugin = SimpleNamespace(forward_context=forward_context)
    return SimpleNamespace(precision=precision, precision_plugin=plugin)


def measure(task, data, precision):
    """The errors of parts on the first batch."""
    data.setup()
    task.train()
    return compare_with_float64(trainer(precision), task, next(iter(data.train_dataloader()))).parts


@pytest.mark.parametrize("row", CASES, ids=lambda row: "-".join(row.values()))
def test_no_built_in_part_is_wrong(tmp_path, row):
    parts = {kind: registry.get(kind, row[kind]) for kind in KINDS}
    module, data = build(row["task"], 4, tmp_path, depth=2, **parts)
    errors = measure(module, data, row["precision"])
    assert {one.part.split()[0] for one in errors} >= {"norm", "ffn"}
    assert [one for one in errors if not one.share <= 1] == []


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("backend", [SDPA, Naive, Tiled])
@pytest.mark.parametrize("head_dim", [4, 8, 32])
@torch.no_grad()
def test_an_attention_over_many_keys_is_as_right_as_its_sums(spread, backend, head_dim):
    """Keys that are nearly alike, as the patches of a flat image, are summed with errors in one direction."""
    attention = initialize(MultiHead(2 * head_dim, 2, backend=backend()), head_dim).eval()
    for keys in (145, 577, 2049):
        torch.manual_seed(keys)
        x = torch.randn(2, 1, 2 * head_dim) + spread * torch.randn(2, keys, 2 * head_dim)
        with record_calls(torch.nn.ModuleList([attention])) as calls:
            attention(torch.nn.functional.layer_norm(x, x.shape[-1:]), pattern=Pattern())
        exact, eps = copy.deepcopy(attention).double(), torch.finfo(torch.float32).eps
        error, tolerance = compare_call(exact, calls["0"], eps)
        assert error <= tolerance
        rounded = calls["0"]._replace(result=calls["0"].result.bfloat16().float())
        error, tolerance = compare_call(exact, rounded, eps)
        assert error > tolerance, "a part that rounds to bfloat16 is not told from a right one"


def longer(folder, **options):
    """A language model of 64 tokens, in which the angles of RoPE reach 63."""
    data = TextFiles(text_file(folder), max_length=64, batch_size=4)
    torch.manual_seed(3)
    return CausalLM(**data.sizes(), max_length=64, dim=32, depth=2, heads=2, position=position.RoPE, **options), data


def angles_in_the_type_of_the_heads(pos, width, base, dtype):
    exponent = torch.arange(0, width, 2, dtype=dtype) / width
    return pos[..., None].to(dtype) * base**-exponent


def plant(monkeypatch, fault):
    if fault == "phases":
        monkeypatch.setattr(position, "angles", angles_in_the_type_of_the_heads)
    elif fault == "norm":
        centred = LayerNorm.forward
        monkeypatch.setattr(LayerNorm, "forward", lambda self, x: centred(self, x) + x.mean(-1, keepdim=True))
    elif fault == "norm in half precision":
        exact = LayerNorm.forward
        monkeypatch.setattr(
            LayerNorm,
            "forward",
            lambda self, x: exact(self, x.half().to(x.dtype)) if x.dtype is torch.float32 else exact(self, x),
        )
    elif fault == "scale":
        backend = SDPA.__call__
        monkeypatch.setattr(
            SDPA,
            "__call__",
            lambda self, q, k, v, pattern, dropout=0.0, scale=None: backend(self, q, k, v, pattern, dropout, 1.0),
        )


@pytest.mark.parametrize(
    ("fault", "precision", "part"),
    [
        ("phases", "bf16-mixed", "position RoPE"),
        ("norm", "32-true", "norm LayerNorm"), ("norm", "bf16-mixed", "norm LayerNorm"),
        ("norm in half precision", "32-true", "norm LayerNorm"),
        ("scale", "32-true", "attention MultiHead"), ("scale", "bf16-mixed", "attention MultiHead"),
    ],
)  # fmt: skip
def test_a_fault_is_noticed_and_its_part_named(tmp_path, monkeypatch, fault, precision, part):
    assert all(one.share <= 1 for one in measure(*longer(tmp_path), precision))
    plant(monkeypatch, fault)
    wrong = {one.part for one in measure(*longer(tmp_path), precision) if not one.share <= 1}
    assert wrong == {part}


def test_a_wrong_part_ends_the_run_or_is_a_warning(tmp_path, monkeypatch, capsys):
    plant(monkeypatch, "norm")
    with pytest.raises(ImpreciseError) as caught:
        train("lm", 4, tmp_path, callbacks=[PrecisionCheck(tmp_path)], max_steps=1)
    assert caught.value.code == 4
    message = str(caught.value)
    assert message.startswith("stack.blocks.0.attend.norm, norm LayerNorm, differs from its formula in float64 by ")
    assert "zoo check norm LayerNorm" in message
    assert len(message.splitlines()) <= 4
    dtype, parts = read_parts(tmp_path / FILE)
    assert dtype == "float32"
    assert {one.part for one in parts if one.share > 1} == {"norm LayerNorm"}
    diary = train("lm", 4, tmp_path, callbacks=[PrecisionCheck(tmp_path, "warn")], max_steps=1)
    assert "warning: stack.blocks.0.attend.norm, norm LayerNorm, differs" in capsys.readouterr().err
    assert max(value for _, name, value in diary.lines if name.startswith("part_numerics/")) > 1


class Twice(LayerNorm):
    """Inherits the formula of another norm."""

    def forward(self, x):
        return 2 * super().forward(x)


class Reversed(MultiHead):
    """Inherits the weights of another attention."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v.flip(-1), pattern)


def test_a_subclass_with_a_method_of_its_own_is_not_held_to_the_formula_of_its_base(tmp_path):
    assert all(one.share <= 1 for one in measure(*longer(tmp_path, norm=Twice, attention=Reversed), "32-true"))


def test_nothing_of_the_net_stays_changed(tmp_path):
    module, data = longer(tmp_path)
    before = {name: dict(part.__dict__) for name, part in module.net.named_modules()}
    measure(module, data, "32-true")
    assert all(set(part.__dict__) == set(before[name]) for name, part in module.net.named_modules())
    assert not any(part._forward_hooks for part in module.net.modules())
