"""Activations by the names of modules, and patches whose effect is known: the weights of an induction head."""

import pytest
import torch
from torch import nn

from tests.explain.induction_head import PLACES, TOKENS, one_hot_model
from zoo.errors import UsageError
from zoo.explain.activations import Patch, change, module_names, patch, record
from zoo.explain.inside import logit_lens
from zoo.tasks.lm import CausalLM

FIRST, SECOND = (f"stack.blocks.{layer}.attend.part" for layer in (0, 1))
SOURCE = torch.tensor([[0, 3, 1, 2, 0]])  # after 0 comes 3
TARGET = torch.tensor([[0, 4, 1, 2, 0]])  # after 0 comes 4


@pytest.fixture
def net():
    return one_hot_model().net


def last(token):
    return lambda logits: logits[0, -1, token]


def test_every_module_has_a_name_and_leaves_its_output(net):
    with torch.no_grad(), record(net) as activations:
        logits = net(SOURCE)
    assert {"embedding", "stack", FIRST, "stack.blocks.1.ffn.part", "stack.norm"} <= activations.keys()
    assert torch.allclose(activations["stack"] @ net.output.T, logits)
    with torch.no_grad(), record(net, "stack.blocks.*.ffn.part", "stack.blocks.1", side="input") as inputs:
        net(SOURCE)
    assert torch.equal(inputs["stack.blocks.1"], activations["stack.blocks.0"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_what_a_change_returns_is_what_the_net_goes_on_with(net):
    with torch.no_grad(), change(net, {SECOND: lambda name, x: torch.zeros_like(x)}):
        silenced = net(SOURCE)
    assert not silenced.any()  # the output reads the head alone
    with torch.no_grad(), change(net, {SECOND: lambda name, x: None}):
        assert torch.equal(net(SOURCE), net(SOURCE))
    shapes = r"is \(1, 5, 34\), and its change is \(1, 2, 34\)"
    with pytest.raises(UsageError, match=shapes), change(net, {SECOND: lambda name, x: x[:, :2]}):
        net(SOURCE)
    assert not any(module._forward_hooks for module in net.modules())


def test_a_change_of_the_input_is_the_input_of_the_module(net):
    with torch.no_grad(), change(net, {f"{SECOND}.out": lambda name, x: torch.zeros_like(x)}, side="input"):
        assert not net(SOURCE).any()


def test_the_patch_of_the_induction_head_restores_the_answer(net):
    result = patch(net, [SOURCE], [TARGET], [SECOND], positions=[4])
    assert result.source[0, -1].argmax() == 3
    assert result.target[0, -1].argmax() == 4
    assert result.patched[0, -1].argmax() == 3
    assert result.restored(last(3)) == pytest.approx(1, abs=1e-4)
    assert torch.equal(result.patched[:, :4], result.target[:, :4])
    head = patch(
        net, [SOURCE], [TARGET], [f"{SECOND}.out"], positions=slice(4, None), features=slice(0, TOKENS), side="input"
    )
    assert head.restored(last(3)) == pytest.approx(1, abs=1e-4)


def test_patches_without_effect_are_refused(net):
    with pytest.raises(UsageError, match="equal for the source and the target"):
        patch(net, [SOURCE], [TARGET], [SECOND], positions=[0])
    with pytest.raises(UsageError, match="equal for the source"):
        patch(net, [SOURCE], [TARGET], [f"{SECOND}.out"], positions=[4], features=slice(TOKENS, None), side="input")
    with pytest.raises(UsageError, match=r"no module 'stack\.blocks\.1\.atend\.part'.*Similar: stack"):
        patch(net, [SOURCE], [TARGET], ["stack.blocks.1.atend.part"])
    with pytest.raises(UsageError, match="take inputs of one length"):
        patch(net, [SOURCE[:, :4]], [TARGET], [SECOND])

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.aside, self.unused = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            self.aside(x)
            return self.read(x)

    x, y = torch.ones(1, 3, 2), torch.zeros(1, 3, 2)
    with pytest.raises(UsageError, match="aside: the output does not depend"):
        patch(Aside(), [x], [y], ["aside"])
    with pytest.raises(UsageError, match="unused was not called"):
        patch(Aside(), [x], [y], ["unused"])


def test_nothing_to_restore_is_refused():
    same = torch.ones(1)
    with pytest.raises(UsageError, match="nothing to restore"):
        Patch(same, same, same).restored(lambda output: output)


def test_names_match_patterns(net):
    assert module_names(net, "stack.blocks.*.attend.part") == [FIRST, SECOND]
    assert len(module_names(net)) == len(list(net.modules())) - 1


def test_any_model_is_patched_part_by_part():
    net = CausalLM(vocab_size=TOKENS, max_length=PLACES, dim=16, depth=2, heads=2).net
    everything = patch(net, [SOURCE], [TARGET], ["stack.norm"])
    assert torch.allclose(everything.patched, everything.source)
    for name in (FIRST, "stack.blocks.0.ffn.part", "stack.blocks.1"):
        assert not torch.equal(patch(net, [SOURCE], [TARGET], [name]).patched, everything.target)


def test_the_lens_of_the_induction_head_sees_the_answer_after_the_second_layer(net):
    lens = logit_lens(net, net.stack, SOURCE)
    assert len(lens) == 3
    assert not lens[0].any()
    assert not lens[1].any()
    assert lens[2][0, -1].argmax() == 3
    assert torch.equal(lens[2], net(SOURCE))
    assert len(net.stack.blocks) == 2
