"""A check: one property of a contract (a promise), tested on one part; a failure says what to change."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

import torch

from zoo.conformance.subject import Subject
from zoo.errors import UsageError
from zoo.system.torch_internals import count_devices

count_devices()  # before a compiler's fake tensors, in whatever order checks run: some of them fork processes

Status = Literal["ok", "FAIL", "known", "skipped"]


def put_kernels(enabled: tuple[bool, ...]) -> None:
    """Enable or disable the kernels of scaled_dot_product_attention, in the order of KERNELS."""
    for kernel, allowed in zip(KERNELS, enabled, strict=True):
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(allowed)


KERNELS = ("flash", "mem_efficient", "math", "cudnn")
# global settings of torch: functions that read and set them
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "recording of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "demand for determinism": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "precision of matrix products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "kernels of attention": (
        lambda: tuple(getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in KERNELS), put_kernels,
    ),
}  # fmt: skip


@contextmanager
def restore_settings() -> Iterator[list[str]]:
    """Restore torch's global settings at the end; the list that it yields then names those that had changed."""
    before = {name: now() for name, (now, _) in SETTINGS.items()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (now, put_back) in SETTINGS.items():
            if now() != before[name]:
                changed.append(name)
                put_back(before[name])


Promise = Callable[[Any], None]
# checks that build no part
WITHOUT_PART = ("documentation", "unknown_options_are_refused", "clean_import", "description_is_light")
SITUATIONS = ("options", "memory")  # besides the part with its own options


def in_situations(*situations: str) -> Callable[[Promise], Promise]:
    """A decorator that limits the additional situations in which a promise is tested; the default is all."""

    def say(promise: Promise) -> Promise:
        """Attach the situations to the promise."""
        promise.situations = situations  # type: ignore[attr-defined]
        return promise

    return say


once = in_situations()


class Broken(AssertionError):  # noqa: N818
    """A check failed; the message says what was observed and what to change."""


class Inapplicable(SkipTest):
    """The part declares that it does not support this property; test runners show the check as skipped."""


def require(condition: bool, sentence: str) -> None:
    """Raise Broken with the sentence unless the condition holds."""
    if not condition:
        raise Broken(sentence)


@dataclass(frozen=True)
class Check:
    """One promise, tested on one part. Calling it raises Broken if it fails, Inapplicable if it does not apply."""

    promise: Callable[[Subject], None]
    subject: Subject
    known_failure: str | None = None  # the reason why this part may fail

    @property
    def name(self) -> str:
        """The name of the promise's function."""
        return self.promise.__name__

    @property
    def says(self) -> str:
        """The promise in one sentence."""
        return (self.promise.__doc__ or "").strip().partition("\n")[0]

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        if self.known_failure is None:
            self._try()
            return
        try:
            self._try()
        except SkipTest:
            raise
        except Exception as error:
            raise Inapplicable(f"known failure: {self.known_failure}") from error
        raise Broken(
            f"{self.name} is declared as a known failure ({self.known_failure}), and passes. Remove the declaration."
        )

    def _try(self) -> None:
        """Test the promise in every situation. Raises Inapplicable if it applies to none of them."""
        if (missing := self.subject.missing_options()) and self.name not in WITHOUT_PART:
            raise Inapplicable(f"it needs {', '.join(f'--{name} VALUE' for name in missing)}")
        inapplicable: SkipTest | None = None
        applied = False
        for where, subject in self._situations():
            try:
                self._try_once(subject)
                applied = True
            except SkipTest as reason:
                inapplicable = inapplicable or reason
            except Broken as error:
                raise Broken(f"{where}: {error}" if where else str(error)) from error
            except UsageError as refusal:
                if not where.startswith("with "):
                    raise
                inapplicable = inapplicable or Inapplicable(f"{where} it refuses: {refusal}")
            except Exception as error:
                if not where:
                    raise
                raise Broken(f"{where}: it {describe_error(error)} — expected: {self.says}") from error
        if inapplicable is not None and not applied:
            raise inapplicable

    def _situations(self) -> Iterator[tuple[str, Subject]]:
        """The part as it is, with other options, and in a stack with cross-attention; each with its description."""
        yield "", self.subject
        situations = getattr(self.promise, "situations", SITUATIONS)
        if "options" in situations:
            for option, subject in self.subject.other_options():
                yield f"with {option}", subject
        if "memory" in situations and (looking := self.subject.with_memory()):
            yield "in a stack that looks at a memory", looking

    def _try_once(self, subject: Subject) -> None:
        """Run with a fixed seed and torch's default settings, and restore the settings afterwards."""
        with torch.random.fork_rng([]), restore_settings():
            torch.manual_seed(0)
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            with restore_settings() as changed:
                self.promise(subject)
            require(not changed, f"it leaves torch's {', '.join(changed)} changed for the rest of the program.")

    def outcome(self) -> Outcome:
        """Run the check and return its outcome, whatever the part raises."""
        start = time.perf_counter()
        status: Status = "ok"
        sentence = ""
        try:
            self()
        except SkipTest as reason:
            status, sentence = (
                ("known" if self.known_failure else "skipped"),
                str(reason).removeprefix("known failure: "),
            )
        except Broken as error:
            status, sentence = "FAIL", str(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a part may raise anything
            status, sentence = "FAIL", f"{describe_error(error)} — expected: {self.says}"
        return Outcome(self.name, status, sentence, time.perf_counter() - start)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check: its name, status, message, and duration in seconds."""

    name: str
    status: Status
    sentence: str
    seconds: float


def describe_error(error: BaseException) -> str:
    """An error of a part's code in one line: what, and where in which file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    foreign = [frame for frame in frames if "/zoo/" not in frame.filename] or frames
    place = f" at {Path(foreign[-1].filename).name}:{foreign[-1].lineno}" if foreign else ""
    message = next(iter(str(error).splitlines()), "")
    return f"raised {type(error).__name__}{f': {message}' if message else ''}{place}"


def make_checks(subject: Subject, promises: Iterable[Callable[[Subject], None]]) -> list[Check]:
    """The checks of a contract for a part. Raises ValueError if ``known_failures`` names an unknown check."""
    promises_of_kind = list(promises)
    failures = dict(getattr(subject.part, "known_failures", {}))
    names = {promise.__name__ for promise in promises_of_kind}
    if unknown := sorted(set(failures) - names):
        raise ValueError(
            f"{subject.part.__name__}.known_failures names {', '.join(unknown)}: there is no such check of its kind. "
            f"There are: {', '.join(sorted(names))}"
        )
    return [Check(promise, subject, failures.get(promise.__name__)) for promise in promises_of_kind]
