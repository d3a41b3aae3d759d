"""One thread, one seed, and the package's commands, data and strategies in the registry."""

import contextlib
import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

try:
    from tests.plugin_paths import registered  # in zoo's checkout the package need not be installed
except ImportError:

    def registered(*_):
        return contextlib.nullcontext()


torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    with registered("zoo-scale", tmp_path_factory.mktemp("site"), "zoo-optimizers"):
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
