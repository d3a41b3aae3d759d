"""Every package under plugins/, and one from `zoo new`, passes its own tests where it is installed (a campaign)."""

import os
import subprocess
import sys

import pytest

from tests.plugins.home import PACKAGES, ROOT

# the suite of `zoo new` is the contract, which README's story in test_plugins_used.py runs as `zoo check`
QUICK = ("zoo-hello",)
NAMES = ["zoo-own-norm", *(package.name for package in PACKAGES)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.campaign]) for name in NAMES]
)
def test_its_own_tests_pass(home, name):
    output = home.fine("python -m pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests", home.folder / name)
    assert " passed" in output


def test_their_tests_are_collected_without_an_error():
    """A renamed function, option or argument of a test is noticed here; running them all is the campaign above."""
    paths = [str(folder / name) for folder in PACKAGES for name in ("src", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *paths])}
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
    tests = [str(folder / "tests") for folder in PACKAGES]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(ROOT / "plugins"), "-c", os.devnull, *tests],
        env=environment, capture_output=True, text=True, cwd=ROOT / "plugins",
    )  # fmt: skip
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    for folder in PACKAGES:
        assert f"{folder.name}/tests/test_contract.py::" in child.stdout
