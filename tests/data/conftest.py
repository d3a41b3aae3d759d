"""One cache for all tests of data, so that the standard library is read once."""

from pathlib import Path

import pytest

from tests.data import documents


@pytest.fixture(autouse=True)
def cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZOO_CACHE", str(session_cache))
    return session_cache


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "own-cache"))
    return tmp_path / "own-cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of twenty documents."""
    return documents.write(tmp_path)
