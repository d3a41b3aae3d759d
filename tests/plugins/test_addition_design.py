"""A package outside of the repository adds a design of comparisons, and changes no file of zoo."""

import shutil
import sys
from pathlib import Path

import pytest
from cli_parts import package

from tests.compare.fabricate import lay, ledger
from zoo.compare import run_comparison
from zoo.compare.run_records import RUNS_FILE, load_record
from zoo.conformance import checks

POINTS = "[zoo.design]\nTwice = zoo_p:Twice\n"
SOURCE = '''
from dataclasses import replace
from zoo.command_line import Option
from zoo.compare.design import Design, Procedure
from zoo.errors import UsageError

class Twice(Design):
    """Says how often it was asked for."""

    options = (Option("twice", "says so, so often", int, metavar="N", above=0, heading="Answer"),)
    no_target = "it counts no steps"
    procedure = "zoo_p:Counting"

class Counting(Procedure):
    def title(self, comparison, usual):
        return f"{usual}-twice"

    def command_lines(self, comparison, usual):
        if comparison.design_values["twice"] > 9:
            raise UsageError("--twice 10 is too often")
        return usual(comparison)

    def record(self, run):
        return {"often": run.comparison.design_values["twice"]}

    def complete(self, answer, home, record):
        return record.design["twice"]["often"]

    def sections(self, answer):
        from zoo.compare.document import Section

        return [Section("How often", items=[f"asked {answer.finding} times"])]

    def as_data(self, answer):
        return {"often": answer.finding}
'''
WORDS = ("compare", "lm-tiny", "--vary", "model.norm=layernorm,rmsnorm", "--seeds", "2")
HOME = Path("runs/lm-tiny/compare/norm-twice")


@pytest.fixture
def twice(site, monkeypatch, tmp_path):
    """Install the package, in a working folder of its own, where runs are only records."""

    def install(source=SOURCE, points=POINTS):
        package(site(), "zoo-p", points, source)
        site()

    def execute(jobs, options):
        for job in jobs:
            variant, seed = job.folder.parts[-2], int(job.folder.name[1:])
            path = lay(ledger(variant, seed, 1.7 + seed / 100), job.folder.parents[2])
            (path.parent / "finished.json").write_text("{}")
        return {}

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(run_comparison, "execute", execute)
    monkeypatch.setattr("zoo.compare.plan.verify_runs", lambda *arguments: None)
    yield install
    sys.modules.pop("zoo_p", None)


def test_it_is_listed_shown_and_in_the_help(twice, zoo):
    twice()
    assert "Says how often" in zoo("list", "design")[1]
    assert "zoo compare --help" in zoo("show", "design", "twice")[1]
    assert "--twice N" in zoo("compare", "--help")[1]


def test_it_records_reports_and_is_read_again(twice, zoo):
    twice()
    code, out, err = zoo(*WORDS, "--twice", "3")
    assert code in (0, 1), err
    assert "asked 3 times" in out
    assert load_record(HOME).design == {"twice": {"often": 3}}
    assert '"twice": {\n    "often": 3' in (HOME / "comparison.json").read_text()
    assert "How often" in (HOME / "comparison.html").read_text()
    assert "asked 3 times" in zoo("compare", str(HOME))[1]


@pytest.mark.parametrize(("words", "message"), [
    (("--twice", "10"), "--twice 10 is too often"), (("--twice", "0"), "'--twice' must be a whole number above 0"),
    (("--twice", "2", "--to", "loss=2"), "a target, 2, does not go with --twice: it counts no steps."),
])  # fmt: skip
def test_what_it_refuses_is_refused_before_a_run(twice, zoo, words, message):
    twice()
    code, _, err = zoo(*WORDS, *words)
    assert (code, message in err) == (2, True), err
    assert not list(Path().iterdir())


def test_a_file_may_ask_for_it(twice, zoo):
    twice()
    Path("often.yaml").write_text("recipe: lm-tiny\nvary: {model.norm: [layernorm, rmsnorm]}\nseeds: 2\ntwice: 4\n")
    assert "asked 4 times" in zoo("compare", "often.yaml")[1]


def test_without_the_package_its_folder_and_its_option_are_answered(twice, site, zoo):
    twice()
    zoo(*WORDS, "--twice", "3")
    shutil.rmtree(site() / "zoo_p-0.1.0.dist-info")
    site()
    assert "unknown design 'twice'" in zoo("compare", str(HOME))[2]
    assert "no option '--twice'" in zoo(*WORDS, "--twice", "3")[2]


@pytest.mark.parametrize("flaw", ["options = None", "options = (3,)", "def __init__(self): raise SystemExit(0)",
                                  "options = (Option('seeds', ''),)", "options = (Option('thrice', ''),)"])  # fmt: skip
def test_a_package_that_is_at_fault_leaves_comparisons_as_they_are(twice, zoo, flaw):
    twice(SOURCE.replace('    procedure = "zoo_p:Counting"\n', f'    procedure = "zoo_p:Counting"\n    {flaw}\n'))
    assert "--twice" not in zoo("compare", "--help")[1]
    code, _, err = zoo(*WORDS, "--dry-run")
    assert code == 0, err


@pytest.mark.parametrize(("flaw", "name"), [
    ("options = ()", "an_option_has_its_name"), ("options = (Option('seeds', ''),)", "an_option_has_its_name"),
    ("procedure = 'zoo_p:Counted'", "it_is_chosen"), ("procedure = 'zoo_p:Twice'", "it_is_chosen"),
])  # fmt: skip
def test_a_fault_is_found(twice, flaw, name):
    twice(SOURCE.replace('    procedure = "zoo_p:Counting"\n', f'    procedure = "zoo_p:Counting"\n    {flaw}\n'))
    import zoo_p

    outcomes = [check.outcome() for check in checks(zoo_p.Twice)]
    assert [outcome.name for outcome in outcomes if outcome.status == "FAIL"] == [name], outcomes


# options and folders of the package zoo-designs, which these tests run without
MISSING = [
    (*WORDS, "--scale", "dim=1,2,3"), (*WORDS, "--probe", "length=1,2"),
    ("compare", "lm-tiny", "vit-tiny", "--attribute"),
    ("compare", "lm-tiny", "vit-tiny", "--vary", "model.norm=layernorm,rmsnorm"), ("compare", "board"),
    ("compare", "file.yaml"), ("tensorboard", "board"), ("compare", "positions"),
]  # fmt: skip


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_what_a_package_brings_that_is_not_installed_is_answered_with_the_line_that_installs_it(
    zoo, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board").mkdir()
    for file in ("recipes.json", "x.tfevents"):
        (tmp_path / "board" / file).write_text("{}")
    (tmp_path / "file.yaml").write_text("recipe: lm-tiny\nvary: {model.norm: [a, b]}\nprobe: {length: 2}\n")
    code, _, err = zoo(*words)
    assert code == 2
    assert "zoo-designs has it and is not installed: pip install -e " in err


def test_a_plain_record_names_no_design(twice, zoo):
    zoo(*WORDS)
    home = Path("runs/lm-tiny/compare/norm")
    assert load_record(home).design == {}
    assert '"scale": {}' in (home / RUNS_FILE).read_text()
