"""Padding removed changes no loss and no gradient, whatever the parts."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.small import SIZES, WORDS, names, part_options, seq2seq, spread
from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.block import Block, Parallel, PostNorm, PreNorm, Sandwich
from zoo.parts.ffn import MoE, aux_losses
from zoo.parts.packing import MULTIPLE, Packing, declares_packs
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


def loss_and_gradients(task, data, loss=None):
    task.zero_grad()
    total, size = (loss or task.loss)(data)
    (total + sum(aux_losses(task.net))).backward()
    return total.detach(), size, {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}


def plain_loss(task, data):
    """From the logits of all tokens, padding included."""
    logits, expected = task(data["source"], data["target"][:, :-1], data["source_valid"]), data["target"][:, 1:]
    valid = data["target_valid"][:, 1:]
    total = F.cross_entropy(logits[valid], expected[valid], reduction="sum", label_smoothing=0.1)
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
    pack = Packing.pack
    monkeypatch.setattr(Packing, "pack", lambda self, *args: used.append(self) or pack(self, *args))
    packed = loss_and_gradients(task, data)
    assert used
    monkeypatch.setattr(Packing, "of", classmethod(lambda cls, valid: None))
    padded = loss_and_gradients(task, data)
    whole = loss_and_gradients(task, data, lambda batch: plain_loss(task, batch))
    torch.testing.assert_close(padded[0], whole[0])
    for name, grad in padded[2].items():
        torch.testing.assert_close(grad, whole[2][name], rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    torch.testing.assert_close(packed[0], padded[0])
    assert packed[1] == padded[1]
    assert packed[2].keys() == padded[2].keys()
    for name, grad in packed[2].items():
        torch.testing.assert_close(grad, padded[2][name], rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in names(kind)])
def test_packed_equals_padded_for_every_part(kind, name, monkeypatch):
    # a padded decoder's padding enters the balance of its experts, which a packed one's does not
    part = partial(MoE, aux_loss_weight=0.0) if name == "MoE" else part_options({kind: name})[kind]
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

    def forward(self, x, memory=None, **kwargs):
        assert x.size(0) == 4
        assert memory is None or memory.size(0) == 4
        assert kwargs["pattern"].queries is None
        return super().forward(x, memory, **kwargs)


def test_an_attention_with_a_forward_of_its_own_sees_the_padded_batch(monkeypatch):
    compare(monkeypatch, batch(), attention=Reads)


def test_norms_and_feed_forwards_see_real_tokens_only():
    net = seq2seq().train()
    calls = []
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, inputs, out: calls.append(inputs[0].shape[:-1].numel()))
    data = batch()
    packing = Packing(data["target_valid"])
    net.states(data["source"], data["target"], data["source_valid"], packing)
    assert set(calls) == {MULTIPLE}  # 16 and 18 real tokens of 36 and 32, filled up


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


# what a sentence may feel of the others: nothing


class Convolved(nn.Module):
    """A causal convolution along a row, the heart of many blocks that mix tokens."""

    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 3, padding=2)
        self.weight = self.bias = None  # an attention may ask

    def forward(self, x):
        return self.convolution(x.mT)[..., : x.size(1)].mT


class Convolves(PreNorm):
    """It mixes tokens and says nothing."""

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.mix = Convolved(attend.out.out_features)

    def forward(self, x, context):
        return super().forward(x + self.mix(x), context)


class Scans(Block):
    """A linear recurrence along a row: h_t = 0.9 h_(t-1) + x_t."""

    def forward(self, x, context):
        state, rows = x.new_zeros(x.size(0), x.size(2)), []
        for token in x.unbind(1):
            state = 0.9 * state + token
            rows.append(state)
        x = x + context.attend(self.attend.part, torch.stack(rows, 1))
        return x if self.cross is None else x + context.look(self.cross.part, x)


class Shifts(Sandwich):
    """Half of the features are the neighbour's."""

    def join(self, x, branch, call, context):
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        half = x.size(-1) // 2
        return super().join(torch.cat([x[..., :half], before[..., half:]], -1), branch, call, context)


class Shifting:
    """A mixin that shifts what any block joins."""

    def join(self, x, *args):
        return super().join(x + F.pad(x, (0, 0, 1, 0))[:, :-1], *args)


class Mixed(Shifting, PostNorm):
    """No code of its own."""


class Wrapped(Parallel):
    """Its norm mixes tokens, which no method of the block shows but the one that builds it."""

    def __init__(self, attend, cross, ffn, norm, dropout):
        super().__init__(attend, cross, ffn, norm, dropout)
        self.norm = nn.Sequential(norm(), Convolved(attend.out.out_features))


class ConvolvedHeads(MultiHead):
    """Its projections mix tokens (So et al., 2021)."""

    def __init__(self, dim, heads, backend=None, dropout=0.0):
        super().__init__(dim, heads, backend, dropout)
        self.qkv = nn.Sequential(self.qkv, Convolved(3 * dim))

    def _heads(self, x, first, count):
        whole = self.qkv(x)[..., first * self.head_dim : (first + count) * self.head_dim]
        return whole.unflatten(-1, (count, -1)).transpose(1, 2)


class ConvolvedOutput(MultiHead):
    """No method but the one that builds it."""

    def __init__(self, dim, heads, backend=None, dropout=0.0):
        super().__init__(dim, heads, backend, dropout)
        self.out = nn.Sequential(self.out, Convolved(dim))
        self.out.out_features = dim


class DeclaresWrongly(Convolves):
    packs = True


MIXERS = [
    *[{"block": block} for block in (Convolves, Scans, Shifts, Mixed, Wrapped)],
    {"attention": ConvolvedHeads}, {"attention": ConvolvedOutput}, {"block": Convolves, "attention": ConvolvedHeads},
]  # fmt: skip
SLOTS = [(kind, name) for kind in KINDS for name in names(kind)]


def felt(**options):
    """The largest gradient of a sentence's states, of packed batches, by another sentence's embeddings; and its own."""
    torch.manual_seed(0)
    net = spread(seq2seq(**options)).double().train()
    embedded = {}
    for side in ("source", "target"):
        table = getattr(net, f"{side}_embedding")
        table.register_forward_hook(lambda module, inputs, out, side=side: embedded.update({side: out}))
    data = batch()
    packing = Packing(data["target_valid"])
    states = packing.spread(net.states(data["source"], data["target"], data["source_valid"], packing))
    others, own = 0.0, float("inf")
    for row, read in enumerate(states):
        grads = torch.autograd.grad(read.square().sum(), list(embedded.values()), retain_graph=True)
        own = min(own, *(float(grad[row].abs().max()) for grad in grads))
        others = max(others, *(float(grad[torch.arange(len(grad)) != row].abs().max()) for grad in grads))
    return others, own


@pytest.mark.parametrize("parts", MIXERS, ids=lambda parts: "+".join(part.__name__ for part in parts.values()))
@pytest.mark.parametrize("recompute", [False, True])
def test_a_part_that_mixes_tokens_mixes_no_sentences(parts, recompute):
    others, own = felt(recompute=recompute, **parts)
    assert own > 0
    assert others == 0


@pytest.mark.parametrize(("kind", "name"), SLOTS)
def test_no_installed_part_mixes_sentences(kind, name):
    try:
        others, own = felt(**part_options({kind: name}))
    except UsageError as error:
        pytest.skip(str(error))
    assert own > 0
    assert others == 0


def test_a_wrong_declaration_is_felt():
    assert felt(block=DeclaresWrongly)[0] > 1e-6


@pytest.mark.parametrize("block", [Convolves, Mixed, Wrapped])
def test_packed_equals_padded_for_a_block_that_mixes_tokens(block, monkeypatch):
    compare(monkeypatch, batch(), block=block)


def test_every_block_of_zoo_is_packed():
    assert all(declares_packs(block) for block in (PreNorm, PostNorm, Sandwich, Parallel))
    assert not declares_packs(Block)


def test_a_subclass_with_code_declares_anew():
    class Renamed(PreNorm):
        closes = False

    class Counts(PreNorm):
        count = property(lambda self: 1)

    class Computes(PreNorm):
        join = partial(PreNorm.join)

    assert declares_packs(Renamed)
    assert not declares_packs(Counts)
    assert not declares_packs(Computes)
    assert not declares_packs(Mixed)
    assert declares_packs(DeclaresWrongly)


def test_experts_of_a_block_that_is_not_packed_see_no_padding():
    calls = []

    class Counting(MoE):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    data = batch()
    packing = Packing(data["target_valid"])
    seq2seq(block=Convolves, ffn=Counting).train().states(data["source"], data["target"], data["source_valid"], packing)
    assert calls == [16, 16, 18, 18]
