"""Every package under plugins/, and one from `zoo new`, passes its own tests where it is installed."""

import pytest

from tests.plugins.home import PACKAGES


@pytest.mark.parametrize("name", ["own-norm", *(package.name for package in PACKAGES)])
def test_its_own_tests_pass(home, name):
    said = home.fine("python -m pytest -q -p no:cacheprovider -p no:xdist -o addopts= tests", home.folder / name)
    assert " passed" in said
