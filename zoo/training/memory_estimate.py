"""Estimates the memory of a training run before it starts, from tensors without numbers."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.models.loss import ROWS
from zoo.system.torch_internals import fake_tensors
from zoo.tasks.preference import DPO
from zoo.tasks.task import Task

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
STATES = 2  # numbers per weight that optimisers like Adam keep


class Estimate(NamedTuple):
    """Bytes of weights, of gradients, of the optimiser's state, and of what a batch keeps for its backward pass."""

    weights: int
    gradients: int
    states: int
    batch: int

    @property
    def total(self) -> int:
        """At most, beside what Python, torch and the data take.

        When a batch has most, the gradients of the step before are gone and its own are not there yet.
        """
        return self.weights + self.states + max(self.batch, self.gradients)


def estimate(task: Task, rows: int) -> Estimate:
    """The memory of a step with ``rows`` samples of the greatest length in float32, without accumulation.

    What autograd keeps is added up over a forward of tensors that have shapes and no memory. Padding that is removed,
    recomputation and what kernels need while they run are not known. Where a loss goes over a vocabulary, its slice of
    logits, which becomes that of their slope, and the gradient of its matrix, are counted.
    """
    weights = sum(p.nbytes for p in task.net.parameters())
    gradients = sum(p.nbytes for p in task.net.parameters() if p.requires_grad)
    output = getattr(task.net, "output", None)
    logits = ROWS * output.size(0) * 4 + output.nbytes if isinstance(output, Tensor) else 0
    return Estimate(weights, gradients, STATES * gradients, saved_for_backward(task, rows) + logits)


def device_memory(device: torch.device) -> int | None:
    """Bytes of memory that this process may use on a device: of the GPU, or of this machine, container or limit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    limits = []
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # "max" where a container has no limit
        limits.append(int(CONTAINER_LIMIT.read_text()))
    return min((limit for limit in limits if limit > 0), default=None)


def saved_for_backward(task: Task, rows: int) -> int:
    """Bytes that autograd keeps of a forward, each block of memory once, and no parameter."""
    arguments, _ = task.example()
    with fake_tensors() as mode:
        copies: dict[int, object] = {
            id(b): torch.empty(b.shape, dtype=b.dtype) if b.is_meta else mode.from_tensor(b) for b in task.net.buffers()
        }
        copies |= {
            id(p): nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
            for p in task.net.parameters()
        }
        net = copy.deepcopy(task.net, copies).train()
        weights = {id(storage): storage for storage in map(Tensor.untyped_storage, (*net.parameters(), *net.buffers()))}
        saved: dict[int, torch.UntypedStorage] = {}  # by their ids, which are unique while they live

        def save(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if id(storage) not in weights:
                saved[id(storage)] = storage
            return tensor

        inputs = [torch.zeros((rows, *each.shape[1:]), dtype=each.dtype) for each in arguments]
        with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
            net(*inputs)
        return sum(storage.nbytes() for storage in saved.values())


def rows(task: Task, data: Mapping[str, Any]) -> int:
    """Samples of the greatest length in a batch of these options of the data; 0 where they set none.

    Data that are made of the samples of others, such as masked text, have batches of as many. Exercises train on texts
    of a share of the greatest length, which those of validation have. A DPO's samples are pairs, which a reference
    model reads too: 0.
    """
    if isinstance(task, DPO):
        return 0
    if data.get("max_tokens"):
        return max(1, int(data["max_tokens"]) // max(1, task.example()[1]))
    nested = data.get("text")
    if not data.get("batch_size") and isinstance(nested, Mapping):
        return rows(task, nested.get("init_args") or {})
    batch = int(data.get("batch_size") or 0)
    return -(-batch // max(1, int(data.get("longer") or 1)))


def reason_against(config: Mapping[str, Any]) -> str:
    """What a step of this configuration does otherwise than the estimate, which is of float32; empty for nothing."""
    model, trainer = (config.get(name) or {} for name in ("model", "trainer"))
    if not str(trainer.get("precision") or 32).startswith("32"):
        return f"with precision {trainer['precision']}"
    if (model.get("init_args") or {}).get("recompute"):
        return "with recompute"
    return ""
