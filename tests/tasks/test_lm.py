"""Answers: their accuracy, apart for texts longer than those of training, which the loss leaves out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.block import Parallel, PreNorm, Sandwich
from zoo.parts.ffn import MoE
from zoo.parts.norm import RMSNorm
from zoo.tasks.lm import CausalLM


class Repeats(CausalLM):
    """Predicts each token again, sure of it."""

    def __init__(self):
        super().__init__(vocab_size=5, max_length=4, dim=8, depth=1, heads=2)

    def forward(self, tokens):
        return 10.0 * torch.nn.functional.one_hot(tokens, 5)


def batch(inputs, targets, longer):
    rows = {"inputs": torch.tensor(inputs), "targets": torch.tensor(targets), "longer": torch.tensor(longer)}
    return rows | {"bytes": torch.zeros(len(inputs), dtype=torch.long)}


def test_accuracy_counts_answers_of_each_length_apart():
    task = Repeats()
    task.evaluate(batch([[1, 2, 3, 4], [1, 1, 2, 2]], [[-100, 2, 0, -100], [-100, 1, 2, 2]], [False, True]))
    task.evaluate(batch([[1, 2, 3, 4]], [[1, 2, 3, -100]], [False]))
    measured = task.compute_metrics(0.0)
    assert measured["accuracy"] == pytest.approx(4 / 5)
    assert measured["accuracy_longer"] == 1.0
    assert math.isnan(measured["bits_per_byte"])
    assert math.isnan(task.compute_metrics(0.0)["accuracy"])


def test_the_loss_leaves_out_longer_texts():
    task = CausalLM(vocab_size=5, max_length=4, dim=8, depth=1, heads=2).eval()
    rows = [[1, 2, 3, 4], [1, 1, 2, 2]], [[-100, 2, 0, -100], [-100, 1, 2, 2]]
    both, first = task.evaluate(batch(*rows, [False, True])), task.loss(batch(*(one[:1] for one in rows), [False]))
    assert both.size == first.size == 2
    assert both.total.item() == pytest.approx(first.total.item())


def test_text_has_no_accuracy_and_costs_one_pass():
    task, passes = CausalLM(vocab_size=5, max_length=4, dim=8, depth=1, heads=2).eval(), []
    task.net.stack.register_forward_hook(lambda *_: passes.append(1))
    task.evaluate(task.sample(2))
    assert len(passes) == 1
    assert math.isnan(task.compute_metrics(0.0)["accuracy"])


def test_the_gradient_is_that_of_all_answers_of_a_step_however_they_are_spread():
    """Answers are unevenly spread over batches: a sum over them, divided once, must not depend on the batches."""
    task = CausalLM(vocab_size=7, max_length=13, dim=8, depth=1, heads=2)
    targets = torch.randint(7, (12, 13)).masked_fill(torch.rand(12, 13) < torch.linspace(0.1, 0.9, 12)[:, None], -100)
    whole = {"inputs": torch.randint(7, (12, 13)), "targets": targets, "bytes": torch.zeros(12, dtype=torch.long)}

    def gradient(parts):
        task.zero_grad()
        losses = [task.loss({name: one[part] for name, one in whole.items()}) for part in parts]
        (sum(loss.total for loss in losses) / sum(loss.size for loss in losses)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in task.parameters()])

    sizes = [int((whole["targets"][part] >= 0).sum()) for part in (slice(0, 4), slice(4, 12))]
    assert sizes[0] * 2 != sizes[1]
    torch.testing.assert_close(gradient([slice(0, 4), slice(4, 12)]), gradient([slice(0, 12)]))


def test_an_answer_is_exact_where_every_token_of_it_is_right():
    task = Repeats()
    tokens = torch.tensor([[1, 2, 3, 4, 3], [1, 2, 3, 4, 3]])
    answers = torch.tensor([[1, 1, 0, 2, 2], [0, 1, 1, 1, 0]])
    targets = torch.tensor([[1, 2, -100, 4, 0], [-100, 2, 3, 4, -100]])
    task.evaluate({"inputs": tokens, "targets": targets, "answers": answers, "bytes": torch.ones(2)})
    measured = task.compute_metrics(0.0)
    assert measured["exact"] == pytest.approx(2 / 3)  # the second answer of the first row has a wrong token
    assert measured["accuracy"] == pytest.approx(6 / 7)
    assert math.isnan(task.compute_metrics(0.0)["exact"])


LOGITS = [
    {"logit_cap": 2.0}, {"logit_scale": 0.25}, {"head_bias": True, "tie": False}, {"embedding_scale": 3.0},
    {"logit_cap": 3.0, "logit_scale": 2.0, "head_bias": True, "tie": False, "embedding_scale": 0.5},
    {"block": lambda *parts: PreNorm(*parts, scale=0.3)}, {"norm": lambda dim: RMSNorm(dim, offset=1.0)},
    {"block": lambda *parts: Sandwich(*parts, front=False)}, {"block": lambda *parts: Parallel(*parts, own_norms=True)},
    {"attention": lambda *parts: MultiHead(*parts, qk_norm=lambda dim: RMSNorm(dim, joint=True))},
    {"ffn": lambda *sizes: MoE(*sizes, experts=3, normalize=False, router_bias=True)},
]  # fmt: skip


@pytest.mark.parametrize("options", LOGITS, ids=lambda options: " ".join(options))
def test_options_of_published_decoders_change_logits_which_loss_and_steps_share(options):
    task = CausalLM(vocab_size=11, max_length=16, dim=16, depth=2, heads=2, **options).eval()
    net, usual = task.net, LanguageModel(11, 16, dim=16, depth=2, heads=2, tie=options.get("tie", True)).eval()
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            parameter.add_(torch.randn_like(parameter), alpha=0.1 + 0.01 * index)
        usual.load_state_dict(net.state_dict(), strict=False)
    tokens = torch.randint(11, (3, 9))
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:].clone()}
    batch["targets"][0, 3] = -100
    logits = net(tokens[:, :-1])
    assert (logits - usual(tokens[:, :-1])).abs().max() > 1e-3
    right = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    assert_close(task.loss(batch).total, right, rtol=1e-5, atol=1e-5)
    names = [name for name, _ in net.named_parameters()]
    ours, theirs = (torch.autograd.grad(loss, list(net.parameters())) for loss in (task.loss(batch).total, right))
    for name, one, other in zip(names, ours, theirs, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
    state = net.begin(9)
    with torch.no_grad():
        steps = [state.step(tokens[:, begin:end]) for begin, end in ((0, 4), (4, 5), (5, 6), (6, 8))]
    assert_close(torch.stack(steps), logits[:, [3, 4, 5, 7]].transpose(0, 1), rtol=1e-4, atol=1e-5)
    assert logits.abs().max() <= options.get("logit_cap", torch.inf)


@pytest.mark.parametrize(("options", "words"), [({"logit_cap": 0.0}, "above 0, got 0.0"), ({"head_bias": True}, "tie")])
def test_options_of_logits_that_make_no_sense_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        LanguageModel(11, 9, dim=8, depth=1, heads=2, **options)
