"""Weights that are not numbers, or that overflow: every command and every call says so, and nobody gets nan."""

import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from zoo.cli import main
from zoo.errors import NonFiniteError
from zoo.inference.weight_files import has_nan

NAN = float("nan")
KINDS = {"rope": "generate", "learned": "generate", "pairs": "translate", "glyphs": "classify"}


@pytest.fixture
def exported(runs, tmp_path):
    """An export of a run with nan put into its first matrix, and that matrix's name."""

    def make(name: str):
        folder = tmp_path / "export"
        shutil.rmtree(folder, ignore_errors=True)
        zoo.load(next(runs.glob(f"*/{name}/s1"))).export(folder)
        tensors = load_file(folder / "model.safetensors")
        matrices = sorted(key for key, tensor in tensors.items() if tensor.dim() > 1)
        tensors[matrices[0]].view(-1)[-1] = NAN
        with (folder / "model.safetensors").open("rb") as file:
            about = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]
        save_file(tensors, folder / "model.safetensors", about)
        return folder, matrices[0]

    return make


def words(command: str, folder, tmp_path) -> list[str]:
    if command == "classify":
        from PIL import Image

        Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
        return [command, str(folder), str(tmp_path / "a.png"), "--resize", "stretch"]
    if command == "generate":
        return [command, str(folder), "--prompt", "the ", "--length", "2"]
    if command == "export":
        return [command, str(folder), str(tmp_path / "out")]
    return [command, str(folder)]


@pytest.mark.parametrize("name", KINDS)
def test_weights_that_are_not_numbers(exported, name, tmp_path, capsys, monkeypatch):
    folder, tensor = exported(name)
    for command in (KINDS[name], "export"):
        assert main(words(command, folder, tmp_path)) == 4
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.strip().splitlines()) <= 4
        assert f"model.safetensors: {tensor} has 1 of " in err
    assert not (tmp_path / "out").exists()
    with pytest.raises(NonFiniteError, match="not a number"):
        zoo.load(folder)


@pytest.fixture
def broken(runs):
    """A model that computes nan though its file holds numbers, as one does that overflows."""

    def make(name: str):
        model = zoo.load(next(runs.glob(f"*/{name}/s1")))
        for parameter in model.net.parameters():
            parameter.fill_(NAN)
        return model

    return make


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"beams": 3}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_language_model_that_computes_nan(broken, how):
    model = broken("rope")
    with pytest.raises(NonFiniteError, match="not a number"):
        model.generate("the ", length=3, **how)
    with pytest.raises(NonFiniteError, match="not a number"):
        model.score("the quick")


def test_others_that_compute_nan(broken):
    model = broken("pairs")
    for beams in (1, 4):
        with pytest.raises(NonFiniteError, match="not a number"):
            model.translate("3 hours", beams=beams)
    with pytest.raises(NonFiniteError, match="not a number"):
        model.score("3 hours", "3 Stunden")
    model = broken("glyphs")
    with pytest.raises(NonFiniteError, match="not a number"):
        model.classify(torch.zeros(model.size, model.size, dtype=torch.uint8).numpy())


@pytest.mark.parametrize("command", ["validate", "test", "predict", "fit"])
def test_a_checkpoint_that_holds_nan_is_neither_measured_nor_continued(runs, tmp_path, capsys, command):
    home = next(runs.glob("*/glyphs/s1"))
    copy = tmp_path / "runs" / home.relative_to(runs)
    shutil.copytree(home, copy)
    shutil.rmtree(copy / "checkpoints" / "manifests")  # somebody else's checkpoint
    for path in copy.rglob("*.ckpt"):
        content = torch.load(path, weights_only=True)
        next(one for one in content["state_dict"].values() if one.dim() > 1).view(-1)[0] = NAN
        torch.save(content, path)
    more = ["--resume", "--accept-changes"] if command == "fit" else []
    steps = ["--trainer.max_steps", "14", "--name", "glyphs"] if command == "fit" else []
    code = main([command, str(copy), "--runs", str(tmp_path / "runs"), *more, *steps])
    out, err = capsys.readouterr()
    assert code in ((4, 5) if command == "fit" else (4,)), (out, err)
    assert "Traceback" not in err
    assert "val/" not in out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_is_told_from_what_is_infinite(dtype):
    large = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert not has_nan(large)
    assert not has_nan(torch.tensor([float("inf"), float("-inf"), 1.0], dtype=dtype))
    assert has_nan(torch.tensor([float("inf"), float("-inf"), NAN], dtype=dtype))
    large[7] = NAN
    assert has_nan(large)
    assert not has_nan(torch.zeros(0, dtype=dtype))
    assert not has_nan(torch.zeros(3, dtype=torch.long))
