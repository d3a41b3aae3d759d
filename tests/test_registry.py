import importlib
import json
import os
import subprocess
import sys
import threading
import tomllib

import pytest
from cli_parts import TOYS, norm, package, part

import zoo.cli as command_line
from tests.plugin_paths import PROJECTS
from tests.rows import try_each
from zoo import __version__, registry
from zoo.cli import doctor
from zoo.errors import PartError, PluginError, UsageError
from zoo.inference.import_policy import is_allowed
from zoo.models import compatibility
from zoo.plugins import description, diagnosis, discovery, safe_import
from zoo.system import fresh_process

TEXT = "model: Toy\ndata: {class_path: Text, init_args: {path: a}}\n"


@pytest.fixture
def with_plugins(install):
    def use(*more):
        install(*(part(kind, name, f"cli_toys:{name}") for kind, names in TOYS.items() for name in names), *more)

    return use


def test_a_clash_names_both_packages_and_class_paths(resolve, with_plugins):
    with_plugins(part("attention", "My", "cli_toys:Sliding", "my-attn", "0.1.0"),
                 part("attention", "My", "cli_other:My", "other", "2.0"))  # fmt: skip
    with pytest.raises(PartError) as caught:
        resolve(TEXT, options="--model.attention my")
    assert str(caught.value).startswith("two packages register attention 'my': my-attn 0.1.0 and other 2.0. Write its")
    assert "cli_other.My" in str(caught.value)
    assert str(caught.value).endswith("← --model.attention my")
    assert resolve(TEXT, options="--model.attention cli_toys.Sliding").config["model"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import no_such_triton\n", "ModuleNotFoundError: No module named 'no_such_triton'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def f(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_broken_plugin_is_fatal_only_when_named(resolve, with_plugins, tmp_path, monkeypatch, body, reason):
    (tmp_path / "cli_broken.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_broken", raising=False)
    with_plugins(part("attention", "My", "cli_broken:My", "my-attn", "0.1.0"))
    assert resolve(TEXT).config["model"]
    with pytest.raises(PluginError) as caught:
        resolve(TEXT, options="--model.attention my")
    assert "my-attn 0.1.0" in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.code == 3


@pytest.mark.usefixtures("forked_children")
def test_doctor_lists_broken_and_clashing_plugins(with_plugins, zoo):
    with_plugins(part("norm", "Gone", "cli_gone:Gone", "my-norm", "0.1.0"),
                 part("norm", "Twice", "cli_toys:RMS", "a", "1"),
                 part("norm", "Twice", "cli_other:X", "b", "2"))  # fmt: skip
    code, out, _ = zoo("doctor")
    assert code == 2
    assert "my-norm 0.1.0" in out
    assert "also registered by b 2" in out


@pytest.mark.parametrize(("requirement", "version", "fits"), [
    ("torch==2.15.0", "2.13.0", False), ("torch==2.13.0", "2.13.0", True), ("torch (==2.15.0)", "2.15.0+cpu", True),
    ("torch==2.15.*", "2.15.1", True), ("torch>=2.14,<2.15", "2.13.0", False), ("torch~=2.13.0", "2.13.4", True),
    ("torch==2.15.0.dev1", "2.15.0.dev1", True), ("torch==2.14; python_version < '3'", "2.13.0", True),
    ("torch==2.14; extra == 'x'", "2.13.0", True), ("torchaudio==2", "2.13.0", True), ("torch=>1", "2.13.0", True),
])  # fmt: skip
def test_a_torch_that_does_not_fit_is_told_from_metadata(site, zoo, requirement, version, fits):
    for name, number, metadata in (
        ("torch", version, ""),
        ("torchvision", "0.29.2", f"Requires-Dist: {requirement}\n"),
    ):
        package(site(), name, "", version=number, metadata=f"Name: {name}\nVersion: {number}\n{metadata}")
    site()
    message = doctor.torch_mismatch()
    if fits:
        assert message is None
        return
    assert message.startswith(f"torch {version} is installed: torchvision 0.29.2 requires torch")
    code, _, err = zoo("fit", "lm-tiny")
    assert code == 2
    assert err == f"error: {message}\n"


def test_lightning_is_a_synonym(monkeypatch, zoo):
    as_zoo = zoo("fit", "--help"), zoo("list", "norm"), zoo("fit", "no-such-recipe")
    monkeypatch.setattr(sys, "argv", ["/x/bin/lightning"])
    assert (zoo("fit", "--help"), zoo("list", "norm"), zoo("fit", "no-such-recipe")) == as_zoo
    assert zoo("fti", "lm-tiny") == (2, "", "error: unknown command 'fti'. Did you mean 'fit'? See: zoo --help\n")


def test_exit_codes_and_length_of_failures(monkeypatch, capsys):
    from zoo import errors

    def failing(error):
        def run(*_):
            raise error

        return run

    for error, code in (
        (errors.UsageError("\n".join("abcdefgh")), 2), (errors.PluginError("x"), 3), (errors.NonFiniteError("x"), 4),
        (errors.CheckpointError("x"), 5), (errors.ZooError("x"), 1), (KeyboardInterrupt(), 130),
    ):  # fmt: skip
        monkeypatch.setattr(command_line, "_dispatch", failing(error))
        assert command_line.main([]) == code
        assert len(capsys.readouterr().err.splitlines()) <= 4
    monkeypatch.setattr(command_line, "_dispatch", failing(KeyError("x")))
    assert command_line.main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "this looks like a bug" in err
    monkeypatch.setattr(command_line, "_dispatch", failing(errors.UsageError("x")))
    assert command_line.main(["--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("forked_children")
def test_a_disabled_plugin_is_listed_and_not_found(install, resolve, zoo, monkeypatch):
    mine = part("norm", "DyT", "cli_other:DyT", "My.Norm", "0.1.0")
    install(mine, *(part(kind, name, f"cli_toys:{name}", registry.BUILTIN) for kind in TOYS for name in TOYS[kind]))
    for words in ("my_norm", "other, MY--NORM", "1", "all"):
        monkeypatch.setenv(registry.DISABLE_VARIABLE, words)
        with pytest.raises(PartError, match=r"unknown norm 'dyt': ZOO_DISABLE_PLUGINS disables My.Norm 0.1.0"):
            registry.find("norm", "dyt")
        assert [one.name for one in registry.parts("norm")] == ["Layer", "RMS"]
        assert not is_allowed("cli_other.DyT")
    with pytest.raises(UsageError, match=r"'cli_other.DyT' is not imported: ZOO_DISABLE_PLUGINS disables My.Norm 0.1"):
        resolve(TEXT, options="--model.norm cli_other.DyT")
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "my-norm,my-nrm")
    assert "! norm 'DyT' of My.Norm 0.1.0: disabled by ZOO_DISABLE_PLUGINS" in zoo("list")[1]
    _, out, _ = zoo("doctor")
    assert "ZOO_DISABLE_PLUGINS=my-norm,my-nrm (no installed plugin: my-nrm)" in out
    assert "norm DyT (My.Norm 0.1.0): disabled by ZOO_DISABLE_PLUGINS" in out
    report = {row["name"]: row for row in json.loads(zoo("doctor", "--json")[1])["plugins"]}
    assert (report["DyT"]["disabled"], report["DyT"]["ok"], report["DyT"]["seconds"]) == (True, True, None)
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "0")
    assert registry.find("norm", "dyt").distribution == "My.Norm"


def test_zoo_itself_cannot_be_disabled(monkeypatch):
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "all,zoo-transformers")
    assert {one.distribution for kind in registry.KINDS for one in registry.parts(kind)} == {registry.BUILTIN}
    assert len(registry.parts("norm")) == 2


def test_a_built_in_name_is_not_taken_over_in_any_case(site):
    package(site(), "taker", norm("taker", "rmsnorm"))
    site()
    assert registry.find("norm", "rmsnorm").builtin
    assert [one.distribution for one in registry.installed_parts("norm") if registry.is_hidden(one)] == ["taker"]
    assert is_allowed("taker.rmsnorm")  # its class path is the way to it


def test_a_plugin_does_not_open_the_standard_library(site):
    package(site(), "opener", "[zoo.norm]\nsystem = os:system\nPopen = subprocess:Popen\n")
    site()
    assert not is_allowed("os.system")
    assert not is_allowed("subprocess.Popen")
    assert diagnosis.part_location(registry.find("norm", "popen")).endswith("subprocess.py")


def test_discovery_survives_what_hooks_and_folders_do(site, monkeypatch):
    folder = site()
    package(folder, "fine", norm("fine", "Fine"))
    package(folder, "fine", norm("fine", "Older"), version="0.0.1", metadata="Name: Fine\nVersion: 0.0.1\n")
    (folder / "file-1.dist-info").write_text("no folder")
    (folder / "loop-1.dist-info").symlink_to("loop-1.dist-info")
    (folder / "empty-1.dist-info").mkdir()
    package(folder, "tabs", "[zoo.norm]\n\tTabs\t=  tabs : Tabs  [extra]\r\n\r\n# x\n", None)

    class Hook:
        @staticmethod
        def find_distributions(context):
            raise OSError("no")

        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "odd":
                raise RuntimeError("no")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])
    site()
    result = {one.name: one for one in registry.installed_parts("norm")}
    assert {"Fine", "Tabs", "RMSNorm"} <= set(result) or {"Older", "Tabs", "RMSNorm"} <= set(result)
    assert len({"Fine", "Older"} & set(result)) == 1  # one package of a name counts
    assert result["Tabs"].target == "tabs:Tabs"
    assert discovery.installed_version("empty") == "1"
    assert discovery.installed_version("no-such-package") is None
    assert description.find_spec("odd") is None


def test_torch_starts_beside_entry_points_that_importlib_cannot_read(site, monkeypatch):
    package(site(), "worse", "[zoo.norm]\nno equals sign\n")
    site()
    with pytest.raises(TypeError):
        doctor.entry_points()
    original = vars(discovery.Distribution)["discover"]
    try:
        discovery.tolerate_damaged_metadata()
        assert "zoo" in {point.name for point in doctor.entry_points(group="console_scripts")}
    finally:
        discovery.Distribution.discover = original
    assert [flaw.package.name for flaw in registry.metadata_flaws()] == ["worse"]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ("zoo-transformers<0.1", "<0.1"),
        ("Zoo_Transformers (>=7)", ">=7"),
        ("zoo-transformers[digits]>=0.1,<0.1", "<0.1,>=0.1"),
        (f"zoo-transformers~={__version__}", ""),
        ("zoo-transformers", ""),
        ("zoo-transformers>=9; extra == 'x'", ""),
        ("zoo-transformers>=9; python_version < '3'", ""),
        ("zoo-transformers>=>9", ""),
        ("zoo-transformers-extra>=9", ""),
    ],
)
def test_which_zoo_a_package_is_built_for(site, requires, message):
    package(site(), "built", norm("built", "Built"), metadata=f"Name: built\nVersion: 1\nRequires-Dist: {requires}\n")
    site()
    assert diagnosis.version_mismatch(registry.find("norm", "built")) == message


@pytest.mark.parametrize(
    ("body", "flawed"),
    [
        ("class X: pass", False),
        ("class Y: pass", False),  # whether it has the class, the import alone can tell
        ("Y = '\\d'\nprint(X)", False),
        ("class X", True),
        ("\0", True),
        ("(" * 9000, True),
    ],
)
def test_what_a_source_tells_about_an_import(site, recwarn, body, flawed):
    (site() / "told.py").write_text(body)
    site()
    assert bool(description.import_problem("told")) is flawed
    assert not recwarn.list


@pytest.mark.parametrize(("python", "fits"), [(">=99", False), (">=3.11", True), ("99 and up", True), ("", True)])
def test_a_plugin_for_another_python_says_so_first(site, python, fits):
    metadata = f"Name: later\nVersion: 1\nRequires-Python: {python}\n"
    package(
        site(), "later", norm("later", "Later"), "type X = (\n" * (not fits) + "class Later: pass\n", metadata=metadata
    )
    site()
    part = registry.find("norm", "later")
    assert [problem.partition(", this is")[0] for problem in diagnosis.problems(part)] == (
        [] if fits else ["requires Python >=99"]
    )
    if not fits:
        with pytest.raises(PluginError, match="norm 'Later' of later 1 requires Python >=99, this is 3"):
            diagnosis.choose_part("norm", "later")


def test_an_unknown_group_is_named_where_a_package_does_not_require_zoo(site):
    package(site(), "typo", "[zoo.norms]\nX = typo:X\n")
    package(site(), "zoo-keeper", "[console_scripts]\nkeep = zoo_keeper:keep\n")
    site()
    flaws = {flaw.package.name: flaw.reason for flaw in registry.metadata_flaws()}
    assert flaws["typo"] == "unknown group 'zoo.norms'. Did you mean 'zoo.norm'?"
    assert "zoo-keeper" not in flaws


def test_what_an_import_prints_goes_to_standard_error(site, capfd):
    (site() / "loud.py").write_text("import os, sys\nprint('a')\nsys.__stdout__.write('b')\nos.write(1, b'c')\nX = 1")
    site()
    print("before")
    assert safe_import.import_object("loud", "X") == 1
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert sorted(err.replace("\n", "")) == ["a", "b", "c"]


def test_an_import_cannot_leave_and_others_can(monkeypatch):
    exits = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with pytest.raises(SystemExit, match=r"os._exit\(3\)"), safe_import.contain_import():
        os._exit(3)
    with safe_import.contain_import():  # another thread, such as a watchdog, may end the process
        other = threading.Thread(target=os._exit, args=[4])
        other.start()
        other.join()
    assert exits == [4]
    os._exit(5)
    assert exits == [4, 5]


def test_an_import_without_standard_output():
    code = (
        "import os; os.close(1)\nfrom zoo.plugins.safe_import import import_object\n"
        "import_object('json', 'dumps')\nimport sys; sys.stdout = sys.stderr = None\nimport_object('json', 'loads')"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("forked_children")
def test_the_doctor_does_not_wait_for_ever(site, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE", 1.0)
    for name, body in (
        ("Hangs", "import subprocess\nsubprocess.Popen(['sleep', '300'])\nwhile True: pass"),
        ("Prints", "while True: print('x' * 1000)"),
        ("Asks", "input()"),
        ("Closes", "import os, time\n[os.close(n) for n in range(3, 50)]\nos.close(1)\nos.close(2)\ntime.sleep(60)"),
        ("Child", "import subprocess\nsubprocess.Popen(['sleep', '300'])\nclass Child: kind = 'norm'"),
    ):
        package(site(), name, norm(name, name), body)
    site()
    parts = {one.name: one for one in registry.installed_parts("norm") if not one.builtin}
    result = dict(zip(parts, doctor.try_imports(parts.values()), strict=True))
    assert result["Hangs"]["error"] == result["Prints"]["error"] == "importing it did not end within 1 s"
    assert "error" in result["Closes"]
    assert "EOFError" in result["Asks"]["error"]
    assert ("error" in result["Child"], result["Child"]["elapsed"] < 2) == (False, True)
    assert len(result["Prints"]["said"]) <= fresh_process.MOST_BYTES


def test_a_hint_imports_no_plugin(site):
    class_body = "from zoo.parts.backend import Naive\n\n\nclass {0}(Naive):\n    pass\n"
    points = "[zoo.backend]\n{0} = {1}:{0}\n"
    package(site(), "used", points.format("Used", "used"), class_body.format("Used"))
    package(site(), "ends", points.format("Ends", "ends"), "raise SystemExit")
    package(site(), "mean", points.format("Mean", "mean"), class_body.format("Mean") + "    __init__ = exit\n")
    site()
    assert compatibility.alternatives("backend", "bias") == compatibility.alternatives("backend", "bias")
    assert not {"used", "ends", "mean"} & set(sys.modules)
    registry.get("backend", "used")
    registry.get("backend", "mean")
    assert "Used" in compatibility.alternatives("backend", "bias")
    assert "Mean" not in compatibility.alternatives("backend", "bias")


def test_a_class_that_two_modules_import_from_each_other_has_no_source(tmp_path, monkeypatch):
    (tmp_path / "ring_one.py").write_text("from ring_two import Part\n")
    (tmp_path / "ring_two.py").write_text("from ring_one import Part\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert description.describe_class("ring_one", "Part").summary == ""


def test_a_class_is_sought_through_a_few_modules_that_import_it(tmp_path, monkeypatch):
    (tmp_path / "link_0.py").write_text('class Part:\n    """A part."""\n')
    for number in range(1, description.MAX_HOPS + 1):
        (tmp_path / f"link_{number}.py").write_text(f"from link_{number - 1} import Part\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert description.describe_class(f"link_{description.MAX_HOPS - 1}", "Part").summary == "A part."
    assert description.describe_class(f"link_{description.MAX_HOPS}", "Part").summary == ""


def test_a_comment_among_entry_points_is_no_entry():
    text = "[zoo.norm]\n# Old = package:Old\n\nNew = package:New\n"
    assert [name for _, _, name, _ in discovery._lines(text)] == ["New"]


def test_of_names_that_differ_in_case_alone_the_exact_one_is_meant(with_plugins):
    with_plugins(part("norm", "MyNorm", "cli_toys:RMS", "a", "1"), part("norm", "MYNORM", "cli_toys:Layer", "b", "1"))
    assert registry.find("norm", "MyNorm").distribution == "a"
    assert registry.find("norm", "MYNORM").distribution == "b"
    with pytest.raises(PartError, match="two packages register norm 'mynorm'"):
        registry.find("norm", "mynorm")


def test_a_module_that_may_be_imported_opens_no_module_whose_name_begins_alike():
    assert is_allowed("mine.norms.Own", ("mine",))
    assert not is_allowed("mine_too.norms.Own", ("mine",))
    assert not is_allowed("min.Own", ("mine",))


MOVED = [
    (kind, name, path.parent.name)
    for path in PROJECTS
    for kind in ("task", "data")
    for name in tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"].get(f"zoo.{kind}", ())
]


@try_each(MOVED, "{} {} {}".format)
def test_a_class_path_that_zoo_has_no_more_is_that_of_the_part_of_its_name(kind, name, package):
    """Of any part below plugins/: where it is installed; where it is not, the line that installs it is said."""
    path = f"zoo.{'tasks.lm' if kind == 'task' else 'data.earlier'}.{name}"
    with pytest.raises(
        PartError, match=f"{path}.*\n.*{package} has it.*pip install -e .*plugins/{package}( -e \\S+)*$"
    ):
        registry.current_path(path)
    with pytest.MonkeyPatch.context() as patch:
        mine = part(kind, name, f"far.away:{name}", package, "1.0")
        patch.setattr(registry, "installed_parts", lambda group: (mine,) if group == kind else ())
        assert registry.current_path(path) == f"far.away.{name}"
        patch.setenv(registry.DISABLE_VARIABLE, package)
        with pytest.raises(PartError, match="no more"):
            registry.current_path(path)


@pytest.mark.parametrize(
    "path", ["zoo.tasks.lm.CausalLM", "zoo.tasks.lm.LanguageTask", "zoo.models.LanguageModel", "zoo.tasks.lm.Mine",
             "other.tasks.CLIP", "CLIP", "", ".",
             "zoo.no.such.Thing", "zoo.__main__.x.Thing", "zoo.a/b.Thing", f"zoo.{'x' * 5000}.Thing", "zoo.\0.Thing"],
)  # fmt: skip
def test_other_class_paths_are_left_as_they_are(path):
    assert registry.current_path(path) == path


@pytest.mark.parametrize("path", registry.SUCCESSORS)
def test_a_part_that_there_is_no_more_has_a_successor_by_which_runs_go_on(path):
    from zoo.config.run_config import flatten

    with pytest.raises((ImportError, AttributeError)):
        getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
    successor = registry.current_path(path)
    assert registry.part_of_class(successor) is not None
    assert flatten({"class_path": path}, "model.x") == flatten({"class_path": successor}, "model.x")
