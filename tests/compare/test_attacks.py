"""Ways in which real runs gave false answers: a variant that diverges, edited code, other callbacks, late choices.

All runs are real, of three steps, and made in this process.
"""

import importlib
import json
import re
import statistics
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from bench.verdicts import FIXED, PATIENCE, follow_advice
from zoo.cli import main
from zoo.compare import journal, parallel_runs, plan, prose, report, run_comparison
from zoo.compare.looks import FIRST, load_looks
from zoo.compare.plan import verify_runs
from zoo.compare.run_records import parse_record, read_records
from zoo.compare.simultaneous_tests import PairedTestPlan, compare_samples, judge_all
from zoo.compare.statistics import ALPHA
from zoo.compare.verdict import answer
from zoo.config.run_folder import slug
from zoo.errors import UsageError
from zoo.io import checkpoint_manifest, locks
from zoo.io.locks import Lock
from zoo.logging import code_identity, run_state
from zoo.logging.run_state import read_state

RECIPE = """\
model:
  class_path: CausalLM
  init_args: {dim: 8, depth: 1, heads: 2, lr: 1e-2, norm: LayerNorm}
data:
  class_path: TextFiles
  init_args: {path: text.txt, val_path: val.txt, test_path: test.txt, max_length: 16, batch_size: 4, tokenizer: bytes}
trainer: {max_steps: 4, val_check_interval: 4, check_val_every_n_epoch: null, accelerator: cpu, logger: false,
          enable_progress_bar: false}
"""
# a norm that is good for even seeds, and overflows for odd ones
FRAGILE = """
import torch
from zoo.parts.norm import LayerNorm

class Fragile(LayerNorm):
    def __init__(self, dim: int):
        super().__init__(dim)
        self.calls, self.scale = 0, float("inf") if torch.initial_seed() % 2 else 1.0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x) * (self.scale if self.calls > 2 else 1.0)
"""
OWN = """
from zoo.parts.norm import LayerNorm

class Own(LayerNorm):
    def forward(self, x):
        return super().forward(x) * FACTOR

FACTOR = 1.0
"""
SLOW = """
import time
from zoo.parts.norm import LayerNorm

class Slow(LayerNorm):
    def forward(self, x):
        time.sleep(0.1 * (self.training and not x.is_meta))
        return super().forward(x)
"""
# two norms whose runs differ by a random number of one distribution alone, so that neither is better
NOISY = """
import random

import torch
from zoo.parts.norm import LayerNorm

class One(LayerNorm):
    number = 1

    def __init__(self, dim: int):
        super().__init__(dim)
        self.scale = 1.0 + random.Random(f"{torch.initial_seed()} {self.number}").uniform(-0.5, 0.5)

    def forward(self, x):
        return super().forward(x) * self.scale

class Two(One):
    number = 2
"""
SEEDS = (1, 2, 3)


class Bench:
    """A folder with a recipe, modules of own parts, and runs, and the command line in it."""

    def __init__(self, folder, read_output):
        self.folder, self.read_output = folder, read_output

    def __call__(self, *words, code=0):
        self.read_output()
        result = main([*words])
        text = "".join(self.read_output())
        assert result == code, text
        return text

    def fit(self, seed, *words, code=0):
        return self("fit", "./toy.yaml", f"--seed={seed}", "--allow-import=fragile", "--allow-import=own",
                    "--allow-import=slow", *words, code=code)  # fmt: skip

    def run(self, variant, seed):
        return self.folder / "runs" / "toy" / variant / f"s{seed}"


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory):
    """Runs of the recipe, of a norm that diverges for odd seeds, with averaged weights, and validated more often."""
    folder = tmp_path_factory.mktemp("attacks")
    other = RECIPE.replace("norm: LayerNorm", "norm: RMSNorm, ffn: SwiGLU")
    for name, content in {
        "other.yaml": other,
        "toy.yaml": RECIPE,
        "fragile.py": FRAGILE,
        "own.py": OWN,
        "slow.py": SLOW,
        "noisy.py": NOISY,
        "noisy.yaml": RECIPE.replace("LayerNorm", "noisy.One").replace(
            "max_steps: 4, val_check_interval: 4", "max_steps: 2, val_check_interval: 2"
        ),
    }.items():
        (folder / name).write_text(content)
    for name, times in {"text": 40, "val": 12, "test": 12}.items():  # validations of few batches
        (folder / f"{name}.txt").write_text(f"all {name} and no play makes a dull toy " * times)
    with pytest.MonkeyPatch.context() as patch:  # undone before other files' tests of this process
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        bench = Bench(folder, lambda: ())
        for seed in SEEDS:
            bench.fit(seed)
            bench.fit(seed, "--model.norm=slow.Slow", "--model.hidden=256")
            bench.fit(seed, "--model.norm=fragile.Fragile", code=4 if seed % 2 else 0)
        for seed in SEEDS[:2]:
            bench.fit(seed, "--model.position=ALiBi", "--trainer.callbacks=EMA")
            bench.fit(seed, "--trainer.val_check_interval=1", "--model.norm=RMSNorm")
            often = "--trainer.val_check_interval=1"
            bench.fit(seed, "--model.norm=fragile.Fragile", often, code=4 if seed % 2 else 0)
            bench.fit(seed, often)
        bench.fit(1, "--model.norm=RMSNorm", "--trainer.limit_val_batches=1")
    return bench


@pytest.fixture
def bench(finished_runs, capsys, monkeypatch):
    monkeypatch.chdir(finished_runs.folder)
    monkeypatch.syspath_prepend(finished_runs.folder)
    return Bench(finished_runs.folder, capsys.readouterr)


@pytest.fixture
def in_process(bench, monkeypatch):
    """Runs of a comparison are made in this process, and its reports have no charts, which test_charts.py draws."""

    def execute(jobs, options):
        for job in jobs:
            if read_state(job.folder) not in run_state.END_STATES:
                assert main(["fit", *job.words]) == 0

    monkeypatch.setattr(report, "draw_charts", lambda answer: [])
    monkeypatch.setattr(run_comparison, "execute", lambda jobs, options: execute(jobs, options) or [])
    return bench


def row(result, variant):
    return next(each for each in result.rows if each.variant == variant)


def runs_of(bench, *variants):
    return [one for variant in variants for one in read_records(bench.folder / "runs" / "toy" / variant)]


# 1, 2: divergence


def test_a_run_that_stops_at_a_loss_that_is_not_finite_records_its_divergence(bench):
    folder = bench.run("norm=fragile", 1)
    record = parse_record(folder / "ledger.json")
    assert record.outcome["state"] == "diverged"
    assert record.outcome["step"] == 2
    assert "is not finite" in record.outcome["cause"]
    assert not record.finished
    assert read_state(folder) == "diverged"
    assert record.failure("loss") == "diverged"
    fine = parse_record(bench.run("norm=fragile", 2) / "ledger.json")
    assert fine.outcome == {"state": "finished", "step": 4, "skipped": 0}


def test_a_variant_that_diverges_is_judged_by_how_its_runs_ended(bench):
    result = answer(runs_of(bench, "default", "norm=fragile"))
    fragile = row(result, "norm=fragile")
    assert fragile.diverged == (1, 3)
    assert fragile.outcome.failed == 2
    assert fragile.outcome.p == pytest.approx(0.8)  # twice that of 2 of 3 against 0 of 3
    assert fragile.pair.n == 0
    assert fragile.verdict.word == "not distinguishable"
    text = bench("compare", "runs/toy/default", "runs/toy/norm=fragile")
    assert "2 of 3 diverged" in text
    assert "Yes." not in text
    assert "not finite" in " ".join(text.split())


def test_no_verdict_on_diverged_runs_depends_on_how_often_they_validated(bench):
    """A penalty for a seed that diverges changed its sign with the interval of validations."""
    same = [run for run in runs_of(bench, "default", "norm=fragile") if run.seed in SEEDS[:2]]
    once, often = row(answer(same), "norm=fragile"), "norm=fragile,val_check_interval=1"
    result = answer(runs_of(bench, "val_check_interval=1", often), "val_check_interval=1")
    assert len(result.runs[often][2].validations) == 4
    assert row(result, often).outcome == once.outcome
    assert row(result, often).sentence == once.sentence
    for each in (once, row(result, often)):
        assert str(each.mean) == str(each.sd) == "nan"


def test_steps_that_were_left_out_are_recorded(bench):
    bench.fit(1, "--model.norm=fragile.Fragile", "--on-nonfinite=skip", "--name=skips", "--trainer.max_steps=3", code=0)
    record = parse_record(bench.run("skips", 1) / "ledger.json")
    assert record.outcome["skipped"] > 0 or record.outcome["state"] == "diverged"
    assert record.config["on_nonfinite"] == "skip"


def test_an_exception_of_a_part_is_recorded_as_a_crash(bench, monkeypatch):
    def fail(self, x):
        if x.is_meta:  # while the cost is counted
            return x
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(importlib.import_module("own").Own, "forward", fail)
    bench.fit(1, "--model.norm=own.Own", "--name=crashes", code=1)
    outcome = json.loads((bench.run("crashes", 1) / "ledger.json").read_text())["outcome"]
    assert outcome["state"] == "crashed"
    assert outcome["cause"] == "RuntimeError: a kernel failed"


# 3: code


def edit_own(bench, monkeypatch, factor):
    path = bench.folder / "own.py"
    path.write_text(OWN.replace("FACTOR = 1.0", f"FACTOR = {factor}"))
    code_identity.source_identity.cache_clear()
    monkeypatch.delitem(sys.modules, "own", raising=False)


def test_runs_of_an_edited_part_are_not_pooled(bench, monkeypatch):
    edit_own(bench, monkeypatch, 1.0)
    bench.fit(1, "--model.norm=own.Own")
    before = parse_record(bench.run("norm=own", 1) / "ledger.json").code
    edit_own(bench, monkeypatch, 2.0)
    words = ["compare", "./toy.yaml", "--vary", "model.norm=LayerNorm,own.Own", "--seeds=2", "--allow-import=own"]
    text = " ".join(bench(*words, code=2).split())
    assert "was made with other code: own without a version (source" in text
    assert "New runs cannot be pooled with it." in text
    bench.fit(2, "--model.norm=own.Own")
    after = parse_record(bench.run("norm=own", 2) / "ledger.json").code
    assert before["own"]["source"] != after["own"]["source"]
    assert before["zoo"] == after["zoo"]
    result = answer(runs_of(bench, "default", "norm=own"))
    assert row(result, "norm=own").verdict.sentence == "not comparable: code"
    assert any("own without a version (source" in sentence for sentence in result.comparability_errors)
    text = bench("compare", "runs/toy/default", "runs/toy/norm=own", code=1)
    assert "make all of them with one version of the code" in " ".join(text.split())


def test_the_code_of_zoo_is_recorded_with_its_commit(bench):
    zoo = parse_record(bench.run("default", 1) / "ledger.json").code["zoo"]
    assert len(zoo["source"]) == 16
    assert set(zoo) >= {"version", "source"}
    assert ("commit" in zoo) == ("dirty" in zoo)


@pytest.mark.parametrize("name", ["code", "earlier_code", "config", "outcome", "diverged", "prediction", "start"])
def test_a_record_from_which_a_part_was_taken_is_left_out(bench, tmp_path, name):
    for variant in ("default", "norm=rmsnorm,val_check_interval=1"):
        for seed in SEEDS[:2]:
            content = json.loads((bench.run(variant, seed) / "ledger.json").read_text())
            del content["digest"]
            if (variant, seed) != ("default", SEEDS[0]):
                del content[name]
            path = tmp_path / "toy" / variant / f"s{seed}" / "ledger.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content))
    result = answer(read_records(tmp_path))
    assert [len(row.figures) for row in result.rows] == [1]
    assert sum(f"is damaged: no valid {name}" in flag.sentence for flag in result.flags) == 3


# 4: settings


def test_other_callbacks_are_named_beside_the_verdict(bench):
    result = answer(runs_of(bench, "default", "position=alibi,callbacks=ema"))
    alibi = row(result, "position=alibi,callbacks=ema")
    assert "EMA" in alibi.label
    (flag,) = [flag for flag in result.flags if flag.about == "settings"]
    assert "differs too, and may be the cause: trainer.callbacks EMA(" in flag.sentence
    declared = answer(runs_of(bench, "default", "position=alibi,callbacks=ema"), varied=["model.position"])
    assert [flag.about for flag in declared.flags if "EMA(" in flag.sentence] == ["settings"]
    assert declared.varied == ("position",)


def test_a_validation_of_fewer_batches_is_not_comparable(bench):
    result = answer([*runs_of(bench, "default"), *runs_of(bench, "norm=rmsnorm,limit_val_batches=1")])
    assert result.rows[1].verdict.sentence == "not comparable: settings"
    assert "trainer.limit_val_batches 1 against none of default" in result.comparability_errors[0].replace("1.0 ", "1 ")


def test_a_run_with_other_callbacks_is_not_taken_for_a_plain_one(bench):
    bench.fit(7, "--trainer.callbacks=EMA", "--name=default", "--runs=averaged")
    folder = bench.folder / "averaged" / "toy" / "default" / "s7"
    fits = plan.ZooFit("averaged")
    arm = run_comparison.Arm((), ("./toy.yaml",), fits.point(("./toy.yaml",)))
    assert "trainer.callbacks was" in fits.changes(arm.point, folder)[0]
    with pytest.raises(UsageError, match=r"another configuration: trainer\.callbacks was .*EMA"):
        verify_runs([arm], [7], fits)
    default_point = fits.point(("./toy.yaml", "--trainer.callbacks=LearningRateMonitor"))
    averaged = fits.point(
        ("./toy.yaml", "--trainer.callbacks=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=1")
    )
    assert default_point.variant == "default"
    assert averaged.variant.startswith("callbacks=stochasticweightaveraging")


# 5: the figure that decides


def test_the_best_of_more_validations_is_refused(bench):
    runs = runs_of(bench, "default", "norm=rmsnorm,val_check_interval=1")
    often = "norm=rmsnorm,val_check_interval=1"
    best = answer(runs, at="best")
    assert row(best, often).verdict.sentence == "not comparable: validations"
    last = answer(runs)
    assert row(last, often).verdict.word != "not comparable"
    assert any(flag.about == "validations" and "4 against 1" in flag.sentence for flag in last.flags)
    three = parse_record(bench.run(often, 1) / "ledger.json")
    losses = [each["loss"] for each in three.validations]
    assert three.figure("loss", "last:3") == pytest.approx(sum(losses[1:]) / 3)
    assert three.figure("loss") == losses[-1]
    with pytest.raises(UsageError, match="default s1 has 1 validations"):
        answer(runs, at="last:3")


@pytest.mark.usefixtures("designs")
def test_the_mean_of_more_validations_than_there_will_be_is_refused_before_training(bench):
    words = ["compare", "./toy.yaml", "--vary", "model.norm=LayerNorm,RMSNorm", "--seeds=2", "--runs=few"]
    text = " ".join(bench(*words, "--at=last:2", code=2).split())
    assert "--at last:2: runs of default will have 1 validation, one every 4 batches." in text
    text = bench("compare", "./toy.yaml", "./other.yaml", "--attribute", "--runs=few", "--at=last:2", code=2)
    assert "will have 1 validation" in text
    assert not (bench.folder / "few").exists()


def test_the_test_split_is_measured_with_the_last_state(bench):
    with pytest.raises(UsageError, match="no figures of an untouched test split"):
        answer(runs_of(bench, "default"), at="test")
    home = bench.run("default", 1)
    text = bench("test", str(home / "config.yaml"), f"--ckpt_path={checkpoint_manifest.newest_intact(home).path}")
    record = parse_record(home / "ledger.json")
    printed = float(next(line.split()[1] for line in text.splitlines() if line.startswith("test/loss")))
    assert record.figure("loss", "test") == pytest.approx(printed, rel=1e-3)
    assert record.figure("loss", "test") != record.figure("loss")
    content = json.loads((home / "test.json").read_text())
    (home / "test.json").write_text(json.dumps({**content, "untouched": False}))
    assert parse_record(home / "ledger.json").test == {}


def test_the_test_split_may_decide(in_process, monkeypatch):
    """Figures of each run's last state on files that neither trained nor validated."""

    def run(words, **options):
        return SimpleNamespace(returncode=main(words[words.index("zoo") + 1 :]))  # after: python -P -m zoo

    monkeypatch.setattr(parallel_runs.subprocess, "run", run)
    words = ["compare", "./toy.yaml", "--vary", "model.ffn=mlp,swiglu", "--seeds=2", "--runs=tested"]
    text = " ".join(in_process(*words, "--at=test").split())
    assert "loss: figure on the test split of each run" in text
    records = read_records(in_process.folder / "tested" / "toy" / "default")
    assert all(record.test["loss"] != record.last["loss"] for record in records)
    refusal = in_process(*words, "--at=test", "--data.test_path=null", code=2)
    assert "TextFiles has no test split besides its validation split. Name the files of one" in refusal
    assert "--at 'worst'" in in_process(*words, "--at=worst", code=2)


# 6: the number of seeds that would be needed

FIRST_SEEDS, MORE_SEEDS, MOST_SEEDS, DRAWS = 3, 3, 12, 2000


def follow_advice_uncorrected(ours, theirs):
    """The last word of a t test at 5 % that is made again with as many seeds as it says would be needed."""
    count, plan = FIXED, PairedTestPlan()
    while True:
        verdict = judge_all(compare_samples({"v": (ours[:count], theirs[:count])}, plan), True, plan)["v"]
        needed = max(verdict.needed or PATIENCE + 1, count + 1)
        if verdict.word != "not distinguishable" or needed > PATIENCE:
            return verdict.word
        count = needed


def check_by_other_libraries(report):
    """Every number of the verdict in a report of real runs, computed again by scipy and statsmodels."""
    base, *others = report["variants"]
    level, names = report["test"]["level"], [variant["variant"] for variant in others]
    figures = {variant["variant"]: np.array([*variant["figures"].values()]) for variant in report["variants"]}
    tested = {name: stats.ttest_rel(figures[name], figures[base["variant"]]) for name in names}
    adjusted = multipletests([each.pvalue for each in tested.values()], method="holm")[1]
    for variant, p in zip(others, adjusted, strict=True):
        ours, theirs = figures[variant["variant"]], figures[base["variant"]]
        described, test = DescrStatsW(ours - theirs, ddof=1), tested[variant["variant"]]
        interval = test.confidence_interval(1 - level / len(others))
        low, high = described.tconfint_mean(level / len(others))
        for key, *values in (
            ("mean", ours.mean()), ("sd", stats.tstd(ours)), ("difference", described.mean),
            ("difference_sd", described.std), ("t", test.statistic, described.ttest_mean()[0]),
            ("p", test.pvalue, described.ttest_mean()[1]), ("p_holm", p), ("low", interval.low, low),
            ("high", interval.high, high),
        ):  # fmt: skip
            assert [variant[key]] * len(values) == pytest.approx(values, rel=1e-9), key
        assert variant["pairs"] == len(ours)


def test_who_follows_the_number_of_seeds_needed_spends_what_is_left(in_process):
    """Of two variants without a difference, the t test of each advised number of seeds called 8.5 % different."""
    words = ["compare", "./noisy.yaml", "--vary", "model.norm=noisy.One,noisy.Two", "--allow-import=noisy",
             "--runs=advice"]  # fmt: skip
    home, levels, count = in_process.folder / "advice" / "noisy" / "compare" / "norm", [], FIRST_SEEDS
    in_process(*words, f"--seeds={FIRST_SEEDS}")
    reports = [home]
    check_by_other_libraries(json.loads((home / "comparison.json").read_text()))
    for _ in range(2):
        report = json.loads((reports[-1] / "comparison.json").read_text())
        variant = report["variants"][1]
        levels.append((report["test"]["name"], report["test"]["level"]))
        assert variant["verdict"] == "not distinguishable"
        needed, fewest, most = (variant[f"seeds_needed{end}"] for end in ("", "_low", "_high"))
        assert (fewest or 1001) <= (needed or 1001) <= (most or 1001)
        count = min(max(needed or MOST_SEEDS, count + 1), count + MORE_SEEDS)
        text = " ".join(in_process(*words, f"--seeds={count}").split())
        reports.append(home / f"seeds=1-{count}")
        assert f"Look {len(reports)} at this comparison" in text
        assert f"seeds, of which added 4 to {count} after {len(reports) - 1} look" in text
        advised = r"(about [\d,]+ would be needed, range [\d,]+ to |more than 1,000 would be needed)"
        assert re.search(advised, text)
    assert levels == [("t", pytest.approx(FIRST * ALPHA)), ("sequential", pytest.approx(FIRST * (1 - FIRST) * ALPHA))]
    assert sum(look.spent for look in load_looks(home, ["default", "norm=two"]).looks) < ALPHA


@pytest.mark.campaign
def test_who_follows_the_number_of_seeds_needed_in_draws_of_real_runs_is_rarely_wrong(in_process):
    """Of drawn numbers tests/bench/test_verdicts.py shows the same."""
    words = ["compare", "./noisy.yaml", "--vary", "model.norm=noisy.One,noisy.Two", "--allow-import=noisy",
             "--runs=draws"]  # fmt: skip
    home = in_process.folder / "draws" / "noisy" / "compare" / "norm"
    in_process(*words, f"--seeds={MOST_SEEDS}")
    report = json.loads((home / "comparison.json").read_text())
    figures = [np.array([*variant["figures"].values()]) for variant in report["variants"]]
    rng, false_words = np.random.default_rng(6), [0, 0]
    for _ in range(DRAWS):
        pair = np.stack([rng.choice(each, PATIENCE) for each in figures])
        pair = np.where(rng.random(PATIENCE) < 0.5, pair, pair[::-1])  # either run may be the variant's
        for index, follow in enumerate((follow_advice_uncorrected, follow_advice)):
            false_words[index] += follow(*pair.tolist()) in ("better", "worse")
    uncorrected, corrected = (words / DRAWS for words in false_words)
    assert corrected <= ALPHA
    assert uncorrected > 1.5 * corrected, (uncorrected, corrected)


# 7: the journal


def test_what_is_chosen_after_a_look_is_said_and_no_report_is_lost(in_process):
    words = ["compare", "./toy.yaml", "--vary", "model.ffn=mlp,swiglu", "--runs=looks", "--model.hidden=8"]
    first = " ".join(in_process(*words, "--seeds=2").split())
    home = in_process.folder / "looks" / "toy" / "compare" / "ffn,hidden=8"
    assert "Chosen after looking" not in first
    report = (home / "comparison.html").read_bytes()
    assert "it was named before" in report.decode()
    second = " ".join(in_process(*words, "--seeds=3").split())
    assert "Chosen after looking at runs of this comparison: seeds, of which added 3 after 1 look" in second
    assert "Look 2 at this comparison: verdicts are false with a probability of at most 0.0" in second
    third = " ".join(in_process(*words, "--seeds=2", "--goal=bits_per_byte").split())
    assert "the goal bits_per_byte instead of loss after 2 looks" in third
    page = (home / "goal=bits_per_byte" / "comparison.html").read_text()
    assert "it was named before" not in page
    assert (home / "seeds=1-3" / "comparison.json").exists()
    assert (home / "comparison.html").read_bytes() == report
    events = journal.read_journal(home)[0]
    assert [event.what for event in events] == ["plan", "look"] * 3
    assert [event.ended_runs for event in events] == [0, 4, 4, 6, 4, 4]
    again = " ".join(in_process(*words, "--seeds=2").split())
    assert "Chosen after looking" not in again
    with (home / journal.FILE).open("ab") as file:
        file.write(b'{"event": "look", "goal')  # cut short by a kill
    in_process("compare", str(home))
    assert len(journal.read_journal(home)[0]) == 9
    assert json.loads((home / "runs.json").read_text())["varied"] == ["model.ffn"]


def test_what_is_chosen_after_a_look_spends_and_is_said(in_process):
    """The figure, the baseline, the seeds, another name for the same comparison; and records that were exchanged."""
    words = ["compare", "./noisy.yaml", "--vary", "model.norm=noisy.One,noisy.Two", "--allow-import=noisy",
             "--runs=choices"]  # fmt: skip
    home = in_process.folder / "choices" / "noisy" / "compare" / "norm"

    def look(*more, code=0, folder=""):
        text = " ".join(in_process(*words, *more, code=code).split())
        return text, json.loads((home / folder / "comparison.json").read_text())["test"]["level"]

    _, first = look("--seeds=3")
    budget = ALPHA - first
    folder = "goal=bits_per_byte,test=permutation"
    text, level = look("--seeds=3", "--goal=bits_per_byte", "--test=permutation", folder=folder)
    candidates = int(re.search(r"Its question is one of (\d+) that could be chosen after a look", text)[1])
    assert candidates == 2  # one other figure is finite, and there are two other tests
    assert level == pytest.approx(FIRST * budget / candidates)
    assert "Chosen after looking at runs of this comparison: the goal bits_per_byte instead of loss" in text
    budget -= FIRST * budget
    _, level = look("--seeds=3", "--baseline=norm=noisy.Two", folder=f"baseline={slug('norm=two')}")
    assert level == pytest.approx(FIRST * budget)  # with two variants there is one other baseline
    text = " ".join(in_process(*words, "--seeds=2,3", code=1).split())
    assert "seeds were left out that a look at this comparison has had, 1;" in text
    assert "not comparable: seeds left out" in text

    (in_process.folder / "again.yaml").write_text(
        "recipe: ./noisy.yaml\nvary: {model.norm: [noisy.One, noisy.Two]}\nseeds: 3\n"
    )
    text = " ".join(in_process("compare", "./again.yaml", "--allow-import=noisy", "--runs=choices").split())
    assert re.search(r"\d looks at the same runs by other comparisons of noisy count too", text)
    assert "the comparison itself, when 6 of its runs had ended" in text

    runs, original = home / "runs.json", (home / "runs.json").read_text()
    runs.write_text(original.replace('"margin": null', '"margin": 5.0'))
    assert "it was changed after zoo wrote it" in in_process("compare", str(home), code=2)
    runs.write_text(original)
    for source, target in (("norm=two/s1", "norm=two/s2"), ("default/s3", "norm=two/s3")):
        path = home.parents[1] / target / "ledger.json"
        content = path.read_text()
        path.write_text((home.parents[1] / source / "ledger.json").read_text())
        assert "is the record of another run" in in_process("compare", str(home), code=2)
        path.write_text(content)
    in_process("compare", str(home), code=1)  # of seeds 2 and 3, as before


@pytest.mark.usefixtures("designs")
def test_attribution_has_a_journal(in_process):
    words = ["compare", "./toy.yaml", "./other.yaml", "--attribute", "--runs=parts", "--seeds=1"]
    assert "Chosen after looking" not in in_process(*words)
    home = in_process.folder / "parts" / "toy" / "compare" / "attribute-other"
    again = " ".join(in_process(*words, "--goal=bits_per_byte").split())
    assert (
        "Chosen after looking at runs of this comparison: the goal bits_per_byte instead of loss after 1 look" in again
    )
    assert [(event.what, event.ended_runs) for event in journal.read_journal(home)[0]] == [
        ("plan", 0), ("look", 4), ("plan", 4), ("look", 4),
    ]  # fmt: skip
    assert (home / "goal=bits_per_byte" / "comparison.html").exists()
    in_process("compare", str(home), "--out=parts/again")
    data = json.loads((in_process.folder / "parts/again/comparison.json").read_text())
    assert {option["option"] for option in data["attribute"]["options"]} == {"model.norm", "model.ffn"}
    assert "Contribution of each option" in (in_process.folder / "parts/again/comparison.md").read_text()


# 8, 9: machines


def test_a_shard_runs_all_variants_of_its_seeds(in_process):
    """A shard of variants compared the machines."""
    words = [
        "compare",
        "./toy.yaml",
        "--vary",
        "model.ffn=mlp,swiglu",
        "--seeds=2",
        "--runs=shards",
        "--model.hidden=8",
    ]
    first = in_process(*words, "--shard=2/2")
    runs = in_process.folder / "shards" / "toy"
    assert sorted(path.parent.name for path in runs.glob("*/s2")) == ["ffn=swiglu,hidden=8", "hidden=8"]
    assert not list(runs.glob("*/s1"))
    assert "2 of 4 runs are finished; the others belong to other shards." in first
    assert "verdict" in in_process(*words, "--shard=1/2")


def test_a_live_lock_of_another_machine_of_this_name_is_respected(bench, monkeypatch):
    """Its process number belongs to no process here."""
    number = subprocess.Popen(["true"])
    number.wait()
    foreign_locks = []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(locks, "machine_id", lambda: "another-boot pid:[1]")
        elsewhere.setattr(locks.os, "getpid", lambda: number.pid)
        for variant in ("default", "norm=fragile"):
            foreign_locks.append(Lock(run_state.path_beside(bench.run(variant, 4), ".lock")))
            assert foreign_locks[-1].acquire()
    words = ["compare", "./toy.yaml", "--vary", "model.norm=LayerNorm,fragile.Fragile", "--seeds=4", "--shard=4/4"]
    try:
        text = bench(*words, "--allow-import=fragile")
        assert "6 of 8 runs are finished; the others belong to other shards." in text
        assert not bench.run("default", 4).exists()
        assert "running" in bench(*words[:-1], "--allow-import=fragile", "--dry-run")
    finally:
        for lock in foreign_locks:
            lock.path.unlink()


# 10, 11: seeds of one side, and costs


def test_means_are_over_the_seeds_that_both_have(bench):
    result = answer(runs_of(bench, "default", "norm=rmsnorm,val_check_interval=1"))
    base, fewer = result.rows
    assert sorted(base.figures) == [1, 2, 3]
    assert sorted(fewer.figures) == [1, 2]
    common = [base.figures[seed] for seed in (1, 2)]
    assert fewer.pair.mean == pytest.approx(fewer.mean - statistics.mean(common))
    (flag,) = [flag for flag in result.flags if flag.about == "seeds"]
    assert "lacks s3: its figures and its difference are over s1 s2" in flag.sentence
    assert f"has loss {statistics.mean(common):.4g}" in flag.sentence
    text = " ".join(bench("compare", "runs/toy/default", "runs/toy/norm=rmsnorm,val_check_interval=1").split())
    assert "lacks s3" in text


def test_a_seed_of_the_baseline_that_failed_and_has_no_partner_is_named(bench):
    """The verdict is over the seeds that both have, of which none failed."""
    runs = [*runs_of(bench, "norm=fragile"), *(run for run in runs_of(bench, "default") if run.seed == 2)]
    result = answer(runs, "norm=fragile")
    assert row(result, "default").pair.n == 1
    (flag,) = [flag for flag in result.flags if flag.about == "seeds"]
    assert "failed at s1 s3 counts in no test" in flag.sentence


def test_more_work_less_speed_and_a_rate_tuned_for_one_side_are_said(bench):
    result = answer(runs_of(bench, "default", "norm=slow,hidden=256"), tuned={"default": "lr 0.01, best of 2"})
    abouts = {flag.about: flag.sentence for flag in result.flags}
    assert result.rows[1].cost["flops_per_token"] > 2 * result.rows[0].cost["flops_per_token"]
    assert {"flops", "speed"} <= set(abouts), abouts
    sentence_on_rates = "or the recipe, not for hidden=256 + Slow: --tune model.lr=… chooses one for each variant."
    assert any(sentence.endswith(sentence_on_rates) for sentence in prose.legend(result)), prose.legend(result)
    both = answer(
        runs_of(bench, "default", "norm=slow,hidden=256"), tuned=dict.fromkeys(result.runs, "lr 0.01, best of 2")
    )
    assert not any(sentence.endswith(sentence_on_rates) for sentence in prose.legend(both))
