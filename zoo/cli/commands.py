"""The table of commands and their options, from which parsing, help and shell completion are made.

A new command is one entry in ``COMMANDS`` and one module with ``run(options: ParsedOptions) -> int``. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zoo.config import fit_options
from zoo.config.fit_options import ALLOW_IMPORT, COMPILE, CONFIG, OPEN_OPTIONS, RUNS, SETTINGS, TRUST
from zoo.config.option_parser import Argument, CommandSpec, Option, ParsedOptions
from zoo.config.option_parser import parse as parse_options

COMPARE, TRAIN, USE, LOOK, LEARN, OWN, HELP = (
    "Compare", "Train and evaluate", "Use what was trained", "Look around (fast: imports no torch)", "Learn",
    "Your own parts", "Help",
)  # fmt: skip
GROUPS = {  # with a note below the heading
    COMPARE: "", TRAIN: "", USE: "RUN: a run's folder, a checkpoint, an export, or a recipe: its newest run",
    LOOK: "", LEARN: "", OWN: "", HELP: "",
}  # fmt: skip

MODEL = Argument(
    "RUN", "a run's folder, a checkpoint file, an export, or a recipe's name: its newest finished run under --runs",
    completes="recipe",
)  # fmt: skip
WHERE = (
    Option("device", "cpu, cuda, …; chosen by zoo unless named", metavar="NAME", default="auto"),
    Option("runs", "where runs are", metavar="DIR", default="runs"),
    Option("allow-import", ALLOW_IMPORT.help, metavar="PKG.MOD", repeats=True),
    Option("trust", "let the model name any module", bool),
)
SPLIT = Option("split-special-tokens", "special tokens in a text are plain text, also with a published tokenizer", bool)
LENGTH_PENALTY = Option("length-penalty", "exponent of the length by which a beam's score is divided", float,
                        metavar="A", default=1.0)  # fmt: skip
FORCE = Option("force", "write although the target exists", bool)
NAMES = "help:part_names"


def _json(help: str) -> Option:
    return Option("json", help, bool)


def _for_runs(name: str, help: str, **fields: object) -> Option:
    return Option(name, help, **{"heading": "How it runs", **fields})  # type: ignore[arg-type]


FIXED, EQUAL, ANSWER = "What is compared", "What is held equal (the recipe's steps, unless a budget is named)", "Answer"
COMPARE_OPTIONS = (
    Option("vary", "an option of zoo fit and its values; again for a grid", metavar="OPTION=VALUE,VALUE",
           repeats=True, heading=FIXED),
    Option("seeds", "5: seeds 1 to 5; or 1,2,7", metavar="N", heading=FIXED),
    Option("until", "run seed after seed until every variant is decided, at most --seeds (30)", choices=("decided",),
           heading=FIXED),
    Option("looks", "5,10: look after these numbers of seeds, named before the first look", metavar="N,N",
           heading=FIXED),
    Option("baseline", "what the others are compared with; the recipe itself unless named", metavar="OPTION=VALUE",
           heading=FIXED),
    Option("design", "each option alone, or all combinations (default for few)",
           choices=("one-at-a-time", "grid"), heading=FIXED),
    Option("attribute", "of two recipes: how much each option that they differ in contributes", bool, heading=FIXED),
    Option("scale", "dim=64,96,128: several sizes, of which the largest is predicted",
           metavar="OPTION=VALUE,VALUE", repeats=True, heading=FIXED),
    Option("budget", "tokens=2M, flops=1e15 (3 forwards a step), time=10m; with --scale: flops", metavar="KIND=SIZE",
           heading=EQUAL),
    Option("match", "params or flops: solve for the model.hidden that gives the baseline's",
           metavar="WHAT", heading=EQUAL),
    Option("tune", "model.lr=1e-3,3e-3: choose for each variant, on --tune-seeds N (2) apart",
           metavar="OPTION=VALUE,VALUE", heading=EQUAL),
    Option("tune-seeds", "seeds of --tune, for each value and variant (2)", int, metavar="N", above=0, most=100,
           heading=""),
    _for_runs("jobs", "runs at once, each in its own process with its share of cores and GPUs", type=int, metavar="N",
              default=1, above=0, most=1024),
    _for_runs("shard", "only every Nth seed, from the Ith, with all its variants: for a SLURM array", metavar="I/N"),
    _for_runs("emit", "write files of jobs for slurm, k8s or sh, one for each seed or --shards N", metavar="KIND",
              choices=("slurm", "k8s", "sh")),
    Option("shards", "the number of jobs of --emit; one for each seed unless named", int, metavar="N", above=0,
           most=1000, heading=""),
    _for_runs("resources", "of each of these jobs: gpus=1,cpus=8,memory=16G,time=04:00:00, …", metavar="NAME=VALUE"),
    _for_runs("dry-run", "show the runs, their state and an estimate of the time, and stop", type=bool),
    _for_runs("runs", RUNS.help, metavar="DIR", default="runs"),
    *(_for_runs(one.name, one.help, type=one.type, metavar=one.metavar, repeats=one.repeats, short=one.short,
                key=one.key) for one in (CONFIG, ALLOW_IMPORT, TRUST)),
    Option(COMPILE.name, COMPILE.help, COMPILE.type, heading=""),  # as any other option of zoo fit
    Option("goal", "the figure that decides; the task's first unless named", metavar="NAME", heading=ANSWER),
    Option("at", "last (the default), last:3 (mean of three), test (untouched split), best",
           metavar="WHEN", heading=ANSWER),
    Option("margin", "a variant within it, in the unit of the figure, is as good as the baseline", float,
           metavar="SIZE", above=0, heading=ANSWER),
    Option("test", "t, moderated (similar variances) or permutation", metavar="NAME", default="t",
           choices=("t", "moderated", "permutation"), heading=ANSWER),
    Option("series", "an error budget for all comparisons that name this file, of --tries N variants (100)",
           metavar="FILE", heading=ANSWER),
    Option("tries", "variants that a new series may try (100)", int, metavar="N", above=0, most=1_000_000, heading=""),
    Option("exit-code", "10 better, 11 worse, 12 as good, 13 undecided, 14 not comparable", bool, heading=ANSWER),
    Option("probe", "length=1,2,4,8: the loss of language models on texts so many times longer", metavar="WHAT",
           heading=ANSWER),
    Option("json", "one JSON document", bool, heading=ANSWER),
    Option("out", "where the report goes", metavar="DIR", heading=ANSWER),
)  # fmt: skip
# options of one run, which a comparison decides itself, and what to write instead
DECIDED_BY_COMPARISON = {
    "seed": "--seeds", "name": "nothing: variants are named after what differs",
    "overwrite": "nothing: remove a run's folder to run it again", "resume": "nothing: runs go on by themselves",
    "requeue": "nothing: runs go on by themselves", "accept-changes": "nothing: every run has its own folder",
    "save-every": "nothing: runs go on by themselves", "on-nonfinite": "nothing: a run that fails is reported",
    "ckpt_path": "nothing: every run starts from its seed", "print_config": "--dry-run",
    "help-all": "zoo fit --help-all",
}  # fmt: skip
REFUSED = tuple(
    Option(one.name, "", one.type, aliases=one.aliases, choices=one.choices, heading="")
    for one in fit_options.OPTIONS
    if one.name in DECIDED_BY_COMPARISON
)
HIDDEN_SETTINGS = tuple(
    Option(one.name, one.help, key=one.key, kind=one.kind, heading="") for one in SETTINGS if one.name != "model.dim"
)

_TABLE = (
    CommandSpec(
        "compare", "learn whether a swap helped: variants with several seeds, one answer", COMPARE,
        "compare",
        (Argument("RECIPE", "recipes, a comparison's file or name, or folders of finished runs", repeats=True,
                  completes="comparison"),),
        (*COMPARE_OPTIONS, Option("model.dim", "any other option of zoo fit, as --compile, for every run",
                                  metavar="64, …", key="model.dim", heading=FIXED), *HIDDEN_SETTINGS, *REFUSED),
        open_options=OPEN_OPTIONS,
        usages=(
            "RECIPE --vary OPTION=VALUE,VALUE ... [options]     run what is missing, then compare",
            "RECIPE RECIPE ... --vary OPTION=VALUE,VALUE        the same in each, and one scoreboard over all",
            "FOLDER ... [--baseline V] [--goal G] [--json]      read finished runs, fast",
        ),
        examples=(
            "zoo compare lm-tiny --vary model.position=rope,alibi --seeds 5",
            "zoo compare lm-tiny translation-tiny vit-tiny --vary model.norm=layernorm,rmsnorm",
            'zoo compare lm-tiny --vary "model.position=none,{class_path: RoPE, init_args: {base: 500}}" --jobs 2',
        ),
        description="The same command again goes on where it stopped; finished runs are never repeated.",
        notes="help:comparison_names",
    ),
    CommandSpec(
        "tensorboard", "compare the runs of a folder in a browser", COMPARE, "tensorboard",
        (Argument("DIR", "a folder of runs (runs)", False),),
        (Option("port", "where it listens; the first free one from 6006 on", int, metavar="PORT", above=0,
                most=65535),),
        examples=("zoo tensorboard", "zoo tensorboard runs/lm-tiny --port 6010"),
        description="Start TensorBoard on this machine's own address, and print a link that compares.",
    ),
    fit_options.spec(
        "fit", summary="train; `lightning fit` and `python -m zoo fit` are the same", group=TRAIN, module="train",
        examples=(
            "zoo fit lm-tiny --model.position alibi --model.norm rmsnorm --seed 2",
            "zoo fit my.yaml --trainer.max_steps=500 --data.path=corpus.txt",
        ),
        description="Names ignore case. Options override the recipe; the last of several counts.", notes=NAMES,
    ),
    fit_options.spec(
        "validate", summary="measure a run, or a recipe's newest one, on validation data", group=TRAIN,
        module="train",
        examples=("zoo validate runs/lm-tiny/default/s1", "zoo validate lm-tiny --model.position alibi"), notes=NAMES,
    ),
    fit_options.spec(
        "test", summary="the same on test data", group=TRAIN, module="train",
        examples=("zoo test runs/lm-tiny/default/s1", "zoo test lm-tiny --ckpt_path last.ckpt"), notes=NAMES,
    ),
    fit_options.spec(
        "predict", summary="write predictions.jsonl beside the run", group=TRAIN, module="train",
        examples=("zoo predict runs/vit-tiny/default/s1", "zoo predict vit-tiny --seed 2"), notes=NAMES,
    ),
    CommandSpec(
        "generate", "continue a text", USE, "inference", (MODEL,),
        (
            Option("prompt", "a text to continue, any number of times; else standard input is one", metavar="TEXT",
                   repeats=True),
            Option("suffix", "fill in between the prompt and this text (task FIM)", metavar="TEXT"),
            Option("length", "tokens to generate (128, or as many as the model has positions for)", int,
                   metavar="N", above=0),
            Option("temperature", "0 takes the likeliest token (0.8)", float, metavar="T"),
            Option("top-k", "sample from the N likeliest tokens", int, metavar="N", above=0),
            Option("top-p", "sample from the likeliest tokens of this probability together", float, metavar="P",
                   above=0, most=1),
            Option("seed", "of the samples (1)", int, metavar="N"),
            Option("beams", "beam search with so many beams", int, metavar="N", above=0),
            Option("n-best", "how many of its texts", int, metavar="N", above=0),
            LENGTH_PENALTY,
            Option("stop", "end in front of this text, any number of times", metavar="TEXT", repeats=True),
            Option("dtype", "type of the weights: bf16 takes half the memory, slightly worse (fp32)",
                   choices=("fp32", "bf16")),
            Option("int8", "matrices and what they multiply in 8 bits: faster on a CPU, slightly worse", bool),
            Option("speculate", "guess tokens from earlier text (lookup) or by a smaller model: faster if most fit",
                   metavar="lookup|RUN"),
            SPLIT, _json("one JSON object per text: prompt, text, score, ended"), *WHERE,
        ),
        examples=(
            'zoo generate lm-tiny --prompt "Return the" --length 60',
            "zoo generate runs/lm-tiny/default/s1 --beams 4 --json < prompt.txt",
            "zoo generate lm-tiny --speculate lookup --temperature 0 < prompt.txt",
        ),
        only_prints=True,
    ),
    CommandSpec(
        "chat", "answer line after line, with the turns before", USE, "inference", (MODEL,),
        (
            Option("max-tokens", "longest answer in tokens (64)", int, metavar="N", above=0),
            Option("temperature", "0 takes the likeliest token (0)", float, metavar="T"),
            Option("top-k", "sample from the N likeliest tokens", int, metavar="N", above=0),
            Option("top-p", "sample from the likeliest tokens of this probability together", float, metavar="P",
                   above=0, most=1),
            Option("seed", "of the samples (1)", int, metavar="N"),
            _json("one JSON object per turn: turn, user, assistant, ended"), *WHERE,
        ),
        examples=("zoo chat dialogue-tiny", "zoo chat runs/dialogue-tiny/default/s1 --json < questions.txt"),
        description="Read what the user says, a line for each turn, from a terminal or a pipe, and answer each. An "
        "empty line begins\na new conversation. RUN was trained on dialogues: data LibraryDialogues or DialogueFiles.",
        only_prints=True,
    ),
    CommandSpec(
        "translate", "a line for each line", USE, "inference", (MODEL,),
        (
            Option("to", "the language, of a model that translates into several", metavar="LOCALE"),
            Option("beams", "beam search with so many beams", int, metavar="N", above=0, default=1),
            Option("n-best", "how many translations of a line, with --json", int, metavar="N", above=0, default=1),
            LENGTH_PENALTY,
            Option("max-length", "longest translation in tokens", int, metavar="N", above=0),
            Option("too-long", "what to do with a source that is too long; skip leaves its line empty",
                   choices=("error", "skip", "truncate")),
            Option("batch-tokens", "padded source tokens at once, counted per beam (4096)", int, metavar="N", above=0),
            Option("attention", "draw what the first translation attended to in its source", metavar="FILE.png"),
            SPLIT, _json("one JSON object per translation: line, source, text, score, ended"), *WHERE,
        ),
        usages=("RUN [options] < source.txt > target.txt",),
        examples=(
            "zoo translate translation-tiny < source.txt > target.txt",
            "zoo translate translation-tiny --beams 4 --attention seen.png < source.txt",
        ),
        description="Translate standard input, a line for each line, in order.", only_prints=True,
    ),
    CommandSpec(
        "classify", "name images; --text TEXT names texts", USE, "inference",
        (MODEL, Argument("IMAGE", "a picture's file", False, repeats=True)),
        (
            Option("text", "a text, any number of times; else the lines of standard input", metavar="TEXT",
                   repeats=True),
            Option("top", "classes per image (5)", int, metavar="N", above=0),
            Option("resize", "the middle square, or all of the image, where training did not resize",
                   choices=("crop", "stretch")),
            SPLIT, _json("one JSON object per image: image, classes"), *WHERE,
        ),
        examples=("zoo classify vit-tiny photo.png --top 3", 'zoo classify sentiment --text "as good as it gets"'),
        only_prints=True,
    ),
    CommandSpec(
        "fill", "put the likeliest token into each [MASK] of a text", USE, "inference", (MODEL,),
        (
            Option("text", "a text with [MASK], any number of times; else the lines of standard input",
                   metavar="TEXT", repeats=True),
            Option("top", "tokens per blank, with --json (5)", int, metavar="N", above=0),
            SPLIT, _json("one JSON object per text: text, filled, blanks"), *WHERE,
        ),
        examples=('zoo fill mlm-tiny --text "a [MASK] of text"', "zoo fill mlm-tiny --top 3 --json < texts.txt"),
        surplus="a text is written with --text", only_prints=True,
    ),
    CommandSpec(
        "tag", "name each token of a text: the token, a tab, its class", USE, "inference", (MODEL,),
        (
            Option("text", "a text, any number of times; else the lines of standard input", metavar="TEXT",
                   repeats=True),
            SPLIT, _json("one JSON object per text: text, tokens"), *WHERE,
        ),
        examples=('zoo tag roles-tiny --text "return x"', "zoo tag roles-tiny --json < code.txt"),
        surplus="a text is written with --text", only_prints=True,
    ),
    CommandSpec(
        "explain", "what a model or part computes: costs, attention, predictions by layer", USE,
        "explain",
        (Argument("RECIPE|RUN|KIND PART", "a recipe's name or file, a run's folder, a checkpoint, an export; or a kind "
                  "and a part; then another to compare with, or OPTION=VALUE", repeats=True, completes="recipe"),),
        (
            Option("text", "show the attention of every head, and the prediction after every layer, for a text",
                   metavar="TEXT"),
            Option("image", "the same for an image", metavar="FILE"),
            Option("html", "write one page with everything, which needs no network", metavar="FILE"),
            Option("measure", "measure the ceilings of this machine again", bool),
            _json("one JSON document"), *WHERE, *(replace(one, heading="") for one in SETTINGS),
        ),
        open_options=OPEN_OPTIONS,
        usages=("RECIPE|RUN [OTHER | OPTION=VALUE ...] [options]", "KIND PART [OTHER] [options]"),
        examples=(
            "zoo explain lm-tiny model.position=alibi model.norm=layernorm", "zoo explain position rope alibi",
            'zoo explain runs/lm-tiny/default/s1 --text "Return the" --html lm.html',
        ),
        description="A recipe's name means the untrained recipe; a run's folder means its trained model.",
        only_prints=True,
    ),
    CommandSpec(
        "probe", "a scorecard: recall, copying, induction, parity; heads, rank of the stream, experts, gradients", USE,
        "probe",
        (Argument("RECIPE|RUN", "a recipe's name or file, whose parts are trained in small models; or a run's folder, "
                  "a checkpoint, an export", completes="recipe"),),
        (
            Option("steps", "of each training of a recipe's parts (300)", int, metavar="N", above=0),
            _json("one JSON document"), *WHERE, *(replace(one, heading="") for one in SETTINGS),
        ),
        open_options=OPEN_OPTIONS,
        examples=("zoo probe runs/induction-tiny/default/s1", "zoo probe lm-tiny --model.position alibi --steps 600"),
        description="A recipe's name means its parts, in models of two layers that are trained on four tasks, about "
        "four minutes;\na run's folder means its trained model.",
        only_prints=True,
    ),
    CommandSpec(
        "export", "safetensors, config.json and tokenizer, which every command takes as RUN", USE, "inference",
        (MODEL, Argument("DIR", "the folder to write into")),
        (
            Option("format", "zoo; or hf, as the library of the model's family (transformers, timm) loads it",
                   default="zoo", choices=("zoo", "hf")),
            FORCE, *WHERE,
        ),
        examples=("zoo export lm-tiny exported/", "zoo export imported/ again/ --format hf"),
    ),
    CommandSpec(
        "import", "a published checkpoint (GPT-2, LLaMA, ViT, …) as something to use and change", USE,
        "import_pretrained",
        (Argument("CHECKPOINT", "a folder with config.json and safetensors"), Argument("OUT", "the folder to write")),
        (
            *(Option(f"model.{kind}", f"swap the {kind}", metavar="NAME", key=f"model.{kind}", kind=kind)
              for kind in ("position", "attention", "backend", "norm", "ffn", "block")),
            FORCE,
        ),
        open_options=("model.*",),
        examples=("zoo import gpt2/ imported/", "zoo import gpt2/ swapped/ --model.norm rmsnorm --force"),
        description="OUT gets recipe.yaml too, to train it further. No network is used, no code is read from the "
        "checkpoint, and\nevery tensor is accounted for: an unknown key, a missing one or another shape is an error. "
        "Families: docs/import.md.\nA swapped part keeps the tensors that fit; the output says which are kept, "
        "converted, new or left out.",
    ),
    CommandSpec(
        "recipes", "what `zoo fit NAME` can train", LOOK, "show:recipes",
        (Argument("GLOB", "which names, such as 'lm-*'", False),), (_json("one JSON document"),),
        examples=("zoo recipes", "zoo recipes 'lm-*' --json"), only_prints=True, needs_folder=False,
    ),
    CommandSpec(
        "list", "parts that are installed", LOOK, "show:list_parts",
        (Argument("KIND", "position, attention, norm, …", False, completes="kind"),
         Argument("GLOB", "which names, such as 'r*'", False)),
        (_json("one JSON document"),),
        examples=("zoo list", "zoo list position", "zoo list norm 'r*' --json"), only_prints=True, needs_folder=False,
    ),
    CommandSpec(
        "show", "a part's options; a recipe with the line of every value", LOOK, "show:show",
        (Argument("KIND", "a kind of parts, with NAME; or a recipe's name or file", completes="recipe"),
         Argument("NAME", "a part of that kind", False, completes="part")),
        (_json("one JSON document"),), usages=("KIND NAME [options]", "RECIPE [options]"),
        examples=("zoo show position rope", "zoo show lm-tiny", "zoo show norm rmsnorm --json"), only_prints=True,
    ),
    CommandSpec(
        "cp", "copy a recipe to change it", LOOK, "show:copy",
        (Argument("RECIPE", "a name from `zoo recipes`, or a file", completes="recipe"),
         Argument("DEST", "the file or folder to write")),
        (FORCE,), examples=("zoo cp lm-tiny my.yaml", "zoo cp lm-tiny my.yaml --force"),
    ),
    CommandSpec(
        "doctor", "versions, devices, plugins", LOOK, "doctor", (),
        (Option("kernels", "only the kernels that were measured on this machine, with their times", bool),
         _json("one JSON document")),
        examples=("zoo doctor", "zoo doctor --json", "zoo doctor --kernels"), needs_folder=False,
        description="What a report of a problem should hold. Exit code 2 where something is wrong.",
    ),
    CommandSpec(
        "lesson", "a course on Transformers that computes what it says; without NAME, its lessons", LEARN, "lesson",
        (Argument("NAME", "a lesson", False, completes="lesson"),),
        (
            Option("lang", "en or zh", choices=("en", "zh"), default="en"),
            Option("set", "change an input of the lesson, any number of times", metavar="NAME=VALUE", repeats=True),
            Option("exercise", "this exercise alone", int, metavar="N", above=0),
            Option("answer", "check an answer; a wrong one gets a hint and exit code 1", metavar="TEXT"),
            Option("code", "show the code of each step too", bool),
            _json("one JSON document"),
        ),
        examples=("zoo lesson cat --lang zh", "zoo lesson cat --set cat=1,2,3,4",
                  "zoo lesson cat --exercise 1 --answer 3.58"),
        description="Printed numbers of course notes stand beside the computed ones, with a reason where they differ.\n"
        "≈ marks what is measured or trained, ~ a time.",
        only_prints=True, needs_folder=False,
    ),
    CommandSpec(
        "new", "a package with a part that works, to change; a further part of it; or a recipe", OWN, "new",
        (Argument("KIND", "a kind of parts, as `zoo list` shows them; or recipe", completes="kind"),
         Argument("NAME", "the class, such as MyNorm, which becomes the package zoo-my-norm; or the recipe")),
        (Option("dest", "where the package goes; named after the class unless given", metavar="DIR"),
         Option("package", "its name, zoo-… unless you have a reason", metavar="NAME"),
         Option("in", "add the part to the package in this folder", metavar="DIR"),
         Option("from", "the recipe to start from, a name or a file", metavar="RECIPE")),
        usages=("KIND NAME [--package NAME] [--dest DIR]", "KIND NAME --in DIR", "recipe NAME [--from RECIPE]"),
        examples=("zoo new norm MyNorm", "zoo new ffn MyFFN --in zoo-my-norm", "zoo new recipe my-lm --from lm-tiny"),
    ),
    CommandSpec(
        "check", "does a part keep what its kind promises? does one batch of a recipe train?", OWN, "check",
        (Argument("KIND", "a kind of parts; or package.module.Class; or a plugin's package; or a recipe",
                  completes="kind"),
         Argument("NAME", "a part of that kind; without it, all of them", False, completes="part")),
        (
            Option("only", "these checks alone", metavar="CHECK,CHECK", repeats=True),
            Option("timeout", "of processor time for each check; one that takes longer is not finished", float,
                   metavar="SECONDS", default=120.0, above=0, most=604_800),
            Option("strict", "a check that is skipped counts as failed", bool),
            Option("badge", "draw the result as a picture for a README", metavar="FILE.svg"),
            _json("one JSON document"),
        ),
        open_options=("*",),
        usages=("KIND NAME [--OPTION VALUE] [options]", "package.module.Class [--OPTION VALUE] [options]", "KIND",
                "PACKAGE", "RECIPE [options of zoo fit]"),
        examples=("zoo check norm rmsnorm", "zoo check attention multihead --groups 1 --only shapes,dtypes",
                  "zoo check lm-tiny --model.position alibi"),
        description="Other options are the part's own. A class path is imported from the current folder or an "
        "installed package.\nExit codes: 0 nothing failed, 1 a check failed, 2 there is no such part, 3 the part "
        "cannot be imported.",
    ),
    CommandSpec(
        "docs", "a page for every installed part, and an index of them", OWN, "docs",
        (Argument("DIR", "the folder to write into"),),
        (
            Option("package", "the parts of this package alone, any number of times", metavar="NAME", repeats=True),
            Option("check", "run the contract of each part, and measure its cost and what it combines with", bool),
            Option("timeout", "of processor time for each check, with --check", float, metavar="SECONDS", default=120.0,
                   above=0, most=604_800),
        ),
        examples=("zoo docs parts/", "zoo docs docs/parts --package zoo-my-norm --check"),
        description="Markdown, made from the sources of the parts, which are imported only with --check.",
    ),
    CommandSpec(
        "matrix", "which parts train together, and why others are refused", OWN, "matrix", (),
        (Option("write", "write the table into FILE", metavar="FILE"),),
        examples=("zoo matrix", "zoo matrix --write combinations.md", "ZOO_DISABLE_PLUGINS=all zoo matrix"),
        description="Build and train every combination of the installed parts, plugins included, for two steps in "
        "every task that takes\nparts, and print a Markdown table: a combination trains, is refused by a sentence, or "
        "is broken (exit code 1).\nCombinations: position x attention x backend with the default norm, ffn and block, "
        "and norm x ffn x block.",
    ),
    CommandSpec(
        "help", "this help, or that of a command", HELP, "help",
        (Argument("COMMAND", "a command's name", False, completes="command"),),
        examples=("zoo help compare", "zoo compare --help"), only_prints=True, needs_folder=False,
    ),
    CommandSpec(
        "version", "the version of zoo; also --version", HELP, "help:version", examples=("zoo version",),
        only_prints=True, needs_folder=False,
    ),
    CommandSpec(
        "completion", "a script that completes commands, options and names in a shell", HELP, "completion",
        (Argument("SHELL", "bash, zsh or fish", completes="shell"),),
        examples=("source <(zoo completion bash)", "zoo completion fish > ~/.config/fish/completions/zoo.fish"),
        description="Names of recipes and parts are those that are installed when the script is printed.",
        only_prints=True, needs_folder=False,
    ),
)  # fmt: skip
COMMANDS = {command.name: command for command in _TABLE}


def parse(command: str, argv: Sequence[str]) -> ParsedOptions:
    """Read what follows a command's name. Raises UsageError, which names the option and where help is."""
    return parse_options(COMMANDS[command], argv, _commands_by_option(command))


def _commands_by_option(command: str) -> dict[str, str]:
    """The other commands that have an option, by its name."""
    commands: dict[str, list[str]] = {}
    for other in COMMANDS.values():
        for option in other.options if other.name != command else ():
            commands.setdefault(option.name, []).append(f"zoo {other.name}")
    return {name: ", ".join(names) for name, names in commands.items()}
