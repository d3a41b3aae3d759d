"""Which code a run was made with: what changes a digest, and what does not."""

import subprocess
import sys
from importlib.metadata import version

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


@pytest.mark.parametrize(
    ("name", "content", "differs"),
    [
        ("own_helper.py", "VALUE = 2", True),  # imported by a module of the package
        ("far_helper.py", "VALUE = 2", True),  # imported by that one
        ("own_data/table.csv", "2", True),  # of a package that it imports
        ("stranger.py", "VALUE = 2", False),  # imported by nobody
        ("own/weights.json", "[2]", True),
        ("own/README.md", "2", False),
        ("own/__pycache__/part.cpython-311.pyc", "2", False),
        ("own/.cache/state", "2", False),
    ],
)
@pytest.mark.parametrize("layout", ["package", "file"])
def test_what_a_part_is_made_of_counts_wherever_it_stands(tmp_path, monkeypatch, name, content, differs, layout):
    source = "import own_helper\nfrom own_data import table\n"
    files = {
        "own_helper.py": "import far_helper\nimport torch\n", "far_helper.py": "import own_helper\n",
        "own_data/__init__.py": "", "own_data/table.csv": "1", "stranger.py": "", "torch/__init__.py": "",
    }  # fmt: skip
    if layout == "file":
        files["own.py"] = source
        if name.startswith("own/"):
            differs = False  # no part of that module
    else:
        files |= {"own/__init__.py": "", "own/part.py": f"def late():\n    {source.splitlines()[0]}\n{source}"}
        files |= {"own/weights.json": "[1]", "own/README.md": "1"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for own_module in ("own", "own_helper", "far_helper", "own_data"):
        monkeypatch.delitem(sys.modules, own_module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    source_identity.cache_clear()
    before = source_identity("own")["source"]
    source_identity.cache_clear()
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    assert (source_identity("own")["source"] != before) is differs


def test_all_modules_of_an_installed_distribution_count_and_nothing_beside_it(tmp_path, monkeypatch):
    (tmp_path / "a_part-1.0.dist-info").mkdir()
    names = ("a_part/__init__.py", "a_part_kernels/fast.py", "a_part_table.py", "a_part-1.0.dist-info/METADATA")
    for name in (*names, "other/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import other\n")
    (tmp_path / "a_part-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: a-part\nVersion: 1.0\nRequires-Dist: NumPy>=1 ; python_version > '3'\n"
        "Requires-Dist: rich\nRequires-Dist: pytest; extra == 'test'\n"
    )
    (tmp_path / "a_part-1.0.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    assert [path.name for path in module.helpers(tmp_path / "a_part", "a-part")] == [
        "a_part_kernels",
        "a_part_table.py",
    ]
    assert module.library_versions("a-part") == {"numpy": version("numpy")}
    assert module.library_versions("no-such-distribution") == module.library_versions(None) == {}
