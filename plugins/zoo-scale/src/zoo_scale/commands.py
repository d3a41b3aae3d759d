"""The commands of this package, as data. Needs no torch."""

from __future__ import annotations

from zoo.command_line import TRAIN, Argument, Command, Option


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
