"""Runs that are forks: nothing of one is left for the next, they end as processes do, and die with the comparison."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from zoo.compare import fork_server
from zoo.compare.fork_server import STOPPED, ForkServer
from zoo.compare.parallel_runs import NO_CRASH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")

# the server with few imports, whose command does what its words say and tells what it sees
SERVER = """
import json, os, random, signal, sys, time
import zoo.cli, zoo.compare.fork_server as server
server.LIBRARIES = ("numpy",)
def command():
    import numpy
    report = {"env": dict(os.environ), "folder": os.getcwd(), "words": sys.argv[1:], "main": __spec__.name,
            "draws": [random.random(), numpy.random.random()], "group": os.getpgid(0) == os.getpid()}
    print(json.dumps(report))
    os.environ["LEFT_BEHIND"] = "1"; os.chdir("/"); random.seed(1); numpy.random.seed(1)
    action, number = sys.argv[1:]
    if action == "signal":
        os.kill(os.getpid(), int(number))
    if action == "sleep":
        sys.stdout.flush()
        time.sleep(float(number))
    if action == "raise":
        raise RuntimeError(number)
    return int(number)
zoo.cli.main = command
from zoo.system import process_exit
process_exit.exit_with(server.serve)
"""


@pytest.fixture
def server():
    server = ForkServer([sys.executable, "-P", "-c", SERVER], os.environ)
    yield server
    server.stop()


def begin(server, tmp_path, *words, **environment):
    return server.start(words, tmp_path / "log", {"PATH": os.environ["PATH"], **environment})


def read_reports(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_of_a_run_is_left_for_the_next(server, tmp_path):
    codes = [begin(server, tmp_path, "end", str(code), MINE=str(code)).wait(60) for code in (0, 3, 0)]
    assert codes == [0, 3, 0]
    reports = read_reports(tmp_path)
    assert [run["env"]["MINE"] for run in reports] == ["0", "3", "0"]
    assert not any("LEFT_BEHIND" in run["env"] or "HOME" in run["env"] for run in reports)
    assert {run["folder"] for run in reports} == {os.getcwd()}
    assert [run["words"] for run in reports] == [["end", "0"], ["end", "3"], ["end", "0"]]
    assert all(run["group"] and run["main"] == "zoo.__main__" for run in reports)
    assert len({draw for run in reports for draw in run["draws"]}) == 6


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_run_ends_as_a_process_does(server, tmp_path, number):
    run, whole = begin(server, tmp_path, "signal", str(int(number))), begin(server, tmp_path, "end", "0")
    assert (run.wait(60), whole.wait(60)) == (-number, 0)
    assert begin(server, tmp_path, "raise", "what went wrong").wait(60) == 1
    assert "RuntimeError: what went wrong" in (tmp_path / "log").read_text()


def test_a_run_can_be_signalled_as_soon_as_it_is_there(server, tmp_path):
    for _ in range(5):
        run = begin(server, tmp_path, "sleep", "60")
        os.killpg(run.pid, signal.SIGTERM)
        assert run.wait(60) == -signal.SIGTERM
    run = begin(server, tmp_path, "sleep", "60")
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.1)
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL


def test_runs_of_a_server_that_was_killed_end_and_the_next_has_another(server, tmp_path):
    run = begin(server, tmp_path, "sleep", "60")
    first = server.process
    os.kill(first.pid, signal.SIGKILL)
    assert run.wait(60) == STOPPED
    assert STOPPED in NO_CRASH
    wait_for(lambda: not os.path.exists(f"/proc/{run.pid}"))
    assert begin(server, tmp_path, "end", "4").wait(60) == 4
    assert server.process is not first


def test_changed_code_is_imported_again(server, tmp_path, monkeypatch):
    """A run is recorded with the digest of the code on the disk."""
    module = tmp_path / "changing.py"
    module.write_text("")
    text = SERVER.replace('("numpy",)', '("numpy", "changing")')
    other = ForkServer([sys.executable, "-P", "-c", text], {**os.environ, "PYTHONPATH": str(tmp_path)})
    processes = []
    for change in (False, False, True, False):
        if change:
            os.utime(module, ns=(1, 1))
        assert begin(other, tmp_path, "end", "0").wait(60) == 0
        processes.append(other.process.pid)
    other.stop()
    assert processes[0] == processes[1] != processes[2] == processes[3]


def test_changed_code_leaves_the_runs_that_go_on(tmp_path):
    module = tmp_path / "changing.py"
    module.write_text("")
    text = SERVER.replace('("numpy",)', '("numpy", "changing")')
    server = ForkServer([sys.executable, "-P", "-c", text], {**os.environ, "PYTHONPATH": str(tmp_path)})
    run = begin(server, tmp_path, "sleep", "3")
    os.utime(module, ns=(1, 1))
    assert begin(server, tmp_path, "end", "0") is None  # another process is started for it
    assert run.wait(60) == 3
    assert begin(server, tmp_path, "end", "4").wait(60) == 4
    server.stop()


def test_runs_of_a_dead_server_have_a_code_also_when_the_next_has_been_started(server, tmp_path):
    runs = [begin(server, tmp_path, "sleep", "60") for _ in range(2)]
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert begin(server, tmp_path, "end", "4").wait(60) == 4
    assert [run.wait(60) for run in runs] == [STOPPED] * 2


def test_what_a_module_prints_is_no_answer(tmp_path):
    (tmp_path / "talkative.py").write_text("import os; print('hello'); os.write(1, b'{}')")
    text = SERVER.replace('("numpy",)', '("numpy", "talkative")')
    server = ForkServer([sys.executable, "-P", "-c", text], {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert begin(server, tmp_path, "end", "4").wait(60) == 4
    server.stop()


def test_the_server_plans_runs_of_own_parts_alone(monkeypatch):
    """A plugin may start threads when it is imported, which a fork would not have; and no wrong word ends a server."""
    planned = []
    monkeypatch.setattr("zoo.cli.fit.Parsers", lambda plan, schema: planned.append(plan.run.recipe))
    part = type("Foreign", (), {"builtin": False, "name": "Foreign"})()
    for words, foreign in (
        (["fit", "vit-glyphs", "--model.position", "rope"], ()),
        (["fit", "vit-glyphs"], (part,)),
        (["fit", "vit-glyphs", "--allow-import", "mine"], ()),
        (["fit", "vit-glyphs", "--model.position", "no-such-part"], ()),
        (["fit", "no-such-recipe"], ()),
        (["end", "0"], ()),
    ):
        own = fork_server.registry.parts
        with monkeypatch.context() as patch:
            patch.setattr(fork_server.registry, "parts", lambda kind, own=own, foreign=foreign: own(kind) + foreign)
            fork_server._plan(words)
    assert planned == ["vit-glyphs"]


def test_no_run_outlives_the_comparison(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from zoo.compare.fork_server import ForkServer\n"
        "server = ForkServer([sys.executable, '-P', '-c', sys.argv[1]], os.environ)\n"
        "run = server.start(['sleep', '60'], Path(sys.argv[2]), os.environ)\n"
        "print(run.pid, server.process.pid, flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", code, SERVER, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as comparison:
        pids = comparison.stdout.readline().split()
        comparison.kill()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.campaign
def test_forks_train_what_processes_train(tmp_path):
    code = (
        "import sys; import zoo.compare.parallel_runs as execution; from zoo.cli import main\n"
        "if sys.argv[1] == 'processes': execution.can_fork = lambda: False\n"
        "main(['compare', 'vit-glyphs', '--vary', 'model.norm=layernorm,rmsnorm', '--seeds', '2',\n"
        "      '--trainer.max_steps', '5', '--data.size', '200', '--runs', sys.argv[1]])\n"
    )
    ledgers = []
    for way in ("forks", "processes"):
        done = subprocess.run([sys.executable, "-c", code, way], cwd=tmp_path, capture_output=True, text=True)
        assert "4/4" in done.stdout, done.stdout + done.stderr
        records = [
            json.loads(path.read_text()) for path in sorted((tmp_path / way).glob("vit-glyphs/*/s*/ledger.json"))
        ]
        ledgers.append([{k: v for k, v in record.items() if k not in ("cost", "digest")} for record in records])
    assert len(ledgers[0]) == 4
    assert ledgers[0] == ledgers[1]
