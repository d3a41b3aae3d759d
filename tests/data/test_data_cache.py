import json
import os
import subprocess
import sys

import pytest

from zoo.data.cache import MANIFEST, cached, intact, root
from zoo.data.text import TextFiles
from zoo.errors import UsageError


def test_an_entry_is_built_once_per_key(fresh_cache):
    built = []

    def build(folder):
        built.append(folder)
        (folder / "a.txt").write_text("A")

    first = cached("x", {"b": 1, "a": 2}, build)
    assert cached("x", {"a": 2, "b": 1}, build) == first
    assert len(built) == 1
    assert cached("x", {"a": 3, "b": 1}, build) != first
    assert root() == fresh_cache


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_entry_is_built_again(fresh_cache, tmp_path, harm):
    (tmp_path / "t.txt").write_text("some text to read " * 40)

    def load():
        data = TextFiles(str(tmp_path / "t.txt"), seed=0)
        data.setup()
        return data.datasets["train"].tokens

    good = load().tolist()
    (entry,) = (path for path in fresh_cache.iterdir() if path.is_dir())
    file = entry / "train.npy"
    content = file.read_bytes()
    if harm == "truncate":
        file.write_bytes(content[:-10])
    elif harm == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1, content[-2]])[:1])
    elif harm == "remove":
        file.unlink()
    else:
        (entry / MANIFEST).write_text("{")
    assert not intact(entry)
    assert load().tolist() == good
    assert intact(entry)


def test_a_failed_build_leaves_nothing_behind(fresh_cache):
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached("x", 1, fail)
    assert [path for path in fresh_cache.iterdir() if path.suffix != ".lock"] == []


def test_leftovers_of_a_killed_process_are_removed(fresh_cache):
    entry = cached("x", 1, lambda folder: None)
    (entry / MANIFEST).unlink()
    stale = fresh_cache / f"{entry.name}.1.partial"
    stale.mkdir()
    cached("x", 1, lambda folder: None)
    assert not stale.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    if os.geteuid() == 0:
        monkeypatch.setattr("pathlib.Path.mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "denied")))
    (tmp_path / "locked").mkdir(mode=0o500) if os.geteuid() else None
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "locked" / "cache"))
    with pytest.raises(UsageError, match="ZOO_CACHE"):
        cached("x", 1, lambda folder: None)


WORKER = """
import json, sys, time
from pathlib import Path
from zoo.data.cache import cached

def build(folder):
    with open(sys.argv[1], "a") as log:
        log.write("built ")
    (folder / "part").write_text("1")
    time.sleep(0.4)
    (folder / "rest").write_text("2")

entry = cached("x", "key", build)
print(json.dumps(sorted(path.name for path in entry.iterdir())))
"""


def test_two_processes_at_once_build_once(fresh_cache, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", WORKER, str(log)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert answers == [[MANIFEST, "part", "rest"]] * 3
    assert log.read_text() == "built "
