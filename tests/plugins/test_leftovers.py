"""What installations leave behind: drawn folders of site-packages, in which every sound plugin is found."""

import itertools
import json
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zoo import registry
from zoo.cli import doctor, main
from zoo.plugins import discovery

NORM = "from zoo.parts.norm import RMSNorm as Base\n\n\nclass {}(Base):\n    'A norm.'\n"


class Site:
    """Two folders on the path, and what must be seen of them: parts, and metadata folders that are damaged."""

    def __init__(self, folder: Path):
        self.first, self.second = folder / "first", folder / "second"
        self.paths = [self.first, self.second]
        self.parts: set[str] = set()
        self.damaged: set[Path] = set()
        for place in self.paths:
            place.mkdir()

    def package(
        self, name: str, version: str = "0.2", place: Path | None = None, folder: str = "", cls: str = ""
    ) -> Path:
        """A whole package of one part."""
        place, module, cls = place or self.second, name.replace("-", "_"), cls or name.title().replace("-", "")
        info = place / (folder or f"{module}-{version}.dist-info")
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nA norm.\n")
        (info / "entry_points.txt").write_text(f"[zoo.norm]\n{cls} = {module}:{cls}\n")
        (place / f"{module}.py").write_text(NORM.format(cls))
        self.parts.add(cls)
        return info

    def broken(self, path: Path) -> Path:
        """A metadata folder that must be named."""
        self.damaged.add(path)
        return path


def sound(site, name):
    site.package(name)


def dashes(site, name):
    site.package(name, folder=f"{name}-0.2.dist-info")


def egg(site, name):
    info = site.package(name, folder=f"{name.replace('-', '_')}.egg-info")
    (info / "METADATA").rename(info / "PKG-INFO")


def empty_before(site, name):
    site.package(name)
    site.broken(site.first / f"{name.replace('-', '_')}-0.1.dist-info").mkdir()


def empty_beside(site, name):
    site.package(name)
    for version in ("0.1", "0.3"):
        site.broken(site.second / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()


def renamed_by_pip(site, name):
    old = site.package(name, "0.1", cls="Ghost")
    site.parts.remove("Ghost")
    old.rename(site.broken(site.second / f"~{old.name[1:]}"))
    site.package(name)


def two_versions(site, name):
    site.broken(site.package(name, "0.9", cls="Older"))
    site.package(name, "0.10")
    site.parts.discard("Older")


def dangling_link(site, name):
    site.package(name)
    link = site.broken(site.first / f"{name.replace('-', '_')}-0.1.dist-info")
    link.symlink_to(site.first / "nowhere")


def a_file_in_its_place(site, name):
    site.package(name)
    site.broken(site.first / f"{name.replace('-', '_')}-0.1.dist-info").write_text("")


def latin_author(site, name):
    info = site.broken(site.package(name))
    (info / "METADATA").write_bytes(f"Name: {name}\nVersion: 0.2\nAuthor: Andr\xe9\n\n".encode("latin-1"))


def malformed_line(site, name):
    info = site.broken(site.package(name))
    with (info / "entry_points.txt").open("a") as file:
        file.write("no equals sign\n")


def nameless(site, name):
    site.package(name)
    if not (site.first / ".dist-info").exists():
        site.broken(site.first / ".dist-info").mkdir()


def foreign(site, name):
    site.package(name)
    site.broken(site.first / f"other_{name.replace('-', '_')}-1.0.dist-info").mkdir()


def in_a_zip(site, name):
    site.package(name)
    module = name.replace("-", "_")
    wheel = site.second.parent / f"{module}.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in (site.second / f"{module}.py", *(site.second / f"{module}-0.2.dist-info").iterdir()):
            file.write(path, path.relative_to(site.second))
            path.unlink()
    (site.second / f"{module}-0.2.dist-info").rmdir()
    site.paths.append(wheel)


STATES = (sound, dashes, egg, empty_before, empty_beside, renamed_by_pip, two_versions, dangling_link,
          a_file_in_its_place, latin_author, malformed_line, nameless, foreign, in_a_zip)  # fmt: skip


@pytest.mark.usefixtures("without_imports")
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_damage_is_named_once_and_hides_nothing(state, tmp_path, capsys):
    holds(tmp_path, [state], capsys)


@pytest.mark.usefixtures("without_imports")
@settings(max_examples=15, phases=[Phase.generate])
@given(states=st.lists(st.sampled_from(STATES), min_size=2, max_size=5))
def test_no_mixture_of_damages_hides_anything(states, tmp_path_factory, capsys):
    holds(tmp_path_factory.mktemp("site"), states, capsys)


@pytest.fixture
def without_imports(monkeypatch):
    """The doctor tries no imports, which cost seconds, and torch is not asked for devices."""
    monkeypatch.setattr(doctor, "try_imports", lambda parts: ({"elapsed": 0.1, "said": ""} for _ in parts))
    monkeypatch.setattr(doctor, "_devices", lambda: ["cpu"])


def holds(folder, states, capsys):
    """List, doctor and show see every part that is sound, name each damaged folder once, and raise nothing."""
    site = Site(folder)
    for number, state in enumerate(states):
        state(site, f"zoo-{'abcde'[number]}-{state.__name__.replace('_', '')}")
    original = vars(discovery.Distribution)["discover"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*map(str, site.paths), *sys.path])
        patch.delenv(registry.DISABLE_VARIABLE, raising=False)
        try:
            forget()
            assert run(capsys, "list") == 0
            out = capsys.readouterr().out
            rows = {line.split()[1] for line in out.splitlines() if line.startswith("norm ")}
            assert site.parts <= rows
            assert not {"Ghost", "Older"} & rows
            for path in site.damaged:
                assert out.count(f"({path}") == 1, (path, out)
            assert sum(line.startswith("! ") for line in out.splitlines()) == len(site.damaged)
            for name in site.parts:
                assert run(capsys, "show", "norm", name) == 0
            capsys.readouterr()
            code = run(capsys, "doctor", "--json")
            report = json.loads(capsys.readouterr().out)
            assert {row["location"] for row in report["damaged"]} == {str(path) for path in site.damaged}
            assert all(row["ok"] for row in report["plugins"])
            assert len(report["damaged"]) == len(site.damaged)
            serious = {path for path in site.damaged if not path.name.startswith((".", "other_"))}
            assert code == (2 if serious else 0)
            discovery.tolerate_damaged_metadata()
            discovery.importlib.import_module("importlib.metadata").entry_points()  # as torch does when imported
        finally:
            discovery.Distribution.discover = original
    forget()


def run(capsys, *words):
    capsys.readouterr()
    return main(list(words))


def forget():
    discovery.discover.cache_clear()
    registry.installed_parts.cache_clear()
    discovery.importlib.invalidate_caches()


@pytest.mark.parametrize(("layout", "problem"), [
    ({"part.py": "class X: pass"}, ""),
    ({"space/part.py": "class X: pass"}, ""),  # a namespace package
    ({"space/inner/deep/part.py": "class X: pass"}, ""),
    ({"space/inner/__init__.py": "", "space/inner/part.py": "class X: pass"}, ""),
    ({"lazy/__init__.py": "import sys\nsys.modules[__name__ + '.part'] = sys"}, ""),
    ({"wide/__init__.py": "__path__.append('elsewhere')"}, ""),
    ({"plain/__init__.py": ""}, "there is no module plain.part"),
    ({"other.py": ""}, "there is no module part"),
])  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_what_cannot_be_told_of_a_module_is_no_problem(layout, problem, zipped, tmp_path, monkeypatch):
    from zoo.plugins.description import import_problem

    for name, text in layout.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    place = tmp_path / "site"
    if zipped:
        place = tmp_path / "site.zip"
        with zipfile.ZipFile(place, "w") as file:
            folders = {folder for name in layout for folder in Path(name).parents if folder.name}
            for name in (*layout, *(f"{folder}/" for folder in folders)):
                file.writestr(name, layout.get(name, ""))
    monkeypatch.syspath_prepend(place)
    assert import_problem(".".join([*Path(max(layout, key=len)).parent.parts, "part"])) == problem


def test_a_part_that_is_installed_while_a_process_runs_is_found(tmp_path, monkeypatch):
    place = Site(tmp_path)
    monkeypatch.setattr(sys, "path", [str(place.second), *sys.path])
    forget()
    assert "ZooLate" not in {part.name for part in registry.parts("norm")}
    place.package("zoo-late")
    assert registry.find("norm", "zoolate").origin == "zoo-late 0.2"
    for one in itertools.chain(place.second.glob("*.py"), place.second.glob("*/*")):
        one.unlink()
    monkeypatch.undo()
    forget()
