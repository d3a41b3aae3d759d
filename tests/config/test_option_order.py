"""The options of a command line mean the same in any order, and a misspelt one is refused in any order."""

import random

import pytest

from zoo import recipe_files, registry
from zoo.config import fit_options, run_config
from zoo.config.class_names import ClassFinder
from zoo.config.resolve import resolve
from zoo.config.signatures import parameters
from zoo.errors import ZooError
from zoo.plugins.description import CLASS_PARAMETERS

RECIPES = sorted(recipe.name for recipe in recipe_files.recipes() if recipe.name.endswith("-tiny"))


def read(recipe, pairs=()):
    words = [word for key, value in pairs for word in (f"--{key}", value)]
    draft = run_config.read_draft(fit_options.parse("fit", [recipe, *words]))
    return resolve(draft.layers, run_config.schema(), ClassFinder())


def draw_part(rng, kind):
    """A built-in part of a kind with at most two of its options that take a number or a truth value."""
    part = rng.choice([part for part in registry.installed_parts(kind) if part.builtin])
    prefix, skipped = ("data", 0) if kind == "data" else (f"model.{kind}", CLASS_PARAMETERS.get(kind, 0))
    params = parameters(part.load(), skipped)
    values = {
        f"{prefix}.{name}": str(not param.default).lower() if isinstance(param.default, bool) else "3"
        for name, param in params.items()
        if type(param.default) in (bool, int, float)
    }
    required = [(f"{prefix}.{name}", "3") for name, param in params.items() if param.required]
    return [(prefix, part.name), *required, *rng.sample(sorted(values.items()), min(2, len(values)))]


def draw_options(rng, recipe):
    """Options of a command line: parts with their options, options of the trainer and of the task, in some order."""
    kinds = [name for name in parameters(read(recipe).classes["model"]) if name in registry.KINDS]
    pairs = [("trainer.max_steps", "7"), ("trainer.gradient_clip_val", "0.5"), ("model.lr", "0.25")]
    for kind in [*rng.sample(kinds, min(3, len(kinds))), *(["data"] if rng.random() < 0.4 else [])]:
        pairs += draw_part(rng, kind)
    rng.shuffle(pairs)
    return pairs


def draw_orders(rng, pairs):
    return [pairs, pairs[::-1], rng.sample(pairs, len(pairs)), rng.sample(pairs, len(pairs))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_order_gives_the_same_configuration(recipe):
    rng = random.Random(recipe)
    for _ in range(3):
        pairs = draw_options(rng, recipe)
        config, *others = (read(recipe, order) for order in draw_orders(rng, pairs))
        for plan in others:
            assert plan.config == config.config, pairs
        for key, text in pairs:
            assert config.origins[key] == f"--{key} {text}"
            if key not in config.classes:
                assert str(config.values[key]).lower().removesuffix(".0") == text, key


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_misspelt_option_is_refused_in_every_order(recipe):
    rng = random.Random(f"{recipe} misspelt")
    for _ in range(3):
        pairs = draw_options(rng, recipe)
        place = rng.randrange(len(pairs))
        section, dot, last = pairs[place][0].rpartition(".")
        letter = rng.randrange(len(last))
        wrong = f"{section}{dot}{last[:letter]}{last[letter]}{last[letter:]}"
        pairs[place] = (wrong, pairs[place][1])
        for order in draw_orders(rng, pairs):
            with pytest.raises(ZooError, match=wrong.rpartition(".")[2]):
                read(recipe, order)
