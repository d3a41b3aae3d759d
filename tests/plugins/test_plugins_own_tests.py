"""Every package under plugins/, and one from `zoo new`, passes its own tests where it is installed (a campaign)."""

import pytest

from tests.plugins.home import PACKAGES

# the suite of `zoo new` is the contract, which README's story in test_plugins_used.py runs as `zoo check`
QUICK = ("zoo-hello",)
NAMES = ["zoo-own-norm", *(package.name for package in PACKAGES)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.campaign]) for name in NAMES]
)
def test_its_own_tests_pass(home, name):
    output = home.fine("python -m pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests", home.folder / name)
    assert " passed" in output
