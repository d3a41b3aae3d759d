"""One thread, one seed and a cache of its own for every test, so that a run repeats exactly."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import contextlib

import pytest
import torch
from zoo_multimodal.shapes import CaptionedShapes

try:
    from tests.plugin_paths import registered  # in zoo's checkout the package need not be installed
except ImportError:

    def registered(*_):
        return contextlib.nullcontext()


torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    """The package's parts and recipes are found by their names."""
    with registered("zoo-multimodal", tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built in the test is float64, so that 1e-10 is a bound on the formula and not on rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def shapes(_cache):
    data = CaptionedShapes(objects=2, size=300, batch_size=24, seed=1)
    data.ready()
    return data
