"""What every task shares: a loss per real token, an optimiser with its schedule, and the logging of both."""

import logging
import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import MeanMetric, Metric, SumMetric

from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.models.initialization import derive_seed, rule_of
from zoo.models.parameter_roles import parameter_roles
from zoo.parts.ffn import OwnsLoss, feeds, pop_aux_losses
from zoo.tasks.loss_log import Loss, LossLog
from zoo.tasks.optimizers import OptimizerFactory, build_optimizer, name_groups, parameter_groups
from zoo.tasks.schedule import Schedule
from zoo.value_checks import at_least

log = logging.getLogger(__name__)

ScheduleFactory = Callable[[int], Schedule]
Directions = dict[str, Literal["min", "max"]]


@dataclass
class Healing:
    """Distils ``original``, the frozen network that a run starts from, into the task's, which has other parts.

    It is no module of the task: checkpoints hold ``digest`` alone, that of the original's file. ``share`` is the weight
    of the distillation beside the loss of the task.
    """

    original: nn.Module
    share: float
    digest: str

    def loss(self, task: "Task", batch: Any) -> Loss:
        """share · Σ KL(original ‖ model) + (1 - share) · the task's loss (), in nats, and the number of terms ()."""
        self.original.to(next(task.net.parameters()))  # as the trainer has moved and converted the task
        logits = task.prediction_logits(task.net, batch).float()
        with torch.no_grad():
            aim = task.prediction_logits(self.original, batch).float()
        total = F.kl_div(logits.log_softmax(-1), aim.log_softmax(-1), reduction="sum", log_target=True)
        if self.share == 1:
            return Loss(total, torch.tensor(len(logits), device=total.device))
        own, size = task.loss(batch)
        return Loss(self.share * total + (1 - self.share) * own, size)


ORIGINAL = "original"  # in a checkpoint: SHA-256 of the model that the task distils


class Task(LightningModule):
    """Trains ``net``; a subclass defines its loss, and puts other metrics into ``metrics``.

    The gradient is that of the mean loss over all predictions of one optimiser step, so that neither the size of a
    batch, its padding, gradient accumulation, nor the number of processes changes it.
    """

    kind = "task"
    unit = "token"  # what a prediction is about, and a cost is per
    prediction = ""  # what its metrics judge: tasks that say the same are compared by the metrics of both
    learns_from = "something else"  # the kind of data in words, for messages
    example_data: ClassVar[tuple[str, ...]] = ()  # names of data modules of that kind, for messages
    data_sizes: ClassVar[dict[str, int]] = {}  # options that the data sets where they are None, and a small value each
    monitored_metrics: ClassVar[Directions] = {"loss": "min"}  # metrics of a validation; the first one decides
    mean_metrics: ClassVar[tuple[str, ...]] = ()  # names in ``metrics`` that are means, besides the loss
    in_matrix: ClassVar[bool] = True  # `zoo matrix` builds it; False where another task needs the same of a stack
    sample_length: int = 16  # most tokens of a text of ``sample``
    fixed_length: ClassVar[bool] = False  # whether all its texts have one length, of which padding is a part
    # "module:Class", a subclass of `zoo.inference.trained_model.Trained`: what uses a trained one
    trained: ClassVar[str] = ""
    # options that only training needs, where `network` takes all others by their names and holds all that is trained;
    # None where it does not. Holds for subclasses that inherit the constructor
    training_options: ClassVar[tuple[str, ...] | None] = None
    builder: ClassVar[Callable[[Callable[[], Any]], Any]] = operator.call  # how a strategy builds networks
    # "module:function" of a task and its data module, which gives pictures by name that a run logs after a validation
    pictures: ClassVar[str] = ""
    tokens_seen: Tensor

    def __init__(self, net: nn.Module, lr: float, optimizer: OptimizerFactory, schedule: ScheduleFactory):
        """
        Args:
            net: what is trained.
            lr: learning rate at its peak.
            optimizer: the optimiser; matrices decay, gains and biases never.
            schedule: how the learning rate moves.
        """
        super().__init__()
        if not lr > 0:
            raise UsageError(f"model.lr must be above 0, got {lr}.")
        schedule(10**6)  # which refuses values before a run begins
        self.net, self.lr, self.optimizer_factory, self.schedule_factory = net, lr, optimizer, schedule
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.long))
        self.eval_loss = MeanMetric()
        self.eval_nans = SumMetric()  # batches whose loss is nan, which means of torchmetrics leave out
        self.nan_batches = 0  # of the newest evaluation
        # torchmetrics by the name that each is reported under
        self.metrics: Any = nn.ModuleDict({name: MeanMetric() for name in self.mean_metrics})
        self.best: dict[str, float] = {}
        self.measured: dict[str, float] = {}  # by the newest validation, nan where nothing was or where it diverged
        self.rates: dict[str, float] = {}  # factors on the learning rate by the name of a parameter of the net
        self.thaws: dict[str, int] = {}  # the step from which a parameter of the net learns, by its name
        self.healing: Healing | None = None  # in training, where the run distils what it starts from
        self._seed = torch.initial_seed()
        self._step_rate = float("nan")  # learning rate of the newest optimiser step
        self._window: list[Tensor] = []  # predictions per batch since the last optimiser step, over all processes
        self.step_losses: list[Tensor] = []  # and the losses of these batches
        self._feeds: list[OwnsLoss] | None = None  # those of the net, while it is trained
        self.loss_log = LossLog()

    @staticmethod
    def network(**options: Any) -> nn.Module:
        """``net`` with the options of a task that are its own: a call of its class with ``**options``."""
        raise NotImplementedError

    @classmethod
    def build_network(cls, **options: Any) -> Any:
        """``network`` with these options and the run's seed. Raises UsageError for a size of the data that is None.

        A constructor calls it with ``**model``: a subclass may inherit that constructor and have another network.
        """
        required_sizes(**{name: options[name] for name in options if name in cls.data_sizes})
        # not functools.partial: signatures are read from calls
        return Task.builder(lambda: cls.network(**options, seed=torch.initial_seed()))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """As torch's, names and tensors of any shape, without counters and tables of integers: callbacks and strategies
        average what it names.
        """
        return (pair for pair in super().named_buffers(*args, **kwargs) if pair[1].is_floating_point())

    @classmethod
    def small_sizes(cls, options: Mapping[str, Any]) -> dict[str, int]:
        """Values for ``data_sizes`` with which a task of these options can be built to see whether its parts fit."""
        return dict(cls.data_sizes)

    @abstractmethod
    def loss(self, batch: Any) -> Loss:
        """The training loss of a batch."""

    @abstractmethod
    def evaluate(self, batch: Any) -> Loss:
        """The loss of a batch as it is reported, after updating the metrics of the task."""

    @abstractmethod
    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """Arguments of ``net`` for one sample, each (1, ...) on the meta device, and the tokens (or images) in it."""

    def prediction_logits(self, net: nn.Module, batch: Any) -> Tensor:
        """Logits (N, C) that ``net`` gives for all that ``loss`` predicts, to distil them.

        Whoever defines another loss defines them, too. Raises NotImplementedError where a task has none.
        """
        raise NotImplementedError

    def take_start(self) -> None:
        """Called when ``net`` has the weights of ``tune.start``, before adapters are added and tensors are frozen."""

    def sample(self, rows: int) -> Any:
        """A random batch such as its data gives, for checks. Raises NotImplementedError where a task has none."""
        raise NotImplementedError

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """The metrics of the task by name, besides the loss; nan where nothing was measured. They start anew."""
        return {name: compute_and_reset(metric) for name, metric in self.metrics.items()}

    # training

    def on_fit_start(self) -> None:
        """Seed the generators by the run's seed and the number of the process."""
        # building a part consumes random numbers: without this, dropout would differ between variants of a model
        torch.manual_seed(derive_seed(self._seed, f"rank {self._data_process()[0]}"))
        self._feeds = feeds(self.net)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Give the weights that gradients are taken at, where an optimizer has others for evaluation."""
        self._switch_optimizers("train")

    def on_validation_epoch_start(self) -> None:
        """Give the weights to evaluate; checkpoints behind a validation have them too."""
        self._switch_optimizers("eval")

    def _switch_optimizers(self, mode: Literal["train", "eval"]) -> None:
        for optimizer in self.trainer.optimizers:
            getattr(optimizer, mode, lambda: None)()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss () whose gradient, after Lightning's averaging, is that of the mean over a step's predictions."""
        owners = feeds(self.net) if self._feeds is None else self._feeds
        pop_aux_losses(owners)  # of calls outside of a step
        total, size = self.loss(batch) if self.healing is None else self.healing.loss(self, batch)
        for side in pop_aux_losses(owners):
            total = total + side * size
        everywhere, loss = size.to(total.dtype), total.detach()
        self.loss_log.add(loss, size)
        if self.trainer.world_size > 1:
            everywhere, loss = self._sum_over_processes(torch.stack([everywhere, loss]))
        self._window.append(everywhere)
        self.step_losses.append(loss)
        self.tokens_seen += everywhere.long()
        # Lightning divides by the batches to accumulate, and its strategies average over processes; neither depends
        # on the number of predictions per batch, so both are undone here
        undo = self.trainer.accumulate_grad_batches * self._data_process()[1]
        return total * (undo / self._window[0].clamp(min=1))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Drop gradients of parameters that wait, and average over the predictions of all accumulated batches."""
        self._step_rate = float(optimizer.param_groups[0]["lr"])  # the schedule changes it before the step is logged
        # no gradient, no step: requires_grad would have to change, which DistributedDataParallel does not follow
        waiting = {name for name, step in self.thaws.items() if step > self.trainer.global_step}
        for name, parameter in self.net.named_parameters() if waiting else ():
            if name in waiting:
                parameter.grad = None
        if len(self._window) > 1:
            factor = self._window[0].clamp(min=1) / torch.stack(self._window).sum().clamp(min=1)
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor.to(parameter.grad.dtype))
        self._window.clear()
        self.step_losses.clear()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the mean training loss since the last line, and the learning rate, every ``log_every_n_steps``."""
        step, every = self.trainer.global_step, cast(Any, self.trainer).log_every_n_steps
        if not every:
            self.loss_log.losses.clear()  # no line will need them
        if self._window or not every or step % every:
            return
        total, size = self.loss_log.pop()
        mean = (self._sum_over_processes(total) / self._sum_over_processes(size)).item()  # nan where there is no loss
        self._write({"train/loss": mean, "train/lr": self._step_rate}, step)
        self.log("loss", mean, prog_bar=True, logger=False)

    def _data_process(self) -> tuple[int, int]:
        """Which share of a batch this process has, and of how many: as many as processes, unless the strategy says so
        by ``data_process``; its ``all_gather`` is then over one process of each share.
        """
        return getattr(self.trainer.strategy, "data_process", (self.global_rank, self.trainer.world_size))

    def _sum_over_processes(self, value: Tensor) -> Tensor:
        return cast(Tensor, self.all_gather(value)).sum(0) if self.trainer.world_size > 1 else value

    def _write(self, figures: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(figures, step)

    # evaluation

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a batch."""
        total, size = self.evaluate(batch)
        self.eval_nans.update(total.isnan())
        if size > 0:
            self.eval_loss.update(total / size, size)

    def on_validation_epoch_end(self) -> None:
        """Report the metrics of a validation as ``val/<name>``."""
        self._report("val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a batch."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Report the metrics of a test as ``test/<name>``."""
        self._report("test")

    def _report(self, split: str) -> None:
        # every process computes every metric, so that none waits for another; nan is what no process has measured
        loss, self.nan_batches = compute_and_reset(self.eval_loss), int(compute_and_reset(self.eval_nans))
        measured = {"loss": loss, **self.compute_metrics(loss)}
        if self.nan_batches:
            measured = dict.fromkeys(measured, math.nan)
        figures = {name: value for name, value in measured.items() if value == value}
        to_logger = self.trainer.state.fn != TrainerFn.FITTING  # in training we write; Lightning returns what it logs
        # nan is logged as well: else callbacks would take what an earlier validation measured for this one's
        for name, value in measured.items() if self.nan_batches else figures.items():
            shows = name in self.monitored_metrics
            self.log(f"{split}/{name}", value, prog_bar=shows, logger=to_logger and value == value)
        if split == "val" and not self.trainer.sanity_checking:
            self.measured = measured
            if not to_logger:
                self._write_validation(figures)

    def _write_validation(self, figures: dict[str, float]) -> None:
        monitored = {name: direction for name, direction in self.monitored_metrics.items() if name in figures}
        for name, direction in monitored.items():
            pick = min if direction == "min" else max
            self.best[name] = pick(self.best.get(name, figures[name]), figures[name])
        best = {f"best/{name}": value for name, value in self.best.items()}
        self._write({f"val/{name}": value for name, value in figures.items()} | best, self.trainer.global_step)
        self._write({f"val_by_tokens/{name}": figures[name] for name in monitored}, int(self.tokens_seen))

    def predict_step(self, batch: Any, batch_idx: int) -> list[dict[str, Any]]:
        """A record of plain values per sample, for `zoo predict`. Raises UsageError where a task has no predictions."""
        raise UsageError(f"task {type(self).__name__} has no predictions. Measure it: zoo test")

    # optimiser

    def make_optimizer(self) -> Optimizer:
        """The optimiser of named parameters, in one kernel for all tensors where torch has one.

        Raises UsageError where the optimiser refuses them.
        """
        groups = name_groups(self.groups(), self.named_parameters(), parameter_roles(self))
        optimizer = build_optimizer(self.optimizer_factory, groups, self.lr)
        rule_of(self.net).fit_optimizer(optimizer, self.net)
        return optimizer

    def configure_optimizers(self) -> Any:
        """Optimiser and schedule, as Lightning takes them. Raises UsageError where a run has no end."""
        steps = self.trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise UsageError("a run needs an end, for its schedule too: set trainer.max_steps or trainer.max_epochs.")
        if steps < 0:
            raise UsageError("the length of a stream is not known before it is read: set trainer.max_steps.")
        late = {name for name, step in self.thaws.items() if step >= steps}
        learns = any(p.requires_grad for name, p in self.net.named_parameters() if name not in late)
        if late and not learns and not getattr(self.trainer, "fast_dev_run", False):
            step = min(self.thaws.values())
            raise UsageError(f"tune.thaw is step {step} of a run of {steps}: nothing would be trained.")
        if late:
            rank_zero_only(log.warning)("%d parameters would thaw after the run's %d steps", len(late), int(steps))
        optimizer = self.make_optimizer()
        factor = self.schedule_factory(int(steps))
        if (warmup := getattr(factor, "warmup", 0)) >= steps > 1:
            rank_zero_only(log.warning)(
                "the warm-up of %d steps does not end within the %d steps of the run: model.lr is reached at its last "
                "step at most. Set --model.schedule.warmup below %d, or train longer",
                *(warmup, int(steps), int(steps)),
            )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }

    def groups(self) -> list[dict[str, Any]]:
        """Parameters that are optimised alike; the first group learns fastest."""
        rates = rule_of(self.net).rates(self.net)
        rates |= {name: factor * rates.get(name, 1.0) for name, factor in self.rates.items()}
        return parameter_groups(self.named_parameters(), self.lr, rates, parameter_roles(self))

    # resume

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the best and the newest metrics."""
        checkpoint["best"], checkpoint["measured"] = self.best, self.measured
        if self.healing is not None:
            checkpoint[ORIGINAL] = self.healing.digest

    def check_original(self, digest: object) -> None:
        """Raise CheckpointError where this task distils another model than that with this SHA-256; None for any."""
        if self.healing is not None and digest not in (None, self.healing.digest):
            raise CheckpointError(
                "the model of tune.start is another one than when this run began, so that it would be distilled from "
                "two models. Give the file that it began with, or begin again: --overwrite"
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the figures of a checkpoint.

        Raises NonFiniteError where its weights are not numbers, and CheckpointError where it distilled another model.
        """
        tensors = checkpoint.get("state_dict", {})
        flags = {name: tensor.isnan().any() for name, tensor in tensors.items() if tensor.is_floating_point()}
        # of shares the answer of all processes
        wrong = [name for name, flag in flags.items() if getattr(flag, "full_tensor", lambda flag=flag: flag)()]
        if wrong:
            raise NonFiniteError(
                f"{wrong[0]} of the checkpoint holds nan instead of numbers. Take an earlier checkpoint."
            )
        self.check_original(checkpoint.get(ORIGINAL))
        self.best, self.measured = checkpoint.get("best", {}), checkpoint.get("measured", {})


def exact(value: Any) -> bool:
    """Whether it is a tensor of integers, such as a counter."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def compute_and_reset(metric: Metric) -> float:
    """The value of a metric over all processes, nan where none has measured a mean; the metric starts anew."""
    if isinstance(metric, MeanMetric):
        metric.update(0.0, 0.0)  # torchmetrics warns where a process has nothing to add
    value = float(metric.compute())
    metric.reset()
    return value


def required_sizes(**sizes: int | None) -> dict[str, int]:
    """Sizes that were set, or came from the data. Raises UsageError for the first one that is None."""
    return {name: required_size(value, name) for name, value in sizes.items()}


def required_size(value: int | None, name: str) -> int:
    """A size that was set, or came from the data. Raises UsageError where it is None or negative."""
    if value is None:
        raise UsageError(f"Set model.{name}, or use a data module that provides it.")
    at_least(0, **{f"model.{name}": value})
    return value
