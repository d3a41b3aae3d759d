"""The commands of this package, as data. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from zoo.command_line import TRAIN, Argument, Command, Option, json_option
from zoo.config.fit_options import ALLOW_IMPORT, OPEN_OPTIONS, SETTINGS


class Plan(Command):
    """What fits on so many GPUs, how fast it trains and how long it takes, before anything runs."""

    group = TRAIN
    runs = "zoo_scale.plan:run"
    arguments = (Argument("RECIPE", "a recipe's name or file", completes="recipe"),)
    options = (
        Option("gpus", "how many, all alike (8)", int, metavar="N", above=0),
        Option("memory", "of a GPU, in units of 1024: 80G, 141G, 24G (80G)", metavar="BYTES"),
        Option("tokens", "to train on: 300B, 1T; images for a task of images", metavar="N"),
        Option("mfu", "the share of a GPU's speed that the model's own operations reach (0.4)", float, above=0, most=1),
        Option("flops", "a GPU's speed in the precision of the run, per second (989T, an H100 in bf16)", metavar="N"),
        json_option(),
        replace(ALLOW_IMPORT, heading="Options"),
        *(replace(option, heading="") for option in SETTINGS),
    )
    open_options = OPEN_OPTIONS
    examples = (
        "zoo plan llama-7b --gpus 8 --memory 80G --tokens 1T",
        "zoo plan gpt2-small --gpus 8 --memory 40G --flops 312T --mfu 0.3 --tokens 300B",
    )
    description = "No GPU is needed, and no data: the model has shapes and no numbers."
    surplus = "one recipe at a time"
    only_prints = True


class Prepare(Command):
    """Tokenize text files once, in parallel, into a token file that trains from disk."""

    group = TRAIN
    runs = "zoo_scale.prepare:prepare"
    arguments = (
        Argument("OUT", "the folder of the token file"),
        Argument("FILES", "text files, folders or patterns; PATH#COLUMN of tables", repeats=True),
    )
    options = (
        Option("tokenizer", "a run's folder or a tokenizer.json", metavar="RUN|FILE"),
        Option("processes", "that tokenize (as many as there are cores)", int, metavar="N", above=0, most=1024),
        Option("val", "share of the documents that validate and never train", float, "SHARE", 0.01, above=0, most=0.5),
    )
    examples = (
        "zoo prepare corpus-tokens corpus/ --tokenizer tokenizer.json --processes 8",
        "zoo fit lm-tiny --data TokenFile --data.path corpus-tokens",
    )
    description = (
        "Each file is a shard, written as a whole: the same command goes on where it was killed, and the token file "
        "is the same, byte for byte."
    )
