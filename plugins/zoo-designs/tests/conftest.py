"""One thread, one seed, and the package's designs in the registry."""

import contextlib
import os
import sys
from pathlib import Path

# fabricated runs, and what is asked of every report and chart, of zoo's checkout
sys.path += [str(Path(__file__).parents[3]), str(Path(__file__).parents[3] / "tests" / "compare")]
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
    with registered("zoo-designs", tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
