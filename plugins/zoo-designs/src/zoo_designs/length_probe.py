"""The length probe: losses of language models on texts longer than their training length."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.command_line import ParsedOptions
from zoo.compare.design import Procedure
from zoo.compare.number_format import format_interval, format_span
from zoo.compare.run_records import read_ledgers, read_object
from zoo.compare.simultaneous_tests import NOT_TESTED, T_TEST, Sample, compare_samples, failure_text
from zoo.compare.statistics import Interval, Paired
from zoo.errors import UsageError
from zoo.logging import run_state
from zoo.plugins.safe_import import import_object
from zoo.registry import current_path, suggest

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.plan import Comparison
    from zoo.compare.prepare_runs import Stage
    from zoo.compare.run_comparison import ComparisonRun, Runner
    from zoo.compare.verdict import Answer

Lines = Callable[["Comparison"], list[tuple[str, ...]]]
FILE = "lengths.json"
FACTORS = (1, 2, 4, 8)
NUMBERS = 2**24  # logits per batch: 64 MB in float32
MARK = "format"


class LengthLoss(NamedTuple):
    """Nats per token at ``factor`` times the training length: over all positions of a window, and its last quarter."""

    factor: int
    length: int
    overall: float | None
    last_quarter: float | None
    tokens: int
    undefined: str = ""  # the model's error message if it cannot read texts of this length


Losses = Mapping[str, Mapping[int, Sequence[LengthLoss]]]  # by variant and seed


def parse_factors(text: str) -> tuple[int, ...]:
    """The factors of a ``--probe length=1,2,4,8``, sorted. Raises UsageError for anything else."""
    what, _, values = text.partition("=")
    if what != "length":
        raise UsageError(f"no probe {what!r}.{suggest(what, ['length'])} There is: --probe length=1,2,4,8")
    pieces = [piece.strip() for piece in (values or "1,2,4,8").split(",") if piece.strip()]
    if not pieces or not all(piece.isdecimal() and 1 <= int(piece) <= 1024 for piece in pieces):
        raise UsageError(f"--probe {text!r}: whole multiples of the training length, such as length=1,2,4,8.")
    return tuple(sorted({int(piece) for piece in pieces}))


def probe(
    folders: Mapping[str, Mapping[int, Path]],
    factors: Sequence[int],
    home: Path,
    allow: tuple[str, ...] = (),
    tell: Callable[[str], object] = lambda line: None,
) -> dict[str, dict[int, list[LengthLoss]]]:
    """Evaluate the best checkpoint of every run, given as variant → seed → folder, and save the losses in ``home``.

    Saved losses of the same checkpoint are reused. Returns variant → seed → losses. Raises UsageError for a run that
    is not a language model on text.
    """
    from zoo.logging.run_record import write_json

    result: dict[str, dict[int, list[LengthLoss]]] = {}
    saved = _read_saved(home / FILE)
    for variant, seeds in folders.items():
        for seed, folder in seeds.items():
            identity = _identity(folder)
            entry = saved.get(str(folder), {})
            losses = (
                [LengthLoss(*values) for values in entry.get("losses", ())]
                if entry.get("checkpoint") == identity
                else []
            )
            missing = [factor for factor in factors if factor not in [loss.factor for loss in losses]]
            if missing:
                tell(f"{variant} s{seed}: lengths {', '.join(f'{factor}×' for factor in missing)}")
                losses += measure(folder, missing, allow)
                saved[str(folder)] = {"checkpoint": identity, "losses": sorted(losses)}
                write_json(home / FILE, {MARK: 1, "runs": saved})
            result.setdefault(variant, {})[seed] = [loss for loss in sorted(losses) if loss.factor in factors]
    return result


def probe_variants(
    answer: Answer, run: ComparisonRun, allow: tuple[str, ...], report: Callable[[str], object]
) -> ReportChart:
    """Measure every finished run on longer texts, report the tables, and draw the chart in the answer's colours."""
    from zoo.compare.charts import variant_styles
    from zoo.compare.document import plain_columns
    from zoo_designs.charts import draw_lines

    factors, home = parse_factors(run.comparison.design_values["probe"]), run.place
    labels = {row.variant: row.label for row in answer.rows}
    folders = {
        labels.get(arm.name, arm.name): {
            seed: folder
            for seed in run.comparison.seeds
            if run_state.read_state(folder := arm.point.folder(seed)) == "finished"
        }
        for arm in run.arms
    }
    losses = probe(folders, factors, home, allow, report)
    failures = {row.label: failure_text(row.failures, len(row.figures)) for row in answer.rows if row.failures}
    differences = length_differences(losses, answer.base.label, failures)
    save_differences(home, differences)
    rows = differences_table(differences)
    for cells in [table(losses, failures), *([rows] if differences else [])]:
        for line in [*plain_columns(cells), ""]:
            report(line)
    legend = differences_legend(answer.base.label, differences)
    for line in textwrap.wrap(legend, 100):
        report(line)
    caption = "Mean over seeds of each run's best checkpoint on the validation text."
    if failures:
        caption += f" Without a mean: {', '.join(f'{label} ({text})' for label, text in failures.items())}."
    if legend:
        texts = [f"{row[0]} {', '.join(f'{cell} at {head}' for head, cell in zip(rows[0][1:], row[1:], strict=True))}"
                 for row in rows[1:]]  # fmt: skip
        caption += f" {legend} {'; '.join(texts)}."
    return draw_lines(
        "Loss in the last quarter of texts longer than in training",
        mean_losses({label: by_seed for label, by_seed in losses.items() if label not in failures} or losses),
        ("length, in training lengths", "nats per token"), [f"{factor}×" for factor in factors], caption,
        {labels[variant]: style for variant, style in variant_styles(answer).items()},
    )  # fmt: skip


def check_config(config: Mapping[str, Any], task: type) -> None:
    """Raise UsageError, before training, unless ``config`` and its class of task are of a language model on text."""
    from zoo.data.text import TextData
    from zoo.tasks.lm import CausalLM

    module, _, name = current_path(str(config["data"]["class_path"])).rpartition(".")
    has_length = "max_length" in config["data"].get("init_args", {})
    if not (issubclass(task, CausalLM) and has_length and issubclass(import_object(module, name), TextData)):
        raise UsageError(f"--probe length is for language models on text, and this is a {task.__name__} on {name}.")


def measure(folder: Path, factors: Sequence[int], allow: tuple[str, ...] = ()) -> list[LengthLoss]:
    """The losses of one run at several lengths. Raises UsageError unless it is a language model on text."""
    from zoo.data.text import TextData
    from zoo.inference.language import TrainedLanguageModel
    from zoo.inference.load import load
    from zoo.training.config_meter import ConfigMeter

    model = load(folder, "auto", allow=allow)
    config = model.place.config
    if not isinstance(model, TrainedLanguageModel) or "max_length" not in config["data"].get("init_args", {}):
        raise UsageError(f"--probe length is for language models on text: {folder} is a {type(model.task).__name__}.")
    trained = int(config["data"]["init_args"]["max_length"])
    meter, result = ConfigMeter(allow), []
    for factor in factors:
        length = factor * trained
        data = meter.data(
            {"data": {**config["data"], "init_args": {**config["data"]["init_args"], "max_length": length}}}
        )
        assert isinstance(data, TextData)
        try:
            overall, late, tokens = window_losses(model, data, length)
        except UsageError as error:  # longer than the model can read
            result.append(LengthLoss(factor, length, None, None, 0, str(error).splitlines()[0]))
            continue
        result.append(LengthLoss(factor, length, overall, late, tokens))
    return result


def window_losses(model: Any, data: Any, length: int) -> tuple[float, float, int]:
    """Mean loss in nats over windows of ``length`` validation tokens, the same over their last quarters, and the number
    of tokens.
    """
    import numpy as np
    import torch
    import torch.nn.functional as F

    rows = data.datasets["val"]
    step = max(1, NUMBERS // (length * model.net.vocab_size))
    late = torch.arange(length) >= length - math.ceil(length / 4)
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for begin in range(0, len(rows), step):
            batch = rows.batch(np.arange(begin, min(begin + step, len(rows))), 0)
            logits = model.net(batch["inputs"].to(model.device)).float()
            targets = batch["targets"].to(model.device)
            entropies = (
                F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets).cpu()
            )
            real = batch["targets"] >= 0
            parts = [entropies[real], real.sum(), entropies[real & late], (real & late).sum()]
            sums += torch.stack([part.double().sum() for part in parts])
    total, count, last, few = sums.tolist()
    return total / count, last / few if few else math.nan, int(count)


def losses_by_factor(losses: Losses, late: bool) -> dict[str, dict[int, dict[int, float | None]]]:
    """Variant → factor → seed → loss over the last quarter (``late``) or all; None: undefined."""
    result: dict[str, dict[int, dict[int, float | None]]] = {variant: {} for variant in losses}
    for variant, seeds in losses.items():
        for seed, run_losses in seeds.items():
            for loss in run_losses:
                value = loss.last_quarter if late else loss.overall
                result[variant].setdefault(loss.factor, {})[seed] = value
    return {variant: dict(sorted(factors.items())) for variant, factors in result.items()}


def mean_losses(losses: Losses, late: bool = True) -> dict[str, dict[float, float | None]]:
    """Mean loss over seeds by variant and factor, over the last quarter (``late``) or all; None: undefined."""
    series: dict[str, dict[float, float | None]] = {}
    for variant, factors in losses_by_factor(losses, late).items():
        for factor, by_seed in factors.items():
            finite = [value for value in by_seed.values() if value is not None]
            series.setdefault(variant, {})[float(factor)] = statistics.mean(finite) if finite else None
    return series


def table(losses: Losses, failures: Mapping[str, str] | None = None) -> list[list[str]]:
    """A heading and a row per variant: mean loss over the last quarter (and overall) at every factor.

    ``failures`` says by variant how many of its runs failed; it has no mean then, because the others are a selection.
    """
    late, overall = mean_losses(losses), mean_losses(losses, late=False)
    columns = sorted({factor for points in late.values() for factor in points})
    rows = [["nats per token, last quarter (all)", *(f"{factor:g}×" for factor in columns)]]
    for variant, points in late.items():
        pairs = [(points.get(factor), overall[variant].get(factor)) for factor in columns]
        cells = ["undefined" if a is None or b is None else f"{a:.3f} ({b:.3f})" for a, b in pairs]
        rows.append([variant, *(["–"] * len(columns) if variant in (failures or {}) else cells)])
    names = {variant for variant, *_ in rows}
    for variant, text in (failures or {}).items():
        rows += [] if variant in names else [[variant, *["–"] * len(columns)]]
        next(row for row in rows if row[0] == variant)[0] = f"{variant} ({text})"
    return rows


@dataclass(frozen=True)
class LengthDifference:
    """A variant's paired difference from the baseline at ``factor`` times the training length, in nats per token.

    The interval of ``pair`` holds for all variants of this length together. ``reason`` says why there is no difference:
    a length that a run cannot read, runs that failed.
    """

    variant: str
    factor: int
    pair: Paired
    reason: str = ""


def length_differences(
    losses: Losses,
    baseline: str,
    failures: Mapping[str, str] | None = None,
) -> list[LengthDifference]:
    """Every variant against the baseline at every length, paired by seed, over the last quarter.

    Student's t of each length alone. They are no verdicts: neither lengths nor looks are corrected for.
    """
    by_factor = losses_by_factor(losses, late=True)
    result = []
    for factor in sorted({factor for factors in by_factor.values() for factor in factors}):
        values = {variant: factors.get(factor, {}) for variant, factors in by_factor.items()}
        reasons = {variant: _no_difference(variant, baseline, values, failures or {}) for variant in values}
        samples: dict[str, Sample] = {}
        for variant, by_seed in values.items():
            if variant != baseline and not reasons[variant]:
                pairs = [(loss, values[baseline][seed]) for seed, loss in sorted(by_seed.items())
                         if seed in values[baseline]]  # fmt: skip
                samples[variant] = ([ours for ours, _ in pairs], [theirs for _, theirs in pairs])  # type: ignore[misc]
        tested = compare_samples(samples, T_TEST)
        result += [
            LengthDifference(variant, factor, tested.get(variant, NOT_TESTED).pair, reasons[variant])
            for variant in values if variant != baseline
        ]  # fmt: skip
    return result


def _no_difference(
    variant: str, baseline: str, values: Mapping[str, Mapping[int, float | None]], failures: Mapping[str, str]
) -> str:
    """Why a variant has no difference from the baseline at a length; empty where it has one."""
    for name in (variant, baseline):
        if name in failures:
            return failures[name]
        if name not in values or any(value is None for value in values[name].values()):
            return "undefined" if name == variant else "undefined for the baseline"
    return "" if set(values[variant]) & set(values[baseline]) else "no seed in common"


def differences_table(differences: Sequence[LengthDifference]) -> list[list[str]]:
    """A heading and a row per variant: difference from the baseline and its interval at every length."""
    factors = sorted({difference.factor for difference in differences})
    rows = [["difference, 95 % interval", *(f"{factor}×" for factor in factors)]]
    for variant in dict.fromkeys(difference.variant for difference in differences):
        cells = {
            difference.factor: _difference_cell(difference)
            for difference in differences
            if difference.variant == variant
        }
        rows.append([variant, *(cells.get(factor, "–") for factor in factors)])
    return rows


def _difference_cell(difference: LengthDifference) -> str:
    """``−0.045 [−0.072, −0.017]``."""
    pair = difference.pair
    if difference.reason:
        return difference.reason
    return format_interval(Interval(pair.mean, *pair.bounds), 3, sign=True) + ", one seed" * (pair.n == 1)


def differences_legend(baseline: str, differences: Sequence[LengthDifference]) -> str:
    """How to read the differences by length; empty without any."""
    seeds = sorted({difference.pair.n for difference in differences if not difference.reason})
    if not seeds:
        return ""
    many = format_span(seeds)
    return (
        f"Differences from {baseline} in the last quarter, paired over {many} seed{'s' * (seeds != [1])}; an interval "
        "holds for all variants of its length. They are no verdicts: neither lengths nor looks are corrected for."
    )


def save_differences(home: Path, differences: Sequence[LengthDifference]) -> None:
    """Add the differences to the losses that `probe` has saved in a folder."""
    from zoo.logging.run_record import write_json

    names = ("n", "mean", "sd", "low", "high", "p")
    content = [
        {"variant": difference.variant, "factor": difference.factor, "reason": difference.reason}
        | {name: value if math.isfinite(value := getattr(difference.pair, name)) else None for name in names}
        for difference in differences
    ]
    write_json(home / FILE, {MARK: 1, "runs": _read_saved(home / FILE), "differences": content})


def _identity(folder: Path) -> list[object]:
    """Name, size and time of a run's best checkpoint and the digest of its batches: equal if it is the same run."""
    from zoo.inference.find_run import checkpoint_to_use

    best = checkpoint_to_use(folder)
    size = [best.name, best.stat().st_size, best.stat().st_mtime_ns] if best else []
    return [*size, run_state.read_record(folder).get("batches", {}).get("digest")]


def _read_saved(path: Path) -> dict[str, Any]:
    content = read_object(path)
    return dict(content.get("runs", {})) if content.get(MARK) == 1 else {}


class ProbeProcedure(Procedure):
    """Measures the finished runs of a plain comparison on longer texts."""

    def command_lines(self, comparison: Comparison, usual: Lines) -> list[tuple[str, ...]]:
        """Those of a plain comparison. Raises UsageError for a probe that there is not."""
        parse_factors(comparison.design_values["probe"])
        return usual(comparison)

    def draft(self, comparison: Comparison, runner: Runner) -> list[Stage]:
        """The variants. Raises UsageError unless they are language models on text."""
        stage = runner.draft(comparison)
        for arm in stage.arms:
            check_config(arm.point.config, runner.meter.task_class(arm.point.config))
        return [stage]

    def show(self, run: ComparisonRun, options: ParsedOptions) -> int:
        """Measure the runs on longer texts, then look, print and write; the exit code."""
        from zoo.compare import error_budget

        answer = error_budget.answer_records(read_ledgers(run.folders), options, run.record)
        chart = probe_variants(answer, run, options.allowed, run.runner.print_progress)
        return run.print_answer(*run.look(), [chart])
