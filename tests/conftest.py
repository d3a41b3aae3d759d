"""One thread and one seed for every test; files that take long first, in random order within a file."""

import atexit
import gc
import json
import logging
import os
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ZOO_BF16"] = "0"  # results do not depend on the processor
os.environ["ZOO_KERNELS"] = "plain"  # nor on what was measured on it

import pytest
from _pytest.logging import catching_logs
from hypothesis import HealthCheck, settings

from tests import forks
from zoo import registry

# tests see zoo's own parts only, whatever plugins are installed; those of tests/plugins install theirs elsewhere
INSTALLED_PLUGINS = sorted(registry.distributions() - {registry.BUILTIN})
if INSTALLED_PLUGINS:
    os.environ.setdefault(registry.DISABLE_VARIABLE, ",".join(INSTALLED_PLUGINS))

# no test cuts the power, and nothing else tells a file on the disk from one on its way there: 6 ms for each of ten
# thousands; os.fstat refuses what os.fsync refuses, a descriptor that is closed
os.fsync = lambda file: os.fstat(getattr(file, "fileno", lambda: file)()) and None

# nor does an installed package have callbacks for Lightning, which reads the metadata of all packages for each trainer
READ_ENTRY_POINTS = metadata.entry_points
metadata.entry_points = lambda **filters: (
    () if filters.get("group") == "lightning.pytorch.callbacks_factory" else READ_ENTRY_POINTS(**filters)
)

# pytest --hypothesis-profile=nightly: 1000 examples, and others each time
settings.register_profile(
    "deterministic",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "nightly", settings.get_profile("deterministic"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile("deterministic")

pytest_plugins = ["tests.fixtures"]

ATTACH = catching_logs.__enter__


def attach_to_root(catcher: catching_logs):
    """Capture logs at the root alone, which pytest 8 did, too: attaching to the sixty loggers of torch that do not
    propagate, six times a test, took two fifths of an empty test."""
    if catcher.level is not None:
        return ATTACH(catcher)
    logging.root.addHandler(catcher.handler)
    catcher.attached_loggers.append(logging.root)
    return catcher.handler


if hasattr(catching_logs, "attached_loggers"):
    catching_logs.__enter__ = attach_to_root
# seconds per file on two cores; rewritten by ZOO_RECORD_DURATIONS=1 pytest
DURATIONS = Path(__file__).parent / "durations.json"


def pytest_collection():
    """Without the garbage collector, which else looks through all modules and tests again and again."""
    gc.disable()


def pytest_collection_finish():
    """What is there now stays until the end, and is not looked through again."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000, 10, 100)  # tests of many small tensors took an eighth longer by default


atexit.register(gc.unfreeze)  # modules are taken down at the end as in a process that froze nothing


@pytest.hookimpl(trylast=True)  # after the plugin that shuffles
def pytest_collection_modifyitems(items):
    """Files that take long come first, so that no process waits for another's at the end."""
    durations = json.loads(DURATIONS.read_text())
    root = DURATIONS.parent.parent
    items.sort(key=lambda item: -durations.get(item.path.relative_to(root).as_posix(), 1.0))


class DurationRecorder:
    """Sums up how long the tests of each file took, over all processes."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self):
        durations = {**json.loads(DURATIONS.read_text()), **self.seconds}
        files = sorted(durations.items(), key=lambda pair: -pair[1])
        DURATIONS.write_text(json.dumps({name: round(seconds, 1) for name, seconds in files}, indent=1) + "\n")


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        forks.share()
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        prepare_torch()
    if os.environ.get("ZOO_RECORD_DURATIONS") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())


def prepare_torch() -> None:
    """What tests expect of torch, in the processes that run them: importing it takes two seconds."""
    import torch

    torch.set_num_threads(1)
    torch.ones(1, requires_grad=True).sum().backward()  # before fake tensors: see zoo/conformance/check.py
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        # without devices torch.manual_seed would note, for each kind of them, the stack of the call: a third of an
        # empty test; for what is tested too, which seeds ten thousand times in the contract of our own parts
        torch.manual_seed = torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _seeded():
    sys.modules["torch"].manual_seed(0)


@pytest.fixture
def double():
    """Everything built in the test is float64, so that 1e-10 is a bound on the formula and not on rounding."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
