"""The commands of this package, as data. Needs no torch."""

from __future__ import annotations

from zoo.cli.commands import SPLIT, TEXTS
from zoo.command_line import FORCE, USE, Argument, Command, Option, json_option
from zoo.config.fit_options import MODEL_RUN, WHERE


class Fill(Command):
    """Put the likeliest token into each [MASK] of a text."""

    group = USE
    runs = "zoo_text.use_commands:fill"
    arguments = (MODEL_RUN,)
    options = (
        Option(
            "text",
            "a text with [MASK], any number of times; else the lines of standard input",
            metavar="TEXT",
            repeats=True,
        ),
        Option("top", "tokens per blank, with --json (5)", int, metavar="N", above=0),
        SPLIT,
        json_option("one JSON object per text: text, filled, blanks"),
        *WHERE,
    )
    examples = ('zoo fill mlm-tiny --text "a [MASK] of text"', "zoo fill mlm-tiny --top 3 --json < texts.txt")
    surplus = "a text is written with --text"
    only_prints = True


class Tag(Command):
    """Name each token of a text: the token, a tab, its class."""

    group = USE
    runs = "zoo_text.use_commands:tag"
    arguments = (MODEL_RUN,)
    options = (
        TEXTS,
        SPLIT,
        json_option("one JSON object per text: text, tokens"),
        *WHERE,
    )
    examples = ('zoo tag roles-tiny --text "return x"', "zoo tag roles-tiny --json < code.txt")
    surplus = "a text is written with --text"
    only_prints = True


class Embed(Command):
    """A vector per text: numbers on a line, JSON, or an array of numpy."""

    group = USE
    runs = "zoo_text.use_commands:embed"
    arguments = (MODEL_RUN, Argument("FILE", "a text per line; else standard input", required=False))
    options = (
        TEXTS,
        Option("out", "an array (texts, width) of float32, for numpy.load", metavar="FILE.npy"),
        Option("prompt", "the name of a text that the model has for queries or documents", metavar="NAME"),
        Option("size", "the first N numbers of each vector, for models of Matryoshka sizes", int, metavar="N", above=0),
        Option("batch-size", "texts at once, of like length; changes no vector (64)", int, metavar="N", above=0),
        SPLIT,
        json_option("one JSON object per text: text, vector"),
        FORCE,
        *WHERE,
    )
    examples = (
        "zoo embed embedding-tiny texts.txt --out vectors.npy",
        'zoo embed embedding-tiny --text "Parse a date." --json',
    )
    description = (
        "An empty line has a vector, too: that of the model's special tokens. A text that is longer than the model "
        "reads is cut, with a warning."
    )
