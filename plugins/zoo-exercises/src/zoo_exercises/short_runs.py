"""Training without a Trainer, for many short runs in one process."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from zoo.data.data import Data
from zoo.parts.ffn import aux_losses
from zoo.tasks.task import Task

CLIP = 1.0  # of the gradient's norm


def train(task: Task, data: Data, steps: int, bf16: bool = False) -> float:
    """Train for so many batches of ``data``, by the optimiser and the schedule of ``task``; the last loss."""
    optimizer = task.make_optimizer()
    schedule = LambdaLR(optimizer, task.schedule_factory(steps))
    loader: Any = data.train_dataloader()
    step, loss = 0, float("nan")
    task.train()
    while step < steps:
        for batch in islice(loader, steps - step):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                total, size = task.loss(batch)
            optimizer.zero_grad()
            (total / size.clamp(min=1) + sum(aux_losses(task.net))).backward()
            torch.nn.utils.clip_grad_norm_(task.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            step, loss = step + 1, float(total.detach() / size)
        loader.batches.set_epoch(loader.batches.epoch + 1)
    return loss


@torch.no_grad()
def validate(task: Task, data: Data, batches: int | None = None) -> dict[str, float]:
    """Loss and metrics of the first ``batches`` of the validation split, all for None."""
    task.eval()
    for number, batch in enumerate(islice(data.val_dataloader(), batches)):
        task.validation_step(batch, number)
    loss = float(task.eval_loss.compute())
    task.eval_loss.reset()
    return {"loss": loss, **task.compute_metrics(loss)}
