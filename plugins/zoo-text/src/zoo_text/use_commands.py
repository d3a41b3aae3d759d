"""fill, tag: use a trained model of this package from the command line."""

from __future__ import annotations

from zoo.cli import inference
from zoo.command_line import ParsedOptions
from zoo.console import printable


def fill(options: ParsedOptions) -> int:
    """`zoo fill`: texts with their blanks filled, or JSON."""
    inference.write_utf8()
    model = inference.load_trained(options)
    for text in options.get("text") or inference.stdin_lines():
        result = model.fill(text, **options.subset("top"))[0]
        if options.get("json"):
            blanks = [[guess._asdict() for guess in guesses] for guesses in result.guesses]
            inference.print_json({"text": text, "filled": result.text, "blanks": blanks})
        else:
            print(result.text.replace("\n", " "), flush=True)
    return 0


def tag(options: ParsedOptions) -> int:
    """`zoo tag`: a token and its class per line, an empty line after each text, or JSON."""
    inference.write_utf8()
    model = inference.load_trained(options)
    for text in options.get("text") or inference.stdin_lines():
        result = model.tag(text)[0]
        if options.get("json"):
            inference.print_json({"text": text, "tokens": [one._asdict() for one in result]})
        else:
            print("\n".join(f"{printable(one.text)}\t{printable(one.label)}" for one in result), end="\n\n", flush=True)
    return 0
