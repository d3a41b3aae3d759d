"""The progress bar of a terminal: drawn a few times a second, with names that a terminal can show."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from zoo import console
from zoo.training import lightning_internals

RATE = 4  # how often a second the bar is drawn; a drawing takes as long as some steps


class Bar(lightning_internals.ProgressBar):
    """Lightning's bar, which would ask for its figures at every step and draw them a hundred times a second."""

    _last_drawing = 0.0

    def __init__(self, refresh_rate: int = RATE, **options: Any) -> None:
        super().__init__(refresh_rate, **options)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Draw the bar where it is time to, and after the last step."""
        now, last = time.monotonic(), trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if last or now - self._last_drawing >= 1 / self.refresh_rate:
            self._last_drawing = now
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def drawing_begins(self, trainer: Trainer) -> None:
        """Take the streams back from the bar: their log goes on."""
        console.cover()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Lightning's, by names that a terminal can show."""
        return {console.printable(name): value for name, value in super().get_metrics(trainer, pl_module).items()}

    def describe_training(self, text: str) -> str:
        """Lightning counts the epochs of a run that ends by its steps, too: "Epoch 0/-2"."""
        return text.replace("/-2", "   ")
