"""One treatment of options in every command, and no other module that reads a command line."""

import ast
from pathlib import Path

import pytest

from tests.rows import try_each
from zoo.cli import main
from zoo.cli.find_command import all_commands, find_command
from zoo.cli.find_command import parse as parse_command
from zoo.command_line import PATHS, Option, ParsedOptions
from zoo.errors import UsageError

ROOT = Path(__file__).parents[2]
CASES = [(command, option) for command in all_commands().values() for option in command.all_options]
NAME = "{0.name}-{1.name}".format
FLAGS = [one for one in CASES if one[1].type is bool and one[1] is not all_commands()["fit"].all_options[-1]]
VALUED = [one for one in CASES if one[1].type is not bool]
TYPED = [one for one in VALUED if not one[1].key and (one[1].type is not str or one[1].choices)]


def words_of(command):
    """As many words as a command needs."""
    return ["word"] * sum(argument.required for argument in command.arguments)


def parse(command, *argv) -> ParsedOptions:
    return parse_command(command, [*words_of(command), *argv])


def refusal(command, *argv) -> str:
    """What is said of a wrong command line: one sentence, and where help is."""
    with pytest.raises(UsageError) as caught:
        parse(command, *argv)
    text = str(caught.value)
    assert text.endswith(f" See: zoo {command.name} --help")
    assert len(text.splitlines()) == 1
    return text


def good_value(option: Option) -> str:
    if option.choices:
        return option.choices[-1]
    return {int: "3", float: str(min(2.5, option.most)), str: "a value"}[option.type]


def stored(options: ParsedOptions, option: Option):
    """The value of an option, wherever it is kept: an option of the configuration stays text."""
    if option.key:
        return [value for key, value, _ in options.settings if key == option.key][-1]
    return options.values[option.destination]


@try_each(VALUED, NAME)
def test_a_value_follows_the_option_or_an_equals_sign(command, option):
    text = good_value(option)
    value = text if option.key else option.convert(text)
    for spelling in option.strings:
        for argv in ([spelling, text], [f"{spelling}={text}"]):
            if spelling == option.short and len(argv) == 1:
                continue
            options = parse(command, *argv)
            assert stored(options, option) == ([value] if option.repeats else value)
            assert options.words == words_of(command)
            assert options.get("debug") is False
            if option.key:
                assert options.settings == [(option.key, text, " ".join(argv))]


@try_each([one for one in VALUED if one[1].metavar.startswith(PATHS)], NAME)
def test_a_path_may_begin_with_the_home_folder(command, option, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    settings = command.options and option.key
    for words in ([f"{option.strings[0]}=~/r"], [option.strings[0], "~/r"]):
        parsed = parse(command, *words)
        value = parsed.settings[-1][1] if settings else parsed.get(option.destination)
        assert value == (["/home/me/r"] if option.repeats and not settings else "/home/me/r")
    with pytest.raises(RuntimeError, match="home directory"):  # which `explain_error` translates
        parse(command, f"{option.strings[0]}=~no-such-user/r")


def test_words_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_command(find_command("cp"), ["~/in", "~"]).words == ["/home/me/in", "/home/me"]


@try_each(FLAGS, NAME)
def test_a_flag_can_be_turned_off(command, option):
    name = option.name
    for argv, value in {
        (f"--{name}",): True, (f"--{name}=true",): True, (f"--{name}=false",): False, (f"--no-{name}",): False,
        (f"--{name}", f"--no-{name}"): False, (f"--{name}=false", f"--{name}"): True,
    }.items():  # fmt: skip
        assert stored(parse(command, *argv), option) is value
    words = words_of(command)  # which a flag does not take for its value
    assert parse_command(command, [f"--{name}", *words]).words == words
    assert f"'--{name}' takes true, false or no value, got 'maybe'." in refusal(command, f"--{name}=maybe")


@try_each(VALUED, NAME)
def test_an_option_at_the_end_needs_its_value(command, option):
    if option.key:  # the configuration says so, with the option's type: see test_import_policy
        assert stored(parse(command, f"--{option.name}"), option) is True
        return
    for argv in ([f"--{option.name}"], [f"--{option.name}", "--debug"]):
        assert refusal(command, *argv).startswith(f"'--{option.name}' needs {option.requirement}.")


@try_each(TYPED, NAME)
def test_a_value_of_the_wrong_type_is_refused(command, option):
    wrong = (
        ["x", "", "nan", "inf", "-inf"]
        + (["1.5"] if option.type is int else [])
        + (["-1"] if option.above == 0 else [])
    )
    for text in wrong:
        for argv in ([f"--{option.name}={text}"], [f"--{option.name}", text]):
            message = refusal(command, *argv)
            assert message.startswith(f"'--{option.name}' must be {option.requirement}, got {text!r}.")


@try_each(CASES, NAME)
def test_typing_errors_and_abbreviations_are_refused_with_a_suggestion(command, option):
    if option.name.count(".") or "*" in command.open_options or not option.heading:
        return
    for typo in {f"{option.name[:-1]}~", f"{option.name}{option.name[-1]}"} - {option.name}:
        assert f"zoo {command.name} has no option '--{typo}'. Did you mean '--" in refusal(command, f"--{typo}=1")
    declared = {string for one in command.all_options for string in one.strings}
    short = next(
        (option.name[:end] for end in range(1, len(option.name)) if f"--{option.name[:end]}" not in declared), ""
    )
    if short and not command.accepts(short):
        text = refusal(command, f"--{short}")
        assert f"zoo {command.name} has no option '--{short}'." in text
    whole = option.name[:-1]
    if f"--{whole}" not in declared and not command.accepts(whole):
        elsewhere = f"'--{whole}': it belongs to zoo "  # a shorter name may be an option of another command
        assert any(text in refusal(command, f"--{whole}") for text in (f"--{option.name}'", elsewhere))


@try_each(VALUED, NAME)
def test_the_last_of_several_values_counts_unless_all_do(command, option):
    first = good_value(option)
    other = {int: "4", float: str(min(4.5, option.most / 2)), str: "b"}[option.type]
    last = option.choices[0] if option.choices else other
    value = stored(parse(command, f"--{option.name}={first}", f"--{option.name}", last), option)
    expected = [text if option.key else option.convert(text) for text in (first, last)]
    assert value == (expected if option.repeats else expected[-1])


@pytest.mark.parametrize("command", all_commands().values(), ids=lambda command: command.name)
def test_words(command):
    assert parse(command, "--", *[]).words == words_of(command)
    required = words_of(command)
    if required:
        with pytest.raises(UsageError, match=f"zoo {command.name} needs {command.arguments[len(required) - 1].name}: "):
            parse_command(command, required[:-1])
    for place, argument in enumerate(command.arguments[: len(required)]):
        with pytest.raises(UsageError, match=f"{argument.name} is empty"):
            parse_command(command, [*required[:place], " " * place, *required[place + 1 :]])
    if not any(argument.repeats for argument in command.arguments):
        surplus = ["odd"] * (len(command.arguments) - len(required) + 1)
        assert "'odd' is one word too many" in refusal(command, *surplus)
        assert "'--odd' is one word too many" in refusal(command, "--", *["--odd"] * len(surplus))
    assert f"zoo {command.name} has no option '-x'." in refusal(command, "-x")
    assert "the value '--' cannot be given" in refusal(command, "--debug=--")


def test_values_may_begin_with_one_dash():
    options = parse(all_commands()["fit"], "--model.lr", "-1e-3", "--name", "-x", "--trainer.devices", "-1")
    assert [value for _, value, _ in options.settings] == ["-1e-3", "-1"]
    assert options.get("name") == "-x"
    assert parse(all_commands()["generate"], "--prompt=--odd", "--stop", "-- two").values == {
        "prompt": ["--odd"], "stop": ["-- two"],
    }  # fmt: skip


def test_settings_keep_their_order_and_their_text():
    argv = ["--model.lr=1", "--seed", "3", "--model.lr", "2", "--compile", "--model.tie", "--no-compile", "-cx.yaml"]
    options = parse(all_commands()["fit"], *argv)
    assert options.settings == [
        ("model.lr", "1", "--model.lr=1"), ("seed_everything", "3", "--seed 3"), ("model.lr", "2", "--model.lr 2"),
        ("compile", True, "--compile"), ("model.tie", True, "--model.tie"), ("compile", False, "--no-compile"),
    ]  # fmt: skip
    assert options.get("config") == ["x.yaml"]


@pytest.mark.parametrize("command", all_commands())
def test_a_wrong_option_ends_in_code_2_before_anything_is_done(command, capsys, monkeypatch):
    monkeypatch.setattr("zoo.command_line.call_by_name", lambda name, *_: pytest.fail(f"{name} was called"))
    argv = [command, *words_of(all_commands()[command])]
    wrong = ["--timeout=x"] if command == "check" else ["--no-such-option"]
    assert main([*argv, *wrong]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith(f" See: zoo {command} --help\n")


def test_json_can_be_turned_off(capsys):
    assert main(["list", "norm", "--json=false"]) == 0
    assert capsys.readouterr().out.startswith("kind")
    assert main(["list", "norm", "--no-json", "--json"]) == 0
    assert capsys.readouterr().out.startswith("[")


# the code

WORD_LISTS = {"argv", "words", "rest", "args", "tokens", "extras", "waiting", "line"}
READERS = sorted(
    [ROOT / "zoo/command_line.py", *(ROOT / "zoo/cli").rglob("*.py"), *(ROOT / "zoo/config").rglob("*.py")]
)


def test_no_other_module_reads_a_command_line_word_by_word():
    """A loop over words that looks at their dashes, or takes the word that follows, is a parser."""
    loops = {}
    for path in READERS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.For):
                over = [node.iter]
            elif isinstance(node, ast.While):
                over = [node.test]
            else:
                over = [generator.iter for generator in getattr(node, "generators", [])]
            names = {getattr(one, "id", getattr(one, "attr", "")) for top in over for one in ast.walk(top)}
            text = ast.unparse(node)
            reads = any(mark in text for mark in ("startswith('-", "== '-", ".pop(0", "next("))
            if names & WORD_LISTS and reads:
                loops.setdefault(path.relative_to(ROOT).as_posix(), []).append(node.lineno)
    assert list(loops) == ["zoo/command_line.py"], loops


def test_argparse_is_used_in_one_module():
    users = [path.name for path in READERS if "argparse.ArgumentParser" in path.read_text()]
    assert users == ["command_line.py"]


NAMES_AND_PATHS = [one for one in VALUED if one[1].type is str and not one[1].key
         and not one[1].choices and one[1].metavar not in ("", "TEXT")]  # fmt: skip


@pytest.mark.parametrize("empty", ["", " ", "\t"])
@try_each(NAMES_AND_PATHS, NAME)
def test_a_name_or_a_path_is_not_empty(command, option, empty):
    """``--name ''`` of a script whose variable is not set was taken for no name at all."""
    assert "got an empty value" in refusal(command, f"{option.strings[0]}={empty}")


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        ("fit --layers", "model.depth"), ("fit --num-layers", "model.depth"), ("fit --hidden-size", "model.dim"),
        ("fit --output", "runs"), ("fit --save-dir", "runs"), ("fit --logdir", "runs"),
        ("fit --pretrained", "tune.start"),
        ("generate --max-new-tokens", "length"), ("translate --max-new-tokens", "max-length"),
        ("generate --num-beams", "beams"), ("compare --sede", "seeds"), ("fit --verbose", ""), ("fit --quiet", ""),
        ("fit -n", ""), ("generate --greedy", ""), ("generate --input", ""), ("generate --repetition-penalty", ""),
        ("compare --trials", ""), ("fit --workers", ""), ("chat --max-new-tokens", "max-tokens"),
        ("chat --max-length", "max-tokens"), ("generate --max-tokens", "length"), ("export --output", ""),
        ("compare --save-dir", "out"),
    ],
)  # fmt: skip
def test_an_option_of_another_program_is_likened_to_what_it_means_or_to_nothing(argv, suggestion):
    name, option = argv.split()
    message = refusal(all_commands()[name], option, "3")
    assert (f"Did you mean '--{suggestion}'?" if suggestion else "has no option") in message
    assert suggestion or "Did you mean" not in message


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("train", "fit"), ("pretrain", "fit"), ("resume", "fit"), ("sample", "generate"), ("infer", "generate"),
        ("inference", "generate"), ("evaluate", "validate"), ("parts", "list"), ("ls", "list"), ("generat", "generate"),
        ("compre", "compare"), ("dctor", "doctor"), ("serve", ""), ("search", ""), ("quantize", ""), ("deploy", ""),
    ],
)  # fmt: skip
def test_a_command_of_another_tool_is_likened_to_what_it_means_or_to_nothing(word, suggestion):
    with pytest.raises(UsageError, match=f"unknown command '{word}'") as caught:
        find_command(word)
    assert (f"Did you mean '{suggestion}'?" if suggestion else f"'{word}'. See: zoo --help") in str(caught.value)
