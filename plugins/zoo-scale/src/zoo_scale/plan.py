"""`zoo plan`: the largest batch that fits, the tokens per second and the time of a run on several GPUs.

Memory of a process, in bytes, at its fullest moment of a step::

    one GPU   weights + states + max(step, gradients + weights)
    DDP       the same + gradients, which are copied into the buckets that are sent
    FSDP2     (weights + gradients + states) / processes + groups + activations

``step`` is what loss and gradients of a batch take at once, activations and gradients, as zoo.training.memory_estimate
counts it with tensors that have no numbers; ``activations`` is the same without gradients. Batches of 1, 4, 16 and 64
are counted, and others lie on straight lines through them: a loss in chunks takes less per sample from the second chunk
on. An optimizer step takes as much again as the weights for a moment. ``bf16-mixed`` keeps weights, gradients and
states in float32, and autocast's copies of the weights count in ``step``. FSDP2 computes in the low precision with what
it gathers, so it has no such copies; ``groups`` are the weights of two blocks (that which runs, that which is fetched),
those outside of blocks, and the gradients of one block, in the precision of the computation. Recomputation keeps the
input of each block alone.

What a GPU's driver takes, about 1 GiB, fragments between tensors and buffers of communication are not counted.

Time::

    FLOPs per token = 3 × those of a forward pass, which zoo counts: once forward, twice backward
    tokens per second = GPUs × FLOPs per second of one × MFU / FLOPs per token
    seconds = tokens / tokens per second

Recomputation runs the forward pass again: the GPU does 4 parts of work for 3 that count, and tokens per second are 3/4
of this at the same use of the GPU. How fast GPUs exchange gradients is in the MFU, which must be measured.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from zoo.cli import doctor, table_printing, warning_filters
from zoo.cli.fit_summary import ESTIMATE_ERRORS
from zoo.command_line import ParsedOptions
from zoo.compare.number_format import NONE, format_duration, format_short
from zoo.console import format_bytes
from zoo.errors import UsageError
from zoo.explain.subjects import Subject, recipe_subject
from zoo.models.stack import Stack
from zoo.tasks.task import Task
from zoo.training.memory_estimate import full_batch, is_floating, optimizer_bytes, peak_of_step
from zoo.training.model_cost import cost
from zoo_scale.strategies import check_optimizer

GPUS, MEMORY, MFU, FLOPS = 8, "80G", 0.4, "989T"
STRATEGIES = ("one GPU", "DDP", "FSDP2")
# the type of the weights, and the type of the computation
PRECISIONS = {
    "32-true": (torch.float32, torch.float32),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "16-mixed": (torch.float32, torch.float16),
    "bf16-true": (torch.bfloat16, torch.bfloat16),
    "16-true": (torch.float16, torch.float16),
}
BYTES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}  # powers of 1024
AMOUNTS = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15}  # powers of ten
POINTS = (1, 4, 16, 64)  # samples of the batches whose steps are counted
MOST_ROWS = 2**20  # of a batch
DAY = 86400


@dataclass(frozen=True)
class Row:
    """What a strategy needs and gives; ``batch`` is samples per GPU, 0 where one does not fit: then ``memory`` is what
    one would need. ``seconds`` is None without a number of tokens, or where nothing fits.
    """

    strategy: str
    recomputes: bool
    batch: int
    memory: float  # bytes of a GPU
    per_second: float | None  # tokens or images, of all GPUs
    seconds: float | None
    reason: str = ""  # why there is no figure


@dataclass(frozen=True)
class Machine:
    """GPUs that are alike: how many, the bytes and the FLOPs per second of one, and the share that is reached."""

    gpus: int
    memory: float
    flops: float
    mfu: float


class StepMemory:
    """The bytes of a process while a task on the meta device trains in a precision, by strategy and size of a batch."""

    def __init__(self, task: Task, precision: str) -> None:
        weight_type, self.compute_type = PRECISIONS[precision]
        self.task = copy.deepcopy(task).to(weight_type)
        self.low = copy.deepcopy(task).to(self.compute_type)  # as FSDP2 computes
        self.mixed = weight_type != self.compute_type
        self.weights = sum(p.nbytes for p in self.task.parameters())
        self.gradients = sum(p.nbytes for p in self.task.parameters() if p.requires_grad)
        self.states = optimizer_bytes(self.task)
        self.groups = gathered_bytes(self.low)
        self.known_steps: dict[int, int] = {}  # by the number of samples
        self.known_activations: dict[int, int] = {}

    def of_process(self, strategy: str, processes: int, rows: int) -> float:
        """Bytes at the fullest moment of a step with ``rows`` samples: the formulae at the top of this module."""
        if strategy == "FSDP2":
            own = (self.weights + self.gradients + self.states) / processes
            return own + max(self.groups + self.activations(rows), self.weights / processes)
        buckets = self.gradients if strategy == "DDP" else 0
        return self.weights + self.states + buckets + max(self.step(rows), self.gradients + self.weights)

    def step(self, rows: int) -> float:
        """Activations and gradients of a step."""
        return on_line(self.known_steps, rows, self.measure_step)

    def activations(self, rows: int) -> float:
        """The same without the gradients of weights, in the type of the computation."""
        return on_line(self.known_activations, rows, self.measure_activations)

    def measure_step(self, rows: int) -> int:
        """What ``step`` is for a small batch."""
        return peak_of_step(self.task, self.batch(self.task, rows), self.forward())

    def measure_activations(self, rows: int) -> int:
        """What ``activations`` are for a small batch."""
        return peak_of_step(self.low, self.batch(self.low, rows), accumulates=True)

    def forward(self) -> AbstractContextManager[Any]:
        """What the loss is computed in."""
        return torch.autocast("cpu", self.compute_type) if self.mixed else nullcontext()

    def batch(self, task: Task, rows: int) -> Any:
        """A batch at full length, in the type of the weights where these are not float32."""
        dtype = next(task.parameters()).dtype
        values = full_batch(task, rows)
        return {name: value.to(dtype) if is_floating(value) else value for name, value in values.items()}


def on_line(sizes: dict[int, int], rows: int, measure: Callable[[int], int]) -> float:
    """A size for a batch of ``rows``, measured for the sizes POINTS, between and above them on straight lines."""
    high = next((point for point in POINTS if point >= rows), POINTS[-1])
    low = high if rows == high else POINTS[POINTS.index(high) - 1]
    for point in {low, high} - sizes.keys():
        sizes[point] = measure(point)
    share = (rows - low) / (high - low) if high > low else 0
    return sizes[low] + (sizes[high] - sizes[low]) * share


def gathered_bytes(task: Task) -> int:
    """What FSDP2 has of a task in whole weights at once: two blocks, all that is in no block, a block's gradients.

    A task without a stack of blocks is gathered as a whole.
    """
    stacks = [module for module in task.modules() if isinstance(module, Stack)]
    blocks = [block for stack in stacks for block in stack.blocks]
    sizes = [sum(p.nbytes for p in block.parameters()) for block in blocks]
    inside = {id(p) for block in blocks for p in block.parameters()}
    outside = sum(p.nbytes for p in task.parameters() if id(p) not in inside)
    return outside + 3 * max(sizes, default=0) if blocks else 2 * outside


def largest_batch(need: Callable[[int], float], limit: float) -> tuple[int, float]:
    """The largest batch whose need, which grows with it, is at most ``limit``, by bisection, and its need.

    0 and the need of one sample where none fits; at most MOST_ROWS.
    """
    fits, breaks = 0, MOST_ROWS + 1
    while breaks - fits > 1:
        middle = (fits + breaks) // 2
        fits, breaks = (middle, breaks) if need(middle) <= limit else (fits, middle)
    return fits, need(max(1, fits))


def rate(task: Task, machine: Machine, recomputes: bool) -> float:
    """Tokens (or images) per second of all GPUs: the formula at the top of this module."""
    own = 3 * cost(task).flops
    return machine.gpus * machine.flops * machine.mfu / own * (3 / 4 if recomputes else 1)


def plan(subject: Subject, again: Subject | str, machine: Machine, amount: float | None = None) -> list[Row]:
    """A row for each strategy, without and with recomputation, for which ``again`` is the task, or why there is none.

    Raises UsageError for a precision that no formula covers.
    """
    result = []
    strategies = STRATEGIES if machine.gpus > 1 else STRATEGIES[:1]
    for recomputes, variant in ((False, subject), (True, again)):
        if isinstance(variant, str):
            result += [Row(strategy, recomputes, 0, math.nan, None, None, variant) for strategy in strategies]
            continue
        memory, refusal = StepMemory(variant.task, precision_of(variant)), undivided(variant.task)
        for strategy in strategies:
            if strategy == "FSDP2" and refusal:
                result.append(Row(strategy, recomputes, 0, math.nan, None, None, refusal))
                continue
            gpus = 1 if strategy == "one GPU" else machine.gpus
            used = Machine(gpus, machine.memory, machine.flops, machine.mfu)

            need = partial(memory.of_process, strategy, gpus)
            batch, size = largest_batch(need, machine.memory)
            speed = rate(variant.task, used, recomputes) if batch else None
            seconds = amount / speed if amount is not None and speed else None
            reason = "" if batch else f"a batch of 1 needs {format_bytes(size)}"
            result.append(Row(strategy, recomputes, batch, size, speed, seconds, reason))
    return result


def undivided(task: Task) -> str:
    """Why FSDP2 does not train a task: its optimizer, in a sentence; empty where it does."""
    try:
        check_optimizer(task.make_optimizer())
    except UsageError as error:
        return str(error).partition(". ")[0]
    return ""


def precision_of(subject: Subject) -> str:
    """The precision of a recipe; bf16-mixed, which zoo takes on GPUs, where it sets none. Raises UsageError."""
    value = str((subject.config.get("trainer") or {}).get("precision") or "bf16-mixed")
    value = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}.get(value, value)
    if value not in PRECISIONS:
        raise UsageError(f"zoo plan knows no memory of precision {value}. It knows: {', '.join(PRECISIONS)}.")
    return value


def find_recipe(name: str, settings: Sequence[Any], allow: Sequence[str], **changes: object) -> Subject:
    """A recipe with options of the command line and changes to those of its model, as GPUs train it.

    Their fused attention draws its dropout itself, and keeps no matrix of it: the task has none.
    """
    added = [(f"model.{key}", str(value).lower(), f"--model.{key}={value}") for key, value in changes.items()]
    subject = recipe_subject(name, [*settings, *added], allow)
    options = subject.config["model"]["init_args"]
    fused = str(options.get("backend") or "").rpartition(".")[2].lower() in ("", "fused")
    if fused and options.get("attention_dropout"):
        added.append(("model.attention_dropout", "0", "--model.attention_dropout=0"))
        subject = recipe_subject(name, [*settings, *added], allow)
    return subject


def recomputing(name: str, options: ParsedOptions, allow: Sequence[str]) -> tuple[Subject, Subject | str]:
    """A recipe without and with recomputation; for a task that has none, the recipe and a sentence."""
    subject = find_recipe(name, options.settings, allow)
    if "recompute" not in subject.config["model"]["init_args"]:
        return subject, f"{type(subject.task).__name__} has no recomputation"
    if subject.config["model"]["init_args"]["recompute"]:
        subject = find_recipe(name, options.settings, allow, recompute=False)
    try:
        return subject, find_recipe(name, options.settings, allow, recompute=True)
    except UsageError as error:  # a block that decides itself what it keeps
        return subject, " ".join(str(error).split())


def parse_bytes(option: str, text: str) -> float:
    """Bytes in units of 1024, as zoo prints them: 80G, 80GiB. Raises UsageError, which names the option."""
    match = re.fullmatch(r"(\d+\.?\d*)\s*(?:([KMGT])(?:iB)?)?", text.strip(), re.IGNORECASE)
    value = float(match[1]) * 1024.0 ** BYTES[(match[2] or "").upper()] if match else 0
    if not 0 < value < math.inf:
        raise UsageError(f"--{option} must be a size above 0 such as 80G, where 1 G is 1024³ bytes; got {text!r}.")
    return value


def parse_amount(option: str, text: str, example: str) -> float:
    """A number with a prefix of SI, or B for 10⁹: 300B, 1.4T. Raises UsageError, which names the option."""
    match = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d+)?)\s*([KMGBTP])?", text.strip(), re.IGNORECASE)
    value = float(match[1]) * 10.0 ** AMOUNTS[(match[2] or "").upper()] if match else 0
    if not 0 < value < math.inf:
        raise UsageError(f"--{option} must be a number above 0 such as {example} (K, M, G or B, T, P); got {text!r}.")
    return value


def format_time(seconds: float | None) -> str:
    """``5 h 20 min``, from two days on ``21.3 days``; a dash for None."""
    if seconds is None:
        return NONE
    return f"{seconds / DAY:.3g} days" if 2 * DAY <= seconds < 1000 * DAY else (
        f"{seconds / DAY:,.0f} days" if seconds >= 2 * DAY else format_duration(seconds)
    )  # fmt: skip


def print_rows(subject: Subject, machine: Machine, amount: float | None, rows: Sequence[Row], stated: Any) -> None:
    """What is planned, with the defaults that were taken, then the table, then what it leaves out."""

    def origin(name: str) -> str:
        return "" if name in stated else " (default)"

    measure, unit = cost(subject.task), subject.task.unit
    low = precision_of(subject).startswith(("bf16", "16"))
    speed = origin("flops") if low or "flops" in stated else " (default, of bf16: name that of this precision, --flops)"
    print(f"{subject.title}: {format_short(measure.parameters)} parameters, {precision_of(subject)}")
    print(
        f"{machine.gpus} GPUs{origin('gpus')} of {format_bytes(machine.memory)}{origin('memory')}, "
        f"{format_short(machine.flops)}FLOP/s{speed}, MFU {machine.mfu:g}{origin('mfu')}; "
        f"{format_short(3 * measure.flops)}FLOP per {unit} of training\n"
    )
    headings = ["strategy", "recompute", "batch per GPU", "memory per GPU", f"{unit}s/s"]
    headings += [f"time for {format_short(amount)} {unit}s"] if amount is not None else []
    cells = [
        [
            row.strategy,
            "yes" if row.recomputes else "no",
            f"{row.batch:,}" if row.batch else NONE,
            format_bytes(row.memory) if row.batch else row.reason,
            NONE if row.per_second is None else format_short(row.per_second),
            *([format_time(row.seconds)] if amount is not None else []),
        ]
        for row in rows
    ]
    table_printing.table(headings, cells)
    for note in subject.notes:
        if note.startswith("sizes"):  # that the data would set
            print(f"\n{note}")
    print("\nNot counted: the driver (about 1 GiB), fragmentation, buffers of communication. Measure the MFU.")


def run(options: ParsedOptions) -> int:
    """`zoo plan`: print the table, or JSON."""
    machine = Machine(
        options.get("gpus") or GPUS,
        parse_bytes("memory", options.get("memory") or MEMORY),
        parse_amount("flops", options.get("flops") or FLOPS, "989T"),
        options.get("mfu") or MFU,
    )
    text = options.get("tokens")
    amount = None if text is None else parse_amount("tokens", text, "300B")
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    name = options.words[0]
    subject, again = recomputing(name, options, tuple(options.get("allow_import")))
    try:
        rows = plan(subject, again, machine, amount)
    except ESTIMATE_ERRORS as error:
        if isinstance(error, UsageError):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"the memory of a step of {name} cannot be estimated: {reason}") from error
    if options.get("json"):
        facts = {"recipe": name, "precision": precision_of(subject), "unit": subject.task.unit, **asdict(machine)}
        values = [{key: None if value != value else value for key, value in asdict(row).items()} for row in rows]
        table_printing.as_json({**facts, "amount": amount, "rows": values})
        return 0
    print_rows(subject, machine, amount, rows, options.values)
    return 0
