"""A package outside of the repository adds an executor of comparisons, and changes no file of zoo."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_parts import package

from zoo.compare.executor import COUNT, Executor, Resource
from zoo.compare.parallel_runs import Processes
from zoo.conformance import checks

POINTS = "[zoo.executor]\nFlux = zoo_p:Flux\n"
SOURCE = '''
from concurrent.futures import Future
from pathlib import Path
from zoo.compare.executor import COUNT, Executor, Resource
from zoo.errors import UsageError

class Flux(Executor):
    """A queue called flux. Resources: nodes, bank."""

    resources = (Resource("nodes", COUNT, "2"), Resource("bank", "[a-z]+", "ours"))

    def check(self, request):
        if "bank" not in request.resources:
            raise UsageError("flux needs the bank that pays: --resources bank=ours")

    def start(self, request):
        Path("requests").write_text(f"{request.jobs} {request.address} {dict(request.resources)}")

    def submit(self, run):
        future = Future()
        future.set_result(run())
        return future
'''
WORDS = ("compare", "lm-tiny", "--vary", "model.position=rope,alibi", "--seeds", "1", "--executor")


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


@pytest.mark.usefixtures("forked_children")
def test_it_is_listed_shown_completed_and_known_to_the_doctor(flux, zoo):
    flux()
    assert "A queue called flux" in zoo("list", "executor")[1]
    out = zoo("show", "executor", "flux")[1]
    assert "Resources: nodes, bank." in out
    assert "zoo compare RECIPE --vary OPTION=VALUE,VALUE --executor flux" in out
    assert "flux" in zoo("completion", "bash")[1]
    assert "Flux" in zoo("doctor")[1]


@pytest.mark.usefixtures("forked_runs")
def test_it_does_the_runs_with_what_was_requested(flux, zoo):
    flux()
    options = (
        "--trainer.max_steps=1",
        "--model.dim=16",
        "--model.depth=1",
        "--trainer.limit_val_batches=1",
        "--jobs=3",
    )
    _, out, err = zoo(*WORDS, "flux:here:1", "--resources", "nodes=4,bank=ours", *options)
    assert "2/2" in out, out + err
    assert Path("requests").read_text() == "3 here:1 {'nodes': '4', 'bank': 'ours'}"


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ("nodes=0,bank=ours", "--resources 'nodes=0': write it as nodes=2"),
        ("bnak=ours", "runs on flux have no 'bnak'. Did you mean 'bank'? There are: nodes, bank."),
        ("bank=ours,bank=ours", "--resources: bank is named twice."),
        ("nodes=2", "flux needs the bank that pays: --resources bank=ours"),
    ],
)
def test_wrong_resources_are_refused_in_its_words(flux, zoo, resources, message):
    flux()
    code, _, err = zoo(*WORDS, "flux", "--resources", resources)
    assert (code, message in err) == (2, True), err
    assert not list(Path().iterdir())


# what a class can say wrongly of itself
FLAWS = {
    "init fails": "def __init__(self): raise RuntimeError('x')",
    "init exits": "def __init__(self): raise SystemExit(0)",
    "init wants": "def __init__(self, x): pass",
    **{f"resources {value}": f"resources = {value}" for value in (
        "None", "3", "({},)", "[Resource('a', 'b', 'b')]", "(Resource('a b', 'b', 'b'),)", "(Resource('a', '(', 'b'),)",
        "(Resource('a', 'b', 'c'),)", "(Resource('a', None, 'c'),)")},
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_a_package_that_is_at_fault_is_named(flux, zoo, name):
    head = 'from zoo.compare.executor import Executor, Resource\n\nclass Flux(Executor):\n    """A queue."""\n'
    flux(f"{head}    {FLAWS[name]}\n")
    code, _, err = zoo(*WORDS, "flux")
    assert (code, "flux" in err.lower(), "Traceback" in err) == (3, True, False), err
    assert not list(Path().iterdir())
    assert zoo("list", "executor")[0] == 0


class Threads(Executor):
    """Threads of this process. Resources: cores."""

    resources = (Resource("cores", COUNT, "1"),)
    workers, waits, passes = 2, True, True

    def start(self, request):
        self.stopping, self.pool = threading.Event(), ThreadPoolExecutor(self.workers)

    def submit(self, run):
        return self.pool.submit(self.call, run)

    def call(self, run):
        return run(lambda: 2 if self.passes and self.stopping.is_set() else 0)

    def stop(self):
        self.stopping.set()
        self.pool.shutdown(wait=self.waits, cancel_futures=True)


def fail(self, *_):
    raise RuntimeError("no")


def call_twice(self, run):
    run()
    return run()


def start_once(self, request):
    assert not hasattr(type(self), "was_started"), "started twice"
    type(self).was_started = True
    Threads.start(self, request)


PROMISES = ("every_run_is_done", "stop_reaches_the_runs", "it_starts_again", "resources_are_documented")
# a fault of an executor, and the check that finds it with a word of its sentence
FAULTS = {
    "every_run_is_done": {
        "a run is called twice": ({"call": call_twice}, "has noted"),
        "too many at once": ({"workers": 5}, "at once"),
        "the result is lost": ({"call": lambda self, run: run() and None}, "future of run"),
        "a failure is hidden": ({"call": lambda self, run: run() if run.number > 0 else 0}, "future of run -4"),
        "it submits nothing": ({"submit": fail}, "no"),
    },
    "stop_reaches_the_runs": {
        "the stop does not wait": (
            {"waits": False, "call": lambda self, run: run(lambda: time.sleep(0.3) or 2)},
            "stop",
        ),
    },
    "it_starts_again": {"it starts once": ({"start": start_once}, "started twice")},
    "resources_are_documented": {
        "a resource is unknown to show": ({"resources": (Resource("walltime", COUNT, "1"),)}, "walltime"),
    },
}


@pytest.mark.parametrize(
    ("check_name", "name"), [(check_name, name) for check_name, faults in FAULTS.items() for name in faults]
)
def test_a_fault_is_found(check_name, name):
    fields, word = FAULTS[check_name][name]
    faulty = type("Threads", (Threads,), {**fields, "__doc__": Threads.__doc__})
    outcome = next(check for check in checks(faulty) if check.name == check_name).outcome()
    assert (outcome.status, word in outcome.sentence) == ("FAIL", True), outcome.sentence


@pytest.mark.parametrize("part", [Threads, Processes])
def test_without_a_fault_every_check_passes(part):
    outcomes = [check.outcome() for check in checks(part) if check.name != "description_is_light"]
    assert [outcome.sentence for outcome in outcomes if outcome.status != "ok"] == []


def test_a_new_package_of_one_keeps_the_contract(zoo, site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo("new", "executor", "Otters")[0] == 0
    body = Path("zoo-otters/src/zoo_otters/__init__.py").read_text()
    package(site(), "zoo-otters", "[zoo.executor]\nOtters = zoo_otters:Otters\n", body)
    site()
    import zoo_otters

    outcomes = {check.name: check.outcome() for check in checks(zoo_otters.Otters) if check.name in PROMISES}
    assert {name: outcome.sentence for name, outcome in outcomes.items() if outcome.status != "ok"} == {}
    sys.modules.pop("zoo_otters", None)
