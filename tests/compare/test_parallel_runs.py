"""Runs are done once, whatever is killed and however many processes work on them."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compare.fake_compare import how, jobs
from tests.compare.toy_site import make_site, read_table
from zoo.compare import parallel_runs as execution
from zoo.compare import run_records
from zoo.compare.parallel_runs import execute, exit_code, headline_text, last_log_lines, threads_per_run
from zoo.compare.plan import take_shard
from zoo.errors import UsageError
from zoo.io import checkpoint_manifest, locks
from zoo.io.locks import Lock, Owner, is_alive, start_time, this_process
from zoo.logging import run_state

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("fake_compare.py")


def start(runs, fake=None, **settings):
    """A comparison as a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FAKE_FIT": json.dumps(fake or {})}
    words = [sys.executable, str(SCRIPT), str(runs), json.dumps(settings)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def journal(runs):
    path = Path(runs, "journal")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def starts(runs):
    return [f"{line[1]} {line[2]}" for line in journal(runs) if line[0] == "start"]


def ledgers(runs):
    """Everything that a comparison reads, but for what a clock says."""
    return {
        str(path.relative_to(runs)): json.loads(path.read_text()) for path in sorted(Path(runs).rglob("ledger.json"))
    }


def repeated(runs):
    """Runs that were started again after they had ended, or begun anew where they could have gone on."""
    ended, wrong = set(), []
    for line in journal(runs):
        name = f"{line[1]} {line[2]}"
        if line[0] == "end":
            ended.add(name)
        elif name in ended:
            wrong.append(name)
    return wrong


def holding(runs):
    owners = []
    for path in Path(runs).rglob("s*.lock"):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # given back, or not written yet
            owners.append(json.loads(path.read_text()))
    return owners


def until(what, patience=20.0):
    deadline = time.monotonic() + patience
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return value


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(execution, "POLL", 0.01)
    monkeypatch.delenv("FAKE_FIT", raising=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The ledgers of a comparison that nobody interrupted."""
    runs = tmp_path_factory.mktemp("undisturbed")
    assert execute(jobs(runs), how(jobs=3)) == {}
    return ledgers(runs)


def test_every_run_is_done_once_seed_by_seed_and_told_in_a_line(tmp_path):
    lines = []
    assert execute(jobs(tmp_path, "ab", (1, 2)), replace(how(), report=lines.append)) == {}
    assert starts(tmp_path) == ["a s1", "b s1", "a s2", "b s2"]
    assert [line.split(" · ")[0] for line in lines] == ["1/4  a s1", "2/4  b s1", "3/4  a s2", "4/4  b s2"]
    assert "loss 2.01" in lines[0]
    assert not list(tmp_path.rglob("*.lock"))
    assert (tmp_path / "toy/a/s1.log").read_text().startswith("$ ")


def test_what_is_finished_is_not_run_again(tmp_path, undisturbed):
    assert execute(jobs(tmp_path), how(jobs=4)) == {}
    before = len(starts(tmp_path))
    lines = []
    assert execute(jobs(tmp_path), replace(how(), report=lines.append)) == {}
    assert len(starts(tmp_path)) == before
    assert lines == []
    assert {name: result["best"] for name, result in ledgers(tmp_path).items()} == {
        name: result["best"] for name, result in undisturbed.items()
    }


def test_several_runs_at_once_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert [threads_per_run(1), threads_per_run(2), threads_per_run(1000)] == [cores, max(1, cores // 2), 1]
    execute(jobs(tmp_path, "ab", (1,)), how(jobs=2))
    assert {line[4] for line in journal(tmp_path) if line[0] == "start"} == {str(max(1, cores // 2))}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads_per_run(4) == 7


def test_no_more_runs_at_once_than_asked_for(tmp_path):
    process = start(tmp_path, {"step": 0.01}, jobs=2)
    most = 0
    while process.poll() is None:
        most = max(most, len(list(tmp_path.rglob("s*.lock"))))
        time.sleep(0.005)
    assert process.returncode == 0
    assert most == 2


def test_simultaneous_runs_have_devices_of_their_own(tmp_path):
    process = start(tmp_path, {"step": 0.01}, jobs=2, gpus=["0,1", "GPU-b"])
    most = {}
    while process.poll() is None:
        running = {}
        for line in journal(tmp_path):
            name = f"{line[1]} {line[2]}"
            running[name] = line[5] if line[0] == "start" else None
        devices = [each for each in running.values() if each]
        most[len(devices)] = most.get(len(devices), True) and len(set(devices)) == len(devices)
        time.sleep(0.005)
    assert process.returncode == 0
    assert all(most.values())
    assert 2 in most
    assert {line[5] for line in journal(tmp_path) if line[0] == "start"} == {"0,1", "GPU-b"}
    other = tmp_path / "other"
    other.mkdir()
    execute(jobs(other, "a", (1,)), how())
    assert journal(other)[0][5] == os.environ.get("CUDA_VISIBLE_DEVICES", "-")


@pytest.mark.parametrize("kills", [3, pytest.param(6, marks=pytest.mark.campaign)])
def test_kill_9_at_any_moment_loses_and_repeats_no_run(tmp_path, undisturbed, kills):
    draw = random.Random(3)
    for _ in range(kills):
        process = start(tmp_path, {"step": 0.03}, jobs=2)
        until(lambda: any(each["child"] and start_time(each["child"]) for each in holding(tmp_path)))
        time.sleep(draw.uniform(0.0, 0.6))
        locks = holding(tmp_path)
        process.kill()
        process.wait()
        children = [owner["child"] for owner in locks if owner["child"]]
        until(lambda children=children: not any(start_time(child) for child in children), 5.0)  # they die with it
    process = start(tmp_path, jobs=3)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert repeated(tmp_path) == []
    assert any("resume" in line for line in journal(tmp_path))
    assert len(ledgers(tmp_path)) == 9
    assert ledgers(tmp_path).keys() == undisturbed.keys()
    for name, result in ledgers(tmp_path).items():
        expected = undisturbed[name]
        assert all(result[key] == expected[key] for key in ("best", "last", "batches", "steps", "finished")), name


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_kill_9_of_real_runs_at_random_moments_gives_the_same_table(tmp_path):
    """Of a comparison, of a run, or of everything."""
    draw = random.Random(int(os.environ.get("KILL_SEED", "18")))
    words = [sys.executable, "-m", "zoo", "compare", "./toy.yaml", "--vary", "model.norm=RMSNorm,LayerNorm", "--seeds",
             "2", "--jobs", "2"]  # fmt: skip
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, "start_new_session": True}
    sites = [make_site(tmp_path / name) for name in ("undisturbed", "killed")]
    with (tmp_path / "log").open("ab") as log:
        options |= {"stdout": log, "stderr": log}
        started = time.monotonic()
        assert subprocess.run(words, cwd=sites[0], timeout=1200, **options).returncode == 0
        duration = time.monotonic() - started
        for victim in ("everything", "comparison", "everything", "run", "everything"):
            processes = [subprocess.Popen(words, cwd=sites[1], **options) for _ in range(2)]
            until(lambda: any(owner["child"] for owner in holding(sites[1])), 600.0)
            time.sleep(draw.uniform(0.0, duration / 2))
            children = [owner["child"] for owner in holding(sites[1]) if owner["child"]]
            doomed = children if victim == "run" else [processes[0].pid]
            if victim == "everything":
                doomed = [*(process.pid for process in processes), *children]
            for number in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            codes = [process.wait(1200) for process in processes]
            until(lambda children=children: not any(start_time(child) for child in children), 60.0)
            if victim != "everything" or 0 in codes:  # to its end, and begin again
                assert subprocess.run(words, cwd=sites[1], timeout=1200, **options).returncode == 0
                assert read_table(sites[1], 2) == read_table(sites[0], 2)
                shutil.rmtree(sites[1] / "runs")
        assert subprocess.run(words, cwd=sites[1], timeout=1200, **options).returncode == 0
    assert read_table(sites[1], 2) == read_table(sites[0], 2)


def can_make_namespaces():
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not can_make_namespaces(), reason="unshare cannot make process namespaces here")
def test_two_containers_of_one_host_name_do_every_run_once(tmp_path):
    """Each has process numbers of its own, which say nothing to the other."""
    site = make_site(tmp_path / "site")
    words = [*CONTAINER, sys.executable, "-m", "zoo", "compare", "./toy.yaml", "--vary", "model.norm=RMSNorm,LayerNorm",
             "--seeds", "1"]  # fmt: skip
    logs, processes = [tmp_path / "one.txt", tmp_path / "other.txt"], []
    for log in logs:
        with log.open("wb") as file:
            processes.append(subprocess.Popen(words, cwd=site, stdout=file, stderr=file))
        time.sleep(1.0)
    assert [process.wait(1800) for process in processes] == [0, 0], [log.read_text() for log in logs]
    attempts = [path.read_text().count("$ ") for path in site.glob("runs/toy/*/s1.log")]
    assert attempts == [1, 1]
    assert all("verdict" in log.read_text() for log in logs)


def test_four_processes_at_once_do_every_run_once(tmp_path, undisturbed):
    processes = [start(tmp_path, {"step": 0.01}, jobs=2) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert sorted(starts(tmp_path)) == sorted(job.title for job in jobs(tmp_path))
    assert ledgers(tmp_path).keys() == undisturbed.keys()
    done = [line for lines in outputs for line in lines.splitlines()]
    assert sum("done by another process" in line or " · loss" in line for line in done) >= 9


def test_shards_do_every_run_once_and_wait_for_nobody(tmp_path):
    parts = [take_shard(jobs(tmp_path), f"{number}/4") for number in (1, 2, 3, 4)]
    assert sorted(job.title for part in parts for job in part) == sorted(job.title for job in jobs(tmp_path))
    other = Lock(run_state.path_beside(parts[0][0].folder, ".lock"))
    assert other.acquire()
    assert execute(parts[0], how(wait=False)) == {}  # the run that another holds is left to it
    other.release()
    assert parts[0][0].title not in starts(tmp_path)
    processes = [start(tmp_path, shard=f"{number}/4", wait=False) for number in (1, 2, 3, 4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert sorted(starts(tmp_path)) == sorted(job.title for job in jobs(tmp_path))


@pytest.mark.parametrize("wrong", ["0/4", "5/4", "a/4", "2", "2/", "-1/4"])
def test_no_share(wrong):
    with pytest.raises(UsageError, match="is not I/N"):
        take_shard([], wrong)


def test_what_fails_is_named_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FIT", json.dumps({"fail": ["b s1"]}))
    lines = []
    failures = execute(jobs(tmp_path, "abc", (1, 2)), replace(how(), report=lines.append))
    assert failures == {tmp_path / "toy/b/s1": 1}
    failure = next(line for line in lines if line.startswith("failed"))
    assert failure.splitlines()[0] == f"failed  b s1 (exit code 1), see {tmp_path / 'toy/b/s1.log'}"
    assert failure.splitlines()[-1].strip() == "error: this run was told to fail"
    assert len(ledgers(tmp_path)) == 5
    monkeypatch.delenv("FAKE_FIT")
    assert execute(jobs(tmp_path, "abc", (1, 2)), how()) == {}
    assert starts(tmp_path).count("b s1") == 2
    assert len(starts(tmp_path)) == 7


def test_a_run_that_diverges_has_ended_and_is_not_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FIT", json.dumps({"diverge": ["b s1"]}))
    lines = []
    assert execute(jobs(tmp_path, "ab", (1,)), replace(how(), report=lines.append)) == {}
    assert "b s1 · diverged at step 3" in lines[-1]
    assert run_state.read_state(tmp_path / "toy/b/s1") == "diverged"
    assert execute(jobs(tmp_path, "ab", (1,)), how()) == {}
    assert starts(tmp_path) == ["a s1", "b s1"]
    assert not run_records.read_crash(tmp_path / "toy/b/s1")


@pytest.mark.parametrize(("how_it_fails", "cause"), [("killed", "killed by signal 9"), ("fail", "error: this run was")])
def test_a_process_that_dies_is_counted_beside_its_run(tmp_path, monkeypatch, how_it_fails, cause):
    monkeypatch.setenv("FAKE_FIT", json.dumps({how_it_fails: ["b s1"]}))
    for _ in range(3):
        assert [*execute(jobs(tmp_path, "b", (1,)), how())] == [tmp_path / "toy/b/s1"]
    crash = run_records.read_crash(tmp_path / "toy/b/s1")
    assert (crash["state"], crash["crashes"]) == ("crashed", 3)
    assert crash["cause"].startswith(cause)
    (record,) = run_records.read_ledgers([tmp_path / "toy/b/s1"])
    assert record.failure("loss") == "crashed"
    monkeypatch.delenv("FAKE_FIT")
    assert execute(jobs(tmp_path, "b", (1,)), how()) == {}
    (record,) = run_records.read_ledgers([tmp_path / "toy/b/s1"])
    assert record.failure("loss") == ""


def test_a_shard_has_all_variants_of_its_seeds(tmp_path):
    """Shards of runs gave each machine one of two variants: what was compared were the machines."""
    for count in (1, 2, 3, 4):
        parts = [
            take_shard(jobs(tmp_path, "ab", (1, 2, 3, 4, 5)), f"{number}/{count}") for number in range(1, count + 1)
        ]
        for part in parts:
            by_seed = {}
            for job in part:
                by_seed.setdefault(job.folder.name, set()).add(job.folder.parent.name)
            assert all(variants == {"a", "b"} for variants in by_seed.values())
        assert sorted(job.title for part in parts for job in part) == sorted(
            job.title for job in jobs(tmp_path, "ab", (1, 2, 3, 4, 5))
        )
    assert take_shard(jobs(tmp_path, "ab", (1,)), "2/2") == []


def test_ctrl_c_stops_the_runs_and_frees_them(tmp_path):
    process = start(tmp_path, {"step": 0.5}, jobs=2)
    locks = until(lambda: len(children := [each for each in holding(tmp_path) if each["child"]]) == 2 and children)
    time.sleep(0.5)  # until the runs listen to the signal
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert process.returncode == -signal.SIGINT
    assert not any(start_time(each["child"]) for each in locks)
    assert not holding(tmp_path)
    assert start(tmp_path, jobs=3).wait(60) == 0
    assert repeated(tmp_path) == []


@pytest.mark.parametrize(("number", "deaf"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGUSR1, True)])
def test_signals_of_machines_stop_the_runs_too(number, deaf, tmp_path):
    """Also in the background of a script, whose processes are started with SIGINT ignored."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN) if deaf else None
    try:
        process = start(tmp_path, {"step": 5})
    finally:
        if deaf:
            signal.signal(signal.SIGINT, usual)
    locks = until(lambda: [each for each in holding(tmp_path) if each["child"]])
    time.sleep(0.5)  # until the run listens to the signal
    process.send_signal(number)
    assert process.wait(20) == 143  # well before the runs are killed
    assert not start_time(locks[0]["child"])
    assert not holding(tmp_path)


# locks


def owner(**changes):
    return replace(this_process(), **changes)


def write_lock(path, content, age=0.0):
    path.write_text(json.dumps(vars(content)))
    os.utime(path, (time.time() - age, time.time() - age))


def dead():
    """The number of a process that is no more, and when it began."""
    process = subprocess.Popen(["sleep", "30"])
    since = start_time(process.pid)
    process.kill()
    process.wait()
    return process.pid, since


@pytest.mark.parametrize(
    ("content", "age", "expected"),
    [
        (lambda: owner(), 1e6, True),  # ours, and alive: its age does not matter here
        (lambda: owner(pid=dead()[0], born=dead()[1]), 0.0, False),
        (lambda: owner(born="another-1"), 0.0, False),  # the number belongs to another process now
        (lambda: owner(pid=dead()[0], born="x", child=os.getpid(), child_born=start_time(os.getpid())), 0.0, True),
        (lambda: owner(host="elsewhere"), 10.0, True),
        (lambda: owner(host="elsewhere"), 301.0, False),
    ],
)
def test_a_lock_holds_while_its_processes_live(tmp_path, content, age, expected):
    path = tmp_path / "s1.lock"
    write_lock(path, content(), age)
    mine = Lock(path)
    assert (mine.holder() is not None) is expected
    assert mine.acquire() is not expected
    assert (json.loads(path.read_text())["pid"] == os.getpid()) or expected


HERE = locks.machine_id()


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
@pytest.mark.parametrize("machine", [HERE, "", f"otherboot {HERE.split()[-1]}", f"{HERE.split()[0]} pid:[1]"])
@pytest.mark.parametrize("living", [True, False])
@pytest.mark.parametrize("age", [10.0, 301.0])
def test_a_process_number_of_another_machine_of_the_same_name_says_nothing(tmp_path, host, machine, living, age):
    """Where it is not the number of a process here, a lock is stale by its age alone."""
    path = tmp_path / "s1.lock"
    number, since = (os.getpid(), start_time(os.getpid())) if living else dead()
    write_lock(path, Owner(host, number, since, machine=machine), age)
    local = host == socket.gethostname() and machine == HERE
    assert (Lock(path).holder() is not None) is (living if local else age < 300)


@pytest.mark.parametrize(("node", "expected"), [(0x0242AC110002, "0242ac110002"), (0x0342AC110002, "")])
def test_without_proc_the_network_hardware_identifies_a_machine(monkeypatch, node, expected):
    def fail(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(locks.os, "readlink", fail)
    monkeypatch.setattr(locks.uuid, "getnode", lambda: node)
    assert locks.machine_id() == expected


def test_a_damaged_lock_is_taken_over_after_a_while(tmp_path):
    path = tmp_path / "s1.lock"
    path.write_text("{")
    assert not Lock(path).acquire()  # perhaps just being written
    os.utime(path, (time.time() - 60, time.time() - 60))
    assert Lock(path).acquire()


def test_of_many_that_see_a_stale_lock_one_takes_it(tmp_path):
    code = (
        "import sys; from pathlib import Path; from zoo.io.locks import Lock\n"
        "won = []\n"
        "for n in range(40):\n"
        "    lock = Lock(Path(sys.argv[1], f'{n}.lock'))\n"
        "    won += [n] if lock.acquire() else []\n"
        "print(*won, flush=True); sys.stdin.read()"
    )
    number, since = dead()
    for n in range(40):
        write_lock(tmp_path / f"{n}.lock", owner(pid=number, born=since))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    several = [subprocess.Popen(words, env=env, **pipes) for _ in range(4)]
    won = [process.stdout.readline().split() for process in several]  # who has won lives until all have tried
    for process in several:
        process.communicate(timeout=30)
    assert sorted(int(n) for each in won for n in each) == list(range(40))


def test_a_lock_that_was_taken_over_is_not_ours_any_more(tmp_path):
    path = tmp_path / "s1.lock"
    mine = Lock(path)
    assert mine.acquire()
    assert mine.refresh()
    write_lock(path, owner(host="elsewhere"))
    assert not mine.refresh()
    mine.release()
    assert path.exists()  # the other's
    path.unlink()
    assert not mine.refresh()


def test_a_refresh_keeps_a_lock_young(tmp_path):
    path = tmp_path / "s1.lock"
    mine = Lock(path)
    mine.acquire()
    os.utime(path, (0, 0))
    assert mine.refresh()
    assert time.time() - path.stat().st_mtime < 5


def test_a_comparison_gives_up_a_run_that_was_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "REFRESH", 0.05)
    monkeypatch.setenv("FAKE_FIT", json.dumps({"step": 0.1}))
    path = tmp_path / "toy/a/s1.lock"
    path.parent.mkdir(parents=True)
    stolen = []
    take = locks.Lock.record_child

    def steal(self, pid):
        take(self, pid)
        if not stolen:
            stolen.append(pid)
            write_lock(path, owner(host="elsewhere"))

    monkeypatch.setattr(locks.Lock, "record_child", steal)
    assert execute(jobs(tmp_path, "a", (1,)), how(wait=False)) == {}
    assert not start_time(stolen[0])
    assert json.loads(path.read_text())["host"] == "elsewhere"
    assert run_state.read_state(tmp_path / "toy/a/s1") != "finished"


def test_a_process_that_is_dead_is_seen_as_dead():
    number, since = dead()
    assert is_alive(this_process())
    assert not is_alive(Owner(socket.gethostname(), number, since))
    assert start_time(number) == ""


# what a kill leaves behind


def test_a_checkpoint_that_was_cut_short_is_not_resumed_from(tmp_path, monkeypatch):
    job = jobs(tmp_path, "a", (1,))[0]
    execute([job], how())
    (job.folder / "finished.json").unlink()
    good = job.folder / "checkpoints" / "last.ckpt"
    bad = job.folder / "checkpoints" / "best.ckpt"
    bad.write_bytes(good.read_bytes()[:-30])
    assert checkpoint_manifest.newest_intact(job.folder).path == good
    assert run_state.resume_options(job.folder) == ["--resume", f"--ckpt_path={good}"]
    good.unlink()
    with monkeypatch.context() as patch:  # the state is asked for again and again while jobs wait: no file is read
        patch.setattr(checkpoint_manifest, "verify", lambda path: pytest.fail(f"{path} was read"))
        assert run_state.read_state(job.folder) == "continue"
    assert run_state.resume_options(job.folder) == ["--overwrite"]


def test_a_folder_without_a_configuration_is_removed_only_if_nothing_of_worth_is_in_it(tmp_path):
    folder = tmp_path / "toy/a/s1"
    folder.mkdir(parents=True)
    (folder / "parts.json").write_text("[]")
    assert run_state.resume_options(folder) == []
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert run_state.resume_options(folder) == ["--overwrite"]  # which zoo fit refuses, and says why
    assert (folder / "notes.txt").exists()


def test_a_run_is_finished_when_both_files_say_so(tmp_path):
    job = jobs(tmp_path, "a", (1,))[0]
    assert run_state.read_state(job.folder) == "missing"
    execute([job], how())
    assert run_state.read_state(job.folder) == "finished"
    (job.folder / "ledger.json").write_text(json.dumps({"finished": False}))
    assert run_state.read_state(job.folder) == "continue"
    (job.folder / "ledger.json").unlink()
    assert run_state.has_no_record(job.folder)
    assert run_state.read_state(job.folder) == "finished"


def test_the_last_lines_of_a_log_are_those_of_this_attempt(tmp_path):
    path = tmp_path / "s1.log"
    path.write_text("old\n\nnew\n\n  newest  \n")
    assert [line.strip() for line in last_log_lines(path, 4)] == ["new", "newest"]
    assert last_log_lines(tmp_path / "none.log", 0) == []


def test_the_error_of_a_failed_run_is_printed_whole_and_without_its_header(tmp_path):
    path = tmp_path / "s1.log"
    path.write_text("error: an old one\nTraining lm\n\n  folder  runs\nerror: no space (config.yaml)\nFree some.\n")
    assert [line.strip() for line in last_log_lines(path, 0)] == ["error: no space (config.yaml)", "Free some."]
    path.write_text("Traceback\n  line\nValueError: 7\nerror: this looks like a bug in zoo\nmore\n")
    assert last_log_lines(path, 0)[0].strip() == "ValueError: 7"
    path.write_text("error: 1\n2\n3\n4\n")
    assert [line.strip() for line in last_log_lines(path, 0)] == ["error: 1", "2", "3"]


@pytest.mark.parametrize(("codes", "code"), [((), 0), ((5,), 5), ((5, 5), 5), ((5, 1), 1), ((-9,), 1), ((2,), 1)])
def test_only_a_disk_that_stopped_all_runs_is_the_exit_code_of_a_comparison(codes, code):
    assert exit_code(codes) == code


@pytest.mark.parametrize(
    ("code", "steps", "crashed"),
    [
        (1, 0, True),
        (1, 4, True),
        (2, 0, False),
        (2, 4, True),
        (3, 4, True),
        (5, 4, False),
        (130, 4, False),
        (-9, 4, True),
    ],
)
def test_a_run_that_has_trained_and_ends_by_its_own_code_is_an_outcome(code, steps, crashed, tmp_path):
    folder = tmp_path / "s1"
    folder.mkdir()
    (folder / "ledger.json").write_text(json.dumps({"steps": steps}))
    log = tmp_path / "s1.log"
    log.write_text("error: wrong")
    execution.record_crash(folder, code, last_log_lines(log, 0))
    assert bool(run_records.read_crash(folder)) is crashed


@pytest.mark.parametrize("lines", ["", "device cpu, 1 thread\nstep 50 · loss 5.1\n"])
def test_a_log_without_an_error_gives_no_cause(tmp_path, lines):
    folder, log = tmp_path / "s1", tmp_path / "s1.log"
    folder.mkdir()
    (folder / "ledger.json").write_text(json.dumps({"steps": 4}))
    log.write_text(lines)
    execution.record_crash(folder, 0, last_log_lines(log, 0))
    assert run_records.read_crash(folder)["cause"] == "exit code 0"


def test_a_crash_that_the_run_recorded_itself_says_more_than_its_log(tmp_path):
    folder, log = tmp_path / "s1", tmp_path / "s1.log"
    folder.mkdir()
    outcome = {"state": "crashed", "cause": "RuntimeError: a kernel failed"}
    (folder / "ledger.json").write_text(json.dumps({"steps": 4, "outcome": outcome}))
    log.write_text("error: this looks like a bug in zoo or in a part")
    execution.record_crash(folder, 1, last_log_lines(log, 0))
    assert run_records.read_crash(folder)["cause"] == "RuntimeError: a kernel failed"


@pytest.mark.parametrize(
    ("goal", "at", "text"),
    [
        ("", "last", "loss 2.5 · "),
        ("", "best", "loss 1.5 · "),
        ("", "last:2", "loss 2.25 · "),
        ("", "test", "loss 2.5 · "),  # measured when all runs have ended
        ("val/top1", "last", "top1 0.25 · "),
        ("top1", "best", "top1 0.75 · "),
        ("", "last:9", ""),
    ],
)
def test_the_line_of_a_run_has_the_figure_that_decides(goal, at, text):
    validations = [{"step": 1, "loss": 1.5, "top1": 0.75}, {"step": 2, "loss": 2.0, "top1": 0.5},
                   {"step": 3, "loss": 2.5, "top1": 0.25}]  # fmt: skip
    record = run_records.RunRecord(
        Path("ledger.json"), "toy", "default", 1, goals={"loss": "min", "top1": "max"}, validations=validations,
        best={"loss": 1.5, "top1": 0.75}, last={"loss": 2.5, "top1": 0.25}, finished=True,
    )  # fmt: skip
    assert headline_text(record, goal, at) == text
