"""Cost of a configuration before training: parameters, FLOPs and tokens per step, with the model on the meta device."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from zoo import registry
from zoo.config import data_sizes
from zoo.data.data import Data
from zoo.errors import UsageError, root_cause
from zoo.inference.rebuild_task import import_section, rebuild_task
from zoo.tasks.task import Task
from zoo.training.distributed import plan_trainer
from zoo.training.model_cost import Cost, cost

BATCHES = 8  # training batches in which tokens are counted


class ConfigMeter:
    """Measures configurations, ``{"model": ..., "data": ..., "trainer": ...}``, and caches data and costs.

    ``allow`` are modules that class paths may name besides zoo and its plugins.
    """

    def __init__(self, allow: tuple[str, ...] = ()) -> None:
        self.allow = allow
        self._data: dict[str, Data] = {}
        self._costs: dict[str, Cost] = {}

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UsageError if the parts of a model cannot be combined; builds it with small sizes and without data."""
        model = config["model"]
        limit = config["data"].get("init_args", {}).get("max_length")
        sizes = data_sizes.placeholder_sizes(_class(model), model["init_args"], limit)
        try:
            self._task(model, sizes)
        except UsageError as error:
            # a part that cannot be built on the meta device is not an invalid combination
            if not isinstance(root_cause(error), (NotImplementedError, RuntimeError)):
                raise

    def goals(self, config: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
        """What the metrics of a configuration's task judge, and the direction of each metric, "min" or "max"."""
        task = _class(config["model"])
        return task.prediction or task.__name__, task.monitored_metrics

    def cost(self, config: Mapping[str, Any]) -> Cost:
        """Parameters and forward FLOPs per token, with the sizes of the data. Raises UsageError for invalid parts."""
        key = json.dumps([config["model"], config["data"]], sort_keys=True, default=str)
        if key not in self._costs:
            self._costs[key] = cost(self._task(config["model"], self._sizes(config)))
        return self._costs[key]

    def tokens_per_step(self, config: Mapping[str, Any]) -> float:
        """Tokens with a loss per optimizer step: mean over the first BATCHES batches × accumulation × data shares."""
        data = self.data(config)
        module = self._task(config["model"], self._sizes(config), "cpu").eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            batches = [batch for _, batch in zip(range(BATCHES), data.train_dataloader(), strict=False)]
            sizes = [int(module.loss(batch).size) for batch in batches]
        trainer = config["trainer"]
        return sum(sizes) / len(sizes) * int(trainer.get("accumulate_grad_batches") or 1) * _count_shares(trainer)

    def batches_per_epoch(self, config: Mapping[str, Any]) -> int | None:
        """The number of batches of an epoch; None for data that do not know it, such as streams."""
        loader = self.data(config).train_dataloader()
        return len(loader) if hasattr(loader, "__len__") else None

    def task_class(self, config: Mapping[str, Any]) -> type[Task]:
        """The class of a configuration's task."""
        return _class(config["model"])

    def data(self, config: Mapping[str, Any]) -> Data:
        """The loaded data module of a configuration. Raises UsageError for a class that may not be imported."""
        key = json.dumps(config["data"], sort_keys=True, default=str)
        if key not in self._data:
            section = import_section(config["data"], Path("the configuration"), self.allow)
            parser = ArgumentParser(exit_on_error=False)
            parser.add_subclass_arguments(Data, "data", fail_untyped=False, required=True)
            namespace = Namespace(data=parser.parse_object({"data": section}).data)
            self._data[key] = parser.instantiate(namespace).data
            self._data[key].ready()
        return self._data[key]

    def _sizes(self, config: Mapping[str, Any]) -> dict[str, int]:
        data = self.data(config)
        limit = getattr(data, "max_length", None)
        return {**({"max_length": limit} if isinstance(limit, int) else {}), **data.sizes()}

    def _task(self, model: Mapping[str, Any], sizes: Mapping[str, int], device: str = "meta") -> Task:
        options = dict(model["init_args"])
        options |= {n: sizes[n] for n in _class(model).data_sizes if options.get(n) is None and n in sizes}
        filled = {"model": {"class_path": model["class_path"], "init_args": options}}
        with torch.device(device):
            return rebuild_task(filled, Path(f"the configuration of {model['class_path']}"), self.allow)


def _count_shares(trainer: Mapping[str, Any]) -> int:
    """How many processes of a run have samples of their own. Raises UsageError where that depends on the machine."""
    devices = trainer.get("devices")
    numbers: Any = devices.strip(",").split(",") if isinstance(devices, str) and "," in devices else devices
    if isinstance(numbers, (list, tuple)):
        count = len(numbers)
    elif str(numbers).isdecimal() and int(numbers):
        count = int(numbers)
    else:
        count = 1
        with contextlib.suppress(MisconfigurationException, TypeError, ValueError):  # the runs will say it
            count = plan_trainer(trainer, plugins=[LightningEnvironment()]).num_devices
        if count > 1:
            raise UsageError(
                f"how many tokens a step has depends on the devices of a run, and this machine has {count}: name their "
                "number, such as --trainer.devices 1"
            )
    count *= int(trainer.get("num_nodes") or 1)
    strategy = dict.get(StrategyRegistry, str(trainer.get("strategy")), {}).get("strategy")
    return max(1, count // (getattr(strategy, "tensor_parallel", 1) or count))  # None: all divide the model


def _class(model: Mapping[str, Any]) -> type[Task]:
    from zoo.plugins.safe_import import import_object

    module, _, name = registry.current_path(str(model["class_path"])).rpartition(".")
    cls = import_object(module, name)
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise UsageError(f"{model['class_path']} is not a task: it must be a subclass of zoo.tasks.task.Task.")
    return cls
