"""Train one module in two processes with DistributedDataParallel."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from zoo.conformance.check import Broken

PATIENCE = 600.0  # seconds: a busy machine is slow, and who runs checks limits what they compute


def together(layer: nn.Module, x: Tensor, target: Tensor, steps: int = 3) -> dict[str, Tensor]:
    """The parameters after ``steps`` of gradient descent by two processes with half of the batch (B, …) each.

    Raises Broken if a process fails or does not end. Processes are forked, because classes of test files cannot be
    pickled; see `zoo.conformance.check` for what that needs.
    """
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        context = multiprocessing.get_context("fork")
        arguments = (layer, x, target, steps, place)
        workers = [context.Process(target=_train, args=(rank, *arguments), daemon=True) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
        errors = [file.read_text() for rank in range(2) if (file := place / f"error{rank}").exists()]
        if errors:
            raise Broken(f"with two processes: {errors[0]}")
        if not (place / "weights").exists():
            raise Broken(f"two processes did not end within {PATIENCE:.0f} s, or ended without a word.")
        return torch.load(place / "weights", weights_only=True)


def _train(rank: int, layer: nn.Module, x: Tensor, target: Tensor, steps: int, place: Path) -> None:
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(place / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        net: Any = DistributedDataParallel(layer.train())
        optimiser = torch.optim.SGD(net.parameters(), 0.01)
        half = slice(rank * len(x) // 2, (rank + 1) * len(x) // 2)
        for _ in range(steps):
            optimiser.zero_grad()
            (net(x[half]) - target[half]).square().mean().backward()
            optimiser.step()
        if rank == 0:
            saved = {name: parameter.detach() for name, parameter in layer.named_parameters()}
            torch.save(saved, place / "partial")
            (place / "partial").rename(place / "weights")
        dist.destroy_process_group()
    except BaseException as error:  # a forked process must end here, and say why
        (place / f"error{rank}").write_text(" ".join(f"{type(error).__name__}: {error}".split())[:300])
    finally:
        os._exit(0)
