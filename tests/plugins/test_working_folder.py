"""Modules of the working folder: found where the user names them, after everything that is installed."""

import json
import subprocess
import sys

import pytest

from tests import forks
from zoo.errors import PartError, PluginError
from zoo.inference import import_policy
from zoo.plugins import diagnosis, safe_import

PART = "from zoo.parts.norm import RMSNorm\n\nclass Norm(RMSNorm):\n    '''A norm of my own.'''\n"
TINY = "--model.dim=16 --model.depth=1 --model.heads=2 --trainer.max_steps=1 --trainer.val_check_interval=1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and a search path without it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place and place != str(tmp_path)])
    return tmp_path


def write_module(folder, name, package, text=PART):
    place = folder / name / "__init__.py" if package else folder / f"{name}.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("allow", [("own_module",), ("own_module.Norm",), ("*",)])
def test_a_module_that_the_user_trusts_is_found_and_the_folder_is_the_last_place(folder, package, allow):
    write_module(folder, "own_module", package)
    import_policy.search_trusted("own_module.Norm", allow)
    assert sys.path[-1] == str(folder)
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize("allow", [(), ("own_modul",), ("other",)])
def test_a_module_that_the_user_did_not_name_is_not_searched(folder, allow):
    write_module(folder, "own_module", False)
    import_policy.search_trusted("own_module.Norm", allow)
    assert str(folder) not in sys.path


@pytest.mark.parametrize("name", ["statistics", "queue", "sys", "json", "torch", "lightning", "numpy", "yaml", "zoo"])
@pytest.mark.parametrize("package", [False, True])
def test_a_file_never_stands_in_for_an_installed_module(folder, name, package, capsys):
    write_module(folder, name, package, "raise SystemExit('the file of the working folder was run')")
    safe_import.search_working_folder(f"{name}.Norm")
    assert str(folder) not in sys.path
    assert package or name == "sys" or f"module {name} is the installed" in capsys.readouterr().err


@pytest.mark.parametrize("package", [False, True])
def test_a_file_that_would_stand_in_for_a_package_without_init_is_named(folder, tmp_path_factory, monkeypatch, package):
    (site := tmp_path_factory.mktemp("site")).joinpath("split_package").mkdir()
    monkeypatch.syspath_prepend(site)
    write_module(folder, "own_module", False)
    write_module(folder, "split_package", package)
    with pytest.raises(PluginError, match="would stand in for the installed package split_package: rename it"):
        safe_import.search_working_folder("own_module.Norm")
    assert str(folder) not in sys.path


@pytest.mark.parametrize("find", [diagnosis.find_part, diagnosis.choose_part])
def test_a_class_path_stands_for_a_part_of_the_folder(folder, find):
    write_module(folder, "own_module_of_parts", False)
    assert find("norm", "own_module_of_parts.Norm").path == "own_module_of_parts.Norm"
    with pytest.raises(PartError, match="no module 'nowhere' among the installed packages"):
        find("norm", "nowhere.Norm")


def zoo(folder, words, code=0, run=forks.run):
    result = run([sys.executable, "-P", "-m", "zoo", *words.split()], cwd=folder, text=True, capture_output=True)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_a_part_of_the_folder_is_trained_resumed_and_used_there_and_refused_elsewhere(again, tmp_path):
    write_module(tmp_path, "my", False)
    for name in ("difflib", "queue"):
        write_module(tmp_path, name, False, "raise SystemExit('the file of the working folder was run')")
    words = f"fit vit-glyphs {TINY} --data.size=200 --data.num_workers=1 --model.norm my.Norm --allow-import my"
    zoo(tmp_path, words, run=subprocess.run)  # a fork has imported difflib and queue
    (run,) = tmp_path.glob("runs/vit-glyphs/*/s1")
    assert json.loads((run / "parts.json").read_text())
    if again:
        more = f"fit {run}/config.yaml --resume --accept-changes --trainer.max_steps=2"
        assert "finished 2 steps" in zoo(tmp_path, f"{more} --allow-import my")
        zoo(tmp_path, f"test {run} --allow-import my")
        text = zoo(
            tmp_path,
            f"compare vit-glyphs --vary model.norm=layernorm,my.Norm --seeds 2 --runs compared "
            f"--data.size=200 --allow-import my {TINY}",
        )
        assert "Norm" in text
    (elsewhere := tmp_path / "elsewhere").mkdir()
    text = zoo(elsewhere, f"test {run} --allow-import my", 3)
    assert "Run the command in the folder of its file" in text
    assert "--allow-import my" in zoo(tmp_path, f"test {run}", 3)
