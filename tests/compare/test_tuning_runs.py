"""Tuning: each variant gets the value that is best for it over seeds that are not compared, and the cost is counted."""

import contextlib
import json
import math

import pytest

from tests.compare.fabricate import WHOLE
from tests.compare.fake_zoo import Costs, Fits
from zoo.compare import match_and_tune, prepare_runs
from zoo.compare.plan import Comparison, parse_factors
from zoo.compare.prepare_runs import complete_runs, draft_runs
from zoo.errors import UsageError, ZooError

LOSSES = {
    "default": 3.0, "lr=0.2": 2.0, "lr=0.3": 2.5,
    "position=alibi": 5.0, "lr=0.2,position=alibi": 4.0, "lr=0.3,position=alibi": 1.0,
}  # fmt: skip

BEFORE = {"step": 50, "loss": 9.5, "acc": -9.5}  # an earlier validation


def request(*vary, **more):
    return Comparison("toy", parse_factors(vary or ["model.position=rope,alibi"]), **more)


@pytest.fixture
def fits(tmp_path):
    return Fits(tmp_path)


def finish(folder, loss, best=None, seconds=2.0):
    """The record of a run that ended with a loss; None: it diverged."""
    figures = {"loss": loss, "acc": None if loss is None else -loss}
    best_figures = figures if best is None else {"loss": best, "acc": -best}
    record = {
        **WHOLE, "recipe": "toy", "variant": folder.parent.name, "seed": int(folder.name[1:]),
        "goals": {"loss": "min", "acc": "max"}, "tokens": 10, "steps": 100, "finished": loss is not None,
        "diverged": loss is None, "last": figures, "best": best_figures,
        "validations": [BEFORE, {"step": 100, **figures}], "cost": {"seconds": seconds},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "ledger.json").write_text(json.dumps(record))
    (folder / "finished.json").write_text("{}")


def tune(fits, loss, sweep="model.lr=0.1,0.2,0.3", seeds=(0, 1001), **more):
    """Prepare with a sweep whose runs end with ``loss(variant, seed)``."""

    def run(arms, each):
        assert tuple(each) == seeds
        for arm in arms:
            for seed in each:
                finish(arm.point.folder(seed), loss(arm.name, seed))

    comparison = request(tune=sweep, **more)
    return complete_runs(draft_runs(comparison, fits, Costs()), fits, Costs(), run)


def names(design):
    return [arm.name for arm in design.arms]


@pytest.mark.parametrize("goal", [None, "loss", "acc", "val/acc"])
def test_each_variant_gets_the_rate_that_is_best_for_it(fits, goal):
    result = tune(fits, lambda name, seed: LOSSES[name], goal=goal)
    assert names(result) == ["lr=0.2", "lr=0.3,position=alibi"]
    start, cost = "best of 3 on validation with seeds 0 and 1001", "found in 6 runs, 600 steps, 12 s of training"
    assert result.tuned == {
        "lr=0.2": f"lr 0.2, {start}, {cost}",
        "lr=0.3,position=alibi": f"lr 0.3, {start}, at the edge of the grid (a better one may lie beyond), {cost}",
    }
    figures = result.tuning["variants"]["lr=0.2"]["figures"]
    assert (
        figures == {"0.1": 3.0, "0.2": 2.0, "0.3": 2.5}
        if goal in (None, "loss")
        else {"0.1": -3.0}.items() <= (figures.items())
    )
    assert match_and_tune.total_cost(result.tuning) == match_and_tune.TuningCost(12, 1200, 24.0)


def test_the_mean_over_seeds_decides_and_not_one_of_them(fits):
    lucky = {("lr=0.3", 0): 0.5, ("lr=0.3", 1001): 9.0}
    result = tune(fits, lambda name, seed: lucky.get((name, seed), LOSSES[name]))
    assert names(result)[0] == "lr=0.2"


def test_a_rate_with_a_failed_seed_is_behind_all_others(fits):
    result = tune(fits, lambda name, seed: None if (name, seed) == ("lr=0.2", 1001) else LOSSES[name])
    assert names(result) == ["lr=0.3", "lr=0.3,position=alibi"]
    assert "runs failed with 0.2 (1 of 2)" in result.tuned["lr=0.3"]
    assert result.tuning["variants"]["lr=0.3"]["failures"] == {"0.1": 0, "0.2": 1, "0.3": 0}
    with pytest.raises(ZooError, match=r"--tune model\.lr: no run of position=alibi ended"):
        tune(Fits(fits.root / "x"), lambda name, seed: None if "alibi" in name else 1.0)


class CountedCosts(Costs):
    """A step holds as many tokens as its batch."""

    def tokens_per_step(self, config):
        return float(config["trainer"].get("accumulate_grad_batches") or 40)


class CountedFits(Fits):
    """Takes the number of batches that a step accumulates."""

    def point(self, words):
        point = super().point(words)
        batches = [word.partition("=")[2] for word in words if word.startswith("--trainer.accumulate_grad_batches=")]
        point.config["trainer"]["accumulate_grad_batches"] = int(batches[-1]) if batches else None
        return point


@pytest.mark.parametrize(("sweep", "more", "option"), [
    ("model.hidden=8,16", {"match": "params"}, "--match"), ("model.hidden=8,16", {"match": "flops"}, "--match"),
    ("model.hidden=8,16", {"budget": "flops=1e9"}, "--budget"), ("trainer.max_steps=5,9", {"budget": "tokens=4000"},
    "--budget"), ("trainer.max_steps=5,9", {"budget": "time=1m"}, "--budget"),
    ("trainer.accumulate_grad_batches=2,4", {"budget": "tokens=4000"}, "--budget"),
    ("model.lr=0.2,0.3", {"match": "params", "budget": "tokens=4000"}, ""),
    ("model.lr=0.2,0.3", {"budget": "flops=1e9"}, ""), ("model.hidden=8,16", {"budget": "tokens=4000"}, ""),
    ("trainer.accumulate_grad_batches=2,4", {"match": "params"}, ""), ("model.hidden=8,16", {}, ""),
])  # fmt: skip
def test_what_is_tuned_leaves_what_was_made_equal(tmp_path, sweep, more, option):
    comparison = request("model.ffn=mlp,glu", tune=sweep, **more)
    with pytest.raises(UsageError, match=f"does not go with {option}: ") if option else contextlib.nullcontext():
        draft_runs(comparison, CountedFits(tmp_path), CountedCosts())


def test_no_rate_is_chosen_while_a_run_has_not_ended(fits):
    def run(arms, seeds):
        for arm in arms:
            for seed in seeds:
                if (arm.name, seed) != ("lr=0.3,position=alibi", 1001):  # whose machine had no space left
                    finish(arm.point.folder(seed), LOSSES[arm.name])

    draft = draft_runs(request(tune="model.lr=0.1,0.2,0.3"), fits, Costs())
    with pytest.raises(ZooError, match=r"--tune model\.lr: .* lr=0\.3 s1001 has not ended"):
        complete_runs(draft, fits, Costs(), run)


def test_a_run_short_of_the_target_is_not_called_failed(fits):
    target = {"goal": "loss", "at": "to:2.6"}
    result = tune(fits, lambda name, seed: LOSSES[name], **target)
    short = "runs ended short of the target with 0.1 (2 of 2)"
    assert short in result.tuned["lr=0.2"]
    assert "failed" not in "".join(result.tuned.values())
    with pytest.raises(ZooError, match=r"--tune model\.lr: no run of .* reached the target"):
        tune(Fits(fits.root / "x"), lambda name, seed: 9.0, **target)


def test_the_figure_is_taken_when_that_of_the_verdict_is(fits):
    folder = fits.root / "toy" / "a" / "s0"
    finish(folder, 3.0, best=1.0)
    run = match_and_tune.run_records.parse_record(folder / "ledger.json")
    assert [match_and_tune.score(run, "loss", at) for at in ("last", "best")] == [3.0, 1.0]
    assert match_and_tune.score(run, "acc") == 3.0
    finish(fits.root / "toy" / "a" / "s1", None)
    run = match_and_tune.run_records.parse_record(fits.root / "toy" / "a" / "s1" / "ledger.json")
    assert math.isnan(match_and_tune.score(run))


@pytest.mark.parametrize(
    ("value", "values", "edge"),
    [("1e-3", ["1e-3", "1e-4", "1e-2"], False), ("1e-2", ["1e-3", "1e-4", "1e-2"], True), ("1", ["1", "2"], True),
     ("1", ["1"], False), ("a", ["a", "b"], False)],
)  # fmt: skip
def test_an_edge_is_the_smallest_or_largest_number(value, values, edge):
    assert match_and_tune.is_at_edge(value, values) is edge


def test_seeds_of_tuning_are_none_of_the_compared():
    assert match_and_tune.tuning_seeds((1, 2, 3)) == [0]
    assert match_and_tune.tuning_seeds((0, 4)) == [1001]
    assert match_and_tune.tuning_seeds((0, 1002), 3) == [1001, 1003, 1004]
    assert match_and_tune.tuning_seeds(range(1, 6), 3) == match_and_tune.tuning_seeds(
        range(1, 31), 3
    )  # stay with more seeds


def test_one_seed_of_tuning(fits):
    result = tune(fits, lambda name, seed: LOSSES[name], seeds=(0,), tune_seeds=1)
    assert "best of 3 on validation with seed 0," in result.tuned["lr=0.2"]


def test_what_varies_cannot_be_tuned():
    with pytest.raises(UsageError, match=r"--tune model\.position: it is a varied option"):
        prepare_runs.check_comparison(request(tune="model.position=rope,t5"))
    with pytest.raises(UsageError, match="--tune 'lr' is not OPTION=VALUE"):
        prepare_runs.check_comparison(request(tune="lr"))
