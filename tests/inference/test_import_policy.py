"""What a stranger writes: class paths that are no parts, folders of other libraries, options without a value."""

import json
import random

import jsonargparse._common
import pytest
from jsonargparse import Namespace

from tests.campaigns.chaos import toys
from tests.covering import choices_in_turn
from tests.private_names import Canary, check
from zoo import registry
from zoo.cli import fit, main
from zoo.cli.doctor import warn_of_unknown_plugins
from zoo.cli.find_command import all_commands
from zoo.compare import tensorboard_command
from zoo.config import data_sizes, fit_options, run_config
from zoo.errors import UsageError
from zoo.inference.find_run import find_model
from zoo.inference.import_policy import stdlib_reason
from zoo.inference.rebuild_task import rebuild_task
from zoo.io import plain_yaml

PATHS = ["os.system", "subprocess.Popen", "builtins.eval", "shutil.rmtree", "pathlib.Path", "runpy.run_path"]
SLOTS = ["model", "data", "model.norm", "model.position", "model.attention", "model.ffn", "trainer.callbacks",
         "model.optimizer", "model.schedule", "trainer.logger"]  # fmt: skip


def answered(capsys, *words) -> str:
    code = main([str(word) for word in words])
    message = capsys.readouterr().err
    assert code == 2, message
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) <= 4
    return message


@pytest.mark.parametrize(("slot", "path"), choices_in_turn(SLOTS, PATHS))
def test_a_class_path_of_the_standard_library_is_no_part(slot, path, capsys):
    message = answered(capsys, "fit", "lm-tiny", f"--{slot}", path, "--print_config")
    assert f"the class path {path!r} is not imported: it belongs to Python's standard library" in message
    assert "install" not in message
    assert "--allow-import" not in message


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


READERS = ["generate", "translate", "classify", "export", "fit", "test"]


@pytest.mark.parametrize(("command", "config"), choices_in_turn(READERS, CONFIGS))
def test_a_published_checkpoint_is_sent_to_the_import(command, config, tmp_path, capsys):
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(16))
    words = [command, folder, *([tmp_path / "out"] if command == "export" else [])]
    assert f"zoo import {folder}" in answered(capsys, *words)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="zoo import"):
        find_model(folder)


OPTIONS = ["--model.dim", "--model.position", "--model.norm.eps", "--data", "--data.batch_size", "--trainer.max_steps",
           "--model", "--seed", "--trainer.callbacks", "--trainer", "--tune.start"]  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_without_its_value(option, capsys):
    message = answered(capsys, "fit", "lm-tiny", option)
    assert "needs a value" in message
    assert option.replace("--seed", "--seed_everything") in message


OTHER_WORDS = [pytest.param(word, marks=pytest.mark.campaign) for word in ("None", "no", "noposition")]


@pytest.mark.parametrize("word", ["none", "NoPosition", *OTHER_WORDS])
def test_no_position_is_written_alike_in_fit_and_compare(word, capsys):
    assert main(["fit", "lm-tiny", "--model.position", word, "--print_config"]) == 0
    assert "class_path: zoo.parts.position.NoPosition" in capsys.readouterr().out
    assert main(["compare", "lm-tiny", "--vary", f"model.position={word},rope", "--seeds", "1", "--dry-run"]) == 0
    assert "NoPosition s1" in capsys.readouterr().out


BLAME = [
    pytest.param(["--model.dim", "100"], "← --model.dim 100", marks=pytest.mark.campaign),
    (["--model.dim=100"], "← --model.dim=100"),
    pytest.param(["--model.heads", "7"], "← --model.heads 7", marks=pytest.mark.campaign),
    pytest.param(["--model.lr", "0.01", "--model.dim", "100"], "← --model.dim 100", marks=pytest.mark.campaign),
    (["--model.dim", "100", "--model.heads", "3"], "← --model.dim 100, --model.heads 3"),
    (["--model.depth", "0", "--data.batch_size", "4"], "← --model.depth 0"),
]


@pytest.mark.parametrize(("words", "origin"), BLAME)
def test_the_option_that_was_given_is_to_blame(words, origin, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = answered(capsys, "fit", "lm-tiny", *words, "--trainer.accelerator", "cpu")
    assert message.strip().endswith(origin)


def test_another_root_is_another_run_and_a_resume_from_it_is_refused():
    from zoo.config.passive_settings import PASSIVE_SETTINGS
    from zoo.config.run_folder import differences, variant_name

    full = {"data.path": "b/images", "data.num_workers": 4}
    assert variant_name(differences(full, {"data.path": "a/photos", "data.num_workers": 0}, {})) == "path=images"
    assert not any("data.path".startswith(name) for name in PASSIVE_SETTINGS)


# options of other commands, and guesses

TRAINS = [name for name, command in all_commands().items() if command.trains]
OF_FIT = {option.name for name in TRAINS for option in all_commands()[name].all_options}
LAST = {option.key.rpartition(".")[2] for option in fit_options.SETTINGS if "." in option.key}
FOREIGN = [
    (name, option.name)
    for name, command in all_commands().items()
    for option in command.options
    if option.name not in {*OF_FIT, *LAST, *fit_options.SECTIONS}
]


@pytest.mark.parametrize(("command", "name"), FOREIGN)
def test_an_option_of_another_command_is_sent_there(command, name, capsys):
    for mine in ("fit", "predict"):
        message = answered(capsys, mine, "lm-tiny", f"--{name}", "1")
        assert f"zoo {mine} has no option '--{name}': it belongs to " in message
        assert f"zoo {command}" in message


@pytest.mark.parametrize("last", sorted(LAST))
def test_the_last_name_of_an_option_is_enough_for_a_guess(last):
    for word in (last, f"trainer.{last}"):
        assert fit_options.nearest_option(word).rpartition(".")[2] == last
    assert fit_options.nearest_option("q" + last) == ""  # another word, however many letters they share


# comparisons


@pytest.mark.parametrize("key", ["seed", "seeds", "seed_everything"])
def test_seeds_do_not_vary_as_an_option(key, capsys):
    assert "--seeds 1,2" in answered(capsys, "compare", "vit-glyphs", "--vary", f"{key}=1,2", "--seeds", "2")


@pytest.mark.parametrize("key", ["lr", "batch_size", "max_steps", "epochs", "nonsense", "optimizer.lr", "data_size"])
def test_a_comparison_suggests_only_options_that_exist(key, capsys):
    message = answered(capsys, "compare", "vit-glyphs", "--vary", f"{key}=1,2", "--seeds", "2")
    guess = message.partition(", as '")[2].partition("'")[0]
    assert guess.rpartition(".")[2] in {*LAST, ""}
    assert bool(guess) == (key not in ("nonsense", "data_size", "epochs"))


# files

EMPTY = ["", " \n\n", "# a comment alone\n", "---\n", "---\n...\n"]


@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize("words", [["fit"], ["fit", "lm-tiny", "-c"], ["compare"]])
def test_an_empty_recipe_is_said_to_be_empty(text, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text(text)
    assert "empty.yaml is empty" in answered(capsys, *words, "empty.yaml")


def test_a_damaged_configuration_is_shown_with_its_line():
    whole = "model:\n  class_path: CausalLM\n  init_args: {dim: 16, depth: [1, 2], text: 'a b'}\ndata: {a: \"b\"}\n"
    rng, damaged = random.Random(1), 0
    for _ in range(300):
        place = rng.randrange(len(whole))
        text = whole[:place] + rng.choice("{}[]:,'\"\t&*!%@`") + whole[place + rng.randrange(2) :]
        message = ""
        try:
            plain_yaml.parse(text, "config.yaml")
        except UsageError as error:
            message = str(error)
        head, *excerpt = message.splitlines() or [""]
        damaged += bool(message)
        assert "<unicode string>" not in message
        assert "config.yaml" in head or not message
        if excerpt:
            line, mark = excerpt
            number = int(head.partition("line ")[2].partition(",")[0])
            assert line[2:] == (text.splitlines()[number - 1 :] or [""])[0]
            assert mark.strip() == "^"
            assert len(mark) - 3 <= len(line)
    assert damaged > 50


# plugins, folders and memory


SWITCHED = [("nosuch", "nosuch"), ("nosuch,neither", "neither, nosuch"), ("1", ""), ("all", ""), ("0", ""), ("", ""),
            ("Zoo_Transformers", "")]  # fmt: skip


@pytest.mark.parametrize(("words", "unknown"), SWITCHED)
def test_a_plugin_that_is_switched_off_and_not_installed_is_named(words, unknown, monkeypatch, capsys):
    monkeypatch.setenv(registry.DISABLE_VARIABLE, words)
    warn_of_unknown_plugins()
    message = capsys.readouterr().err
    assert (f"no installed plugin: {unknown})" in message) if unknown else message == ""


@pytest.mark.parametrize("name", [None, "notes.txt", "a/b/events.out.tfevents.1.host"])
def test_tensorboard_says_that_a_folder_has_nothing_to_show(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensorboard_command, "serve", lambda folder, port: 0)
    if name:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert main(["tensorboard", str(tmp_path)]) == 0
    assert ("has logged anything yet" in capsys.readouterr().err) == (name is None or "tfevents" not in name)


def test_a_model_that_memory_does_not_hold_is_named_by_its_sizes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    toys.write(tmp_path, steps=2)
    instantiate = fit.Parser.instantiate

    def full(self, config, **options):
        if isinstance(config, Namespace) and "model" in config:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64000 bytes.")
        return instantiate(self, config, **options)

    monkeypatch.setattr(fit.Parser, "instantiate", full)
    assert main(["fit", "lm.yaml"]) == 1
    message = capsys.readouterr().err
    assert "the model does not fit into memory. An allocation of 64000 bytes failed." in message
    assert "model.dim=16, model.depth=1" in message
    assert len(message.splitlines()) <= 4


# checkpoints and data of other runs


def test_a_checkpoint_of_another_model_is_no_resume_where_nothing_is_resumed():
    command = fit_options.parse("test", ["lm-tiny", "--ckpt_path", "x"])
    plan = run_config.make_plan(command, run_config.read_draft(command), run_config.schema())
    other = {"model": {"class_path": "Classification", "init_args": {"dim": 1}}}
    with pytest.raises(UsageError, match=r"(?s)the checkpoint is another model's: .*\nName the run .*: zoo test RUN"):
        run_config.check_resume(plan, other, frozenset())
    plan.command.command = "fit"
    with pytest.raises(UsageError, match="cannot resume: "):
        run_config.check_resume(plan, other, frozenset())


@pytest.mark.parametrize("name", ["vocab_size", "num_classes", "image_size", "source_vocab_size"])
def test_data_that_have_changed_since_are_to_blame_and_not_an_option(name):
    with pytest.raises(UsageError, match=f"(?s)have changed since: its {name} is 5, and they have 9.*zoo fit"):
        data_sizes.check_declared_sizes({name: 5}, {name: 9}, {}, trained=True)
    with pytest.raises(UsageError, match=f"model.{name} is 5 but the data has 9. Leave it out."):
        data_sizes.check_declared_sizes({name: 5}, {name: 9}, {})


def test_a_text_that_has_changed_since_the_training_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    toys.write(tmp_path, steps=2)
    assert main(["fit", "lm.yaml", "--name", "first"]) == 0
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text() + "QUITE OTHER LETTERS" * 40)
    capsys.readouterr()
    assert "have changed since: its vocab_size is" in answered(capsys, "test", "runs/lm/first/s1")


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["num_workers", "pin_memory", "cache"])
def test_infrastructure_of_data_is_passive_at_any_depth(name, depth):
    from zoo.config.passive_settings import is_passive
    from zoo.training.setup import describe_configuration

    assert is_passive(f"data.{'text.' * depth}{name}", 1)
    assert not is_passive(f"data.{'text.' * depth}batch_size", 1)
    assert not is_passive(f"model.{'text.' * depth}{name}", 1)

    def data(value):
        inner = {"class_path": "zoo.data.text.TextFiles", "init_args": {"max_length": 16, name: value}}
        for _ in range(depth):
            inner = {"class_path": "my_plugin.data.Masked", "init_args": {"text": inner}}
        return describe_configuration({}, inner)

    assert name == "pin_memory" or data(0) == data(2)


def test_jsonargparse_keeps_its_settings_where_they_are_restored():
    check(Canary("jsonargparse", jsonargparse._common, "parsing_settings"), "zoo/inference/import_policy.py")
