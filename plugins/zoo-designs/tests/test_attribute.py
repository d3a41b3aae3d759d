"""Which part brought what: hybrids of two recipes, and shares that add up."""

import itertools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from zoo_designs import attribute
from zoo_designs.attribute import (
    OptionDifference,
    build_hybrids,
    compute_shares,
    hybrid_figures,
    shapley_values,
    shares_section,
    shares_table,
    subsets,
)
from zoo_designs.designs import Attribute

from tests.compare.fake_zoo import Costs, Fits
from zoo.compare import plan
from zoo.compare.plan import Arm, Choice, option_text
from zoo.compare.run_records import Record, RunRecord
from zoo.compare.simultaneous_tests import T_TEST, PairedTestPlan
from zoo.errors import UsageError
from zoo.training.config_meter import ConfigMeter
from zoo.training.setup import display_value


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    return plan.ZooFit(str(tmp_path_factory.mktemp("runs")))


def point(fits, name, *options):
    return fits.point((name, *options))


# what differs


def test_the_two_small_recipes_differ_in_four_parts(fits):
    one, other = point(fits, "transformer-2017-tiny"), point(fits, "llama-style-tiny")
    result = attribute.find_differences(one, other, display_value)
    assert [str(each) for each in result] == [
        "position (Sinusoidal → RoPE)", "norm (LayerNorm → RMSNorm)", "ffn (MLP(activation=relu) → SwiGLU)",
        "block (PostNorm → PreNorm)",
    ]  # fmt: skip
    assert [each.choice.word for each in result] == [
        "--model.position=RoPE", "--model.norm=RMSNorm", "--model.ffn=SwiGLU", "--model.block=PreNorm",
    ]  # fmt: skip


def test_all_differences_together_are_the_second_recipe(fits):
    for names in (("transformer-2017-tiny", "llama-style-tiny"), ("llama-style-tiny", "transformer-2017-tiny")):
        one, other = (point(fits, name) for name in names)
        result = attribute.find_differences(one, other, display_value)
        every = point(fits, names[0], *(each.choice.word for each in result))
        assert every.config["model"] == other.config["model"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model.position.base=500"], {"position"}),
        (["--model.position=RoPE", "--model.position.base=500"], {"position"}),
        (["--model.hidden=32"], {"hidden"}),
        (["--model.optimizer=SGD", "--model.optimizer.momentum=0.9"], {"optimizer"}),
        (["--model.schedule.warmup=3", "--model.tie=false"], {"schedule", "tie"}),
        (["--model.backend=Naive"], {"backend"}),
    ],
)
def test_options_of_a_part_come_along(fits, options, expected, tmp_path):
    """Also where both recipes use the same class, whose options would otherwise stay as they were."""
    from zoo.config import run_config

    one, other = point(fits, "llama-style-tiny", "--model.dropout=0.5"), point(fits, "llama-style-tiny", *options)
    for a, b in ((one, other), (other, one)):
        result = attribute.find_differences(a, b, display_value)
        assert {each.name for each in result} == expected | {"dropout"}
        # a recipe of its own: options of one command line are one layer, whatever their order
        recipe = tmp_path / f"recipe{a is other:d}.yaml"
        recipe.write_text(run_config.config_text(fits._plans[f"{a.recipe}/{a.variant}"]))
        assert point(fits, str(recipe)).config["model"] == a.config["model"]
        every = point(fits, str(recipe), *(each.choice.word for each in result))
        assert every.config["model"] == b.config["model"]


def test_only_the_model_may_differ(fits):
    one = point(fits, "llama-style-tiny")
    with pytest.raises(UsageError, match=r"differ in data\.batch_size \(12 and 3\)"):
        attribute.find_differences(one, point(fits, "transformer-2017-tiny", "--data.batch_size=3"), display_value)
    with pytest.raises(UsageError, match=r"differ in trainer\.max_steps \(600 and 5\)"):
        attribute.find_differences(one, point(fits, "transformer-2017-tiny", "--trainer.max_steps=5"), display_value)
    with pytest.raises(UsageError, match="a CausalLM and vit-tiny a Classification"):
        attribute.find_differences(one, point(fits, "vit-tiny"), display_value)
    with pytest.raises(UsageError, match="differ in nothing"):
        attribute.find_differences(one, one, display_value)
    with pytest.raises(UsageError, match=r"differ in dim \(64 → 32\): there is nothing to tell apart"):
        attribute.find_differences(one, point(fits, "llama-style-tiny", "--model.dim=32"), display_value)


# hybrids


def four(names="abcd"):
    return [OptionDifference(Choice(f"model.{name}", f"{name}2"), f"{name}1", f"{name}2") for name in names]


@pytest.mark.parametrize(("count", "expected"), [(2, 4), (3, 8), (4, 16), (5, 12), (6, 14)])
def test_all_hybrids_of_few_differences_and_both_ends_of_many(count, expected, tmp_path):
    fits = Fits(tmp_path)
    result = four("abcdef"[:count])
    first = Arm((), ("toy",), fits.point(("toy",)))
    done = build_hybrids(first, result, fits, Costs().check)
    assert len(done) == expected
    assert len({arm.name for arm in done.values()}) == expected
    sizes = {len(subset) for subset in done}
    assert {0, 1, count - 1, count} <= sizes
    assert next(iter(done.values())).name == "default"  # the baseline
    assert done[frozenset("ab")].words == ("toy", "--model.a=a2", "--model.b=b2") if count <= 4 else True


def test_a_hybrid_that_cannot_be_built_is_refused_with_the_sentence_of_the_model(fits):
    one = point(fits, "llama-style-tiny", "--model.backend=flash")
    other = point(fits, "llama-style-tiny", "--model.position=alibi")
    first = Arm((), ("llama-style-tiny", "--model.backend=flash"), one)
    with pytest.raises(UsageError) as error:
        build_hybrids(first, attribute.find_differences(one, other, display_value), fits, ConfigMeter().check)
    first_line, second = str(error.value).splitlines()
    assert first_line == "a hybrid cannot be built: position ALiBi, backend Flash."
    assert second.startswith("position ALiBi adds a bias to the scores, which backend Flash cannot take")


# shares


def test_shapley_is_the_mean_over_all_orders():
    names = "abc"
    value = {
        subset: len(subset) ** 2 + 3 * ("a" in subset) * ("c" in subset) - ("b" in subset)
        for subset in subsets(names, True)
    }
    orders = list(itertools.permutations(names))
    by_hand = dict.fromkeys(names, 0.0)
    for order in orders:
        for index, name in enumerate(order):
            before = frozenset(order[:index])
            by_hand[name] += (value[before | {name}] - value[before]) / len(orders)
    result = shapley_values(names, value)
    assert result == pytest.approx(by_hand)
    assert sum(result.values()) == pytest.approx(value[frozenset(names)] - value[frozenset()])


def test_the_glove_game():
    """Shapley's own kind of example: two left gloves and a right one, a pair is worth 1; shares 1/6, 1/6, 4/6."""
    value = {s: 1.0 if "r" in s and len(s) > 1 else 0.0 for s in subsets(["l", "m", "r"], True)}
    assert shapley_values(["l", "m", "r"], value) == pytest.approx({"l": 1 / 6, "m": 1 / 6, "r": 4 / 6})


def additive(effects, seeds=(1, 2, 3), noise=0.001):
    """Figures to which every option adds its own, on seeds that differ much more."""
    names, own = list(effects), random.Random(1)  # noise of each run's own: Shapley's weights cancel what sizes share
    return {
        subset: {s: 2.0 + 0.3 * s + sum(effects[n] for n in subset) + noise * own.uniform(-1, 1) for s in seeds}
        for subset in subsets(names, len(names) <= attribute.FULL)
    }


def test_shares_are_paired_by_seed_and_sorted_by_size():
    figures = additive({"a": -0.1, "b": 0.0, "c": 0.4}, seeds=(1, 2, 3, 4))
    done = compute_shares(four("abc"), figures, True)
    assert [share.difference.name for share in done][:2] == ["c", "a"]
    by = {share.difference.name: share for share in done}
    for name, effect in (("a", -0.1), ("b", 0.0), ("c", 0.4)):
        for pair in (by[name].shapley, by[name].alone, by[name].last):
            assert pair.mean == pytest.approx(effect, abs=0.01)
            assert pair.n == 4
    assert by["a"].shapley.high < 0  # the spread between seeds, 0.3, does not blur it
    assert by["a"].verdict.word == "better"
    assert by["c"].verdict.word == "worse"
    assert by["b"].verdict.word == "not distinguishable"
    assert compute_shares(four("abc"), figures, False)[0].verdict.word == "better"


def test_shares_of_a_later_look_are_tested_as_that_look_may():
    """Each look at an attribution tested at 5 %, however many there were."""
    figures = additive({"a": -0.1, "b": 0.0, "c": 0.4})
    later = compute_shares(four("abc"), figures, True, PairedTestPlan("sequential", 0.008))
    assert {share.verdict.word for share in later} == {"not distinguishable"}  # it needs more than three seeds
    strict = compute_shares(four("abc"), figures, True, PairedTestPlan("t", 1e-9))
    assert {share.verdict.word for share in strict} == {"no verdict"}


def test_shares_add_up_to_the_difference_of_the_recipes_for_every_interaction():
    rough = {s: {1: math.sin(len(s) + hash("".join(sorted(s))) % 7), 2: 0.5 * len(s)} for s in subsets("abcd", True)}
    done = compute_shares(four(), rough, True)
    whole = sum(rough[frozenset("abcd")].values()) / 2 - sum(rough[frozenset()].values()) / 2
    assert sum(share.shapley.mean for share in done) == pytest.approx(whole)


def test_of_many_differences_both_ends_are_told():
    done = compute_shares(four("abcde"), additive({"a": -0.1, "b": 0.0, "c": 0.4, "d": 0.2, "e": 0.1}), True)
    assert all(share.shapley is None for share in done)
    assert done[0].difference.name == "c"
    assert done[0].alone.mean == pytest.approx(0.4, abs=0.01)
    rows = shares_table(done)
    assert rows[0] == ["option", "alone", "last", "verdict"]
    assert "Shapley" not in shares_section(done, "loss", 0.04).text


def test_a_seed_that_a_hybrid_lacks_does_not_count_and_diverged_runs_are_attributed_as_such():
    result = additive({"a": -0.1, "b": 0.2}, seeds=(1, 2, 3))
    del result[frozenset("a")][3]
    assert all(share.shapley.n == 2 for share in compute_shares(four("ab"), result, True))
    result[frozenset("ab")][1] = math.nan
    done = compute_shares(four("ab"), result, True)
    assert sum(share.shapley.mean for share in done) == pytest.approx(0.5)  # of the rate: one of two runs of `ab`
    assert {share.verdict.sentence for share in done} == {"1 of 8 runs failed: no verdict"}
    assert all(math.isnan(share.shapley.low) and math.isnan(share.alone.p) for share in done)
    assert "in the share of runs that failed" in shares_section(done, "loss", 0.04).text
    assert shares_table(done)[1][1:3] == ["+0.25", ""]
    none = compute_shares(four("ab"), {**result, frozenset("b"): {}}, True)
    assert "No seed is finished in all hybrids" in shares_section(none, "loss", 0.04).text


def test_figures_are_read_by_variant():
    fits = Fits(Path("runs"))
    first = Arm((), ("toy",), fits.point(("toy",)))
    hybrids = build_hybrids(first, four("ab"), fits, Costs().check)

    def ledger(variant, seed, loss, finished=True):
        best = {"loss": loss}
        return RunRecord(Path(), "toy", variant, seed, goals={"loss": "min"}, best=best, last=best, finished=finished)

    records = [ledger("default", 1, 1.0), ledger("a=a2", 1, 2.0), ledger("a=a2", 2, 3.0), ledger("b=b2", 1, 4.0, False)]
    names = {arm.name: subset for subset, arm in hybrids.items()}
    result = hybrid_figures(names, [*records, ledger("else", 1, 9.0)], "loss")
    assert result == {frozenset(): {1: 1.0}, frozenset("a"): {1: 2.0, 2: 3.0}, frozenset("b"): {}, frozenset("ab"): {}}


def test_the_folder_of_a_comparison_tells_the_shares_again():
    first = Arm((), ("toy",), Fits(Path("runs")).point(("toy",)))
    hybrids = build_hybrids(first, four("ab"), Fits(Path("runs")), Costs().check)
    figures = additive({"a": -0.1, "b": 0.2})
    runs = {
        arm.name: {
            seed: RunRecord(Path(), "toy", arm.name, seed, goals={"loss": "min"}, last={"loss": loss}, finished=True)
            for seed, loss in figures[subset].items()
        }
        for subset, arm in hybrids.items()
    }  # fmt: skip
    procedure = Attribute().load()
    planned = SimpleNamespace(stages=[SimpleNamespace(details=four("ab"))], arms=[*hybrids.values()])
    recorded = json.loads(json.dumps(procedure.record(planned)))
    record = Record((), "default", design={procedure.design.name: recorded})
    answer = SimpleNamespace(runs=runs, goal="loss", at="last", lower_is_better=True, plan=T_TEST)
    answer.finding = procedure.complete(answer, Path("home"), record)
    shares = compute_shares(four("ab"), figures, True)
    assert repr(answer.finding) == repr(shares)
    assert [option["option"] for option in procedure.as_data(answer)["options"]] == ["model.b", "model.a"]
    assert [*procedure.sections(answer)[0].rows] == shares_table(shares)[1:]
    assert [chart.name for chart in procedure.charts(answer)] == ["shares"]
    with pytest.raises(UsageError, match=r"home: what it records of hybrids is damaged"):
        procedure.complete(answer, Path("home"), Record((), "default", design={procedure.design.name: {}}))


def test_the_table_says_how_to_read_it():
    done = compute_shares(four("ab"), additive({"a": -0.1, "b": 0.2}), True)
    section = shares_section(done, "loss", 0.04)
    assert section.headings[0] == "option"
    assert section.rows[0][0] == "b (b1 → b2)"
    assert "Shapley's" in section.text
    assert section.text.endswith("is false with a probability of at most 0.04.")


def test_values_are_written_so_that_a_command_line_reads_them(fits):
    value = {"class_path": "zoo.parts.position.RoPE", "init_args": {"base": 1e-8}}
    assert json.loads(option_text(value)) == value
    assert option_text(None) == "null"
    assert option_text("none") == "none"
    assert option_text(True) == "true"
