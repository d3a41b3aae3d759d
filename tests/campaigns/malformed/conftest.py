"""A command is answered when it is refused in at most four lines that name the place, and leaves nothing behind."""

import pytest


@pytest.fixture
def answered(capfd, tmp_path, monkeypatch):
    """Run a command in this process, in a folder of its own, and return what it says."""
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))

    def files():
        paths = {path for path in tmp_path.rglob("*") if path.suffix != ".lock"}
        return {path for path in paths if "cache" not in path.parts or "partial" in path.name}

    def run(*words: object) -> str:
        before = files()
        capfd.readouterr()
        code = main([str(word) for word in words])
        _, err = capfd.readouterr()
        assert code in (1, 2, 3, 5), (code, err)
        assert "Traceback" not in err, err
        lines = err.strip().splitlines()
        start = next((number for number, line in enumerate(lines) if line.startswith("error: ")), None)
        assert start is not None, err
        assert len(lines) - start <= 4, err
        assert files() == before, "something was left behind"
        return err

    return run
