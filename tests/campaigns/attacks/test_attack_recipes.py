# ruff: noqa: E501 - tables of cases
"""Recipes built to run code: every place where a class or a function could be named, and every way to write one."""

import pytest

from tests.covering import choices_in_turn

TARGETS = [
    "os.system", "posix.system", "subprocess.Popen", "subprocess.run", "subprocess.check_output", "builtins.eval",
    "builtins.exec", "builtins.__import__", "builtins.open", "importlib.import_module", "runpy.run_path", "pty.spawn",
    "pickle.loads", "shutil.rmtree", "socket.create_connection", "http.server.HTTPServer", "functools.partial",
    "torch.hub.load", "torch.hub.load_state_dict_from_url", "torch.load", "torch.serialization.load",
    "torch.utils.cpp_extension.load_inline", "torch.utils.cpp_extension.load", "torch.multiprocessing.spawn",
    "torch.distributed.run.main", "torch.distributed.TCPStore", "torch.package.PackageImporter", "torch.os.system",
    "torch.hub.os.system", "torch.utils.data.DataLoader", "torch.jit.load", "torch.classes.load_library",
    "torchvision.datasets.utils.download_url", "torchvision.datasets.DatasetFolder",
    "lightning.pytorch.callbacks.LambdaCallback", "lightning.pytorch.callbacks.lambda_function.LambdaCallback",
    "lightning.pytorch.loggers.WandbLogger", "lightning.pytorch.loggers.MLFlowLogger",
    "lightning.pytorch.cli.LightningCLI", "lightning.pytorch.cli.os.system", "lightning.pytorch.trainer.trainer.Trainer",
    "lightning.pytorch.profilers.XLAProfiler", "lightning.pytorch.strategies.DeepSpeedStrategy",
    "pytorch_lightning.callbacks.LambdaCallback", "jsonargparse.set_parsing_settings", "zoo.cli.main",
    "zoo.__main__.main", "zoo.plugins.safe_import.import_object", "zoo.compare.tensorboard_command.subprocess.Popen", "zoo.inference.load.load",
    "evilmodule.Payload", "evilmodule.call", "evilmodule",
]  # fmt: skip
OPTIONS = '{args: [touch, canary], command: touch canary, source: canary, code: \'open("canary","w")\'}'
MODEL = """\
model:
  class_path: CausalLM
  init_args:
    dim: 16
    depth: 1
    heads: 2
{model}
data:
  class_path: TextFiles
  init_args: {{path: text.txt, tokenizer: bytes, max_length: 16{data}}}
trainer:
  accelerator: cpu
  max_steps: 1
{trainer}
"""
CLASS = "{class_path: @, init_args: " + OPTIONS + "}"
# the place: what is written there, with @ for the target
PLACES = {
    "task": "whole:model: " + CLASS,
    "data": "whole:model: {class_path: CausalLM}\ndata: " + CLASS,
    "top": "whole:class_path: @\ninit_args: " + OPTIONS,
    "norm": "model:    norm: " + CLASS,
    "norm, by a text": "model:    norm: '@'",
    "optimizer": "model:    optimizer: " + CLASS,
    "schedule": "model:    schedule: " + CLASS,
    "a number": "model:    lr: " + CLASS,
    "a number, by a text": "model:    dropout: '@'",
    "an option of an option": "model:    optimizer: {class_path: AdamW, init_args: {betas: " + CLASS + "}}",
    "a flag": "model:    tie: " + CLASS,
    "path": "data:, val_path: " + CLASS,
    "a list": "data:, val_path: [" + CLASS + "]",
    "callback": "trainer:  callbacks: " + CLASS,
    "callbacks": "trainer:  callbacks: [" + CLASS + "]",
    "callbacks, by a text": "trainer:  callbacks: ['@']",
    "logger": "trainer:  logger: " + CLASS,
    "loggers": "trainer:  logger: [" + CLASS + "]",
    "logger, by a text": "trainer:  logger: '@'",
    "strategy": "trainer:  strategy: " + CLASS,
    "strategy, by a text": "trainer:  strategy: '@'",
    "accelerator": "trainer:  plugins: [" + CLASS + "]",
    "profiler": "trainer:  profiler: " + CLASS,
    "steps": "trainer:  max_epochs: " + CLASS,
    "dict": "trainer:  limit_val_batches: {a: {b: [" + CLASS + "]}}",
    "alias": "trainer:  profiler: &a " + CLASS + "\n  logger: *a",
    "merge": "trainer:  x: &a " + CLASS + "\n  logger: {<<: *a}",
    "an option of a callback": "trainer:  callbacks: [{class_path: Timer, init_args: {duration: " + CLASS + "}}]",
    "a function of a callback": "trainer:  callbacks: [{class_path: ThroughputMonitor, init_args: {batch_size_fn: '@'}}]",
    "a mean": "trainer:  callbacks: [{class_path: StochasticWeightAveraging, init_args: {swa_lrs: 0.1, avg_fn: '@'}}]",
    "a mean of all": "trainer:  callbacks: [{class_path: WeightAveraging, init_args: {multi_avg_fn: '@'}}]",
    "pruning": "trainer:  callbacks: [{class_path: ModelPruning, init_args: {pruning_fn: '@'}}]",
    "a lambda": "trainer:  callbacks: [{class_path: BackboneFinetuning, init_args: {lambda_func: '@'}}]",
    "a hook": "trainer:  strategy: {class_path: DDPStrategy, init_args: {ddp_comm_hook: '@'}}",
    "a hook, as a class": "trainer:  strategy: {class_path: DDPStrategy, init_args: {ddp_comm_hook: " + CLASS + "}}",
    "an environment": "trainer:  strategy: {class_path: DDPStrategy, init_args: {cluster_environment: " + CLASS + "}}",
    "a wrap": "trainer:  strategy: {class_path: FSDPStrategy, init_args: {auto_wrap_policy: ['@']}}",
    "words of a table": "trainer:  profiler: {class_path: PyTorchProfiler, init_args: {table_kwargs: {a: " + CLASS + "}}}",
    "a console": "trainer:  callbacks: [{class_path: RichProgressBar, init_args: {console_kwargs: {file: " + CLASS + "}}}]",
    "dict_kwargs": "trainer:  callbacks: [{class_path: Timer, dict_kwargs: {x: " + CLASS + "}}]",
}  # fmt: skip
MAIN = ("os.system", "subprocess.Popen", "torch.hub.load", "evilmodule.Payload")


def recipe(place: str, target: str) -> str:
    where, _, text = PLACES[place].partition(":")
    text = text.replace("@", target)
    if where == "whole":
        return text
    return MODEL.format(**{name: text if name == where else "" for name in ("model", "data", "trainer")})


CASES = choices_in_turn(PLACES, MAIN) + choices_in_turn(
    ("callbacks", "logger, by a text", "norm", "a function of a callback"),
    [target for target in TARGETS if target not in MAIN],
)


@pytest.mark.parametrize(("place", "target"), CASES)
def test_a_recipe_that_names_code_is_refused(refused, evil, tmp_path, place, target):
    (tmp_path / "text.txt").write_text("a text of little interest " * 20)
    (tmp_path / "r.yaml").write_text(recipe(place, target))
    err = refused("fit", "r.yaml")
    assert "r.yaml" in err or target in err, err


def test_the_recipe_of_the_attacks_is_sound(tmp_path, monkeypatch, capsys):
    """Without an attack it is accepted: what is refused above is refused for what it names."""
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text of little interest " * 20)
    logger = "  logger: {class_path: CSVLogger, init_args: {save_dir: logs}}\n  callbacks: [Timer]\n"
    (tmp_path / "r.yaml").write_text(MODEL.format(model="", data="", trainer=logger))
    assert main(["fit", "r.yaml", "--print_config"]) == 0
    assert "lightning.pytorch.loggers.CSVLogger" in capsys.readouterr().out


TAGS = ["!!python/object/apply:os.system ['touch canary']", "!!python/name:os.system", "!!python/module:evilmodule",
        "!!python/object/new:subprocess.Popen [[touch, canary]]", "!!python/object:evilmodule.Payload {}", "!x 1",
        "!!python/object/apply:builtins.eval ['open(\"canary\", \"w\")']", "!!binary aGVsbG8=", "!!set {a}",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch canary']", "!!timestamp 2001-01-01"]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("where", ["model: {}", "trainer: {{callbacks: {}}}", "{}: 1", "x: [1, {{a: {}}}]", "{}"])
def test_tags_are_refused(refused, evil, tmp_path, tag, where):
    (tmp_path / "r.yaml").write_text(where.format(tag))
    assert "r.yaml" in refused("fit", "r.yaml")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "laughs": LAUGHS,
    "laughs in a section": "trainer:\n" + "".join(f"  {line}\n" for line in LAUGHS.splitlines()),
    "laughs of mappings": LAUGHS.replace("[", "{k1: ").replace(", ", ", k2: ", 1).replace("]", "}"),
    "merges": "a: &a {x: 1}\n"
    + "".join(f"b{i}: &b{i} {{<<: [{f'*b{i - 1}' if i else '*a'}, *a]}}\n" for i in range(60)),
    "deep lists": "[" * 100_000,
    "deep mappings": "{a: " * 20_000,
    "deep blocks": "".join(" " * i + f"a{i}:\n" for i in range(400)),
    "itself": "a: &a [*a]",
    "itself in a mapping": "trainer: &a {callbacks: *a}",
    "many keys": "\n".join(f"k{i}: 1" for i in range(40_000)),
    "many anchors": "\n".join(f"k{i}: &k{i} 1" for i in range(30_000)),
    "long": "a: " + "x" * 2_000_000,
    "digits": "seed_everything: " + "9" * 900_000,
    "a bomb in a text": "trainer: {devices: '[&a [1,1,1,1,1,1,1,1,1], &b [*a,*a,*a,*a,*a,*a,*a,*a], "
    "&c [*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d]]'}",
    "depth in a text": "trainer: {devices: '" + "[" * 50_000 + "'}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_yaml_bombs_are_refused_at_once(refused, tmp_path, bomb):
    import time

    extra = "model: {class_path: CausalLM}\ndata: {class_path: StdlibDocs}\n" if " text" in bomb else ""
    (tmp_path / "r.yaml").write_text(extra + BOMBS[bomb])
    start = time.process_time()
    assert "r.yaml" in refused("fit", "r.yaml")
    assert time.process_time() - start < 10


WRITES = ["/tmp/zoo-attack", "../../up", "~/x", "s3://bucket/x", "a/../../b", "C:\\x", "\\\\server\\x", "file:///tmp/x"]


@pytest.mark.parametrize("value", WRITES)
@pytest.mark.parametrize(
    "place",
    ["default_root_dir: '@'", "callbacks: [{class_path: ModelCheckpoint, init_args: {dirpath: '@'}}]",
     "callbacks: [{class_path: ModelCheckpoint, init_args: {filename: '@'}}]",
     "logger: {class_path: CSVLogger, init_args: {save_dir: '@'}}",
     "logger: {class_path: CSVLogger, init_args: {save_dir: x, name: '@'}}",
     "logger: {class_path: CSVLogger, init_args: {save_dir: x, version: '@'}}",
     "logger: {class_path: TensorBoardLogger, init_args: {save_dir: x, sub_dir: '@'}}",
     "profiler: {class_path: AdvancedProfiler, init_args: {dirpath: x, filename: '@'}}"],
)  # fmt: skip
def test_a_recipe_cannot_write_elsewhere(refused, tmp_path, place, value):
    (tmp_path / "r.yaml").write_text(MODEL.format(model="", data="", trainer="  " + place.replace("@", value)))
    assert "a recipe may only write below the working folder" in refused("fit", "r.yaml")


@pytest.mark.parametrize(
    "text",
    ["recipe: '--trust'\nvary: {model.norm: [rmsnorm]}", "recipe: --allow-import=evilmodule\nvary: {model.lr: [1]}",
     "recipe: lm-tiny\nvary: {trust: [true]}", "recipe: lm-tiny\nvary: {allow-import: [evilmodule, os]}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {allow-import: evilmodule}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {trust: true}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {config: /etc/passwd}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {runs: /tmp/zoo-attack}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {name: ../../x}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {overwrite: true}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {trainer.default_root_dir: /tmp/zoo-attack}",
     "recipe: lm-tiny\nvary: {trainer.default_root_dir: [/tmp/a, /tmp/b]}",
     "recipe: lm-tiny\nvary: {model.norm: [os.system, evilmodule.Payload]}",
     "recipe: lm-tiny\nvary: {model.lr: [1]}\noptions: {trainer.callbacks: evilmodule.Payload}"],
)  # fmt: skip
def test_a_comparison_cannot_trust_itself(refused, evil, tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    refused("compare", "c.yaml")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x", "..", "-x", "x\0y", "x\n", "C:\\x", "~", ".hidden"])
def test_the_name_of_a_run_stays_in_its_folder(refused, tmp_path, name):
    (tmp_path / "r.yaml").write_text(MODEL.format(model="", data="", trainer=""))
    refused("fit", "r.yaml", f"--name={name}")
    (tmp_path / "config.yaml").write_text(f"# zoo run: ../../up/{name}\n" + MODEL.format(model="", data="", trainer=""))
    if name.strip() and "\n" not in name:
        refused("fit", "config.yaml")


def test_trust_is_what_lifts_the_refusal(tmp_path, monkeypatch, capsys):
    """The very same recipe is accepted where a person says so: the refusal is the policy's."""
    import sys

    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mycallback.py").write_text("from lightning.pytorch import Callback\nclass Mine(Callback): pass\n")
    (tmp_path / "r.yaml").write_text(MODEL.format(model="", data="", trainer="  callbacks: [mycallback.Mine]"))
    assert main(["fit", "r.yaml", "--print_config"]) == 2
    assert "mycallback" not in sys.modules
    assert "--allow-import mycallback" in capsys.readouterr().err
    assert main(["fit", "r.yaml", "--print_config", "--trust"]) == 0
    assert main(["fit", "r.yaml", "--print_config", "--allow-import", "mycallback"]) == 0
    assert main(["fit", "r.yaml", "--print_config"]) == 2
    del sys.modules["mycallback"]
