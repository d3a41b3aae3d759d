"""Processes of commands end without freeing their objects, and lose nothing by it."""

from __future__ import annotations

import atexit
import gzip
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = "import sys\nfrom zoo.system import process_exit\n"


def run(body: str, *arguments: str, before: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """A process whose ``main`` has the lines of ``body``."""
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    script = f"{before}\n{START}def main():\n{indented}process_exit.exit_with(main)\n"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    settings = {"env": variables, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], text=True, timeout=60, cwd=ROOT, check=False, **settings
    )  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("code", [0, 3, 130])
def test_the_code_of_the_command_is_the_code_of_the_process(code: int) -> None:
    process = run(f"print('written')\nprint('said', file=sys.stderr)\nreturn {code}")
    assert (process.returncode, process.stdout, process.stderr) == (code, "written\n", "said\n")


@pytest.mark.parametrize(
    ("end", "code"), [("raise RuntimeError('reason')", 1), ("sys.exit(7)", 7), ("sys.exit('reason')", 1)]
)
def test_a_command_that_raises_ends_as_usual(end: str, code: int) -> None:
    process = run(end)
    assert process.returncode == code
    assert code == 7 or "reason" in process.stderr


def test_objects_are_not_freed() -> None:
    body = (
        "class Loud:\n    def __del__(self):\n        print('freed')\n"
        "global kept\nkept = Loud()\nkept.itself = kept\nreturn 0"
    )
    assert run(body).stdout == ""
    assert run(body, before="import atexit; atexit.register(print, 'first')").stdout == "first\nfreed\n"


def test_files_that_nobody_closed_are_complete(tmp_path: Path) -> None:
    """Of text, of bytes, compressed, unbuffered, in a cycle, and in memory."""
    body = """
import gzip, io, pathlib
global files
home = pathlib.Path(sys.argv[1])
files = [open(home / "text", "w"), open(home / "bytes", "wb"), gzip.open(home / "packed", "wt"),
         open(home / "raw", "wb", buffering=0), io.BytesIO(b"x")]
files.append(files)
for file in files[:5]:
    file.write("line" if isinstance(file, io.TextIOBase) else b"line")
return 0
"""
    process = run(body, str(tmp_path))
    assert (process.returncode, process.stderr) == (0, "")
    assert [(tmp_path / name).read_text() for name in ("text", "bytes", "raw")] == ["line"] * 3
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"line"


@pytest.mark.parametrize(
    ("make", "is_complete"),
    [
        ("import zipfile; kept = zipfile.ZipFile('made', 'w'); kept.writestr('a', b'line')",
         "import zipfile; zipfile.ZipFile('made').read('a') == b'line'"),
        ("import wave; kept = wave.open('made', 'wb'); kept.setparams((1, 1, 8, 0, 'NONE', '')); "
         "kept._nframes = 2; kept.writeframesraw(bytes(4))",
         "import wave; wave.open('made').getnframes() == 4"),
        ("import shelve, dbm.dumb; kept = shelve.Shelf(dbm.dumb.open('made'), writeback=True); "
         "kept['a'] = []; kept['a'].append(1)",
         "import shelve, dbm.dumb; shelve.Shelf(dbm.dumb.open('made'))['a'] == [1]"),
        ("import tempfile; kept = tempfile.NamedTemporaryFile(dir='.')", "import os; os.listdir() == []"),
        ("import gc; kept = open('made', 'w'); kept.write('line'); gc.freeze()", "open('made').read() == 'line'"),
    ],
)  # fmt: skip
def test_what_finalizers_of_the_library_write_or_remove_is_complete(
    make: str, is_complete: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives, sounds, shelves, temporary files that are open at the end, and frozen objects."""
    process = run(f"import os\nglobal kept\nos.chdir(sys.argv[1])\n{make}\nreturn 0", str(tmp_path))
    assert (process.returncode, process.stderr) == (0, "")
    monkeypatch.chdir(tmp_path)
    imports, _, check = is_complete.rpartition("; ")
    names: dict[str, object] = {}
    exec(imports, names)
    assert eval(check, names)


def test_an_open_pipe_that_nobody_reads_does_not_hold_the_process_up() -> None:
    body = """
import os, threading
global pipe
read, write = os.pipe()
pipe = open(write, "wb")
threading.Thread(target=lambda: pipe.write(bytes(1 << 20)), daemon=True).start()
return 0
"""
    assert run(body).returncode == 0


def test_threads_and_functions_of_atexit_end_first() -> None:
    body = """
import atexit, logging, threading, time
from concurrent.futures import ThreadPoolExecutor
logging.basicConfig(stream=sys.stdout, format="%(message)s")
atexit.register(logging.warning, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.1), print("pool")))
return 0
"""
    process = run(body)
    assert (process.returncode, process.stdout) == (0, "pool\nthread\nregistered\n")


def test_temporary_folders_are_removed(tmp_path: Path) -> None:
    body = "import tempfile\nglobal home\nhome = tempfile.TemporaryDirectory(dir=sys.argv[1])\nreturn 0"
    run(body, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("logging", ["", "import logging\n"])
def test_what_was_registered_before_the_command_runs_too(logging: str) -> None:
    """Such as the function by which coverage saves what it measured."""
    process = run("return 4", before=f"{logging}import atexit; atexit.register(print, 'saved')")
    assert (process.returncode, process.stdout) == (4, "saved\n")


def test_output_that_cannot_be_written_is_an_error() -> None:
    """Python's own code, as without this module."""
    with open("/dev/full", "w") as full:
        process = run("print('lost')\nreturn 0", stdout=full)
    assert process.returncode == 120
    assert "No space left" in process.stderr


def test_a_closed_output_is_none_of_its_business() -> None:
    script = f"{START}process_exit.exit_with(lambda: 5)"
    assert (
        subprocess.run(["sh", "-c", '"$0" -c "$1" >&-', sys.executable, script], cwd=ROOT, check=False).returncode == 5
    )


def test_atexit_counts_its_functions() -> None:
    """The only private name that is used; without it every process ends as usual."""
    before = atexit._ncallbacks()  # type: ignore[attr-defined]
    atexit.register(len, ())
    assert atexit._ncallbacks() == before + 1  # type: ignore[attr-defined]
    atexit.unregister(len)


def test_both_commands_end_so() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts.values()) == {"zoo.__main__:run"}
    unloaded = [sys.executable, "-X", "importtime", "-m", "zoo", "--version"]
    process = subprocess.run(unloaded, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "zoo.system.process_exit" in process.stderr
    script = """
import sys, zoo.__main__
sys.argv = ["zoo", "--version"]
class Loud:
    def __del__(self):
        print("freed")
one = Loud()
one.itself = one
zoo.__main__.run()
"""
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.startswith("zoo")
    assert "freed" not in process.stdout
