"""Freed memory is kept where that is safe, unless somebody decided otherwise."""

import json
import os
import subprocess
import sys

import pytest

from zoo.system import malloc

GLIBC = pytest.mark.skipif(malloc._glibc() is None, reason="this process does not use glibc's allocator")
PROBE = """
import json, resource, sys
from zoo.system import malloc
said = malloc.keep_freed_memory()
if sys.argv[1] == "torch":
    import torch
    make = lambda size: torch.empty(size // 4).fill_(1.0)
else:
    make = lambda size: b"x" * size
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        make(32 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(json.dumps([said, malloc.state(), faults()]))
"""


def probe(maker, **env):
    quiet = {k: v for k, v in os.environ.items() if k not in (*malloc.DECIDED, malloc.SWITCH, malloc.HUGE)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, maker], env={**quiet, **env}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@GLIBC
@pytest.mark.parametrize("maker", ["bytes", pytest.param("torch", marks=pytest.mark.campaign)])
def test_memory_that_is_kept_is_not_faulted_in_again(maker):
    """Tensors and what else is large come from the same allocator; without torch a process starts in no time."""
    faults, state, is_kept = probe(maker)
    assert faults.startswith("kept")
    assert state == faults
    off, _, returned = probe(maker, ZOO_KEEP_MEMORY="0", THP_MEM_ALLOC_ENABLE="0")
    assert off == "returned to the system (ZOO_KEEP_MEMORY=0)"
    assert returned > 20 * 4096  # every page of every block: 32 MB of 4 KB
    assert is_kept < returned / 50


@pytest.mark.parametrize("name", malloc.DECIDED)
def test_who_decided_already_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "x")
    monkeypatch.setattr(malloc, "_glibc", lambda: pytest.fail("mallopt was looked up"))
    assert malloc._configure() == f"as {name} says"


def test_another_allocator_is_left_alone(monkeypatch):
    for name in malloc.DECIDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert malloc._configure() == "returned to the system"


def test_a_refusal_of_the_allocator_changes_nothing(monkeypatch):
    for name in (*malloc.DECIDED, malloc.HUGE, malloc.SWITCH):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(malloc, "_glibc", lambda: lambda option, value: 0)
    assert malloc._configure() == "returned to the system"
    assert malloc.HUGE not in os.environ
