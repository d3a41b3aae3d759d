"""The sizes of a comparison over sizes: parse --scale, the options of each size, and equal compute within a size."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare import plan, verdict
from zoo.compare.design import PLAIN_DESIGN, Procedure
from zoo.compare.match_and_tune import TuningCost, total_cost
from zoo.compare.plan import Arm, Comparison, Point, ZooFit
from zoo.compare.prepare_runs import Stage
from zoo.compare.run_records import BACKWARD, Record, read_ledgers
from zoo.errors import UsageError
from zoo.io import limits
from zoo_designs import scale_table
from zoo_designs.scale_result import LEAST_RATIO, LEAST_SIZES, ScaleResult, SizeAnswer, scale_result

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.document import Section
    from zoo.compare.run_comparison import ComparisonRun, Runner
    from zoo.compare.verdict import Answer
    from zoo.training.config_meter import ConfigMeter

Lines = Callable[[Comparison], list[tuple[str, ...]]]
NAME = "scale"  # in runs.json
EQUAL_FLOPS = "flops"  # --budget without an amount: what the baseline of a size takes


def parse_scale(texts: Sequence[str], varied: Sequence[plan.Factor]) -> list[plan.Variant]:
    """The sizes of ``--scale dim=64,96,128``, as options: of several their first values are one size, and so on.

    An option without a section is the model's. Raises UsageError for fewer than three sizes, unequal numbers of values,
    and options that vary.
    """
    factors = []
    for text in texts:
        key, equals, values = text.partition("=")
        pieces = plan.split_values(values)
        if not equals or not key or len(pieces) < LEAST_SIZES:
            raise UsageError(
                f"--scale {text!r} is not OPTION=VALUE,VALUE,VALUE: two sizes to fit and one to predict, or more, such "
                "as --scale dim=64,96,128,192"
            )
        name = key.removeprefix("--")
        factors.append(plan.make_factor(name if "." in name else f"model.{name}", pieces))
        if len(factors[-1].values) < len(pieces):
            raise UsageError(f"--scale {text!r}: a value occurs twice.")
    keys = [factor.key for factor in factors]
    for factor in factors:
        if factor.key in [varying.key for varying in varied] or keys.count(factor.key) > 1:
            raise UsageError(f"--scale {factor.key}: an option either varies or makes the size, and once.")
        if len(factor.values) != len(factors[0].values):
            raise UsageError(
                f"--scale: {factors[0].key} has {len(factors[0].values)} values and {factor.key} has "
                f"{len(factor.values)}. A size takes one of each."
            )
    return list(zip(*(factor.choices() for factor in factors), strict=True))


def scale_texts(comparison: Comparison) -> list[str]:
    """The texts of --scale, one for each option: a file has them in one."""
    value = comparison.design_values[NAME]
    return list(value) if isinstance(value, list) else re.split(r",(?=[\w.]+=)", value)


def check_scale(comparison: Comparison) -> list[plan.Variant]:
    """The sizes of a comparison. Raises UsageError for options that do not go with --scale."""
    sizes = parse_scale(scale_texts(comparison), comparison.vary)
    if comparison.until:
        name = "until" if comparison.until == "decided" else "looks"
        raise UsageError(f"--{name} does not go with --scale: compare at one size with it.")
    what = (comparison.budget or "").partition("=")[0]
    if what == "time" or (what == EQUAL_FLOPS and comparison.budget != EQUAL_FLOPS):
        raise UsageError(
            f"--budget {comparison.budget} gives all sizes the same, and a law of compute needs different ones.\n"
            "--budget flops gives the variants of each size what the baseline of that size takes."
        )
    return sizes


def with_size(comparison: Comparison, size: plan.Variant) -> Comparison:
    """The comparison with the options of one size."""
    options = (*comparison.options, *(choice.word for choice in size))
    return replace(comparison, options=options, design=PLAIN_DESIGN, design_values={})


def comparison_at(comparison: Comparison, size: plan.Variant, fits: ZooFit, costs: ConfigMeter) -> Comparison:
    """The comparison at one size. Raises UsageError as `zoo fit` does."""
    at_size = with_size(comparison, size)
    base = plan.parse_baseline(comparison.base, comparison.vary) if comparison.base else ()

    def point(words: Sequence[str]) -> Point:
        return fits.point((comparison.recipe, *words, *(choice.word for choice in base)))

    heads = heads_of_one_width(point(comparison.options), point(at_size.options), at_size.options)
    at_size = replace(at_size, options=(*at_size.options, *heads))
    if comparison.budget != EQUAL_FLOPS:
        return at_size
    config = point(at_size.options).config
    steps = config["trainer"].get("max_steps")
    if not isinstance(steps, int) or steps < 1:
        raise UsageError("--budget flops counts the baseline's steps: give --trainer.max_steps.")
    flops = BACKWARD * costs.cost(config).flops * (costs.tokens_per_step(config) * steps)
    return replace(at_size, budget=f"flops={flops:.6g}")


def heads_of_one_width(recipe: Point, point: Point, words: Sequence[str]) -> tuple[str, ...]:
    """``--model.heads=N`` that keeps the recipe's width of a head, which muP needs; nothing for other models.

    Raises UsageError where a width is no multiple of it.
    """
    recipe_options, options = (configuration.config["model"].get("init_args", {}) for configuration in (recipe, point))
    if not uses_mup(point) or any(word.startswith("--model.heads=") for word in words):
        return ()
    sizes = [side.get(name) for side in (recipe_options, options) for name in ("dim", "heads")]
    if not all(isinstance(size, int) and size > 0 for size in sizes) or recipe_options["dim"] == options["dim"]:
        return ()
    width = recipe_options["dim"] // recipe_options["heads"]
    if options["dim"] % width:
        raise UsageError(
            f"--scale: with muP all heads have one width, {width} in this recipe, and dim={options['dim']} is no "
            "multiple of it.\nTake multiples, or name the heads: --scale heads=2,3,4"
        )
    return (f"--model.heads={options['dim'] // width}",)


def uses_mup(point: Point) -> bool:
    """Whether a configuration initialises by muP, so that one learning rate serves all widths."""
    init = point.config["model"].get("init_args", {}).get("init")
    path = init.get("class_path", "") if isinstance(init, Mapping) else init
    return str(path).rpartition(".")[2].lower() == "mup"


def rate_notes(comparison: Comparison, arms: Sequence[Arm]) -> list[str]:
    """What to know about the learning rates of different sizes; ``arms`` are those of one size."""
    if comparison.tune and ".lr=" in comparison.tune:
        return ["The learning rate was chosen for each variant at each size."]
    if all(uses_mup(arm.point) for arm in arms):
        return ["One learning rate for all sizes, by muP, which keeps the best one about the same at any width."]
    rate = arms[0].point.config["model"].get("init_args", {}).get("lr")
    return [
        f"All sizes have one learning rate{'' if rate is None else f', {rate:g}'}, which suits one of them: use "
        "--model.init MuP --model.tie false, or --tune model.lr=…"
    ]


def align_variants(stages: Sequence[Stage]) -> list[Stage]:
    """Each size with the variants that all sizes have, in one order; those that some size lacks are its invalid ones.

    Raises UsageError if the baseline alone remains.
    """
    by_size = [{plan.variant_text(arm.variant): arm for arm in stage.arms} for stage in stages]
    first_size, *others = by_size
    common = [name for name in first_size if all(name in size for size in others)]
    missing = sorted({name for size in by_size for name in size} - set(common))
    if len(common) < 2:
        raise UsageError(f"no variant can be built at all sizes: {', '.join(missing)} cannot at some.")
    invalid = dict.fromkeys(missing, "some size cannot have it")
    return [
        replace(stage, arms=tuple(size[name] for name in common), invalid=invalid)
        for stage, size in zip(stages, by_size, strict=True)
    ]


def training_compute(arm: Arm, costs: ConfigMeter) -> float:
    """Training FLOPs of a run, up to the tokens of a step, which all sizes share unless the data vary."""
    steps = arm.point.config["trainer"].get("max_steps")
    flops = BACKWARD * costs.cost(arm.point.config).flops
    return float(flops * (steps if isinstance(steps, int) and steps > 0 else 1))


def check_compute(labels: Sequence[str], computes: Sequence[float]) -> None:
    """Raise UsageError, before anything is run, for two sizes of equal training FLOPs; ``computes`` are sorted."""
    for index, (smaller, larger) in enumerate(itertools.pairwise(computes)):
        if larger <= LEAST_RATIO * smaller:
            raise UsageError(
                f"--scale: {labels[index]} and {labels[index + 1]} take the same FLOPs, {larger:.3g}, and a law of "
                "loss and compute needs sizes that differ.\nScale what costs compute, such as dim=64,96,128."
            )


def size_records(home: Path, record: Record) -> list[tuple[str, tuple[str, ...], Record]]:
    """Label, variants and record of every size of a comparison. Raises UsageError if runs.json is damaged."""
    try:
        return [
            (
                str(size["label"]), tuple(map(str, size["variants"])),
                replace(
                    record, folders=tuple(Path(os.path.normpath(home / run)) for run in size["runs"]),
                    baseline=str(size["variants"][0]), budget=size["budget"],
                    tuned={str(name): str(text) for name, text in size["tuned"].items()},
                    tuning=dict(size["tuning"]), design={},
                ),
            )
            for size in record.design[NAME]["sizes"]
        ]  # fmt: skip
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UsageError(
            f"{home}: its list of sizes is damaged: {limits.describe_damage(error)}. Run the comparison again."
        ) from error


def _tuning_notes(record: Record) -> list[str]:
    """What tuning took at all sizes together."""
    costs = [
        cost for size in record.design[NAME]["sizes"] if (cost := total_cost(size.get("tuning") or {})) is not None
    ]
    if not costs:
        return []
    total = TuningCost(sum(c.runs for c in costs), sum(c.steps for c in costs), sum(c.seconds for c in costs))
    return [f"Tuning at all sizes took {total}."]


class ScaleProcedure(Procedure):
    """Runs every variant at every size, and fits laws."""

    def title(self, comparison: Comparison, usual: str) -> str:
        """``norm-scale``."""
        return f"{usual}-scale"

    def command_lines(self, comparison: Comparison, usual: Lines) -> list[tuple[str, ...]]:
        """Those of every size. Raises UsageError for errors that can be found without torch.

        Sizes are without a budget of FLOPs and without muP's heads, which need a model.
        """
        budget = None if comparison.budget == EQUAL_FLOPS else comparison.budget
        return [
            line for size in check_scale(comparison)
            for line in usual(replace(with_size(comparison, size), budget=budget))
        ]  # fmt: skip

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The variants at every size, the largest size last, as far as no run is needed. Raises UsageError."""
        costs = runner.meter
        requests = {plan.variant_text(size): comparison_at(comparison, size, runner.fits, costs)
                    for size in check_scale(comparison)}  # fmt: skip
        stages = align_variants([replace(runner.draft(request), label=label) for label, request in requests.items()])
        computes = {stage.label: training_compute(stage.arms[0], costs) for stage in stages}
        order = sorted(computes, key=computes.__getitem__)
        check_compute(order, [computes[label] for label in order])
        return sorted(stages, key=lambda stage: computes[stage.label])

    def check_goal(self, goals: Mapping[str, str], goal: str) -> None:
        """Raise UsageError unless the goal is a loss: a power law is of something that falls towards E."""
        if goals.get(goal) != "min":
            losses = ", ".join(loss for loss, direction in goals.items() if direction == "min")
            raise UsageError(f"--scale fits a law of loss, and {goal} is better the higher it is: --goal {losses}")

    def notes(self, run: ComparisonRun) -> list[str]:
        """Sentences about the learning rates of several sizes, and what is left out."""
        stage = run.stages[-1]
        exclusions = [f"Left out, because {sentence}: {name}." for name, sentence in stage.invalid.items()]
        return [*rate_notes(run.comparison, stage.arms), *exclusions]

    def details(self, comparison: Comparison) -> dict[str, Any]:
        """The sizes as they were written."""
        return {NAME: scale_texts(comparison)}

    def record(self, run: ComparisonRun) -> dict[str, Any]:
        """The runs of every size; folders are relative to that of the comparison."""
        seeds, home = run.comparison.seeds, run.place
        return {
            "notes": self.notes(run),
            "sizes": [
                {
                    "label": stage.label, "budget": stage.request.budget, "variants": [arm.name for arm in stage.arms],
                    "tuned": stage.tuned, "tuning": dict(stage.tuning),
                    "runs": [os.path.relpath(arm.point.folder(seed), home) for seed in seeds for arm in stage.arms],
                }
                for stage in run.stages
            ],
        }  # fmt: skip

    def complete(self, answer: Answer, home: Path, record: Record) -> ScaleResult:
        """What the finished runs of all sizes say. Raises UsageError for no runs, and for a damaged record."""
        sizes = []
        for label, names, at_size in size_records(home, record):
            ledgers = read_ledgers(at_size.folders, at_size.budget)
            at = verdict.answer(ledgers, at_size.baseline, answer.goal, answer.at, at_size.tuned, (), at_size.varied)
            sizes.append(SizeAnswer(label, at, names))
        return scale_result(sizes, [*map(str, record.design[NAME].get("notes", ())), *_tuning_notes(record)])

    def sections(self, answer: Answer) -> list[Section]:
        """Prediction and check, laws, differences by size."""
        return scale_table.sections(answer)

    def charts(self, answer: Answer) -> list[ReportChart]:
        """Losses over compute, and differences by size."""
        return scale_table.draw_scaling(answer)

    def as_data(self, answer: Answer) -> dict[str, Any]:
        """Sizes, laws and predictions."""
        result: ScaleResult = answer.finding
        return result.as_data()
