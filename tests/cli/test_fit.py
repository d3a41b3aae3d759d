"""Whole commands on the real parts, in this process, with a text of a few kilobytes."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from cli_parts import RECIPE
from jsonargparse import ArgumentError, ArgumentParser

from tests import forks
from zoo import recipe_files
from zoo.cli import fit
from zoo.cli.fit import make_logger_and_callbacks
from zoo.config import run_folder
from zoo.config.fit_options import OF_TRAINING
from zoo.inference import find_run, import_policy
from zoo.io.locks import RunLock

MAKE_LOGGER_AND_CALLBACKS = fit.make_logger_and_callbacks


def refused(zoo, *words, code=2):
    exit_code, _, err = zoo("fit", "lm-toy", *words)
    assert exit_code == code, err
    assert len(err.splitlines()) <= 4
    assert err.startswith("error: ")
    assert not Path("runs").exists() or not list(Path("runs").rglob("config.yaml"))
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.backend", "sdap"], "unknown backend 'sdap'. Did you mean 'SDPA'?"),
        (["--model.attention", "spda"], "SDPA is a backend: --model.backend SDPA"),
        (["--model.position.bse", "3"], "position 'RoPE' has no option 'bse'. Did you mean 'base'?"),
        (["--model.leraning_rate", "3"], "unknown key 'model.leraning_rate'. Did you mean 'model.lr'?"),
        (["--model.hidden_size", "3"], "Did you mean 'model.dim'?"),
        (["--trainer.max_epoch", "3"], "unknown key 'trainer.max_epoch'. Did you mean 'trainer.max_epochs'?"),
        (["--model.lr", "3e-x"], "'model.lr' must be a number, got '3e-x'. ← --model.lr 3e-x"),
        (["--trainer.precision", "bf17"], "Did you mean 'bf16'?"),
        (["--model.dim", "64", "--model.heads", "5"], "Try heads=4 or heads=8. ← --model.heads 5"),
        (
            ["--model.backend", "flash", "--model.position", "alibi"],
            "cannot take. Works with: Naive, SDPA, Tiled. ← ",
        ),
        (["--model.max_length", "8", "--model.position", "learned"], "sequence length 16 exceeds max_length=8"),
        (["--model.vocab_size", "3"], "model.vocab_size is 3 but the data has"),
        (["--model.dim", "-4"], "dim must be at least 1, got -4."),
        (["--data.batch_size", "0"], "batch_size must be at least 1, got 0. ← --data.batch_size 0"),
        (["--data.path", "nope.txt"], "nope.txt"),
        (["--trainer.accelerator", "tpuu"], "tpuu"),
        (["--seed", "-1"], "'seed_everything' (--seed) must be a whole number from 0"),
        (["--seed", "x"], "'seed_everything' must be a whole number, got 'x'. ← --seed x"),
        (["--ckpt_path", "http://x/y.ckpt"], "no checkpoint file 'http://x/y.ckpt'"),
        (["--resume"], "nothing to resume"),
        (["--model", "torch.nn.Linear"], "'torch.nn.Linear' is not a task"),
        (["--trainer.callbacks", "os.system"], "the class path 'os.system' is not imported"),
        (["-c", "no.yaml"], "no recipe or file 'no.yaml'"),
    ],
)
def test_refusals(zoo, work, words, message):
    assert message in refused(zoo, *words)


def test_a_run_that_another_process_writes_is_no_fault_of_an_option(zoo, work):
    """The folder of runs may hold spaces, and words that are names of options."""
    lock = RunLock(Path("models of depth 1/lm-toy/x/s1"))
    message = refused(zoo, "--name", "x", "--runs", "models of depth 1", "--model.depth", "1")
    lock.release()
    assert "is being written by process" in message
    assert "←" not in message


def test_variables_of_a_launcher_change_nothing_of_one_process(zoo, work, monkeypatch):
    for number, name in enumerate(("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "NODE_RANK")):
        monkeypatch.setenv(name, str(number + 1))
    monkeypatch.setenv("JSM_NAMESPACE_RANK", "")  # empty variables are none
    words = ("fit", "lm-toy", "--name", "a", "--trainer.max_steps", "1")
    code, out, err = zoo(*words)
    assert (code, "finished 1 steps" in out) == (0, True), err
    files = {path.name for path in Path("runs/lm-toy/a/s1").iterdir()}
    assert {"config.yaml", "tokenizer.json", "output.log", "finished.json"} <= files
    assert "is finished" in zoo(*words)[2]
    monkeypatch.setenv("RANK", "one")
    assert "RANK='one' of the environment is not the number of a process" in zoo(*words)[2]


def test_a_recipe_cannot_run_code(zoo, work):
    (work / "evil.yaml").write_text(
        "trainer:\n  logger: {class_path: subprocess.Popen, init_args: {args: [touch, harmed]}}\n"
    )
    err = refused(zoo, "-c", "evil.yaml")
    assert "the class path 'subprocess.Popen' is not imported" in err
    assert "evil.yaml:2" in err
    (work / "evil.yaml").write_text(
        "model: {init_args: {lr: {class_path: os.system, init_args: {command: touch harmed}}}}"
    )
    assert "'model.lr' takes a plain value, not a class" in refused(zoo, "-c", "evil.yaml")
    assert not (work / "harmed").exists()


def test_jsonargparse_itself_imports_only_what_is_allowed():
    import_policy.apply_policy()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--any", type=object)
    result = parser.parse_object({"any": {"class_path": "subprocess.Popen", "init_args": {"args": ["true"]}}})
    assert not isinstance(parser.instantiate(result).any, subprocess.Popen)


def test_a_class_that_was_forbidden_is_allowed_once_its_package_is(monkeypatch):
    package = ModuleType("arrives_late")
    package.Part = type("Part", (), {"__module__": "arrives_late"})
    monkeypatch.setitem(sys.modules, "arrives_late", package)

    def parse():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--any", type=type)
        return parser.parse_object({"any": "arrives_late.Part"}).any

    import_policy.apply_policy(("arrives_late",))
    import_policy.admit_class(package.Part, "arrives_late.Part")
    assert parse() is package.Part
    for _ in range(2):
        import_policy.apply_policy()
        with pytest.raises(ArgumentError, match="not allowed"):
            parse()
        import_policy.apply_policy(("arrives_late",))
        assert parse() is package.Part
    import_policy.apply_policy()


def test_messages_name_the_line_of_the_recipe(zoo, work):
    (work / "lm-toy.yaml").write_text(RECIPE.replace("lr: 1e-3", "lr: x"))
    assert f"← {work / 'lm-toy.yaml'}:4" in refused(zoo)
    (work / "lm-toy.yaml").write_text(RECIPE.replace("dim: 16", "dim: 16, dim: 17"))
    assert "written twice" in refused(zoo)
    (work / "lm-toy.yaml").write_text(RECIPE.replace("heads: 2,", "heads: 2:"))
    err = refused(zoo)
    assert "is not valid YAML: line 4, column" in err
    assert err.splitlines()[-1].strip() == "^"


def test_the_printed_configuration_is_complete_and_reproduces_itself(zoo, work):
    code, out, _ = zoo("fit", "lm-toy", "--model.norm", "rmsnorm", "--seed", "7", "--print_config")
    assert code == 0
    config = yaml.safe_load(out)
    assert config["model"]["init_args"]["norm"]["class_path"] == "zoo.parts.norm.RMSNorm"
    assert config["model"]["init_args"]["position"]["init_args"] == {
        "base": 10000.0, "fraction": 1.0, "scaling_factor": 1.0, "original_max_length": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "scaling": None,
    }  # fmt: skip
    assert config["seed_everything"] == 7
    (work / "again.yaml").write_text(out)
    assert zoo("fit", "again.yaml", "--print_config")[1].splitlines()[1:] == out.splitlines()[1:]


# every eighth; tests/test_recipes.py resolves each of them to build its model
@pytest.mark.parametrize(
    "name",
    [pytest.param(recipe.name, marks=[pytest.mark.campaign] if place % 8 else [])
     for place, recipe in enumerate(recipe for recipe in recipe_files.recipes() if recipe.builtin)],
)  # fmt: skip
def test_every_packaged_recipe_resolves(zoo, name):
    code, out, err = zoo("fit", name, "--print_config")
    assert (code, err) == (0, "")
    assert out.startswith(f"# zoo run: {name}/default\n")


def test_fit_makes_a_folder_that_reproduces_the_run(zoo, work):
    code, _, err = zoo("fit", "LM-Toy", "--model.position", "alibi", "--seed", "2")
    assert (code, err) == (0, "")
    home = work / "runs/lm-toy/position=alibi/s2"
    assert json.loads((home / "finished.json").read_text())["step"] == 3
    text = (home / "config.yaml").read_text()
    assert text.startswith("# zoo run: lm-toy/position=alibi\n")
    config = yaml.safe_load(text)
    assert config["model"]["init_args"]["vocab_size"] > 3  # filled by the data
    assert config["model"]["init_args"]["max_length"] == 16

    code, _, err = zoo("fit", "lm-toy", "--model.position", "alibi", "--seed", "2")
    assert code == 2
    assert len(err.splitlines()) == 2
    assert "--resume" in err
    code, _, err = zoo("fit", str(home))
    assert (code, "is finished" in err) == (2, True)

    first = next(home.rglob("*.ckpt"))
    assert zoo("fit", str(home / "config.yaml"), "--runs", "again")[0] == 0
    second = next((work / "again/lm-toy/position=alibi/s2").rglob("*.ckpt"))
    weights = [torch.load(path, weights_only=True)["state_dict"] for path in (first, second)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_that_died_before_it_said_that_it_is_finished_says_the_same(zoo, work):
    words = ["fit", "lm-toy", "--trainer.val_check_interval", "3", "--trainer.check_val_every_n_epoch", "null"]
    assert zoo(*words)[0] == 0
    (done,) = work.rglob("finished.json")
    record = json.loads(done.read_text())
    done.unlink()
    assert zoo(*words, "--resume")[0] == 0
    again = json.loads(done.read_text())
    assert again == {name: value for name, value in record.items() if name == "step" or name.startswith("val/")}
    assert "val/loss" in again


def test_evaluate_and_resume(zoo, work):
    assert zoo("fit", "lm-toy")[0] == 0
    assert zoo("fit", "lm-toy", "--overwrite")[0] == 0
    code, out, err = zoo("validate", "runs/lm-toy/default/s1")
    assert (code, err) == (0, "")
    assert "val/loss" in out
    code, _, err = zoo("test", "lm-toy", "--name", "never-trained")
    assert (code, "Train first" in err) == (2, True)

    home = work / "runs/lm-toy/default/s1"
    (work / "lm-toy.yaml").write_text(RECIPE.replace("max_steps: 3", "max_steps: 5"))
    code, _, err = zoo("fit", "lm-toy", "--resume")
    assert code == 2
    assert "trainer.max_steps: 3 → 5" in err
    code, _, err = zoo("fit", "lm-toy", "--resume", "--accept-changes")
    assert (code, err) == (0, "")
    assert json.loads((home / "finished.json").read_text())["step"] == 5
    assert yaml.safe_load((home / "config.yaml").read_text())["trainer"]["max_steps"] == 5
    code, _, err = zoo("fit", str(home), "--resume")
    assert (code, err) == (0, ""), "what was accepted is the run's configuration"

    (work / "lm-toy.yaml").write_text(RECIPE.replace("dim: 16", "dim: 32"))
    code, _, err = zoo("fit", "lm-toy", "--resume")
    assert code == 2
    assert err == "error: cannot resume: model.dim is 16 in the checkpoint and 32 in your config.\n"


OTHERS = {"share": ["--trainer.limit_test_batches", "1"], "test": ["--data.test_path", "other.txt"], "file": []}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_the_test_figures_of_a_run_are_those_of_its_own_data_and_options(zoo, work, monkeypatch, change):
    monkeypatch.setattr(fit, "make_logger_and_callbacks", make_logger_and_callbacks)  # which `work` leaves out
    (work / "test.txt").write_text("all play and no work makes a dull toy " * 40)
    code, out, err = zoo("fit", "lm-toy", "--data.test_path", "test.txt")
    assert code == 0, err
    (home,) = work.glob("runs/lm-toy/*/s1")
    words = ["test", str(home / "checkpoints/last.ckpt")]
    assert zoo(*words)[0] == 0
    figures = (home / "test.json").read_text()
    for name in ["other.txt"] if change else ["text.txt"]:  # without an option the file itself is changed
        (work / name).write_text("no play and all work makes a toy dull " * 60)
    code, out, err = zoo(*words, *change)
    assert code == 0, err
    assert "test/loss" in out
    assert f"not recorded in {home / 'test.json'}" in err
    assert (home / "test.json").read_text() == figures


@pytest.mark.parametrize("seed", range(3))
def test_a_recipes_name_means_one_run_to_every_command(zoo, work, seed):
    """Of runs drawn at random the one that finished last; with options that name a run, that one."""
    draw = random.Random(seed)
    options = [[], ["--model.dim", "32"], ["--name", "mine"], ["--seed", "2"]]
    draw.shuffle(options)
    for words in options[:2]:
        assert zoo("fit", "lm-toy", *words)[0] == 0
    last = find_run.newest_run("lm-toy", "runs")
    lines = [zoo(command, "lm-toy", *more)[2] for command, *more in
             (["validate"], ["test"], ["test", "--trainer.accelerator", "cpu"],
              ["generate", "--prompt", "the", "--length", "1"], ["export", "out"])]  # fmt: skip
    assert all(line.startswith(f"using {last}") for line in lines), lines
    for words in options[:2]:
        code, _, err = zoo("validate", "lm-toy", *words)
        assert code == 0
        assert bool(err) == (not words)
    if ["--seed", "2"] not in options[:2]:
        assert "Train first" in zoo("test", "lm-toy", "--seed", "2")[2]


def test_an_unfinished_run_is_not_the_newest(zoo, work):
    assert zoo("fit", "lm-toy")[0] == 0
    (work / "runs/lm-toy/default/s1/finished.json").unlink()
    errors = {zoo(*words)[2] for words in (["validate", "lm-toy"], ["generate", "lm-toy", "--prompt", "the"])}
    assert len(errors) == 1
    assert "no run in runs/lm-toy is finished" in errors.pop()


@pytest.fixture
def whole_runs(zoo, work, monkeypatch):
    """A command in this process, whose runs have the logger and callbacks that `work` takes from them."""
    monkeypatch.setattr(fit, "make_logger_and_callbacks", MAKE_LOGGER_AND_CALLBACKS)
    return zoo


USED_IN_TRAINING = ("EarlyStopping", "ModelCheckpoint", "ModelSummary", "TQDMProgressBar", "Timer")


def test_callbacks_of_training_are_no_hindrance_when_the_run_is_tested(whole_runs, work):
    items = [
        {"class_path": f"lightning.pytorch.callbacks.{name}"}
        | ({"init_args": {"monitor": "val/loss"}} if name in ("EarlyStopping", "ModelCheckpoint") else {})
        for name in USED_IN_TRAINING
    ]
    trainer = {"callbacks": items, "enable_progress_bar": True}
    Path("callbacks.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    for words in (["fit", "lm-toy.yaml", "-c", "callbacks.yaml", "--name", "a"],
                  *([command, "runs/lm-toy/a/s1"] for command in ("validate", "test"))):  # fmt: skip
        code, _, err = whole_runs(*words)
        assert code == 0, (words, err)


def test_a_callback_of_lightning_that_cannot_work_is_the_users_business(zoo, work):
    early = {"class_path": "lightning.pytorch.callbacks.EarlyStopping",
             "init_args": {"monitor": "val/loss", "check_on_train_epoch_end": True}}  # fmt: skip
    Path("callbacks.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [early]}}))
    code, _, err = zoo("fit", "lm-toy", "-c", "callbacks.yaml")
    assert (code, "Traceback" in err) == (2, False)
    assert "metric `val/loss` which is not available" in err


@pytest.mark.parametrize("twin", [False, True], ids=["alone", "beside-a-run-of-this-name-in-runs"])
def test_a_run_is_resumed_in_its_own_folder_wherever_it_is(zoo, work, twin):
    assert zoo("fit", "lm-toy", "--runs", "elsewhere")[0] == 0
    home, other = (work / root / "lm-toy/default/s1" for root in ("elsewhere", "runs"))
    if twin:
        assert zoo("fit", "lm-toy")[0] == 0
    more = ("--resume", "--accept-changes", "--trainer.max_steps")
    for steps, run in ((4, "elsewhere/lm-toy/default/s1"), (5, str(home))):
        assert zoo("fit", run, *more, str(steps))[0] == 0
        assert json.loads((home / "finished.json").read_text())["step"] == steps
    assert other.exists() == twin
    assert not twin or json.loads((other / "finished.json").read_text())["step"] == 3
    code, _, err = zoo("fit", str(home), "--runs", "third", *more, "6")
    assert (code, "nothing to resume: third" in err) == (2, True), "a root that is named is where the run is looked for"


@pytest.mark.parametrize("place", ["backup", "old/x", "runs/lm-toy/other/s1"])
@pytest.mark.parametrize("more", [(), ("--accept-changes", "--trainer.max_steps", "9")], ids=["", "changed"])
def test_a_copy_of_a_run_is_not_resumed_as_the_run_that_it_was(zoo, work, place, more):
    assert zoo("fit", "lm-toy")[0] == 0
    home, copy = work / "runs/lm-toy/default/s1", work / place
    shutil.copytree(home, copy)
    before = {path: path.read_bytes() for path in work.glob("**/*.ckpt")}
    code, _, err = zoo("fit", place, "--resume", *more)
    if place.endswith("other/s1"):  # called as runs are: this is a run of another name now
        assert (code, home.exists()) == (0, True)
    else:
        assert (code, "Move it to PLACE/lm-toy/default/s1" in err) == (2, True), err
        assert {path: path.read_bytes() for path in work.glob("**/*.ckpt")} == before
    assert all(path.read_bytes() == content for path, content in before.items() if home in path.parents)


def test_a_run_whose_best_is_older_than_an_accepted_change_is_used(whole_runs, work):
    def zoo(*words):
        code, _, err = whole_runs(*words)
        return code, err

    assert zoo("fit", "lm-toy.yaml")[0] == 0
    home = work / "runs/lm-toy/default/s1"
    worse = ("--trainer.max_steps=6", "--model.optimizer.maximize=true", "--model.lr=0.3")
    code, err = zoo("fit", str(home), "--resume", *worse)
    assert (code, "go on with yours: --accept-changes" in err.lower()) == (2, True), err
    assert zoo("fit", str(home), "--resume", "--accept-changes", *worse)[0] == 0
    last, best = (torch.load(home / f"checkpoints/{name}.ckpt", weights_only=True) for name in ("last", "best"))
    assert best["global_step"] <= 3 < last["global_step"] == 6, "the new options make it worse"
    assert all(
        group["maximize"] and group["initial_lr"] == 0.3 for group in last["optimizer_states"][0]["param_groups"]
    )
    assert zoo("generate", str(home), "--length=2", "--prompt=a") == (0, "")
    assert zoo("validate", str(home)) == (0, "")
    config = home / "config.yaml"
    config.write_text(config.read_text() + "# changed by hand\n")
    code, err = zoo("generate", str(home), "--length=2", "--prompt=a")
    assert (code, "config.yaml is not the file that best.ckpt was trained with" in err) == (5, True)


def test_a_compiled_run_says_so_and_is_repeated_compiled(zoo, work, monkeypatch):
    compiled, calls = torch.compile, []

    def traced(function):
        calls.append(function)
        return compiled(function, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)
    code, out, err = zoo("fit", "lm-toy", "--compile")
    assert (code, len(calls)) == (0, 1)
    assert " · compiled" in out
    assert "not compiled" not in err
    home = work / "runs/lm-toy/default/s1"
    assert yaml.safe_load((home / "config.yaml").read_text())["compile"] is True

    code, out, _ = zoo("fit", str(home / "config.yaml"), "--runs", "again")
    assert (code, len(calls), " · compiled" in out) == (0, 2, True)
    (work / "lm-toy.yaml").write_text(RECIPE.replace("max_steps: 3", "max_steps: 4"))
    code, out, _ = zoo("fit", "lm-toy", "--resume", "--accept-changes")
    assert (code, len(calls), " · compiled" in out) == (0, 2, False)
    assert "compile: True → False" in out
    code, _, err = zoo("fit", "lm-toy", "--compile=maybe")
    assert (code, err.startswith("error: '--compile' takes true, false or no value")) == (2, True)


def test_a_checkpoint_never_beats_the_command_line(zoo, work, monkeypatch):
    assert zoo("fit", "lm-toy")[0] == 0
    checkpoint = next((work / "runs").rglob("*.ckpt"))
    data = torch.load(checkpoint, weights_only=True)
    data["hyper_parameters"] = {"_class_path": "subprocess.Popen", "lr": 123.0}
    torch.save(data, checkpoint)
    code, out, err = zoo("fit", "lm-toy", "--model.lr", "5e-4", "--ckpt_path", str(checkpoint))
    assert (code, err) == (0, "")
    assert "model.lr: 0.001 → 0.0005" in out
    config = yaml.safe_load((work / "runs/lm-toy/lr=0.0005/s1/config.yaml").read_text())
    assert config["model"]["init_args"]["lr"] == 5e-4


def test_a_refused_run_leaves_no_folder(zoo, work):
    refused(zoo, "--model.max_length", "8", "--model.position", "learned")
    assert not list((work / "runs").rglob("s1")) if (work / "runs").exists() else True
    assert zoo("fit", "lm-toy", "--trainer.fast_dev_run")[0] == 0
    assert not list(work.rglob("finished.json"))


@pytest.mark.parametrize("trainer", ["trainer: {}", "", "trainer: {max_epochs: null, val_check_interval: 2}"])
@pytest.mark.usefixtures("designs")
def test_a_recipe_without_an_end_is_refused_by_every_command_that_trains(zoo, work, trainer):
    (work / "endless.yaml").write_text(f"{RECIPE.partition('trainer:')[0]}{trainer}\n")
    (work / "longer.yaml").write_text(
        (work / "endless.yaml").read_text().replace("heads: 2, lr: 1e-3", "heads: 4, lr: 2e-3")
    )
    for words in (["fit", "endless.yaml"], ["compare", "endless.yaml", "--vary", "model.dim=16,32", "--dry-run"],
                  ["compare", "endless.yaml", "--attribute", "longer.yaml", "--dry-run"]):  # fmt: skip
        code, _, err = zoo(*words)
        assert code == 2
        assert "endless.yaml" in err
        assert "states no end of training" in err
    assert not list(work.rglob("config.yaml"))


@pytest.mark.parametrize("word", ["max_steps", "max_epochs"])
def test_no_limit_never_means_an_end_that_nobody_stated(zoo, work, word):
    (work / "endless.yaml").write_text(f"{RECIPE.partition('trainer:')[0]}trainer: {{accelerator: cpu, {word}: -1}}\n")
    code, _, err = zoo("fit", "endless.yaml")
    assert code == 2
    assert "a run needs an end" in err


def test_impossible_parts_are_refused_before_the_data_is_prepared(zoo, work, monkeypatch):
    from zoo.data.text import TextFiles

    def prepare(self):
        raise AssertionError("prepared")

    monkeypatch.setattr(TextFiles, "sizes", prepare)
    assert "not divisible" in refused(zoo, "--model.heads", "5")


def test_errors_in_the_middle_of_a_run_are_bugs_with_a_traceback(zoo, work, monkeypatch):
    from zoo.tasks.lm import CausalLM

    def broken(self, batch):
        raise KeyError("inputs")

    monkeypatch.setattr(CausalLM, "loss", broken)
    code, _, err = zoo("fit", "lm-toy")
    assert code == 1
    assert "Traceback" in err
    assert "looks like a bug" in err


def test_ctrl_c_exits_with_130(zoo, work, monkeypatch):
    from zoo.tasks.lm import CausalLM

    def interrupted(self, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(CausalLM, "loss", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert zoo("fit", "lm-toy")[0] == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not list(work.rglob("finished.json"))


def test_help_all_lists_the_options_of_a_recipe(zoo, work):
    code, out, _ = zoo("fit", "lm-toy", "--help-all")
    assert code == 0
    for option in ("--model.lr", "--model.position.base", "--data.path", "--trainer.max_steps"):
        assert option in out
    for name in ("norm.dim", "optimizer.params", "optimizer.lr", "schedule.total", "block.attend", "ffn.hidden"):
        assert f"--model.{name} " not in out, "set by the model"
    code, out, _ = zoo("fit", "--help-all")
    assert (code, "--trainer.devices" in out) == (0, True)


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_options_of_training_are_none_of_an_evaluation(zoo, work, command):
    for name in OF_TRAINING:
        code, _, err = zoo(command, "lm-toy", f"--{name}")
        assert code == 2
        assert f"zoo {command} has no option '--{name}'" in err


def test_the_remedy_for_no_run_trains_where_it_is_looked_for(zoo, work):
    for words in (["generate", "lm-toy", "--prompt", "the"], ["compare", "lm-toy"]):
        code, _, err = zoo(*words, "--runs", "no such")
        assert (code, "--runs 'no such'" in err) == (2, True)


def test_a_whole_run_is_quiet(work, cache):
    """With the real study layer, in a process of its own: no warnings, no advertising, nothing on standard error."""
    words = [sys.executable, "-m", "zoo", "fit", "lm-toy.yaml", "--model.norm", "rmsnorm"]
    done = forks.run(words, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not any(word in done.stdout for word in ("Tip", "GPU available", "Warning", "LOCAL_RANK"))
    home = work / "runs/lm-toy/norm=rmsnorm/s1"
    assert (home / run_folder.FINISHED).exists()
    assert str(home.relative_to(work)) in done.stdout


def test_a_profiler_that_was_asked_for_reports(work, cache):
    words = [sys.executable, "-m", "zoo", "fit", "lm-toy.yaml", "--trainer.profiler", "simple"]
    done = forks.run(words, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "FIT Profiler Report" in done.stderr
    assert "[Callback]NonFiniteGuard.on_before_optimizer_step" in done.stderr
