"""The commands of the core: descriptions, of which parsing, help and shell completion are made. Needs no torch."""

from __future__ import annotations

from zoo.command_line import ABOUT, FORCE, LOOK, USE, Argument, Command, Option, json_option
from zoo.config.fit_options import EVALUATION_OPTIONS, MODEL_RUN, WHERE, FitCommand

SPLIT = Option("split-special-tokens", "special tokens in a text are plain text, also with a published tokenizer", bool)
TEXTS = Option("text", "a text, any number of times; else the lines of standard input", metavar="TEXT", repeats=True)
SAMPLING = (
    Option("top-k", "sample from the N likeliest tokens", int, metavar="N", above=0),
    Option(
        "top-p", "sample from the likeliest tokens of this probability together", float, metavar="P", above=0, most=1
    ),
    Option("seed", "of the samples (1)", int, metavar="N"),
)
LENGTH_PENALTY = Option(
    "length-penalty", "exponent of the length by which a beam's score is divided", float, metavar="A", default=1.0
)


class Fit(FitCommand):
    """Train; `lightning fit` and `python -m zoo fit` are the same."""

    examples = (
        "zoo fit lm-tiny --model.position alibi --model.norm rmsnorm --seed 2",
        "zoo fit my.yaml --trainer.max_steps=500 --data.path=corpus.txt",
    )
    description = "Names ignore case. Options override the recipe; the last of several counts."


class Validate(FitCommand):
    """Measure a run, or a recipe's newest one, on validation data."""

    options = EVALUATION_OPTIONS
    examples = ("zoo validate runs/lm-tiny/default/s1", "zoo validate lm-tiny --model.position alibi")


class Test(FitCommand):
    """The same on test data."""

    options = EVALUATION_OPTIONS
    examples = ("zoo test runs/lm-tiny/default/s1", "zoo test lm-tiny --ckpt_path last.ckpt")


class Predict(FitCommand):
    """Write predictions.jsonl beside the run."""

    options = EVALUATION_OPTIONS
    examples = ("zoo predict runs/vit-tiny/default/s1", "zoo predict vit-tiny --seed 2")


class Generate(Command):
    """Continue a text."""

    group = USE
    runs = "zoo.cli.inference:run"
    arguments = (MODEL_RUN,)
    options = (
        Option(
            "prompt",
            "a text to continue, any number of times; else standard input is one",
            metavar="TEXT",
            repeats=True,
        ),
        Option("suffix", "fill in between the prompt and this text (task FIM)", metavar="TEXT"),
        Option(
            "length", "tokens to generate (128, or as many as the model has positions for)", int, metavar="N", above=0
        ),
        Option("temperature", "0 takes the likeliest token (0.8)", float, metavar="T"),
        *SAMPLING,
        Option("beams", "beam search with so many beams", int, metavar="N", above=0),
        Option("n-best", "how many of its texts", int, metavar="N", above=0),
        LENGTH_PENALTY,
        Option("stop", "end in front of this text, any number of times", metavar="TEXT", repeats=True),
        Option(
            "dtype", "type of the weights: bf16 takes half the memory, slightly worse (fp32)", choices=("fp32", "bf16")
        ),
        Option("int8", "matrices and what they multiply in 8 bits: faster on a CPU, slightly worse", bool),
        Option(
            "speculate",
            "guess tokens from earlier text (lookup) or by a smaller model: faster if most fit",
            metavar="lookup|RUN",
        ),
        SPLIT,
        json_option("one JSON object per text: prompt, text, score, ended"),
        *WHERE,
    )
    examples = (
        'zoo generate lm-tiny --prompt "Return the" --length 60',
        "zoo generate runs/lm-tiny/default/s1 --beams 4 --json < prompt.txt",
        "zoo generate lm-tiny --speculate lookup --temperature 0 < prompt.txt",
    )
    only_prints = True


class Chat(Command):
    """Answer line after line, with the turns before."""

    group = USE
    runs = "zoo.cli.inference:run"
    arguments = (MODEL_RUN,)
    options = (
        Option("max-tokens", "longest answer in tokens (64)", int, metavar="N", above=0),
        Option("temperature", "0 takes the likeliest token (0)", float, metavar="T"),
        *SAMPLING,
        json_option("one JSON object per turn: turn, user, assistant, ended"),
        *WHERE,
    )
    examples = ("zoo chat dialogue-tiny", "zoo chat runs/dialogue-tiny/default/s1 --json < questions.txt")
    description = (
        "Read what the user says, a line for each turn, from a terminal or a pipe, and answer each. An "
        "empty line begins\na new conversation. RUN was trained on dialogues: data LibraryDialogues or DialogueFiles."
    )
    only_prints = True


class Translate(Command):
    """A line for each line."""

    group = USE
    runs = "zoo.cli.inference:run"
    arguments = (MODEL_RUN,)
    options = (
        Option("to", "the language, of a model that translates into several", metavar="LOCALE"),
        Option("beams", "beam search with so many beams", int, metavar="N", above=0, default=1),
        Option("n-best", "how many translations of a line, with --json", int, metavar="N", above=0, default=1),
        LENGTH_PENALTY,
        Option("max-length", "longest translation in tokens", int, metavar="N", above=0),
        Option(
            "too-long",
            "what to do with a source that is too long; skip leaves its line empty",
            choices=("error", "skip", "truncate"),
        ),
        Option("batch-tokens", "padded source tokens at once, counted per beam (4096)", int, metavar="N", above=0),
        Option("attention", "draw what the first translation attended to in its source", metavar="FILE.png"),
        SPLIT,
        json_option("one JSON object per translation: line, source, text, score, ended"),
        *WHERE,
    )
    usages = ("RUN [options] < source.txt > target.txt",)
    examples = (
        "zoo translate translation-tiny < source.txt > target.txt",
        "zoo translate translation-tiny --beams 4 --attention seen.png < source.txt",
    )
    description = "Translate standard input, a line for each line, in order."
    only_prints = True


class Classify(Command):
    """Name images; --text TEXT names texts."""

    group = USE
    runs = "zoo.cli.inference:run"
    arguments = (MODEL_RUN, Argument("IMAGE", "a picture's file", False, repeats=True))
    options = (
        TEXTS,
        Option("top", "classes per image (5)", int, metavar="N", above=0),
        Option(
            "resize",
            "the middle square, or all of the image, where training did not resize",
            choices=("crop", "stretch"),
        ),
        SPLIT,
        json_option("one JSON object per image: image, classes"),
        *WHERE,
    )
    examples = ("zoo classify vit-tiny photo.png --top 3", 'zoo classify sentiment --text "as good as it gets"')
    only_prints = True


class Export(Command):
    """Safetensors, config.json and tokenizer, which every command takes as RUN."""

    group = USE
    runs = "zoo.cli.inference:run"
    arguments = (MODEL_RUN, Argument("DIR", "the folder to write into"))
    options = (
        Option(
            "format",
            "zoo; or hf, as the library of the model's family (transformers, timm) loads it",
            metavar="NAME",
            default="zoo",
        ),
        Option("dtype", "type of the weights: bf16 takes half the space, rounded (fp32)", choices=("fp32", "bf16")),
        FORCE,
        *WHERE,
    )
    examples = ("zoo export lm-tiny exported/", "zoo export imported/ again/ --format hf")


class Recipes(Command):
    """What `zoo fit NAME` can train."""

    group = LOOK
    runs = "zoo.cli.show:recipes"
    arguments = (Argument("GLOB", "which names, such as 'lm-*'", False),)
    options = (json_option(),)
    examples = ("zoo recipes", "zoo recipes 'lm-*' --json")
    only_prints = True
    needs_folder = False


class List(Command):
    """Parts that are installed."""

    group = LOOK
    runs = "zoo.cli.show:list_parts"
    arguments = (
        Argument("KIND", "position, attention, norm, …", False, completes="kind"),
        Argument("GLOB", "which names, such as 'r*'", False),
    )
    options = (json_option(),)
    examples = ("zoo list", "zoo list position", "zoo list norm 'r*' --json")
    only_prints = True
    needs_folder = False


class Show(Command):
    """A part's options; a recipe with the line of every value."""

    group = LOOK
    runs = "zoo.cli.show:show"
    arguments = (
        Argument("KIND", "a kind of parts, with NAME; or a recipe's name or file", completes="recipe"),
        Argument("NAME", "a part of that kind", False, completes="part"),
    )
    options = (json_option(),)
    usages = ("KIND NAME [options]", "RECIPE [options]")
    examples = ("zoo show position rope", "zoo show lm-tiny", "zoo show norm rmsnorm --json")
    only_prints = True


class Cp(Command):
    """Copy a recipe to change it."""

    group = LOOK
    runs = "zoo.cli.show:copy"
    arguments = (
        Argument("RECIPE", "a name from `zoo recipes`, or a file", completes="recipe"),
        Argument("DEST", "the file or folder to write"),
    )
    options = (FORCE,)
    examples = ("zoo cp lm-tiny my.yaml", "zoo cp lm-tiny my.yaml --force")


class Doctor(Command):
    """Versions, devices, plugins."""

    group = LOOK
    runs = "zoo.cli.doctor:run"
    options = (json_option(),)
    examples = ("zoo doctor", "zoo doctor --json")
    needs_folder = False
    description = "What a report of a problem should hold. Exit code 2 where something is wrong."


class Help(Command):
    """This help, or that of a command."""

    group = ABOUT
    runs = "zoo.cli.help:run"
    arguments = (Argument("COMMAND", "a command's name", False, completes="command"),)
    examples = ("zoo help compare", "zoo compare --help")
    only_prints = True
    needs_folder = False


class Version(Command):
    """The version of zoo; also --version."""

    group = ABOUT
    runs = "zoo.cli.help:version"
    examples = ("zoo version",)
    only_prints = True
    needs_folder = False


class Completion(Command):
    """A script that completes commands, options and names in a shell."""

    group = ABOUT
    runs = "zoo.cli.completion:run"
    arguments = (Argument("SHELL", "bash, zsh or fish", completes="shell"),)
    examples = ("source <(zoo completion bash)", "zoo completion fish > ~/.config/fish/completions/zoo.fish")
    description = "Names of recipes and parts are those that are installed when the script is printed."
    only_prints = True
    needs_folder = False
