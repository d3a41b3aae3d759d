"""What `python -m bench.gpu` checks and measures: each function takes sizes, and returns figures or raises."""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.training import Step
from bench.work import training
from bench.workloads import language
from zoo.conformance import Inapplicable, checks
from zoo.errors import ZooError
from zoo.models import LanguageModel
from zoo.models.generation import GenerationConfig, generate
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern
from zoo.tasks import lm  # noqa: F401, once for all processes

BOUNDS = {torch.bfloat16: 3e-2, torch.float16: 4e-3}  # of the error of attention, against float64
SYNCHRONISATIONS = ("aten::_local_scalar_dense", "cudaStreamSynchronize")  # the profiler waits for the device itself


@dataclass(frozen=True)
class Sizes:
    """Where and how large: the model of all checks, and its peers."""

    device: str
    dim: int
    depth: int
    heads: int
    length: int
    rows: int
    vocab: int
    large_vocab: int
    tokens: int  # that are generated
    turns: int
    small_steps: int  # of each of several small runs
    runs: tuple[int, ...]  # how many small runs at once
    compiled: bool
    plugins: bool  # whether backends of plugins are checked
    peers: tuple[str, ...]


FULL = Sizes(
    "cuda", dim=768, depth=12, heads=12, length=1024, rows=16, vocab=8192, large_vocab=50257, tokens=256, turns=10,
    small_steps=200, runs=(1, 2, 4, 8), compiled=True, plugins=True, peers=("torch_nn", "transformers"),
)  # fmt: skip
DRY = Sizes(
    "cpu", dim=32, depth=2, heads=2, length=32, rows=2, vocab=64, large_vocab=512, tokens=8, turns=2,
    small_steps=2, runs=(1, 2), compiled=False, plugins=False, peers=("torch_nn",),
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """``function`` returns figures within ``seconds``, or raises."""

    name: str
    what: str
    seconds: float
    function: Callable[[Sizes], dict[str, Any]]


def machine(sizes: Sizes) -> dict[str, Any]:
    """What the results belong to. Raises RuntimeError without a device."""
    torch.empty(1, device=sizes.device)
    name = torch.cuda.get_device_name() if sizes.device == "cuda" else "CPU, toy size"
    return {"device": name, "torch": torch.__version__, "python": sys.version.split()[0], "sizes": repr(sizes)}


def backends(sizes: Sizes) -> dict[str, Any]:
    """Every backend that is installed, by name: those of plugins only where the sizes say so."""
    points = entry_points(group="zoo.backend")
    names = {point.name: point for point in points if sizes.plugins or point.value.startswith("zoo.")}
    return {name: point.load() for name, point in sorted(names.items())}


def attention_kernels(sizes: Sizes) -> dict[str, Any]:
    """The kernels that most of the time of causal attention in bfloat16, with gradients, is spent in."""

    figures = {}
    for name, make in backends(sizes).items():
        q, k, v = _heads(sizes, torch.bfloat16, True)

        def attend(make: Any = make, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> None:
            make()(q, k, v, Pattern(causal=True)).sum().backward()

        try:
            attend()
        except ZooError as error:
            figures[name] = f"refused: {str(error).splitlines()[0]}"
            continue
        with torch.profiler.profile() as profile:
            attend()
            _wait(sizes)
        column = "self_device_time_total" if sizes.device == "cuda" else "self_cpu_time_total"
        events = sorted(profile.key_averages(), key=lambda event, column=column: -getattr(event, column))
        figures[name] = ", ".join(event.key[:80] for event in events[:2])
    if not any(not str(value).startswith("refused") for value in figures.values()):
        raise AssertionError(f"no backend computes: {figures}")
    return figures


def backends_agree(sizes: Sizes) -> dict[str, Any]:
    """The largest error of every backend in bfloat16 and float16 against the textbook in float64."""

    figures, wrong = {}, []
    valid = torch.ones(sizes.rows, sizes.length, dtype=torch.bool, device=sizes.device)
    valid[0, sizes.length // 2 :] = False
    for dtype, bound in BOUNDS.items():
        q, k, v = _heads(sizes, dtype, False)
        for what, pattern in (("causal", Pattern(causal=True)), ("padded", Pattern(causal=True, valid=valid))):
            exact = Naive()(q.double(), k.double(), v.double(), pattern)
            for name, make in backends(sizes).items():
                key = f"{name}, {what}, {str(dtype).removeprefix('torch.')}"
                try:
                    error = float((make()(q, k, v, pattern).double() - exact)[valid.any(1)].abs().max())
                except ZooError as refusal:
                    figures[key] = f"refused: {str(refusal).splitlines()[0]}"
                    continue
                figures[key] = round(error, 5)
                wrong += [key] * (not error <= bound)
    if wrong:
        raise AssertionError(f"errors above their bounds: {', '.join(f'{key} {figures[key]}' for key in wrong)}")
    return figures


def contracts(sizes: Sizes) -> dict[str, Any]:
    """The contract of every backend of a plugin; of one of zoo's own at toy size."""

    own = {name: make for name, make in backends(sizes).items() if not make.__module__.startswith("zoo.")}
    figures, failures = {}, []
    for name, part in (own if sizes.plugins else {"SDPA": backends(sizes)["SDPA"]}).items():
        passed = inapplicable = 0
        for check in checks(part)[: None if sizes.plugins else 2]:
            try:
                check()
                passed += 1
            except Inapplicable:
                inapplicable += 1
            except Exception as error:
                failures.append(f"{name} {check}: {type(error).__name__}: {error}"[:300])
        figures[name] = f"{passed} passed, {inapplicable} not applicable"
    if failures:
        raise AssertionError("\n".join(failures))
    if not figures:
        raise AssertionError("no plugin with a backend is installed: pip install plugins/zoo-flash plugins/zoo-flex")
    return figures


def no_synchronisation(sizes: Sizes) -> dict[str, Any]:
    """No training step waits for the GPU: nothing in it reads a number of a tensor.

    On a CPU, where nothing is waited for, torch's AdamW reads one number for each parameter: there only the forward and
    the backward pass are counted.
    """
    step = _step(sizes, "zoo")
    for number in range(2):
        step.run(number)
    _wait(sizes)
    run = step.run if sizes.device == "cuda" else step.gradients
    with torch.profiler.profile() as profile:
        run(2)
    counts = {event.key: event.count for event in profile.key_averages() if event.key in SYNCHRONISATIONS}
    if counts:
        raise AssertionError(f"a step waits {sum(counts.values())} times: {counts}")
    return {"synchronisations in a step": 0}


def training_step(sizes: Sizes) -> dict[str, Any]:
    """Milliseconds and MFU of a GPT-2-like step in bfloat16, against the peers that are installed, in turns."""
    return _contest(sizes, sizes.vocab, {"zoo": {}, **{name: {} for name in sizes.peers}})


def compiled_step(sizes: Sizes) -> dict[str, Any]:
    """The same with all of them compiled; eager at toy size, where a compiler would take minutes."""
    return _contest(sizes, sizes.vocab, {name: {"compiled": sizes.compiled} for name in ("zoo", *sizes.peers)})


def large_vocabulary(sizes: Sizes) -> dict[str, Any]:
    """A step with a large vocabulary: time, and the most memory."""
    return _contest(sizes, sizes.large_vocab, {"zoo": {}, **{name: {} for name in sizes.peers}})


def decoding(sizes: Sizes) -> dict[str, Any]:
    """Tokens per second of greedy decoding in bfloat16, and the share of the memory bandwidth that weights use."""

    net = LanguageModel(sizes.vocab, sizes.length, dim=sizes.dim, depth=sizes.depth, heads=sizes.heads)
    net = net.eval().to(sizes.device, torch.bfloat16)
    weights = sum(weight.nbytes for weight in net.parameters())
    figures = {}
    for rows in (1, 8):
        prompt = torch.zeros(rows, 8, dtype=torch.long, device=sizes.device)

        def write(prompt: Tensor = prompt) -> None:
            generate(net.begin(8 + sizes.tokens), prompt, None, GenerationConfig(max_length=sizes.tokens))

        seconds = _seconds(sizes, [write])[0] / sizes.tokens
        figures[f"batch {rows}: tokens per second"] = round(rows / seconds, 1)
        figures[f"batch {rows}: share of the bandwidth"] = round(weights / seconds / _bandwidth(sizes), 3)
    return figures


def one_process(sizes: Sizes) -> dict[str, Any]:
    """DDP and FSDP2 with one process give the loss of no strategy after three steps."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    batch = torch.randint(sizes.vocab, (sizes.rows, sizes.length), device=sizes.device)
    first = _language_model(sizes)
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if sizes.device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            for name, wrap in (("none", None), ("DDP", DistributedDataParallel), ("FSDP2", fully_shard)):
                net: Any = copy.deepcopy(first)
                net = net if wrap is None else wrap(net)
                optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
                for _ in range(3):
                    loss = torch.nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                losses[name] = loss.item()
        finally:
            dist.destroy_process_group()
    if max(losses.values()) - min(losses.values()) > 1e-5:
        raise AssertionError(f"losses differ: {losses}")
    return losses


def small_runs(sizes: Sizes) -> dict[str, Any]:
    """Steps per second of several processes that train models of lm-tiny's size at once, summed over them."""
    context = multiprocessing.get_context("fork")  # nothing in this process has touched the device
    figures: dict[str, Any] = {}
    for count in sizes.runs:
        start, rates = context.Barrier(count), context.Queue()
        processes = [context.Process(target=_small_run, args=(sizes, start, rates)) for _ in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"of {count} runs at once, {sum(bool(p.exitcode) for p in processes)} failed")
        total = sum(rates.get() for _ in processes)
        figures[f"{count} at once: steps per second"] = round(total, 1)
        figures[f"{count} at once: of alone"] = round(total / figures["1 at once: steps per second"], 2)
    return figures


def _small_run(sizes: Sizes, start: Any, rates: Any) -> None:
    try:
        step = _step(
            replace(sizes, dim=min(sizes.dim, 128), depth=min(sizes.depth, 4), heads=2, length=min(sizes.length, 64)),
            "zoo",
        )
        step(0)
        start.wait()
        moment = time.perf_counter()
        for number in range(sizes.small_steps):
            step.run(number)
        _wait(sizes)
        rates.put(sizes.small_steps / (time.perf_counter() - moment))
    except BaseException:
        start.abort()  # the others wait for this run
        raise


def resume(sizes: Sizes) -> dict[str, Any]:
    """Two steps, saved and loaded, and two more give the bits of four steps."""
    step = _step(sizes, "zoo")
    for number in range(2):
        step.run(number)
    with tempfile.TemporaryFile() as file:
        torch.save({"net": step.net.state_dict(), "optimizer": step.optimizer.state_dict()}, file)
        going_on = [step.run(number) for number in (2, 3)]
        file.seek(0)
        state = torch.load(file, map_location=sizes.device, weights_only=True)
    again = _step(sizes, "zoo")
    again.net.load_state_dict(state["net"])
    again.optimizer.load_state_dict(state["optimizer"])
    resumed = [again.run(number) for number in (2, 3)]
    pairs = zip(step.net.parameters(), again.net.parameters(), strict=True)
    if not all(torch.equal(*pair) for pair in (*zip(going_on, resumed, strict=True), *pairs)):
        raise AssertionError(f"a resumed run differs: losses {going_on} and {resumed}")
    return {"loss after four steps": going_on[-1].item()}


CHECKS = (
    Check("backends_agree", "backends in bf16 and fp16 against float64", 60, backends_agree),
    Check("attention_kernels", "which kernels SDPA, Flash, Flex and varlen launch", 60, attention_kernels),
    Check("training_step", "a GPT-2-like step against peers, MFU", 60, training_step),
    Check("compiled_step", "the step compiled, against compiled peers", 60, compiled_step),
    Check("no_synchronisation", "no host synchronisation in a training step", 60, no_synchronisation),
    Check("decoding", "tokens per second, share of the memory bandwidth", 60, decoding),
    Check("large_vocabulary", "a step with 50,257 tokens: time and memory", 60, large_vocabulary),
    Check("resume", "a resumed run is bit-equal", 60, resume),
    Check("small_runs", "1, 2, 4 and 8 small runs at once on one device", 60, small_runs),
    Check("one_process", "DDP and FSDP2 on one device", 60, one_process),
    Check("contracts", "the contracts of zoo-flash and zoo-flex", 60, contracts),
)


def _heads(sizes: Sizes, dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    """Queries, keys and values (B, H, T, D)."""
    numbers = torch.Generator().manual_seed(0)
    shape = sizes.rows, sizes.heads, sizes.length, sizes.dim // sizes.heads
    draws = [torch.randn(shape, generator=numbers).to(sizes.device, dtype) for _ in range(3)]
    return [draw.requires_grad_(gradients) for draw in draws]


def _language_model(sizes: Sizes) -> torch.nn.Module:

    options = {"dim": sizes.dim, "depth": sizes.depth, "heads": sizes.heads}
    return LanguageModel(sizes.vocab, sizes.length, **options).to(sizes.device)


def _step(sizes: Sizes, entrant: str, vocab: int | None = None, **options: Any) -> Step:
    """The training step of a workload's entrant, at these sizes and on this device."""
    language.DIM, language.DEPTH, language.HEADS = sizes.dim, sizes.depth, sizes.heads
    language.LENGTH, language.ROWS = sizes.length, sizes.rows
    step = getattr(language, entrant)("gpt2", vocab or sizes.vocab, precision="bf16", **options)
    return step.to(sizes.device)


def _contest(sizes: Sizes, vocab: int, entrants: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of a step of each, ratios to the best peer, MFU and memory; a peer that fails is named."""
    steps, figures = {}, {}
    for name, options in entrants.items():
        try:
            step = _step(sizes, name, vocab, **options)
            if sizes.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            step(0)
            if sizes.device == "cuda":
                figures[f"{name}: MB at the peak"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
            steps[name] = step
        except Exception as error:
            if name == "zoo":
                raise
            figures[name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:100]}"
    times = _seconds(sizes, [lambda step=step: step.run(1) for step in steps.values()])
    seconds = dict(zip(steps, times, strict=True))
    work = training(
        language.weights("gpt2", vocab),
        sizes.rows * sizes.length,
        sizes.depth * sizes.rows * sizes.length**2,
        sizes.dim,
    )
    best, ceiling = min((value for name, value in seconds.items() if name != "zoo"), default=None), _ceiling(sizes)
    for name, value in seconds.items():
        figures[f"{name}: ms"] = round(1e3 * value, 2)
        figures[f"{name}: MFU"] = round(work / value / ceiling, 3)
        if best is not None:
            figures[f"{name}: ratio to the best peer"] = round(best / value, 3)
    return figures


def _seconds(sizes: Sizes, calls: list[Callable[[], object]]) -> list[float]:
    """The median time of each call, in turns, after one that is not timed."""
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(sizes.turns + 1):
        for call, sample in list(zip(calls, samples, strict=True))[:: -1 if turn % 2 else 1]:
            _wait(sizes)
            start = time.perf_counter()
            call()
            _wait(sizes)
            if turn:
                sample.append(time.perf_counter() - start)
    return [statistics.median(sample) for sample in samples]


def _ceiling(sizes: Sizes) -> float:
    """FLOP/s of a large product in bfloat16."""
    size = 8192 if sizes.device == "cuda" else 128
    x = torch.randn(size, size, device=sizes.device, dtype=torch.bfloat16)
    return 2 * size**3 / _seconds(sizes, [lambda: x @ x])[0]


def _bandwidth(sizes: Sizes) -> float:
    """Bytes per second of reading and writing a large tensor."""
    x = torch.empty(2**28 if sizes.device == "cuda" else 2**16, device=sizes.device)
    out = torch.empty_like(x)
    return 2 * x.nbytes / _seconds(sizes, [lambda: out.copy_(x)])[0]


def _wait(sizes: Sizes) -> None:
    if sizes.device == "cuda":
        torch.cuda.synchronize()
