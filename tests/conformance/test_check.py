"""Checks hold in any order, as a package's tests may run them."""

import sys

from tests import forks

# in a process of its own: the first backward pass of this one was long ago
PROGRAM = """
from zoo import registry
from zoo.conformance import checks

by_name = {check.name: check for check in checks(registry.get("norm", "RMSNorm"))}
for name in ("compiles", "processes_agree"):
    outcome = by_name[name].outcome()
    print(name, outcome.status, outcome.sentence)
"""


def test_two_processes_agree_after_a_compiler_too():
    """Fake tensors pretend to a GPU: a process whose first backward pass has them cannot be forked."""
    done = forks.run([sys.executable, "-c", PROGRAM], text=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["compiles", "ok"], ["processes_agree", "ok"]]
