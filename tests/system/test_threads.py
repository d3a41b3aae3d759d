"""Threads that wait spin alone and sleep beside other work, with the same results, and never over a user's settings."""

import os
import subprocess
import sys
import threading

import pytest

from tests import forks
from zoo.system import threads
from zoo.system.threads import BUSY, QUIET, SETTINGS, SpinSwitch

LIBRARY = threads.openmp_library()
has_openmp = pytest.mark.skipif(LIBRARY is None, reason="torch does not use libgomp here")
has_statistics = pytest.mark.skipif(
    not (threads.PROCESS / "schedstat").exists(), reason="the system does not say how long threads wait"
)
# prints the processor's milliseconds of 20 waits after an operation of two threads, and the digest of a training
PROGRAM = """
import hashlib, sys, time
import torch
from zoo.system.threads import SpinSwitch, openmp_library

torch.set_num_threads(2)
large = torch.ones(1 << 20)

def wait():
    start = time.process_time()
    for _ in range(20):
        large.add_(1)
        time.sleep(0.01)
    return round(1e3 * (time.process_time() - start))

def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.LayerNorm(300), torch.nn.Linear(300, 300))
    for _ in range(5):
        net(torch.randn(500, 300)).square().mean().backward()
    return hashlib.sha256(b"".join(one.grad.numpy().tobytes() for one in net.parameters())).hexdigest()

switch = SpinSwitch(openmp_library(), 2)
for sleeping in (False, True, False, True):
    switch.set_sleeping(sleeping)
    print(wait(), train())
"""


class Switch:
    """A SpinSwitch that only remembers its states."""

    def __init__(self):
        self.states = [False]

    @property
    def sleeping(self):
        return self.states[-1]

    def set_sleeping(self, sleeping):
        self.states.append(sleeping)


@has_openmp
def test_a_second_team_lets_threads_sleep_its_end_lets_them_spin_and_no_digit_changes():
    env = {name: value for name, value in os.environ.items() if name not in (*SETTINGS, "OMP_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    times, digests = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    spinning, sleeping, spinning_again, sleeping_again = map(int, times)
    assert max(sleeping, sleeping_again) < 0.5 * min(spinning, spinning_again)
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    ("shares", "states"),
    [
        ([0.0, 0.01, 0.1], [False, False, False]),
        ([0.67, 0.45, 0.45, 0.01, 0.01], [True, True, True, False, False]),
        ([BUSY + 0.01, (BUSY + QUIET) / 2, QUIET - 0.01, (BUSY + QUIET) / 2], [True, True, False, False]),
    ],
)
def test_the_state_follows_how_long_threads_wait_for_a_processor(shares, states, monkeypatch):
    clock, delays = iter(range(100)), [0.0]
    for share in shares:
        delays.append(delays[-1] + share)
    looks = iter(delays)

    class Stop:
        def __init__(self):
            self.rounds = 0

        def wait(self, seconds):
            assert seconds == threads.PERIOD
            self.rounds += 1
            return self.rounds > len(shares)

    monkeypatch.setattr(threads.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(threads, "scheduling_delay", lambda: next(looks))
    switch = Switch()
    threads._follow(switch, Stop())
    assert switch.states[1:] == [*states, False]  # whatever the load is, the end is as the begin was


def test_a_thread_that_ends_does_not_count_backwards(monkeypatch):
    clock, looks, rounds = iter(range(9)), iter([5.0, 1.0]), iter([False, True])
    monkeypatch.setattr(threads.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(threads, "scheduling_delay", lambda: next(looks))
    switch = Switch()
    threads._follow(switch, type("Stop", (), {"wait": lambda self, seconds: next(rounds)})())
    assert switch.states == [False, False, False]


@has_openmp
@has_statistics
@pytest.mark.parametrize("setting", [None, *SETTINGS])
@pytest.mark.parametrize("number", [1, 2])
def test_only_several_threads_without_a_users_settings_are_followed(setting, number, monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(setting, "1")
    monkeypatch.setattr("torch.get_num_threads", lambda: number)
    monkeypatch.setattr(threads, "_follow", lambda switch, stop: switches.append(switch))
    switches = []
    with threads.follow_load():
        pass
    assert len(switches) == (number > 1 and setting is None)


@pytest.mark.parametrize("missing", ["library", "statistics"])
def test_without_the_library_or_statistics_nothing_is_followed(missing, monkeypatch, tmp_path):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr(threads, "_follow", lambda *_: pytest.fail("followed"))
    if missing == "library":
        monkeypatch.setattr(threads, "openmp_library", lambda: None)
    else:
        monkeypatch.setattr(threads, "PROCESS", tmp_path)
    with threads.follow_load():
        pass


@pytest.mark.parametrize(
    "maps", ["", "7f00-7f01 r--p 0 00:00 1 /lib/libc.so.6\n", "7f00 r--p 0 0 1 /gone/libgomp.so.1\n"]
)
def test_a_process_without_the_library_has_none(maps, monkeypatch, tmp_path):
    (tmp_path / "maps").write_text(maps)
    monkeypatch.setattr(threads, "PROCESS", tmp_path)
    assert threads.openmp_library() is None


@has_openmp
@pytest.mark.parametrize(("cores", "own", "sleeps"), [(4, 2, True), (2, 2, True), (200, 2, False), (2, 8, False)])
def test_a_team_is_begun_where_it_is_small_and_there_are_not_more_threads_than_cores(cores, own, sleeps):
    calls = []

    class Library:
        omp_get_thread_num = LIBRARY.omp_get_thread_num

        def omp_get_num_procs(self):
            return cores

        def GOMP_parallel(self, function, argument, size, flags):  # noqa: N802
            calls.append(size.value)

    switch = SpinSwitch(Library(), own)
    switch.set_sleeping(True)
    switch.set_sleeping(True)
    assert switch.sleeping is sleeps
    assert calls == ([cores - own + 2] if sleeps else [])  # with ours and theirs there is one thread more than cores
    switch.set_sleeping(False)
    assert not switch.sleeping


@has_openmp
@pytest.mark.parametrize("allowed", [0, 1, 3, 10, 11])
def test_where_no_more_threads_can_be_started_nothing_changes(allowed, monkeypatch):
    """libgomp would end the process, and threads that have just ended still count: there must be some to spare."""
    start, starts = threading.Thread.start, []

    def start_or_refuse(thread):
        starts.append(thread)
        if len(starts) > allowed:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    monkeypatch.setattr(SpinSwitch, "_hold_team", lambda *_: pytest.fail("a team was begun"))
    switch = SpinSwitch(LIBRARY, LIBRARY.omp_get_num_procs() - 1)  # three threads
    switch.set_sleeping(True)
    assert not switch.sleeping
    assert len(starts) == allowed + 1
    assert not [thread for thread in starts[:allowed] if thread.is_alive()]


@has_statistics
def test_the_delay_grows_beside_busy_processes():
    """Three processes on one processor: this one waits for it most of the time."""
    code = """
import os, time
from zoo.system.threads import scheduling_delay
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
children = []
for _ in range(2):
    if not (child := os.fork()):
        while os.getppid() > 1:
            pass
    children.append(child)
start, before = time.monotonic(), scheduling_delay()
while time.monotonic() - start < 0.5:
    pass
for child in children:
    os.kill(child, 9)
print((scheduling_delay() - before) / (time.monotonic() - start))
"""
    done = forks.run([sys.executable, "-c", code], text=True)
    assert float(done.stdout) > BUSY


@has_openmp
@has_statistics
@pytest.mark.campaign
def test_a_busy_process_that_comes_later_is_noticed():
    code = """
import subprocess, sys, time, torch
from zoo.system import threads
states = []
original = threads.SpinSwitch.set_sleeping
threads.SpinSwitch.set_sleeping = lambda self, sleeping: (original(self, sleeping), states.append(self.sleeping))
torch.set_num_threads(2)
one = torch.ones(300, 300)
with threads.follow_load():
    for company in (False, True, False):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * company)]
        until = time.monotonic() + 5
        while time.monotonic() < until:
            one @ one
        print(states[-1])
        for process in busy:
            process.kill()
"""
    env = {name: value for name, value in os.environ.items() if name not in (*SETTINGS, "OMP_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "True"
