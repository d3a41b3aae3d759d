"""The options of fit, validate, test and predict: a recipe, options of the configuration and those of the run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from zoo.command_line import TRAIN, Argument, Command, Option, ParsedOptions
from zoo.command_line import parse as parse_options

SECTIONS = ("model", "data", "trainer", "tune")
OPEN_OPTIONS = tuple(pattern for section in SECTIONS for pattern in (section, f"{section}.*"))
POLICIES = ("stop", "skip", "rewind")  # what to do about a loss or a gradient that is not finite
RECIPE = Argument("RECIPE", "a name from `zoo recipes`, a YAML file or a run's folder", False, completes="recipe")


def _setting(name: str, help: str, heading: str, metavar: str = "NAME", kind: str = "") -> Option:
    """An option of the configuration under a dotted name."""
    return Option(name, help, metavar=metavar, key=name, kind=kind, heading=heading)


MODEL, DATA, TRAINER, RUN, CONFIGURATION = (
    "Model", "Data", "Trainer (any option of Lightning's Trainer)", "Run", "Configuration",
)  # fmt: skip
ALLOW_IMPORT = Option(
    "allow-import", "let class paths name this module; only for recipes you trust", metavar="PKG.MOD", repeats=True,
    heading=CONFIGURATION,
)  # fmt: skip
TRUST = Option("trust", "let the recipe name any module, and write where it says", bool, heading=CONFIGURATION)
CONFIG = Option(
    "config", "add a YAML file over the recipe, any number of times", metavar="FILE", repeats=True, short="-c",
    heading=CONFIGURATION,
)  # fmt: skip
RUNS = Option("runs", "where runs go: DIR/<recipe>/<the differences>/s<seed>", metavar="DIR", default="runs",
              heading=RUN)  # fmt: skip
COMPILE = Option("compile", "have torch.compile make one program of the loss and its gradients", bool, key="compile",
                 heading=RUN)  # fmt: skip
MODEL_RUN = Argument(
    "RUN", "a run's folder, a checkpoint file, an export, or a recipe's name: its newest finished run under --runs",
    completes="recipe",
)  # fmt: skip
# where a model is read from, and where it computes
WHERE = (
    Option("device", "cpu, cuda, …; chosen by zoo unless named", metavar="NAME", default="auto"),
    Option("runs", "where runs are", metavar="DIR", default="runs"),
    Option("allow-import", ALLOW_IMPORT.help, metavar="PKG.MOD", repeats=True),
    Option("trust", "let the model name any module", bool),
)
# what a comparison of runs shares with one run
SETTINGS = (
    _setting("model", "the task", MODEL, kind="task"),
    *(
        _setting(f"model.{kind}", kind, MODEL, kind=kind)
        for kind in ("position", "attention", "backend", "norm", "ffn", "block")
    ),
    _setting("model.dim", "width; also model.depth, model.heads, model.hidden, model.dropout", MODEL, "N"),
    _setting("model.optimizer", "optimizer", MODEL, kind="optimizer"),
    _setting("model.lr", "learning rate at its peak; also model.schedule, model.init", MODEL, "RATE"),
    _setting("tune.start", "begin with a run's weights; docs/finetuning.md has tune.freeze, .rank, …", MODEL, "RUN"),
    _setting("data", "the data set", DATA, kind="data"),
    _setting("data.batch_size", "samples per step; also data.path FILE", DATA, "N"),
    _setting("trainer.max_steps", "or trainer.max_epochs N, trainer.max_time DD:HH:MM:SS", TRAINER, "N"),
    _setting("trainer.devices", "with trainer.accelerator auto, cpu, gpu and trainer.strategy ddp", TRAINER, "N"),
    _setting("trainer.precision", "32-true, bf16-mixed, …; by default what the machine is fast at", TRAINER, "P"),
    _setting("trainer.gradient_clip_val", "also trainer.accumulate_grad_batches N", TRAINER, "X"),
)
# not in the help, but completed and suggested: what people write at the top level, and what they mean
FURTHER = (
    "model.depth", "model.heads", "model.hidden", "model.dropout", "data.path",
    "trainer.max_epochs", "trainer.max_time", "trainer.accelerator", "trainer.strategy",
    "trainer.accumulate_grad_batches",
)  # fmt: skip
SETTINGS += tuple(_setting(name, "", "") for name in FURTHER)
SETTINGS += tuple(_setting(f"model.{kind}", "", "", kind=kind) for kind in ("schedule", "init"))
SETTINGS += (_setting("trainer.callbacks", "", "", kind="callback"),)
OPTIONS = (
    *SETTINGS,
    Option("seed", "of the random numbers", int, metavar="N", default=1, key="seed_everything",
           aliases=("seed_everything",), heading=RUN),
    RUNS,
    Option("name", "name the variant yourself", metavar="NAME", heading=RUN),
    Option("resume", "continue from the newest intact checkpoint of the same run", bool, heading=RUN),
    Option("requeue", "--resume where the run has begun, else start it: for jobs that restart", bool, heading=RUN),
    Option("accept-changes", "--resume although the recipe or the data have changed", bool, heading=RUN),
    Option("save-every", "checkpoints besides those of validations and each ten minutes; --save", int,
           metavar="STEPS", default=0, above=0, most=999_999_999, heading=RUN),
    Option("save", "whole, or with fsdp2 sharded or async", metavar="WAY", default="whole",
           choices=("whole", "sharded", "async"), heading=""),
    Option("on-nonfinite", "stop, skip or rewind at a loss or gradient that is not finite", metavar="WAY",
           default="stop", choices=POLICIES, heading=RUN),
    Option("on-imprecise", "about a part that differs from its formula", default="stop",
           choices=("stop", "warn"), heading=RUN),
    Option("trackers", "csv,wandb,mlflow,aim: where figures go besides TensorBoard", metavar="NAMES", heading=RUN),
    COMPILE,
    Option("overwrite", "delete the earlier run of the same name", bool, heading=RUN),
    Option("ckpt_path", "start from a checkpoint, or evaluate it", metavar="FILE", key="ckpt_path", heading=RUN),
    Option("return_predictions", "", bool, key="return_predictions", heading=""),
    CONFIG,
    Option("print_config", "print the complete configuration and stop", bool, heading=CONFIGURATION),
    ALLOW_IMPORT,
    TRUST,
    Option("help-all", "every option; with a recipe, those of its model and data too", bool, heading=CONFIGURATION),
)  # fmt: skip


OF_TRAINING = (
    "resume", "requeue", "accept-changes", "save-every", "save", "on-nonfinite", "on-imprecise", "trackers",
    "overwrite",
)  # fmt: skip
EVALUATION_OPTIONS = tuple(option for option in OPTIONS if option.name not in OF_TRAINING)


class FitCommand(Command):
    """A command with a recipe and the options of a run."""

    kind = "command"
    group = TRAIN
    runs = "zoo.cli.train:run"
    arguments = (RECIPE,)
    options = OPTIONS
    open_options = OPEN_OPTIONS
    surplus = "one recipe at a time; add files with -c FILE"
    notes = "zoo.cli.help:part_names"
    trains = True


def parse(name: str, argv: Sequence[str]) -> ParsedOptions:
    """Read what follows fit, validate, test or predict. Raises UsageError for an option that it does not have."""
    command = FitCommand()
    command.name = name
    return parse_options(command, argv)


def nearest_option(key: str) -> str:
    """The option of a configuration whose last name is that of ``key``, or is like it; empty for none."""
    by_last = {option.key.rpartition(".")[2]: option.key for option in SETTINGS if "." in option.key}
    last = key.rpartition(".")[2]
    near = difflib.get_close_matches(last, by_last, 1)
    return by_last[near[0]] if near and near[0][:1] == last[:1] else ""
