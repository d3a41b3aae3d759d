"""A `zoo fit` that learns nothing: the same folders, files and options, in tenths of a second and without torch.

The figures depend on variant, seed and step alone, and a resumed run chains the same digest: what a test compares.
FAKE_FIT says how long a step takes and which runs fail: {"step": 0.01, "fail": ["b s2"]}.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path

from zoo.system.process_exit import follow_parent

STEPS = 10
SETTINGS = json.loads(os.environ.get("FAKE_FIT", "{}"))


def option(name, default=None):
    result = [word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")]
    return result[-1] if result else default


def keep(path, value):
    path.with_suffix(".new").write_text(json.dumps(value))
    os.replace(path.with_suffix(".new"), path)


def checkpoint(path, state):
    with zipfile.ZipFile(path.with_suffix(".new"), "w") as file:
        file.writestr("state", json.dumps(state))
    os.replace(path.with_suffix(".new"), path)


def main():
    variant, seed = option("variant"), int(option("seed"))
    folder = Path(option("runs"), "toy", variant, f"s{seed}")
    name = f"{variant} s{seed}"
    alone = Path(option("runs"), f"{name}.alone").open("w")  # noqa: SIM115 (until the process ends)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        twice = ""
    except OSError:
        twice = f"twice {name}\n"
    with Path(option("runs"), "journal").open("a") as journal:  # one short write: whole lines
        journal.write(
            f"{twice}"
            f"start {name} {'resume' if '--resume' in sys.argv else 'anew'} {os.environ['OMP_NUM_THREADS']} "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', '-')}\n"
        )
    state = {"step": 0, "digest": ""}
    if "--resume" in sys.argv:
        with zipfile.ZipFile(option("ckpt_path")) as file:
            state = json.loads(file.read("state"))
    else:
        if folder.exists():
            if "--overwrite" not in sys.argv:
                sys.exit(f"error: {folder} was started and not finished.")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)  # as zoo fit: refuses what another run has made
        (folder / "config.yaml").write_text("model: {class_path: Toy}\n")
        (folder / "checkpoints").mkdir()
    if name in SETTINGS.get("fail", []):
        print("something is said\nerror: this run was told to fail")
        sys.exit(1)
    if name in SETTINGS.get("diverge", []):
        record(folder, variant, seed, state, 9.0, False, {"state": "diverged", "step": 3, "cause": "inf"})
        sys.exit(4)
    if name in SETTINGS.get("killed", []):
        os.kill(os.getpid(), signal.SIGKILL)
    best = 2.0 + len(variant) / 10 + seed / 100
    while state["step"] < STEPS:
        time.sleep(SETTINGS.get("step", 0.01))
        state["step"] += 1
        state["digest"] = hashlib.sha256(f"{state['digest']} {seed} {state['step']}".encode()).hexdigest()[:16]
        record(folder, variant, seed, state, best - state["step"] / 100, False)
        if state["step"] % 2 == 0:
            checkpoint(folder / "checkpoints" / "last.ckpt", state)
    record(folder, variant, seed, state, best - state["step"] / 100, True)
    (folder / "finished.json").write_text("{}\n")
    with Path(option("runs"), "journal").open("a") as journal:
        journal.write(f"end {name}\n")


def record(folder, variant, seed, state, figure, finished, outcome=None):
    keep(
        folder / "ledger.json",
        {
            "format": 1, "recipe": "toy", "variant": variant, "seed": seed, "choices": {"variant": variant},
            "goals": {"loss": "min"}, "unit": "token", "data": {"class": "Toy", "fingerprint": "f"},
            "start": {"w": str(seed)}, "batches": {"digest": state["digest"], "count": state["step"], "first": []},
            "setting": {"threads": int(os.environ["OMP_NUM_THREADS"])}, "cost": {"seconds": 1.0, "tokens_per_s": 10.0},
            "validations": [{"step": state["step"], "tokens": 10 * state["step"], "loss": figure}],
            "steps": state["step"], "tokens": 10 * state["step"], "best": {"loss": figure}, "last": {"loss": figure},
            "finished": finished, "diverged": False, "outcome": outcome or {}, "prediction": "toys", "config": {},
            "code": {}, "earlier_code": [],
        },
    )  # fmt: skip


if __name__ == "__main__":
    follow_parent()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as Python itself does
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    main()
