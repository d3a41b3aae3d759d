"""Every packaged recipe is short, says what it costs, and builds at the size it claims."""

import re

import pytest
import torch
from jsonargparse import ArgumentParser

from zoo import cookbook
from zoo.cli import args, plan
from zoo.tasks.task import Task

RECIPES = [recipe.name for recipe in cookbook.recipes() if recipe.builtin]
COUNTS = {
    "transformer-base": 63_045_632,  # 63.05 M
    "transformer-big": 214_171_648,  # 214.17 M
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "vit-b16": 86_567_656,
}


META = torch.device("meta")


SMALL = {"dim": 32, "depth": 2, "heads": 4, "vocab_size": 64, "source_vocab_size": 64, "target_vocab_size": 64}


def build(name: str, device: torch.device = META, small: bool = False) -> Task:
    """The task of a recipe as `zoo fit` would build it, or the same parts at a size that tests can run."""
    parsed = args.parse("fit", [name])
    config = plan.plan(parsed, plan.draft(parsed)).config["model"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Task, "model")
    filled = parser.parse_object({"model": config})
    blanks = filled.model.init_args
    for key, value in plan.plan(parsed, plan.draft(parsed)).resolved.classes["model"].small_sizes(blanks).items():
        if blanks[key] is None:
            blanks[key] = value
    if small:
        for key in SMALL.keys() & vars(blanks).keys():
            blanks[key] = SMALL[key]
    with device:
        return parser.instantiate(filled).model


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_short_and_its_header_tells_size_time_and_expected_score(name):
    text = cookbook.find(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    header = "\n".join(cookbook.packaged(name).header)
    assert header.startswith(f"{name}: ")
    assert all(f"{word}: " in header for word in ("size", "time", "expected", "data"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_at_the_size_of_its_header(name):
    found = sum(p.numel() for p in build(name).net.parameters())
    if name in COUNTS:
        assert found == COUNTS[name]
    number, unit = re.search(r"size: ([\d.]+) (M|B) parameters", "\n".join(cookbook.packaged(name).header)).groups()
    claimed = float(number) * {"M": 1e6, "B": 1e9}[unit]
    blank = "tiny" in name or "multi30k" in name or "shakespeare" in name  # the data decides the vocabulary
    assert blank or found == pytest.approx(claimed, rel=0.05, abs=0.05e6)
