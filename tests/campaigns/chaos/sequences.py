"""Runs that are stopped up to six times, each time in another way, at another moment, and go on in another place.

    python -m tests.campaigns.chaos.sequences --home DIR --sequences 500 --seed 1
    python -m tests.campaigns.chaos.sequences --home DIR --sequences 80 --seed 1 --processes 2
    python -m tests.campaigns.chaos.sequences --home DIR --sequences 1 --seed 1 --first 17    # the 18th of them again

A sequence is drawn from its seed and number alone, and each of its events happens at a moment that is counted: at the
n-th batch, at the n-th call of a save that reaches the disk. Runs end by steps, epochs, time (counted in batches) or
early stopping, some with a shorter limit first, and have any callback, logger, optimizer or precision that a recipe may
name; those that a run refuses by name are counted apart. A life of the run ends with each event; the next one
resumes, perhaps from another working folder, in a moved folder, with the clock set back, without the cache, or (in half
of the sequences with two processes) with another number of processes. Whatever a run has left at its end is compared
with what the undisturbed one has left: bit for bit, or to 1e-5 and without dropout where the number of processes
changed. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import errno
import gc
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.campaigns.chaos import lives, toys, worlds

PHASES = ("start", "training", "validation", "saving", "end", "test")
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGUSR1": signal.SIGUSR1, "SIGKILL": signal.SIGKILL}
WAYS = (*SIGNALS, "exception", "full disk", "failing write")
CHANGES = ("moved folder", "working folder", "clock", "cache")
MOST = 6  # events of one sequence
PATIENCE = 240.0  # seconds until a life counts as hung
STEPS, EPOCH, ROWS = 9, 7, 4
TOLERANCE = 1e-5  # where the number of processes changed
DAY = 86400.0

MODEL = "dim: 16, depth: 1, heads: 2, lr: 0.05"  # so large that the best validation is seldom the last
RECIPES = {
    "lm": """\
model: {class_path: CausalLM, init_args: {MODEL}}
data: {class_path: TextFiles, init_args: {path: HOME/text.txt, max_length: 16, batch_size: ROWS}}
""",
    "translation": """\
model: {class_path: Translation, init_args: {MODEL}}
data: {class_path: Phrasebook, init_args: {size: 310, kinds: [date, unit], vocab_size: 400, max_tokens: 256,
  max_length: 64, eval_limit: 4}}
""",
    "vit": """\
model: {class_path: Classification, init_args: {patch_size: 14, MIX, MODEL}}
data: {class_path: Glyphs, init_args: {size: 120, batch_size: ROWS}}
""",
}
# how a run is made: its batches and steps, its validations and regular checkpoints, its workers
FLAVOURS: dict[str, dict[str, Any]] = {
    "plain": {"accumulate": 1, "validate": 4},
    "accumulated": {"accumulate": 2, "validate": 5, "save-every": 2},
    "by epochs": {"accumulate": 3, "validate": None},
    "workers": {"accumulate": 1, "validate": 3, "workers": 2, "save-every": 4},
    "overfit": {"accumulate": 1, "validate": 3, "overfit": 3},
}
# what ends a run: options of the trainer, those of a shorter run that goes on with the former, and its callbacks
ENDINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps": ({"max_steps": STEPS}, {"max_steps": 5}),
    "epochs": ({"max_steps": -1, "max_epochs": 2}, {"max_steps": -1, "max_epochs": 1}),
    "time": ({"max_steps": STEPS, "max_time": "00:00:00:11"}, {"max_steps": STEPS, "max_time": "00:00:00:05"}),
    "patience": ({"max_steps": 2 * STEPS, "callbacks": [2]}, {"max_steps": 2 * STEPS, "callbacks": [1]}),
}
REQUIRED: dict[str, dict[str, Any]] = {  # options without which a callback or a logger cannot be built
    "EarlyStopping": {"monitor": "val/loss", "min_delta": 100.0},
    "EMA": {"decay": 0.9, "every": 2},
    "GradientAccumulationScheduler": {"scheduling": {0: 2}},
    "ModelPruning": {"pruning_fn": "l1_unstructured"},
    "OnExceptionCheckpoint": {"dirpath": "exceptions"},
    "StochasticWeightAveraging": {"swa_lrs": 0.01},
    "Timer": {"duration": "00:00:00:30"},
    "CSVLogger": {"save_dir": "logs"},
    "TensorBoardLogger": {"save_dir": "logs"},
}
PRECISIONS = ("32-true", "64-true", "16-true", "bf16-true", "bf16-mixed", "16-mixed", "transformer-engine")
TASKS = ("lm", "lm", "translation", "vit", "vit")
FLAVOURS_DRAWN = tuple(name for name in FLAVOURS for _ in range(1 if name == "workers" else 2))
# of callbacks: measured by a clock, said at the end, or a path
UNEQUAL = ("seconds", "validation_seconds", "rates", "window", "peak", "finished", "dirpath", "best_model_path",
           "last_model_path", "kth_best_model_path", "best_k_models")  # fmt: skip
COSTS = ("parameters", "flops_per_token", "state_bytes")  # what each life of a run has alike of its cost
CLOCKS = ("cost/tokens_per_s", "cost/peak_memory_mb")  # scalars that a clock, or the machine, measures


@dataclass(frozen=True)
class Event:
    """What ends a life (``way``), when (the ``moment``-th of ``phase`` in process ``rank``), what changes then."""

    phase: str
    moment: int
    way: str
    rank: int = 0
    changes: tuple[str, ...] = ()
    processes: int = 1  # of the life that it ends


@dataclass(frozen=True)
class Sequence:
    """A run, and all that happens to it."""

    task: str
    flavour: str
    events: tuple[Event, ...]
    processes: int = 1  # of the life that ends it
    elastic: bool = False
    ending: str = "steps"
    shorter: int = 0  # events of lives with the shorter limit, which they then reach
    extra: tuple[str, str] = ("", "")  # "callbacks", "logger", "optimizer" or "precision", and its name

    @property
    def kind(self) -> tuple[str, ...]:
        """What tells its undisturbed run from those of other sequences."""
        return self.task, self.flavour, self.ending, *self.extra, "growing" if self.shorter else ""


def extras() -> list[tuple[str, str]]:
    """Everything that a recipe may name."""
    from zoo import registry
    from zoo.inference.import_policy import LIGHTNING, OPTIMIZERS

    optimizers = {*OPTIMIZERS, *(part.name for part in registry.installed_parts("optimizer") if part.builtin)}
    callbacks = {*LIGHTNING["callbacks"], *(part.name for part in registry.installed_parts("callback") if part.builtin)}
    names = {"callbacks": callbacks, "logger": {*LIGHTNING["loggers"], "false"}, "optimizer": optimizers}
    return [(key, name) for key, group in names.items() for name in sorted(group)] + [
        ("precision", name) for name in PRECISIONS
    ]


def draw_sequence(site: Site, seed: int, number: int, processes: int) -> Sequence:
    """The ``number``-th sequence of a seed, of the tasks and flavours of a site."""
    draw = random.Random(f"{seed} {number} {processes}")
    elastic = processes > 1 and number % 2 == 1
    task, flavour = draw.choice(site.tasks), draw.choice(site.flavours)
    count = site.moments(task, flavour, processes)
    events = []
    for _ in range(draw.choices(range(1, MOST + 1), (2, 2, 2, 1, 1, 1))[0]):
        phase = draw.choices(PHASES, (1, 4, 4, 4, 1, 1))[0]
        ways = (*SIGNALS, "exception") if phase == "test" else WAYS
        most = max(1, count.get(phase, 3) // draw.choice((2, 4, 8)))
        world = draw.choice((1, processes)) if elastic else processes
        events.append(
            Event(
                phase,
                draw.randint(1, most),
                draw.choice(ways),
                draw.randrange(world),
                tuple(change for change in CHANGES if draw.random() < (0.05 if change == "cache" else 0.15)),
                world,
            )
        )
    last = draw.choice((1, processes)) if elastic else processes
    sequence = Sequence(task, flavour, tuple(events), last, elastic)
    if elastic or not site.wide:
        return sequence
    ending, names = draw.choice(list(ENDINGS)), extras()
    shorter = draw.choice((0, 0, draw.randint(1, len(events)))) if processes == 1 else 0
    extra = names[number // 2 % len(names)] if number % 2 else ("", "")
    return replace(sequence, ending=ending, shorter=shorter, extra=extra)


# what a life does to itself


class Disturbance:
    """Counts the moments of a life, in the process that ``event`` names, and lets it happen."""

    def __init__(self, event: Event | None, note: Path | None = None) -> None:
        self.event, self.note, self.passed = event, note, Counter[str]()
        self.pictures = False  # drawn in few runs: they take longer than the steps
        self.failing = 0  # calls that reach the disk and fail from now on
        self.code = errno.ENOSPC

    def reach(self, phase: str) -> None:
        """A moment of a phase."""
        self.passed[phase] += 1
        event = self.event
        if event and worlds.rank() == event.rank and (phase, self.passed[phase]) == (event.phase, event.moment):
            self.happen(event)

    def reach_disk(self) -> None:
        """A call that reaches the disk."""
        self.reach("saving")
        if self.failing:
            self.failing -= 1
            raise OSError(self.code, os.strerror(self.code))

    def happen(self, event: Event) -> None:
        """End the process, ask it to end, or let its disk fail."""
        if event.way == "SIGKILL":
            os.killpg(0, signal.SIGKILL)
        elif event.way in SIGNALS:
            os.kill(os.getpid(), SIGNALS[event.way])
        elif event.way == "exception":
            raise KeyError("a mistake in a part")
        else:
            self.failing, self.code = (10**9, errno.ENOSPC) if event.way == "full disk" else (1, errno.EIO)

    def write(self) -> None:
        """Leave a note of how many moments each phase had."""
        if self.note is not None and worlds.rank() == 0:
            self.note.write_text(json.dumps(self.passed))

    def install(self) -> None:
        """Into a process that has not begun."""
        from zoo.cli.fit import ZooCLI
        from zoo.io import atomic_files
        from zoo.logging import attention_maps, tensorboard
        from zoo.tasks.task import Task
        from zoo.training import checkpoint, distributed

        count_time_in_batches()
        checkpoint.RETRY, distributed.GRACE, distributed.POLL = 0.0, 2.0, 0.05
        before = self.before
        before(checkpoint.CheckpointSaver, "setup", "start")
        before(checkpoint.CheckpointSaver, "on_loop_start", "start")
        before(checkpoint.CheckpointSaver, "on_validation_start", "start", lambda self: self.trainer.sanity_checking)
        before(Task, "training_step", "training")
        before(checkpoint.CheckpointSaver, "on_batch_boundary", "training")
        for hook in ("on_validation_batch_start", "on_validation_end"):
            before(checkpoint.CheckpointSaver, hook, "validation", lambda self: not self.trainer.sanity_checking)
        before(checkpoint.CheckpointSaver, "save", "saving")
        before(checkpoint.CheckpointSaver, "on_train_end", "end")
        before(ZooCLI, "after_fit", "end")
        before(tensorboard.RunLogger, "finalize", "end")
        before(Task, "test_step", "test")
        if not self.pictures:
            attention_maps.Heatmaps.on_validation_end = lambda *_: None  # type: ignore[method-assign,assignment]
        atomic_files.os = Calls(self.reach_disk)  # type: ignore[attr-defined]
        write, reach = atomic_files.HashingFile.write, self.reach_disk

        def writing(self: atomic_files.HashingFile, content: bytes) -> int:
            try:
                reach()
            except OSError as error:
                self.failed = error
                raise
            return write(self, content)

        atomic_files.HashingFile.write = writing  # type: ignore[method-assign]
        finished, note = ZooCLI.after_fit, self.write

        def finish(self: ZooCLI) -> None:
            finished(self)
            note()

        ZooCLI.after_fit = finish  # type: ignore[method-assign]

    def before(self, owner: type, name: str, phase: str, when: Callable[[Any], bool] = lambda _: True) -> None:
        """Reach a moment of ``phase`` before each call of a method."""
        original, reach = getattr(owner, name), self.reach

        def method(self: Any, *args: Any, **options: Any) -> Any:
            if when(self):
                reach(phase)
            return original(self, *args, **options)

        setattr(owner, name, method)


def count_time_in_batches() -> None:
    """Let a second of Lightning's Timer be a batch: what is counted is the same in every life."""
    from lightning.pytorch.callbacks import Timer

    check = Timer.on_train_batch_end

    def tick(self: Any, *args: Any, **options: Any) -> None:
        self.ticks = getattr(self, "ticks", 0) + 1
        check(self, *args, **options)

    Timer.on_train_batch_end = tick  # type: ignore[method-assign]
    Timer.time_elapsed = lambda self, stage="train": float(getattr(self, "ticks", 0))  # type: ignore[method-assign]
    Timer.load_state_dict = lambda self, state: setattr(self, "ticks", state["time_elapsed"]["train"])  # type: ignore[method-assign]


class Calls:
    """The module os, as zoo.io.atomic_files sees it."""

    def __init__(self, reach: Callable[[], None]) -> None:
        self.reach = reach

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in ("replace", "fsync", "link"):
            return call

        def reaching(*args: Any) -> Any:
            self.reach()
            return call(*args)

        return reaching


# where it happens


class Site:
    """A folder of recipes and runs, and a process that has imported and parsed everything once."""

    def __init__(
        self,
        home: Path,
        tasks: tuple[str, ...] = TASKS,
        flavours: tuple[str, ...] = FLAVOURS_DRAWN,
        wide: bool = True,
    ) -> None:
        """Sequences are drawn from these tasks and flavours, one that is named twice twice as often.

        ``wide``: with every ending, callback, logger, optimizer and precision; otherwise runs end by steps.
        """
        self.home, self.tasks, self.flavours, self.wide = home, tasks, flavours, wide
        home.mkdir(parents=True, exist_ok=True)
        os.environ["ZOO_CACHE"] = str(home / "cache")
        (home / "text.txt").write_text("".join(f"{n} {toys.TEXT}" for n in range(40)))
        (home / "elsewhere").mkdir(exist_ok=True)
        self.references: dict[tuple[Any, ...], Any] = {}
        self.counts: dict[tuple[str, str, int], dict[str, int]] = {}
        self.lives = 0
        lives.load()
        import babel.core  # noqa: F401 - what the phrasebook would import in each life

        self.warm()

    def warm(self) -> None:
        """Parse a command of each task, so that no life has to learn its options anew; each builds its own objects."""
        from zoo.cli import main
        from zoo.cli.fit import ZooCLI

        parsers: dict[str, Any] = {}
        parsed: dict[str, Any] = {}
        build, start = ZooCLI.setup_parser, ZooCLI.before_instantiate_classes
        parse = ZooCLI.parse_arguments

        def setup_parser(self: ZooCLI, *args: Any) -> None:
            if not parsers:
                build(self, *args)
                parsers["parser"] = self.parser
            self.parser = parsers["parser"]
            self.parser.set_defaults({"trainer.default_root_dir": self.trainer_defaults["default_root_dir"]})

        def parse_arguments(self: ZooCLI, parser: Any, args: Any) -> None:
            """A configuration that differs only in its folder has been parsed."""
            key = repr(args)
            if key not in parsed:
                parse(self, parser, args)
                parsed[key] = copy.deepcopy(self.config)
                return
            self.config = copy.deepcopy(parsed[key])
            self.config.trainer.default_root_dir = self.trainer_defaults["default_root_dir"]

        def stop(self: ZooCLI) -> None:
            raise SystemExit(0)

        ZooCLI.setup_parser, ZooCLI.parse_arguments = setup_parser, parse_arguments  # type: ignore[method-assign]
        ZooCLI.before_instantiate_classes = stop  # type: ignore[method-assign]
        for task in dict.fromkeys(self.tasks):
            for flavour in dict.fromkeys(self.flavours):
                main(self.words(Sequence(task, flavour, ()), "fit", self.home / "warm", 1))
        ZooCLI.before_instantiate_classes = start  # type: ignore[method-assign]
        gc.collect()
        gc.freeze()

    def recipe(self, sequence: Sequence, shorter: bool = False) -> Path:
        """Its file: the same global batches with any number of processes where that may change."""
        task, flavour, elastic = sequence.task, sequence.flavour, sequence.elastic
        flavour_ = FLAVOURS[flavour]
        rows = ROWS * (2 if elastic else 1)
        key, name = sequence.extra
        model = MODEL + f", dropout: {0 if elastic else 0.1}"
        model += f", optimizer: {name}" if key == "optimizer" else ""
        # a longer run has another schedule from its first step on
        model += ", schedule: Constant" if sequence.shorter else ""
        text = RECIPES[task].replace("MODEL", model)
        text = text.replace("MIX, ", "" if elastic else "mix: mixup, ").replace("HOME", str(self.home))
        text = text.replace("ROWS", str(rows))
        if "workers" in flavour_:
            text = text.rstrip().removesuffix("}}") + f", num_workers: {flavour_['workers']}}}}}\n"
        every = flavour_["validate"]
        trainer = {
            "max_steps": STEPS, "accumulate_grad_batches": flavour_["accumulate"], "limit_val_batches": 2,
            "val_check_interval": every, "check_val_every_n_epoch": None if every else 1, "log_every_n_steps": 2,
            "accelerator": "cpu", "enable_progress_bar": False, "limit_train_batches": EPOCH,
            "overfit_batches": flavour_.get("overfit"),
            "precision": "64-true" if elastic else None,
        }  # fmt: skip
        if "overfit" in flavour_:
            del trainer["limit_train_batches"]
        trainer |= ENDINGS[sequence.ending][shorter]
        callbacks = [
            {"class_path": "EarlyStopping", "init_args": {**REQUIRED["EarlyStopping"], "patience": patience}}
            for patience in trainer.pop("callbacks", [])
        ]
        if key == "callbacks":
            callbacks.append({"class_path": name, "init_args": REQUIRED.get(name, {})})
        elif key == "logger":
            trainer[key] = name == "true" if name == "false" else {"class_path": name, "init_args": REQUIRED[name]}
        elif key == "precision":
            trainer[key] = name
        if callbacks:
            trainer["callbacks"] = callbacks
        set_options = {name: value for name, value in trainer.items() if value is not None or name.startswith("check")}
        label = zlib.crc32(repr((sequence.kind, elastic)).encode())
        path = self.home / f"{task}-{label:08x}.yaml"
        path.write_text(text + "trainer: " + json.dumps(set_options) + "\n")
        return path

    def words(self, sequence: Sequence, command: str, runs: Path, processes: int, shorter: bool = False) -> list[str]:
        """A command line."""
        flavour_ = FLAVOURS[sequence.flavour]
        recipe = self.recipe(sequence, shorter)
        words = [command, str(recipe), "--runs", str(runs), "--name", "default"]
        if command == "fit":
            words += ["--requeue", *(["--save-every", str(every)] if (every := flavour_.get("save-every")) else [])]
        if processes > 1:
            words += ["--trainer.devices", str(processes), "--trainer.strategy", "ddp"]
            if sequence.elastic:
                share = ("max_tokens", 256) if sequence.task == "translation" else ("batch_size", 2 * ROWS)
                words += [f"--data.{share[0]}", str(share[1] // processes)]
        if (sequence.elastic or sequence.shorter) and command == "fit":
            words += ["--accept-changes"]
        return words

    def folder(self, sequence: Sequence, runs: Path) -> Path:
        """Of a run."""
        recipe = self.recipe(sequence)
        return runs / recipe.stem / "default/s1"

    def live(
        self, words: list[str], processes: int, log: Path, disturbance: Disturbance, place: Path, clock: int
    ) -> int | None:
        """One life; its exit code, None where it hung."""

        disturbance.pictures = "by-epochs" in " ".join(words)

        def prologue() -> None:
            disturbance.install()
            if clock:
                now = time.time
                time.time = lambda: now() - clock * DAY  # type: ignore[assignment]
            if processes > 1:
                worlds.ready(processes)

        self.lives += 1
        child = lives.born(words, place, log, prologue)
        code = lives.ended(child, PATIENCE)
        if code is None or (processes > 1 and worlds.emptied(child, 30.0) is None):
            lives.kill(child)
            return None
        return code

    def reference(self, sequence: Sequence, processes: int) -> Any:
        """What an undisturbed run leaves; a sentence where it is refused by the name of what it has."""
        key, task = (*sequence.kind, processes, sequence.elastic), sequence.task
        if key not in self.references:
            runs, log = self.home / f"reference-{processes}", self.home / "reference.log"
            folder, note = self.folder(sequence, runs), self.home / "moments.json"
            shutil.rmtree(folder, ignore_errors=True)
            log.unlink(missing_ok=True)
            words = self.words(sequence, "fit", runs, processes)
            code = self.live(words, processes, log, Disturbance(None, note), self.home, 0)
            errors = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
            if code == 2 and sequence.extra[1] and sequence.extra[1].lower() in errors[-1].lower().replace("_", "-"):
                assert not any(folder.rglob("*.ckpt")), "refused after training had begun"
                self.references[key] = errors[-1]
                return errors[-1]
            if code == 4 and sequence.extra[1] == "16-true":  # no disturbance: float16 without scaling may diverge
                self.references[key] = f"diverges with {sequence.extra[1]}"
                return self.references[key]
            assert code == 0, (code, log.read_text()[-3000:])
            self.counts[task, sequence.flavour, processes] = json.loads(note.read_text())
            self.references[key] = outcome(folder)
            self.learn_cost(task, self.references[key]["ledger"]["cost"])
        return self.references[key]

    @staticmethod
    def learn_cost(task: str, outcome_: dict[str, Any]) -> None:
        """Let later lives of a task take the parameters, operations and bytes that one has counted."""
        from zoo.training import model_cost

        count, learnt = model_cost.cost, model_cost.Cost(*(outcome_[name] for name in COSTS))
        kind = {"lm": "CausalLM", "translation": "Translation", "vit": "Classification"}[task]
        model_cost.cost = lambda module: learnt if type(module).__name__ == kind else count(module)

    def moments(self, task: str, flavour: str, processes: int) -> dict[str, int]:
        """How many moments of each phase an undisturbed run has."""
        self.reference(Sequence(task, flavour, ()), processes)
        return self.counts[task, flavour, processes]

    def walk(self, sequence: Sequence, log: Path) -> tuple[list[str], list[str]]:
        """Let it all happen; what each life ended with, and what is wrong at the end."""
        runs, place, clock, turn = self.home / "runs", self.home, 0, 0
        for old in self.home.glob("runs*"):
            shutil.rmtree(old)
        log.unlink(missing_ok=True)
        ends: list[str] = []
        wrong: list[str] = []
        world = 1 if sequence.elastic else sequence.processes
        try:
            expectation = self.reference(sequence, world)
        except (AssertionError, OSError) as error:
            return ends, [f"undisturbed: {error}"]
        if isinstance(expectation, str):
            return [expectation], []
        for number, event in enumerate(sequence.events):
            shorter = number < sequence.shorter
            folder = self.folder(sequence, runs)
            command = "fit"
            if event.phase == "test":
                command = "test"
                if not any(folder.rglob("*.ckpt")):
                    continue
            processes = 1 if command == "test" else event.processes
            words = self.words(sequence, command, runs, processes, shorter)
            code = self.live(words, processes, log, Disturbance(event), place, clock)
            ends.append(f"{event.way} in {event.phase} {event.moment}: {code}")
            if code not in expected(event):
                wrong.append(f"{ends[-1]} {self.log_text(log)}")
            turn += 1
            for change in event.changes:
                if change == "moved folder" and runs.exists():
                    runs = runs.rename(self.home / f"runs-{turn}")
                elif change == "working folder":
                    place = self.home / "elsewhere" if place == self.home else self.home
                elif change == "clock":
                    clock += 1
                elif change == "cache":
                    shutil.rmtree(self.home / "cache", ignore_errors=True)
            if number + 1 == sequence.shorter:
                wrong += self.finish(sequence, runs, log, place, clock, shorter=True)
        wrong += self.finish(sequence, runs, log, place, clock)
        wrong += self.finish(sequence, runs, log, place, clock)  # nothing is left to do, and nothing changes
        if wrong:
            return ends, wrong
        result = outcome(self.folder(sequence, runs))
        if sequence.shorter and sequence.ending != "patience":
            result, expectation = without_validations(result), without_validations(expectation)
        elif sequence.shorter:  # the best may be of the shorter run, whose configuration it holds
            result, expectation = copy.deepcopy(result), copy.deepcopy(expectation)
            for content in (result, expectation):
                content["best"] = content["best"]["state_dict"]
                for record in (content["ledger"], content["last"]["callbacks"]["Ledger"]):
                    changes = [key for one in record.pop("resumed") for key in one["changes"]]
                    wrong += [f"resumed: {key}" for key in changes if key != "trainer.callbacks"]
        if sequence.elastic:
            result, expectation = comparable(result), comparable(expectation)
        return ends, wrong + differences(result, expectation, TOLERANCE if sequence.elastic else 0.0)

    def finish(
        self, sequence: Sequence, runs: Path, log: Path, place: Path, clock: int, shorter: bool = False
    ) -> list[str]:
        """A life without an event; what is wrong with it."""
        words = self.words(sequence, "fit", runs, sequence.processes, shorter)
        folder = self.folder(sequence, runs)
        code = self.live(words, sequence.processes, log, Disturbance(None), place, clock)
        if code != 0:
            return [f"a life without an event: {code} {self.log_text(log)}"]
        finished = json.loads((folder / "finished.json").read_text())
        steps = [entry["step"] for entry in json.loads((folder / "ledger.json").read_text())["validations"]]
        stale = [] if steps and finished["step"] == steps[-1] else [f"ends at {finished['step']}, validated {steps}"]
        return stale + [
            f"no {name}.ckpt" for name in ("best", "last") if not (folder / f"checkpoints/{name}.ckpt").exists()
        ]

    @staticmethod
    def log_text(log: Path) -> str:
        """The end of a log."""
        return log.read_text(errors="replace")[-600:] if log.exists() else ""


def expected(event: Event) -> tuple[int | None, ...]:
    """The exit codes of a life with this event; 0 where it ended before."""
    if event.way == "SIGKILL":
        return -9, 0
    if event.way in SIGNALS:
        number = SIGNALS[event.way]
        return 130 if number == signal.SIGINT else 143, 0, -number
    return (1, 0) if event.way == "exception" else (5, 0)


# what a run leaves


def outcome(run: Path) -> dict[str, Any]:
    """All that a finished run left, but for what a clock measured."""
    result: dict[str, Any] = {}
    for name in ("last", "best"):
        content = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
        del content["logs"], content["saves"]  # where, and how often, it was stopped
        # where the save of the last step failed, the one after it comes when the epoch has been closed
        del content["epoch"], content["loops"]["fit_loop"]["epoch_progress"]
        content["callbacks"] = {
            key: timeless(value) if isinstance(value, dict) else value for key, value in content["callbacks"].items()
        }
        result[name] = content
    ledger = json.loads((run / "ledger.json").read_text())
    cost = ledger["cost"]
    ledger["cost"] = {name: value if name in COSTS else value is None for name, value in cost.items()}
    ledger = {name: value for name, value in ledger.items() if name not in ("validation_seconds", "digest")}
    result["ledger"] = ledger
    result["finished"] = json.loads((run / "finished.json").read_text())
    events = {name: value for name, value in toys.all_scalars(run).items() if not name.startswith("DeviceStats")}
    result["scalars"] = {
        name: [step for step, _ in values] if name in CLOCKS else values for name, values in events.items()
    }
    files = [path for path in run.iterdir() if path.suffix in (".json", ".yaml")]
    # numerics.json is about the first batch alone: where its write failed, no resume writes it
    elsewhere = ("ledger.json", "finished.json", "numerics.json")
    result["files"] = {path.name: path.read_text() for path in files if path.name not in elsewhere}
    result["drafts"] = [path.name for path in run.rglob("*.partial")]
    return result


def without_validations(outcome_: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on a validation at the end of a shorter run."""
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "ranks", "global_step")
    scalars = {name: values for name, values in outcome_["scalars"].items() if name.startswith("train/")}
    ledger = {name: outcome_["ledger"][name] for name in ("batches", "steps", "tokens", "start")}
    return {"last": {part: outcome_["last"][part] for part in parts}, "scalars": scalars, "ledger": ledger}


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """A callback's state without what a clock measured."""
    return {name: value for name, value in state.items() if name not in UNEQUAL}


def comparable(outcome_: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the number of processes."""
    result: dict[str, Any] = {}
    for name in ("last", "best"):
        parts = ("state_dict", "optimizer_states", "lr_schedulers", "best", "measured", "global_step")
        result[name] = {part: outcome_[name][part] for part in parts}
    parts = ("validations", "steps", "tokens", "best", "last", "finished", "start", "goals")
    result["ledger"] = {part: outcome_["ledger"][part] for part in parts}
    result["finished"] = outcome_["finished"]
    result["scalars"] = {
        name: values for name, values in outcome_["scalars"].items() if not name.startswith("numerics/")
    }
    return result


def differences(one: Any, two: Any, tolerance: float, where: str = "") -> list[str]:
    """The places in two nested values where they differ, floats by more than a relative tolerance."""
    if isinstance(one, dict) and isinstance(two, dict):
        result = [f"{where}.{name}: in one only" for name in sorted({*one} ^ {*two}, key=str)]
        for name in one:
            if name in two:
                result += differences(one[name], two[name], tolerance, f"{where}.{name}")
        return result
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        if len(one) != len(two):
            return [f"{where}: {len(one)} and {len(two)} items"]
        return [line for n, pair in enumerate(zip(one, two, strict=True))
                for line in differences(*pair, tolerance, f"{where}.{n}")]  # fmt: skip
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        same = one.dtype == two.dtype and one.shape == two.shape
        if same and tolerance and one.is_floating_point():
            return [] if bool(torch.allclose(one, two, rtol=tolerance, atol=tolerance)) else [f"{where}: tensors"]
        return [] if same and torch.equal(one, two) else [f"{where}: tensors"]
    if isinstance(one, float) and isinstance(two, float):
        near = math.isclose(one, two, rel_tol=tolerance) if tolerance else one == two
        return [] if near or (one != one and two != two) else [f"{where}: {one} and {two}"]
    return [] if type(one) is type(two) and one == two else [f"{where}: {str(one)[:60]} and {str(two)[:60]}"]


def campaign(
    site: Site, sequences: int, seed: int = 0, processes: int = 1, first: int = 0, seconds: float = 1e9
) -> dict[str, Any]:
    """The figures of so many sequences, from the ``first`` on, while there is time."""
    start = time.monotonic()
    result: dict[str, Any] = {"seed": seed, "processes": processes, "sequences": 0, "events": 0, "equal": 0}
    ways, phases, codes = Counter[str](), Counter[str](), Counter[str]()
    endings, extra_names, refused = Counter[str](), Counter[str](), dict[str, str]()
    problems: list[dict[str, Any]] = []
    for number in range(first, first + sequences):
        if time.monotonic() - start > seconds:
            break
        sequence = draw_sequence(site, seed, number, processes)
        ends, wrong = site.walk(sequence, site.home / "sequence.log")
        result["sequences"] += 1
        result["events"] += len(ends)
        result["equal"] += not wrong
        refusal = ends[0] if ends and ends[0].startswith("error: ") else ""
        refused |= {sequence.extra[1]: refusal} if refusal else {}
        endings[sequence.ending + (" after a shorter one" if sequence.shorter else "")] += not refusal
        extra_names[" ".join(sequence.extra)] += not refusal
        for event, end in zip(sequence.events, ends, strict=False):
            ways[event.way] += 1
            phases[event.phase] += 1
            codes[end.rpartition(" ")[2]] += 1
        if wrong:
            again = f"--sequences 1 --seed {seed} --processes {processes} --first {number}"
            problems.append({"again": again, "sequence": asdict(sequence), "ends": ends, "wrong": wrong[:8]})
            print(json.dumps(problems[-1]), file=sys.stderr, flush=True)
        if not result["sequences"] % 5:
            print(json.dumps(result), file=sys.stderr, flush=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **result, "endings": endings, "extras": extra_names, "refused": refused, "lives": site.lives,
        "ways": ways, "phases": phases, "exit codes": codes,
        "seconds": round(time.monotonic() - start), "cpu seconds": round(spent.ru_utime + spent.ru_stime),
        "problems": problems,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    site = Site(arguments.home.resolve())
    report = campaign(
        site, arguments.sequences, arguments.seed, arguments.processes, arguments.first, arguments.seconds
    )
    json.dump(report, sys.stdout, indent=1)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
