"""Signals before, after and beside training: noted, answered with the documented code, and never lost at a start."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from zoo.cli import main
from zoo.system import stop_signals

STOPPING = sorted(stop_signals.HANDLED)


def run(code, **popen):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **popen)


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield before
    assert {number: signal.getsignal(number) for number in STOPPING} == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_the_first_process_at_once(number, handlers):
    with pytest.raises(stop_signals.Interrupted) as caught, stop_signals.handle_signals(defer=False, restore=True):
        os.kill(os.getpid(), number)
    assert caught.value.signum == number
    assert stop_signals.exit_code(number) == (130 if number == signal.SIGINT else 143)


@pytest.mark.parametrize("number", STOPPING)
def test_a_further_process_waits_for_the_others(number, handlers):
    with stop_signals.handle_signals(defer=True, restore=True):
        os.kill(os.getpid(), number)
        assert stop_signals.received_signal() == number
        os.kill(os.getpid(), signal.SIGTERM)  # an echo
        assert stop_signals.received_signal() == number
    assert stop_signals.received_signal() == 0


def test_training_begins_with_the_signal_that_came_before_it(handlers):
    from zoo.training.signals import Signals

    with stop_signals.handle_signals(defer=True, restore=True):
        os.kill(os.getpid(), signal.SIGUSR1)
        signals = Signals()
        signals.register_signal_handlers()
        assert signals.signum == signal.SIGUSR1
        signals.teardown()
    signals = Signals()
    signals.register_signal_handlers()
    assert signals.signum == 0
    signals.teardown()


def test_a_signal_that_is_ignored_stays_so(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals.handle_signals(defer=False, restore=True):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop_signals.received_signal() == 0
    finally:
        signal.signal(signal.SIGHUP, handlers[signal.SIGHUP])


def test_a_process_that_has_ended_its_work_ends_with_its_own_code():
    code = """if True:
    import os, signal
    from zoo.system import stop_signals
    with stop_signals.handle_signals(defer=False, restore=False):
        pass
    for number in stop_signals.HANDLED:
        os.kill(os.getpid(), number)
    """
    assert run(code).wait() == 0


def test_the_same_signal_again_ends_a_process_at_once():
    code = """if True:
    import os, signal
    from zoo.system import stop_signals
    stop_signals.REPEAT_AFTER = 0.0
    with stop_signals.handle_signals(defer=True, restore=False):
        os.kill(os.getpid(), signal.SIGUSR1)
        print("noted", flush=True)
        os.kill(os.getpid(), signal.SIGUSR1)
    """
    process = run(code)
    assert (process.communicate()[0], process.returncode) == ("noted\n", 143)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_to_a_process_that_has_just_been_started_waits_for_its_handler(number):
    code = """if True:
    from zoo.system import stop_signals
    with stop_signals.handle_signals(defer=True, restore=False):
        print(stop_signals.received_signal(), flush=True)
    """
    with stop_signals.block_signals():
        process = run(code)
    os.kill(process.pid, number)
    assert (process.communicate()[0], process.returncode) == (f"{int(number)}\n", 0)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOPPING)


@pytest.mark.skipif(sys.platform != "linux", reason="locks a mutex of the C library")
def test_a_signal_ends_a_process_that_waits_in_a_library():
    code = """if True:
    import ctypes
    from zoo.system import stop_signals
    stop_signals.UNANSWERED = 0.1
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    with stop_signals.handle_signals(defer=False, restore=False):
        libc.pthread_mutex_lock(mutex)
        print("waits", flush=True)
        libc.pthread_mutex_lock(mutex)
    """
    process = run(code)
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143


def test_nothing_is_handled_outside_the_main_thread(handlers):
    def command():
        with stop_signals.handle_signals(defer=False, restore=True):
            pass

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted\n"), (signal.SIGUSR1, "interrupted by SIGUSR1\n")]
)
def test_a_command_that_trains_says_what_ended_it_before_it_trained(number, line, handlers, monkeypatch, capsys):
    from zoo.config import run_config

    monkeypatch.setattr(run_config, "read_draft", lambda *_: os.kill(os.getpid(), number))
    assert main(["fit", "lm-tiny"]) == stop_signals.exit_code(number)
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("code", "job"), [(2, 2), (143, 143), (130, 130), (-9, 1), (-10, 1), (137, 1), (255, 1)])
def test_a_job_ends_with_the_code_of_its_process(code, job):
    assert stop_signals.job_code(code) == job
