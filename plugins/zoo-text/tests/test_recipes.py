"""Every recipe is short, says what it costs, and builds at the size it claims."""

import re

import pytest
import torch
from jsonargparse import ArgumentParser

from zoo import recipe_files
from zoo.config import fit_options, run_config
from zoo.tasks.task import Task
from zoo.training.memory_estimate import estimate, full_batch

RECIPES = (
    "bart-style-tiny", "bert-base", "bert-large", "camembert-base", "deberta-base", "deberta-v3-base", "dialogue-tiny",
    "distilbert-base", "dpo-tiny", "eurobert-210m", "fim-tiny", "long-topics-tiny", "mlm-tiny",
    "modernbert-base", "questions-tiny", "roberta-base", "roles-tiny", "summary-tiny", "t5-style-tiny", "topics-tiny",
    "xlm-roberta-base",
)  # fmt: skip
COUNTS = {
    "bert-base": 110_106_428,  # with the heads of hidden tokens and of pairs
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,
    "camembert-base": 110_655_493,
    "distilbert-base": 66_985_530,
    "modernbert-base": 149_655_232,
    "eurobert-210m": 310_266_624,
    "xlm-roberta-base": 278_295_186,
    "deberta-base": 139_244_121,
    "deberta-v3-base": 184_551_780,
}
# without heads, as the papers' models are counted; BERT's and RoBERTa's with the pooler of their first token
BODIES = {
    "bert-base": (109_482_240, True),
    "bert-large": (335_141_888, True),
    "roberta-base": (124_645_632, True),
    "deberta-base": (138_601_728, False),
    "deberta-v3-base": (183_831_552, False),
}
SMALL = {"dim": 32, "depth": 2, "heads": 4, "vocab_size": 64, "source_vocab_size": 64, "target_vocab_size": 64}


def build(name: str, device: str = "meta", small: bool = False) -> Task:
    """The task of a recipe as `zoo fit` would build it, or the same parts at a size that tests can run."""
    parsed = fit_options.parse("fit", [name])
    plan = run_config.make_plan(parsed, run_config.read_draft(parsed))
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Task, "model")
    filled = parser.parse_object({"model": plan.config["model"]})
    blanks = filled.model.init_args
    for key, value in plan.resolved.classes["model"].small_sizes(blanks).items():
        if blanks[key] is None:
            blanks[key] = value
    for key in SMALL.keys() & vars(blanks).keys() if small else ():
        blanks[key] = SMALL[key]
    with torch.device(device):
        return parser.instantiate(filled).model


def test_these_are_the_recipes_of_the_package():
    names = [recipe.name for recipe in recipe_files.recipes() if recipe.distribution == "zoo-text"]
    assert tuple(names) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_short_and_its_header_tells_size_time_and_expected_score(name):
    text = recipe_files.find_recipe(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    header = "\n".join(recipe_files.packaged_recipe(name).header)
    assert header.startswith(f"{name}: ")
    assert all(f"{word}: " in header for word in ("size", "time", "expected", "data"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_at_the_size_of_its_header(name):
    total = sum(p.numel() for p in build(name).net.parameters())
    assert total == COUNTS.get(name, total)
    header = "\n".join(recipe_files.packaged_recipe(name).header)
    claimed = 1e6 * float(re.search(r"size: ([\d.]+) M parameters", header)[1])
    # the data decides the vocabulary
    assert "tiny" in name or total == pytest.approx(claimed, rel=0.05)


@pytest.mark.parametrize("name", BODIES)
def test_an_encoder_without_its_heads_has_the_published_size(name):
    net, (expected, pooler) = build(name).net, BODIES[name]
    own = {id(p): p.numel() for part in (net.embedding, net.segment, net.stack) if part for p in part.parameters()}
    assert sum(own.values()) + pooler * net.dim * (net.dim + 1) == expected


@pytest.mark.parametrize("name", ["mlm-tiny", "topics-tiny", "roles-tiny", "fim-tiny"])
def test_the_memory_of_a_step_can_be_estimated_and_batches_count(name):
    task = build(name, "cpu", small=True)
    one, four = (estimate(task, full_batch(task, count)) for count in (1, 4))
    assert one[:3] == four[:3]
    assert one.gradients <= one.batch < four.batch < 5 * one.batch
