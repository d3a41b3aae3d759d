"""A package whose command is at fault takes no other command away, and is named in one sentence."""

import pytest
from cli_parts import package

from zoo.cli import find_command

HEAD = 'from zoo.command_line import Argument, Command, Option\n\nclass Foo(Command):\n    """Do foo."""\n'
BODIES = {
    "init exits": "def __init__(self): raise SystemExit(0)",
    "init fails": "def __init__(self): raise RuntimeError('x')",
    "init wants": "def __init__(self, x): pass",
    "property fails": "options = property(lambda self: 1 / 0)",
    **{f"{name} is {value}": f"{name} = {value}" for value in ("None", "3", "({},)", "'text'")
       for name in ("options", "arguments", "examples", "usages", "open_options")},
    **{f"{name} is {value}": f"{name} = {value}" for value in ("None", "3", "()")
       for name in ("group", "summary", "description", "notes", "surplus", "runs")},
    **{f"option {fields}": f"options = (Option({fields}),)" for fields in (
        "'help', 'x'", "'debug', 'x', bool", "'host', 'x', short='-h'", "'', 'x'", "'a b', 'x'", "'--a', 'x'",
        "'a', 'x', choices=None", "'a', 'x', type=list")},
    "two of one name": "options = (Option('size', 'x'), Option('size', 'y'))",
}  # fmt: skip
MODULES = {
    "import exits": "raise SystemExit(0)",
    "import fails": "import no_such_module",
    "no command": "class Foo: pass",
    "another name": HEAD.replace("Foo", "Bar") + "    pass\n",
    **{name: f"{HEAD}    {body}\n" for name, body in BODIES.items()},
}
RESULTS = ("None", "'bad'", "256", "-1", "1.0", "[]")


@pytest.fixture
def foo(site):
    """Install a package with the command foo, whose module has a text."""

    def install(source):
        package(site(), "zoo-p", "[zoo.command]\nFoo = foo_command:Foo\n")
        (site() / "foo_command.py").write_text(source)
        site()
        find_command.all_commands.cache_clear()

    yield install
    find_command.all_commands.cache_clear()


@pytest.mark.parametrize("name", MODULES)
def test_a_command_that_is_at_fault_is_named_and_no_other_is_lost(name, foo, zoo):
    foo(MODULES[name])
    for words in (["foo"], ["foo", "--help"], ["help", "foo"]):
        code, _, err = zoo(*words)
        assert code == 3, err
        assert "zoo-p 0.1.0" in err
        assert "Traceback" not in err
    code, out, _ = zoo("--help")
    assert (code, "Left out, since something is wrong with them (zoo doctor): foo" in out) == (0, True)
    assert zoo("completion", "bash")[0] == 0
    assert zoo("fit", "--no-such-option")[0] == 2


@pytest.mark.parametrize("result", RESULTS)
def test_what_is_no_exit_code_is_said(result, foo, zoo):
    foo(f"{HEAD}    def run(self, options): return {result}\n")
    code, _, err = zoo("foo")
    assert (code, "must return an exit code from 0 to 255" in err) == (3, True)


@pytest.mark.parametrize("body", ["runs = 'no_such:run'", "runs = 'zoo.cli'", "notes = 'no_such:notes'", "pass"])
def test_a_function_that_is_not_there_is_said(body, foo, zoo):
    foo(f"{HEAD}    {body}\n")
    code, _, err = zoo("foo", *(["--help"] if "notes" in body else []))
    assert (code, "of a command names no function" in err, "Traceback" in err) == (3, True, False)
    assert zoo("completion", "fish")[0] == 0


def test_a_command_in_upper_case_or_built_for_another_zoo(foo, zoo, site):
    foo(f"{HEAD}    def run(self, options): return 0\n")
    assert zoo("foo")[0] == 0
    assert "Did you mean 'foo'?" in zoo("FOO")[2]
    (metadata,) = site().glob("zoo_p*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + "Requires-Dist: zoo-transformers>=99\n")
    site()
    code, _, err = zoo("foo")
    assert (code, "is built for zoo-transformers >=99" in err) == (3, True)


HOSTILE = {"nested": "x = " + "[" * 100_000, "no toml": "\0", "huge": "#" * 2**21, "lists": "project = [1]"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pyproject_below_the_folder_is_passed_over(name, zoo, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/pyproject.toml").write_text(HOSTILE[name])
    monkeypatch.chdir(tmp_path)
    code, _, err = zoo("no-such-command")
    assert (code, err.startswith("error: unknown command 'no-such-command'.")) == (2, True)
