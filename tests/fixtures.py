"""Toy parts, packages on sys.path and a folder to train in, for every test of the command line."""

import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from zoo import recipe_files, registry
from zoo.cli import fit_summary
from zoo.config import fit_options, yaml_source
from zoo.config.class_names import ClassFinder
from zoo.plugins import discovery

sys.path.insert(0, str(Path(__file__).parent / "cli"))  # cli_parts and cli_toys, which options name

from cli_parts import RECIPE, TOYS, part

MEMORY_OF = fit_summary.memory_of


@pytest.fixture
def install(monkeypatch):
    """Replace the registry's parts by those given."""

    def use(*parts: registry.Part) -> None:
        def parts_of(kind: str) -> tuple[registry.Part, ...]:
            return tuple(sorted((one for one in parts if one.kind == kind), key=lambda one: one.name.lower()))

        monkeypatch.setattr(registry, "installed_parts", parts_of)

    return use


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on sys.path for packages; call what is returned after a package was written or removed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    modules = set(sys.modules)

    def reread() -> Path:
        discovery.discover.cache_clear()
        registry.installed_parts.cache_clear()
        importlib.invalidate_caches()
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        return folder

    yield reread
    monkeypatch.undo()
    reread()


@pytest.fixture
def toys(install):
    install(*(part(kind, name, f"cli_toys:{name}") for kind, names in TOYS.items() for name in names))


@pytest.fixture
def resolve(toys, tmp_path):
    """Resolve YAML texts and options against the toys."""
    import cli_toys

    from zoo.config import resolve as module
    from zoo.config.signatures import Param

    schema = module.Schema(
        cli_toys.Task, cli_toys.Data, cli_toys.Trainer, (Param("seed_everything", int, 1, None, None),)
    )

    def run(*texts: str, options: str = "") -> module.Resolved:
        result = [yaml_source.parse_yaml(text, f"r{index}.yaml") for index, text in enumerate(texts)]
        command = fit_options.parse("fit", options.split())
        layers = [*result, yaml_source.option_layer(command.settings)]
        return module.resolve(layers, schema, ClassFinder(command.allowed))

    return run


@pytest.fixture
def zoo(capsys):
    """Run a command in this process: its exit code, output and errors."""
    from zoo.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def forked_children(monkeypatch):
    """The processes of Python that the tested code starts are forks of one that has imported the libraries."""
    monkeypatch.setattr(subprocess, "Popen", forks.Popen)


@pytest.fixture
def forked_runs(monkeypatch):
    """The runs of a comparison are such forks, too. They do not end with it: that needs real processes."""
    from zoo.compare import parallel_runs

    def start(words, *, env, **options):
        return forks.Popen(words, env={name: text for name, text in env.items() if name != "ZOO_PARENT"}, **options)

    monkeypatch.setattr(parallel_runs.subprocess, "Popen", start)
    monkeypatch.setattr(parallel_runs, "can_fork", lambda: False)  # by a server of its own


@pytest.fixture
def forked_spawns(monkeypatch):
    """Processes that the tested code spawns by multiprocessing are forks of one that has imported torch.

    The methods of starting that it asks for. Its environment at that moment is not theirs.
    """
    forks, methods = multiprocessing.get_context("forkserver"), []
    forks.set_forkserver_preload(["torch", "pytest"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: methods.append(method) or forks)
    return methods


@pytest.fixture(scope="session", autouse=True)
def _headers_without_memory():
    """The line of a header about memory takes as long as some steps of a toy; `memory_line` brings it back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_summary, "memory_of", lambda *_: "")
        yield


@pytest.fixture(scope="session", autouse=True)
def _modules_are_imported_by_forks():
    """What a contract imports in a fresh process is imported by a fork of one that has torch, and nothing of zoo."""
    if importlib.util.find_spec("zoo.conformance") is None:  # tests/test_applications.py takes it away
        yield
        return
    from zoo.conformance import token_checks

    start_process = token_checks.import_in_fresh_processes

    def fork(ready: str, modules: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subprocess, "Popen", forks.Popen)
            start_process(ready, modules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_checks, "import_in_fresh_processes", fork)
        yield


@pytest.fixture
def memory_line(monkeypatch):
    """Trainings in the process of the test say how much memory a step takes."""
    monkeypatch.setattr(fit_summary, "memory_of", MEMORY_OF)


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    """The cache of all tests and processes of a session that read the standard library, so that it is read once.

    It is of one session alone: what another one has stored would hide a fault of what is stored.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    (folder / "zoo-cache").mkdir(exist_ok=True)
    return folder / "zoo-cache"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def work(tmp_path, monkeypatch, cache):
    """A folder with a recipe and a text, and a study layer that adds nothing."""
    import zoo.cli.fit as run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(cache))
    (tmp_path / "text.txt").write_text("all work and no play makes a dull toy " * 60)
    (tmp_path / "lm-toy.yaml").write_text(RECIPE)
    monkeypatch.setattr(recipe_files, "builtin_folders", lambda: [tmp_path])
    monkeypatch.setattr(run, "make_logger_and_callbacks", lambda *_: {"logger": False})
    return tmp_path


@pytest.fixture
def designs(tmp_path_factory):
    """The package zoo-designs is there, whether it is installed or not."""
    from tests.plugin_paths import registered

    with registered("zoo-designs", tmp_path_factory.mktemp("site")):
        yield
