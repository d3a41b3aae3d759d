"""Which code a run was made with: what changes a digest, and what does not."""

import subprocess

import pytest

from zoo.logging import code_identity as module
from zoo.logging.code_identity import code_identity, git_state, source_digest, source_identity


@pytest.fixture(autouse=True)
def _fresh():
    source_identity.cache_clear()
    yield
    source_identity.cache_clear()


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "somepart"
    (folder / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "part.py", "kernels/fast.cu", "README.md"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(("name", "differs"), [("part.py", True), ("kernels/fast.cu", True), ("README.md", False)])
def test_every_source_of_a_package_counts_and_nothing_else(package, name, differs):
    before = source_digest(package)
    (package / name).write_text("edited")
    assert (source_digest(package) != before) is differs


def test_a_renamed_file_counts_and_the_place_of_the_package_does_not(package, tmp_path):
    before = source_digest(package)
    moved = package.rename(tmp_path / "other")
    assert source_digest(moved) == before
    (moved / "part.py").rename(moved / "apart.py")
    assert source_digest(moved) != before


def test_passive_sources_do_not_count(package):
    before = source_digest(package, ("kernels",))
    (package / "kernels" / "fast.cu").write_text("edited")
    assert source_digest(package, ("kernels",)) == before
    root = module._source_path("zoo")
    assert all((root / name).exists() for name in module.PASSIVE_SOURCES)


def test_of_torch_and_lightning_the_versions_say_enough():
    config = {
        "model": {"class_path": "zoo.tasks.lm.CausalLM",
                  "init_args": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {}}}}
    }  # fmt: skip
    assert list(code_identity(config)) == ["zoo"]


def test_a_commit_and_its_changes_are_recorded_where_git_tracks_the_sources(package):
    def git(*words):
        subprocess.run(["git", "-C", str(package), "-c", "user.name=a", "-c", "user.email=b", *words], check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-q")
    assert git_state(package) == {}  # not tracked
    git("add", ".")
    git("commit", "-qm", "first")
    state = git_state(package)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (package / "README.md").write_text("edited")
    assert git_state(package)["dirty"] is False
    (package / "part.py").write_text("edited")
    assert git_state(package)["dirty"] is True
