"""The n-gram language model as a task: training counts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from zoo.errors import UsageError
from zoo.tasks.lm import LanguageTask
from zoo.tasks.schedule import Constant
from zoo.tasks.task import required_sizes
from zoo_classic.counts import Counts, Smoothing
from zoo_classic.rows import rows


class Nothing(Optimizer):
    """Steps that change nothing: a trainer counts them."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(0)], {"lr": 0.0})

    def step(self, closure=None):
        """Change nothing; the loss of the closure, if there is one."""
        return None if closure is None else closure()


class NGram(LanguageTask):
    """p(next | the last order - 1 tokens) from counts, smoothed; one pass over the text is all its training.

    Train it for one epoch (``trainer.max_epochs: 1``): the whole text is counted, at the first batch. With
    ``trainer.max_steps`` the rows of its batches are counted one by one.
    """

    net: Counts
    known_failures: ClassVar = {
        "example_can_be_counted": "it looks counts up: there is no product of matrices to count",
        "trains": "it counts: there are no parameters and no gradient",
    }

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        order: int = 3,
        smoothing: Smoothing = "kneser_ney",
        add: float = 1.0,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            order: n: how many tokens an n-gram has, the predicted one included.
            smoothing: laplace adds to every count; kneser_ney takes from every count and asks shorter n-grams.
            add: what laplace adds; 0 is the plain ratio of counts, which gives nothing to what was never met.
        """
        sizes = required_sizes(vocab_size=vocab_size, max_length=max_length)
        super().__init__(Counts(**sizes, order=order, smoothing=smoothing, add=add), 1.0, AdamW, Constant)
        self.stream: Tensor | None = None  # the training text (1, N), where it is counted as a whole

    def on_fit_start(self) -> None:
        """Take the whole text, where it counts. Raises UsageError where more than one process counts."""
        if self.trainer.world_size > 1:
            raise UsageError("NGram counts in one process: set trainer.devices to 1.")
        self.stream = self.whole_text()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Count the n-grams of a batch, or at the first one those of the whole text; a loss of zero ()."""
        if self.stream is None:
            self.net.count(rows(batch))
        elif not self.tokens_seen:
            self.net.count(self.stream)
        self.tokens_seen += (batch["targets"] >= 0).sum()
        return torch.zeros((), requires_grad=True)

    def whole_text(self) -> Tensor | None:
        """The training text (1, N) where epochs end the run and its rows are cut from one; else None.

        Rows lose the n-grams across their edges, and those of the ends of the text, which no row of an epoch holds.
        """
        trainer: Any = self.trainer
        tokens = getattr(trainer.datamodule.datasets["train"], "tokens", None)
        limited = trainer.max_steps >= 0 or trainer.limit_train_batches != 1.0
        return None if tokens is None or limited else torch.tensor(tokens, device=self.device).long()[None]

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """No gradient to scale."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """No loss of training to write down: it is measured by validation."""

    def configure_optimizers(self) -> Nothing:
        """An optimiser that changes nothing."""
        return Nothing()
