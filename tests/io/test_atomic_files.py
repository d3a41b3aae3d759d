"""The one writer of files: what it leaves when a call fails, what it says then, and that nobody else writes."""

import ast
import errno
import io
import os
from pathlib import Path

import pytest

from tests.rows import try_each
from zoo.cli import error_report
from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files

ROOT = Path(__file__).parents[2]
ERRORS = (errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EINVAL, errno.EROFS)

# who calls what changes files other than through zoo.io.atomic_files, and why that is right
ALLOWED = {
    "zoo/io/atomic_files.py": {"*"},
    "zoo/logging/tensorboard.py": {"truncate"},  # an event file, back to what a checkpoint knew of
    "zoo/logging/event_files.py": {"open"},  # an event file, bytes of a record by as many others
    "zoo/compare/parallel_runs.py": {"open"},  # a run's log, which the run itself goes on with
    "zoo/compare/fork_server.py": {"open"},  # the same log in the run, and /dev/null
    "zoo/compare/journal.py": {"open", "fsync"},  # a journal of lines, which are appended under a lock and synced
    "zoo/conformance/stream_checks.py": {"open", "write_bytes"},  # in a check's own folder
    "zoo/io/plain_yaml.py": {"dump"},  # to a text
    "zoo/compare/error_budget.py": {"TemporaryFile"},  # without a name: it tells whether a file can be written there
    "zoo/io/locks.py": {"TemporaryFile"},  # without a name: it tells the time of a file system
    "zoo/system/fresh_process.py": {"open", "fdopen"},  # /dev/null, and pipes
    "zoo/conformance/check_worker.py": {"open", "fdopen"},
    "zoo/conformance/contracts/executor.py": {"open"},  # notes of sample runs, in a check's own folder
    "zoo/conformance/token_checks.py": {"save"},  # into memory
    "zoo/compare/tensorboard_command.py": {"open"},  # /dev/null
    "zoo/console.py": {"open"},  # /dev/null, and a run's log, whose failure costs a warning
    "zoo/data/image_sources.py": {"savez", "open"},  # into memory; pixels of a table, into a folder of the cache
    "zoo/logging/trackers.py": {"open"},
    "zoo/data/tokenizer_errors.py": {"TemporaryFile"},  # without a name: what a library prints
    "zoo/conformance/contracts/data.py": {"savez", "write_bytes"},  # in a check's own folder
    "zoo/training/callbacks.py": {"write_text"},  # to the kernel, which lets a peak begin anew
    "zoo/training/checkpoint.py": {"save", "open"},  # into memory; a folder, to hold it
    "zoo/conformance/two_processes.py": {"save"},  # two processes of a check, in a folder of its own
    "zoo/inference/weight_files.py": {"open"},  # a draft of zoo.io.atomic_files
    "zoo/cli/inference.py": {"save"},
    "zoo/data/cache.py": {"save", "savez"},
    "zoo/logging/attention_maps.py": {"save"},  # into memory
    "zoo/compare/write_report.py": {"save"},
    "zoo/compare/report.py": {"save"},
    "zoo/compare/tensorboard_summary.py": {"symlink_to"},  # in a temporary folder
}
WRITERS = {
    "os": {"replace", "rename", "link", "symlink", "fsync", "fdatasync", "truncate", "ftruncate", "open", "fdopen"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "tempfile": {"mkstemp", "NamedTemporaryFile", "TemporaryFile"},
    "np": {"save", "savez", "savez_compressed", "savetxt", "memmap"},
    "torch": {"save"},
    "json": {"dump"},
    "yaml": {"dump"},
}
METHODS = {"write_text", "write_bytes", "symlink_to", "hardlink_to", "rename", "touch", "save_file", "tofile"}


def writes(path):
    """The calls in a file that write files, by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, last = name.rpartition(".")
        if (owner in WRITERS and last in WRITERS[owner]) or (last in METHODS and owner != "atomic_files"):
            yield last
        elif last == "open" and owner != "os":
            first = 0 if owner else 1
            mode = node.args[first] if len(node.args) > first else None
            mode = next((word.value for word in node.keywords if word.arg == "mode"), mode)
            if isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wxa+"):
                yield "open"


PACKAGES = ("plugins/zoo-pretrained/src", "plugins/zoo-text/src")
SOURCES = [path for folder in ("zoo", *PACKAGES) for path in (ROOT / folder).rglob("*.py")]


@try_each(sorted(SOURCES), lambda path: str(path.relative_to(ROOT)))
def test_nobody_else_writes_files(path):
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
    assert "*" in allowed or set(writes(path)) <= allowed


def test_the_search_for_writers_sees_each_kind(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "os.replace(a, b); a.write_text(b); open(a, 'w'); a.open('ab'); shutil.copyfile(a, b); np.save(a, b)\n"
        "a.open(); open(a); a.replace('b', 'c'); atomic_files.write_text(a, b)"
    )
    assert sorted(writes(path)) == ["copyfile", "open", "open", "replace", "save", "write_text"]


class Failing:
    """The module os, as zoo.io.atomic_files sees it, whose so-manyeth call fails."""

    def __init__(self, number, error):
        self.countdown, self.error = number, error
        for name in ("replace", "fsync", "link", "open", "write"):
            setattr(self, name, self.counting(getattr(os, name)))

    def counting(self, real):
        def call(*args, **kwargs):
            self.countdown -= 1
            if self.countdown == 0:
                raise OSError(self.error, os.strerror(self.error))
            return real(*args, **kwargs)

        return call

    def __getattr__(self, name):
        return getattr(os, name)


def acts(folder):
    """Each way to write, and what it leaves where it works."""

    def stage():
        with atomic_files.replace_files(folder, "last") as draft:
            atomic_files.write_bytes(draft / "last", b"new")
            atomic_files.write_bytes(draft / "other", b"new")

    def fill():
        with atomic_files.replace_folder(folder / "entry") as draft:
            atomic_files.write_bytes(draft / "file", b"new")

    def native():
        with atomic_files.replace_file(folder / "file") as draft:
            draft.write_bytes(b"new")

    return {
        "write": lambda: atomic_files.write_bytes(folder / "file", b"new"),
        "copy": lambda: atomic_files.copy(folder / "new", folder / "file"),
        "link": lambda: atomic_files.link_file(folder / "new", folder / "file"),
        "native": native, "stage": stage, "fill": fill,
        "create": lambda: atomic_files.create(folder / "fresh", b"new"),
    }  # fmt: skip


def refused(act):
    """The error of a disk that an act raises."""
    try:
        act()
    except OSError as error:
        return error
    return None


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prepared(folder):
    (folder / "entry").mkdir(parents=True)
    for name, content in {"file": b"old", "new": b"new", "last": b"old", "entry/file": b"old"}.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("act", acts(Path()))
def test_a_name_holds_the_old_content_or_the_new_whichever_call_fails(act, tmp_path, monkeypatch, capsys):
    undisturbed = prepared(tmp_path / "undisturbed")
    before = tree(undisturbed)
    acts(undisturbed)[act]()
    after, failed, number = tree(undisturbed), 0, 0
    assert (after != before) or act == "create"
    while number < 40:
        number += 1
        folder = prepared(tmp_path / str(number))
        failing = Failing(number, ERRORS[number % len(ERRORS)])
        monkeypatch.setattr(atomic_files, "os", failing)
        error = refused(acts(folder)[act])
        monkeypatch.setattr(atomic_files, "os", os)
        if error is not None:
            failed += 1
            assert str(folder) in str(error.filename), "it says which file"
            assert ".partial" not in str(error.filename)
        result = tree(folder)
        assert not [name for name in result if name.endswith(".partial")]
        for name, content in result.items():
            assert content in (before.get(name), after.get(name)), name
        if "last" in result and act == "stage":
            assert result in (before, after), "a mixture"
        if failing.countdown > 0:
            break
    assert failing.countdown > 0, "every call has failed once"
    assert failed >= (0 if act == "create" else 1)


def test_the_working_folder_may_be_what_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(atomic_files, "os", Failing(3, errno.ENOSPC))
    assert refused(lambda: atomic_files.write_bytes(Path("a"), b"new")).filename == "."


def test_a_file_system_without_fsync_is_used_and_named_once(tmp_path, monkeypatch, capsys):
    def fsync(handle):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(atomic_files, "_without_fsync", [])
    atomic_files.write_bytes(tmp_path / "a", b"1")
    atomic_files.write_bytes(tmp_path / "b", b"2")
    assert tree(tmp_path) == {"a": b"1", "b": b"2"}
    message = capsys.readouterr().err
    assert message.count("warning:") == 1
    assert "fsync" in message


def test_what_a_log_is_given_while_its_disk_fails_is_written_later_and_once(tmp_path, monkeypatch):
    log, expected = atomic_files.Log(tmp_path / "log"), b""
    for number in range(1, 30):
        record = f"{number};".encode()
        expected += record
        log.append(record)
        failing = Failing(number % 4, ERRORS[number % len(ERRORS)])
        if number % 3 == 0:  # a disk that takes a part
            failing.write = lambda handle, content: os.write(handle, content[:2])
        monkeypatch.setattr(atomic_files, "os", failing)
        error = refused(log.flush)
        assert error is None or error.filename == str(tmp_path / "log")
        monkeypatch.setattr(atomic_files, "os", os)
    log.flush()
    assert (tmp_path / "log").read_bytes() == expected


def test_a_log_without_room_counts_what_it_loses(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "WAITING", 10)
    log = atomic_files.Log(tmp_path / "log")
    for _ in range(4):
        log.append(b"1234")
    assert (log.lost_records, len(log.waiting)) == (2, 8)


@pytest.mark.parametrize("number", ERRORS)
def test_the_answer_of_a_disk_is_a_sentence_and_code_5_whatever_library_heard_it(number, capsys):
    text = os.strerror(number)
    direct = OSError(number, text, "a/file")
    rust = Exception(f"Error while serializing: I/O error: {text} (os error {number})")
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = direct
    refused = UsageError("cannot make a/file")
    refused.__cause__ = direct
    for error in (direct, rust, wrapped, refused):
        assert error_report.report_error(error) == StorageError.code == 5
        message = capsys.readouterr().err
        assert "Traceback" not in message
        assert len(message.strip().splitlines()) <= error_report.LINES
    assert error_report.report_error(direct) == 5
    message = capsys.readouterr().err
    assert "a/file" in message
    assert text in message


@pytest.mark.parametrize(
    "error",
    [KeyError("a"), FileNotFoundError(errno.ENOENT, "no", str(ROOT / "zoo" / "a")), OSError(errno.EINVAL, "no")],
)
def test_what_no_disk_has_said_is_still_a_bug(error, capsys):
    assert error_report.report_error(error) == 1
    assert "bug" in capsys.readouterr().err


def test_a_folder_that_is_not_the_users_is_still_his_mistake():
    error = UsageError("cannot make a")
    error.__cause__ = PermissionError(errno.EACCES, "Permission denied", "a")
    assert error_report.report_error(error) == 2


def test_what_zoo_says_of_a_disk_that_names_no_file_has_its_code():
    error = UsageError("cannot make a")
    error.__cause__ = UsageError("cannot make a")
    error.__cause__.__cause__ = OSError(errno.EINVAL, "Invalid argument")
    assert error_report.report_error(error) == 5


def test_what_numpy_could_not_write_is_a_sentence(monkeypatch):
    assert atomic_files.storage_fault(OSError("1000 requested and 12 written")).errno == errno.EIO


def test_a_warning_outlives_a_closed_stream(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    atomic_files.warn("nobody reads this")


def test_a_draft_that_is_a_link_is_removed_and_what_it_points_to_stays(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").write_text("x")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".last.ckpt.7.partial").symlink_to(other, target_is_directory=True)
    assert atomic_files.remove_drafts(folder) == 1
    assert not list(folder.iterdir())
    assert (other / "data").read_text() == "x"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("link", [False, True])
def test_a_pipe_or_a_device_is_refused_and_stays(tmp_path, link):
    """As root a rename would replace /dev/null by a file, for every process of the machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    target = tmp_path / "link" if link else path
    if link:
        target.symlink_to(path)
    for write in (
        lambda: atomic_files.write_bytes(target, b"x"),
        lambda: atomic_files.replace_file(target).__enter__(),
    ):
        with pytest.raises(OSError, match="a device or a pipe"):
            write()
    assert path.is_fifo()
    assert target.is_symlink() == link
    assert sorted(one.name for one in tmp_path.iterdir()) == (["link", "pipe"] if link else ["pipe"])


@pytest.mark.parametrize("name", [".", "/"])
def test_a_folder_without_a_name_is_refused_as_a_folder(name):
    with pytest.raises(IsADirectoryError):
        atomic_files.write_bytes(Path(name), b"x")


def test_files_in_folders_are_replaced_with_the_others(tmp_path):
    for content in ("old", "new"):
        with atomic_files.replace_files(tmp_path / "target", "last.json") as draft:
            (draft / "1_Inner" / "deep").mkdir(parents=True)
            for name in ("last.json", "1_Inner/config.json", "1_Inner/deep/weights"):
                (draft / name).write_text(content)
    there = {str(path.relative_to(tmp_path / "target")) for path in (tmp_path / "target").rglob("*") if path.is_file()}
    assert there == {"last.json", "1_Inner/config.json", "1_Inner/deep/weights"}
    assert {(tmp_path / "target" / name).read_text() for name in there} == {"new"}
