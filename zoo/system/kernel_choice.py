"""The choice between kernels that compute the same, by measuring them once on this machine.

A call belongs to a class, such as products of one row with a matrix of 1152 x 384. At the first call of a class,
torch's own kernel and its rivals are timed in turns for some milliseconds. A rival is used where it is faster by more
than ``MARGIN``. What was measured is stored in the cache folder, in a file for this processor, torch's version and the
number of threads, so that all processes use the same kernels. Kernels differ in the last digits: a run records its own,
and a resumed run repeats them. ``ZOO_KERNELS=plain`` uses torch's own everywhere, and measures nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from operator import truediv
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files, limits
from zoo.io.cache_folder import cache_root
from zoo.system import torch_internals

SWITCH, MODES = "ZOO_KERNELS", ("measured", "plain")
MARGIN = 0.03  # the share of torch's time that a rival must save
ROUNDS = 7  # in which each kernel is timed once, after one that is not
CPUINFO = Path("/proc/cpuinfo")
GENERATION = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}
LEAST = 2e-4  # seconds of one timing: faster calls are repeated
WAIT = 5.0  # seconds for another process that stores a choice

TRAINING_PRODUCTS = ("training products", 512, 384, 1152)  # a class of `zoo.parts.training_products`

Prepare = Callable[[], Mapping[str, Callable[[], object]]]

_kernels: dict[tuple[Hashable, ...], str] = {}  # chosen kernel by call class, in this process
_recorded: dict[str, str] = {}  # choices of the run that is resumed
_recorded_mode = ""
_resumed = False  # whether a record was adopted


def choose(call: tuple[Hashable, ...], kernels: Sequence[str], prepare: Prepare) -> str:
    """The kernel of ``kernels`` for a class of calls; the first is torch's own.

    ``prepare`` returns a function per kernel that computes an example of the class. It is called where no choice is
    stored, in a thread of its own, so that modes of this one (gradients, autocast, tracing) have no effect.
    Raises UsageError where ZOO_KERNELS is none of its values.
    """
    kernel = _kernels.get(call)
    if kernel is None:
        kernel = _kernels[call] = _settle(words_of(call), kernels, prepare)
    return kernel


def words_of(call: tuple[Hashable, ...]) -> str:
    """A class of calls in words: what it is, and its sizes."""
    what, *sizes = call
    return f"{what} {' x '.join(map(str, sizes))}"


def mode() -> str:
    """Whether kernels are "measured", or "plain": torch's own. Raises UsageError for another value of ZOO_KERNELS."""
    value = os.environ.get(SWITCH, "") or _recorded_mode or MODES[0]
    if value not in MODES:
        raise UsageError(f"{SWITCH}={value}: use {' or '.join(MODES)}.")
    return value


def record() -> dict[str, Any]:
    """The mode and the kernels that this process and the run it resumes use, for ``adopt``; plain values."""
    return {"mode": mode(), "choices": {**_recorded, **{words_of(call): kernel for call, kernel in _kernels.items()}}}


def adopt(content: object) -> None:
    """Use the kernels of a record from now on; what is no record changes nothing.

    A run whose record has no kernel for training products made none that could be chosen, or is older than the choice:
    it goes on with torch's own.
    """
    global _recorded_mode, _resumed
    choices = content.get("choices") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or not isinstance(choices, Mapping):
        return
    forget()
    _resumed = True
    _recorded_mode = content["mode"] if content.get("mode") in MODES else ""
    _recorded.update({str(words): str(kernel) for words, kernel in choices.items()})


def forget() -> None:
    """Forget every choice of this process; those in the cache folder stay."""
    global _recorded_mode, _resumed
    _recorded_mode, _resumed = "", False
    for choices in (_kernels, _recorded):
        choices.clear()


def stored() -> dict[str, dict[str, float]]:
    """Seconds of each kernel, by class in words, torch's own first: all that is stored for this machine."""
    choices = _read(choice_file())
    return {words: entry["times"] for words, entry in sorted(choices.items())}


def fastest(seconds: Mapping[str, float]) -> str:
    """The kernel to use by the seconds of each, torch's own first: the fastest, if it saves more than ``MARGIN``."""
    torch_kernel, *_ = seconds
    best = min(seconds, key=lambda kernel: seconds[kernel])
    return best if seconds[best] < (1 - MARGIN) * seconds[torch_kernel] else torch_kernel


def measure(kernels: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each kernel: that of the first, torch's own, times the median of the ratios to it, round by round.

    With one thread it is the time of the processor, which other processes disturb less.
    """
    torch_kernel, *_ = kernels
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    with torch.random.fork_rng(), torch.enable_grad():
        repeats = {name: _repeats(call) for name, call in kernels.items()}
        for number in range(ROUNDS):
            for name in list(kernels)[:: -1 if number % 2 else 1]:
                samples[name].append(_seconds(kernels[name], repeats[name]))
    own = min(samples[torch_kernel])
    ratios = {name: statistics.median(map(truediv, times, samples[torch_kernel])) for name, times in samples.items()}
    return {name: own * ratio for name, ratio in ratios.items()}


@cache
def processor_name() -> str:
    """The name of this machine's processor, with the numbers that tell its generation where the system says them.

    Virtual machines call several generations by one name, such as "AMD EPYC", which multiply at other speeds.
    """
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    fields: dict[str, str] = {}
    for line in lines:
        field, _, value = line.partition(":")
        fields.setdefault(field.strip(), value.strip())  # keep the field of the first core
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{label} {fields[field]}" for field, label in GENERATION.items() if fields.get(field)]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def choice_file() -> Path:
    """Where choices of this processor, this torch and this number of threads are stored.

    Raises StorageError where there is no cache folder.
    """
    machine = [processor_name(), str(torch.cpu.get_capabilities()), torch.__version__, torch.get_num_threads()]
    machine += [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    name = re.sub(r"[^a-z0-9]+", "-", processor_name().lower()).strip("-")[:40]
    return cache_root() / "kernels" / f"{name}-{hashlib.sha256(repr(machine).encode()).hexdigest()[:12]}.json"


def _settle(words: str, kernels: Sequence[str], prepare: Prepare) -> str:
    """The kernel for a class: of the mode, the resumed run, the cache folder, or of a measurement, which is stored."""
    if mode() == "plain":
        return kernels[0]
    if _recorded.get(words) in kernels:
        return _recorded[words]
    if _resumed and words == words_of(TRAINING_PRODUCTS):
        return kernels[0]
    results: list[dict[str, float] | BaseException] = []

    def work() -> None:
        torch_internals.keep_autocast_cache()
        try:
            results.append(_stored_or_measured(words, kernels, prepare))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work, name="measure kernels")
    thread.start()
    thread.join()
    seconds = results[0]
    if isinstance(seconds, BaseException):
        raise seconds
    return fastest(seconds)


def _stored_or_measured(words: str, kernels: Sequence[str], prepare: Prepare) -> dict[str, float]:
    """Seconds of each kernel. Of processes that measure at once, all use what the first of them stored."""
    seconds = None
    try:
        path = choice_file()
        if (entry := _read(path).get(words)) and list(entry["times"]) == list(kernels):
            return entry["times"]
        seconds = measure(prepare())  # not under the lock: a kernel that is measured may choose between others itself
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=WAIT):
            choices = _read(path)
            if (entry := choices.get(words)) and list(entry["times"]) == list(kernels):
                return entry["times"]
            choices[words] = {"kernel": fastest(seconds), "times": seconds}
            machine = {"processor": processor_name(), "torch": torch.__version__, "threads": torch.get_num_threads()}
            atomic_files.write_json(path, {**machine, "choices": choices})
    except (OSError, NotImplementedError, StorageError):  # no folder, no right to write, a full disk, or no locks
        pass
    return measure(prepare()) if seconds is None else seconds


def _read(path: Path) -> dict[str, Any]:
    """The choices in a file by class in words, those that are damaged left out."""
    try:
        content = limits.read_json(path)
    except (OSError, UsageError):
        return {}
    choices = content.get("choices") if isinstance(content, Mapping) else None
    return {words: entry for words, entry in choices.items() if _is_entry(entry)} if isinstance(choices, dict) else {}


def _is_entry(entry: object) -> bool:
    seconds = entry.get("times") if isinstance(entry, Mapping) else None
    return (
        isinstance(seconds, Mapping)
        and bool(seconds)
        and all(type(value) is float and 0 < value < math.inf for value in seconds.values())
    )


def _repeats(call: Callable[[], object]) -> int:
    """How many calls take as long as one timing should, counted after a call that warms up."""
    call()
    return max(1, round(LEAST / max(_seconds(call, 1), 1e-7)))


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """The mean time of some calls."""
    clock = time.thread_time if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter
    _wait_for_devices()
    start = clock()
    for _ in range(repeats):
        call()
    _wait_for_devices()
    return (clock() - start) / repeats


def _wait_for_devices() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
