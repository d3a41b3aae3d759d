"""Start TensorBoard and print a link whose charts are pinned, unsmoothed and coloured by variant."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from zoo.errors import UsageError

PINNED = ("val/loss", "train/loss", "val_by_tokens/loss")
START = "from zoo.discovery import shield; shield(); from tensorboard.main import run_main; run_main()"
SEEDS = r"regex:^(.*)/s\d+$"  # all seeds of a variant share a colour


def link(host: str = "127.0.0.1", port: int = 6006, pinned: tuple[str, ...] = PINNED) -> str:
    """The address of the comparison view."""
    cards = json.dumps([{"plugin": "scalars", "tag": tag} for tag in pinned], separators=(",", ":"))
    query = f"pinnedCards={quote(cards, safe='')}&smoothing=0&runColorGroup={quote(SEEDS, safe='')}"
    return f"http://{host}:{port}/?{query}#timeseries"


def command(folder: Path, port: int) -> list[str]:
    """How TensorBoard is started: on this machine's own address only."""
    return [
        sys.executable, "-c", START, "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)
    ]  # fmt: skip


def tensorboard(words: list[str], port: int | None = None) -> int:
    """`zoo tensorboard [DIR]`: runs until it is interrupted."""
    if len(words) > 1:
        raise UsageError("usage: zoo tensorboard [DIR] [--port PORT]")
    folder = Path(words[0] if words else "runs")
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}. Train something first: zoo fit RECIPE")
    port = port or _free_port()
    print(f"{link(port=port)}\nStop it with Ctrl-C.", flush=True)
    child = subprocess.Popen(command(folder, port), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = child.communicate()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        return 130
    if child.returncode:
        last = (errors or "").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise UsageError(f"TensorBoard stopped: {last[0]}")
    return 0


def _free_port(first: int = 6006, tries: int = 100) -> int:
    """The first free port from TensorBoard's usual one on."""
    for port in range(first, first + tries):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise UsageError(f"no free port between {first} and {first + tries}. Choose one: --port PORT")
