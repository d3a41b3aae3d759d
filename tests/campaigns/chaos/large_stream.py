"""Gigabytes of text that train a tiny model: resident memory stays flat, and kill -9 changes nothing.

    python -m tests.campaigns.chaos.large_stream --home DIR [--megabytes 2000] [--steps 300] [--kills 3]
        [--pass-megabytes N]

Writes the text by repetition into DIR, which is removed at the end: plain files, one of them compressed. Then one run
to its end, and one that is killed and resumed; and one pass over the stream without a model. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

from tests.campaigns.chaos import toys

RECIPE = """\
model: {class_path: CausalLM, init_args: {dim: 32, depth: 1, heads: 2, dropout: 0.1}}
data: {class_path: TextStream, init_args: {path: text, tokenizer: bytes, max_length: 256, batch_size: 16, WORKERS}}
trainer: {max_steps: STEPS, val_check_interval: 100, check_val_every_n_epoch: null, limit_val_batches: 2,
  accelerator: cpu, enable_progress_bar: false}
"""
FILES = 20
MB = 2**20


def write_text(folder: Path, megabytes: int) -> None:
    """Numbered lines of words, the same over and over but for the number of the repetition."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(2000)]
    block = "\n".join(" ".join(draw.choices(words, k=12)) for _ in range(13000)).encode()
    each = megabytes * MB // FILES
    for number in range(FILES):
        opener = gzip.open if number == FILES - 1 else open
        name = folder / f"{number:02}.txt{'.gz' if number == FILES - 1 else ''}"
        with opener(name, "wb") as file:
            size = repetition = 0
            while size < each:
                size += file.write(f"repetition {number}.{repetition}\n".encode() + block)
                repetition += 1


def resident(process: int) -> int:
    """Resident bytes of a process and all that it started."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if process in (int(folder.name), int(fields["PPid"])):
            total += 1024 * int(fields.get("VmRSS", "0").split()[0])
    return total


def train(home: Path, runs: str, kill_after: float | None = None) -> tuple[int, list[int]]:
    """One life of the run; its exit code, and its resident memory in MB each second."""
    words = [sys.executable, "-m", "zoo", "fit", "large.yaml", "--save-every", "20", "--runs", runs, "--requeue"]
    log = (home / f"{runs}.log").open("a")
    process = subprocess.Popen(words, cwd=home, stdout=log, stderr=log)
    measured, start = [], time.monotonic()
    while process.poll() is None:
        measured.append(resident(process.pid) // MB)
        if len(measured) % 20 == 0:
            print(f"{runs}: {len(measured)} s, {measured[-1]} MB resident", file=sys.stderr, flush=True)
        if kill_after is not None and time.monotonic() - start > kill_after:
            process.send_signal(signal.SIGKILL)
        time.sleep(1)
    return process.returncode, measured


def read_everything(home: Path, megabytes: int) -> dict[str, object]:
    """A pass over the stream without a model: rate, and resident memory after each tenth."""
    from zoo_scale.text_stream import TextStream

    data = TextStream(str(home / "text"), "bytes", max_length=256, batch_size=64, seed=1)
    loader = data.train_dataloader()
    start, measured = time.monotonic(), []
    tenth = max(1, megabytes * MB // (10 * 64 * 256))
    batches = iter(loader)
    for _ in range(10):
        for _ in islice(batches, tenth):
            pass
        measured.append(resident(os.getpid()) // MB)
    seconds = time.monotonic() - start
    state = loader.state_dict()
    again = data.train_dataloader()
    again.load_state_dict(state)
    start = time.monotonic()
    resumed = next(iter(again))["inputs"]
    resume_seconds = time.monotonic() - start
    following = next(batches, None)
    same = following is not None and bool((resumed == following["inputs"]).all())
    return {
        "pass MB": measured,
        "pass seconds": round(seconds, 1),
        "resume at its end, seconds": round(resume_seconds, 2),
        "the same batch": same,
    }


def campaign(home: Path, megabytes: int, steps: int, kills: int, workers: int, pass_megabytes: int) -> dict:
    """All of it; the figures."""
    write_text(home / "text", megabytes)
    recipe = RECIPE.replace("STEPS", str(steps)).replace("WORKERS", f"num_workers: {workers}")
    (home / "large.yaml").write_text(recipe)
    report: dict = {"bytes": sum(file.stat().st_size for file in (home / "text").iterdir())}
    start = time.monotonic()
    code, measured = train(home, "whole")
    lasted = time.monotonic() - start
    assert code == 0, (home / "whole.log").read_text()
    training = measured[len(measured) // 3 :]
    report |= {"resident MB": measured[:: max(1, len(measured) // 20)], "seconds": round(lasted, 1)}
    report["growth MB"] = max(training) - min(training[: max(1, len(training) // 3)])
    draw, kill_count = random.Random(1), 0
    for _ in range(kills):
        code, _ = train(home, "killed", draw.uniform(0.35, 0.8) * lasted)
        kill_count += code == -9
    while code != 0:
        code, _ = train(home, "killed")
        assert code in (0, -9), (home / "killed.log").read_text()
    one, two = (toys.outcome(home / f"{runs}/large/default/s1") for runs in ("whole", "killed"))
    report |= {"kills": kill_count, "differences": toys.differences(two, one)}
    return report | (read_everything(home, pass_megabytes) if pass_megabytes else {})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pass-megabytes", type=int, default=0)
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    home.mkdir(parents=True)
    try:
        report = campaign(
            home, arguments.megabytes, arguments.steps, arguments.kills, arguments.workers, arguments.pass_megabytes
        )
    finally:
        shutil.rmtree(home)
    json.dump(report, sys.stdout, indent=1)
    print()
    raise SystemExit(1 if report["differences"] else 0)


if __name__ == "__main__":
    main()
