"""From ledgers to verdicts: paired by seed, corrected, in words; what diverged, lacks or is refused is counted."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fabricate import run, study

from tests.rows import try_each
from zoo.compare import prose, simultaneous_tests
from zoo.compare.statistics import holm_adjust, paired_t_test
from zoo.compare.verdict import answer
from zoo.errors import UsageError

BASE = (1.70, 1.73, 1.68, 1.75, 1.71)
NEAR = (1.40, 1.42, 1.38, 1.46, 1.41)


def runs_of(variant, figures, goal="loss", **options):
    """Runs that say their figures and little else; seeds count from 1, None leaves one out, NaN diverges."""
    key, _, choice = variant.partition("=")
    result = []
    for seed, value in enumerate(figures, 1):
        if value is not None:
            reached = {goal: value}
            changes = {"best": reached, "last": reached, "validations": [{"step": 100, "tokens": 1, goal: value}]}
            result.append(run(variant, seed, choices={key: choice} if choice else {}, **{**changes, **options}))
    return result


def row(answer_, variant):
    return next(each for each in answer_.rows if each.variant == variant)


def test_figures_are_paired_by_seed_and_tested():
    ours = [each - 0.1 + jitter for each, jitter in zip(BASE, (0.01, 0, -0.01, 0, 0), strict=True)]
    result = answer([*runs_of("position=alibi", ours), *runs_of("default", BASE)])
    assert [each.variant for each in result.rows] == ["default", "position=alibi"]
    alibi = result.rows[1]
    assert alibi.pair == paired_t_test(ours, BASE)
    assert alibi.pair.n == 5
    assert alibi.adjusted == alibi.pair.p
    assert alibi.verdict.word == "better"
    assert alibi.mean == pytest.approx(np.mean(ours))
    assert alibi.sd == pytest.approx(np.std(ours, ddof=1))
    assert (result.base.verdict.word, result.base.pair.n) == ("baseline", 0)
    assert (result.recipe, result.goal, result.lower_is_better, result.at) == ("lm-tiny", "loss", True, "last")


def test_the_metric_that_all_tasks_have_decides():
    def runs(variant, figures, task, goals):
        changes = {
            "goals": goals,
            "prediction": "a token",
            "choices": {"model": task, **({"ahead": 1} if task == "B" else {})},
        }
        return [replace(one, **changes) for one in runs_of(variant, figures, goal="loss")]

    base = runs("default", BASE, "A", {"accuracy": "max", "loss": "min"})
    other = runs("model=b", NEAR, "B", {"loss": "min", "ahead_loss": "min"})
    result = answer([*base, *other])
    assert (result.goal, result.varied) == ("loss", ("model",))
    assert [(each.label, each.verdict.word) for each in result.rows] == [("A", "baseline"), ("B", "better")]
    with pytest.raises(UsageError, match="'accuracy' is none of the metrics that all variants have"):
        answer([*base, *other], goal="accuracy")
    alone = runs("model=b", NEAR, "B", {"ahead_loss": "min"})
    assert [each.verdict.word for each in answer([*base, *alone], goal="loss").rows] == ["baseline", "not comparable"]


def test_a_record_of_an_older_version_does_not_say_its_task():
    base, new = runs_of("default", BASE), runs_of("a=1", NEAR)
    new = [replace(one, choices={**one.choices, "model": "CausalLM"}, prediction="the next token") for one in new]
    result = answer([*base, *new])
    assert result.varied == ("a",)
    assert result.rows[1].verdict.word == "better"


def test_several_variants_are_corrected_for_their_number():
    shift = {"a=1": -0.045, "a=2": 0.02, "a=3": 0.035}
    jitter = 0.03 * np.array([(1, -1, 0.5, -1, 0.5), (1, 1, -2, 0.5, -0.5), (0, 1, -1, 1, -1)])
    runs = runs_of("default", BASE)
    for name, noise in zip(shift, jitter, strict=True):
        runs += runs_of(name, [base + shift[name] + each for base, each in zip(BASE, noise, strict=True)])
    result = answer(runs)
    assert result.tests == 3
    raw = [row(result, name).pair.p for name in shift]
    assert [row(result, name).adjusted for name in shift] == holm_adjust(raw)
    assert any(p < 0.05 < adjusted for p, adjusted in zip(raw, holm_adjust(raw), strict=True))
    assert [each.pair.mean for each in result.rows[1:]] == sorted(each.pair.mean for each in result.rows[1:])


def test_more_is_better_for_an_accuracy():
    better = runs_of("a=1", (0.95, 0.96, 0.96, 0.97, 0.95), "top1", goals={"top1": "max"})
    base = runs_of("default", (0.90, 0.92, 0.91, 0.91, 0.90), "top1", goals={"top1": "max"})
    result = answer([*base, *better, *runs_of("a=2", (0.81, 0.85, 0.83, 0.84, 0.8), "top1", goals={"top1": "max"})])
    assert not result.lower_is_better
    assert [each.verdict.word for each in result.rows] == ["baseline", "better", "worse"]
    assert "raise the validation top1" in prose.question(result)
    assert "raise the test top1" in prose.question(replace(result, at="test"))


def test_seeds_without_a_partner_are_left_out_and_counted():
    result = answer([*runs_of("default", (*BASE, 1.0)), *runs_of("a=1", (None, *BASE[1:], None, 9.0))])
    assert row(result, "a=1").pair.n == 4
    assert row(result, "a=1").pair.mean == 0.0
    assert row(result, "a=1").unpaired == (7,)
    assert "1 unpaired, left out" in row(result, "a=1").sentence


def test_one_seed_never_wins():
    result = answer([*runs_of("default", (1.7,)), *runs_of("a=1", (0.2,))])
    assert result.rows[1].verdict.word == "no verdict"
    assert result.rows[1].sentence == "one seed: no verdict"
    assert prose.sentences(result) == ["These runs cannot tell.", "No verdict on a=1: one seed."]
    apart = answer([*runs_of("default", (1.7, 1.8)), *runs_of("a=1", (None, None, 1.7, 1.8))])
    assert apart.rows[1].verdict.sentence == "no seed in common with the baseline: no verdict"


def test_two_seeds_never_win():
    result = answer([*runs_of("default", (1.70, 1.72)), *runs_of("a=1", (0.70, 0.721))])
    assert result.rows[1].sentence == "too few seeds (2 of 3): no verdict"
    assert prose.sentences(result) == ["These runs cannot tell.", "No verdict on a=1: too few seeds (2 of 3)."]
    assert prose.difference_and_interval(result, result.rows[1].pair)[1] == "[−∞, +∞]"
    three = answer([*runs_of("default", (1.70, 1.72, 1.71)), *runs_of("a=1", (0.70, 0.721, 0.712))])
    assert three.rows[1].verdict.word == "better"


def test_one_diverged_run_takes_away_means_and_differences():
    others = [each + 0.001 * seed for seed, each in enumerate(BASE)]
    runs = [*runs_of("default", BASE), *runs_of("a=1", [*others[:4], math.nan]), *runs_of("a=2", [5.0, *BASE[1:]])]
    result = answer(runs)
    diverging_row = row(result, "a=1")
    assert diverging_row.diverged == (5,)
    assert (diverging_row.pair.n, diverging_row.outcome.n) == (0, 5)
    assert math.isnan(diverging_row.pair.mean)
    assert math.isnan(diverging_row.mean)
    assert (diverging_row.outcome.wins, diverging_row.outcome.losses) == (0, 4)  # and a tie
    assert diverging_row.sentence.endswith("1 of 5 diverged")
    assert diverging_row.verdict.word == "not distinguishable"
    assert prose.seeds(diverging_row) == "4 of 5"
    flag = next(flag for flag in result.flags if flag.about == "diverged")
    assert flag.sentence == "1 of 5 diverged: a=1 s5"
    assert prose.difference_and_interval(result, diverging_row.pair) == ("", "")
    assert prose.figure(result, diverging_row) == "1 of 5 diverged"
    assert prose.difference_and_interval(result, row(result, "a=2").pair)[0] != ""


@pytest.mark.parametrize("validations", [[5.0], [5.0, 9.0, 90.0]])
def test_how_often_a_run_validated_changes_nothing_about_a_diverged_one(validations):
    """A penalty of the worst validation of all had another sign where runs validated before they had learned."""
    history = [{"step": step, "tokens": step, "loss": loss} for step, loss in enumerate([*validations, 1.7], 1)]
    runs = [*runs_of("default", BASE, validations=history), *runs_of("a=1", [*BASE[:4], math.nan], validations=history)]
    result = answer(runs)
    assert row(result, "a=1").outcome == simultaneous_tests.OutcomeTest(5, 1, 0, 0, 1, 1.0, 1.0)
    assert row(result, "a=1").verdict.word == "not distinguishable"


def test_three_of_five_diverged_is_no_improvement_however_good_the_others_are():
    ours = [math.nan, BASE[1] - 0.05, math.nan, BASE[3] - 0.051, math.nan]
    result = answer([*runs_of("default", BASE), *runs_of("a=1", ours)])
    assert row(result, "a=1").verdict.word == "not distinguishable"
    assert row(result, "a=1").verdict.sentence == "not distinguishable: ends better at 2 and worse at 3 of 5 seeds"
    assert prose.sentences(result)[0] == "Not shown by these runs."
    assert "3 of 5 diverged" in " ".join(prose.sentences(result))


@pytest.mark.parametrize("state", ["crashed", "out of memory"])
def test_a_run_that_crashed_gives_no_verdict_on_the_others(state):
    broken = runs_of("a=1", [*NEAR], finished=False, outcome={"state": state, "cause": "why"})[:2]
    result = answer([*runs_of("default", BASE), *broken, *runs_of("a=1", [None, None, *NEAR[2:]])])
    assert row(result, "a=1").verdict.word == "no verdict"
    assert "2 of 5" in row(result, "a=1").sentence
    assert any("(why)" in flag.sentence for flag in result.flags)
    assert math.isnan(row(result, "a=1").adjusted)


def test_a_variant_that_always_diverges_is_worse():
    runs = [*runs_of("default", BASE), *runs_of("a=1", [math.nan] * 5), *runs_of("a=2", [6.9, *BASE[1:]])]
    result = answer(runs)
    assert row(result, "a=1").verdict.word == "worse"
    assert row(result, "a=1").sentence == "worse: ends better at 0 and worse at 5 of 5 seeds; 5 of 5 diverged"
    assert prose.figure(result, row(result, "a=1")) == "5 of 5 diverged"
    assert result.rows[-1].variant == "a=1"


def test_the_seeds_that_a_variant_needs_are_for_as_many_tests_however_the_runs_of_others_end():
    near = [figure - 0.01 * (-1) ** seed - 0.004 for seed, figure in enumerate(BASE)]
    needed = []
    for last in (None, BASE[4], math.nan):  # no others, others with figures, others of which a run diverged
        names = () if last is None else (2, 3, 4)
        others = [run for name in names for run in runs_of(f"a={name}", [5.0 + name, *BASE[1:4], last])]
        result = answer([*runs_of("default", BASE), *runs_of("a=1", near), *others])
        needed.append((result.tests, row(result, "a=1").verdict.needed))
    assert [tests for tests, _ in needed] == [1, 4, 4]
    assert needed[0][1] < needed[1][1] == needed[2][1]


def test_a_baseline_that_diverges_is_an_outcome_too():
    runs = [*runs_of("default", [math.nan] * 5), *runs_of("a=1", BASE), *runs_of("a=2", [math.nan] * 4 + [4.0])]
    result = answer(runs)
    assert row(result, "a=1").verdict.word == "better"
    assert result.base.sentence == "baseline; 5 of 5 diverged"
    nothing = answer([*runs_of("default", [math.nan] * 3), *runs_of("a=1", [math.nan] * 3)])
    assert nothing.rows[1].verdict.word == "no verdict"


def test_runs_that_are_not_finished_do_not_count():
    waiting = runs_of("a=1", (9.0, 9.0, 9.0, 9.0, 9.0), finished=False)
    result = answer([*runs_of("default", BASE), *waiting[3:], *runs_of("a=1", BASE[:3])])
    assert row(result, "a=1").unfinished == (4, 5)
    assert row(result, "a=1").pair.n == 3
    assert prose.seeds(row(result, "a=1")) == "3 of 5"
    assert "2 not finished" in row(result, "a=1").sentence
    with pytest.raises(UsageError, match="no run is finished: 5 were started"):
        answer(waiting)


def test_what_is_not_comparable_gets_no_verdict():
    odd = runs_of("a=1", [each - 1 for each in BASE], tokens=1_900_000)
    result = answer([*runs_of("default", BASE, tokens=3_100_000), *odd, *runs_of("a=2", NEAR, tokens=3_100_000)])
    assert row(result, "a=1").verdict.word == "not comparable"
    assert row(result, "a=1").verdict.sentence == "not comparable: tokens"
    assert row(result, "a=1").pair.n == 0
    assert result.tests == 1
    assert row(result, "a=2").verdict.word == "better"
    assert result.comparability_errors == ("these runs are not comparable: tokens 1.9M (a=1) against 3.1M (default)",)


def test_the_goal_may_be_named():
    runs = study({"default": 1.7, "a=1": 1.5})
    assert answer(runs, goal="val/bits_per_byte").goal == "bits_per_byte"
    assert answer(runs, goal="bits_per_byte").base.mean == pytest.approx(answer(runs).base.mean / 1.17, rel=1e-3)
    assert list(answer(runs).base.others) == ["bits_per_byte"]
    with pytest.raises(UsageError, match=r"--goal 'los' is none of default. Did you mean 'loss'\? There are: loss and"):
        answer(runs, goal="los")


def test_the_last_validation_may_decide():
    runs = [*runs_of("default", BASE, best={"loss": 1.0}), *runs_of("a=1", [b - 0.5 for b in BASE], best={"loss": 1.0})]
    assert answer(runs, at="best").rows[1].pair.mean == 0.0
    assert answer(runs).rows[1].pair.mean == pytest.approx(-0.5)
    with pytest.raises(UsageError, match="taken at last, last:3"):
        answer(runs, at="first")


def test_the_baseline_may_be_named():
    runs = [*runs_of("default", BASE), *runs_of("a=1", [each - 0.3 + 0.01 * i for i, each in enumerate(BASE)])]
    assert answer(runs, baseline="a=1").base.variant == "a=1"
    assert answer(runs, baseline="a=1").rows[1].pair.mean == -answer(runs).rows[1].pair.mean
    assert answer(runs, baseline="a=1").rows[1].verdict.word == "worse"
    with pytest.raises(UsageError, match=r"--baseline 'a=2' is no variant. Did you mean 'a=1'\?"):
        answer(runs, baseline="a=2")


def test_two_recipes_may_be_compared():
    mine, yours = (
        runs_of("default", BASE),
        runs_of("default", [b - 0.3 + 0.01 * i for i, b in enumerate(BASE)], recipe="other"),
    )
    result = answer([*mine, *yours], baseline="other")
    assert [each.variant for each in result.rows] == ["other/default", "lm-tiny/default"]
    assert result.rows[1].verdict.word == "worse"
    assert result.recipe == "lm-tiny and other"
    with pytest.raises(UsageError, match="'default' stands for lm-tiny/default and other/default"):
        answer([*mine, *yours], baseline="default")


def test_nothing_to_compare_is_said():
    with pytest.raises(UsageError, match="there is no run to compare"):
        answer([])
    alone = answer(runs_of("default", BASE))
    assert prose.sentences(alone)[-1] == "There is nothing yet to compare it with."
    assert prose.question(alone) == "What is the validation loss of lm-tiny?"


def labelled(*choices):
    runs = []
    for index, each in enumerate(choices):
        runs += [run("default" if index == 0 else f"v{index}", seed, choices=each) for seed in (1, 2)]
    return [each.label for each in sorted(answer(runs).rows, key=lambda row: row.variant)]


def test_variants_are_called_by_what_they_chose():
    rope, alibi = {"position": "RoPE(base=500)"}, {"position": "ALiBi"}
    assert labelled(rope, alibi) == ["RoPE(base=500)", "ALiBi"]
    assert labelled({**rope, "lr": 0.001}, {**alibi, "lr": 0.001}, {**rope, "lr": 0.003}, {**alibi, "lr": 0.003}) == [
        "default", "ALiBi", "lr=0.003", "ALiBi + lr=0.003",
    ]  # fmt: skip
    assert labelled(rope, rope) == ["default", "v1"]


def test_tuning_is_told_and_is_no_choice_that_varies():
    runs = []
    for name, rate in (("default", 0.001), ("position=ALiBi", 0.003)):
        runs += [run(name, seed, choices={"position": name, "lr": rate}) for seed in (1, 2)]
    tuning = {"default": "lr 0.001, best of 3 on validation", "position=ALiBi": "lr 0.003, best of 3 on validation"}
    result = answer(runs, tuned=tuning)
    assert result.varied == ("position",)
    assert row(result, "position=ALiBi").tuned == "lr 0.003, best of 3 on validation"
    assert answer(runs).varied == ("position", "lr")


def test_costs_are_medians_over_seeds():
    rates = {1: 9000.0, 2: 5000.0, 3: 9100.0}
    runs = [
        run(
            "default", seed, **{"cost.tokens_per_s": rate, "cost.seconds": 100.0 * seed, "cost.peak_memory_bytes": seed}
        )
        for seed, rate in rates.items()
    ]
    row = answer(runs).base
    figures = [row.cost[name] for name in ("tokens_per_s", "seconds", "peak_memory_bytes")]
    assert (*figures, row.kernel) == (9000.0, 200.0, 3, "SDPA (flash)")
    bare = answer([run("default", 1, cost={}, **{"setting": {}})]).base.cost
    assert len(bare) == 6
    assert all(math.isnan(each) for each in bare.values())


def test_answers_in_words():
    runs = [*runs_of("position=RoPE", BASE)]
    for name, shift in {"position=T5": -0.2, "position=NoPosition": 0.3, "position=ALiBi": 0.0}.items():
        noise = np.random.default_rng(len(name)).normal(0, 0.03, 5)
        runs += runs_of(name, [base + shift + each for base, each in zip(BASE, noise, strict=True)])
    result = answer(runs)
    assert result.baseline == "position=RoPE"
    assert prose.question(result) == "Does another position than RoPE lower the validation loss of lm-tiny?"
    sentences = prose.sentences(result)
    assert sentences[0] == "Yes."
    assert sentences[1].startswith("T5 is better by 0.")
    assert "nats (95 % interval 0." in sentences[1]
    assert sentences[2].startswith("NoPosition is worse by 0.")
    assert sentences[3].startswith("Not distinguishable from RoPE with 5 seeds: ALiBi (")
    worse = answer([each for each in runs if each.variant in ("position=RoPE", "position=NoPosition")])
    assert prose.sentences(worse)[0] == "No."
    equal = answer([each for each in runs if each.variant in ("position=RoPE", "position=ALiBi")])
    assert prose.sentences(equal)[0] == "Not shown by these runs."


@pytest.mark.parametrize("noise", [1e-9, 0.01, 0.03, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("shift", [0.0, 1e-6, 0.01, 0.03, 1.0])
def test_no_sentence_has_brackets_in_brackets(shift, noise):
    runs = runs_of("position=RoPE", BASE)
    for name in ("position=T5", "position=ALiBi"):
        draws = np.random.default_rng(len(name)).normal(0, noise, 5)
        runs += runs_of(name, [base + shift + each for base, each in zip(BASE, draws, strict=True)])
    runs += runs_of("position=Learned", [math.nan, *BASE[1:]])
    for text in (*prose.sentences(answer(runs)), *(each.verdict.sentence for each in answer(runs).rows)):
        depth = 0
        for letter in text:
            depth += (letter == "(") - (letter == ")")
            assert depth in (0, 1), text


def test_many_undecided_variants_are_counted_and_not_listed():
    runs = study(dict.fromkeys(("default", *(f"a={index}" for index in range(8))), 1.7), start=4)
    (_, sentence) = prose.sentences(answer(runs))
    assert sentence.startswith("Not distinguishable from default with 5 seeds: 8 variants (about")


def test_ledgers_may_lie_anywhere():
    assert answer(runs_of("default", BASE)).runs["default"][1].path == Path("runs/ledger.json")


def test_what_was_solved_and_tuned_is_not_what_varies():
    runs = [
        run(variant, seed, choices={"ffn": ffn, "hidden": hidden, "lr": lr})
        for variant, ffn, hidden, lr in (("default", "MLP", None, 0.1), ("ffn=swiglu", "SwiGLU", 258, 0.2))
        for seed in (1, 2)
    ]
    notes = {"ffn=swiglu": "hidden 258, parameters -0.097% from the baseline's; lr 0.2, best of 2 on validation"}
    assert answer(runs, tuned=notes).varied == ("ffn",)
    assert set(answer(runs).varied) == {"ffn", "hidden", "lr"}


def test_an_option_of_a_part_among_several_is_called_as_its_variant_is():
    variants = {
        "default": ("Cosine(warmup=9)", "A"), "warmup=0": ("Cosine", "A"), "block=b,warmup=0": ("Cosine", "B"),
    }  # fmt: skip
    runs = [
        run(name, 1, choices={"schedule": schedule, "block": block}) for name, (schedule, block) in variants.items()
    ]
    assert [each.label for each in answer(runs).rows] == [each.variant for each in answer(runs).rows]


def classified(variant, accuracies, losses=None, **options):
    """Runs that are judged by accuracy; None as accuracy leaves it out of the record, NaN records it as no number."""
    key, _, choice = variant.partition("=")
    result = []
    for seed, accuracy in enumerate(accuracies, 1):
        measured = {"loss": (losses or [0.5] * 9)[seed - 1], **({} if accuracy is None else {"top1": accuracy})}
        last = {"step": 100, "tokens": 1, **measured}
        changes = {"goals": {"top1": "max", "loss": "min"}, "best": measured, "last": measured, "validations": [last]}
        result.append(run(variant, seed, choices={key: choice} if choice else {}, **{**changes, **options}))
    return result


@try_each(itertools.product(["last", "best", "last:1"], [None, math.nan, math.inf], [1, 3, 5], ["variant", "baseline"]))
def test_a_finished_run_without_its_figure_is_never_left_out(at, unmeasured, seed, whose):
    good, usual = [0.95, 0.96, 0.94, 0.95, 0.97], [0.90, 0.91, 0.89, 0.90, 0.92]
    (good if whose == "variant" else usual)[seed - 1] = unmeasured
    result = answer([*classified("default", usual), *classified("a=1", good)], at=at)
    variant = row(result, "a=1")
    assert variant.verdict.word == "no verdict", variant.sentence
    assert variant.pair.n == 0
    failed = variant if whose == "variant" else result.base
    assert failed.failures == {seed: "without a figure"}
    assert "1 of 5 without a figure" in " ".join(flag.sentence for flag in result.flags)


def test_a_metric_that_decides_nothing_may_be_missing():
    runs = [*classified("default", BASE), *classified("a=1", [*BASE[:4], None])]
    result = answer(runs, goal="loss")
    assert not row(result, "a=1").failures
    assert math.isnan(row(result, "a=1").others["top1"][0])


def test_a_loss_that_is_no_number_is_divergence_whatever_decides():
    runs = [*classified("default", BASE), *classified("a=1", NEAR, losses=[0.5, math.nan, 0.5, 0.5, 0.5])]
    assert row(answer(runs), "a=1").failures == {2: "diverged"}


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_of_the_last_validations_is_of_the_same_share_of_training(seed):
    rng = np.random.default_rng(seed)
    count, every, often = int(rng.integers(2, 5)), 100, int(rng.choice([20, 25, 50]))

    def falling(variant, interval, stretch=1):
        """Runs of one falling curve, of which an earlier part is higher."""
        last = {"loss": 2.0}
        result = []
        for number in range(1, 6):
            validations = [{"step": step * stretch, "tokens": 1, "loss": 2 + (500 - step) / 500 + number / 100}
                           for step in range(interval, 501, interval)]  # fmt: skip
            changes = {"last": last, "best": last, "validations": validations, "steps": 500 * stretch}
            result.append(run(variant, number, choices={"a": variant}, **changes))
        return result

    unequal = answer([*falling("default", every), *falling("a=1", often)], at=f"last:{count}")
    assert row(unequal, "a=1").verdict.word == "not comparable"
    assert any(f"--at last:{count}" in sentence for sentence in unequal.comparability_errors)
    assert not answer([*falling("default", every), *falling("a=1", often)], at="last").comparability_errors
    longer = answer([*falling("default", every), *falling("a=1", every, stretch=2)], at=f"last:{count}")
    assert not longer.comparability_errors  # as many validations, at the same shares of training


def test_a_side_figure_that_was_measured_less_often_takes_no_verdict_away():
    runs = []
    for variant, figures in (("default", BASE), ("a=1", NEAR)):
        for seed, loss in enumerate(figures, 1):
            validations = [{"step": step, "tokens": step, "loss": loss} for step in (100, 200, 300)]
            validations[-1]["bleu"] = 0.3
            last = {"loss": loss, "bleu": 0.3}
            goals = {"loss": "min", "bleu": "max"}
            choices = {"a": "1"} if variant != "default" else {}
            runs.append(run(variant, seed, choices=choices, goals=goals, last=last, best=last, validations=validations))
    variant = row(answer(runs, at="last:3"), "a=1")
    assert variant.verdict.word == "better"
    assert math.isnan(variant.others["bleu"][0])


@pytest.mark.parametrize("state", ["crashed", "out of memory"])
def test_a_run_that_crashed_before_its_first_record_has_ended(state):
    broken = run("a=1", 1, goals={}, finished=False, validations=[], best={}, last={}, outcome={"state": state})
    assert broken.ended_early
    assert broken.has_ended
    result = answer([*runs_of("default", BASE), broken, *runs_of("a=1", [None, *NEAR[1:]])])
    assert not [flag for flag in result.flags if "not finished and not counted" in flag.sentence]
