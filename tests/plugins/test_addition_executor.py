"""A package outside of the repository adds an executor of comparisons, and changes no file of zoo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_parts import package

from zoo.compare import executor
from zoo.compare.executor import COUNT, Executor, Resource
from zoo.conformance import checks
from zoo.conformance.executor import start_jobs

POINTS = "[zoo.executor]\nFlux = zoo_p:Flux\n"
SOURCE = '''
from zoo.compare.executor import COUNT, Executor, Resource

class Flux(Executor):
    """Jobs of a queue called flux. Resources: nodes, bank."""

    resources = (Resource("nodes", COUNT, "2"), Resource("bank", "[a-z]+", "ours", "the bank that pays"))
    stand_ins = {"flux": "#!/bin/sh\\nfor n in 1 2 3; do sh \\"$4\\" $n >>flux-$n.log 2>&1; done\\nexit 0\\n"}

    def files(self, command):
        folder = self.folder(command)
        asked = command.resources
        return {
            f"{folder}/submit.sh": f"flux --nodes={asked.get('nodes', 1)} --bank={asked['bank']} "
            f"--array=1-{command.shards} {folder}/shard.sh\\n{command.text}\\n",
            f"{folder}/shard.sh": f'exec {command.text} --shard "$1/{command.shards}"\\n',
        }
'''
WORDS = ("compare", "lm-tiny", "--vary", "model.position=rope,alibi", "--seeds", "3", "--emit")


@pytest.fixture
def flux(site, monkeypatch, tmp_path):
    """Install the package, in a working folder of its own."""

    def install(source=SOURCE):
        package(site(), "zoo-p", POINTS, source)
        site()

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield install
    sys.modules.pop("zoo_p", None)


def test_it_is_listed_shown_completed_and_known_to_the_doctor(flux, zoo):
    flux()
    assert "Jobs of a queue called flux" in zoo("list", "executor")[1]
    out = zoo("show", "executor", "flux")[1]
    assert "Resources: nodes, bank." in out
    assert "zoo compare RECIPE --vary OPTION=VALUE,VALUE --emit flux" in out
    assert "flux" in zoo("completion", "bash")[1]
    assert "Flux" in zoo("doctor")[1]


def test_its_jobs_are_written_with_its_resources_and_run(flux, zoo, tmp_path, monkeypatch):
    flux()
    code, out, err = zoo(*WORDS, "flux", "--resources", "nodes=4,bank=ours")
    assert code == 0, err
    assert out == "position-flux/submit.sh\nposition-flux/shard.sh\n\nsubmit  sh position-flux/submit.sh\n"
    assert (
        Path("position-flux/submit.sh").read_text().startswith("flux --nodes=4 --bank=ours --array=1-3 position-flux")
    )
    for name, text in {"zoo": '#!/bin/sh\necho "$@" >>calls\n', **executor.find_executor("FLUX").stand_ins}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    subprocess.run(["sh", "position-flux/submit.sh"], check=True)
    command = "compare lm-tiny --vary model.position=rope,alibi --seeds 3"
    expected = [*(f"{command} --shard {number}/3" for number in (1, 2, 3)), command]
    assert Path("calls").read_text().splitlines() == expected


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ("nodes=0,bank=ours", "--resources 'nodes=0': write it as nodes=2"),
        ("bnak=ours", "jobs for flux have no 'bnak'. Did you mean 'bank'? There are: nodes, bank."),
        ("nodes=2", "--emit flux needs the bank that pays: --resources bank=ours"),
    ],
)
def test_wrong_resources_are_refused_in_its_words(flux, zoo, resources, message):
    flux()
    code, _, err = zoo(*WORDS, "flux", "--resources", resources)
    assert (code, message in err) == (2, True), err
    assert not list(Path().iterdir())


def test_it_keeps_the_contract(flux):
    flux()
    import zoo_p

    outcomes = {check.name: check.outcome() for check in checks(zoo_p.Flux) if check.name != "description_is_light"}
    assert {name: outcome.sentence for name, outcome in outcomes.items() if outcome.status != "ok"} == {}


def test_a_new_package_of_one_writes_jobs(zoo, site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo("new", "executor", "Otters")[0] == 0
    body = Path("zoo-otters/src/zoo_otters/__init__.py").read_text()
    package(site(), "zoo-otters", "[zoo.executor]\nOtters = zoo_otters:Otters\n", body)
    site()
    code, _, err = zoo(*WORDS, "otters", "--resources", "slots=2")
    assert code == 0, err
    assert "seq 3 | parallel --jobs 2 sh position-otters/shard.sh {}" in Path("position-otters/run.sh").read_text()
    sys.modules.pop("zoo_otters", None)


# what a class can say wrongly of itself, and what `files` can return
FLAWS = {
    "init fails": "def __init__(self): raise RuntimeError('x')",
    "init exits": "def __init__(self): raise SystemExit(0)",
    "init wants": "def __init__(self, x): pass",
    **{f"resources {value}": f"resources = {value}" for value in (
        "None", "3", "({},)", "[Resource('a', 'b', 'b')]", "(Resource('a b', 'b', 'b'),)", "(Resource('a', '(', 'b'),)",
        "(Resource('a', 'b', 'c'),)", "(Resource('a', None, 'c'),)")},
    **{f"{name} {value}": f"{name} = {value}" for name in ("verb", "start") for value in ("None", "3")},
    **{f"files {value}": f"def files(self, command): return {value}" for value in (
        "None", "{}", "[]", "'text'", "{'a': 'x'}", "{'/tmp/a': 'x'}", "{self.folder(command) + '/../../a': 'x'}",
        "{self.folder(command) + '/a': 3}", "{3: 'x'}")},
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_a_package_that_is_at_fault_is_named(flux, zoo, name):
    head = 'from zoo.compare.executor import Executor, Resource\n\nclass Flux(Executor):\n    """Jobs."""\n'
    flux(f"{head}    {FLAWS[name]}\n")
    code, _, err = zoo(*WORDS, "flux")
    assert (code, "flux" in err.lower(), "Traceback" in err) == (3, True, False), err
    assert not list(Path().iterdir())
    assert zoo("list", "executor")[0] == 0
    assert zoo(*WORDS, "sh")[0] == 0


class OneAfterAnother(Executor):
    """One job after the other. Resources: cores."""

    resources = (Resource("cores", COUNT, "1"),)
    stand_ins = {}  # noqa: RUF012
    lines = ("{shards}", "{command}")
    shard = '{command} --shard "{number}/{shards}" >>{folder}/{number}.log 2>&1'
    numbers = staticmethod(lambda shards: range(1, shards + 1))

    def files(self, command):
        folder = self.folder(command)
        values = {"command": command.text, "shards": command.shards, "folder": folder}
        shards = "\n".join(self.shard.format(number=number, **values) for number in self.numbers(command.shards))
        text = "\n".join(self.lines).format(**{**values, "shards": shards})
        return {f"{folder}/run.sh": text + "\n"}


# a fault of what is emitted, and the check that finds it with a word of its sentence
SHARD = '{command} --shard "{number}/{shards}"'
FAULTS = {
    "every_seed_is_covered_once": {
        "a shard is left out": ({"numbers": staticmethod(lambda shards: range(1, shards))}, "3/3"),
        "a shard is run twice": ({"numbers": staticmethod(lambda shards: [1, 1, 2, 3])}, "1/3"),
        "shards count from zero": ({"numbers": staticmethod(range)}, "0/3"),
        "there is no table": ({"lines": ("{shards}",)}, "expected"),
        "the table comes before the shards": ({"lines": ("{command}", "{shards}")}, "wait"),
        "the table waits for no shard": ({"shard": f"{SHARD} &", "lines": ("{shards}", "{command}", "wait")}, "wait"),
        "nothing is called": ({"lines": ("true",)}, "calls no zoo"),
    },
    "words_arrive": {
        "the words are quoted once less": ({"lines": ("{shards}", 'eval "{command}"')}, "zoo is called with"),
        "a word is added": ({"lines": ("{shards}", "{command} --overwrite")}, "--overwrite"),
    },
    "failures_are_made_up_for": {
        "a failure ends it": ({"lines": ("set -e", "{shards}", "{command}")}, "no call without"),
        "it starts once": ({"lines": ("mkdir started || exit 1", "{shards}", "{command}")}, "second"),
    },
    "output_is_kept": {
        "output is thrown away": ({"shard": f"{SHARD} >/dev/null 2>&1"}, "kept"),
        "a second start overwrites logs": ({"shard": SHARD + " >{folder}/{number}.log 2>&1"}, "kept"),
    },
    "files_are_relocatable": {
        "this folder is written down": ({"lines": ("cd {cwd}", "{shards}", "{command}")}, "path"),
        "the files have the time": ({"lines": ("# {time}", "{shards}", "{command}")}, "other files"),
    },
    "resources_are_documented": {
        "a resource is unknown to show": ({"resources": (Resource("walltime", COUNT, "1"),)}, "walltime"),
    },
}


@pytest.mark.parametrize(
    ("check_name", "name"), [(check_name, name) for check_name, faults in FAULTS.items() for name in faults]
)
def test_a_fault_of_what_is_emitted_is_found(check_name, name):
    fields, word = FAULTS[check_name][name]
    if "lines" in fields:
        times, lines = iter(range(100)), fields["lines"]

        def changing_lines(self):
            return [line.replace("{cwd}", str(Path.cwd())).replace("{time}", str(next(times))) for line in lines]

        fields = {**fields, "lines": property(changing_lines)}
    faulty = type("OneAfterAnother", (OneAfterAnother,), {**fields, "__doc__": OneAfterAnother.__doc__})
    outcome = next(check for check in checks(faulty) if check.name == check_name).outcome()
    assert (outcome.status, word in outcome.sentence) == ("FAIL", True), outcome.sentence


def test_without_a_fault_every_check_passes(tmp_path):
    outcomes = [check.outcome() for check in checks(OneAfterAnother) if check.name != "description_is_light"]
    assert [outcome.sentence for outcome in outcomes if outcome.status != "ok"] == []
    calls, _ = start_jobs(OneAfterAnother(), tmp_path)
    assert len(calls) == 4
