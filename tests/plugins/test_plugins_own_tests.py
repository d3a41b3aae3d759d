"""Every package under plugins/, and one from `zoo new`, passes its own tests where it is installed."""

import pytest

from tests.plugins.home import PACKAGES

# one made by `zoo new` and one that is published; the others' suites are a campaign
QUICK = ("own-norm", "zoo-hello")
LONG = [pytest.param(package.name, marks=pytest.mark.campaign) for package in PACKAGES if package.name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_its_own_tests_pass(home, name):
    said = home.fine("python -m pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests", home.folder / name)
    assert " passed" in said
