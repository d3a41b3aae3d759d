"""The commands: every one has help with examples that work, and a place in the overview."""

import shlex

import pytest

from zoo import recipe_files
from zoo.cli import help, main
from zoo.cli.find_command import all_commands, find_command, parse
from zoo.command_line import ABOUT, HEADINGS

NAMES = list(all_commands())


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_usage_options_and_examples(name, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: zoo {name}")
    for option in all_commands()[name].all_options:
        assert f"--{option.name}" in text or not option.heading
        assert option.help or not option.heading
    assert len(text.splitlines()) <= 62
    assert max(map(len, text.splitlines())) <= 120
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == text
    assert main([name, "-h", "--no-such-option"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_valid_command_lines(name):
    command = all_commands()[name]
    assert 1 <= len(command.examples) <= 3
    for example in command.examples:
        words = shlex.split(example.removeprefix("source <(").removesuffix(")"))
        words = words[: next((place for place, word in enumerate(words) if word in ("<", ">")), len(words))]
        assert words[words.index("zoo") + 1] in (name, "compare")
        options = parse(find_command(words[words.index("zoo") + 1]), words[words.index("zoo") + 2 :])
        for argument, word in zip(command.arguments, options.words, strict=False):
            if argument.completes == "recipe" and word.startswith(("lm-", "vit-", "translation-")):
                assert recipe_files.packaged_recipe(word), word


def test_the_overview_names_compare_first_and_every_command():
    text = help.overview()
    commands_in_order = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert commands_in_order[0] == "compare"
    assert set(NAMES) <= set(commands_in_order)
    assert all(command.group in (*HEADINGS, ABOUT) for command in all_commands().values())


def test_version_and_help_are_commands(capsys):
    assert main(["version"]) == main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("zoo ")
    assert main(["help"]) == main(["--help"]) == main(["-h"]) == main([]) == 0
    assert len({*capsys.readouterr().out.split("zoo: swap")}) <= 3
    assert main(["help", "comprae"]) == 2
    assert "unknown command 'comprae'. Did you mean 'compare'?" in capsys.readouterr().err
    assert main(["--json", "list"]) == 2
    assert "unknown command '--json'. Options come after the command. See: zoo --help" in capsys.readouterr().err
