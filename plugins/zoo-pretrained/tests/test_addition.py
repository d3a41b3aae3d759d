"""A package outside of this repository adds a family, for import and export, and changes no file of zoo or this one."""

import json
import subprocess
import sys

import pytest
import torch
from import_steps import loaded, same_tensors
from package_metadata import read_again, write_metadata
from safetensors.torch import load_file
from zoo_pretrained import lookup

from zoo.cli import main
from zoo.conformance import checks
from zoo.errors import UsageError

try:
    from tests.forks import Popen  # in zoo's checkout: a fork has imported torch
except ImportError:
    from subprocess import Popen


@pytest.fixture
def package(tmp_path, monkeypatch, capsys):
    """What `zoo new family` writes, where it can be imported and the registry has it."""
    assert main(["new", "family", "Otter", "--dest", str(tmp_path / "zoo-otter")]) == 0
    monkeypatch.syspath_prepend(tmp_path / "zoo-otter/src")
    (tmp_path / "site").mkdir()
    write_metadata(tmp_path / "site", "zoo-otter", {"zoo.family": {"Otter": "zoo_otter:Otter"}})
    monkeypatch.syspath_prepend(tmp_path / "site")
    read_again()
    capsys.readouterr()
    yield
    monkeypatch.undo()
    sys.modules.pop("zoo_otter", None)
    read_again()


@pytest.mark.usefixtures("package")
def test_its_checkpoint_is_imported_used_and_exported(tmp_path, capsys):
    from zoo_otter import Otter

    family = Otter()
    config = family.complete({"model_type": "otter", **family.example}, "config.json")
    assert lookup.family_of(config, "config.json").name == "otter"
    # a checkpoint as its library would save it, by the rules backwards from an export of random weights
    theirs, ours, again = (tmp_path / name for name in ("theirs", "ours", "again"))
    write_checkpoint(theirs, family, config)
    assert main(["import", str(theirs), str(ours)]) == 0
    assert "otter: CausalLM" in capsys.readouterr().out
    assert json.loads((ours / "config.json").read_text())["family"] == "otter"
    assert main(["export", str(ours), str(again), "--format", "hf"]) == 0
    assert "otter: OtterForCausalLM" in capsys.readouterr().err
    first, second = (load_file(folder / "model.safetensors") for folder in (theirs, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert main(["import", str(again), str(tmp_path / "twice")]) == 0
    assert same_tensors(loaded(ours).net, loaded(tmp_path / "twice").net)


@pytest.mark.usefixtures("package")
def test_it_is_listed_shown_and_checked(capsys, monkeypatch):
    from zoo_otter import Otter

    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert main(["list", "family", "otter"]) == 0
    assert "zoo-otter 0.1.0" in capsys.readouterr().out
    assert main(["show", "family", "Otter"]) == 0
    assert "A decoder with learned positions" in capsys.readouterr().out
    assert main(["doctor"]) in (0, 2)
    assert "Otter" in capsys.readouterr().out
    for check in checks(Otter):
        if check.name != "clean_import":
            check()


@pytest.mark.usefixtures("package")
def test_a_format_of_its_own_is_a_word_of_export(tmp_path, capsys, monkeypatch):
    import zoo_otter

    def write(trained, folder, force):
        folder.mkdir()
        (folder / "weights.txt").write_text(f"{sum(parameter.numel() for parameter in trained.net.parameters())}")
        return zoo_otter.Otter()

    monkeypatch.setattr(zoo_otter, "write", write, raising=False)
    monkeypatch.setattr(zoo_otter.Otter, "format", "text")
    monkeypatch.setattr(zoo_otter.Otter, "exporters", {"text": "zoo_otter:write"})
    family = zoo_otter.Otter()
    config = family.complete({"model_type": "otter", **family.example}, "config.json")
    write_checkpoint(tmp_path / "theirs", family, config)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "out"), "--format", "text"]) == 0
    assert int((tmp_path / "out/weights.txt").read_text()) > 1000
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "no"), "--format", "txt"]) == 2
    assert "must be zoo or hf or transformers or text, got 'txt'. Did you mean 'text'?" in capsys.readouterr().err


@pytest.mark.usefixtures("package")
def test_two_families_that_claim_one_checkpoint_are_named(monkeypatch):
    import zoo_otter

    from zoo import registry

    monkeypatch.setattr(zoo_otter.Otter, "types", ("gpt2",))
    monkeypatch.setattr(zoo_otter.Otter, "architectures", ("GPT2LMHeadModel",))
    with pytest.raises(UsageError, match="both gpt2 and otter read"):
        lookup.family_of({"model_type": "gpt2"}, "config.json")
    failures = [check.outcome() for check in checks(zoo_otter.Otter) if check.name == "claims_alone"]
    assert f"family 'GPT2' of {registry.find('family', 'gpt2').origin} claims its example, too." in failures[0].sentence


def test_without_the_package_an_export_names_it(monkeypatch, capsys, tmp_path):
    from zoo import registry

    monkeypatch.setenv(registry.DISABLE_VARIABLE, "zoo-pretrained")
    assert main(["export", str(tmp_path), str(tmp_path / "out"), "--format", "hf"]) == 2
    assert "pip install -e plugins/zoo-pretrained" in capsys.readouterr().err


def test_an_import_is_used_without_the_package(monkeypatch, tmp_path):
    from zoo_pretrained.gpt2 import GPT2

    from zoo import registry

    family = GPT2()
    write_checkpoint(tmp_path / "theirs", family, family.complete({"model_type": "gpt2", **family.example}, "x"))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    about = json.loads((tmp_path / "ours/config.json").read_text())
    assert "zoo_pretrained" not in json.dumps(about)
    assert "zoo-pretrained" not in json.dumps(about["parts"])
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "zoo-pretrained")
    assert loaded(tmp_path / "ours").net(torch.tensor([[1, 2]])).shape == (1, 2, 41)


def write_checkpoint(folder, family, config):
    """Random weights in a family's own form."""
    from safetensors.torch import save_file

    from zoo.conformance.contracts.family import random_tensors

    folder.mkdir()
    save_file(dict(family.write_tensors(config, random_tensors(family, config))), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": family.types[0], **family.example}))
