"""What is built for others to install holds everything that the commands need, and works without the repository."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder with wheel and source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """A folder of packages that holds the unpacked wheel, as pip would lay it out."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def run_zoo(installed, folder, *words):
    """Run the wheel's program in a folder that is not the repository."""
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", "ZOO_CACHE": str(folder / "cache")}
    done = forks.run([sys.executable, "-m", "zoo", *words], cwd=folder, env=env, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_recipes_templates_license_and_typing(distributions):
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for folder, pattern, place in (
        ("recipes", "*.yaml", "zoo/recipes"),
        ("recipes/compare", "*.yaml", "zoo/recipes/compare"),
        ("zoo/templates", "*", "zoo/templates"),
    ):
        files = {f"{place}/{path.name}" for path in (ROOT / folder).glob(pattern) if path.is_file()}
        assert files, folder
        assert files <= names
    assert "zoo/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


def test_the_source_distribution_builds_the_same_wheel(distributions, tmp_path):
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    with (
        zipfile.ZipFile(next((tmp_path / "again").glob("*.whl"))) as again,
        zipfile.ZipFile(next(distributions.glob("*.whl"))) as first,
    ):
        assert sorted(again.namelist()) == sorted(first.namelist())


def test_the_wheel_trains_in_an_empty_folder(installed, tmp_path):
    code = "import zoo; print(zoo.__file__)"
    env = {**os.environ, "PYTHONPATH": str(installed)}
    where = forks.run([sys.executable, "-c", code], cwd=tmp_path, env=env, text=True)
    assert where.stdout.startswith(str(installed)), "this tests the checkout, not the wheel"
    assert "vit-glyphs" in run_zoo(installed, tmp_path, "recipes")
    small = ["--model.dim", "16", "--model.depth", "1", "--data.size", "200", "--trainer.limit_val_batches", "2"]
    run_zoo(installed, tmp_path, "fit", "vit-glyphs", "--trainer.max_steps", "2", *small)
    assert list((tmp_path / "runs" / "vit-glyphs").glob("*/s1/finished.json"))
    run_zoo(installed, tmp_path, "new", "norm", "MyNorm")
    assert (tmp_path / "zoo-my-norm" / "pyproject.toml").is_file()
