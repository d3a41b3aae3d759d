"""A trained model is found, built, filled and refused."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import zoo
from zoo import registry
from zoo.errors import CheckpointError, PluginError, UsageError
from zoo.inference import rebuild_task as rebuild_task_module
from zoo.inference import weight_files
from zoo.inference.find_run import find_model
from zoo.inference.load import use_module
from zoo.inference.rebuild_task import rebuild_task
from zoo.inference.trained_model import Trained
from zoo.tasks.task import Task

NAMES = ("learned", "rope", "flash", "pairs", "glyphs")


def same(one, other):
    a, b = one.task.state_dict(), other.task.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def logits(model):
    args, _ = model.task.example()
    generator = torch.Generator().manual_seed(5)
    images = [
        torch.randint(9, x.shape, generator=generator)
        if x.dtype == torch.long
        else torch.rand(x.shape, generator=generator)
        for x in args
    ]
    with torch.no_grad():
        return model.task(*images)


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run that a test may spoil."""

    def make(name):
        return shutil.copytree(next(runs.glob(f"*/{name}/s1")), tmp_path / name)

    return make


def test_import_zoo_needs_no_torch():
    code = "import sys, zoo; zoo.fit; assert callable(zoo.compare); assert not {'torch', 'numpy'} & {*sys.modules}"
    code += "; assert not hasattr(zoo, 'lood')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_run_a_checkpoint_and_a_recipe_name_the_same_model(runs, model):
    folder = next(runs.glob("*/glyphs/s1"))
    for result in (
        zoo.load(folder / "checkpoints" / "best.ckpt"), zoo.load("vit-glyphs", runs=runs), zoo.load(folder.parent),
        zoo.load(folder / "config.yaml"),
    ):  # fmt: skip
        assert same(result, model("glyphs"))
        assert not result.task.training
        assert not any(p.requires_grad for p in result.task.parameters())


def test_a_recipe_means_its_newest_finished_run(runs, tmp_path):
    shutil.copytree(runs / "lm-tiny", tmp_path / "lm-tiny")
    (tmp_path / "lm-tiny" / "rope" / "s1" / "finished.json").touch()
    assert zoo.load("LM-tiny", runs=tmp_path).place.folder.parts[-2:] == ("rope", "s1")
    for path in tmp_path.rglob("finished.json"):
        path.unlink()
    with pytest.raises(UsageError, match=r"no run in .* is finished. Name one that was started: .*flash"):
        zoo.load("lm-tiny", runs=tmp_path)


def test_a_run_that_saved_nothing_hides_no_other_run(tmp_path):
    for number, name in enumerate(("saved", "empty")):
        home = tmp_path / "runs" / "toy" / name / "s1"
        (home / "checkpoints").mkdir(parents=True)
        (home / "config.yaml").write_text("model: {class_path: zoo.tasks.lm.CausalLM}")
        (home / "finished.json").write_text("{}")
        os.utime(home / "finished.json", (number, number))
    saved = tmp_path / "runs/toy/saved/s1"
    (saved / "checkpoints" / "last.ckpt").write_text("weights")
    (tmp_path / "toy.yaml").write_text("model: {}")
    assert find_model("toy", tmp_path / "runs").folder == saved
    assert find_model(tmp_path / "toy.yaml", tmp_path / "runs").folder == saved  # the file of the recipe
    with pytest.raises(UsageError, match=r"--trainer\.enable_checkpointing true --name NAME"):
        find_model(home, tmp_path / "runs")
    for number in range(10):
        (tmp_path / "runs" / f"{number}").mkdir()
    with pytest.raises(UsageError, match=r"Trained in .*: 0, 1, 2, 3, 4, 5, 6, 7 and 3 more\."):
        find_model("nothing", tmp_path / "runs")


def test_the_numbers_of_the_run_do_not_change_the_random_state(runs):
    before = torch.random.get_rng_state()
    zoo.load("vit-glyphs", runs=runs)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
def test_an_export_has_bit_equal_logits(model, tmp_path, name):
    folder = model(name).export(tmp_path / "out")
    again = zoo.load(folder)
    assert torch.equal(logits(again), logits(model(name)))
    assert same(again, model(name))
    about = json.loads((folder / "config.json").read_text())
    assert about["kind"] == type(model(name).task).__name__
    assert torch.equal(logits(zoo.load(again.export(tmp_path / "twice"))), logits(again))


def test_an_export_stores_a_tied_matrix_once(model, tmp_path):
    folder = model("pairs").export(tmp_path / "out")
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert set(model("pairs").task.state_dict()) - names == {"net.source_embedding.weight"}
    assert zoo.load(folder).translate("5 hours") == model("pairs").translate("5 hours")


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_an_export_into_what_looks_like_a_file_is_refused(model, tmp_path, ending):
    with pytest.raises(UsageError, match=f"would be a folder.*without \\{ending}"):
        model("glyphs").export(tmp_path / f"out{ending}")
    assert not (tmp_path / f"out{ending}").exists()


def test_an_export_does_not_overwrite(model, tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="is not empty"):
        model("glyphs").export(tmp_path)
    assert (model("glyphs").export(tmp_path, force=True) / "model.safetensors").exists()
    with pytest.raises(UsageError, match="is where the model comes from"):
        model("glyphs").export(model("glyphs").place.folder, force=True)


def test_an_incomplete_export_is_refused(model, tmp_path):
    folder = model("glyphs").export(tmp_path / "out")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        zoo.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        zoo.load(folder)


class Table(nn.Module):
    """Counts of what it has met: as many as there were."""

    grows = ("counts",)

    def __init__(self, size=0):
        super().__init__()
        self.register_buffer("counts", torch.arange(size))
        self.register_buffer("fixed", torch.zeros(2))

    def _load_from_state_dict(self, tensors, prefix, *args):
        self.counts = torch.empty_like(tensors[f"{prefix}counts"])
        super()._load_from_state_dict(tensors, prefix, *args)


def test_a_buffer_that_grows_in_training_is_taken_at_any_size_and_no_other(tmp_path, monkeypatch):
    full, empty = nn.Sequential(Table(5)), nn.Sequential(Table())
    weight_files.write_weights(full, tmp_path / "w.safetensors")
    monkeypatch.setattr(weight_files, "PORTION", 1)
    read = weight_files.read_tensors(tmp_path / "w.safetensors")
    weight_files.load_tensors(empty, read, tmp_path / "w.safetensors")
    assert empty[0].counts.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(CheckpointError, match=r"0\.fixed is \(3,\) where the configuration says \(2,\)"):
        weight_files.load_tensors(nn.Sequential(Table()), dict(read) | {"0.fixed": torch.zeros(3)}, tmp_path)


def test_tensors_are_written_as_safetensors_does_and_read_in_any_portions(tmp_path, monkeypatch):
    draw = random.Random(3)
    shapes = [(), (0, 3), (7,), (3, 5), (2, 3, 4)]
    tensors = {
        f"{draw.choice('aé ')}{number}": torch.randint(0, 2, draw.choice(shapes)).to(dtype)
        for number, dtype in enumerate([*weight_files.TYPES] * 3)
    }
    save_file(tensors, tmp_path / "theirs.safetensors", {"format": "pt"})
    weight_files.stream_tensors(weight_files.LazyTensors.of(tensors), tmp_path / "ours.safetensors", {})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    read = weight_files.read_tensors(tmp_path / "ours.safetensors")
    assert all(torch.equal(read[name].cpu().double(), tensor.double()) for name, tensor in tensors.items()
               if not tensor.is_complex())  # fmt: skip
    net, again = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    weight_files.write_weights(net, tmp_path / "net.safetensors")
    for portion in (0, 30, 10**9):
        monkeypatch.setattr(weight_files, "PORTION", portion)
        torch.nn.init.zeros_(again[0].weight)
        path = tmp_path / "net.safetensors"
        weight_files.load_tensors(again, weight_files.read_tensors(path), path)
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_unknown_names_are_answered_with_known_ones(runs, tmp_path):
    with pytest.raises(UsageError, match=r"no run, checkpoint or recipe 'lm-tny'\. Did you mean 'lm-tiny'\?\nTrained"):
        zoo.load("lm-tny", runs=runs)
    with pytest.raises(UsageError, match=r"recipe 'gpt2-small' has no run in .*zoo fit gpt2-small"):
        zoo.load("gpt2-small", runs=runs)
    with pytest.raises(UsageError, match="Nothing is trained in"):
        zoo.load("x", runs=tmp_path / "none")
    with pytest.raises(UsageError, match="holds no run"):
        zoo.load(tmp_path)
    with pytest.raises(UsageError, match="device 'gpuu' cannot be used here"):
        zoo.load("vit-glyphs", "gpuu", runs=runs)


def spoil(run, change):
    shutil.rmtree(run / "checkpoints" / "manifests", ignore_errors=True)  # as if it came from somebody else
    for path in (run / "checkpoints").glob("*.ckpt"):
        content = torch.load(path, weights_only=True)
        change(content["state_dict"])
        torch.save(content, path)


def test_weights_of_another_model_are_refused_by_name(copied):
    run = copied("glyphs")
    spoil(run, lambda state: state.update({"net.more": state["net.head.bias"]}))
    with pytest.raises(CheckpointError, match=r"best.ckpt has unknown net.more: it does not belong to the model"):
        zoo.load(run)
    spoil(run, lambda state: state.pop("net.more") is state.pop("net.head.bias"))
    with pytest.raises(CheckpointError, match=r"lacks net\.head\.bias"):
        zoo.load(run)
    spoil(run, lambda state: state.update({"net.head.bias": torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"net.head.bias is \(3,\) where the configuration says \(10,\)"):
        zoo.load(run)


class Harm:
    def __reduce__(self):
        return print, ("harm was done",)


def test_a_checkpoint_is_damaged_or_holds_code(copied, capsys):
    run = copied("glyphs")
    for path in (run / "checkpoints").glob("*.ckpt"):
        torch.save({"state_dict": {}, "x": Harm()}, path)
    with pytest.raises(CheckpointError, match="not a whole checkpoint of tensors and plain values"):
        zoo.load(run)
    for path in (run / "checkpoints").glob("*.ckpt"):
        torch.save({"state_dict": {}}, path)
    with pytest.raises(CheckpointError, match="is damaged: no manifest"):
        zoo.load(run)
    for path in (run / "checkpoints").glob("*.ckpt"):
        torch.save({"state_dict": {}, "x": Harm()}, path)
    shutil.rmtree(run / "checkpoints" / "manifests")
    with pytest.raises(CheckpointError, match="not a whole checkpoint of tensors and plain values"):
        zoo.load(run)
    assert "harm" not in capsys.readouterr().out
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint of tensors and plain values: .*zip archive"):
        zoo.load(run)
    for path in (run / "checkpoints").glob("*.ckpt"):
        torch.save([1], path)
    with pytest.raises(CheckpointError, match="has no 'state_dict'"):
        zoo.load(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="no checkpoint in"):
        zoo.load(run)


def configured(run, **options):
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["init_args"].update(options)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_a_configuration_imports_parts_only(copied, model, tmp_path):
    run = copied("glyphs")
    attempts = {
        "os.system": (UsageError, "standard library"),
        "my_attn.My": (PluginError, "no installed package provides it"),
        "torch.hub.load": (PluginError, "--allow-import torch.hub"),
        "zoo.parts.norm.Nope": (PluginError, "cannot be imported"),
    }
    for path, (error, message) in attempts.items():
        with pytest.raises(error, match=message):
            zoo.load(configured(run, norm={"class_path": path}))
    with pytest.raises(UsageError, match=r"config.yaml"):
        zoo.load(configured(run, norm="torch.hub.load"))
    with pytest.raises(UsageError, match=r"config\.yaml cannot be built"):
        zoo.load(configured(run, norm={"class_path": "torch.nn.Linear"}))
    (run / "config.yaml").write_text("[1")
    with pytest.raises(UsageError, match=r"config\.yaml is not valid YAML"):
        zoo.load(run)
    (run / "config.yaml").write_text("data: {}")
    with pytest.raises(UsageError, match="names no task"):
        zoo.load(run)
    folder = model("glyphs").export(tmp_path / "out")
    about = json.loads((folder / "config.json").read_text())
    about["model"]["init_args"]["attention"] = {"class_path": "my_attn.My"}
    mine = {"key": "model.attention", "kind": "attention", "name": "My", "class_path": "my_attn.My"}
    about["parts"] = [{**mine, "distribution": "my-attn", "version": "0.2", "options": {}}]
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(PluginError, match=r"needs plugin my-attn 0.2 \(attention 'My'\), which is not installed. Run"):
        zoo.load(folder)


def test_a_missing_tokenizer_is_named(copied):
    run = copied("learned")
    (run / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"tokenizer.json is missing: TextFiles writes it when a run starts\. Copy"):
        zoo.load(run)


def test_a_model_says_what_it_can(model):
    with pytest.raises(UsageError, match=r"is a Classification: it can classify, and cannot generate"):
        model("glyphs").generate("x")
    assert not hasattr(model("glyphs"), "translate")
    assert not hasattr(model("glyphs"), "nothing")
    assert "best.ckpt" in repr(model("glyphs"))


def test_a_task_of_somebody_else_names_what_uses_it(model):
    class Odd(Task):
        loss = evaluate = example = lambda self: None

    odd = copy.copy(model("glyphs").task)
    odd.__class__ = Odd
    with pytest.raises(UsageError, match=r"cannot use a trained Classification: its class must say"):
        use_module(odd, model("glyphs").place)
    Odd.trained = "zoo.inference.trained_model:Trained"
    assert type(use_module(odd, model("glyphs").place)) is Trained


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("zoo.inference.trained_model.Trained", 'must be "module:name"'),
        ("zoo.inference.trained_model:", 'must be "module:name"'),
        ("no_such_package.trained:Trained", "cannot be imported: .*no_such_package"),
        ("zoo.inference.trained_model:Nothing", "cannot be imported: .*Nothing"),
        ("zoo.inference.trained_model:Score", "is no subclass of Trained"),
        ("zoo.inference.trained_model:as_list", "is no subclass of Trained"),
    ],
)
def test_a_task_that_names_something_else_is_refused_in_words(model, monkeypatch, target, message):
    task = copy.copy(model("glyphs").task)
    monkeypatch.setattr(type(task), "trained", target)
    with pytest.raises(PluginError, match=f"trained of zoo.tasks.classification.Classification.*{message}"):
        use_module(task, model("glyphs").place)


def test_options_that_a_configuration_lacks_are_those_of_the_part_that_it_names():
    """The task's default feed-forward has biases, and jsonargparse would pass them on to another one."""
    ffn = {"class_path": "zoo.parts.ffn.SwiGLU"}
    options = {"vocab_size": 11, "dim": 16, "depth": 1, "heads": 2, "max_length": 8, "ffn": ffn}
    config = {"model": {"class_path": "zoo.tasks.lm.CausalLM", "init_args": options}}
    task = rebuild_task(config, Path("config.yaml"))
    assert not [name for name, _ in task.named_parameters() if ".ffn.part." in name and name.endswith("bias")]


@pytest.mark.parametrize("task", ["CausalLM", "Translation", "Classification"])
@pytest.mark.parametrize("turn", range(5))
def test_completed_options_are_those_that_jsonargparse_merges_itself(task, turn):
    """With drawn parts, also with records in a list and with an optimizer, whose defaults are merged differently."""
    draw = random.Random(f"{task} {turn}")
    slots = ["norm", "position", "ffn", "block", "attention", "backend", "schedule", "init"]
    options = {
        kind: {"class_path": draw.choice([part for part in registry.parts(kind) if part.builtin]).path}
        for kind in draw.sample(slots, 4)
    }
    if turn == 1:
        options["overrides"] = [{"layers": "1", "norm": {"class_path": "zoo.parts.norm.RMSNorm"}}]
    if turn == 2:
        options["optimizer"] = {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.5}}
    (path,) = (part.path for part in registry.parts("task") if part.builtin and part.name == task)
    model = {"class_path": path, "init_args": options}
    merged = {name: rebuild_task_module._with_defaults(value) for name, value in options.items()}
    right = rebuild_task_module.task_parser().parse_object({"model": {**model, "init_args": merged}}).model
    assert rebuild_task_module.complete_options(model) == rebuild_task_module._as_dicts(right)
