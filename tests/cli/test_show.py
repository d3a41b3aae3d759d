import json
import os
import re
import resource
import statistics
import subprocess
import sys
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from zoo import recipe_files, registry
from zoo.cli import help, main, show
from zoo.cli.find_command import find_command
from zoo.compare import tensorboard_command
from zoo.plugins.description import describe, describe_class

RECIPE = """\
# a tiny language model
# parameters: 1
model:
  class_path: causallm
  init_args:
    position: alibi
    lr: 1e-3
data: {class_path: TextFiles, init_args: {path: a.txt}}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    (tmp_path / "lm-tiny.yaml").write_text(RECIPE)
    monkeypatch.setattr(recipe_files, "builtin_folders", lambda: [tmp_path])
    return tmp_path / "lm-tiny.yaml"


COMMANDS = ["--version", "--help", "fit --help", "list", "list norm", "show position rope", "recipes", "list --json",
            "fit --nope", "fit no-such-recipe", "cp no-such-recipe x", "tensorboard no-such-dir"]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_read_import_nothing_heavy(command):
    code = (
        "import sys; from zoo.cli import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'lightning', 'jsonargparse', 'torchvision'} & set(sys.modules); "
        "print('HEAVY', sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "HEAVY []", done.stderr


def test_commands_that_read_are_fast():
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "zoo", "list"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # half a second is the promise on an idle machine; the processor's time hardly depends on what else it does
    assert statistics.median(times) < 2.0


def test_a_wrong_part_is_told_before_torch_is_imported(tmp_path):
    (tmp_path / "r.yaml").write_text("model:\n  class_path: CausalLM\n  init_args: {position: ropee}\n")
    code = "import sys; from zoo.cli import main; print(main(['fit', 'r.yaml']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout.split() == ["2", "False"]
    assert "unknown position 'ropee'. Did you mean 'RoPE'?" in done.stderr
    assert done.stderr.rstrip().endswith("← r.yaml:3")


def test_help_is_short():
    assert len(help.command_help(find_command("fit")).splitlines()) <= 60
    assert max(map(len, help.command_help(find_command("fit")).splitlines())) <= 110
    assert len(help.overview().splitlines()) <= 60


def test_help_names_installed_parts(zoo):
    code, out, _ = zoo("fit", "lm-tiny", "--help")
    assert code == 0
    assert "RoPE" in out
    assert "CausalLM" in out
    assert zoo()[1] == zoo("--help")[1]
    assert zoo("list", "--help")[1].startswith("usage: zoo list")


def test_list(zoo):
    code, out, _ = zoo("list", "norm")
    assert code == 0
    assert "RMSNorm" in out
    assert "\x1b" not in out
    assert "│" not in out
    assert [row["name"] for row in json.loads(zoo("list", "positions", "r*", "--json")[1])] == ["RoPE"]
    result = json.loads(zoo("list", "--json")[1])
    assert {row["kind"] for row in result} == {*registry.KINDS} - {"family", "design"}, "these are in packages"
    code, _, err = zoo("list", "positoin")
    assert (code, "Did you mean 'position'?" in err) == (2, True)
    assert zoo("list", "norm", "x*")[0] == 2
    assert zoo("list", "--jsn")[2].startswith("error: zoo list has no option '--jsn'. Did you mean '--json'?")


def test_show_a_part(zoo):
    code, out, _ = zoo("show", "position", "rope")
    assert code == 0
    assert "--model.position.base" in out
    assert "zoo-transformers" in out
    report = json.loads(zoo("show", "norm", "rmsnorm", "--json")[1])
    assert report["path"] == "zoo.parts.norm.RMSNorm"
    assert [option["name"] for option in report["options"]] == ["eps", "offset", "joint"]
    assert "Did you mean 'RoPE'?" in zoo("show", "position", "roppe")[2]


def test_show_a_recipe(zoo, recipe):
    code, out, _ = zoo("show", "lm-tiny")
    assert code == 0
    assert "model.position = alibi (zoo-transformers" in out
    assert "← lm-tiny.yaml:6" in out
    report = json.loads(zoo("show", "lm-tiny", "--json")[1])
    assert {"key": "model.lr", "value": 1e-3, "origin": f"{recipe}:7"} in report["values"]


def test_recipes_and_cp(zoo, recipe, tmp_path):
    assert re.search("^ *lm-tiny +a tiny language model", zoo("recipes")[1], re.MULTILINE)  # others may be installed
    headers = {item["name"]: item["header"] for item in json.loads(zoo("recipes", "--json")[1])}
    assert headers["lm-tiny"] == ["a tiny language model", "parameters: 1"]
    target = tmp_path / "mine" / "my.yaml"
    code, _, err = zoo("cp", "LM-tiny", str(target))
    assert (code, "does not exist. Make it first" in err, target.parent.exists()) == (2, True, False)
    target.parent.mkdir()
    assert zoo("cp", "LM-tiny", str(target))[0] == 0
    assert target.read_text() == RECIPE
    code, _, err = zoo("cp", "lm-tiny", str(target))
    assert (code, "--force" in err) == (2, True)
    assert zoo("cp", "lm-tiny", str(target), "--force")[0] == 0
    assert zoo("cp", "lm-tiny", str(target.parent) + "/")[0] == 0
    assert (target.parent / "lm-tiny.yaml").exists()


def test_unknown_recipes_and_commands(zoo, recipe):
    code, _, err = zoo("fit", "lm-tny")
    assert code == 2
    assert err.startswith("error: no recipe or file 'lm-tny'. Did you mean 'lm-tiny'?")
    assert "Did you mean 'fit'?" in zoo("fti")[2]
    assert zoo("fti")[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_epochs", "3"], "Did you mean '--trainer.max_epochs'?"),
        (["--lr", "3"], "Did you mean '--model.lr'?"),
        (["--resum"], "Did you mean '--resume'?"),
        (["-x"], "zoo fit has no option '-x'"),
        (["a", "b"], "one recipe at a time"),
        (["--name"], "needs a value"),
        (["--resume=yes"], "'--resume' takes true, false or no value, got 'yes'"),
        (["lm-tiny", "--model..x", "1"], "a name is missing beside a dot"),
        (["lm-tiny", "--model.x", "[1}]"], "--model.x [1}] is not valid YAML"),
    ],
)
def test_wrong_options(zoo, recipe, words, message):
    code, _, err = zoo("fit", *words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) <= 4


def test_descriptions_follow_bases_kwargs_and_reexports(tmp_path, monkeypatch):
    package = tmp_path / "descr_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\nfrom .impl import Child as Renamed\n")
    (package / "impl.py").write_text(
        "from .base import Base\n"
        "class Net:\n    def __init__(self, size: int, *, depth: int = 2, fixed: int = 1): ...\n"
        "class Child(Base):\n    '''One line.\n\n    More.'''\n"
        "class Task:\n    def __init__(self, lr: float = 0.1, **net):\n        self.net = Net(3, fixed=2, **net)\n"
    )
    (package / "base.py").write_text("class Base:\n    def __init__(self, dim, width: int = 3, *, flag=False): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    about = describe_class("descr_pkg", "Renamed", skipped=1)
    assert about.summary == "One line."
    assert [(option.name, option.type, option.default) for option in about.options] == [
        ("width", "int", "3"), ("flag", "", "False"),
    ]  # fmt: skip
    assert [option.name for option in describe_class("descr_pkg.impl", "Task").options] == ["lr", "depth"]
    assert describe_class("descr_pkg.nothing", "X").options == ()
    assert describe_class("no_such_package_at_all", "X").summary == ""


@pytest.mark.parametrize("kind", ["position", "norm", "ffn", "attention", "backend"])
def test_descriptions_agree_with_the_classes(kind):
    from zoo.config.signatures import parameters
    from zoo.plugins.description import CLASS_PARAMETERS

    for part in registry.parts(kind):
        lines = [option.name for option in describe(part).options]
        assert lines == list(parameters(part.load(), CLASS_PARAMETERS.get(kind, 0))), part.name


def test_doctor(zoo):
    code, out, _ = zoo("doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["torch_matches_torchvision"]
    assert report["versions"]["torch"]
    assert zoo("doctor")[1].startswith("python ")


def test_the_tensorboard_link():
    address = urlsplit(tensorboard_command.link(port=6007))
    query = parse_qs(address.query)
    assert address.netloc == "127.0.0.1:6007"
    assert json.loads(query["pinnedCards"][0])[0] == {"plugin": "scalars", "tag": "val/loss"}
    assert query["smoothing"] == ["0"]
    assert query["runColorGroup"] == [r"regex:^(.*)/s\d+$"]
    assert address.fragment == "timeseries"


def test_tensorboard_binds_to_this_machine_only(tmp_path, zoo):
    words = tensorboard_command.arguments(tmp_path, 6010)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert zoo("tensorboard", str(tmp_path / "none"))[0] == 2
    assert "'--port' must be a whole number" in zoo("tensorboard", "--port", "x")[2]


def test_no_colour_in_pipes_or_with_no_color(monkeypatch, zoo):
    from zoo.cli import table_printing

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(os.environ, "NO_COLOR", "1")
    assert not table_printing.is_terminal()


def test_doctor_takes_no_words(capsys):
    assert main(["doctor", "please"]) == 2
    assert "takes no words" in capsys.readouterr().err


def test_a_part_without_its_kind_is_named_with_it(capsys):
    assert main(["show", "rope"]) == 2
    assert "zoo show position rope" in capsys.readouterr().err


def test_a_package_that_was_not_installed_is_pointed_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "norm", "NobodysNorm"]) == 0
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyproject.toml").write_text("[project\n")
    capsys.readouterr()
    assert main(["show", "norm", "nobodysnorm"]) == 2
    assert "pip install -e zoo-nobodys-norm" in capsys.readouterr().err


@pytest.mark.parametrize("length", [10, 89, 90, 91, 200])
def test_a_summary_has_at_most_90_characters_and_says_where_it_is_cut(length, monkeypatch):
    text = "x" * length
    monkeypatch.setattr(show, "describe", lambda part: SimpleNamespace(summary=text))
    brief = show._brief(None)
    assert len(brief) == min(length, 90)
    assert brief.rstrip("…") == text[: len(brief) - (length > 90)]


@pytest.mark.parametrize("no_color", ["", "1"])
@pytest.mark.parametrize("columns", ["5", "40", "200"])
def test_no_column_vanishes_on_a_narrow_terminal(monkeypatch, capsys, no_color, columns):
    from zoo.cli import table_printing

    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table_printing.table(["option", "type", "what it is"], [["--model.position.init_args.theta", "float", "the base"]])
    output = capsys.readouterr().out
    assert all(word in output for word in ("--model.position.init_args.theta", "float", "the base"))
    assert ("option: --model" in output) is (columns != "200")


@pytest.mark.parametrize(("source", "name", "says"), [
    ("class Norm: ...", "Nrm", "has no class Nrm. Did you mean Norm?"),
    ("def norm(): ...", "Norm", "has no class Norm"),
    ("class Norm: ...", "Norm", ""),
    ("from zoo.parts.norm import RMSNorm as Norm", "Norm", ""),
    ("from zoo.parts.norm import *", "RMSNorm", ""),
    ("Norm = type('Norm', (), {})", "Norm", ""),
    ("globals()['Norm'] = int", "Norm", ""),
    ("def __getattr__(name): ...", "Norm", ""),
    ("try:\n    import torch as Norm\nexcept ImportError:\n    Norm = None", "Norm", ""),
])  # fmt: skip
def test_a_class_that_a_module_does_not_have(source, name, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = f"shown_{abs(hash((source, name)))}"
    (tmp_path / f"{module}.py").write_text(source + "\n")
    code = main(["show", "norm", f"{module}.{name}"])
    message = capsys.readouterr().err
    assert (code, says in message) == ((2, True) if says else (0, True)), message
