"""An attack counts as refused when it is answered shortly and nothing that a payload would do has happened."""

import importlib
import socket
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

EVENTS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
          "pty.spawn", "socket.connect", "socket.bind", "urllib.Request", "webbrowser.open")  # fmt: skip
_audit_events: list[str] = []
_watching = threading.Event()


def _hook(event, args):
    if _watching.is_set() and event in EVENTS:
        _audit_events.append(f"{event} {args!r:.200}")


sys.addaudithook(_hook)


class Canary:
    """A file that a payload would write, a port that it would call, and what Python itself saw."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "canary"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]

    def assert_silent(self) -> None:
        assert not self.file.exists(), "the payload wrote its file"
        assert not _audit_events, f"the payload reached {_audit_events}"
        with pytest.raises(BlockingIOError):
            self.listener.accept()


@pytest.fixture(scope="session", autouse=True)
def _stubs():
    """jsonargparse asks a child process once where types are declared."""
    from lightning.pytorch.callbacks import WeightAveraging

    from zoo.config.signatures import parameters

    parameters(WeightAveraging)


@pytest.fixture
def canary(tmp_path):
    result = Canary(tmp_path)
    _audit_events.clear()
    _watching.set()
    yield result
    _watching.clear()
    result.assert_silent()
    result.listener.close()


@pytest.fixture
def evil(tmp_path, monkeypatch, canary):
    """A module of a stranger that can be imported, and says so when it is."""
    (tmp_path / "evilmodule.py").write_text(
        f"open({str(canary.file)!r}, 'w').close()\n"
        "from lightning.pytorch import Callback\nclass Payload(Callback): pass\ndef call(*a, **k): return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "evilmodule"
    sys.modules.pop("evilmodule", None)


@pytest.fixture
def refused(capfd, canary, tmp_path, monkeypatch):
    """Run a command in this process; it must be refused in at most four lines, and leave nothing."""
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
        capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        assert code in (1, 2, 3, 5), (code, out, err)
        assert "Traceback" not in err, err
        assert err.startswith("error: "), err
        assert 1 <= len(err.strip().splitlines()) <= 4, err
        new_files = {path for path in tmp_path.rglob("*") if "cache" not in path.parts} - before
        assert not new_files, f"left behind: {new_files}"
        canary.assert_silent()
        return err

    return run
