"""Damaged recipes and odd values: always a short message that names the file, never a traceback."""

import random

import pytest

from zoo.errors import ZooError

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
