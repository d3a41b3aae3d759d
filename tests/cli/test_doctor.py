"""What a listing costs grows with the number of parts, not with its square."""

import os
import subprocess
import sys

import pytest

from zoo import __version__
from zoo.cli import doctor, main


def steps(call) -> int:
    """How many calls of Python functions something takes: a measure that no other load on the machine changes."""
    count = 0

    def tracer(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tracer)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def install(folder, count: int, modules: int) -> None:
    home = folder / "many-1.0.dist-info"
    home.mkdir(exist_ok=True)
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: many\nVersion: 1.0\nRequires-Dist: zoo-transformers\n")
    lines = [f"Many{number} = many{count}_{number % modules}:Many{number}" for number in range(count)]
    (home / "entry_points.txt").write_text("\n".join(["[zoo.norm]", *lines, ""]))
    for module in range(modules):
        classes = [f'class Many{number}:\n    """A norm."""\n' for number in range(module, count, modules)]
        (folder / f"many{count}_{module}.py").write_text("\n".join(classes))


@pytest.mark.parametrize(
    ("command", "modules", "few"),
    [
        (["list"], 1, 40),
        (["list"], 20, 40),
        (["list", "norm", "--json"], 20, 40),
        (["list", "norm", "many*"], 20, 40),
        (["doctor"], 20, 12),
        pytest.param(["doctor"], 20, 40, marks=pytest.mark.campaign),  # a process for each
    ],
)
def test_cost_per_part(site, command, modules, few, capsys, forked_children):
    costs = []
    for count in (few, 4 * few):
        install(site(), count, modules)
        site()
        main(["list", "position"])  # imports what is needed
        costs.append(steps(lambda: main(command)))
    assert "Many1" in capsys.readouterr().out or command == ["doctor"]
    assert costs[1] < 5.5 * costs[0]  # four times as many parts; the square would be 16


REQUIRED = [one.name for one in doctor.requirements("zoo-transformers")]


def test_an_old_version_of_anything_that_zoo_requires_is_named(site):
    for name in REQUIRED:
        info = site() / f"{name}-0.0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 0.0.1\n")
    site()
    every = doctor.needs().problems
    for name in REQUIRED:
        problems = [one for one in every if one.startswith(f"{name} 0.0.1 is installed: ")]
        assert problems[0].startswith(f"{name} 0.0.1 is installed: zoo-transformers {__version__} requires {name}")
        assert f"Run: pip install '{name}" in problems[0]


@pytest.mark.parametrize(("lines", "problem", "note"), [
    ("Requires-Dist: no-such-package>=2", "no-such-package is not installed: zoo-mine 1 requires no-such-pack", ""),
    ("Requires-Dist: no-such-package; python_version < '3'", "", ""),
    ("Requires-Dist: no-such-package; extra == 'more'", "", ""),
    ("Requires-Dist: numpy<1", "numpy", ""),
    ("Requires-Dist: lightning[no-such-extra]", "", ""),
    ("Requires-Dist: not a requirement", "", ""),
    ("Requires-Dist: middle", "", "setuptools"),  # what another package asks for may be of no use here
])  # fmt: skip
def test_what_a_plugin_requires_is_compared_too(lines, problem, note, site):
    for name, metadata in (("zoo-mine", lines), ("middle", "Requires-Dist: setuptools>=999")):
        info = site() / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n{metadata}\n")
        (info / "entry_points.txt").write_text("[zoo.norm]\nX = x:X\n" if name == "zoo-mine" else "")
    (site() / "setuptools-1.dist-info").mkdir()
    (site() / "setuptools-1.dist-info" / "METADATA").write_text("Name: setuptools\nVersion: 1\n")
    site()
    needs = doctor.needs()
    mine = [one for one in needs.problems if "zoo-mine" in one]
    assert [one.startswith(problem) for one in mine] == ([True] if problem else [])
    assert any(one.startswith("setuptools 1") and "middle 1 requires" in one for one in needs.notes) is bool(note)


def test_it_starts_with_the_standard_library_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'zoo', 'usercustomize'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "ZOO_DISABLE_PLUGINS": "all"}
    command = [sys.executable, "-P", "-c", "import sys; from zoo.cli import main; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run([*command, "doctor"], env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    for name in REQUIRED:
        assert f"! {name} is installed, and no module " in done.stdout
    done = subprocess.run(
        [*command, "fit", "lm-tiny"], env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the installation is incomplete: there is no module ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("text", "says"), [
    ("#!/bin/python\nfrom zoo.__main__ import run\n", "zoo (also claimed by other)"),
    ("#!/bin/python\nfrom other.cli import main\n", "other, not zoo; use: zoo fit"),
    ("#!/bin/sh\nexec conda run lightning\n", "of an unknown package, not zoo; use: zoo fit"),
])  # fmt: skip
def test_whose_the_command_lightning_is(text, says, site, tmp_path, monkeypatch):
    info = site() / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nlightning = other.cli:main\n")
    (tmp_path / "lightning").write_text(text)
    (tmp_path / "lightning").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    site()
    assert doctor.lightning_owners().endswith(says)
