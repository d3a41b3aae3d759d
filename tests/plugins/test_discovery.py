"""Thirty broken packages are installed at once; nobody is hurt who does not name one."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_parts import norm, package

from tests import forks
from zoo import __version__
from zoo.errors import PluginError, UsageError
from zoo.inference.part_versions import require_packages
from zoo.inference.rebuild_task import rebuild_task

ROOT = Path(__file__).parents[2]
SOUND = "from zoo.parts.norm import RMSNorm as Base\n\n\nclass {}(Base):\n    'A norm.'\n"
OLD = "Name: {name}\nVersion: {version}\nRequires-Dist: zoo-transformers<0.1\n"
# module body by the name of the part, and what naming the part must say
BODIES = {
    "Imports": ("import no_such_triton\n", "ModuleNotFoundError: No module named 'no_such_triton'"),
    "Syntax": ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax"),
    "Exits": ("import sys\nsys.exit('bye')\n", "SystemExit: bye"),
    "Leaves": ("import os\nos._exit(7)\n", "SystemExit: os._exit(7)"),
    "Raises": ("class E(BaseException):\n    __str__ = None\nraise E\n", "E ("),
    "Lacks": ("class Other: pass\n", "has no attribute 'Lacks'"),
    "Renamed": ("class Other: pass\nRenamed = Other\n", "names 'Other'; the two names must agree"),
    "Recurses": ("def deeper():\n    return deeper()\ndeeper()\n", "RecursionError"),
    "Memory": ("raise MemoryError('no room')\n", "MemoryError: no room"),
    "Cuda": ("import torch\ntorch.cuda.set_device(99)\n", "p_cuda.py:2"),
    "Hidden": ("def __getattr__(name):\n    raise RuntimeError('not yet')\n", "RuntimeError: not yet"),
    "Stranger": ("class Stranger: pass\n", "is not a norm"),
}
# as torch does while it is imported, which damaged metadata stop
READING = "from importlib.metadata import entry_points\nentry_points()\n"
SLEEP, SLOW, PATIENCE = 0.7, 0.6, 4.0  # seconds of an import, of one that is worth a warning, and until one is ended
SMALL = [
    *["--data", "TextFiles", "--data.path", "text.txt", "--data.max_length", "16", "--data.tokenizer", "bytes"],
    *["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.accelerator", "cpu"],
]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a text, and beside it the packages."""
    home = tmp_path_factory.mktemp("broken")
    site = home / "site"
    for cls, (body, _) in BODIES.items():
        package(site, f"p-{cls.lower()}", norm(f"p-{cls.lower()}", cls), body)
    package(site, "p-absent", norm("p-absent", "Absent"))
    package(site, "p-old", norm("p-old", "Old"), SOUND.format("Old"), metadata=OLD)
    package(site, "p-one", norm("p-one", "Twin"), SOUND.format("Twin"))
    package(site, "p-two", norm("p-two", "Twin"), SOUND.format("Twin"))
    package(site, "p-taker", norm("p-taker", "rmsnorm"), SOUND.format("rmsnorm"))
    loud = "import os\nprint('HELLO')\nos.system('echo SHELL')\n" + SOUND.format("Loud")
    package(site, "p-loud", norm("p-loud", "Loud"), loud)
    package(site, "p-slow", norm("p-slow", "Slow"), f"import time\ntime.sleep({SLEEP})\n" + SOUND.format("Slow"))
    package(site, "p-reads", norm("p-reads", "Reads"), READING + SOUND.format("Reads"))
    package(site, "p-minute", norm("p-minute", "Minute"), "import time\ntime.sleep(60)\n" + SOUND.format("Minute"))
    package(
        site,
        "p-strict",
        norm("p-strict", "Strict"),
        "import warnings\nwarnings.simplefilter('error')\n" + SOUND.format("Strict"),
    )
    package(site, "p-aborts", norm("p-aborts", "Aborts"), "import os\nos.abort()\n")
    # damaged metadata, of which the first and the second stop `importlib.metadata.entry_points`, and torch with it
    package(site, "p-line", "[zoo.norm]\nLine p_line:Line\n" + norm("p-line", "Good")[11:], SOUND.format("Good"))
    (package(site, "p-latin", "") / "entry_points.txt").write_bytes(norm("p-latin", "Latin").encode() + b"# \xe9")
    package(site, "p-bare", norm("p-bare", "Bare"), SOUND.format("Bare"), metadata=None)
    package(site, "p-noname", norm("p-noname", "Noname"), SOUND.format("Noname"), metadata="Version: 1\n")
    package(site, "p-value", "[zoo.norm]\nValue = p_value.Value\n", SOUND.format("Value"))
    package(site, "p-spaces", "[zoo.norm]\nTwo words = p_value:Value\n")
    package(site, "~-line", norm("p-line", "Ghost"))  # left behind by pip
    package(site, "p-group", "[zoo.nrom]\nX = p_group:X\n", metadata=OLD.replace("<0.1", ""))
    (home / "text.txt").write_text("all work and no play makes a dull toy " * 60)
    return home


def child(work, *words, code="from zoo.cli import main; sys.exit(main())", forked=False, **env):
    """A command in a process of its own, with the packages on its path.

    A process that is forked has imported torch where no metadata are damaged.
    """
    command = [sys.executable, "-c", f"import sys; {code}", *words]
    path = os.pathsep.join([str(work / "site"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ZOO_CACHE": str(work / "cache"), **env}
    run, nested = (forks.run, {"nested": True}) if forked else (subprocess.run, {})
    return run(command, env=env, cwd=work, capture_output=True, text=True, timeout=240, **nested)


COMMANDS = ["--help", "--version", "list", "list --json", "list norm", "show norm rmsnorm", "show lm-tiny", "recipes",
            "fit --help", "test --help"]  # fmt: skip


def test_commands_that_name_none_work(work):
    code = (
        "from zoo.cli import main\n"
        "import contextlib\n"
        "for words in sys.argv[1:]:\n"
        "    print('==', words, main(words.split()))\n"
        "print({'torch', 'p_one', 'p_loud'} & set(sys.modules))"
    )
    done = child(work, *COMMANDS, code=f"exec({code!r})")
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if line.startswith("== ")] == [f"== {it} 0" for it in COMMANDS]
    assert done.stdout.endswith("set()\n")


def test_a_whole_run_works(work):
    short = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "1", "--model.schedule.warmup", "0"]
    done = child(work, "fit", "lm-tiny", *SMALL, *short)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished 1 steps" in done.stdout


FAULTY_NAMES = {
    **{name: (3, f"p-{name.lower()} 0.1.0", message) for name, (_, message) in BODIES.items()},
    "Absent": (3, "p-absent 0.1.0", "No module named 'p_absent'"),
    "Old": (
        3,
        "p-old 0.1.0",
        f"is built for zoo-transformers <0.1, installed is {__version__}. Run: pip install -U p-old",
    ),
    "Twin": (2, "p-one 0.1.0 and p-two 0.1.0", "Write its class path: p_one.Twin, p_two.Twin"),
    "p_taker.rmsnorm": (0, "", ""),
    "Slow": (0, "", ""),
    "Strict": (0, "", ""),
    "Good": (0, "", ""),
    "Line": (2, "p-line 0.1.0", "entry_points.txt, line 2: 'Line p_line:Line' is not 'Name = module:Class'"),
    "Latin": (3, "p-latin 0.1.0", "entry_points.txt is not UTF-8"),
    "Bare": (3, "p_bare 0.1.0", "METADATA is missing or empty"),
    "Noname": (3, "p_noname 1", "METADATA has no Name"),
    "Value": (3, "p-value 0.1.0", "'p_value.Value' is not 'module:Class'"),
    "p_imports.Imports": (3, "p-imports 0.1.0", "p_imports.py:1"),
    "Ghost": (2, "", "unknown norm 'Ghost'"),
}


def test_naming_one_says_which_package_and_why(work):
    code = (
        "import contextlib, io, json\n"
        "from zoo.cli import main\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        code = main(['fit', 'lm-tiny', '--model.norm', name, '--print_config'])\n"
        "    found[name] = code, out.getvalue(), err.getvalue()\n"
        "print(json.dumps(found))"
    )
    done = child(work, *FAULTY_NAMES, code=f"exec({code!r})", forked=True)
    assert done.stderr == ""
    for name, (code, out, err) in json.loads(done.stdout).items():
        expected_code, package, message = FAULTY_NAMES[name]
        assert code == expected_code, (name, err)
        assert (package in err, message in err) == (True, True), err
        assert len(err.splitlines()) <= 4
        assert "Traceback" not in err
        if expected_code:
            assert err.startswith("error: ")
            assert err.rstrip().endswith(f"← --model.norm {name}")
        else:
            assert out.startswith("# zoo run: ")


def test_what_an_import_prints_stays_out_of_the_output(work):
    done = child(work, "fit", "lm-tiny", "--model.norm", "loud", "--print_config", forked=True)
    assert done.stdout.startswith("# zoo run: lm-tiny/norm=loud\n")
    assert "HELLO" not in done.stdout
    assert "SHELL" not in done.stdout
    assert sorted(done.stderr.split()) == ["HELLO", "SHELL"]


def test_the_list_says_what_it_knows_and_imports_nothing(work):
    done = child(work, "list", "norm", "--json")
    result = {(row["distribution"], row["name"]): row for row in json.loads(done.stdout)}
    for name, message in {
        ("p-old", "Old"): f"built for zoo-transformers <0.1, installed is {__version__}",
        ("p-one", "Twin"): "also registered by p-two 0.1.0; its class path is p_one.Twin",
        ("p-taker", "rmsnorm"): "hidden by zoo's own norm of this name; its class path is p_taker.rmsnorm",
        ("p-absent", "Absent"): "there is no module p_absent",
        ("p-lacks", "Lacks"): f"{work}/site/p_lacks.py has no class Lacks",
        ("p-syntax", "Syntax"): f"{work}/site/p_syntax.py:2 cannot be read: invalid syntax",
        ("p_bare", "Bare"): "METADATA is missing or empty",
        ("p-value", "Value"): "entry point 'Value': 'p_value.Value' is not 'module:Class'",
        ("p-spaces", "Two words"): "entry point 'Two words' is not the name of a class",
        ("zoo-transformers", "RMSNorm"): None,
        ("p-loud", "Loud"): None,
    }.items():
        assert result[name]["problem"] == message
    assert result["p-loud", "Loud"]["location"] == f"{work}/site/p_loud.py"
    assert result["p-loud", "Loud"]["entry_point"] == "Loud = p_loud:Loud in [zoo.norm]"
    output = child(work, "list").stdout
    assert "! norm 'Old' of p-old 0.1.0: built for zoo-transformers <0.1" in output
    assert "! p-group 0.1.0: unknown group 'zoo.nrom'. Did you mean 'zoo.norm'? (" in output
    assert "Ghost" not in output
    assert "Problem: built for zoo-transformers <0.1" in child(work, "show", "norm", "old").stdout
    assert "p-taker 0.1.0 has one too: hidden by zoo's own" in child(work, "show", "norm", "rmsnorm").stdout


@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.campaign)])
def test_the_doctor_tries_each_and_survives(work, forked):
    """In a fork torch is there before the packages are, which p-reads stands for; in a campaign it is imported, too."""
    settings = f"from zoo.cli import doctor, main; doctor.PATIENCE = {PATIENCE}; doctor.SLOW = {SLOW}; "
    done = child(work, "doctor", "--json", code=f"{settings}sys.exit(main())", forked=forked)
    assert (done.returncode, done.stderr) == (2, "")
    report = json.loads(done.stdout)
    result = {(row["distribution"], row["name"]): row for row in report["plugins"]}
    for name, (_, message) in BODIES.items():
        assert message in result[f"p-{name.lower()}", name]["problem"]
        assert not result[f"p-{name.lower()}", name]["ok"]
    assert result["p-aborts", "Aborts"]["problem"] == "importing it ends the process (SIGABRT)"
    assert "also registered by p-two 0.1.0" in result["p-one", "Twin"]["problem"]
    assert "hidden by zoo's own norm" in result["p-taker", "rmsnorm"]["problem"]
    assert "built for zoo-transformers <0.1" in result["p-old", "Old"]["problem"]
    assert result["p-old", "Old"]["seconds"] is None  # not imported
    loud, slow = result["p-loud", "Loud"], result["p-slow", "Slow"]
    assert (loud["ok"], loud["problem"]) == (True, None)
    assert loud["warnings"] == ["prints on import: 'SHELL HELLO'"]
    assert slow["ok"]
    assert slow["seconds"] >= SLEEP
    assert slow["warnings"][0].endswith(" s to import")
    assert result["p-line", "Good"]["warnings"] == []
    assert result["p-reads", "Reads"]["problem"] is None
    assert {row["distribution"] for row in report["damaged"]} == {"p-line", "p-latin", "p-group", "~_line"}


def test_disabled_packages_are_not_found(work):
    done = child(work, "fit", "lm-tiny", "--model.norm", "loud", ZOO_DISABLE_PLUGINS="p-old, P_Loud")
    assert done.returncode == 2
    assert done.stderr == (
        "error: unknown norm 'loud': ZOO_DISABLE_PLUGINS disables p-loud 0.1.0, which has it. ← --model.norm loud\n"
    )
    for words in ("1", "all"):
        rows = json.loads(child(work, "list", "norm", "--json", ZOO_DISABLE_PLUGINS=words).stdout)
        assert {row["problem"] for row in rows} == {None, "disabled by ZOO_DISABLE_PLUGINS"}
        assert [row["name"] for row in rows if row["problem"] is None] == ["LayerNorm", "RMSNorm"]


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["lesson"], "zoo-learn"),
        (["fill", "mlm-tiny"], "zoo-text"),
        (["fit", "mlm-tiny"], "zoo-text"),
        (["fit", "lm-tiny", "--model", "FIM"], "zoo-text"),
        (["fit", "lm-tiny", "--data", "maskedtext"], "zoo-text"),
        (["fit", "topics-cnn"], "zoo-classic"),
        (["fit", "history-2-ngram"], "zoo-classic"),
        (["fit", "reverse-rnn"], "zoo-classic"),
        (["fit", "translation-tiny", "--model", "rnnseq2seq"], "zoo-classic"),
        (["cp", "spell-tiny", "my.yaml"], "zoo-multimodal"),
        (["show", "task", "ClipClassification"], "zoo-multimodal"),
        (["probe", "lm-tiny"], "zoo-exercises"),
        (["fit", "recall-tiny"], "zoo-exercises"),
        (["fit", "lm-tiny", "--data", "Parity"], "zoo-exercises"),
        (["fit", "lm-tiny", "--model.norm", "dyt"], "zoo-hello"),
        (["check", "norm", "dyt"], "zoo-hello"),
        (["show", "block", "reversible"], "zoo-efficient"),
        (["cp", "swin-glyphs", "my.yaml"], "zoo-vision"),
    ],
)
def test_what_a_package_of_the_checkout_has_is_answered_with_the_line_that_installs_it(
    zoo, words, package, tmp_path, monkeypatch
):
    for place in (tmp_path, ROOT):
        monkeypatch.chdir(place)
        code, out, err = zoo(*words)
        assert (code, out) == (2, "")
        folder = ROOT / "plugins" / package if place == tmp_path else Path("plugins") / package
        assert install_line(folder) in err


def install_line(folder):
    """What is said of a package of this repository, with those that it needs by its pyproject.toml."""
    project = tomllib.loads((ROOT / "plugins" / folder.name / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]]
    places = [folder, *(folder.parent / name for name in names if (ROOT / "plugins" / name).is_dir())]
    return f"{folder} has it and is not installed: pip install {' '.join(f'-e {place}' for place in places)}"


PATHS = {"zoo_text.tasks.infill.FIM": "zoo-text", "zoo_classic.ngram.NGram": "zoo-classic"}
MOVED = {"zoo.tasks.infill.FIM": "zoo-text", "zoo.data.masked.MaskedText": "zoo-text"}


@pytest.mark.parametrize("path", [*PATHS, *MOVED])
def test_a_class_path_of_a_package_of_the_checkout_is_answered_so(zoo, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = install_line(ROOT / "plugins" / (PATHS | MOVED)[path])
    code, _, err = zoo("fit", "lm-tiny", "--data" if ".data." in path else "--model", path)
    assert code == 2
    assert line in err
    with pytest.raises((PluginError, UsageError)) as caught:
        rebuild_task({"model": {"class_path": path, "init_args": {}}}, tmp_path)
    assert line in str(caught.value)


@pytest.mark.parametrize("path", PATHS)
def test_a_checkpoint_that_needs_a_package_of_the_checkout_is_answered_so(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, owner = path.rpartition(".")[2], PATHS[path]
    record = {"kind": "task", "name": name, "class_path": path, "distribution": owner, "version": "0.1"}
    with pytest.raises(PluginError) as caught:
        require_packages([record])
    assert install_line(ROOT / "plugins" / owner) in str(caught.value)
