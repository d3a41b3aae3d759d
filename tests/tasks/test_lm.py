"""Answers: their accuracy, apart for texts longer than those of training, which the loss leaves out."""

import math

import pytest
import torch

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
