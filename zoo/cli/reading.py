"""Parse the options of the commands that read, and run them."""

from __future__ import annotations

from zoo.errors import UsageError
from zoo.registry import suggest

FLAGS = {
    "list": {"--json"}, "show": {"--json"}, "recipes": {"--json"}, "doctor": {"--json"}, "cp": {"--force"},
    "tensorboard": {"--port"},
}  # fmt: skip
USAGE = {
    "list": "zoo list [kind] [glob] [--json]\nParts that are installed: position, attention, norm and so on.",
    "show": "zoo show KIND NAME | zoo show RECIPE, [--json]\nA part's options; a recipe with the line of every value.",
    "recipes": "zoo recipes [glob] [--json]\nThe recipes that `zoo fit NAME` runs.",
    "cp": "zoo cp RECIPE DEST [--force]\nCopy a recipe to change it.",
    "tensorboard": "zoo tensorboard [DIR] [--port PORT]\nStart TensorBoard on DIR (runs), print a link that compares.",
    "doctor": "zoo doctor [--json]\nVersions, devices, plugins, and whether torch and torchvision fit.",
}  # fmt: skip


def run(command: str, rest: list[str]) -> int:
    """Run list, show, recipes, cp, tensorboard or doctor."""
    if "-h" in rest or "--help" in rest:
        print(f"usage: {USAGE[command]}")
        return 0
    words, flags = _split(command, [word for word in rest if word != "--debug"])
    json = "--json" in flags
    if command == "tensorboard":
        from zoo.cli.tensorboard import tensorboard

        return tensorboard(words, _port(flags))
    if command == "doctor":
        from zoo.cli.doctor import doctor

        if words:
            raise UsageError(f"zoo doctor takes no words, got {words[0]!r}.")
        return doctor(json)
    from zoo.cli import show

    if command == "list":
        return show.list_parts(words, json)
    if command == "show":
        return show.show(words, json)
    if command == "recipes":
        return show.list_recipes(words, json)
    return show.copy(words, "--force" in flags)


def _split(command: str, rest: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words and options; only --port takes a value."""
    words: list[str] = []
    flags: dict[str, str] = {}
    waiting = list(rest)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in FLAGS[command]:
            raise UsageError(f"zoo {command} has no option {name!r}.{suggest(name, FLAGS[command])}")
        flags[name] = value if equals or name != "--port" or not waiting else waiting.pop(0)
    return words, flags


def _port(flags: dict[str, str]) -> int | None:
    if "--port" not in flags:
        return None
    if not flags["--port"].isdigit() or not 0 < int(flags["--port"]) < 65536:
        raise UsageError(f"--port must be a number from 1 to 65535, got {flags['--port']!r}.")
    return int(flags["--port"])
