"""One thread, one seed, and the package in the registry, whether it is installed or not."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import importlib.metadata

import pytest
import torch
from package_metadata import NEEDED_PROJECTS, PROJECT, read_again, write_metadata

from zoo import registry

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    """The parts of this package and of those that it needs are there, also where the tests of zoo leave plugins out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(registry.DISABLE_VARIABLE, raising=False)
        folder = tmp_path_factory.mktemp("site")
        for project in (PROJECT, *NEEDED_PROJECTS):
            try:
                importlib.metadata.version(project["name"])
            except importlib.metadata.PackageNotFoundError:
                write_metadata(folder, project["name"], project["entry-points"])
        patch.syspath_prepend(folder)
        read_again()
        yield
    read_again()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
