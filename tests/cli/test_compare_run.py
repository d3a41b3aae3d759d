"""`zoo compare` from its command line to its table."""

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock, Timeout

from tests.compare.fabricate import WHOLE
from zoo.cli import main
from zoo.compare import error_budget, journal, run_comparison
from zoo.compare.plan import Point


def test_a_shard_whose_others_are_missing_prints_no_table(zoo, work, forked_runs):
    words = ["compare", "./lm-toy.yaml", "--vary", "model.norm=rmsnorm,layernorm", "--seeds", "1"]
    code, out, err = zoo(*words, "--shard", "2/2")  # the second of two seeds
    assert code == 0, err
    assert "0 of 2 runs are finished; the others belong to other shards." in out + err
    assert "verdict" not in out
    assert not list(work.glob("runs/**/comparison.html"))
    code, out, err = zoo(*words, "--shard", "1/2")
    assert code == 0, err
    assert "verdict" in out
    assert len(list(work.glob("runs/**/comparison.html"))) == 1


class FakeFits:
    """Configurations of a recipe with a norm and a number of steps, without torch."""

    def __init__(self, runs):
        self.runs = Path(runs)

    def point(self, words):
        options = dict(word.removeprefix("--").split("=") for word in words[1:] if "=" in word)
        norm, steps = options.get("model.norm", "default"), int(options.get("trainer.max_steps", 1))
        model = {"class_path": "x.Toy", "init_args": {"norm": norm}}
        changes = {"norm": norm} if norm != "default" else {}
        changes |= {"max_steps": steps} if steps != 1 else {}
        name = ",".join(f"{key}={value}" for key, value in changes.items()) or "default"
        return Point(self.runs, words[0], name, {"model": model, "data": {}, "trainer": {"max_steps": steps}})

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
        return "loss", {"loss": "min"}

    def task_class(self, config):
        return SimpleNamespace(monitored_metrics={"loss": "min"})


def write_run(folder, loss):
    """The record of a finished run."""
    seed, reached = int(folder.name[1:]), {"loss": loss}
    record = {
        **WHOLE, "recipe": "toy", "variant": folder.parent.name, "seed": seed,
        "choices": {"norm": folder.parent.name.partition(",")[0].rpartition("=")[2]}, "goals": {"loss": "min"},
        "data": {"class": "Toy", "fingerprint": "f"},
        "start": {"w": str(seed)}, "batches": {"digest": str(seed), "count": 1, "first": []}, "steps": 1, "tokens": 10,
        "validations": [{"step": 1, "tokens": 10, **reached}], "best": reached, "last": reached, "finished": True,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "ledger.json").write_text(json.dumps(record))
    (folder / "finished.json").write_text("{}")


@pytest.fixture
def compare(monkeypatch, tmp_path, capsys):
    """`zoo compare toy --vary model.norm=a,…` whose runs have a loss of 2, an effect by variant, and some noise."""
    effects, noise, started = {"norm=good": -0.2, "norm=bad": 0.2, "norm=weak": -0.08}, 0.05, []

    def execute(jobs, options):
        for job in jobs:
            if not job.folder.exists():
                variant, seed = job.folder.parent.name, int(job.folder.name[1:])
                started.append(f"{variant} s{seed}")
                random = np.random.default_rng([seed, *variant.encode()])
                write_run(job.folder, 2.0 + effects.get(variant, 0.0) + noise * random.standard_normal())
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
        return code, capsys.readouterr().out, list(started)

    return call


def test_until_decided_drops_what_is_decided(compare):
    words = ("toy", "--vary", "model.norm=default,good,weak,same", "--until", "decided", "--seeds", "20", "--exit-code")
    code, out, started = compare(*words)
    assert code == 10
    seeds = Counter(run.rpartition(" ")[0] for run in started)
    assert 8 <= seeds["norm=good"] < seeds["norm=weak"] == seeds["default"] <= 20
    assert "norm=good · better" in out
    assert "norm=weak · undecided" in out
    assert seeds["norm=same"] < seeds["default"]
    assert "norm=same · undecided: more than 20 seeds would be needed" in out
    assert "Test: sequential. It assumes: differences are symmetric" in " ".join(out.split())
    looks = json.loads(Path("runs/toy/compare/norm/looks.json").read_text())["looks"]
    assert sum(look["spent"] for look in looks) == pytest.approx(0.045)
    again = compare(*words)
    assert (again[0], again[2]) == (10, [])
    assert len(json.loads(Path("runs/toy/compare/norm/looks.json").read_text())["looks"]) == len(looks)


def test_planned_looks_drop_what_is_decided_and_end_with_the_plan(compare):
    words = ("toy", "--vary", "model.norm=default,good,same", "--looks", "5,10", "--exit-code")
    assert "differences of" in compare(*words, "--dry-run")[1]
    code, out, started = compare(*words)
    seeds = Counter(run.rpartition(" ")[0] for run in started)
    assert (code, seeds["default"], seeds["norm=same"]) == (10, 10, 10)
    assert seeds["norm=good"] in (5, 10)
    assert "5 seeds  norm=same · undecided" in out
    looks = json.loads(Path("runs/toy/compare/norm/looks.json").read_text())["looks"]
    assert [(look["test"], look["planned"]) for look in looks] == [("t", [5, 10])] * 2
    assert sum(look["spent"] for look in looks) == pytest.approx(0.045)
    assert compare(*words)[2] == []
    assert main(["compare", *words, "--seeds", "5"]) == 2
    assert main(["compare", *words[:3], "--looks", "10,5"]) == 2


@pytest.mark.parametrize("when", [(), ("--until", "decided"), ("--looks", "3,5")])
def test_the_test_split_is_measured_before_every_look(compare, monkeypatch, when):
    def measure(folders, trusted, report):
        for folder in folders:
            content = {"untouched": True, "figures": {"loss": 3.0 + 0.1 * ("good" in str(folder))}}
            (folder / "test.json").write_text(json.dumps({**content, "digest": folder.name[1:]}))

    monkeypatch.setattr(run_comparison, "measure_test_figures", measure)
    monkeypatch.setattr(run_comparison.prepare_runs, "check_test_split", lambda arms, meter: None)
    code, out, _ = compare("toy", "--vary", "model.norm=default,good", "--at", "test", *when, "--json")
    assert code == 0
    assert {row["mean"] for row in json.loads(out)["variants"]} == {3.0, 3.1}


def test_until_decided_with_a_margin_ends_with_as_good_as(compare):
    words = ("--until", "decided", "--margin", "0.1", "--exit-code")
    code, out, started = compare("toy", "--vary", "model.norm=default,same", *words)
    assert code == 12
    assert "As good as norm=default within 0.1 nats: norm=same." in " ".join(out.split())
    assert 12 <= len(started) < 40


def test_seeds_added_after_a_look_spend_what_it_left(compare):
    words = ("toy", "--vary", "model.norm=default,same")
    _, out, _ = compare(*words, "--seeds", "5")
    assert "Look 1 at this comparison: verdicts are false with a probability of at most 0.04" in " ".join(out.split())
    content = json.loads(compare(*words, "--seeds", "12", "--json")[1])
    assert (content["test"]["name"], content["test"]["level"]) == ("sequential", pytest.approx(0.008))
    assert [look["test"] for look in content["looks"]] == ["t", "sequential"]
    goal = json.loads(compare("runs/toy/compare/norm", "--at", "best", "--json")[1])
    assert goal["test"]["level"] == pytest.approx(0.0016)
    assert sum(look["spent"] for look in goal["looks"]) < 0.05


@pytest.mark.parametrize(
    ("variant", "options", "code", "outcome"),
    [("good", (), 10, "better"), ("bad", (), 11, "worse"), ("same", ("--margin", "0.2"), 12, "as good as"),
     ("same", (), 13, "undecided")],
)  # fmt: skip
def test_exit_codes_are_those_of_the_outcome(compare, variant, options, code, outcome):
    words = ("toy", "--vary", f"model.norm=default,{variant}", "--seeds", "8", *options)
    result = compare(*words, "--json", "--exit-code")
    content = json.loads(result[1])
    assert (result[0], content["outcome"], content["exit_code"]) == (code, outcome, code)
    assert compare(*words)[0] == 0
    (row,) = [each for each in content["variants"] if each["variant"] != "default"]
    assert set(row["differences"]) == {str(seed) for seed in range(1, 9)}
    assert row["difference"] == pytest.approx(np.mean(list(row["differences"].values())))


def test_what_cannot_be_compared_has_a_code_of_its_own(compare):
    words = ("toy", "--vary", "model.norm=default,same", "--seeds", "3")
    compare(*words)
    for path in Path("runs").rglob("norm=same/*/ledger.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"class": "Toy", "fingerprint": "other"}}))
    assert compare(*words)[0] == 1
    code, out, _ = compare(*words, "--exit-code", "--json")
    assert (code, json.loads(out)["outcome"]) == (14, "not comparable")


def test_a_series_divides_its_budget(compare, capsys):
    words = ("toy", "--seeds", "8", "--series", "tries.json", "--json")
    first = json.loads(compare(*words, "--vary", "model.norm=default,same", "--tries", "2", "--runs", "one")[1])
    assert first["test"]["level"] == pytest.approx(0.025 * 0.8)
    second = json.loads(compare(*words, "--vary", "model.norm=default,good", "--runs", "two")[1])
    assert second["outcome"] == "better"
    assert compare(*words, "--vary", "model.norm=default,bad", "--runs", "three")[0] == 2
    assert main(["compare", "toy", "--vary", "model.norm=default,bad", "--tries", "9"]) == 2
    assert "add --series FILE" in capsys.readouterr().err
    entries = json.loads(Path("tries.json").read_text())["entries"]
    assert [entry["decided"] for entry in entries] == [[], ["norm=good"]]


def test_options_that_exclude_each_other_are_refused(compare, capsys):
    for words, message in (
        (("toy", "--vary", "model.norm=a,b", "--until", "decided", "--shard", "1/2"), "leave one out"),
        (("toy", "--vary", "model.norm=a,b", "--margin", "-1"), "--margin"),
        (("toy", "--vary", "model.norm=a,b", "--tune-seeds", "3"), "add --tune OPTION=VALUE,VALUE"),
    ):
        assert main(["compare", *words]) == 2
        assert message in capsys.readouterr().err


FOLDER = Path("runs/toy/compare/norm")
WORDS = ("toy", "--vary", "model.norm=default,same,good")


def test_a_comparison_with_other_runs_of_its_baseline_has_a_folder_of_its_own(compare):
    for words in ((), ("--trainer.max_steps=9",), ("--baseline", "norm=good"), ("--trainer.max_steps=7",)):
        compare(*WORDS, "--seeds", "3", *words)
    names = {path.name: {row["variant"] for row in json.loads(compare(str(path), "--json")[1])["variants"]}
             for path in FOLDER.parent.iterdir()}  # fmt: skip
    steps = {"norm,max_steps=9": "max_steps=9", "norm,max_steps=7": "max_steps=7"}
    assert names == {
        "norm": {"norm=good", "default", "norm=same"},  # the same runs: their looks spend together
        **{name: {piece, f"norm=same,{piece}", f"norm=good,{piece}"} for name, piece in steps.items()},
    }


def test_a_series_cannot_begin_after_a_look(compare, capsys):
    compare(*WORDS)
    for words in ((*WORDS, "--series", "s.json"), (str(FOLDER), "--series", "s.json")):
        code, _, started = compare(*words)
        assert (code, started) == (2, [])
    assert main(["compare", *WORDS, "--series", "s.json"]) == 2
    assert (
        "an earlier look at this comparison could spend 0.05, and the series grants it 0.001" in capsys.readouterr().err
    )


def test_looks_that_are_gone_are_missed(compare, capsys):
    compare(*WORDS, "--seeds", "4")
    (FOLDER / "looks.json").unlink()
    assert main(["compare", *WORDS, "--seeds", "5"]) == 2
    assert "looks.json is gone" in capsys.readouterr().err


def test_what_was_changed_after_a_look_is_said_and_reported_elsewhere(compare):
    compare(*WORDS)
    report = json.loads(compare(*WORDS, "--margin", "0.1", "--test", "permutation", "--json")[1])
    assert report["late_choices"] == [
        "--margin 0.1 instead of none after 1 look", "--test permutation instead of t after 1 look",
    ]  # fmt: skip
    fewer = json.loads(compare("toy", "--vary", "model.norm=default,good", "--json")[1])
    assert fewer["late_choices"] == ["variants, of which left out norm=same after 2 looks"]
    events = journal.read_journal(FOLDER)[0]
    first, second = events[0].question, events[2].question
    assert (first.margin, second.margin, second.test) == (None, 0.1, "permutation")
    assert journal.report_folder(FOLDER, events, second) == FOLDER / "margin=0.1,test=permutation"
    assert journal.report_folder(FOLDER, events, events[-1].question).name.startswith("variants=default")
    assert journal.report_folder(FOLDER, events, first) == FOLDER


def test_an_unknown_goal_and_a_test_that_would_not_count_are_refused_before_anything_runs(compare, capsys):
    assert main(["compare", *WORDS, "--to", "los=3"]) == 2
    assert "--to 'los' is no figure of the task. Did you mean 'loss'?" in capsys.readouterr().err
    assert main(["compare", *WORDS, "--until", "decided", "--test", "permutation"]) == 2
    assert "--test permutation does not go with --until decided" in capsys.readouterr().err
    code, _, started = compare(*WORDS, "--goal", "los")
    assert (code, started) == (2, [])


def test_a_file_of_a_comparison_is_changed_by_one_process_at_a_time(tmp_path):
    path = tmp_path / "new" / "looks.json"
    with error_budget.hold_lock(path), pytest.raises(Timeout):
        FileLock(path.with_name(".looks.json.lock"), timeout=0).acquire()
    with error_budget.hold_lock(path):
        pass
    with error_budget.hold_lock(Path("/proc/none/looks.json")):  # a folder that cannot be written
        pass


def test_runs_of_an_earlier_look_that_are_gone_or_made_again_are_named(compare):
    compare(*WORDS)
    assert json.loads(compare(*WORDS, "--json")[1])["late_choices"] == []
    shutil.rmtree("runs/toy/norm=good/s3")
    fewer = json.loads(compare(str(FOLDER), "--json")[1])
    assert fewer["late_choices"] == ["runs, of which removed norm=good s3 after 2 looks"]
    _, _, started = compare(*WORDS)
    assert started == ["norm=good s3"]
    assert json.loads(compare(str(FOLDER), "--json")[1])["late_choices"] == []  # the same figure as before
    path = Path("runs/toy/norm=good/s3/ledger.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "last": {"loss": 1.5}}))
    (phrase,) = json.loads(compare(str(FOLDER), "--json")[1])["late_choices"]
    assert phrase.startswith("runs, of which made again with another figure norm=good s3 (1.")
    assert phrase.endswith(", now 1.5) after 5 looks")
    assert json.loads(compare(str(FOLDER), "--at", "best", "--json")[1])["late_choices"] == [
        "--at best instead of last after 6 looks"
    ]  # another figure, which no look has had


def test_the_number_of_a_look_is_that_of_the_first_time(compare):
    words = ("toy", "--vary", "model.norm=default,same")
    for seeds, text in (
        ("5", "Look 1 at this"),
        ("5", "Look 1 at this"),
        ("12", "Look 2 at this"),
        ("5", "Look 1 of 2 at this"),
    ):
        assert text in " ".join(compare(*words, "--seeds", seeds)[1].split())


def test_a_journal_that_cannot_be_read_or_is_gone_is_said(compare):
    compare(*WORDS)
    path = FOLDER / journal.FILE
    whole = path.read_bytes()
    assert not [flag for flag in json.loads(compare(str(FOLDER), "--json")[1])["flags"] if flag["about"] == "journal"]
    path.write_bytes(b"\xff\xfe garbage\nmore\n" + whole)
    (flag,) = [flag for flag in json.loads(compare(str(FOLDER), "--json")[1])["flags"] if flag["about"] == "journal"]
    assert "so that what was chosen after a look is not certain" in flag["sentence"]
    path.write_bytes(b"more\n" + whole)
    text = " ".join(compare(str(FOLDER))[1].split())
    assert "journal.jsonl: 1 of 3 lines cannot be read" in text
    path.unlink()
    (flag,) = [flag for flag in json.loads(compare(str(FOLDER), "--json")[1])["flags"] if flag["about"] == "journal"]
    assert "journal.jsonl is gone" in flag["sentence"]


@pytest.mark.parametrize("variants", ["rms,good", "rms,weak", "rms,bad,weak", "rms,weak,same"])
@pytest.mark.parametrize("seeds", [(2,), (3,), (5,), (3, 5), (2, 4, 9)])
def test_the_plain_folder_of_runs_says_what_their_comparison_says(compare, variants, seeds):
    for count in seeds:
        _, out, _ = compare("toy", "--vary", f"model.norm={variants}", "--seeds", str(count), "--json")
    before = sorted(Path("runs").rglob("*"))
    _, folder_text, started = compare("runs/toy", "--baseline", "default", "--json")
    recorded, answer = json.loads(out), json.loads(folder_text)
    assert [each["verdict"] for each in answer["variants"]] == [each["verdict"] for each in recorded["variants"]]
    assert [each["low"] for each in answer["variants"]] == [each["low"] for each in recorded["variants"]]
    assert answer["test"]["level"] == recorded["test"]["level"]
    assert started == []
    assert sorted(Path("runs").rglob("*")) == before  # nothing records a look at a plain folder
    text = " ".join(compare("runs/toy")[1].split())
    assert "Nothing records this look" in text
    many = f"{len(seeds)} look{'s' * (len(seeds) > 1)} at the same runs by other comparisons of toy count too"
    assert many in text
