"""One thread and one seed for every test, so that a run repeats exactly."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ZOO_BF16"] = "0"  # results do not depend on the processor

import pytest
import torch

torch.set_num_threads(1)
LONGEST = ("plugins", "fuzz", "conformance", "families", "chaos")  # folders whose files must not be begun last


def pytest_collection_modifyitems(items):
    """Long files first, so that no process waits for another's at the end."""

    def place(item):
        folder = item.path.parent.name
        return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built in the test is float64, so that 1e-10 is a bound on the formula and not on rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
