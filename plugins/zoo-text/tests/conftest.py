"""One thread, one seed, one cache, and the package in the registry, whether it is installed or not."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ZOO_BF16"] = "0"  # results do not depend on the processor
os.environ["ZOO_KERNELS"] = "plain"  # nor on what was measured on it

import importlib.metadata
from pathlib import Path

import pytest
import torch
from text_helpers import PROJECT, read_again, write_documents, write_metadata

from zoo import registry

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    """The parts and commands of this package are there, also where the tests of zoo leave plugins out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(registry.DISABLE_VARIABLE, raising=False)
        try:
            importlib.metadata.version(PROJECT["name"])
        except importlib.metadata.PackageNotFoundError:
            folder = tmp_path_factory.mktemp("site")
            write_metadata(folder)
            patch.syspath_prepend(folder)
        read_again()
        yield
    read_again()


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
def session_cache(tmp_path_factory) -> Path:
    """The cache of all tests and processes of a session that read the standard library, so that it is read once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    (folder / "zoo-cache").mkdir(exist_ok=True)
    return folder / "zoo-cache"


@pytest.fixture(autouse=True)
def cache(session_cache, monkeypatch) -> Path:
    monkeypatch.setenv("ZOO_CACHE", str(session_cache))
    return session_cache


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of twenty documents."""
    return write_documents(tmp_path)
