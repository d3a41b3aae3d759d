"""Wrong callbacks: those that change training, and those that forget."""

import torch
from lightning.pytorch import Callback

from faults import planted
from zoo.training.ema import EMA


class Counts(Callback):
    """Counts batches."""

    def __init__(self, limit: int = 100):
        self.limit, self.count = limit, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.count += 1
        self.act(trainer, pl_module)

    def act(self, trainer, task):
        pass

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


@planted(training_is_unchanged="gives other weights")
class DrawsNumbers(Counts):
    """A random number is drawn: dropout differs afterwards."""

    def act(self, trainer, task):
        torch.rand(())


@planted(training_is_unchanged="gives other weights")
class ShrinksWeights(Counts):
    """Weights shrink a little after each batch."""

    def act(self, trainer, task):
        for parameter in task.parameters():
            parameter.data.mul_(0.999)


@planted(training_is_unchanged="ends after 4")
class StopsEarly(Counts):
    """The run ends after some batches."""

    def act(self, trainer, task):
        trainer.should_stop = self.count >= 4


@planted(results_are_declared="declare changes_results")
class SilentAverage(EMA):
    """The average is not declared."""

    changes_results = False


@planted(resumes="its state is")
class ForgetsItsCount(Counts):
    """The count is saved and not taken back."""

    def load_state_dict(self, state_dict):
        pass


@planted(resumes="differs")
class AverageOfOwnCount(EMA):
    """The decay follows a count of its own."""

    count = 0

    def on_train_batch_end(self, *arguments):
        self.count += 1
        self.decay = 1 - 1 / self.count**0.5
        super().on_train_batch_end(*arguments)


@planted(plain_state="instead of")
class LoadsOtherwise(Counts):
    """One more than was saved."""

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"] + 1


@planted(plain_state="more than tensors")
class SavesAFunction(Counts):
    """A function is part of the state."""

    def state_dict(self):
        return {"count": torch.nn.Identity()}
