"""torchrun starts the processes anew when one is killed: the run goes on and ends as the one that nobody disturbed."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.chaos import toys
from zoo import registry

KILL = """
import os, signal
from lightning.pytorch import Callback
class Kill(Callback):
    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if first and trainer.global_rank == int(os.environ["VICTIM"]) and trainer.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
"""
PLACES = {"one node": (1, 2), "two nodes": (2, 1)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_by_torchrun(home, nodes, processes, words, victim):
    """Run zoo on so many nodes, all of which are this machine, one agent of torchrun each; what they have printed."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != registry.DISABLE_VARIABLE},
        "PYTHONPATH": os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")]),
        # torch 2.14 shares one store with all attempts, and a process that is new there finds addresses of killed ones
        **{"OMP_NUM_THREADS": "1", "VICTIM": str(victim), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    }
    port = free_port()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={processes}"),
        *("--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"),
        *("--local-addr=127.0.0.1", "-m", "zoo", *words, f"--trainer.num_nodes={nodes}"),
        f"--trainer.devices={processes}",
    ]
    agents = [
        subprocess.Popen(
            command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(nodes)
    ]
    try:
        texts = [agent.communicate(timeout=900)[0] for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
    assert [agent.returncode for agent in agents] == [0] * nodes, "\n".join(texts)[-4000:]
    return "".join(texts)


@pytest.mark.campaign
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_killed_process_is_started_again_and_changes_nothing(tmp_path, place, strategy):
    if strategy == "fsdp2":
        pytest.importorskip("zoo_scale", reason="the strategy fsdp2 is that of the package zoo-scale")
    toys.write(tmp_path, accumulate=1, steps=14)
    (tmp_path / "kill.py").write_text(KILL)
    words = ["fit", "lm.yaml", "--name", "default", "--save-every", "3", "--trainer.strategy", strategy]
    words += ["--allow-import", "kill", "--trainer.callbacks", "[{class_path: kill.Kill}]"]
    nodes, processes = PLACES[place]
    run_by_torchrun(tmp_path, nodes, processes, [*words, "--runs", "undisturbed"], victim=-1)
    disturbed = run_by_torchrun(tmp_path, nodes, processes, [*words, "--runs", "disturbed"], victim=1)
    assert disturbed.count("exitcode: -9") == 1
    outcomes = [toys.outcome(Path(tmp_path, runs, "lm/default/s1")) for runs in ("undisturbed", "disturbed")]
    assert toys.differences(*outcomes) == []
