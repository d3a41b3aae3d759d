"""Padding removed changes no loss and no gradient, whatever the parts."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.small import SIZES, WORDS, chosen, names, seq2seq, spread
from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.ffn import MoE
from zoo.parts.packing import MULTIPLE, Packing
from zoo.tasks.translation import Translation

KINDS = ("position", "backend", "attention", "norm", "ffn", "block")
OPTIONS = [
    {"window": 2},
    {"tie": "all"},
    {"tie": "none"},
    {"decoder_depth": 1},
    {"output_bias": True},
    {"scale_logits": True, "tie": "all"},
    {"output_bias": True, "scale_embedding": True, "tie": "all"},
]
VALID = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0], [0] * 7, [1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)


def batch(rows=4):
    generator = torch.Generator().manual_seed(1)
    source_valid = torch.arange(9) < torch.tensor([[9], [2], [4], [1]])[:rows]
    target_valid = torch.arange(8) < torch.tensor([[3], [8], [2], [5]])[:rows]
    return {
        "source": torch.randint(WORDS, (rows, 9), generator=generator), "source_valid": source_valid,
        "target": torch.randint(WORDS, (rows, 8), generator=generator), "target_valid": target_valid,
    }  # fmt: skip


def found(task, data, loss=None):
    task.zero_grad()
    total, size = (loss or task.loss)(data)
    side = sum(m.side_loss for m in task.net.modules() if getattr(m, "side_loss", None) is not None)
    (total + side).backward()
    return total.detach(), size, {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}


def plain_loss(task, data):
    """From the logits of all tokens, padding included."""
    logits, wanted = task(data["source"], data["target"][:, :-1], data["source_valid"]), data["target"][:, 1:]
    valid = data["target_valid"][:, 1:]
    total = F.cross_entropy(logits[valid], wanted[valid], reduction="sum", label_smoothing=0.1)
    return total, valid.sum()


def compare(monkeypatch, data, **parts):
    torch.manual_seed(0)
    try:
        task = Translation(WORDS, WORDS, 16, 0.1, **{**SIZES, **parts})
    except UsageError as error:
        pytest.skip(str(error))
    spread(task.net)
    task.double().train()
    used = []
    plain = Packing.pack
    monkeypatch.setattr(Packing, "pack", lambda self, *args: used.append(self) or plain(self, *args))
    packed = found(task, data)
    assert used
    monkeypatch.setattr(Packing, "of", classmethod(lambda cls, valid: None))
    padded = found(task, data)
    whole = found(task, data, lambda batch: plain_loss(task, batch))
    torch.testing.assert_close(padded[0], whole[0])
    for name, grad in padded[2].items():
        torch.testing.assert_close(grad, whole[2][name], rtol=1e-6, atol=1e-9, msg=lambda told, n=name: f"{n}: {told}")
    torch.testing.assert_close(packed[0], padded[0])
    assert packed[1] == padded[1]
    assert packed[2].keys() == padded[2].keys()
    for name, grad in packed[2].items():
        torch.testing.assert_close(grad, padded[2][name], rtol=1e-6, atol=1e-9, msg=lambda told, n=name: f"{n}: {told}")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in names(kind)])
def test_packed_equals_padded_for_every_part(kind, name, monkeypatch):
    # a padded decoder's padding enters the balance of its experts, which a packed one's does not
    part = partial(MoE, balance=0.0) if name == "MoE" else chosen({kind: name})[kind]
    compare(monkeypatch, batch(), **{kind: part})


@pytest.mark.parametrize("options", OPTIONS)
def test_packed_equals_padded_with_options(options, monkeypatch):
    compare(monkeypatch, batch(), **options)


@pytest.mark.parametrize("side", ["source", "target"])
def test_one_side_may_have_no_padding(side, monkeypatch):
    data = batch()
    data[f"{side}_valid"] = torch.ones_like(data[f"{side}_valid"])
    compare(monkeypatch, data)


class Reads(MultiHead):
    """An attention that reads x in its own way: it is to be shown the padded batch."""

    def forward(self, x, memory=None, **named):
        assert x.size(0) == 4
        assert memory is None or memory.size(0) == 4
        assert named["pattern"].queries is None
        return super().forward(x, memory, **named)


def test_an_attention_with_a_forward_of_its_own_sees_the_padded_batch(monkeypatch):
    compare(monkeypatch, batch(), attention=Reads)


def test_norms_and_feed_forwards_see_real_tokens_only():
    net = seq2seq().train()
    seen = []
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, inputs, out: seen.append(inputs[0].shape[:-1].numel()))
    data = batch()
    packing = Packing(data["target_valid"])
    net.states(data["source"], data["target"], data["source_valid"], packing)
    assert set(seen) == {MULTIPLE}  # 16 and 18 real tokens of 36 and 32, filled up


def test_what_is_packed_comes_back():
    packing = Packing(VALID)
    x = torch.randn(*VALID.shape, 3)
    packed = packing.pack(x)
    assert packed.shape == (1, MULTIPLE, 3)
    assert torch.equal(packed[0, : packing.count], x[VALID])
    assert not packed[0, packing.count :].any()
    assert torch.equal(packing.spread(packed), x * VALID[..., None])
    assert torch.equal(packing.real[0].nonzero()[:, 0], torch.arange(packing.count))


@pytest.mark.parametrize(
    "valid", [None, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool), torch.ones(0, 3) > 0]
)
def test_a_batch_without_padding_or_tokens_is_left_as_it_is(valid):
    assert Packing.of(valid) is None


def test_in_evaluation_nothing_is_packed():
    data = batch()
    assert seq2seq().eval().encode(data["source"], data["source_valid"]).packing is None
