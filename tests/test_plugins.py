"""Every package under plugins/, and one from `zoo new`: built, installed into a fresh environment, checked, trained."""

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1"]
# what each package brings to a recipe, and that which a CPU cannot train, with the sentence that says so
TRAINED = [
    "clip-shapes --data.size 200 --model.norm rmsnorm", "dalle-shapes --data.size 200 --model.ffn swiglu",
    "captions-lm --data.size 200 --model.position rope",
    "flamingo-shapes --data.size 200 --model.vision null --model.language null --model.block sandwich",
    "lm-tiny --model.norm dyt", "translation-tiny --model.norm dyt", "vit-tiny --model.norm dyt",
    "lm-tiny --model.norm ownnorm", "translation-tiny --model.norm ownnorm", "vit-tiny --model.norm ownnorm",
    "lm-tiny --model.attention performer", "translation-tiny --model.attention lsh",
    "vit-tiny --model.attention linformer", "lm-tiny --model.block reversible", "lm-tiny --model.attention strided",
    "history-2-ngram --model.smoothing laplace", "history-3-nnlm --model.window 3", "history-4-rnn --model.cell gru",
    "word2vec --model.objective cbow", "elmo --model.input letters", "swin-glyphs --model.norm rmsnorm",
]  # fmt: skip
REFUSED = {"flex": "backend Flex", "flashvarlen": "backend FlashVarlen"}


class Home:
    """A fresh virtual environment that sees the packages of this one, and nothing that is installed into it later."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        venv.create(folder / "venv", with_pip=True, symlinks=True)
        site = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
        (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
        (folder / "venv" / "bin" / "zoo").write_text(
            f"#!{self.python}\nimport sys\nfrom zoo.cli import main\nsys.exit(main())\n"
        )
        (folder / "venv" / "bin" / "zoo").chmod(0o755)
        self.env = {
            **os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            self.env.pop(name, None)

    def run(self, line: str, cwd: Path | None = None, timeout: int = 600) -> subprocess.CompletedProcess:
        command = ["bash", "-c", line]
        place = cwd or self.folder
        return subprocess.run(command, env=self.env, cwd=place, capture_output=True, text=True, timeout=timeout)

    def fine(self, line: str, cwd: Path | None = None) -> str:
        done = self.run(line, cwd)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = Home(tmp_path_factory.mktemp("home"))
    made.fine("zoo new norm OwnNorm")
    for package in PACKAGES:  # copies, so that building leaves nothing behind
        shutil.copytree(package, made.folder / package.name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    names = ["own-norm", *(package.name for package in PACKAGES)]
    made.fine("python -m pip install -q " + " ".join(f"./{name}" for name in names))
    return made


def points(package: Path) -> list[tuple[str, str]]:
    """The (kind, name) of every part that a package declares."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    groups = {group.removeprefix("zoo."): found for group, found in project["entry-points"].items()}
    return [(kind, name) for kind, found in groups.items() if kind != "recipes" for name in found]


def test_every_part_is_listed_with_its_package_and_nothing_is_wrong_with_it(home):
    listed = home.fine("zoo list")
    for package in PACKAGES:
        for kind, name in points(package):
            assert re.search(rf"^\W*{kind}\s+{name}\b.*{package.name} ", listed, re.M), (kind, name)
    assert home.run("zoo doctor").returncode == 0, home.run("zoo doctor").stdout


@pytest.mark.parametrize("name", ["own-norm", *(package.name for package in PACKAGES)])
def test_its_own_tests_pass(home, name):
    said = home.fine("python -m pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests", home.folder / name)
    assert " passed" in said


@pytest.mark.parametrize("words", TRAINED)
def test_its_parts_train(home, words):
    recipe, _, option = words.partition(" ")
    said = home.fine(f"zoo fit {words} {' '.join(SHORT)} --runs runs-{recipe} --name {option.split()[-1]}")
    assert "finished 2 steps" in said


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_that_a_cpu_cannot_train_is_refused_in_a_sentence(home, name):
    done = home.run(f"zoo fit lm-tiny --model.backend {name} {' '.join(SHORT)}")
    assert done.returncode == 2
    assert REFUSED[name] in done.stderr
    assert len(done.stderr.splitlines()) <= 4


def test_the_five_minutes_of_the_readme(home, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    story = readme.split("## Your own part in five minutes")[1]
    lines = re.search(r"```bash\n(.*?)```", story, re.S)[1].splitlines()
    assert len(lines) >= 6
    for line in lines:
        line = line.partition("#")[0].strip()
        home.fine(f"{line} {' '.join(SHORT)}" if line.startswith("zoo fit") else line, tmp_path)
    own = (tmp_path / "my-norm").rglob("src/*/__init__.py")
    (source,) = (path.read_text() for path in own)
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 15 + 4  # the class, and its imports
