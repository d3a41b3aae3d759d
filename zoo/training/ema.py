"""An exponential moving average of the weights, which validation, checkpoints and the finished run use."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from zoo.errors import UsageError

CURRENT = "current_model_state"  # the key of the weights of training in a checkpoint whose "state_dict" is averaged


class EMA(Callback):
    """Average weights: a = d * a + (1 - d) * w after each step, with d = min(decay, (1 + n) / (10 + n)) at update n.

    Training itself is unchanged. Validations, checkpoints and the end of the run have the average, before its first
    update the newest weights; checkpoints keep the weights of training too, and a stopped run goes on with both. The
    average of weights of 16 bits is kept in 32.
    """

    changes_results: ClassVar = True

    def __init__(self, decay: float = 0.999, start: int = 0, every: int = 1):
        """
        Args:
            decay: the share of the average that stays at an update, once there were enough of them.
            start: steps before which the average is the newest weights.
            every: steps between updates.
        """
        if not 0 <= decay < 1:
            raise UsageError(f"EMA's decay must be from 0 to below 1, got {decay}.")
        if start < 0 or every < 1:
            raise UsageError(f"EMA counts steps: start from 0 and every from 1 on, got {start} and {every}.")
        self.decay, self.start, self.every = decay, start, every
        self.updates, self.step = 0, 0  # and the step of the newest update
        self.averages: dict[str, Tensor] = {}  # by the name of a weight
        self.current: dict[str, Tensor] = {}  # the weights of training, while averages are in their place

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raises UsageError where a process holds a part of the weights only."""
        if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
            raise UsageError("EMA averages whole weights, which this trainer.strategy splits. Take ddp.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises UsageError beside an optimizer that averages: it would take this average for its own weights."""
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "eval"):
                raise UsageError(f"{type(optimizer).__name__} evaluates an average of the weights: leave EMA out.")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after a step."""
        step = trainer.global_step
        if step <= self.step or step <= self.start or step % self.every:
            return
        count, self.updates, self.step = self.updates, self.updates + 1, step
        decay = min(self.decay, (1 + count) / (10 + count))
        for name, tensor in weights(pl_module).items():
            wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
            if name in self.averages:  # a checkpoint's are on the CPU
                self.averages[name] = self.averages[name].to(wide.device).lerp_(wide, 1 - decay)
            else:
                self.averages[name] = wide.clone()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the averages into the place of the weights, until training goes on."""
        if self.current:
            return
        for name, tensor in weights(pl_module).items():
            if name in self.averages:
                self.current[name] = tensor.detach().clone()
                tensor.data.copy_(self.averages[name])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Put the weights of training back."""
        tensors = weights(pl_module)
        for name, value in self.current.items():
            tensors[name].data.copy_(value)
        self.current = {}

    on_train_end = on_validation_epoch_start

    def state_dict(self) -> dict[str, Any]:
        """The averages and their number of updates."""
        return {"updates": self.updates, "step": self.step, "averages": self.averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what ``state_dict`` gave."""
        self.updates, self.step = state_dict["updates"], state_dict["step"]
        self.averages = {name: value.clone() for name, value in state_dict["averages"].items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let the averages be the model of a checkpoint, beside the weights of training."""
        state, averages = checkpoint["state_dict"], self.averages
        first_names = {id(tensor): name for name, tensor in weights(pl_module).items()}
        tensors = pl_module.state_dict(keep_vars=True)
        names = {name: first_names[id(tensor)] for name, tensor in tensors.items() if id(tensor) in first_names}
        checkpoint[CURRENT] = {name: self.current.get(names.get(name, ""), value) for name, value in state.items()}
        checkpoint["state_dict"] = {
            name: averages[names[name]].to(value.dtype) if names.get(name) in averages else value
            for name, value in state.items()
        }

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Go on with the weights of training; what only measures has loaded the averages."""
        if CURRENT in checkpoint and trainer.training:
            pl_module.load_state_dict(checkpoint[CURRENT])


def weights(module: LightningModule) -> dict[str, Tensor]:
    """The floating-point tensors of a model's checkpoint, of any shape, by name; tied ones once."""
    tensors = {id(tensor): (name, tensor) for name, tensor in reversed(module.state_dict(keep_vars=True).items())}
    return {name: tensor for name, tensor in tensors.values() if tensor.is_floating_point()}
