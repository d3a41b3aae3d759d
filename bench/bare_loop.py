"""What a recipe trains, without a Trainer: the same task, data, optimiser, schedule and clipping in a bare loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from zoo.cli.fit import ZooCLI
from zoo.config import fit_options, run_config
from zoo.parts.ffn import feeds, pop_aux_losses


class BareLoop:
    """A recipe's task and data, and the step that a bare loop takes with them."""

    def __init__(self, recipe: str, folder: str, *options: str) -> None:
        command = fit_options.parse("fit", [recipe, "--runs", folder, *options])
        schema = run_config.schema()
        plan = run_config.make_plan(command, run_config.read_draft(command), schema)
        cli = ZooCLI(plan, schema)  # everything that `zoo fit` builds; nothing is started
        trainer = plan.config["trainer"]
        self.task, self.data, self.trainer = cli.model.train(), cli.data, cli.trainer
        self.feeds = feeds(self.task.net)
        self.clip = trainer.get("gradient_clip_val")
        self.optimizer = self.task.make_optimizer()
        self.schedule = LambdaLR(self.optimizer, self.task.schedule_factory(int(trainer["max_steps"])))

    def batches(self) -> Iterable[Any]:
        """The loader that training reads."""
        self.data.ready()
        return self.data.train_dataloader()

    def step(self, batch: Any) -> None:
        """One optimiser step."""
        total, size = self.task.loss(batch)
        for side in pop_aux_losses(self.feeds):
            total = total + side * size
        (total / size).backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.task.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
