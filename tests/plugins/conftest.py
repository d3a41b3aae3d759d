"""One environment with every package under plugins/, and one from `zoo new`, for all tests here."""

import os
import shlex
import shutil

import pytest
from filelock import FileLock

from tests.plugins.home import PACKAGES, Home

# what pip does with a folder, for several folders in one process: each of them costs pip three seconds
BUILD = """
import os, sys
from hatchling.build import build_wheel
for folder in [os.path.abspath(name) for name in sys.argv[2:]]:
    os.chdir(folder)
    build_wheel(sys.argv[1])
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory, session_cache):
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all workers
    folder, done = shared / "plugins", shared / "plugins.done"
    home = Home(folder)
    home.env["ZOO_CACHE"] = str(session_cache)
    with FileLock(shared / "plugins.lock"):
        if not done.exists():
            home.create()
            home.fine("zoo new norm OwnNorm")
            home.fine("zoo new ffn OwnFFN --in zoo-own-norm")
            for package in PACKAGES:  # copies, so that building leaves nothing behind
                ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
                shutil.copytree(package, folder / package.name, ignore=ignored)
            names = ["zoo-own-norm", *(package.name for package in PACKAGES)]
            home.fine(f"python -c {shlex.quote(BUILD)} {folder}/wheels {' '.join(names)}")
            home.fine("python -m pip install -q wheels/*.whl")
            done.touch()
    yield home
    home.close()
