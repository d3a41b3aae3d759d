"""The progress bar on a terminal: one line with step, loss, speed and time left, never wider than the terminal."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress_bar import ProgressBar as Strip
from rich.table import Table
from rich.text import Text

from zoo import console

RATE = 4  # drawings per second; one takes as long as some steps
WINDOW = 40  # drawings that the speed is measured over
MAIN = 4  # fields that are more important than the strip
NARROWEST, WIDEST = 10, 40  # columns of the strip
SEPARATOR = " · "


class StepProgress(ProgressBar):
    """`step 120/3,000 ━━━━━━ loss 3.214 · 9,540 tokens/s · 5:02 left · val/loss 3.31`, in as many columns as there are.

    A step is one of the optimiser, whatever the gradient accumulation. The loss is that of the newest batch. Time left:
    the steps left at this process's mean pace, validations included, or what ``max_time`` leaves if that is less.
    """

    def __init__(self, screen: Console | None = None, refresh_rate: int = RATE) -> None:
        """``screen`` is where it is drawn, standard output unless given, ``refresh_rate`` times a second at most."""
        super().__init__()
        self.screen, self.refresh_rate = screen, refresh_rate
        self._enabled = True
        self._live: Live | None = None
        self._visible = False  # something has been drawn
        self._due = 0.0  # when the next drawing is
        self._total: int | None = None  # optimiser steps of the run
        self._origin: tuple[float, int] | None = None  # time and number of the first step of this process
        self._speeds: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # times, and predictions until then
        self._rate = 0.0  # predictions per second
        self._loss: Any = None  # loss of the newest batch, a tensor
        self._evaluation = ""  # the present evaluation: "validating 3/12"
        self._evaluated = 0.0  # share of it

    def enable(self) -> None:
        """Draw."""
        self._enabled = True

    def disable(self) -> None:
        """Do not draw, as on every process but the first."""
        self._enabled = False

    # hooks of Lightning

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the line before the first step."""
        self._start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an earlier run on this trainer measured, and show the line."""
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) and steps > 0 else None
        self._origin, self._evaluation = None, ""
        self._speeds.clear()
        self._start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the loss of the batch, and draw where a drawing is due."""
        if not self._enabled:
            return
        if losses := getattr(getattr(pl_module, "loss_log", None), "losses", None):
            self._loss = losses[-1].total / losses[-1].size  # the outputs are scaled for accumulation and processes
        else:
            self._loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        now = time.monotonic()
        if self._origin is None:
            self._origin = now, trainer.global_step
        if now >= self._due:
            self._measure(now, pl_module)
            self._draw()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the measurement of speed anew: the time of a validation is not the time of a step."""
        self._speeds.clear()  # its time is not the time of a step
        self._start()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Show how many batches of an evaluation, or of the sanity check before training, are done."""
        self.has_dataloader_changed(dataloader_idx)
        stage, name = "val", "sanity check" if trainer.sanity_checking else "validating"
        if trainer.testing or trainer.predicting:
            stage, name = ("test", "testing") if trainer.testing else ("predict", "predicting")
        self._evaluate(name, batch_idx, getattr(self, f"total_{stage}_batches_current_dataloader"))

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the line of training again."""
        self._evaluation = ""
        self.reset_dataloader_idx_tracker()
        self._draw()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the line of a test or, under its other name, of a prediction."""
        self._start()

    on_predict_start = on_test_start

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the line as it is, so that the error message begins below it."""
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the line as it is at the end."""
        self._stop()

    # drawing

    def _start(self) -> None:
        if self._enabled and self._live is None:
            screen = self.screen or Console()
            self._visible = (
                False  # an empty line first: what is drawn before the cursor moves would enter the run's log
            )
            self._live = Live(console=screen, auto_refresh=False, get_renderable=self._content)
            self._live.start(refresh=True)
            console.guard_again()

    def _stop(self) -> None:
        """Leave the line as it is at the end, and give the terminal back."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        self._due, self._visible = time.monotonic() + 1 / self.refresh_rate, True
        if self._live is not None:
            self._live.refresh()

    def _evaluate(self, name: str, batch_idx: int, total: float) -> None:
        """Note how far an evaluation is, and draw if that is due."""
        several = math.isfinite(total)
        self._evaluation = f"{name} {batch_idx + 1:,}" + (f"/{total:,.0f}" if several else "")
        self._evaluated = (batch_idx + 1) / total if several else 0.0
        if time.monotonic() >= self._due:
            self._draw()

    def _measure(self, now: float, module: LightningModule) -> None:
        """Predictions per second over the newest drawings."""
        self._speeds.append((now, int(getattr(module, "tokens_seen", 0))))
        (before, tokens_before), (_, tokens) = self._speeds[0], self._speeds[-1]
        if tokens > tokens_before:
            self._rate = (tokens - tokens_before) / (now - before)

    def seconds_left(self) -> float | None:
        """Seconds until the run ends by its steps or its time; None before the first measurement."""
        step, limits = self.trainer.global_step, []
        if self._total and self._origin and step > self._origin[1]:
            begin, start_step = self._origin
            limits.append(max(0, self._total - step) * (time.monotonic() - begin) / (step - start_step))
        timers = [callback for callback in self.trainer.callbacks if isinstance(callback, Timer)]  # type: ignore[attr-defined]
        limits += [max(0.0, seconds) for timer in timers if (seconds := timer.time_remaining()) is not None]
        return min(limits, default=None)

    def _content(self) -> Line | Text:
        return self._line() if self._visible else Text()

    def _line(self) -> Line:
        """The line at this moment."""
        if self.trainer.state.fn != "fit":
            return Line([self._evaluation], self._evaluated)
        step, total = self.trainer.global_step, self._total
        fields = [f"step {step:,}/{total:,}" if total else f"step {step:,}"]
        fields += [self._evaluation] if self._evaluation else []
        fields += [f"loss {float(self._loss):#.4g}"] if self._loss is not None else []
        unit = getattr(self.trainer.lightning_module, "unit", "token")
        fields += [f"{self._rate:{',.0f' if self._rate >= 100 else '.3g'}} {unit}s/s"] if self._rate else []
        seconds = self.seconds_left()
        fields += [f"{clock(seconds)} left"] if seconds is not None else []
        goal = next((f"val/{name}" for name in getattr(self.trainer.lightning_module, "monitored_metrics", ())), "")
        figure = self.trainer.progress_bar_metrics.get(goal)
        fields += [f"{goal} {float(figure):.4g}"] if isinstance(figure, (int, float)) else []
        return Line([console.printable(field) for field in fields], step / total if total else 0.0)


class Line:
    """Fields of text and a strip of progress, in one line of a terminal of any width."""

    def __init__(self, fields: Sequence[str], share: float) -> None:
        """``fields``: the most important one first; ``share``: of the work that is done, 0 to 1."""
        self.fields, self.share = fields, share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """What rich draws."""
        fields, strip = fitting(self.fields, options.max_width)
        table = Table.grid(padding=(0, 1, 0, 0))
        cells: list[Text | Strip] = [Text(fields[0], no_wrap=True, overflow="ellipsis")]
        cells += [Strip(1.0, min(1.0, self.share), width=strip)] if strip else []
        cells += [Text(SEPARATOR.join(fields[1:]), no_wrap=True)] if fields[1:] else []
        table.add_row(*cells)
        yield table


def fitting(fields: Sequence[str], columns: int) -> tuple[list[str], int]:
    """The first fields that fit into so many columns, at least one, and the columns of the strip, 0 for none."""
    used, count, strip = cell_len(fields[0]), 1, 0
    for number, field in enumerate(fields[1:], 1):
        reserved = NARROWEST + 1 if number >= MAIN else 0
        wide = cell_len(field) + (1 if number == 1 else len(SEPARATOR))
        if used + wide + reserved > columns:
            break
        used, count = used + wide, count + 1
    strip = min(WIDEST, columns - used - 1)
    return list(fields[:count]), strip if strip >= NARROWEST else 0


def clock(seconds: float) -> str:
    """``0:07``, ``12:30``, ``1:02:30``."""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"


def on_terminal() -> list[Callback]:
    """The bar where both standard streams are a terminal; in a pipe or a log it would be noise."""
    return [StepProgress()] if console.is_terminal(sys.stdout, sys.stderr) else []
