"""Interface versions: a part for the last version works with one warning, older and newer ones are refused."""

import copy
import json
import logging
import sys
import tomllib

import pytest
from cli_parts import norm, package

from tests import forks
from tests.plugins import interface_record
from tests.plugins.home import PACKAGES, ROOT
from zoo import registry
from zoo.errors import PluginError
from zoo.plugins import diagnosis, interfaces, publishing
from zoo.plugins.interfaces import Change

FIRST = Change("a norm has `normalize` in place of `forward`", "rename `forward` to `normalize`", "0.2",
               "old_norms:adapt")  # fmt: skip
SECOND = Change("a norm knows its layer", "take the argument `layer`", "0.3")
OLD_NORM = "from zoo.parts.norm import RMSNorm\n\n\nclass {0}(RMSNorm):\n    'A norm.'\n"
ADAPTER = "def adapt(cls):\n    cls.normalize = cls.forward\n"


@pytest.fixture
def versions(monkeypatch):
    """Set the changes of the norm interface."""

    def use(*changes):
        monkeypatch.setattr(interfaces, "CHANGES", {"norm": changes})
        for cache in (interfaces._warn, interfaces._adapt, registry.installed_parts):
            cache.cache_clear()

    yield use
    registry.installed_parts.cache_clear()


@pytest.fixture
def plugin(site):
    """A package with one norm that declares a version, or none."""

    def write(declared):
        points = norm("zoo-old", "Old") + (f"[zoo.interface]\nnorm = {declared}\n" if declared else "")
        package(site(), "zoo-old", points, OLD_NORM.format("Old"))
        (site() / "old_norms.py").write_text(ADAPTER)
        site()

    return write


@pytest.mark.parametrize("declared", [None, "v1"])
def test_a_part_for_the_last_version_works_with_one_warning(plugin, versions, caplog, declared):
    plugin(declared)
    versions(FIRST)
    part = diagnosis.choose_part("norm", "old")
    assert part.interface == 1
    with caplog.at_level(logging.WARNING):
        cls = part.load()
        assert part.load() is cls
    assert callable(cls.normalize)  # by the change's adapter
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "norm 'Old' of zoo-old 0.1.0 is written for version 1 of the norm interface, which ends with version 3; "
        "this zoo has version 2.\nSince zoo 0.2: a norm has `normalize` in place of `forward`. Its author's fix: "
        'rename `forward` to `normalize`, and norm = "v2" in [project.entry-points."zoo.interface"]. '
        "To update: pip install -U zoo-old"
    )


def test_a_part_for_this_version_works_without_a_word(plugin, versions, caplog):
    plugin("v2")
    versions(FIRST)
    cls = diagnosis.choose_part("norm", "old").load()
    assert not hasattr(cls, "normalize")
    assert caplog.records == []


REFUSED = {
    "v1": (
        "norm 'Old' of zoo-old 0.1.0 is written for version 1 of the norm interface, this zoo supports 2 (deprecated) "
        "and 3. Run: pip install -U zoo-old, or: pip install 'zoo-transformers<0.3'"
    ),
    "v4": (
        "norm 'Old' of zoo-old 0.1.0 is written for version 4 of the norm interface, this zoo supports 2 (deprecated) "
        "and 3. Run: pip install -U zoo-transformers"
    ),
}


@pytest.mark.parametrize("declared", REFUSED)
@pytest.mark.parametrize("name", ["old", "zoo_old.Old"])
def test_a_part_that_is_too_old_or_too_new_is_refused(plugin, versions, zoo, declared, name):
    plugin(declared)
    versions(FIRST, SECOND)
    code, out, err = zoo("fit", "lm-tiny", "--model.norm", name, "--print_config")
    assert (code, out, err) == (3, "", f"error: {REFUSED[declared]} ← --model.norm {name}\n")
    part = registry.find("norm", "old")
    with pytest.raises(PluginError, match="is written for version"):
        part.load()
    assert f"Problem: {REFUSED[declared].partition('0.1.0 ')[2]}" in zoo("show", "norm", "old")[1]


@pytest.mark.usefixtures("forked_children")
def test_the_doctor_says_what_to_update(plugin, versions, zoo):
    plugin("v1")
    versions(FIRST)
    code, out, _ = zoo("doctor", "--json")
    report = json.loads(out)
    assert (code, report["interfaces"]["norm"], report["interfaces"]["ffn"]) == (0, 2, 1)
    (item,) = [one for one in report["packages"] if one["distribution"] == "zoo-old"]
    assert item["interfaces"] == {"norm": 1}
    assert "which ends with version 3" in item["updates"][0]
    assert "pip install -U zoo-old" in item["updates"][0]
    assert [one["warnings"] for one in report["plugins"] if one["name"] == "Old"] == [[]]  # not: prints on import
    output = zoo("doctor")[1]
    assert "zoo-old 0.1.0: update it (written for norm v1)" in output
    assert "advice to its author: its pyproject.toml lacks keywords" in output
    versions(FIRST, SECOND)
    code, out, _ = zoo("doctor")
    assert code == 2
    assert "norm Old (zoo-old 0.1.0): is written for version 1 of the norm interface" in out
    assert "Deprecated" not in zoo("show", "norm", "old")[1]
    versions(FIRST)
    assert "Deprecated: it is written for version 1" in zoo("show", "norm", "old")[1]


def test_a_wrong_declaration_is_pointed_out(site, zoo):
    points = norm("zoo-old", "Old") + "[zoo.interface]\nnorm = one\nnrom = v1\n"
    package(site(), "zoo-old", points, OLD_NORM.format("Old"))
    site()
    output = zoo("list")[1]
    assert "entry point 'norm' in [zoo.interface]: 'one' is not a version such as v1" in output
    assert "entry point 'nrom' in [zoo.interface]: unknown kind. Did you mean 'norm'?" in output
    assert registry.find("norm", "old").interface == 1


def test_versions_are_read():
    assert [interfaces.parse_version(text) for text in ("v1", " v12 ", "1", "v0", "v1.2", "", "v1234567")] == [
        1, 12, None, None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", registry.KINDS)
def test_an_interface_is_as_recorded(kind):
    before, after = json.loads(interface_record.FILE.read_text("utf-8"))[kind], interface_record.record(kind)
    broken = interface_record.broken_promises(before, after)
    assert not broken, f"raise the version of {kind} in zoo/plugins/interfaces.py, then record: {broken}"
    assert after == before, "write it again: python -m tests.plugins.interface_record"
    assert bool(after["members"]) == (kind not in registry.FOREIGN_BASES.values())


def test_a_changed_method_needs_a_new_version(tmp_path, monkeypatch):
    monkeypatch.setattr(interface_record, "FILE", tmp_path / "interfaces.json")
    interface_record.main()
    record = json.loads(interface_record.FILE.read_text("utf-8"))
    before = copy.deepcopy(record)
    before["norm"]["members"]["Norm.reference"] = "(self, x: Tensor, layer: int) -> Tensor"
    assert interface_record.broken_promises(before["norm"], record["norm"]) == [
        "Norm.reference: (self, x: Tensor, layer: int) -> Tensor → (self, x: Tensor) -> Tensor"
    ]
    interface_record.FILE.write_text(json.dumps(before))
    with pytest.raises(SystemExit, match="raise the version"):
        interface_record.main()
    monkeypatch.setattr(interfaces, "CHANGES", {"norm": (SECOND,)})
    interface_record.main()
    assert json.loads(interface_record.FILE.read_text("utf-8"))["norm"]["version"] == 2
    less = copy.deepcopy(record["norm"])
    del less["members"]["Norm.reference"]
    assert interface_record.broken_promises(less, record["norm"]) == []  # what is added breaks nothing


@pytest.mark.parametrize("module", PACKAGES, ids=lambda path: path.name)
def test_zoos_own_plugins_keep_their_own_advice(module):
    project = tomllib.loads((module / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    kinds = {group.removeprefix("zoo.") for group in points} & set(registry.KINDS)
    assert points["zoo.interface"] == {kind: f"v{interfaces.current(kind)}" for kind in kinds}
    assert publishing.KEYWORD in project["keywords"]
    assert project["name"].startswith(publishing.PREFIX)
    assert not [line for line in project["dependencies"] if "zoo-transformers" in line and "<" in line]


PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "zoo-built"
version = "0.3.0"
keywords = ["zoo-plugin", "normalization"]
dependencies = ["zoo-transformers>=0.1"]
[project.entry-points."zoo.norm"]
Built = "zoo_built:Built"
[project.entry-points."zoo.interface"]
norm = "v1"
"""
RUN = """
import sys
sys.path.insert(0, {site!r})
from zoo.plugins import interfaces
interfaces.CHANGES = {{"norm": tuple(interfaces.Change(*fields) for fields in {changes!r})}}
from zoo.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_built_and_installed_package(home, tmp_path):
    """The wheel has the declaration; the part trains with the next version, not with the one after that."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "zoo_built").mkdir()
    (tmp_path / "zoo_built" / "__init__.py").write_text(OLD_NORM.format("Built"))
    home.fine("python -m pip install -q --target site .", tmp_path)

    def zoo(changes, *words):
        code = RUN.format(site=str(tmp_path / "site"), changes=changes)
        command = [sys.executable, "-c", code, *words]
        env = {**home.env, "PYTHONPATH": str(ROOT)}
        return forks.run(command, env=env, cwd=tmp_path, text=True, timeout=300, nested=True)

    report = json.loads(zoo([], "doctor", "--json").stdout)
    (item,) = [one for one in report["packages"] if one["distribution"] == "zoo-built"]
    assert item == {
        "distribution": "zoo-built", "version": "0.3.0", "interfaces": {"norm": 1}, "updates": [], "advice": [],
    }  # fmt: skip
    words = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2"]
    first, second = ("it changed", "change it", "0.2"), ("again", "too", "0.3")
    done = zoo([first], "check", "lm-tiny", "--model.norm", "built", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is written for version 1 of the norm interface") == 1
    assert "Since zoo 0.2: it changed. Its author's fix: change it" in done.stderr
    done = zoo([first, second], "check", "lm-tiny", "--model.norm", "built", *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert "pip install -U zoo-built, or: pip install 'zoo-transformers<0.3'" in done.stderr
