"""Blocks that are computed again keep less memory and change nothing."""

import pytest
import torch

from tests.models.small import WORDS, language, names, part_options, seq2seq, spread
from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.block import PreNorm

KINDS = ("position", "backend", "attention", "norm", "ffn", "block")


def gradients(build, recompute, **options):
    torch.manual_seed(0)
    net = spread(build(recompute=recompute, **options)).double().train()
    torch.manual_seed(1)  # of dropout
    tokens = torch.arange(24).view(2, 12) % WORDS
    out = (
        net(tokens)
        if isinstance(net, LanguageModel)
        else net(tokens, tokens, torch.arange(12) < torch.tensor([[12], [5]]))
    )
    out.square().mean().backward()
    return out, {name: p.grad for name, p in net.named_parameters()}


@pytest.mark.parametrize("build", [language, seq2seq])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in names(kind)])
def test_gradients_are_the_same_for_every_part(kind, name, build):
    options = {**part_options({kind: name}), "dropout": 0.2}
    try:
        want, expected = gradients(build, False, **options)
        got, result = gradients(build, True, **options)
    except UsageError as error:
        pytest.skip(str(error))
    assert torch.equal(got, want)
    for parameter, grad in expected.items():
        torch.testing.assert_close(result[parameter], grad)


def saved_bytes(recompute):
    """Bytes that a forward keeps for the backward pass."""
    net = language(recompute=recompute, depth=6).train()
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = net(torch.zeros(2, 16, dtype=torch.long))
    return sum(size for place, size in storages.items() if place not in own), out


def test_less_is_kept():
    (without, _), (again, _) = saved_bytes(False), saved_bytes(True)
    assert again < without / 4


class Own(PreNorm):
    @classmethod
    def through(cls, blocks, x, contexts):
        return super().through(blocks, x, contexts)


def test_a_block_that_keeps_what_it_wants_is_refused():
    with pytest.raises(UsageError, match="recompute=false"):
        language(recompute=True, block=Own)


class Borrows(MultiHead):
    """Adds the first layer's output to its own, and notes which layers read it."""

    packs = False
    reads_earlier_layers = True

    def forward(self, x, memory=None, *, earlier_layers=None, **options):
        out = super().forward(x, memory, **options)
        if memory is not None:
            return out
        first = earlier_layers.setdefault("first", out)
        return out if first is out else out + 0.5 * first


def test_what_earlier_layers_leave_is_the_same_when_they_are_computed_again():
    want, expected = gradients(language, False, attention=Borrows, depth=3, dropout=0.2)
    got, result = gradients(language, True, attention=Borrows, depth=3, dropout=0.2)
    assert torch.equal(got, want)
    for parameter, grad in expected.items():
        torch.testing.assert_close(result[parameter], grad)


def test_what_earlier_layers_leave_is_refused_beside_a_block_that_computes_again_itself():
    with pytest.raises(UsageError, match="attention Borrows reads what earlier layers leave, of which block Own"):
        language(attention=Borrows, block=Own)


def test_nothing_of_one_forward_reaches_the_next():
    net = spread(language(attention=Borrows, depth=2)).eval()
    tokens = torch.arange(24).view(2, 12) % WORDS
    whole = net(tokens)
    net(tokens.flip(1))
    assert torch.equal(net(tokens), whole)
