"""Installed packages are listed, train in recipes, and are refused where they cannot work, as docs/start.md shows."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.plugins.home import PACKAGES, ROOT, SHORT
from zoo import registry

# what each package brings to a recipe: one for each package, and in a campaign all
TRAINED = [
    "word2vec --model.objective cbow", "clip-shapes --data.size 200 --model.norm rmsnorm",
    "swin-glyphs --model.norm rmsnorm", "lm-tiny --model.norm dyt", "lm-tiny --model.norm ownnorm",
    "lm-tiny --model.attention performer", "lm-tiny --model.attention mla",
]  # fmt: skip
ALSO_TRAINED = [
    "dalle-shapes --data.size 200 --model.ffn swiglu",
    "captions-lm --data.size 200 --model.position rope",
    "flamingo-shapes --data.size 200 --model.vision null --model.language null --model.block sandwich",
    "translation-tiny --model.norm dyt", "vit-tiny --model.norm dyt",
    "translation-tiny --model.norm ownnorm", "vit-tiny --model.norm ownnorm",
    "translation-tiny --model.attention lsh",
    "vit-tiny --model.attention linformer", "lm-tiny --model.block reversible", "lm-tiny --model.attention strided",
    "history-2-ngram --model.smoothing laplace", "history-3-nnlm --model.window 3", "history-4-rnn --model.cell gru",
    "gated-convolution --model.width 3",
    "elmo --model.input letters",
    "detr-shapes --data.size 64 --model.norm rmsnorm",
    "lm-delta-hybrid --model.norm dynamictanh", "vit-tiny --model.block droppath",
    "translation-tiny --model.ffn deepseekmoe", "vit-tiny --model.attention differential",
]  # fmt: skip
# what a CPU cannot train, with the sentence that says so
REFUSED = {"flex": "backend Flex", "flashvarlen": "backend FlashVarlen"}


def points(package: Path) -> list[tuple[str, str]]:
    """The (kind, name) of every part that a package declares."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    groups = {group.removeprefix("zoo."): points for group, points in project["entry-points"].items()}
    return [(kind, name) for kind, points in groups.items() if kind in registry.KINDS for name in points]


def test_every_part_is_listed_with_its_package_and_nothing_is_wrong_with_it(home):
    output = home.fine("zoo list")
    for package in PACKAGES:
        for kind, name in points(package):
            assert re.search(rf"^\W*{kind}\s+{name}\b.*{package.name} ", output, re.M), (kind, name)
    doctor = home.fork("zoo doctor")
    assert doctor.returncode == 0, doctor.stdout


@pytest.mark.parametrize(
    "words", [*TRAINED, *(pytest.param(words, marks=pytest.mark.campaign) for words in ALSO_TRAINED)]
)
def test_its_parts_train(home, words):
    recipe, _, option = words.partition(" ")
    done = home.fork(f"zoo fit {words} {' '.join(SHORT)} --runs runs-{recipe} --name {option.split()[-1]}")
    assert done.returncode == 0, done.stderr
    assert "finished 2 steps" in done.stdout


def test_every_package_is_trained_or_refused():
    """Of each package the default run tries a part."""
    owners = {name.lower(): package.name for package in PACKAGES for _, name in points(package)}
    recipes = {path.stem: package.name for package in PACKAGES for path in package.rglob("*.yaml")}
    packages = {owners.get(word) or recipes.get(word) for words in [*TRAINED, *REFUSED] for word in words.split()}
    commands = {
        "zoo-designs",
        "zoo-exercises",
        "zoo-learn",
        "zoo-optimizers",
        "zoo-pretrained",
        "zoo-scale",
        "zoo-text",
    }  # whose own tests the default run has
    assert packages | commands >= {package.name for package in PACKAGES}


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_that_a_cpu_cannot_train_is_refused_in_a_sentence(home, name):
    done = home.fork(f"zoo fit lm-tiny --model.backend {name} {' '.join(SHORT)}")
    assert done.returncode == 2
    assert REFUSED[name] in done.stderr
    assert len(done.stderr.splitlines()) <= 4


@pytest.mark.parametrize("recipes", [1, pytest.param(3, marks=pytest.mark.campaign)])
def test_the_five_minutes_of_the_first_page(home, tmp_path, recipes):
    """The whole story; the first checks and the first recipe of the part, and in a campaign all."""
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    story = page.split("## Your own part in five minutes")[1]
    lines = re.search(r"```bash\n(.*?)```", story, re.S)[1].splitlines()
    assert len(lines) >= 6
    fits = [line for line in lines if line.startswith("zoo fit")]
    assert len(fits) == 3
    for line in [line for line in lines if line not in fits[recipes:]]:
        line = line.partition("#")[0].strip()
        line += f" {' '.join(SHORT)}" if line.startswith("zoo fit") else ""
        line += " --only documentation,shapes,dtypes" if line.startswith("zoo check") and recipes == 1 else ""
        if line.startswith(("zoo check", "zoo fit")):  # which import torch
            done = home.fork(line, tmp_path, new_packages=True)
            assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        else:
            home.fine(line, tmp_path)
    own = (tmp_path / "zoo-my-norm").rglob("src/*/__init__.py")
    (source,) = (path.read_text() for path in own)
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 15 + 4  # the class, and its imports
