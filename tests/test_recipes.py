"""Every packaged recipe is short, says what it costs, and builds at the size it claims."""

import re

import pytest
import torch
from jsonargparse import ArgumentParser

from zoo import recipe_files
from zoo.config import fit_options, run_config, yaml_source
from zoo.config.trainer_bounds import check_end
from zoo.tasks.task import Task

RECIPES = [recipe.name for recipe in recipe_files.recipes() if recipe.builtin]
COUNTS = {
    "transformer-base": 63_045_632,  # 63.05 M
    "transformer-big": 214_171_648,  # 214.17 M
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "gpt1": 116_534_784,
    "gpt3-175b": 174_604_259_328,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "palm-8b": 8_632_012_800,  # 8.63 B
    "palm-540b": 540_356_474_880,  # 540.36 B
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "mt5-small": 300_176_768,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "mbart-large": 610_851_840,
    "nllb-600m": 615_073_792,
    "vit-ti16": 5_717_416,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
}


META = torch.device("meta")


# recipes whose models differ in their sizes alone, and so are one model at the small size, by the one that is tested
ALIKE = {
    "bart-large": "bart-base",
    "gpt2-medium": "gpt2-small",
    "gpt2-large": "gpt2-small",
    "gpt2-xl": "gpt2-small",
    "llama-13b": "llama-7b",
    "llama-30b": "llama-7b",
    "llama-65b": "llama-7b",
    "multilingual-tiny": "translation-tiny",
    "t5-base": "t5-small",
    "t5-large": "t5-small",
    "vit-s16": "vit-b16",
    "vit-l16": "vit-b16",
    "vit-ti16": "vit-b16",
    "vit-glyphs": "vit-tiny",
}
DISTINCT = [name for name in RECIPES if name not in ALIKE]
TRAINING = {"lr", "schedule", "optimizer", "label_smoothing"}  # options of a task that its model does not depend on
SMALL = {"dim": 32, "depth": 2, "heads": 4, "vocab_size": 64, "source_vocab_size": 64, "target_vocab_size": 64}


def make_plan(name: str) -> run_config.RunPlan:
    """What `zoo fit` plans for a recipe."""
    parsed = fit_options.parse("fit", [name])
    return run_config.make_plan(parsed, run_config.read_draft(parsed))


def within_small(override: dict) -> dict | None:
    """An override of numbered layers for those that a small model has; None where it has none of them."""
    numbers = str(override.get("layers", "")).split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        return override
    inside = [number for number in numbers if int(number) < SMALL["depth"]]
    return {**override, "layers": ",".join(inside)} if inside else None


def build(name: str, device: torch.device = META, small: bool = False) -> Task:
    """The task of a recipe as `zoo fit` would build it, or the same parts at a size that tests can run."""
    plan = make_plan(name)
    if small and plan.config["model"]["init_args"].get("overrides"):
        overrides = plan.config["model"]["init_args"]["overrides"]
        plan.config["model"]["init_args"]["overrides"] = [*filter(None, map(within_small, overrides))]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Task, "model")
    filled = parser.parse_object({"model": plan.config["model"]})
    blanks = filled.model.init_args
    for key, value in plan.resolved.classes["model"].small_sizes(blanks).items():
        if blanks[key] is None:
            blanks[key] = value
    if small:
        grouped = getattr(blanks.get("attention"), "init_args", None)
        if grouped is not None and grouped.get("kv_heads"):  # as many queries share a key as in the recipe
            grouped["kv_heads"] = max(1, grouped["kv_heads"] * SMALL["heads"] // blanks["heads"])
        for key in SMALL.keys() & vars(blanks).keys():
            blanks[key] = SMALL[key]
    with device:
        return parser.instantiate(filled).model


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_short_and_its_header_tells_size_time_and_expected_score(name):
    text = recipe_files.find_recipe(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    header = "\n".join(recipe_files.packaged_recipe(name).header)
    assert header.startswith(f"{name}: ")
    assert all(f"{word}: " in header for word in ("size", "time", "expected", "data"))


@pytest.mark.parametrize("recipe", recipe_files.recipes(), ids=lambda recipe: recipe.name)
def test_every_installed_recipe_states_an_end(recipe):
    content = yaml_source.read_yaml(recipe_files.find_recipe(recipe.name)).as_data()
    check_end(content["trainer"], recipe.name)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_at_the_size_of_its_header(name):
    total = sum(p.numel() for p in build(name).net.parameters())
    if name in COUNTS:
        assert total == COUNTS[name]
    number, unit = re.search(
        r"size: ([\d.]+) (M|B) parameters", "\n".join(recipe_files.packaged_recipe(name).header)
    ).groups()
    claimed = float(number) * {"M": 1e6, "B": 1e9}[unit]
    # the data decides the vocabulary
    blank = any(word in name for word in ("tiny", "multi30k", "shakespeare"))
    assert blank or total == pytest.approx(claimed, rel=0.05, abs=0.05e6)


def test_recipes_that_are_alike_have_the_same_model_but_for_its_size():
    """Tests of small models try one of them."""

    def structure(name: str) -> dict:
        model = make_plan(name).config["model"]
        others = SMALL.keys() | TRAINING
        return {"": model["class_path"]} | {k: v for k, v in model["init_args"].items() if k not in others}

    structures = {name: structure(name) for name in {*ALIKE, *ALIKE.values()}}
    assert not set(ALIKE) & set(ALIKE.values())
    for name, like in ALIKE.items():
        assert structures[name] == structures[like], name
