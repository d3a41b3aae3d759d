"""What the documentation shows works as it stands."""

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from tests import forks
from tests.documented_commands import find_problem
from tests.plugin_paths import PROJECTS, write_metadata
from tests.rows import try_each
from zoo import recipe_files, registry
from zoo.cli import main
from zoo.compare import plan
from zoo.config import fit_options, run_config
from zoo.conformance.__main__ import shared_tables, table
from zoo.conformance.contract import SUBJECTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def block(page: Path, language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)[number]


def test_the_plugin_of_the_docs_is_found_shown_and_trained(tmp_path):
    site = tmp_path / "site"
    info = site / "zoo_my_norm-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "zoo_my_norm.py").write_text(block(DOCS / "plugins.md", "python"))
    toml = block(DOCS / "plugins.md", "toml")
    points = re.search(r'entry-points\."(zoo\.norm)"\]\n(.*?)\n\n', toml, re.S)
    (info / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2].replace(chr(34), '')}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo-my-norm\nVersion: 0.1.0\n")
    # an installed plugin may have a norm of this name
    others = ",".join({part.distribution for part in registry.parts("norm") if not part.builtin})
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    env |= {registry.DISABLE_VARIABLE: others} if others else {}

    def zoo(*words: str) -> str:
        command = [sys.executable, "-m", "zoo", *words]
        done = forks.run(command, env=env, cwd=tmp_path, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "zoo-my-norm 0.1.0" in zoo("list", "norm")
    assert "--model.norm.scale" in zoo("show", "norm", "dyt")
    words = ["fit", "vit-glyphs", "--model.norm", "dyt", "--model.norm.scale", "0.8", "--trainer.max_steps", "2"]
    assert "norm DyT(scale=0.8)" in " ".join(zoo(*words, "--data.size", "300").split())  # its header is wrapped


def test_the_python_of_the_first_page_runs():
    code = block(DOCS / "start.md", "python")
    exec(compile(code, "start.md", "exec"), {})


def commands(page: Path) -> list[list[str]]:
    """The arguments of every ``zoo`` command in the bash blocks of a page."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    lines = [line.rpartition("| ")[2] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("zoo ")]


FIRST_PAGES = [ROOT / "README.md", DOCS / "start.md"]
OWN_PARTS = ("mynorm", "my.Norm")  # classes that the reader has just made: tests/plugins runs these commands


@pytest.mark.parametrize("words", [words for page in FIRST_PAGES for words in commands(page)], ids=" ".join)
def test_a_command_of_the_first_pages_is_valid(words, tmp_path, monkeypatch, capsys):
    command, *words = words
    assert main(["--help"]) == 0
    packages = [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in PROJECTS]
    others = [name.lower() for package in packages for name in package.get("entry-points", {}).get("zoo.command", {})]
    assert command in others or re.search(rf"\b{command}\b", capsys.readouterr().out)
    if command not in ("fit", "compare") or {*OWN_PARTS} & {*words}:
        return
    if not recipe_files.packaged_recipe(words[0]) and registry.not_installed(registry.RECIPES, words[0]):
        assert validate([shlex.join(["zoo", command, *words])], tmp_path) == ""
        return
    monkeypatch.chdir(tmp_path)
    options = [(words, [])]
    if command == "compare":
        vary, seeds = words[words.index("--vary") + 1], words[words.index("--seeds") + 1]
        assert plan.parse_seeds(seeds)
        options = [([words[0]], [choice.word]) for choice in plan.parse_factor(vary).choices()]
    for arguments, more in options:
        parsed = fit_options.parse("fit", [*arguments, *more])
        assert run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"]


@try_each([ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", text):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], anchor


def test_every_page_is_in_the_contents():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in text]


@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_contracts_page_lists_its_checks(kind):
    page = (DOCS / "contract" / f"{kind}.md").read_text(encoding="utf-8")
    assert table(kind) in page, f"write it again: python -m zoo.conformance {kind}"


def test_what_kinds_share_is_listed_once():
    page = (DOCS / "contract" / "README.md").read_text(encoding="utf-8")
    assert page.endswith(shared_tables() + "\n"), "write it again: python -m zoo.conformance"


def test_every_test_that_the_checklist_names_exists():
    page = (DOCS / "lab" / "checklist.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+): (\w+)`", page)
    assert len(names) > 150
    for folder, name in names:
        places = [ROOT / "tests" / folder, ROOT / "plugins" / f"zoo-{folder}" / "tests"]
        files = [path for place in places for path in place.rglob("test_*.py")]
        files = files or list((ROOT / "tests").glob("test_*.py"))
        exists = any(f"def test_{name}(" in path.read_text(encoding="utf-8") for path in files)
        assert exists, f"no test_{name} in {folder}"
    for target in re.findall(r"\]\(([\w./-]+)\)", page):
        assert (DOCS / "lab" / target).exists(), target


def test_every_recipe_and_plugin_that_the_checklist_names_exists():
    page = (DOCS / "lab" / "checklist.md").read_text(encoding="utf-8")
    names = {path.stem for path in ROOT.rglob("*.yaml") if path.parent.name == "recipes"}
    for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page):
        assert name in names, name
    for stars in re.findall(r"`([a-z0-9-]+)-\*`", page):
        assert any(name.startswith(f"{stars}-") for name in names), stars
    for plugin in re.findall(r"\bzoo-(\w+)", page):
        assert (ROOT / "plugins" / f"zoo-{plugin}").is_dir(), plugin


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table that has a column for commands, with that column's cell first."""
    result, column = [], None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            column = None
        elif "command" in cells:
            column = cells.index("command")
        elif column is not None and not set("".join(cells)) <= set("-:"):
            result.append([cells[column], *cells])
    return result


def test_every_row_of_the_checklist_names_commands_and_all_of_them_are_valid(tmp_path):
    page = (DOCS / "lab" / "checklist.md").read_text(encoding="utf-8")
    table_rows = rows(page)
    topics = re.findall(r"^\| (M\d\d) \|", page, re.M)
    assert len(topics) == len(set(topics)) == 71
    assert len(table_rows) == len(topics) + 15 + 13  # the wrong numbers of the notes, and the right ones
    missing = [row[1:3] for row in table_rows if not re.search(r"`(zoo|python -m) [^`]+`", row[0])]
    assert not missing, missing
    commands = list(dict.fromkeys(text for row in table_rows for text in re.findall(r"`([^`]+)`", row[0])))
    assert validate(commands, tmp_path) == ""


def validate(commands: list[str], folder: Path) -> str:
    """What is wrong with commands, where all plugins of this repository are installed."""
    done = forks.run(
        [sys.executable, "-m", "tests.documented_commands"], input="\n".join(commands), cwd=ROOT,
        env=write_metadata(folder / "site"), text=True, timeout=300,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("zoo fitt lm-tiny", "fitt"),
        ("zoo fit lm-tinny", "lm-tinny"),
        ("zoo fit lm-tiny --model.positon rope", "positon"),
        ("zoo fit lm-tiny --model.position rop", "rop"),
        ("zoo explain lm-tiny model.headz=4", "headz"),
        ("zoo explain norm layernrm", "layernrm"),
        ("zoo compare lm-tiny --seeds 3", "nothing is varied"),
        ("zoo compare lm-tiny --vary model.position=rope,alibbi --seeds 3", "alibbi"),
        ("zoo check backend tiled --only no_such_check", "no_such_check"),
        ("zoo chat dialogue-tinny", "dialogue-tinny"),
        ("zoo generate lm-tiny --lenght 4", "lenght"),
        ("python -m bench attentoin", "refused"),
        ("python -m bench.no_such_module", "no_such_module"),
    ],
)
def test_a_command_that_is_not_valid_is_noticed(command, reason):
    assert reason in find_problem(command)


def test_a_module_or_a_lesson_of_a_plugin_that_does_not_exist_is_noticed(tmp_path):
    assert "picturs" in validate(["python -m zoo_classic.picturs"], tmp_path / "module")
    assert "kat" in validate(["zoo lesson kat"], tmp_path / "lesson")
