"""What the documentation shows works as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zoo import registry
from zoo.conformance import SUBJECTS
from zoo.conformance.__main__ import table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def block(page: Path, language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)[number]


def test_the_plugin_of_the_docs_is_found_shown_and_trained(tmp_path):
    site = tmp_path / "site"
    info = site / "my_norm-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_norm.py").write_text(block(DOCS / "plugins.md", "python"))
    toml = block(DOCS / "plugins.md", "toml")
    points = re.search(r'entry-points\."(zoo\.norm)"\]\n(.*?)\n\n', toml, re.S)
    (info / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2].replace(chr(34), '')}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-norm\nVersion: 0.1.0\n")
    # an installed plugin may have a norm of this name
    others = ",".join({part.distribution for part in registry.parts("norm") if not part.builtin})
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    env |= {registry.SWITCH: others} if others else {}

    def zoo(*words: str) -> str:
        command = [sys.executable, "-m", "zoo", *words]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "my-norm 0.1.0" in zoo("list", "norm")
    assert "--model.norm.scale" in zoo("show", "norm", "dyt")
    words = ["fit", "vit-glyphs", "--model.norm", "dyt", "--model.norm.scale", "0.8", "--trainer.max_steps", "2"]
    assert "norm DyT(scale=0.8)" in zoo(*words, "--data.size", "300")


def test_the_python_of_the_readme_runs():
    code = block(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_contracts_page_lists_its_checks(kind):
    page = (DOCS / "contract" / f"{kind}.md").read_text(encoding="utf-8")
    assert table(kind) in page, f"write it again: python -m zoo.conformance {kind}"


def test_every_test_that_the_checklist_names_exists():
    page = (DOCS / "checklist.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+): (\w+)`", page)
    assert len(named) > 150
    for folder, name in named:
        places = [ROOT / "tests" / folder, ROOT / "plugins" / f"zoo-{folder}" / "tests"]
        files = [path for place in places for path in place.rglob("test_*.py")]
        files = files or list((ROOT / "tests").glob("test_*.py"))
        found = any(f"def test_{name}(" in path.read_text(encoding="utf-8") for path in files)
        assert found, f"no test_{name} in {folder}"
    for target in re.findall(r"\]\(([\w./-]+)\)", page):
        assert (DOCS / target).exists(), target


def test_every_recipe_and_plugin_that_the_checklist_names_exists():
    page = (DOCS / "checklist.md").read_text(encoding="utf-8")
    known = {path.stem for path in ROOT.rglob("*.yaml") if path.parent.name == "recipes"}
    for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page):
        assert name in known, name
    for stars in re.findall(r"`([a-z0-9-]+)-\*`", page):
        assert any(name.startswith(f"{stars}-") for name in known), stars
    for plugin in re.findall(r"\bzoo-(\w+)", page):
        assert (ROOT / "plugins" / f"zoo-{plugin}").is_dir(), plugin
