"""The length probe: losses of language models on texts longer than their training length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.compare import run_records
from zoo.errors import UsageError
from zoo.io import limits
from zoo.registry import suggest

FILE = "lengths.json"
FACTORS = (1, 2, 4, 8)
NUMBERS = 2**24  # logits per batch: 64 MB in float32
MARK = "format"


class Loss(NamedTuple):
    """Nats per token at ``factor`` times the training length: over all positions of a window, and its last quarter."""

    factor: int
    length: int
    overall: float | None
    last_quarter: float | None
    tokens: int
    undefined: str = ""  # the model's error message if it cannot read texts of this length


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
) -> dict[str, dict[int, list[Loss]]]:
    """Evaluate the best checkpoint of every run, given as variant → seed → folder, and save the losses in ``home``.

    Saved losses of the same checkpoint are reused. Returns variant → seed → losses. Raises UsageError for a run that
    is not a language model on text.
    """
    from zoo.logging.run_record import write_json

    result: dict[str, dict[int, list[Loss]]] = {}
    saved = _read_saved(home / FILE)
    for variant, seeds in folders.items():
        for seed, folder in seeds.items():
            identity = _identity(folder)
            entry = saved.get(str(folder), {})
            losses = [Loss(*each) for each in entry.get("losses", ())] if entry.get("checkpoint") == identity else []
            missing = [factor for factor in factors if factor not in [loss.factor for loss in losses]]
            if missing:
                tell(f"{variant} s{seed}: lengths {', '.join(f'{factor}×' for factor in missing)}")
                losses += measure(folder, missing, allow)
                saved[str(folder)] = {"checkpoint": identity, "losses": sorted(losses)}
                write_json(home / FILE, {MARK: 1, "runs": saved})
            result.setdefault(variant, {})[seed] = [loss for loss in sorted(losses) if loss.factor in factors]
    return result


def check_config(config: Mapping[str, Any]) -> None:
    """Raise UsageError, before training, unless a configuration is a language model on text."""
    from zoo.plugins.safe_import import import_object
    from zoo.tasks.lm import CausalLM

    module, _, name = str(config["model"]["class_path"]).rpartition(".")
    if not issubclass(import_object(module, name), CausalLM) or "max_length" not in config["data"].get("init_args", {}):
        data = str(config["data"].get("class_path")).rpartition(".")[2]
        raise UsageError(f"--probe length is for language models on text, and this is a {name} on {data}.")


def measure(folder: Path, factors: Sequence[int], allow: tuple[str, ...] = ()) -> list[Loss]:
    """The losses of one run at several lengths. Raises UsageError unless it is a language model on text."""
    from zoo.compare.measure_model import CostMeter
    from zoo.data.text import TextData
    from zoo.inference.language import TrainedLanguageModel
    from zoo.inference.load import load

    model = load(folder, "auto", allow=allow)
    config = model.place.config
    if not isinstance(model, TrainedLanguageModel) or "max_length" not in config["data"].get("init_args", {}):
        raise UsageError(f"--probe length is for language models on text: {folder} is a {type(model.task).__name__}.")
    trained = int(config["data"]["init_args"]["max_length"])
    meter, result = CostMeter(allow), []
    for factor in factors:
        length = factor * trained
        data = meter.data(
            {"data": {**config["data"], "init_args": {**config["data"]["init_args"], "max_length": length}}}
        )
        assert isinstance(data, TextData)
        try:
            overall, late, tokens = window_losses(model, data, length)
        except UsageError as error:  # longer than the model can read
            result.append(Loss(factor, length, None, None, 0, str(error).splitlines()[0]))
            continue
        result.append(Loss(factor, length, overall, late, tokens))
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


def mean_losses(
    losses: Mapping[str, Mapping[int, Sequence[Loss]]], late: bool = True
) -> dict[str, dict[float, float | None]]:
    """Mean loss over seeds by variant and factor, over the last quarter (``late``) or all; None: undefined."""
    series: dict[str, dict[float, float | None]] = {}
    for variant, seeds in losses.items():
        for factor in sorted({loss.factor for each in seeds.values() for loss in each}):
            values = [
                loss.last_quarter if late else loss.overall
                for each in seeds.values()
                for loss in each
                if loss.factor == factor
            ]
            finite = [value for value in values if value is not None]
            series.setdefault(variant, {})[float(factor)] = statistics.mean(finite) if finite else None
    return series


def table(
    losses: Mapping[str, Mapping[int, Sequence[Loss]]], failures: Mapping[str, str] | None = None
) -> list[list[str]]:
    """A heading and a row per variant: mean loss over the last quarter (and overall) at every factor.

    ``failures`` says by variant how many of its runs failed; it has no mean then, because the others are a selection.
    """
    late, overall = mean_losses(losses), mean_losses(losses, late=False)
    columns = sorted({factor for points in late.values() for factor in points})
    rows = [["nats per token, last quarter (all)", *(f"{factor:g}×" for factor in columns)]]
    for variant, points in late.items():
        cells = [_cell(points.get(factor), overall[variant].get(factor)) for factor in columns]
        rows.append([variant, *(["–"] * len(columns) if variant in (failures or {}) else cells)])
    names = {variant for variant, *_ in rows}
    for variant, text in (failures or {}).items():
        rows += [] if variant in names else [[variant, *["–"] * len(columns)]]
        next(row for row in rows if row[0] == variant)[0] = f"{variant} ({text})"
    return rows


def _cell(late: float | None, overall: float | None) -> str:
    return "undefined" if late is None or overall is None else f"{late:.3f} ({overall:.3f})"


def _identity(folder: Path) -> list[object]:
    """Name, size and time of a run's best checkpoint and the digest of its batches: equal if it is the same run."""
    from zoo.inference.find_run import find_checkpoint

    best = find_checkpoint(folder, best=True)
    size = [best.name, best.stat().st_size, best.stat().st_mtime_ns] if best else []
    return [*size, run_records.read_record(folder).get("batches", {}).get("digest")]


def _read_saved(path: Path) -> dict[str, Any]:
    try:
        content = limits.read_json(path)
    except (OSError, ValueError):
        return {}
    return dict(content.get("runs", {})) if isinstance(content, dict) and content.get(MARK) == 1 else {}
