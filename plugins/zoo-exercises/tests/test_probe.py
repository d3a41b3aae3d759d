"""Scores of heads, ranks, loads and gradients against what they are by definition, and an exact induction head."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from zoo_exercises.probe import (
    HeadScore,
    Scorecard,
    count_tokens,
    earlier_successors,
    effective_rank,
    examine,
    first_rows,
    gradient_norms,
    induction_scores,
    lift,
    probe_trained,
    repeat_accuracy,
    repeated_tokens,
    score_heads,
)
from zoo_exercises.probe_recipe import DEEPEST, small_model, train_once
from zoo_exercises.synthetic import Induction

from tests.explain.induction_head import PLACES, TOKENS, one_hot_model
from zoo.errors import UsageError
from zoo.explain.subjects import find_subject
from zoo.parts.ffn import MoE
from zoo.tasks.lm import CausalLM


def refuse(rows):
    raise NotImplementedError


def batch_of(tokens):
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "bytes": torch.zeros(len(tokens), dtype=torch.long)}


def card_of(task):
    card = Scorecard("a model", "", "")
    torch.manual_seed(0)
    examine(task, batch_of(torch.randint(TOKENS, (8, PLACES))), card)
    return card


def test_an_exact_induction_head_is_found_and_copies():
    card = card_of(one_hot_model())
    first, second = card.heads
    assert first.roles == ["previous token"]
    assert first.previous > 0.99
    assert second.roles == ["induction"]
    assert second.induction > 0.99
    assert second.repeated > 0.99
    assert second.repeated_uniform < 0.25
    assert [score.accuracy for score in card.scores] == [1.0]
    assert card.induction_heads == [second]


def test_one_layer_or_random_weights_have_no_induction_head():
    for task in (one_hot_model(depth=1), CausalLM(vocab_size=TOKENS, max_length=PLACES, dim=32, depth=2, heads=2)):
        card = card_of(task)
        assert card.induction_heads == []
        assert card.scores[0].accuracy < 0.6


def test_places_after_earlier_occurrences():
    successors = earlier_successors(torch.tensor([[3, 5, 3, 3, 5]]))[0]
    places = [set(row.nonzero().flatten().tolist()) for row in successors]
    assert places == [set(), set(), {1}, {1}, {2}]  # the query's own place is none, though place 3 follows a 3


def test_uniform_attention_lifts_no_head():
    tokens = torch.randint(4, (3, 12), generator=torch.Generator().manual_seed(1))
    weights = torch.ones(12, 12).tril()
    weights = (weights / weights.sum(-1, keepdim=True)).expand(3, 2, 12, 12)
    scores, uniform = induction_scores(weights, tokens, None)
    assert scores == pytest.approx([uniform, uniform])
    assert lift(scores[0], uniform) == pytest.approx(0, abs=1e-6)
    assert induction_scores(weights, tokens, torch.zeros(3, 12, dtype=torch.bool)) is None
    assert induction_scores(weights[:1], torch.arange(12)[None], None) is None
    assert lift(None, None) == 0


def test_previous_and_first_tokens():
    weights = torch.zeros(1, 2, 4, 4)
    weights[0, 0] = torch.eye(4).roll(1, 0)
    weights[0, 1, :, 0] = 1
    previous, first = score_heads("a", weights, None, None, None)
    assert (previous.previous, previous.first, previous.roles) == (1, 0, ["previous token"])
    assert (first.previous, first.first, first.roles) == (0, 1, ["first token"])
    assert HeadScore("a", 0, 0.1, 0.2, 0.9, 0.85, None, None).roles == []  # hardly more than uniform attention


def test_the_effective_rank_counts_directions():
    x = torch.zeros(40, 7)
    x[:, :3] = torch.linalg.qr(torch.randn(41, 3).diff(dim=0))[0]
    x = x - x.mean(0)
    basis = torch.linalg.svd(x[:, :3], full_matrices=False)[0]
    x[:, :3] = basis
    assert effective_rank(x) == pytest.approx(3, rel=1e-3)
    assert effective_rank(x + torch.arange(7.0)) == pytest.approx(3, rel=1e-3)  # the mean is left out
    assert effective_rank(torch.ones(5, 4)) == pytest.approx(1)
    line = torch.arange(5.0)[:, None] * torch.ones(1, 4)
    assert effective_rank(line) == pytest.approx(1, rel=1e-6)


def test_experts_without_a_token_are_dead():
    feed = nn.Sequential(MoE(4, 8, experts=5, top_k=1))
    with torch.no_grad():
        feed[0].router.weight.zero_()
        feed[0].router.weight[2] = 1.0
        with count_tokens(feed) as loads:
            feed(torch.ones(2, 3, 4))
    assert loads == {"0": [0, 0, 6, 0, 0]}
    with count_tokens(feed) as loads:
        pass
    assert not feed[0].experts[0]._forward_hooks


def test_gradients_by_layer_are_those_of_the_mean_loss():
    task = CausalLM(vocab_size=TOKENS, max_length=PLACES, dim=8, depth=2, heads=2)
    batch = batch_of(torch.randint(TOKENS, (3, 9)))
    task.net.embedding.weight.requires_grad_(False)
    measured = {one.layer: one for one in gradient_norms(task, batch)}
    assert not task.net.embedding.weight.requires_grad
    assert all(p.grad is None for p in task.net.parameters())
    task.net.embedding.weight.requires_grad_(True)
    total, size = task.loss(batch)
    (total / size).backward()
    for layer in ("stack.blocks.0", "stack.blocks.1", "embedding"):
        module = task.net.get_submodule(layer)
        squares = sum(float(p.grad.square().sum()) for p in module.parameters())
        assert measured[layer].norm == pytest.approx(squares**0.5, rel=1e-5)
        assert measured[layer].weights == sum(p.numel() for p in module.parameters())


def test_repeated_tokens_repeat_once():
    tokens = repeated_tokens(50, 20, 4)
    assert torch.equal(tokens[:, :10], tokens[:, 10:])
    assert all(len(set(row.tolist())) == 10 for row in tokens)
    assert repeated_tokens(3, 20, 2).max() < 3
    logits = nn.functional.one_hot(tokens.roll(-1, 1), 50).float()
    assert repeat_accuracy(logits, tokens) == 1
    assert repeat_accuracy(-logits, tokens) == 0


@pytest.mark.parametrize("name", ["lm", "vit", "pairs"])
def test_every_kind_of_model_has_a_card(recipes, name):
    with ExitStack() as stack:
        card = probe_trained(find_subject([f"{name}.yaml"]), stack, "cpu")
    assert card.texts == "its validation data"
    assert all(0 <= head.previous <= 1 and 0 <= head.first <= 1 for head in card.heads)
    assert {head.head for head in card.heads} == {0, 1}
    assert {rank.layer.rpartition(" ")[2] for rank in card.ranks} >= {"input"}
    assert all(1 <= rank.rank <= rank.most for rank in card.ranks)
    assert len([one for one in card.gradients if "blocks" in one.layer and one.norm > 0]) >= 2
    assert [score.task for score in card.scores] == (["repeated tokens"] if name == "lm" else [])


def test_data_that_are_not_here_are_replaced_with_a_note(recipes):
    with ExitStack() as stack:
        subject = find_subject(["lm.yaml"])
        task = subject.open(stack, "cpu").task
        (recipes / "corpus.txt").unlink()
        subject.open = lambda *_: SimpleNamespace(task=task)
        card = probe_trained(subject, stack, "cpu")
        assert card.texts == "random inputs"
        assert "the data of the model are not here" in card.notes[0]
        assert len(card.heads) == 6
        task.sample = refuse
        with pytest.raises(UsageError, match="no random inputs"):
            probe_trained(subject, stack, "cpu")


def test_a_batch_is_cut_to_rows_that_fit():
    batch = {"inputs": torch.zeros(40, 64), "bytes": torch.zeros(40)}
    assert {len(value) for value in first_rows(batch, 32).values()} == {32}
    assert len(first_rows({"inputs": torch.zeros(40, 512)}, 32)["inputs"]) == 2
    assert first_rows([1], 2) == [1]


def test_small_models_have_the_parts_of_a_recipe():
    options, notes = small_model(
        {"dim": 512, "depth": 6, "heads": 8, "position": "ALiBi", "overrides": [{"layers": "first", "window": 2}],
         "vocab_size": 1000, "lr": 1.0}
    )  # fmt: skip
    assert options == {"position": "ALiBi", "dim": 64, "depth": DEEPEST, "heads": 8}
    assert "overrides" in notes[0]
    options, notes = small_model({"dim": 32, "depth": 1, "heads": 3, "overrides": []})
    assert options == {"overrides": [], "dim": 30, "depth": 1, "heads": 3}


@pytest.mark.campaign
def test_training_makes_an_induction_head_in_two_layers_and_none_in_one():
    data = Induction(batch_size=32, eval_size=128, seed=1)
    data.ready()
    parts = {"position": "RoPE", "norm": "RMSNorm", "ffn": "SwiGLU", "dim": 32, "heads": 2}
    counts, accuracy = {}, {}
    for depth in (1, 2):
        task = train_once({**parts, "depth": depth}, data, 1e-2, 1000)
        card = Scorecard("", "", "")
        examine(task.eval(), next(iter(data.val_dataloader())), card)
        counts[depth] = len(card.induction_heads)
        accuracy[depth] = max(head.induction - head.uniform for head in card.heads)
    assert counts[1] == 0, accuracy
    assert counts[2] >= 1, accuracy
