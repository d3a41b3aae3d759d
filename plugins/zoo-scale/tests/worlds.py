"""Several processes of one test."""

import socket

from torch.multiprocessing import start_processes


def in_processes(function, count, *words):
    """Run ``function(rank, count, port, *words)`` in each of so many processes; ``port`` is free on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_processes(function, (count, port, *words), nprocs=count, start_method="fork")
