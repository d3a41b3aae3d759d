"""Runs, checkpoints, exports and recipes that an earlier state of zoo wrote are read and continued to equal figures."""

import json
import platform
import shutil
import tarfile
from pathlib import Path

import babel
import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo.cli import main

ARCHIVE = Path(__file__).parent / "saved.tar.xz"
TASKS = ("lm", "translation", "vit")
RUN = "default/s1"
BABEL = "2.18."  # whose names and dates are the sentences of the translation
# what another processor's sums differ by after 20 steps of these models
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The saved files in a folder of their own."""
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def home(saved, tmp_path, monkeypatch):
    """A copy of them that is the working folder."""
    folder = tmp_path / "home"
    shutil.copytree(saved, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    return folder


def same_machine(home):
    """Whether this machine computes as the one that made the files."""
    origin = json.loads((home / "made.json").read_text())
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    return (
        origin["processor"] in text
        and origin["amx"] == ("amx_tile" in text)
        and torch.__version__.startswith(origin["torch"])
        and platform.python_version().startswith("3.11")
    )


def weights(run):
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def assert_equal(one, two, exact, what):
    assert one.shape == two.shape, what
    assert torch.allclose(one, two, rtol=0, atol=0 if exact else TOLERANCE), what


def figures(run):
    return {n: v for n, v in json.loads((run / "finished.json").read_text()).items() if n.startswith("val/")}


@pytest.mark.parametrize("task", TASKS)
def test_an_interrupted_run_goes_on_to_the_same_end(task, home, capsys):
    interrupted, undisturbed = home / "interrupted" / task / RUN, home / "runs" / task / RUN
    code = main(["fit", f"{task}.yaml", "--runs", "interrupted", "--resume"])
    if task == "translation" and not babel.__version__.startswith(BABEL):
        assert code == 2
        assert "the data are not those that the checkpoint was trained with" in capsys.readouterr().err
        return
    assert code == 0
    exact = same_machine(home)
    end, expected = weights(interrupted), weights(undisturbed)
    assert end.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_equal(end[name], tensor, exact, name)
    ours, theirs = figures(interrupted), figures(undisturbed)
    assert ours == (theirs if exact else pytest.approx(theirs, rel=1e-3))
    steps = validations(undisturbed)
    assert validations(interrupted).keys() == steps.keys()
    if exact:
        assert validations(interrupted) == steps


# what is resumed above is trained by the same code; the image model has no tokenizer that is trained first
@pytest.mark.parametrize("task", ["vit", *(pytest.param(task, marks=pytest.mark.campaign) for task in TASKS[:2])])
def test_a_recipe_trains_to_the_same_end(task, home):
    assert main(["fit", f"{task}.yaml", "--runs", "again"]) == 0
    exact = same_machine(home)
    for name, tensor in weights(home / "runs" / task / RUN).items():
        assert_equal(weights(home / "again" / task / RUN)[name], tensor, exact, name)


@pytest.mark.parametrize("task", TASKS)
def test_run_and_export_load_with_the_weights_they_hold(task, home):
    best = torch.load(home / "runs" / task / RUN / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    tensors = load_file(home / "exports" / task / "model.safetensors")
    for place in (home / "runs" / task / RUN, home / "exports" / task):
        loaded = zoo.load(place).task.state_dict()
        shared = [name for name in best if name in loaded and best[name].is_floating_point()]
        assert len(shared) >= sum(tensor.is_floating_point() for tensor in tensors.values()) > 10
        assert all(torch.equal(loaded[name], best[name]) for name in shared)


def validations(run):
    """The figures of every validation by its step, as the run's record has them."""
    lines = json.loads((run / "ledger.json").read_text())["validations"]
    return {line["step"]: {f"val/{name}": value for name, value in line.items() if name != "step"} for line in lines}


@pytest.mark.parametrize("task", TASKS)
def test_a_finished_run_validates_to_the_figures_of_its_best_checkpoint(task, home, capsys):
    run = home / "runs" / task / RUN
    assert main(["validate", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("val/")]
    printed = {words[0]: float(words[1]) for words in lines}
    step = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["global_step"]
    expected = {name: value for name, value in validations(run)[step].items() if name != "val/tokens"}
    assert printed == pytest.approx(expected, rel=1e-3)
