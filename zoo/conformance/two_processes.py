"""Train one module in two processes with DistributedDataParallel."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes
from torch.nn.parallel import DistributedDataParallel

from zoo.conformance.check import Broken

PATIENCE = 600.0  # seconds: a busy machine is slow, and who runs checks limits what they compute


def together(layer: nn.Module, x: Tensor, target: Tensor, steps: int = 3) -> dict[str, Tensor]:
    """The parameters after ``steps`` of gradient descent by two processes with half of the batch (B, …) each.

    Raises Broken if a process fails or does not end. Processes are forked, because classes of test files cannot be
    pickled; see `zoo.conformance.check` for what that needs.
    """
    with tempfile.TemporaryDirectory() as home:
        place, until = Path(home), time.monotonic() + PATIENCE
        workers = start_processes(_train, (layer, x, target, steps, place), 2, join=False, start_method="fork")
        try:
            while not workers.join(1.0):
                if time.monotonic() > until:
                    raise Broken(f"two processes did not end within {PATIENCE:.0f} s.")
        except (ProcessRaisedException, ProcessExitedException) as error:
            below_traceback = r".*\n  File [^\n]*\n(    [^\n]*\n)*"
            message = re.sub(below_traceback, "", str(error), flags=re.DOTALL)
            raise Broken(f"with two processes: {' '.join(message.split())[:300]}") from error
        finally:
            for worker in workers.processes:
                worker.kill()
                worker.join()
        return torch.load(place / "weights", weights_only=True)


def descend(net: nn.Module, x: Tensor, target: Tensor, steps: int = 3) -> None:
    """So many steps of gradient descent on the squared distance of net(x) from the target, each (B, …)."""
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        (net(x) - target).square().mean().backward()
        optimiser.step()


def _train(rank: int, layer: nn.Module, x: Tensor, target: Tensor, steps: int, place: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(place / "store"), 2), rank=rank, world_size=2)
    net: Any = DistributedDataParallel(layer.train())
    half = slice(rank * len(x) // 2, (rank + 1) * len(x) // 2)
    descend(net, x[half], target[half], steps)
    if rank == 0:
        torch.save({name: parameter.detach() for name, parameter in layer.named_parameters()}, place / "weights")
    dist.destroy_process_group()
