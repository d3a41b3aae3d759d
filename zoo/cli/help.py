"""Help that is written by hand and needs no torch; names of parts come from the registry."""

from __future__ import annotations

from zoo import registry

WIDTH = 100

OVERVIEW = """\
zoo: swap any part of a Transformer by one line, train it, and learn whether the swap helped.

usage: zoo COMMAND [options]        (zoo COMMAND --help says more)

Train and evaluate
  fit [RECIPE|FILE] [options]       train; `lightning fit` and `python -m zoo fit` are the same
  validate, test, predict           the same options; on a run's folder: zoo test runs/lm-tiny/default/s1
Use what was trained              (RUN: a run's folder, a checkpoint, an export, or a recipe: its newest run)
  generate RUN --prompt TEXT        continue a text
  translate RUN < IN > OUT          a line for each line
  classify RUN IMAGE ...            name images; --text TEXT names texts
  fill RUN --text "a [MASK] of it"  put the likeliest token into each blank
  tag RUN --text TEXT               name each token of a text
  export RUN DIR                    safetensors, config.json, tokenizer.json
  import DIR OUT                    a published checkpoint (GPT-2, LLaMA, ViT, …) as something to use and change
Look around (fast: imports no torch)
  recipes [glob]                    what `zoo fit NAME` can train
  list [kind] [glob]                parts that are installed
  show KIND NAME, show RECIPE       a part's options; a recipe with the line of every value
  cp RECIPE DEST                    copy a recipe to change it
  tensorboard [DIR]                 compare the runs of a folder in a browser
  doctor                            versions, devices, plugins
Your own parts
  new KIND NAME, new recipe NAME    a package with a part that works, to change; a recipe
  check KIND NAME, check RECIPE     does a part keep what its kind promises? does one batch train?
  matrix                            which parts train together, and why others are refused
Options
  --version, --help                 --json on list, show, recipes, doctor, check, generate, translate, classify,
                                    fill, tag
  --debug                           show warnings and tracebacks
Environment
  ZOO_DISABLE_PLUGINS=1             leave out every plugin; or names of packages, with commas

Examples
  zoo fit lm-tiny
  zoo fit lm-tiny --model.position alibi --seed 2
  zoo list position"""

PARTS = ("position", "attention", "backend", "norm", "ffn", "block")

RUN = """\
usage: zoo {command} [RECIPE|FILE] [options]

RECIPE is a name from `zoo recipes` or a YAML file; options override it. Names ignore case.

Model
  --model NAME                {tasks}
{parts}
  --model.PART.OPTION VALUE   such as --model.position.base 500000; see: zoo show position rope
  --model.dim, --model.depth, --model.heads, --model.dropout
  --model.lr RATE             learning rate; --model.optimizer NAME: adamw, sgd, … of torch.optim
  --tune.start RUN            begin with a run's weights; see docs/finetuning.md for
                              --tune.freeze, --tune.layer_decay, --tune.thaw, --tune.rank
Data
  --data NAME                 {data}
  --data.batch_size N, --data.path FILE
Trainer (any option of Lightning's Trainer)
  --trainer.max_steps N       or --trainer.max_epochs N, --trainer.max_time DD:HH:MM:SS
  --trainer.devices N         with --trainer.accelerator auto, cpu, gpu and --trainer.strategy ddp, …
  --trainer.precision P       32-true, bf16-mixed, …; unless given, what the machine is fast at
  --trainer.accumulate_grad_batches N, --trainer.gradient_clip_val X
Run
  --seed N                    1 unless given
  --runs DIR                  where runs go (runs): DIR/<recipe>/<only the differences>/s<seed>
  --name NAME                 name the variant yourself
  --resume                    continue from the newest intact checkpoint of the same run
  --requeue                   --resume where the run has begun, else start it: for jobs that are started again
  --accept-changes            --resume although the recipe or the data have changed
  --save-every STEPS          checkpoints besides those after validations and every ten minutes
  --on-nonfinite POLICY       a loss or gradient that is not finite: stop (the default), skip, or rewind
  --compile                   have torch.compile make one program of the loss and its gradients
  --overwrite                 delete the earlier run of the same name
  --ckpt_path FILE            start from a checkpoint, or evaluate it
Configuration
  -c, --config FILE           add a YAML file over the recipe, any number of times
  --print_config              print the complete configuration and stop
  --allow-import PKG.MOD      let class paths name this module; give it only for recipes you trust
  --trust                     let the recipe name any module, and write where it says
  --debug                     warnings and tracebacks
  --help-all                  every option; with a recipe, those of its model and data too

Examples
  zoo {command} lm-tiny
  zoo {command} lm-tiny --model.position alibi --model.norm rmsnorm --seed 2
  zoo {command} my.yaml --trainer.max_steps 500 --data.path corpus.txt"""


def overview() -> str:
    """The help of `zoo`."""
    return OVERVIEW


def command_help(command: str) -> str:
    """The help of fit, validate, test and predict."""
    parts = "\n".join(_line(f"  --model.{kind} NAME", _names(kind)) for kind in PARTS)
    return RUN.format(command=command, parts=parts, tasks=_names("task"), data=_names("data"))


def _line(option: str, text: str) -> str:
    return f"{option:<30}{text}"


def _names(kind: str) -> str:
    """The installed names of a kind, cut where a line ends."""
    names = list(dict.fromkeys(part.name for part in registry.parts(kind)))
    shown: list[str] = []
    more = f", … (zoo list {kind})"
    for name in names:
        if len(", ".join([*shown, name])) + len(more) > WIDTH - 20:
            return f"{', '.join(shown)}{more}"
        shown.append(name)
    return ", ".join(shown) or "none installed"
