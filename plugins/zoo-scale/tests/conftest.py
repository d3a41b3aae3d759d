"""One thread and one seed for every test, so that a run repeats exactly."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built in the test is float64, so that 1e-10 is a bound on the formula and not on rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
