"""`zoo new`: every template is a package that works as it is written, and a recipe that trains."""

import ast
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests import forks
from tests.conformance.sampled import COSTLY, sampled_checks
from zoo import __version__, recipe_files, registry
from zoo.conformance import new_command, token_checks
from zoo.conformance.token_checks import ready_for
from zoo.parts.norm import RMSNorm

ROOT = Path(__file__).parents[2]
FAMILIES = str(ROOT / "plugins/zoo-pretrained/src")  # where the base class of families is
# what can be tried only where a part declares something: an example declares it
DECLARED = {"reference", "invariance", "distances", "loss_is_a_sum", "evaluation_is_repeatable", "trains"}


def full_name(kind):
    return f"Fresh{kind.title()}"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The package of every kind, with its sources where they can be imported."""
    home = tmp_path_factory.mktemp("new")
    for kind in registry.KINDS:
        assert new_command.package(kind, full_name(kind), str(home / kind)) == 0
    paths = [str(home / kind / "src") for kind in registry.KINDS] + [FAMILIES]
    sys.path += paths
    importlib.invalidate_caches()
    groups = {}
    for kind in registry.KINDS:
        groups.setdefault(ready_for(kind), []).append(f"zoo_fresh_{kind}")
    for ready, modules in groups.items():
        token_checks.import_in_fresh_processes(ready, modules)
    yield home
    for path in paths:
        sys.path.remove(path)


# checks that build, train or draw hundreds of times; the default run has them of built-in parts
LONG = (
    "gradients_are_right", "no_state_between_calls", "dropout", "resumes", "training_is_unchanged",
    "hash_seed_changes_nothing",
)  # fmt: skip


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_template_keeps_the_contract_of_its_kind(packages, kind, long):
    part = getattr(importlib.import_module(f"zoo_fresh_{kind}"), full_name(kind))
    assert registry.kind_of(part) == kind
    costly = ("compiles", *COSTLY, *(() if long else LONG))  # which test_builtin.py and the campaign of plugins try
    outcomes = [check.outcome() for check in sampled_checks(part) if check.name not in costly]
    failed = [f"{outcome.name}: {outcome.sentence}" for outcome in outcomes if outcome.status not in ("ok", "skipped")]
    assert failed == []
    skipped = {outcome.name: outcome.sentence for outcome in outcomes if outcome.status == "skipped"}
    optional = {"reference"} if kind not in ("norm", "ffn") else set()  # which other kinds may give besides
    assert not set(skipped) & (DECLARED - optional), skipped


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_package_is_complete(packages, kind):
    home, module = packages / kind, f"zoo_fresh_{kind}"
    files = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files == {
        "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore",
        ".github/workflows/contract.yml", f"src/{module}/__init__.py", "tests/test_contract.py",
    }  # fmt: skip
    project = tomllib.loads((home / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (f"zoo-fresh-{kind}", "0.1.0")
    assert project["entry-points"] == {
        f"zoo.{kind}": {full_name(kind): f"{module}:{full_name(kind)}"},
    }
    needed = ["zoo-transformers", *(["zoo-pretrained"] if kind == "family" else [])]
    oldest = ">=" + ".".join(__version__.split(".")[:2])
    assert project["dependencies"] == [f"{name}{oldest}" for name in needed]
    assert project["keywords"] == ["zoo-plugin"]
    workflow = yaml.safe_load((home / ".github/workflows/contract.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["contract"]["steps"] if "run" in step]
    assert steps == ["pip install -e '.[test]'", "pytest", f"zoo check zoo-fresh-{kind}"]
    assert f"- {kind} `{full_name(kind)}`" in (home / "CHANGELOG.md").read_text()
    licence = (home / "LICENSE").read_text()
    assert all(words in licence for words in ("Version 2.0, January 2004", "END OF TERMS AND CONDITIONS", "APPENDIX"))
    for path in home.rglob("*"):
        if path.is_file() and path.suffix in (".md", ".toml", ".py", ".yml"):
            words = r"\{(Class|kind|a_kind|distribution|module|requires|fit|given|keyword)\}"
            assert not re.search(words, path.read_text()), path
    readme = (home / "README.md").read_text()
    assert all(f"zoo {word} {kind} {full_name(kind)}" in readme for word in ("show", "check"))
    classes = [node for node in ast.parse((home / f"src/{module}/__init__.py").read_text()).body
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    assert all(ast.get_docstring(node) for node in classes)


def test_ruff_has_nothing_to_say(packages):
    for words in (["check", "--config", str(ROOT / "pyproject.toml")], ["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--no-cache", "."]
        done = subprocess.run(command, cwd=packages, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def installed(packages, tmp_path):
    """An environment in which the packages look installed."""
    for kind in registry.KINDS:
        info = tmp_path / f"zoo_fresh_{kind}-0.1.0.dist-info"
        info.mkdir()
        target = f"zoo_fresh_{kind}:{full_name(kind)}"
        (info / "entry_points.txt").write_text(f"[zoo.{kind}]\n{full_name(kind)} = {target}\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: zoo-fresh-{kind}\nVersion: 0.1.0\n")
    places = [str(tmp_path), *(str(packages / kind / "src") for kind in registry.KINDS), FAMILIES, str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def test_zoo_lists_shows_and_trains_them(packages, tmp_path):
    env = installed(packages, tmp_path)

    def zoo(*words, timeout=170):
        command = [sys.executable, "-m", "zoo", *words]
        done = forks.run(command, env=env, cwd=tmp_path, text=True, timeout=timeout, nested=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    output = zoo("list")
    for kind in registry.KINDS:
        assert re.search(rf"^{kind} +{full_name(kind)} .* zoo-fresh-{kind} 0\.1\.0$", output, re.M), output
    assert "--model.norm.eps" in zoo("show", "norm", "freshnorm")
    assert "freshcommand" in zoo("--help")
    assert "zoo-fresh-norm" in zoo("freshcommand", "zoo-fresh-*")
    others = ("task", "data", *registry.APPLICATION_KINDS)
    places = {kind: f"--model.{kind}" for kind in registry.KINDS if kind not in others}
    places["callback"] = "--trainer.callbacks"
    parts = [word for kind, place in places.items() for word in (place, full_name(kind))]
    small = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.max_steps", "2"]
    check_output = zoo(
        "check", "lm-tiny", "--model", full_name("task"), *parts, *small
    )  # each one's own command, in one run
    check_output = " ".join(check_output.split())  # its lines are wrapped
    assert all(f"{kind} {full_name(kind)}" in check_output for kind in registry.STACK_KINDS)
    assert "recipe ok: lm-tiny: FreshTask" in check_output
    assert "on one batch of FreshData" in zoo("check", "vit-glyphs", "--data", full_name("data"))


def test_the_test_of_a_package_is_its_contract(packages):
    """pytest finds as many checks as the contract has; a whole run of them is the test above."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages / "norm" / "src"), str(ROOT)])}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "shapes or dtypes"]
    done = forks.run(words, cwd=packages / "norm", env=env, text=True, timeout=170, nested=True)
    assert "2 passed" in done.stdout, done.stdout


WRONG = {
    "norm my_norm": "a class: letters and digits, the first one a capital. Did you mean 'MyNorm'?",
    "norm 3D": "cannot name a class",
    "norm ../X": "cannot name a class",
    "norm Ünorm": "cannot name a class",
    "norm None": "'None' is a word of Python itself",
    "norm Exception": "'Exception' is a word of Python itself",
    "norm RMSNorm": "norm 'RMSNorm' exists in zoo-transformers",
    "norm rmsNorm": "cannot name a class",
    "norm RmsNorm": "norm 'RMSNorm' exists in zoo-transformers",
    "norm Norm": "'Norm' is what a norm is made of",
    "block Gain": "'Gain' is what a block is made of",
    "norm Transformers": "would become the package zoo-transformers and hide the installed package zoo-transformers",
    "nrom X": "unknown kind 'nrom'. Did you mean 'norm'?",
    "norm": "zoo new needs NAME: ",
    "norm A B": "'B' is one word too many. See: zoo new --help",
    "norm Fresh --from lm-tiny": "'--from' belongs to zoo new recipe",
    "recipe x --dest y": "'--dest' belongs to a package",
    "recipe x --in y": "'--in' belongs to a package",
    "norm Fresh --in there --dest x": "'--in' adds to a package, '--dest' makes one",
    "norm Fresh --package zoo_Mine": "'zoo_Mine' cannot name a package: small letters, digits and -, such as zoo-mine",
    "norm Fresh --package torch": "would become the package torch and hide the installed package torch",
    "norm Fresh --package random": "would become the package random and hide Python's own random",
    "norm Fresh --in nowhere": "cannot read nowhere/pyproject.toml: No such file or directory. Name the folder of",
    "norm Fresh --in there": "cannot read there/pyproject.toml",
    "norm Fresh --dst x": "zoo new has no option '--dst'. Did you mean '--dest'?",
    "recipe lm-tiny": "'lm-tiny' is a packaged recipe",
    "recipe a/b": "'a/b' cannot name a recipe",
    "recipe x --from lm-tny": "no recipe or file 'lm-tny'. Did you mean 'lm-tiny'?",
    "norm Fresh --dest there": "there exists. Choose another place: zoo new norm Fresh --dest DIR",
    "norm Fresh --dest file/below": "cannot write file/below",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_refused(zoo, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    code, out, err = zoo("new", *words.split())
    assert (code, out) == (2, "")
    assert WRONG[words] in err
    assert len(err.splitlines()) <= 4
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]


def test_names_and_versions():
    names = ("MyNorm", "DyT", "HTTPNorm", "Norm2D", "T5", "MyT5Bias", "ZooNorm")
    assert [new_command.distribution_name(name) for name in names] == [
        "zoo-my-norm", "zoo-dy-t", "zoo-http-norm", "zoo-norm2-d", "zoo-t5", "zoo-my-t5-bias", "zoo-norm",
    ]  # fmt: skip
    versions = ("0.1.0", "0.12.3", "1.4.2", "0.2.0.dev3", "0.1.0+local.x")
    assert [new_command.oldest_requirement(version) for version in versions] == [
        ">=0.1", ">=0.12", ">=1.4", ">=0.2.0.dev3", ">=0.1",
    ]  # fmt: skip


def test_a_package_of_a_name_that_is_taken_is_refused(zoo, install, tmp_path, monkeypatch):
    from cli_parts import part

    monkeypatch.chdir(tmp_path)
    install(part("norm", "DyT", "my_norm:DyT", "my-norm", "0.1.0"))
    code, _, err = zoo("new", "norm", "DYT")
    assert (code, "norm 'DyT' exists in my-norm 0.1.0" in err) == (2, True)


@pytest.fixture
def fresh(zoo, tmp_path, monkeypatch):
    """A package with a norm, and its author's own changes."""
    monkeypatch.chdir(tmp_path)
    assert zoo("new", "norm", "FreshOne")[0] == 0
    folder = tmp_path / "zoo-fresh-one"
    with (folder / "pyproject.toml").open("a") as file:
        file.write("\n[tool.mine]\nkey = 1 # keep\n")
    (folder / "README.md").write_text("my own words\n")
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_second_part_is_added_and_all_else_stays(fresh, zoo):
    before = contents(fresh)
    code, out, err = zoo("new", "ffn", "FreshTwo", "--in", "zoo-fresh-one")
    assert (code, err) == (0, "")
    assert "zoo check ffn FreshTwo" in out
    assert zoo("new", "norm", "FreshThree", "--in", str(fresh))[0] == 0
    after = contents(fresh)
    new_files = {"src/zoo_fresh_one/freshtwo.py", "src/zoo_fresh_one/freshthree.py"}
    assert set(after) - set(before) == new_files
    assert {name for name in before if before[name] != after[name]} == {"pyproject.toml", "CHANGELOG.md"}
    old_lines = [line for line in before["pyproject.toml"].splitlines() if line]
    assert [line for line in after["pyproject.toml"].splitlines() if line in old_lines] == old_lines
    assert tomllib.loads(after["pyproject.toml"])["project"]["entry-points"] == {
        "zoo.norm": {"FreshOne": "zoo_fresh_one:FreshOne", "FreshThree": "zoo_fresh_one.freshthree:FreshThree"},
        "zoo.ffn": {"FreshTwo": "zoo_fresh_one.freshtwo:FreshTwo"},
    }
    assert all(
        f"- {kind} `{name}`" in after["CHANGELOG.md"] for kind, name in [("ffn", "FreshTwo"), ("norm", "FreshOne")]
    )
    ast.parse(after["src/zoo_fresh_one/freshtwo.py"])


def test_a_package_has_the_name_that_it_is_given(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo("new", "attention", "FreshOne", "--package", "zoo-mine")[0] == 0
    project = tomllib.loads(Path("zoo-mine/pyproject.toml").read_text())["project"]
    assert (project["name"], project["description"]) == ("zoo-mine", "FreshOne, an attention for zoo.")
    assert Path("zoo-mine/src/zoo_mine/__init__.py").is_file()
    assert zoo("new", "norm", "FreshTwo", "--in", "zoo-mine")[0] == 0
    headers = re.findall(r"^\[(.*)\]$", Path("zoo-mine/pyproject.toml").read_text(), re.M)
    assert headers.index('project.entry-points."zoo.norm"') < headers.index("tool.hatch.build.targets.wheel")


def test_a_name_that_the_package_has_changes_nothing(fresh, zoo):
    assert zoo("new", "ffn", "FreshTwo", "--in", str(fresh))[0] == 0
    before = contents(fresh)
    for kind, name in [("ffn", "FreshTwo"), ("norm", "FreshTwo"), ("ffn", "Freshtwo"), ("norm", "FreshOne")]:
        code, out, err = zoo("new", kind, name, "--in", str(fresh))
        assert (code, out) == (2, "")
        assert f"{fresh} has 'Fresh" in err
        assert "already, in [zoo." in err
    (fresh / "src/zoo_fresh_one/myown.py").write_text("# mine\n")
    code, _, err = zoo("new", "norm", "MyOwn", "--in", str(fresh))
    assert (code, "myown.py exists. Choose another name." in err) == (2, True)
    assert contents(fresh) == {**before, "src/zoo_fresh_one/myown.py": "# mine\n"}


ODD_PROJECTS = {
    "[project\n": "is not the pyproject.toml of a package",
    "[tool.x]\na = 1\n": "is not the pyproject.toml of a package: 'project'",
    '[project]\nname = "a"\nentry-points = 3\n': "is not the pyproject.toml of a package",
    '[project]\nname = "a"\n[project.entry-points."zoo.norm"]\nX = "a:X"\n': "has no package folder, such as odd/src/a",
    '[project]\nname = "b"\nentry-points = {"zoo.norm" = {X = "b:X"}}\n': "Add these lines yourself, then",
}


@pytest.mark.parametrize("text", ODD_PROJECTS)
def test_a_project_that_cannot_be_extended_stays(zoo, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd" / "b").mkdir(parents=True)
    (tmp_path / "odd" / "b" / "__init__.py").write_text("")
    (tmp_path / "odd" / "pyproject.toml").write_text(text)
    before = contents(tmp_path)
    code, out, err = zoo("new", "norm", "Fresh", "--in", "odd")
    assert (code, out, contents(tmp_path)) == (2, "", before)
    assert ODD_PROJECTS[text] in err
    assert len(err.splitlines()) <= 4


def test_recipes(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = zoo("new", "recipe", "mine")
    assert (code, out.splitlines()[0]) == (0, "mine.yaml")
    assert zoo("new", "recipe", "near.yaml", "--from", "vit-glyphs")[0] == 0
    for name, more in (("mine", []), ("near", ["--data.size", "100"])):
        text = (tmp_path / f"{name}.yaml").read_text()
        assert all(f"{word}: " in text for word in (f"# {name}", "# size", "time", "expected", "# data"))
        assert len(text.splitlines()) <= 30
        code, out, err = zoo("check", f"{name}.yaml", *more)
        assert (code, "recipe ok" in out) == (0, True), err
    model_text = recipe_files.find_recipe("vit-glyphs").read_text().split("\nmodel:")[1]
    assert (tmp_path / "near.yaml").read_text().endswith("\nmodel:" + model_text)
    assert "embedded and synthetic" in (tmp_path / "near.yaml").read_text()
    code, _, err = zoo("new", "recipe", "mine")
    assert (code, "mine.yaml exists" in err) == (2, True)


def test_it_needs_no_torch(tmp_path):
    code = (
        "import sys; from zoo.cli import main; main(['new', 'block', 'Fresh']); "
        "print(sorted({'torch', 'numpy', 'lightning', 'jsonargparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "zoo-fresh" / "pyproject.toml").is_file()


def test_the_wheel_contains_the_templates():
    """hatchling packs every file below a package that git does not ignore."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["zoo"]
    names = [f"{kind}.py.template" for kind in registry.KINDS]
    names += [
        "pyproject.toml.template",
        "README.md.template",
        "CHANGELOG.md.template",
        "contract.yml.template",
        "gitignore.template",
        "test_contract.py.template",
        "recipe.yaml.template",
        "LICENSE",
    ]
    assert sorted(path.name for path in new_command.TEMPLATES.iterdir()) == sorted(names)
    paths = [str(new_command.TEMPLATES / name) for name in names]
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout == ""


def test_entry_points_of_other_kinds_are_no_parts_to_a_package_s_tests(tmp_path):
    points = {"zoo.norm": "zoo.parts.norm:RMSNorm", "zoo.strategies": "no.such:Strategy", "zoo.recipes": "no.such"}
    text = "".join(f'[project.entry-points."{group}"]\nname = "{value}"\n' for group, value in points.items())
    (tmp_path / "pyproject.toml").write_text(f'{text}[project.entry-points.pytest11]\nname = "no.such.plugin"\n')
    (tmp_path / "tests").mkdir()
    test = shutil.copy(new_command.TEMPLATES / "test_contract.py.template", tmp_path / "tests" / "test_contract.py")
    assert runpy.run_path(test)["PARTS"] == [RMSNorm]
