"""Damaged recipes and odd values: always a short message that names the file, never a traceback."""

import random

import pytest
import yaml

from zoo.errors import UsageError, ZooError

RECIPE = """\
model:
  class_path: Toy
  init_args:
    lr: 3e-4
    norm: {class_path: Layer, init_args: {eps: 1e-3}}
    optimizer: {class_path: AdamW, init_args: {weight_decay: 0.1}}
    sizes: [1, 2]
data:
  class_path: Text
  init_args: {path: a.txt, extra: {lower: true}}
trainer:
  max_steps: 5
"""
MARKS = "{}[]:,-#&*!|>'\"% \t\nx0."
VALUES = ["null", "[]", "{}", "[1,2]", "x", "-1", "1e400", ".nan", "true", "''", "{class_path: Layer}",
          "{init_args: 3}", "{class_path: [1]}", "{class_path: null}", "os.system", "!!python/none x", "&a [*a]",
          "{class_path: {a: b}}", "{a: {b: {c: 1}}}", "[[[1]]]", "'a.b'", "'.'", "é",
          "{class_path: RMS, x: 1}"]  # fmt: skip


def damaged(rng: random.Random) -> str:
    letters = list(RECIPE)
    for _ in range(rng.randint(1, 4)):
        place, chance = rng.randrange(len(letters)), rng.random()
        if chance < 0.4:
            letters[place] = rng.choice(MARKS)
        elif chance < 0.7:
            del letters[place]
        else:
            letters.insert(place, rng.choice(MARKS))
    return "".join(letters)


def odd(rng: random.Random) -> str:
    lines = RECIPE.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = f"{lines[place].partition(':')[0]}: {rng.choice(VALUES)}"
    return "\n".join(lines)


@pytest.mark.parametrize("change", [damaged, odd])
def test_no_recipe_causes_a_traceback(resolve, change):
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        text = change(rng)
        try:
            resolve(text)
        except ZooError as error:
            refused += 1
            message = str(error)
            assert len(message.splitlines()) <= 4, message
            assert "r0.yaml" in message or "--" in message, message
    assert refused > 30


NESTED = {
    "model": {
        "class_path": "Toy",
        "init_args": {
            "lr": 3e-4,
            "norm": {"class_path": "Layer", "init_args": {"eps": 1e-3, "bias": False}},
            "attention": {"window": 2},
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.1}},
            "sizes": [1, 2],
        },
    },
    "data": {"class_path": "Text", "init_args": {"path": "a.txt", "extra": {"lower": True}}},
    "trainer": {"max_steps": 5, "max_epochs": 3},
}


def with_dots(rng: random.Random, tree: dict) -> dict:
    """The same keys, of which some are written as one with dots, at any depth."""
    result = {}
    for name, value in tree.items():
        if not isinstance(value, dict):
            result[name] = value
            continue
        below = with_dots(rng, value)
        moved = {key for key in below if rng.random() < 0.4}
        result |= {f"{name}.{key}": below[key] for key in moved}
        if len(moved) < len(below):
            result[name] = {key: below[key] for key in below if key not in moved}
    items = list(result.items())
    rng.shuffle(items)
    return dict(items)


def test_a_key_with_dots_is_the_nested_one(resolve):
    rng, spellings = random.Random(0), set()
    expected = resolve(yaml.safe_dump(NESTED)).config
    for _ in range(100):
        text = yaml.safe_dump(with_dots(rng, NESTED), sort_keys=False)
        spellings.add(text)
        assert resolve(text).config == expected, text
    assert len(spellings) > 60


def paths(tree: dict, above: tuple = ()):
    """Every path to a value that is no mapping."""
    for name, value in tree.items():
        yield from paths(value, (*above, name)) if isinstance(value, dict) else [(*above, name)]


@pytest.mark.parametrize("path", list(paths(NESTED)), ids=".".join)
def test_a_key_in_two_spellings_is_refused(resolve, path):
    for depth in range(len(path) - 1):
        tree = yaml.safe_load(yaml.safe_dump(NESTED))
        node = tree
        for name in path[:depth]:
            node = node[name]
        node[".".join(path[depth:])] = "other"
        with pytest.raises(UsageError, match=r"is written twice: .*r0.yaml:\d+ and .*r0.yaml:\d+"):
            resolve(yaml.safe_dump(tree))


@pytest.mark.parametrize(
    "key", ["trainer.max_stepss", "trainer..max_steps", "model.norm.epss", "data.", ".data", "x.y"]
)
def test_a_key_with_dots_that_does_not_exist_is_unknown(resolve, key):
    with pytest.raises(ZooError, match=r"r0.yaml:\d+") as caught:
        resolve(yaml.safe_dump(NESTED | {key: 3}))
    assert "unknown key" in str(caught.value) or "has no option" in str(caught.value)


def test_a_later_file_with_dots_counts_over_a_nested_one(resolve):
    config = resolve(yaml.safe_dump(NESTED), "model.norm.eps: 2\ntrainer.max_steps: 9\n").config
    assert config["model"]["init_args"]["norm"]["init_args"]["eps"] == 2
    assert config["trainer"]["max_steps"] == 9
    assert config["trainer"]["max_epochs"] == 3
