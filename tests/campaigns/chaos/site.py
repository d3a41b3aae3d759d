"""A folder where runs of a toy recipe are disturbed, go on, and are compared with one that nobody disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.campaigns.chaos import lives, toys, worlds

PATIENCE = 240.0  # seconds until a life counts as hung
Prologue = Callable[[], None] | None


class Site:
    """Runs of ``zoo fit <task>.yaml <words>`` in ``home``, each with as many processes as ``processes``."""

    def __init__(self, home: Path, task: str, words: Sequence[str] = (), processes: int = 1, **recipe: int) -> None:
        lives.load()
        self.home, self.task, self.processes = home, task, processes
        toys.write(home, **recipe)
        several = ["--trainer.devices", str(processes), "--trainer.strategy", "ddp"] if processes > 1 else []
        self.words = ["fit", f"{task}.yaml", "--name", "default", *words, *several]
        self.run = home / f"runs/{task}/default/s1"
        self.log = home / "reference.log"
        self.undisturbed: dict[str, str] = {}
        self.child = 0

    def reference(self) -> dict[str, str]:
        """Of a run that nobody disturbs; its folder stays beside the others."""
        place = self.home / f"reference/{self.task}/default/s1"
        shutil.rmtree(place, ignore_errors=True)
        code = self.ended(self.begin("--runs", "reference"))
        assert code == 0, (code, self.log.read_text()[-2000:])
        self.undisturbed = toys.outcome(place)
        return self.undisturbed

    def clear(self, name: str) -> None:
        """Before a round of this name: no run is there, and its log is empty."""
        shutil.rmtree(self.home / "runs", ignore_errors=True)
        self.log = self.home / f"{name}.log"
        self.log.unlink(missing_ok=True)

    def begin(self, *more: str, prologue: Prologue = None, processes: int | None = None) -> int:
        """Start a life; its process."""
        number = self.processes if processes is None else processes

        def first() -> None:
            if prologue is not None:
                prologue()
            if number > 1:
                worlds.ready(number)

        self.child = lives.born([*self.words, *more], self.home, self.log, first)
        return self.child

    def ended(self, child: int, within: float = PATIENCE) -> int | None:
        """The exit code of a life; a life that hangs, and whatever else it left, is killed, and there is None."""
        code = lives.ended(child, within)
        if code is None:
            lives.kill(child)
        return code

    def went_on(self, *more: str, processes: int | None = None) -> list[str]:
        """Go on undisturbed to the end; where that differs from the run that was never disturbed."""
        code = self.ended(self.begin("--requeue", *more, processes=processes))
        if code != 0:
            return [f"code {code}: {self.log_text()[-300:]}"]
        return toys.differences(toys.outcome(self.run), self.undisturbed)

    def log_text(self) -> str:
        """What the lives of this round have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """The lines of it that are no part of a log."""
        lines = self.log_text().splitlines()
        start = next((n for n, line in enumerate(lines) if line.startswith(("error:", "warning:", "Traceback"))), None)
        return [] if start is None else lines[start:]


def bad_tensors(run: Path) -> list[str]:
    """The tensors of a run's checkpoints that are not finite."""
    result = []
    for path in sorted(run.rglob("*.ckpt")):
        content = torch.load(path, weights_only=True)
        values = {name: value for name, value in content["state_dict"].items() if torch.is_tensor(value)}
        result += [f"{path.name}: {n}" for n, v in values.items() if v.is_floating_point() and not v.isfinite().all()]
    return result
