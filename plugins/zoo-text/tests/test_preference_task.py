"""DPO: the paper's formula on answers alone, a reference that stays what training started from, exact accumulation."""

import math

import pytest
import torch
from text_helpers import TINY
from zoo_text.tasks.preference import DPO

from zoo.errors import UsageError
from zoo.inference.language import TrainedLanguageModel
from zoo.parts.ffn import MoE, aux_losses
from zoo.plugins.safe_import import import_target

WORDS = 19


def task_of(**options):
    torch.manual_seed(5)
    return DPO(vocab_size=WORDS, max_length=12, **TINY | {"beta": 0.3} | options)


def moved(task, seed=0):
    """The task in evaluation, its net away from the reference."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task.net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return task.eval()


def batch_of(lengths, seed=0, width=10):
    """Pairs of (prompt, preferred answer, other answer) lengths; padding holds random tokens."""
    draw = torch.Generator().manual_seed(seed)
    columns = {"prompt": torch.tensor([prompt for prompt, *_ in lengths])}
    for place, name in enumerate(("chosen", "rejected"), 1):
        columns[name] = torch.randint(WORDS, (len(lengths), width), generator=draw)
        ends = torch.tensor([[one[0] + one[place]] for one in lengths])
        columns[f"{name}_valid"] = torch.arange(width) < ends
    for row, (prompt, *_) in enumerate(lengths):
        columns["rejected"][row, :prompt] = columns["chosen"][row, :prompt]
    return columns


def answer_log_probability(net, prompt, answer):
    """Σ log p(token | all before it) over the tokens of an answer."""
    tokens, total = [*prompt], 0.0
    for token in answer:
        scores = net(torch.tensor([tokens]))[0, -1]
        total += float(scores[token].detach() - scores.exp().sum().log().detach())
        tokens.append(token)
    return total


def formula(task, batch):
    """Σ -log σ(β log(π(y_w) / π_ref(y_w)) - β log(π(y_l) / π_ref(y_l))), and the margins (Rafailov et al., 2023, 7)."""
    margins = []
    for row, prompt in enumerate(batch["prompt"].tolist()):
        ratios = []
        for name in ("chosen", "rejected"):
            tokens = batch[name][row][batch[f"{name}_valid"][row]].tolist()
            parts = tokens[:prompt], tokens[prompt:]
            ratios.append(answer_log_probability(task.net, *parts) - answer_log_probability(task.reference, *parts))
        margins.append(task.beta * (ratios[0] - ratios[1]))
    return sum(math.log(1 + math.exp(-margin)) for margin in margins), margins


LENGTHS = [(3, 4, 6), (1, 9, 1), (5, 2, 5), (4, 3, 3)]


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("options", [{}, {"logit_scale": 2.0, "logit_cap": 1.0}, {"tie": False, "head_bias": True}])
def test_the_loss_is_that_of_the_paper(double, options):
    task, batch = moved(task_of(**options)), batch_of(LENGTHS)
    total, size = task.loss(batch)
    expected, margins = formula(task, batch)
    assert size == 4
    assert float(total.detach()) == pytest.approx(expected, abs=1e-10)
    assert float(task.evaluate(batch).total.detach()) == pytest.approx(expected, abs=1e-10)
    measured = task.compute_metrics(1.0)
    assert measured["accuracy"] == sum(margin > 0 for margin in margins) / 4
    assert measured["margin"] == pytest.approx(sum(margins) / 4, abs=1e-10)


def test_before_training_no_answer_is_preferred():
    task = task_of().eval()
    total, size = task.evaluate(batch_of(LENGTHS))
    assert float(total.detach()) == pytest.approx(4 * math.log(2), abs=1e-6)
    assert int(size) == 4
    assert task.compute_metrics(1.0) == {"accuracy": 0.0, "margin": 0.0}


def test_neither_padding_nor_prompts_count(double):
    task, batch = moved(task_of()), batch_of(LENGTHS)
    other = {name: value.clone() for name, value in batch.items()}
    for name in ("chosen", "rejected"):
        other[name][~batch[f"{name}_valid"]] = 7
        other[name] = torch.nn.functional.pad(other[name], (0, 2))
        other[f"{name}_valid"] = torch.nn.functional.pad(batch[f"{name}_valid"], (0, 2))
    torch.testing.assert_close(task.loss(other), task.loss(batch), rtol=0, atol=1e-10)


def test_a_step_of_several_batches_has_the_gradient_of_the_whole(double):
    """Pairs dealt to batches of one and of three, as training sums and divides them."""

    class OneProcess:
        accumulate_grad_batches, world_size, global_rank, strategy = 2, 1, 0, None

    task, batch = moved(task_of()).train(), batch_of(LENGTHS)

    def gradient(pieces):
        task.zero_grad()
        OneProcess.accumulate_grad_batches = len(pieces)
        task._trainer = OneProcess()
        for number, rows in enumerate(pieces):
            part = {name: value[rows] for name, value in batch.items()}
            (task.training_step(part, number) / len(pieces)).backward()
        task.on_before_optimizer_step(torch.optim.SGD(task.parameters()))
        task._trainer = None
        return torch.cat([parameter.grad.flatten() for parameter in task.net.parameters()])

    whole, parts = gradient([slice(0, 4)]), gradient([slice(0, 1), slice(1, 4)])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-10)
    loss = task.loss(batch)
    own = torch.autograd.grad(loss.total / loss.size, list(task.net.parameters()))
    torch.testing.assert_close(torch.cat([one.flatten() for one in own]), whole, rtol=0, atol=1e-10)


def test_the_reference_is_the_start_and_never_moves():
    task = moved(task_of())
    task.take_start()
    assert all(torch.equal(one, task.reference.state_dict()[name]) for name, one in task.net.state_dict().items())
    optimizer, batch = task.make_optimizer(), batch_of(LENGTHS)
    before = {name: one.clone() for name, one in task.reference.state_dict().items()}
    for _ in range(3):
        optimizer.zero_grad()
        task.train().loss(batch).total.backward()
        optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in task.reference.state_dict().items())
    assert any(not torch.equal(one, before[name]) for name, one in task.net.state_dict().items())
    names = {name for group in optimizer.param_groups for name in group["param_names"]}
    assert not any("reference" in name for name in names)


def test_the_reference_drops_nothing():
    task, batch = task_of(dropout=0.5).train(), batch_of(LENGTHS)
    assert float(task.margins(batch).detach().abs().max()) > 0  # the model itself does
    assert all(module.training for module in task.net.modules())
    task.net.eval()
    assert float(task.margins(batch).detach().abs().max()) == 0


def test_training_goes_the_way_of_the_pairs():
    task, batch = task_of(lr=1e-2).train(), batch_of(LENGTHS)
    optimizer = task.make_optimizer()
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(batch).total.backward()
        optimizer.step()
    task.eval().evaluate(batch)
    measured = task.compute_metrics(1.0)
    assert measured["accuracy"] == 1.0
    assert measured["margin"] > 1.0


def test_a_run_needs_a_start_or_a_checkpoint():
    task = task_of()
    with pytest.raises(UsageError, match=r"Add --tune\.start RUN"):
        task.on_fit_start()
    task.on_load_checkpoint({"state_dict": {}})
    assert task.has_reference


def test_it_generates_as_a_language_model():
    assert import_target(DPO.trained, "") is TrainedLanguageModel
    with pytest.raises(UsageError, match=r"model\.beta"):
        task_of(beta=0.0)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_mixture_is_balanced_over_both_answers_of_a_pair(recompute, monkeypatch):
    losses, balance = [], MoE.balance
    monkeypatch.setattr(MoE, "balance", lambda *call: losses.append(balance(*call)) or losses[-1])
    task = task_of(ffn=MoE, depth=1, recompute=recompute).train()
    task.reference.eval()
    for seed in range(2):
        losses.clear()
        total, _ = task.loss(batch_of([(2, 3, 4), (1, 5, 2)], seed))
        both = list(losses)
        (loss,) = aux_losses(task.net)
        assert len(both) == 2
        assert both[0] != both[1]
        torch.testing.assert_close(loss, sum(both) / 2)
        (total + loss).backward()
