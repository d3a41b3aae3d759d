"""A run remembers the packages of its parts, and says so where they are missing or of another version."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from cli_parts import package

import zoo as library
from tests import forks
from zoo import registry
from zoo.cli import resume
from zoo.errors import PluginError
from zoo.inference import part_versions
from zoo.logging import run_record
from zoo.plugins import discovery

BODY = "from zoo.parts.attention import MultiHead\n\n\nclass {0}(MultiHead):\n    'An attention.'\n"
POINTS = "[zoo.attention]\nMy = my_attn:My\n"
MISSING = "checkpoint needs plugin my-attn 0.2 (attention 'My'), which is not installed. Run: pip install my-attn==0.2"
SMALL = [
    *["--data", "TextFiles", "--data.path", "text.txt", "--data.max_length", "16", "--data.tokenizer", "bytes"],
    *["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.accelerator", "cpu"],
    *["--trainer.limit_val_batches", "1", "--trainer.logger", "false"],
]
FIT = ["fit", "lm-tiny", "--name", "mine", *SMALL]
ONE, TWO = ["--trainer.max_steps", "1"], ["--trainer.max_steps", "2"]
MINE = ["--model.attention", "my", "--model.attention.kv_heads", "1"]


def records(home):
    return {record["key"]: record for record in json.loads((home / "parts.json").read_text())}


@pytest.fixture
def run(site, zoo, tmp_path, monkeypatch):
    """The folder of a run with a plugin's attention, which is still installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("all work and no play makes a dull toy " * 60)
    package(site(), "my-attn", POINTS, BODY.format("My"), "0.2")
    site()
    code, _, err = zoo(*FIT, *MINE, *ONE)
    assert (code, err) == (0, "")
    return tmp_path / "runs/lm-tiny/mine/s1"


@pytest.fixture
def removed_plugin(site, run):
    shutil.rmtree(site() / "my_attn-0.2.dist-info")
    (site() / "my_attn.py").unlink()
    site()
    return run


def test_every_part_is_recorded_in_the_run_the_checkpoint_and_the_export(run, tmp_path):
    result = records(run)
    options = result["model.attention"].pop("options")
    assert options.items() >= {"kv_heads": 1, "bias": True}.items()
    assert result["model.attention"] == {
        "key": "model.attention", "kind": "attention", "name": "My", "distribution": "my-attn", "version": "0.2",
        "class_path": "my_attn.My",
    }  # fmt: skip
    result["model.attention"]["options"] = options
    assert result["model"]["kind"] == "task"
    assert result["model"]["distribution"] == "zoo-transformers"
    assert result["model"]["options"]["vocab_size"] > 1  # filled by the data
    assert "attention" not in result["model"]["options"]
    assert result["data"]["name"] == "TextFiles"
    assert result["model.optimizer"]["distribution"] == "torch"
    assert result["model.optimizer"]["version"] == discovery.installed_version("torch")
    assert {"model.position", "model.norm", "model.ffn"} <= set(result)
    for path in run.rglob("*.ckpt"):
        assert torch.load(path, weights_only=True)["zoo_parts"] == list(result.values())
    library.load(run).export(tmp_path / "out")
    exported = json.loads((tmp_path / "out/config.json").read_text())["parts"]
    assert exported == [record for key, record in result.items() if key.startswith("model")]


def test_a_missing_plugin_is_named_with_the_version_to_install(removed_plugin, zoo):
    checkpoint = next(removed_plugin.rglob("*.ckpt"))
    for place in (removed_plugin, removed_plugin.parent, checkpoint):
        with pytest.raises(PluginError) as caught:
            library.load(place)
        assert str(caught.value) == MISSING
    for words in (
        ["generate", str(removed_plugin), "--prompt", "x"],
        [*FIT, *MINE, *TWO, "--resume"], ["fit", str(removed_plugin), "--resume"],
        ["validate", str(removed_plugin)],
    ):  # fmt: skip
        code, _, err = zoo(*words)
        assert code == 3
        assert err.startswith(f"error: {MISSING}")
        assert len(err.splitlines()) == 1
    (removed_plugin / "parts.json").unlink()  # the checkpoint knows by itself
    assert zoo("generate", str(removed_plugin), "--prompt", "x")[2] == f"error: {MISSING}\n"
    code, _, err = zoo(*FIT, *MINE, *TWO)  # nothing is continued, so nothing is known
    assert (code, "unknown attention 'my'" in err) == (2, True)


def test_an_export_without_its_plugin(run, site, zoo, tmp_path):
    library.load(run).export(tmp_path / "out")
    shutil.rmtree(site() / "my_attn-0.2.dist-info")
    site()
    assert zoo("generate", str(tmp_path / "out"), "--prompt", "x")[::2] == (3, f"error: {MISSING}\n")


@pytest.mark.parametrize("number", ["0.1.0", "0.0.9", "7.0"])
def test_a_run_of_another_version_of_zoo_itself_is_used_and_resumed(number, zoo, tmp_path, monkeypatch, caplog):
    """Nothing is refused because of the number alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("all work and no play makes a dull toy " * 60)
    packages_used = part_versions.packages_used

    def with_number(config):
        used = packages_used(config)
        return [{**each, "version": number} if each["distribution"] == registry.BUILTIN else each for each in used]

    with monkeypatch.context() as patch:
        patch.setattr(run_record, "__version__", number)
        patch.setattr(resume, "__version__", number)
        patch.setattr(part_versions, "packages_used", with_number)
        assert zoo(*FIT, *ONE)[0] == 0
    home = tmp_path / "runs/lm-tiny/mine/s1"
    assert records(home)["model.position"]["version"] == number
    assert json.loads((home / "ledger.json").read_text())["setting"]["zoo"] == number
    manifests = [json.loads(path.read_text()) for path in home.rglob("manifests/*.json")]
    assert {each["versions"]["zoo"] for each in manifests} == {number}
    library.load(home).generate("all", length=1)
    for words in (["validate", str(home)], [*FIT, *TWO, "--resume", "--accept-changes"]):
        code, _, err = zoo(*words)
        assert (code, err) == (0, "")
    assert number not in caplog.text


def test_another_version_is_told_once(run, site, zoo, caplog):
    shutil.rmtree(site() / "my_attn-0.2.dist-info")
    package(site(), "my-attn", POINTS, version="0.3")
    site()
    message = "checkpoint was made with my-attn 0.2 (attention 'My'), installed is my-attn 0.3"
    command = [sys.executable, "-m", "zoo", "generate", str(run), "--prompt", "x", "--length", "1"]
    path = os.pathsep.join([str(site()), *sys.path])
    done = forks.run(command, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=120)
    assert (done.returncode, done.stderr) == (0, f"{message}\n")
    for words in (["validate", str(run)], [*FIT, *MINE, *TWO, "--resume", "--accept-changes"]):
        caplog.clear()
        assert zoo(*words)[0] == 0
        assert [record.getMessage() for record in caplog.records if "my-attn" in record.getMessage()] == [message]
    assert records(run)["model.attention"]["version"] == "0.3"  # what its newest checkpoint was made with
    newest = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["zoo_parts"]
    assert [one["version"] for one in newest if one["name"] == "My"] == ["0.3"]


def test_a_disabled_plugin_is_named(run, zoo, monkeypatch):
    monkeypatch.setenv("ZOO_DISABLE_PLUGINS", "my_attn")
    with pytest.raises(PluginError, match=r"needs plugin my-attn 0.2 \(attention 'My'\), which ZOO_DISABLE_PLUGINS"):
        library.load(run)


def test_a_class_of_no_package_is_named_with_its_module(site, run, zoo, monkeypatch):
    (site() / "my_local.py").write_text(BODY.format("Mine"))
    site()
    words = [*FIT[:2], "--name", "local", *SMALL, *ONE, "--model.attention", "my_local.Mine"]
    assert zoo(*words, "--allow-import", "my_local")[0] == 0
    home = run.parents[1] / "local/s1"
    record = records(home)["model.attention"]
    assert (record["kind"], record["distribution"], record["version"]) == ("attention", None, None)
    assert library.load(home, allow=("my_local",))
    with pytest.raises(PluginError, match="add: --allow-import my_local"):
        library.load(home)
    (site() / "my_local.py").unlink()
    site()
    for attempt in ({}, {"allow": ("my_local",)}):
        with pytest.raises(
            PluginError, match=r"my_local.Mine \(attention 'Mine'\), which no package provides, and the"
        ):
            library.load(home, **attempt)
    code, _, err = zoo(*words, "--allow-import", "my_local", "--resume")
    assert (code, "the module my_local cannot be imported" in err) == (3, True)
    assert len(err.splitlines()) == 2
    code, _, err = zoo("validate", str(home), "--allow-import", "my_local")
    assert (code, "the module my_local cannot be imported" in err) == (3, True)


def test_what_a_stranger_wrote_is_no_command():
    good = {"key": "model.norm", "kind": "norm", "name": "X", "class_path": "x.X", "distribution": "x", "version": "1"}
    assert part_versions.check_records([good]) == [good]
    evil = [{**good, "distribution": "x; rm -rf ~"}, {**good, "version": "1 --index-url=evil"}, {**good, "name": 1}]
    assert part_versions.check_records([*evil, "x", None, {}]) == []
    assert part_versions.check_records({"x": 1}) == []
