"""A part for `zoo check` that misbehaves in every way, without torch.

`run` stands in for zoo.conformance.check_worker.run.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from zoo.conformance.check_process import UnknownCheckError


def fine():
    return "ok", ""


def norms_only():
    return "ok", ""


def fails():
    return "FAIL", "x changed in place.\nCopy it."


def known_failure():
    return "known", "too slow on Mondays"


def skips():
    return "skipped", "it has no side loss"


def aborts():
    os.abort()


def leaves():
    print("good", "bye")
    sys.stdout.flush()
    os._exit(7)


def loops():
    while True:
        pass


def sleeps_forever():
    time.sleep(1000)


def forks():
    """Leave a process behind that holds every pipe open."""
    number = os.fork()
    if number == 0:
        time.sleep(1000)
    Path("forked.pid").write_text(str(number))
    return "ok", ""


def talks():
    """Print much, write into the file of standard output, and read."""
    print("x" * 300_000, flush=True)
    os.write(1, b'{"event": "end"}\n')
    assert not sys.stdin.read()
    subprocess.run(["echo", "hello"], check=True)
    return "ok", ""


CHECKS = [fine, fails, known_failure, skips, aborts, leaves, loops, sleeps_forever, forks, talks]


def run(job, tell):
    if job["name"] == "x.Dies":
        os.abort()
    if job["name"] == "x.Hangs":
        time.sleep(1000)
    names = job["only"] or [check.__name__ for check in CHECKS]
    if "nope" in names or (job["kind"] == "ffn" and "norms_only" in names):
        raise UnknownCheckError(f"{job['kind']} has no check {names[0]!r}. Did you mean 'fine'?")
    tell("part", kind="norm", name=job["name"], origin="my-norm 0.1.0", checks=names)
    for name in names:
        tell("check", name=name)
        start = time.perf_counter()
        status, sentence = globals()[name]()
        tell("outcome", name=name, status=status, sentence=sentence, seconds=time.perf_counter() - start)
