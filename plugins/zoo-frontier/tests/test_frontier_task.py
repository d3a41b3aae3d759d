"""Multi-token prediction: DeepSeek-V3's formula, gradients over a whole step, and all that it shares with CausalLM."""

import pytest
import torch
from torch import nn
from zoo_frontier.task import MTP

from zoo.errors import UsageError
from zoo.models.generation import GenerationConfig, generate
from zoo.parts.norm import RMSNorm
from zoo.tasks.lm import CausalLM

SIZES = {"vocab_size": 23, "max_length": 12, "dim": 16, "depth": 2, "heads": 2, "norm": RMSNorm}


def task_of(cls=MTP, **options):
    torch.manual_seed(1)
    return cls(**SIZES, **options)


def moved(task, seed=0):
    """The task in evaluation, its weights away from their start."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task.net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return task.eval()


def batch_of(tokens, padding=0):
    """Rows of tokens (B, T + 1) as data gives them, the last ``padding`` targets of the first row left out."""
    targets = tokens[:, 1:].clone()
    if padding:
        targets[0, -padding:] = -100
    return {"inputs": tokens[:, :-1], "targets": targets, "bytes": torch.full((len(tokens),), 40)}


def formula(task, tokens, padding=0):
    """Σ CE(next) + weight / K · Σ_k Σ CE(k further), place by place, with norms written out (DeepSeek-V3, 21 to 25)."""
    net, total = task.net, 0.0

    def normed(x, norm):
        return x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight

    def nats(state, token):
        scores = net.logit_scale * net.embedding.weight @ state
        scores = scores if net.logit_cap is None else net.logit_cap * (scores / net.logit_cap).tanh()
        return scores.exp().sum().log() - scores[token]

    for number, row in enumerate(tokens):
        last = len(row) - (padding if number == 0 else 0)  # tokens from this place on are no targets
        states = net.states(row[None, :-1])[0]
        total += sum(nats(states[i], row[i + 1]) for i in range(last - 1))
        for k, module in enumerate(net.depths, 1):
            pairs = [
                torch.cat(
                    [normed(states[i], module.state_norm), normed(net.embedding.weight[row[i + k]], module.token_norm)]
                )
                for i in range(len(row) - 1 - k)
            ]
            if not pairs:
                break
            states = module.stack(torch.stack([module.joint.weight @ pair for pair in pairs])[None])[0]
            further = sum(nats(states[i], row[i + k + 1]) for i in range(len(states)) if i + k + 1 < last)
            total = total + task.ahead_weight / task.ahead * further
    return total


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("options", [{}, {"logit_scale": 3.0}, {"logit_cap": 2.0, "logit_scale": 3.0}])
def test_the_loss_is_that_of_the_paper(double, ahead, padding, options):
    task, tokens = moved(task_of(ahead=ahead, ahead_weight=0.7, **options)), torch.randint(23, (3, 11))
    total, size = task.loss(batch_of(tokens, padding))
    assert size == 30 - padding
    torch.testing.assert_close(total, formula(task, tokens, padding), rtol=0, atol=1e-10)


def test_rows_shorter_than_the_reach_have_fewer_terms(double):
    task, tokens = moved(task_of(ahead=3)), torch.randint(23, (2, 3))
    torch.testing.assert_close(task.loss(batch_of(tokens)).total, formula(task, tokens), rtol=0, atol=1e-10)
    alone = task.loss(batch_of(tokens[:, :2]))
    torch.testing.assert_close(alone, moved(task_of(CausalLM)).loss(batch_of(tokens[:, :2])), rtol=0, atol=1e-10)


def test_an_evaluation_is_that_of_causal_lm(double):
    task, causal, tokens = moved(task_of(ahead=2)), task_of(CausalLM).eval(), torch.randint(23, (3, 11))
    causal.net.load_state_dict(task.net.state_dict(), strict=False)
    batch = batch_of(tokens, padding=4)
    for one, other in zip(task.evaluate(batch), causal.evaluate(batch), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    ours, theirs = task.compute_metrics(1.0), causal.compute_metrics(1.0)
    assert ours.keys() - theirs.keys() == {"loss_1_later", "loss_2_later"}
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12, nan_ok=True)
    assert MTP.prediction == CausalLM.prediction
    assert MTP.monitored_metrics == CausalLM.monitored_metrics


def test_both_tasks_start_from_the_same_weights():
    own, causal = task_of().net.state_dict(), task_of(CausalLM).net.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in causal.items())
    assert {name.partition(".")[0] for name in own.keys() - causal.keys()} == {"depths"}


def test_a_step_of_several_batches_has_the_gradient_of_the_whole(double):
    """Rows of other lengths in one batch, and in three: the sum of losses over the sum of next tokens."""
    task, tokens = moved(task_of(ahead=2)).train(), torch.randint(23, (4, 11))
    whole = batch_of(tokens)
    whole["targets"][0, 3:], whole["targets"][3, 7:] = -100, -100

    def gradient(batches):
        task.zero_grad()
        losses = [task.loss({name: value[rows] for name, value in whole.items()}) for rows in batches]
        (torch.stack([one.total for one in losses]).sum() / sum(one.size for one in losses)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in task.net.parameters()])

    pieces = gradient([slice(0, 1), slice(1, 3), slice(3, 4)])
    torch.testing.assert_close(gradient([slice(None)]), pieces, rtol=0, atol=1e-12)


def test_generation_leaves_the_modules_out(double):
    task, causal = moved(task_of(ahead=2)), task_of(CausalLM).eval()
    causal.net.load_state_dict(task.net.state_dict(), strict=False)
    prompt = torch.randint(23, (3, 4))
    for search in (GenerationConfig(max_length=7), GenerationConfig(max_length=7, beams=3)):
        ours, theirs = (generate(one.net.begin(11), prompt, None, search) for one in (task, causal))
        assert ours == theirs
    state, logits = task.net.begin(11), task.net(prompt)[:, -1]
    torch.testing.assert_close(state.step(prompt), logits, rtol=0, atol=1e-10)
    following = torch.randint(23, (3, 1))
    torch.testing.assert_close(
        state.step(following), task.net(torch.cat([prompt, following], 1))[:, -1], rtol=0, atol=1e-10
    )


def test_a_cost_counts_the_modules():
    task = task_of(ahead=2)
    (tokens, valid, every), count = task.example()
    assert count == 12
    with torch.device("meta"):
        shapes = [tuple(one.shape) for one in task_of(ahead=2).to("meta").net(tokens, valid, every)]
    assert shapes == [(1, 12, 23), (1, 11, 23), (1, 10, 23)]


def test_a_module_learns_and_the_next_token_does_not_suffer_from_a_weight_of_zero():
    task = task_of(ahead=1, ahead_weight=0.0).train()
    task.loss(batch_of(torch.randint(23, (2, 11)))).total.backward()
    assert all(float(one.grad.abs().sum()) == 0.0 for one in task.net.depths.parameters())
    causal = task_of(CausalLM).train()
    task.zero_grad()
    batch = batch_of(torch.randint(23, (2, 11)))
    task.loss(batch).total.backward()
    causal.loss(batch).total.backward()
    torch.testing.assert_close(task.net.embedding.weight.grad, causal.net.embedding.weight.grad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ahead": 0}, "For none: --model CausalLM"),
        ({"ahead": 12}, "rows have 12 tokens"),
        ({"ahead_weight": -1.0}, "is a weight"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        task_of(**options)


def test_modules_are_of_the_stack_s_parts():
    net = task_of(ahead=2).net
    assert len(net.depths) == 2
    assert all(len(one.stack.blocks) == 1 and isinstance(one.state_norm, RMSNorm) for one in net.depths)
    assert isinstance(net.depths[0].joint, nn.Linear)
