import errno
import json
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from zoo.data import cache
from zoo.data.cache import MANIFEST, cache_root, cached_entry, is_intact, write_array
from zoo.data.text import TextFiles
from zoo.errors import StorageError


def test_an_entry_is_built_once_per_key(fresh_cache):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "a.txt").write_text("A")

    first = cached_entry("x", {"b": 1, "a": 2}, build)
    assert cached_entry("x", {"a": 2, "b": 1}, build) == first
    assert len(calls) == 1
    assert cached_entry("x", {"a": 3, "b": 1}, build) != first
    assert cache_root() == fresh_cache


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
    assert not is_intact(entry)
    assert load().tolist() == good
    assert is_intact(entry)


def test_a_failed_build_leaves_nothing_behind(fresh_cache):
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached_entry("x", 1, fail)
    assert [path for path in fresh_cache.iterdir() if path.suffix != ".lock"] == []


def test_leftovers_of_a_killed_process_are_removed(fresh_cache):
    entry = cached_entry("x", 1, lambda folder: None)
    (entry / MANIFEST).unlink()
    stale = fresh_cache / f"{entry.name}.1.partial"
    stale.mkdir()
    cached_entry("x", 1, lambda folder: None)
    assert not stale.exists()


@pytest.fixture(autouse=True)
def _new_process():
    """As in a new process: nothing was warned of yet, and no entry lies in the process's own temporary folder."""
    cache._warn_cache.cache_clear()
    cache._warn_unmapped.cache_clear()
    cache._temporary.cache_clear()


@pytest.fixture
def unwritable(tmp_path, monkeypatch):
    """A cache folder below a file, where nobody can make one, whoever runs the test."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache"


def test_without_a_cache_folder_an_entry_is_made_for_this_process_with_one_warning(unwritable, capsys):
    calls = []

    def build(folder):
        calls.append(folder)
        write_array(folder / "a.npy", np.arange(3))

    first = cached_entry("x", 1, build)
    assert np.load(first / "a.npy").tolist() == [0, 1, 2]
    assert cached_entry("x", 1, build) == first
    assert cached_entry("y", 1, build) != first
    assert len(calls) == 2
    message = capsys.readouterr().err
    assert message.count("warning:") == 1
    assert "ZOO_CACHE" in message


def test_with_neither_a_cache_folder_nor_a_temporary_one_a_sentence_says_so(unwritable, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="ZOO_CACHE"):
        cached_entry("x", 1, lambda folder: None)


def test_without_a_home_a_sentence_names_the_variable(monkeypatch):
    monkeypatch.delenv("ZOO_CACHE", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(StorageError, match="ZOO_CACHE"):
        cache_root()


def test_an_array_on_a_file_system_that_maps_no_files_is_read(tmp_path, monkeypatch, capsys):
    write_array(tmp_path / "a.npy", np.arange(5))
    assert isinstance(cache.map_array(tmp_path / "a.npy"), np.memmap)

    def refuse(*args, **kwargs):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr("mmap.mmap", refuse)
    for _ in range(2):
        assert cache.map_array(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err.count("warning:") == 1


def test_a_failure_of_the_files_that_are_read_is_no_failure_of_the_cache(fresh_cache):
    def build(folder):
        raise PermissionError(errno.EACCES, "Permission denied", "corpus.txt")

    with pytest.raises(PermissionError, match=r"corpus\.txt"):
        cached_entry("x", 1, build)


WORKER = """
import json, sys, time
from pathlib import Path
from zoo.data.cache import cached_entry as cached

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
