"""Whatever a comparison can be refused for is refused before anything is written or trained, whichever its design."""

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_compare_scale import write_run

from zoo.cli import main
from zoo.compare import parallel_runs, run_comparison
from zoo.compare.plan import Point

Cost = namedtuple("Cost", "parameters flops")
DESIGNS = {
    "plain": ("lm-tiny", "--vary", "model.norm=rms,good"),
    "tuned": ("lm-tiny", "--vary", "model.norm=rms,good", "--tune", "model.lr=0.1,0.2"),
    "within time": ("lm-tiny", "--vary", "model.norm=rms,good", "--budget", "time=10m"),
    "scaled": ("lm-tiny", "--vary", "model.norm=rms,good", "--scale", "dim=64,96,128"),
    "attributed": ("lm-tiny", "vit-tiny", "--attribute"),
    "several recipes": ("lm-tiny", "vit-tiny", "--vary", "model.norm=rms,good"),
}


class Fits:
    """Configurations with a width, a norm, a block and a rate; the two recipes differ in two of them."""

    own = {"lm-tiny": {"norm": "rms", "block": "pre"}, "vit-tiny": {"norm": "good", "block": "post"}}  # noqa: RUF012

    def __init__(self, runs):
        self.runs = Path(runs)

    def point(self, words):
        usual = {"dim": 64, "lr": 0.1, **self.own[words[0]]}
        options = dict(usual)
        for word in words[1:]:
            if word.startswith("--model."):
                key, _, value = word.removeprefix("--model.").partition("=")
                options[key] = type(usual[key])(value)
        trainer = {"max_steps": 10, "val_check_interval": 5}
        steps = [word for word in words if word.startswith("--trainer.max_steps=")]
        trainer |= {"max_steps": int(steps[-1].partition("=")[2])} if steps else {}
        pieces = [f"{key}={value}" for key, value in sorted(options.items()) if value != usual[key]]
        config = {"model": {"class_path": "x.Toy", "init_args": options}, "data": {"class_path": "x.Data"}}
        return Point(self.runs, words[0], ",".join(pieces) or "default", {**config, "trainer": trainer})

    def changes(self, point, folder):
        return []

    def code(self, point):
        return {}


class Meter:
    def check(self, config):
        pass

    def goals(self, config):
        return "loss", {"loss": "min", "top1": "max"}

    def task_class(self, config):
        return SimpleNamespace(monitored_metrics={"loss": "min"})

    def cost(self, config):
        return Cost(1000, 100.0 * config["model"]["init_args"]["dim"] ** 1.5)

    def tokens_per_step(self, config):
        return 40.0

    def batches_per_epoch(self, config):
        return 10

    def data(self, config):
        split = object()
        return SimpleNamespace(datasets={"val": split, "test": split})


@pytest.fixture
def compare(monkeypatch, tmp_path, capsys):
    """The command; also which runs it started."""
    started = []

    def execute(jobs, options):
        for job in jobs:
            if not job.folder.exists():
                started.append(str(job.folder))
                write_run(job.folder, [])
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_comparison, "execute", execute)
    monkeypatch.setattr(run_comparison, "open_comparison", lambda options, words: (Fits(options.get("runs")), Meter()))
    monkeypatch.setattr(run_comparison, "write_report", lambda *arguments: None)

    def call(*words):
        started.clear()
        code = main(["compare", *words, "--seeds", "2"])
        return code, capsys.readouterr().err, list(started)

    return call


def snapshot(folder):
    """The content of every file, locks aside."""
    return {
        str(path): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def home(design):
    """The folder of a comparison of this design."""
    titles = {"scaled": "norm-scale", "attributed": "attribute-vit-tiny"}
    return Path("runs", "lm-tiny", "compare", titles.get(design, "norm"))


def damage_looks(design):
    home(design).mkdir(parents=True)
    (home(design) / "looks.json").write_text("{")
    (home(design) / "runs.json").write_text("{}")


def lose_looks(design):
    from zoo.compare import journal

    names = ("default", "norm=good", "dim=128", "dim=128,norm=good")
    question = journal.RunsQuestion("loss", "default", "last", seeds=(1, 2), variants=names)
    journal.append_event(
        home(design), journal.Event(journal.LOOK, question, 4, {"verdicts": dict.fromkeys(names, "better")})
    )


def exhaust_series(design):
    from zoo.compare import error_budget

    empty = error_budget.load_series(Path("error_budget.json"), 1)
    error_budget.save_series(Path("error_budget.json"), empty.with_entry(empty.entry("elsewhere", ["a"]), []))


REFUSALS = {
    "goal": (("--goal", "nope"), "--goal 'nope'", None),
    "test split": (("--at", "test"), "has no test split", None),
    "validations": (("--at", "last:5"), "will have 2 validations", None),
    "series": (("--series", "error_budget.json"), "series", exhaust_series),
    "damaged looks": ((), "is damaged", damage_looks),
    "lost looks": ((), "looks.json is gone", lose_looks),
    "report in a file": (("--out", "file"), "file: it is a file", lambda design: Path("file").write_text("")),
    "report below a file": (("--out", "file/x"), "file: it is a file", lambda design: Path("file").write_text("")),
    "devices": (("--jobs", "3"), "the runs need 1 each of their own", None),
}
ONE_RECIPE = ("series",)  # refused by name where several recipes or --attribute leave no meaning


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("design", DESIGNS)
def test_a_refusal_comes_before_everything_else(compare, monkeypatch, design, refusal, dry):
    words, message, prepare = REFUSALS[refusal]
    monkeypatch.setattr(parallel_runs, "visible_devices", lambda: ("0", "1"))
    if prepare is not None:
        prepare(design)
    before = snapshot(".")
    code, error, started = compare(*DESIGNS[design], *words, *(["--dry-run"] if dry else []))
    assert code == 2, error
    assert started == []
    assert snapshot(".") == before
    if not (refusal in ONE_RECIPE and design in ("attributed", "several recipes")):
        assert message in error


@pytest.mark.parametrize("design", [name for name in DESIGNS if name != "within time"])  # which measures speed
def test_what_is_not_refused_runs_and_is_recorded(compare, design):
    code, error, started = compare(*DESIGNS[design])
    assert code in (0, 1), error
    assert started
    assert json.loads((home(design) / "runs.json").read_text())["at"] == "last"
    assert (home(design) / "journal.jsonl").is_file()
