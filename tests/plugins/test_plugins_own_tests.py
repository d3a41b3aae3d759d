"""Every package under plugins/, and those that `zoo new` makes, pass their own tests once installed (a campaign)."""

import os
import re
import sys
import tomllib

import pytest

from tests import forks
from tests.plugins.home import PACKAGES, ROOT
from zoo import registry

# the suite of `zoo new` is the contract, of which the default run does a few checks
QUICK = ("zoo-hello",)
NAMES = ["zoo-own-norm", *(package.name for package in PACKAGES)]
PYTEST = "pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.campaign]) for name in NAMES]
)
def test_its_own_tests_pass(home, name):
    done = home.run(f"python -m {PYTEST}", home.folder / name)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_their_tests_are_collected_without_an_error():
    """A renamed function, option or argument of a test is noticed here; running them all is the campaign above.

    Those of packages whose tests are part of zoo's default run are collected there.
    """
    pytest_options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    others = [one for one in PACKAGES if f"plugins/{one.name}/tests" not in pytest_options["testpaths"]]
    paths = [str(folder / name) for folder in PACKAGES for name in ("src", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), "PYTEST_ADDOPTS": ""}
    words = [
        "-q",
        "--collect-only",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
    ]
    tests = [str(folder / "tests") for folder in others]
    child = forks.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(ROOT / "plugins"), "-c", os.devnull, *tests],
        env=environment, text=True, cwd=ROOT / "plugins",
    )  # fmt: skip
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    for folder in others:
        assert f"{folder.name}/tests/test_contract.py::" in child.stdout


def test_a_new_package_of_two_parts_is_listed_tested_and_checked(home):
    """A norm and a feed-forward of one package: both are found, nothing is advised, and each keeps its contract."""
    assert re.search(r"^ffn +OwnFFN .* zoo-own-norm 0\.1\.0$", home.fine("zoo list"), re.M)
    doctor = home.fork("zoo doctor").stdout
    assert "zoo-own-norm 0.1.0" in doctor
    assert "advice" not in doctor
    output = home.fork(f"{PYTEST} -k 'shapes or dtypes'", home.folder / "zoo-own-norm").stdout
    assert "4 passed" in output
    output = home.fork("zoo check zoo-own-norm --only shapes,dtypes").stdout
    assert re.findall(r"^2 checks of (\w+ \w+) \(zoo-own-norm 0\.1\.0\): 2 ok", output, re.M) == [
        "norm OwnNorm", "ffn OwnFFN",
    ]  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_new_package_of_each_kind_with_a_second_part(home, kind):
    """`zoo new` of a kind and of the next one: installed, its tests and `zoo check` of the package pass."""
    other = registry.KINDS[(registry.KINDS.index(kind) + 1) % len(registry.KINDS)]
    first, second = f"Fresh{kind.title()}One", f"Fresh{other.title()}Two"
    folder = f"zoo-fresh-{kind}-one"
    home.fine(f"zoo new {kind} {first} && zoo new {other} {second} --in {folder}")
    home.fine(f"python -m pip install -q ./{folder}")
    try:
        assert " passed" in home.fine(f"python -m {PYTEST}", home.folder / folder)
        output = home.fine(f"zoo check {folder}")
        assert all(f"of {one} " in output for one in (f"{kind} {first}", f"{other} {second}"))
    finally:
        home.fine(f"python -m pip uninstall -q -y {folder}")
