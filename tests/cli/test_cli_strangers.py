"""What a stranger writes: class paths that are no parts, folders of other libraries, options without a value."""

import json

import pytest

from zoo.cli import main
from zoo.inference.find_run import find_model
from zoo.inference.import_policy import stdlib_reason
from zoo.inference.rebuild_task import rebuild_task

PATHS = ["os.system", "subprocess.Popen", "builtins.eval", "shutil.rmtree", "pathlib.Path", "runpy.run_path"]
SLOTS = ["model", "data", "model.norm", "model.position", "model.attention", "model.ffn", "trainer.callbacks",
         "model.optimizer", "model.schedule", "trainer.logger"]  # fmt: skip


def answered(capsys, *words) -> str:
    code = main([str(word) for word in words])
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 4
    return said


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("slot", SLOTS)
def test_a_class_path_of_the_standard_library_is_no_part(slot, path, capsys):
    said = answered(capsys, "fit", "lm-tiny", f"--{slot}", path, "--print_config")
    assert f"the class path {path!r} is not imported: it belongs to Python's standard library" in said
    assert "install" not in said
    assert "--allow-import" not in said


@pytest.mark.parametrize("path", PATHS)
def test_nor_in_an_export(path, tmp_path):
    for model in (
        {"class_path": path},
        {"class_path": "zoo.tasks.lm.CausalLM", "init_args": {"norm": {"class_path": path}}},
    ):
        with pytest.raises(ValueError, match="standard library") as caught:
            rebuild_task({"model": model}, tmp_path / "config.json")
        assert "--allow-import" not in str(caught.value)
        assert "nstall the package" not in str(caught.value)


def test_what_may_name_a_part_is_not_foreign():
    for path in ("zoo.parts.norm.RMSNorm", "my_plugin.Norm", "torch.nn.LayerNorm"):
        assert not stdlib_reason(path)


CONFIGS = [{"model_type": "gpt2"}, {"architectures": ["LlamaForCausalLM"]}, {"architecture": "vit_tiny_patch16_224"}]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("command", ["generate", "translate", "classify", "fill", "tag", "export", "fit", "test"])
def test_a_published_checkpoint_is_sent_to_the_import(command, config, tmp_path, capsys):
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(16))
    words = [command, folder, *([tmp_path / "out"] if command == "export" else [])]
    assert f"zoo import {folder}" in answered(capsys, *words, *(["--text", "a"] if command == "tag" else []))
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="zoo import"):
        find_model(folder)


OPTIONS = ["--model.dim", "--model.position", "--model.norm.eps", "--data", "--data.batch_size", "--trainer.max_steps",
           "--model", "--seed", "--trainer.callbacks", "--trainer", "--tune.start"]  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_without_its_value(option, capsys):
    said = answered(capsys, "fit", "lm-tiny", option)
    assert "needs a value" in said
    assert option.replace("--seed", "--seed_everything") in said


@pytest.mark.parametrize("word", ["none", "None", "no", "NoPosition", "noposition"])
def test_no_position_is_written_alike_in_fit_and_compare(word, capsys):
    assert main(["fit", "lm-tiny", "--model.position", word, "--print_config"]) == 0
    assert "class_path: zoo.parts.position.NoPosition" in capsys.readouterr().out
    assert main(["compare", "lm-tiny", "--vary", f"model.position={word},rope", "--seeds", "1", "--dry-run"]) == 0
    assert "position=noposition" in capsys.readouterr().out


BLAME = [
    (["--model.dim", "100"], "← --model.dim 100"),
    (["--model.dim=100"], "← --model.dim=100"),
    (["--model.heads", "7"], "← --model.heads 7"),
    (["--model.lr", "0.01", "--model.dim", "100"], "← --model.dim 100"),
    (["--model.dim", "100", "--model.heads", "3"], "← --model.dim 100, --model.heads 3"),
    (["--model.depth", "0", "--data.batch_size", "4"], "← --model.depth 0"),
]


@pytest.mark.parametrize(("words", "origin"), BLAME)
def test_the_option_that_was_given_is_to_blame(words, origin, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = answered(capsys, "fit", "lm-tiny", *words, "--trainer.accelerator", "cpu")
    assert said.strip().endswith(origin)


def test_another_root_is_another_run_and_a_resume_from_it_is_refused():
    from zoo.config.run_folder import INFRASTRUCTURE, differences, variant_name

    full = {"data.root": "b/images", "data.num_workers": 4}
    assert variant_name(differences(full, {"data.root": "a/photos", "data.num_workers": 0}, {})) == "root=images"
    assert not any("data.root".startswith(name) for name in INFRASTRUCTURE)
