"""`zoo compare --to`: steps until a validation reaches a target, censored where none does."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import fabricate
import numpy as np
import pytest

from zoo.cli.find_command import find_command, parse
from zoo.compare import table
from zoo.compare.command import expand_target, read_comparison, run
from zoo.compare.error_budget import look_and_record
from zoo.compare.journal import PLAN, Event, RunsQuestion, append_event
from zoo.compare.plan import Arm, Comparison, Point, list_jobs, parse_factors, unfinished_jobs
from zoo.compare.prepare_runs import Stage
from zoo.compare.prose import question
from zoo.compare.report import write_report
from zoo.compare.run_comparison import ComparisonRun
from zoo.compare.run_records import (
    Record,
    RunRecord,
    comparison_path,
    load_record,
    parse_moment,
    save_record,
    target_of,
)
from zoo.compare.simultaneous_tests import censor_alike, compare_outcomes, compare_samples, judge_all, judge_outcomes
from zoo.compare.statistics import paired_t_test
from zoo.compare.targets import censored_interval, describe_targets, draw_survival, survival, target_ratio
from zoo.compare.tensorboard_summary import write_summary
from zoo.compare.verdict import answer
from zoo.errors import UsageError

TARGET = 2.5
SHAPES = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "skew": lambda rng, size: rng.exponential(size=size) - math.log(2),
    "heavy": lambda rng, size: rng.standard_t(3, size=size),
}  # noise of log2 steps


def run_content(seed, variant, step, way="min", **changes):
    """The record of a run whose straight lines between validations reach TARGET at ``step``; never for None."""
    sign = 1 if way == "min" else -1
    grid = range(fabricate.EVERY, fabricate.STEPS + 1, fabricate.EVERY)
    goal = 1e9 if step is None else step
    values = [{"step": at, "tokens": at * fabricate.PER_STEP, "loss": TARGET + sign * (goal - at) / 1e4} for at in grid]
    content = {"validations": values, "last": values[-1], "best": values[-1], "goals": {"loss": way}}
    content |= {"choices": {"position": variant.partition("=")[2]}, **changes}
    return fabricate.ledger(variant, seed, **content)


def run_to(*args, **changes):
    """The run of such a record."""
    content = run_content(*args, **changes)
    content.pop("format")
    return RunRecord(Path("runs") / "ledger.json", **content)


def compare_steps(ours, theirs, way="min", **changes):
    """The answer to runs that reach the target at these steps, by seed."""
    runs = [run_to(seed, "position=alibi", step, way, **changes) for seed, step in enumerate(ours, 1)]
    runs += [run_to(seed, "default", step, way) for seed, step in enumerate(theirs, 1)]
    return answer(runs, "default", at=f"to:{TARGET}")


@pytest.mark.parametrize("way", ["min", "max"])
@pytest.mark.parametrize("step", [251.0, 700.5, 1250.0, 2999.0])
def test_the_step_is_interpolated_between_the_validations_around_it(step, way):
    assert 2 ** run_to(1, "default", step, way).figure("loss", f"to:{TARGET}") == pytest.approx(step, rel=1e-6)


def test_the_first_validation_that_reaches_the_target_counts_though_later_ones_lose_it_again():
    values = [{"step": step, "loss": loss} for step, loss in ((10, 3.0), (20, math.nan), (30, 2.0), (40, 9.0))]
    run = fabricate.run(validations=values, last={"loss": 9.0})
    assert 2 ** run.figure("loss", "to:2.5") == pytest.approx(20)


def test_a_run_that_reached_the_target_and_diverged_later_has_a_figure_and_others_are_outcomes():
    assert 2 ** fabricate.run(loss=1.9, diverges=2500).figure("loss", "to:2.5") < 2500
    run = fabricate.run(loss=1.9, diverges=500)
    assert math.isnan(run.figure("loss", "to:2.5"))
    assert run.failure("loss", "to:2.5") == "diverged"
    short = run_to(1, "default", None)
    assert math.isnan(short.figure("loss", "to:2.5"))
    assert short.failure("loss", "to:2.5") == "short of the target"
    assert not short.failure("loss")  # its last validation is a figure as any other
    assert fabricate.run(finished=False).figure("loss", "to:2.5") is None


def test_a_target_of_the_first_validation_is_refused():
    with pytest.raises(UsageError, match="reached it by its first validation, at step 250"):
        run_to(1, "default", 100).figure("loss", f"to:{TARGET}")


@pytest.mark.parametrize("way", ["min", "max"])
def test_fewer_steps_are_better_and_the_interval_is_that_of_the_ratio(way):
    theirs = [1000, 1300, 900, 1150, 1210]
    ours = [step * factor for step, factor in zip(theirs, (0.5, 0.52, 0.47, 0.5, 0.55), strict=True)]
    result = compare_steps(ours, theirs, way)
    row = result.rows[1]
    expected = paired_t_test(np.log2(ours), np.log2(theirs))
    assert row.verdict.word == "better"
    assert result.lower_is_better
    ratio = target_ratio(result, row, "steps")
    assert [ratio.value, ratio.low, ratio.high] == pytest.approx(
        [2.0**value for value in (expected.mean, expected.low, expected.high)], rel=1e-5
    )
    text = table.compose_report(result).as_text()
    assert "better by a factor of 0.51 in steps" in text
    assert "log2 steps to loss 2.5" in text
    data = json.loads(table.as_json(result))
    assert data["variants"][1]["target_ratios"]["tokens"]["value"] == pytest.approx(ratio.value)
    assert "## Until the target" in table.compose_report(result).as_markdown()


def test_a_step_that_costs_more_is_in_the_ratio_of_flops_and_seconds_but_not_of_steps():
    theirs = [1000, 1300, 900, 1150, 1210]
    changes = {"cost.flops_per_token": 2 * 1.84e6, "cost.tokens_per_s": 4750.0}
    result = compare_steps([step * 0.5 for step in theirs], theirs, **changes)
    ratios = [target_ratio(result, result.rows[1], name) for name in ("steps", "FLOPs", "seconds")]
    assert [ratio.value for ratio in ratios] == pytest.approx([0.5, 1.0, 1.0], rel=0.05)


@pytest.mark.parametrize(
    "change", [{"cost.spread": 0.4}, {"setting.machine": "another"}, {"setting.threads": 8}], ids=str
)
def test_seconds_of_unequal_or_busy_machines_are_not_compared(change):
    result = compare_steps([500, 700, 400], [1000, 1300, 900], **change)
    assert target_ratio(result, result.rows[1], "seconds") is None
    assert describe_targets(result)[1][1][-1] == ""


def test_runs_short_of_the_target_are_censored_not_dropped():
    result = compare_steps([500, 700, 400, 600, 550, 580, 640, 610], [1000, None, 900, None, None, 1200, 1100, 1300])
    row = result.rows[1]
    assert row.verdict.word == "better"
    assert row.outcome.wins == 8
    assert "3 of 8 short of the target" in table.compose_report(result).as_text()
    ratio = target_ratio(result, row, "steps")
    assert 0 < ratio.high < 1
    assert describe_targets(result)[1][0][1] == "5 of 8"


def with_steps(ours, theirs, our_steps, their_steps=fabricate.STEPS):
    """The answer to runs of unequal length."""
    runs = []
    for name, steps, end in (("position=alibi", ours, our_steps), ("default", theirs, their_steps)):
        for seed, step in enumerate(steps, 1):
            content = run_content(seed, name, step)
            validations = [validation for validation in content["validations"] if validation["step"] <= end]
            changes = {"steps": end, "tokens": end * fabricate.PER_STEP, "last": validations[-1]}
            changes["validations"] = validations
            changes |= {"setting.budget": "flops=1e12", "cost.flops_per_token": 3e9 / end}
            runs.append(run_to(seed, name, step, **changes))
    return answer(runs, "default", at=f"to:{TARGET}")


@pytest.mark.parametrize("ends", [(1500, 3000), (3000, 1500)], ids=str)
def test_runs_of_unequal_length_are_compared_up_to_the_earlier_end_of_a_pair(ends):
    soon, late = [600 + 20 * seed for seed in range(8)], [2300 + 30 * seed for seed in range(8)]
    short_last = ends[0] < ends[1]
    result = with_steps(late, late, *ends)
    row = result.rows[1]
    assert row.verdict.word == "no verdict"  # no run is known to be sooner
    assert (row.outcome.wins, row.outcome.losses) == (0, 0)
    ratio = target_ratio(result, row, "steps")
    assert ratio.low <= 1 <= ratio.high
    assert ratio.low == pytest.approx(1500 / 2510 if short_last else 0, rel=0.03)  # known by the own end alone
    assert "up to the end of the shorter" in table.compose_report(result).as_text()
    other = with_steps(soon, late, *ends)
    assert other.rows[1].verdict.word == "better"  # sooner within what both have trained
    assert target_ratio(other, other.rows[1], "steps").high < 1


def test_a_run_that_diverged_counts_against_its_variant_up_to_the_end_that_was_planned():
    late = [2300 + 30 * seed for seed in range(8)]
    runs = [run_to(seed, "default", step) for seed, step in enumerate(late, 1)]
    runs += [run_to(seed, "position=alibi", None, **{"steps": 500, "finished": False, "diverged": True})
             for seed in range(1, 8)]  # fmt: skip
    runs.append(run_to(8, "position=alibi", None))
    assert answer(runs, "default", at=f"to:{TARGET}").rows[1].verdict.word == "worse"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_equal_variants_of_which_runs_of_one_are_shorter_are_told_apart_in_five_percent(shape, share):
    rng, seeds, trials, words = np.random.default_rng(7), 8, 400, {}
    end, whole = horizon(shape, 1 - share, 0.2), horizon(shape, 1e-6, 0.2)
    steps = [dict.fromkeys(range(seeds), 2.0**value) for value in (end, whole)]
    false = 0
    for _ in range(trials):
        shared = rng.standard_normal(seeds)
        sides = [10 + 0.2 * (shared + SHAPES[shape](rng, seeds)) for _ in range(2)]
        ours, theirs = (np.where(side > last, np.nan, side) for side, last in zip(sides, (end, whole), strict=True))
        if np.isnan([*ours, *theirs]).any():
            mine, base = censor_alike(dict(enumerate(ours)), dict(enumerate(theirs)), *steps)
            test = compare_outcomes(mine, base, True)
            key = (test.failed, test.base_failed, test.wins, test.losses)
            words.setdefault(key, judge_outcomes(test, test.p, 1).word)
            word = words[key]
        else:
            word = judge_all(compare_samples({"variant": (ours, theirs)}), True)["variant"].word
        false += word in ("better", "worse")
    assert false <= 0.05 * trials


def test_the_curve_of_survival_ends_where_nothing_is_known_any_more():
    points = list(survival({1: math.log2(100), 2: math.nan, 3: math.log2(800)}, 1000.0, {1: 500, 2: 500, 3: 1000}))
    assert points[-1] == (500.0, pytest.approx(2 / 3))
    assert max(step for step, _ in points) == 500.0


def test_two_seeds_exclude_no_ratio():
    result = compare_steps([500, 700], [1000, 1300])
    ratio = target_ratio(result, result.rows[1], "steps")
    assert (ratio.low, ratio.high) == (0, math.inf)


def test_few_seeds_with_censoring_exclude_no_ratio():
    result = compare_steps([500, 700, 400], [None, 1300, 900])
    row = result.rows[1]
    assert row.verdict.word == "not distinguishable"
    ratio = target_ratio(result, row, "steps")
    assert (ratio.low, ratio.high) == (0, math.inf)


def test_a_crashed_run_short_of_the_target_gives_no_verdict():
    runs = [run_to(seed, name, 900) for name in ("default", "position=alibi") for seed in (1, 2, 3, 4)]
    runs[0] = run_to(1, "default", None, finished=False, outcome={"state": "crashed"})
    assert answer(runs, "default", at=f"to:{TARGET}").rows[1].verdict.word == "no verdict"


def test_the_curve_of_survival_falls_by_one_run_at_each_step_and_ends_at_the_censored_share():
    points = list(survival({1: 3.0, 2: math.nan, 3: 4.0, 4: 5.0}, 100.0))
    assert points[0] == (0.0, 1.0)
    assert points[-1] == (100.0, 0.25)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    result = compare_steps([500, 700], [None, 1300])
    assert [chart.name for chart in draw_survival(result)] == ["target"]
    assert draw_survival(answer(fabricate.study({"default": 1.9}))) == []


def test_tensorboard_has_the_curve_and_the_report_the_chart(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = compare_steps([500, 700], [None, 1300])
    write_summary(tmp_path, result)
    shares = {}
    for folder in sorted((tmp_path / "tensorboard").iterdir()):
        if folder.is_dir():
            events = event_accumulator.EventAccumulator(str(folder)).Reload()
            shares[folder.name] = [event.value for event in events.Scalars("comparison/share short of the target")]
    assert sorted(values[-1] for values in shares.values()) == [0.0, 0.5]
    assert (tmp_path / "target.png") in write_report(result, tmp_path)


@pytest.mark.parametrize("text", ["loss", "loss=", "=4", "loss=low", "loss=nan", "loss=inf", "4.2", ""])
def test_a_target_that_is_no_figure_and_number_is_refused(text):
    with pytest.raises(UsageError, match=r"--to loss=4\.2"):
        expand_target({"to": text})


BESIDE = [("margin", "0.01")]
TARGETS = [("to", "loss=4.2"), ("at", "to:4.2")]
CONTRADICTIONS = [
    *(case for target in TARGETS for option in BESIDE
      for case in (([target], [option]), ([option], [target]), ([target, option], []), ([], [target, option]))),
    ([TARGETS[0]], [("goal", "accuracy")]), ([], [TARGETS[0], ("goal", "accuracy")]),
    ([], [TARGETS[0], ("at", "best")]), ([TARGETS[0], ("at", "last")], []),
    ([("goal", "loss"), TARGETS[1]], [("goal", "accuracy")]),
]  # fmt: skip


def request(folder, in_file, in_words):
    """The comparison of options in a file and of others in the command."""
    lines = ["recipe: lm-tiny", "vary: {model.position: [rope, alibi]}", *(f"{name}: {text}" for name, text in in_file)]
    (folder / "request.yaml").write_text("\n".join(lines))
    words = [str(folder / "request.yaml"), *(f"--{name}={text}" for name, text in in_words)]
    return read_comparison(parse(find_command("compare"), words))


@pytest.mark.parametrize(("in_file", "in_words"), CONTRADICTIONS, ids=str)
def test_what_a_target_decides_cannot_be_chosen_beside_it_wherever_both_are_written(in_file, in_words, tmp_path):
    with pytest.raises(UsageError, match="does not go with --"):
        request(tmp_path, in_file, in_words)


def test_a_target_is_a_moment_of_a_figure():
    assert expand_target({"to": "loss=4.2"})["at"] == parse_moment("to:4.2")
    assert target_of("to:4.2") == 4.2
    assert target_of("last:3") is None


@pytest.mark.parametrize(("name", "value"), [("margin", 0.01), ("goal", "accuracy")])
def test_a_recorded_comparison_refuses_what_a_target_does_not_go_with(name, value, tmp_path):
    home = look_home(tmp_path, margin=value if name == "margin" else None, at="last" if name != "goal" else "to:2.5",
                     goal="loss")  # fmt: skip
    words = [str(home), "--goal=accuracy"] if name == "goal" else [str(home), "--to=loss=2.5"]
    with pytest.raises(UsageError, match=f"does not go with --{name}"):
        run(parse(find_command("compare"), words))


def look_home(root, count=6, **changes):
    """The folder of a comparison whose runs have ended, of alibi at half the steps of the baseline."""
    folders = []
    for seed in range(1, count + 1):
        for variant, factor in (("default", 1.0), ("position=alibi", 0.5)):
            content = run_content(seed, variant, (1400 + 37 * seed + 11 * (seed % 3)) * factor)
            folders.append(fabricate.lay(content, root).parent)
    home = comparison_path(root, "lm-tiny", "position")
    save_record(home, Record(tuple(folders), "default", **{"goal": "loss", **changes}))
    return home


def name_target(home, at, ended, count=6, goal="loss"):
    """A line of the journal: runs are about to start, and this decides."""
    question = RunsQuestion(
        goal, "default", at, seeds=tuple(range(1, count + 1)), variants=("default", "position=alibi")
    )
    append_event(home, Event(PLAN, question, ended, {}))


def look_at_target(home, *words):
    """The answer to a command that reads a comparison."""
    options = parse(find_command("compare"), [str(home), *words])
    options = replace(options, values=expand_target(options.values))
    record = replace(load_record(home), at=options.get("at") or load_record(home).at)
    return look_and_record(record, options, home)[0]


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ([("to:2.5", 0)], "better"),
        ([("last", 0), ("to:2.5", 0)], "better"),
        ([("to:2.5", 0), ("to:2.5", 4)], "better"),
        ([("to:2.4", 0)], "not comparable"),
        ([("last", 0)], "not comparable"),
        ([("last", 0), ("to:2.5", 12)], "not comparable"),
        ([("to:2.5", 4)], "not comparable"),
        ([("last", 4), ("to:2.5", 0)], "not comparable"),  # other seeds, after some were seen
        ([], "not comparable"),
    ],
)
def test_only_a_target_that_was_named_before_the_first_run_ended_has_a_verdict(events, word, tmp_path):
    home = look_home(tmp_path)
    for at, ended in events:
        name_target(home, at, ended)
    result = look_at_target(home, "--to=loss=2.5")
    assert result.rows[1].verdict.word == word
    assert ("was chosen before the first run" in table.compose_report(result).as_text()) == (word == "not comparable")
    assert (target_ratio(result, result.rows[1], "steps") is None) == (word == "not comparable")


def test_a_target_after_the_runs_spends_nothing_and_a_changed_journal_names_none(tmp_path):
    home = look_home(tmp_path)
    name_target(home, "last", 0)
    look_at_target(home, "--to=loss=2.5")
    assert look_at_target(home).look.level == pytest.approx(0.04)
    lines = (home / "journal.jsonl").read_text().replace('"at": "last"', '"at": "to:2.5"')
    (home / "journal.jsonl").write_text(lines)
    assert look_at_target(home, "--to=loss=2.5").rows[1].verdict.word == "not comparable"


def test_of_several_targets_named_before_the_runs_later_ones_share_what_is_left(tmp_path):
    home = look_home(tmp_path)
    targets = [2.5 + 0.001 * index for index in range(20)]
    for target in targets:
        name_target(home, f"to:{target:g}", 0)
    levels = [look_at_target(home, f"--to=loss={target:g}").look.level for target in targets]
    assert levels[0] == pytest.approx(0.04)
    assert sum(levels) <= 0.05


class SavedRuns:
    """Saves runs where others would train: ``steps`` has by variant a function of the seed."""

    def __init__(self, root, steps):
        self.root, self.steps, self.failed, self.seeds, self.lines = root, steps, {}, [], []
        self.options = parse(find_command("compare"), ["lm-tiny"])

    def __call__(self, arms, seeds, whole=True):
        self.seeds += seeds
        for arm in arms:
            for seed in seeds:
                fabricate.lay(run_content(seed, arm.name, self.steps[arm.name](seed)), self.root)

    def print_progress(self, line):
        self.lines.append(line)


def saved_arms(root):
    points = [Point(root, "lm-tiny", name, {}) for name in ("default", "position=alibi")]
    return tuple(Arm((), (), point) for point in points)


ARE_SHORT = {
    "all reach it": (lambda seed: 1000 + 40 * seed, lambda seed: 500 + 30 * seed),
    "the baseline never": (lambda seed: None, lambda seed: 500 + 30 * seed),
    "the baseline at times": (lambda seed: 1000 if seed % 2 else None, lambda seed: 500 + 30 * seed),
    "neither": (lambda seed: None, lambda seed: None),
}


@pytest.mark.parametrize("until", ["decided", "5,10", "8,12"])
@pytest.mark.parametrize("name", ARE_SHORT)
def test_looks_after_seeds_decide_about_a_target_and_stop(name, until, tmp_path):
    base, variant = ARE_SHORT[name]
    arms, home = saved_arms(tmp_path), comparison_path(tmp_path, "lm-tiny", "position")
    runner = SavedRuns(tmp_path, {"default": base, "position=alibi": variant})
    name_target(home, f"to:{TARGET}", 0)
    last = 12 if until == "decided" else int(until.partition(",")[2])
    seeds = tuple(range(1, last + 1))
    comparison = Comparison("lm-tiny", make_factors(), seeds=seeds, at=f"to:{TARGET}", until=until)
    planned = ComparisonRun(comparison, [Stage(comparison, arms, goal="loss")], runner)
    planned.run_until_decided()
    result = look_and_record(planned.record, runner.options, home)[0]
    assert result.rows[1].verdict.word == ("no verdict" if name == "neither" else "better")
    assert len(runner.seeds) == last if name == "neither" else len(runner.seeds) <= last


def plan_target(root, target, seeds=(1, 2, 3)):
    """What is checked before training, of runs that may have been made before."""
    comparison = Comparison("lm-tiny", make_factors(), seeds=seeds, goal="loss", at=f"to:{target}")
    arms = saved_arms(root)
    planned = ComparisonRun(comparison, [Stage(comparison, arms, goal="loss")], None)
    planned.check_target(unfinished_jobs(list_jobs(arms, seeds)))


def make_factors():
    return parse_factors(["model.position=rope,alibi"])


def test_a_target_that_a_finished_run_met_by_its_first_validation_is_refused_before_training(tmp_path):
    plan_target(tmp_path, TARGET)
    fabricate.lay(run_content(9, "position=alibi", 100), tmp_path)  # of another seed
    with pytest.raises(UsageError, match="reached it by its first validation"):
        plan_target(tmp_path, TARGET)


def test_runs_that_could_give_no_verdict_are_refused_before_training(tmp_path):
    fabricate.lay(run_content(1, "default", 900), tmp_path)
    with pytest.raises(UsageError, match="1 runs of this comparison had ended before the target was named"):
        plan_target(tmp_path, TARGET)
    plan_target(tmp_path, TARGET, seeds=(2, 3))
    home = comparison_path(tmp_path, "lm-tiny", "position")
    name_target(home, f"to:{TARGET}", 0)  # and went on after a kill
    plan_target(tmp_path, TARGET)


@pytest.mark.parametrize(("labels", "sentence"), [
    (["alibi"], "Does ALiBi reach loss 2.5 of lm-tiny in fewer steps than RoPE?"),
    (["alibi", "none"], "Does another position than RoPE reach loss 2.5 of lm-tiny in fewer steps?"),
    ([], "Does default reach loss 2.5 of lm-tiny in fewer steps than another?"),
])  # fmt: skip
def test_the_question_is_of_steps_to_the_target(labels, sentence):
    names = {"alibi": "ALiBi", "none": "NoPosition"}
    runs = [run_to(seed, "default", 900 + seed, **{"choices": {"position": "RoPE"}}) for seed in (1, 2, 3)]
    runs += [run_to(seed, f"position={label}", 700 + 9 * seed, **{"choices": {"position": names[label]}})
             for label in labels for seed in (1, 2, 3)]  # fmt: skip
    assert question(answer(runs, "default", at=f"to:{TARGET}")) == sentence


@functools.cache
def horizon(shape, censored, noise):
    """The end of training that this share of the baseline's runs exceed."""
    rng = np.random.default_rng(99)
    return np.quantile(10 + noise * (rng.standard_normal(10**6) + SHAPES[shape](rng, 10**6)), 1 - censored)


def simulate_pairs(seeds, ratio, censored, rng, shape):
    """log2 steps of a variant and the baseline, NaN beyond the horizon that ``censored`` of the baseline exceed."""
    shared, noise = rng.standard_normal(seeds), 0.2
    theirs, ours = (10 + noise * (shared + SHAPES[shape](rng, seeds)) for _ in range(2))
    end = horizon(shape, censored, noise)
    ours = ours + math.log2(ratio)
    return np.where(ours > end, np.nan, ours), np.where(theirs > end, np.nan, theirs), end


def error_rates(seeds, ratio, censored, trials, shape="normal", start=0):
    """Rates of false verdicts (of a ratio of 1: of any), of intervals that hold the ratio, and of verdicts."""
    rng = np.random.default_rng(start)
    verdicts = covered = false = 0
    outcomes = {}  # the exact tests by how the runs ended, which repeat
    for _ in range(trials):
        ours, theirs, end = simulate_pairs(seeds, ratio, censored, rng, shape)
        if np.isnan([*ours, *theirs]).any():
            mine, base = (np.where(np.isnan(side), np.inf, side) for side in (ours, theirs))
            key = (np.isnan(ours).sum(), np.isnan(theirs).sum(), (mine < base).sum(), (mine > base).sum())
            if key not in outcomes:
                test = compare_outcomes(dict(enumerate(ours)), dict(enumerate(theirs)), True)
                outcomes[key] = judge_outcomes(test, test.p, 1).word
            word = outcomes[key]
            _, low, high = censored_interval(ours, theirs, [end] * seeds, [end] * seeds, 0.025)
        else:
            tested = compare_samples({"variant": (ours, theirs)})
            word = judge_all(tested, True)["variant"].word
            low, high = tested["variant"].pair.bounds
        verdicts += word in ("better", "worse")
        false += word in ("better", "worse") and (ratio == 1 or (word == "better") != (ratio < 1))
        covered += low <= math.log2(ratio) <= high
    return false / trials, covered / trials, verdicts / trials


@pytest.mark.campaign
@pytest.mark.parametrize("shape", ["normal", "skew", "heavy"])
@pytest.mark.parametrize("ratio", [1.0, 0.8])
@pytest.mark.parametrize("seeds", [2, 3, 5, 7, 10])
def test_verdicts_are_false_in_five_percent_and_intervals_hold_in_93_with_30_percent_censored(seeds, ratio, shape):
    false, covered, decided = error_rates(seeds, ratio, 0.3, 10_000, shape)
    print(f"{shape} ratio {ratio} seeds {seeds}: false {false:.4f} covered {covered:.4f} decided {decided:.3f}")
    assert false <= 0.05
    assert covered >= 0.93


@pytest.mark.parametrize("spelling", ["5.5", "5.50", "5.5e0", "+5.5"])
def test_a_target_is_one_however_it_is_written(spelling):
    assert expand_target({"to": f"loss={spelling}"}) == {"to": f"loss={spelling}", "goal": "loss", "at": "to:5.5"}
    assert expand_target(expand_target({"to": f"loss={spelling}"}))["at"] == "to:5.5"


@pytest.mark.parametrize(
    ("content", "words", "seeds", "until"),
    [
        ("looks: '5,10'", ["--seeds", "3"], 3, None), ("looks: '5,10'", ["--until", "decided"], 30, "decided"),
        ("seeds: 50", ["--until", "decided"], 50, "decided"), ("seeds: 50", ["--looks", "4,8"], 8, "4,8"),
        ("until: decided", ["--seeds", "12"], 12, "decided"), ("seeds: 50", [], 50, None),
        ("looks: '5,10'", [], 10, "5,10"),
    ],
)  # fmt: skip
def test_a_file_and_the_command_line_are_one_comparison(tmp_path, content, words, seeds, until):
    path = tmp_path / "positions.yaml"
    path.write_text(f"recipe: lm-tiny\nvary: {{model.position: [rope, alibi]}}\n{content}\n")
    comparison = read_comparison(parse(find_command("compare"), [str(path), *words]))
    assert (len(comparison.seeds), comparison.until) == (seeds, until)


def test_a_target_of_a_file_gives_way_to_the_command_line(tmp_path):
    path = tmp_path / "positions.yaml"
    path.write_text("recipe: lm-tiny\nvary: {model.position: [rope, alibi]}\nto: loss=4.2\n")
    comparison = read_comparison(parse(find_command("compare"), [str(path), "--at", "last:3"]))
    assert (comparison.goal, comparison.at) == (None, "last:3")
