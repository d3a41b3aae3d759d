"""`zoo compare --scale` from its command line to its table, with runs whose losses follow laws."""

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from zoo_designs import scale_runs

from tests.compare.fabricate import WHOLE
from zoo.cli import main
from zoo.compare import run_comparison
from zoo.compare.plan import Point
from zoo.errors import UsageError

Cost = namedtuple("Cost", "parameters flops")
PREFIX = "--model."


class FakeFits:
    """Configurations with a width, heads, a norm and a rate, without torch."""

    def __init__(self, runs):
        self.runs = Path(runs)

    def point(self, words):
        options = {"dim": 64, "heads": 2, "norm": "rms", "lr": 0.1, "init": "MuP"}
        for word in words[1:]:
            if word.startswith(PREFIX):
                key, _, value = word.removeprefix(PREFIX).partition("=")
                options[key] = type(options[key])(value)
        usual = {"dim": 64, "heads": 2, "norm": "rms", "lr": 0.1, "init": "MuP"}
        pieces = [f"{key}={value}" for key, value in sorted(options.items()) if value != usual[key]]
        options["init"] = {"class_path": f"x.{options['init']}"}
        config = {"model": {"class_path": "x.Toy", "init_args": options}, "data": {}, "trainer": {"max_steps": 10}}
        return Point(self.runs, words[0], ",".join(pieces) or "default", config)

    def changes(self, point, folder):
        return []

    def code(self, point):
        return {}


class FakeMeter:
    def batches_per_epoch(self, config):
        return None

    def check(self, config):
        pass

    def goals(self, config):
        return "loss", {"loss": "min", "rate": "max"}

    def task_class(self, config):
        return SimpleNamespace(monitored_metrics={"loss": "min", "rate": "max"})

    def cost(self, config):
        return Cost(1000, 100.0 * config["model"]["init_args"]["dim"] ** 1.5)

    def tokens_per_step(self, config):
        return 40.0


def write_run(folder, words):
    """The record of a finished run, whose loss is a law of its width; a better norm falls faster."""
    config = FakeFits(folder.parents[2]).point(("toy", *words)).config["model"]["init_args"]
    seed, flops = int(folder.name[1:]), FakeMeter().cost({"model": {"init_args": config}}).flops
    noise = 0.003 * np.random.default_rng([seed, *folder.parent.name.encode()]).standard_normal()
    exponent = 0.3 if config["norm"] == "good" else 0.2
    loss = 2.0 + 1.5 * (config["dim"] / 64) ** -exponent + noise + 0.1 * abs(config["lr"] - 0.1)
    reached = {"loss": loss, "rate": 1 / loss}
    record = {
        **WHOLE, "recipe": "toy", "variant": folder.parent.name, "seed": seed, "choices": config,
        "goals": {"loss": "min", "rate": "max"}, "data": {"class": "Toy", "fingerprint": "f"},
        "start": {"w": str(seed)}, "batches": {"digest": str(seed), "count": 1, "first": []}, "steps": 10,
        "tokens": 400, "validations": [{"step": step, "tokens": 40 * step, **reached} for step in (5, 10)],
        "best": reached,
        "last": reached, "finished": True, "cost": {"flops_per_token": flops, "seconds": 1.0},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "ledger.json").write_text(json.dumps(record))
    (folder / "finished.json").write_text("{}")


@pytest.fixture
def compare(monkeypatch, tmp_path, capsys):
    started = []

    def execute(jobs, options):
        for job in jobs:
            if not job.folder.exists():
                started.append(f"{job.folder.parent.name} {job.folder.name}")
                write_run(job.folder, [word for word in job.words if word.startswith(PREFIX)])
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_comparison, "execute", execute)
    monkeypatch.setattr(
        run_comparison, "open_comparison", lambda options, words: (FakeFits(options.get("runs")), FakeMeter())
    )
    monkeypatch.setattr(run_comparison, "write_report", lambda *arguments: None)

    def call(*words):
        started.clear()
        code = main(["compare", *words])
        output = capsys.readouterr()
        return code, output.out, output.err, list(started)

    return call


WORDS = ("toy", "--vary", "model.norm=rms,good", "--scale", "dim=64,160,96,128", "--seeds", "3")


def test_every_variant_is_run_at_every_size_and_the_largest_is_predicted(compare):
    code, out, _, started = compare(*WORDS)
    assert code == 0
    assert len(started) == 24
    assert started[-6:] == [f"dim=160,heads=5{norm} s{seed}" for seed in (1, 2, 3) for norm in ("", ",norm=good")]
    text = " ".join(out.split())
    assert "Sizes dim=64, dim=96 and dim=128 were fitted; dim=160 was predicted from them and measured." in text
    assert "One learning rate for all sizes, by muP" in text
    assert ": predicted better, measured better; the difference is inside of its prediction." in text
    again = compare("runs/toy/compare/norm-scale", "--json")
    content = json.loads(again[1])
    assert (again[0], again[3]) == (0, [])
    assert content["scale"]["sizes"] == ["dim=64", "dim=96", "dim=128", "dim=160"]
    assert content["scale"]["variants"][1]["as_predicted"] is True
    assert content["baseline"] == "dim=160,heads=5"
    assert compare(*WORDS)[3] == []


def test_variants_are_tuned_at_each_size_with_seeds_of_their_own(compare):
    code, out, _, started = compare(*WORDS, "--tune", "model.lr=0.1,0.2,0.05", "--seeds", "2", "--json")
    assert code == 0
    tuning = [run for run in started if run.endswith((" s0", " s1001"))]
    assert len(tuning) == 4 * 2 * 3 * 2
    assert len(started) == len(tuning) + 16
    content = json.loads(out)
    assert content["tuning"]["seeds"] == [0, 1001]
    assert content["tuning"]["option"] == "model.lr"
    assert content["variants"][1]["rate_of_baseline"] is False
    assert "The learning rate was chosen for each variant at each size." in content["scale"]["notes"]
    assert "Tuning at all sizes took 48 runs, 480 steps, 48 s of training." in content["scale"]["notes"]
    assert "Tuning of all variants took 12 runs" in " ".join(compare("runs/toy/compare/norm-scale")[1].split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--goal", "rate"), "--scale fits a law of loss, and rate is better the higher it is"),
        (("--goal", "speed"), "--goal 'speed' is no figure of the task"),
        (("--until", "decided"), "--until does not go with --scale"),
        (("--model.init", "FanIn", "--tune-seeds", "0"), "--tune-seeds"),
    ],
)
def test_what_does_not_go_with_sizes_is_refused_before_anything_runs(compare, more, message):
    code, _, err, started = compare(*WORDS, *more)
    assert (code, started) == (2, [])
    assert message in err


def test_a_dry_run_lists_all_sizes(compare):
    code, out, _, started = compare(*WORDS, "--dry-run")
    assert (code, started) == (0, [])
    assert out.count("missing") == 24


def test_a_shard_has_all_sizes_of_its_seeds(compare):
    code, out, _, started = compare(*WORDS, "--shard", "2/3")
    assert code == 0
    assert len(started) == 8
    assert {run.rpartition(" ")[2] for run in started} == {"s2"}
    assert "8 of 24 runs are finished" in out


def test_sizes_of_equal_compute_are_refused_before_training():
    scale_runs.check_compute(["dim=8", "dim=16", "dim=24"], [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match=r"dropout=0\.1 and dropout=0\.2 take the same FLOPs, 2"):
        scale_runs.check_compute(["dropout=0", "dropout=0.1", "dropout=0.2"], [1.0, 2.0, 2.0])
