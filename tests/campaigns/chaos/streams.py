"""Output that nobody reads: a training goes on to the same end, and its log has what was said.

    python -m tests.campaigns.chaos.streams --home DIR [--each N] [--seed N] [--processes 2]
        [--pairs dies-full,gone-file]

Every pair of what may become of standard output and standard error; one run each, forked from a warm process. Then
a terminal that hangs up, for a run that hears of it and for one that was started by nohup.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.campaigns.chaos import lives, toys

# a file; closed; a pipe without a reader; one whose reader ends after some lines; a full disk; a terminal that is gone;
# one that goes after some lines
WAYS = ("file", "closed", "unread", "dies", "full", "gone", "hangs")
LINES = 7  # that a toy prints, about


def streams(ways: tuple[str, str], home: Path) -> tuple[list[int], dict[int, int]]:
    """The handles of both streams for a child, -1 for a closed one, and of each its reader's end by its number."""
    handles, readers = [], {}
    for number, way in enumerate(ways, 1):
        if way == "closed":
            handles.append(-1)
        elif way == "full":
            handles.append(os.open("/dev/full", os.O_WRONLY))
        elif way == "file":
            handles.append(os.open(home / f"stream{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        else:
            reader, writer = os.openpty() if way in ("gone", "hangs") else os.pipe()
            handles.append(writer)
            if way in ("unread", "gone"):
                os.close(reader)
            else:
                readers[number] = reader
    return handles, readers


def start(words: list[str], home: Path, ways: tuple[str, str], after: int = 1) -> int:
    """Start `zoo words` with such streams; the readers of those that die read ``after`` lines. The process's id."""
    handles, readers = streams(ways, home)

    def prologue() -> None:
        for reader in readers.values():
            os.close(reader)
        for number, handle in enumerate(handles, 1):
            os.close(number)
            if handle >= 0:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, ("stdout", "stderr")[number - 1], os.fdopen(number, "w") if handle >= 0 else None)

    child = lives.born(words, home, home / "before", prologue)
    for handle in handles:
        if handle >= 0:
            os.close(handle)
    for reader in readers.values():
        read(reader, after)
    return child


def read(reader: int, lines: int) -> None:
    """Read some lines, or to the end, and leave."""
    count = 0
    with contextlib.suppress(OSError):
        while count < lines and (more := os.read(reader, 4096)):
            count += more.count(b"\n")
    os.close(reader)


def flaws(run: Path, home: Path, ways: tuple[str, str], code: int | None) -> list[str]:
    """What is wrong with a training that has ended."""
    log = (run / "output.log").read_text() if (run / "output.log").is_file() else ""
    result = [] if code == 0 else [f"exit code {code}"]
    result += [f"the log lacks {line!r}" for line in ("parameters", "step 11/", "finished ") if line not in log]
    result += ["no finished.json"] if not (run / "finished.json").is_file() else []
    result += [f"the log has {word!r}" for word in ("Traceback", "looks like a bug", "\x1b") if word in log]
    stderr_text = (home / "stream2").read_text() if ways[1] == "file" else ""
    if (
        ways[1] == "file"
        and ways[0] not in ("file", "closed", "dies", "hangs")
        and "warning: standard output" not in stderr_text
    ):
        result.append("nothing is said of standard output")
    return result


def hang_up(home: Path, deaf: bool) -> list[str]:
    """Send SIGHUP to a training that has saved a checkpoint; what is wrong with how it ends."""

    def prologue() -> None:
        if deaf:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    name = f"hangup{deaf}"
    words = ["fit", "lm.yaml", "--runs", name, "--trainer.max_steps", "60" if deaf else "100000"]
    child = lives.born(words, home, home / f"{name}.log", prologue)
    deadline = time.monotonic() + 120
    while not list(home.glob(f"{name}/lm/*/s1/checkpoints/last.ckpt")):
        if time.monotonic() > deadline:
            lives.kill(child)
            return ["no checkpoint was written"]
        time.sleep(0.02)
    os.kill(child, signal.SIGHUP)
    code, expected = lives.ended(child, 120), 0 if deaf else 143
    (log,) = home.glob(f"{name}/lm/*/s1/output.log")
    sentence = "finished" if deaf else "interrupted by SIGHUP: step"
    wrong = [] if code == expected else [f"exit code {code} instead of {expected}"]
    return wrong + ([] if sentence in log.read_text() else [f"the log lacks {sentence!r}"])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", default="")
    options.add_argument("--home", type=Path, required=True)
    options.add_argument("--each", type=int, default=1)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--processes", type=int, default=1)
    arguments = options.parse_args()
    draw = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    lives.load()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    toys.write(arguments.home, steps=22)
    many = (
        ["--trainer.devices", str(arguments.processes), "--trainer.strategy", "ddp"] if arguments.processes > 1 else []
    )
    base = ["fit", "lm.yaml", *many]
    whole = lives.born([*base, "--runs", "whole"], arguments.home, arguments.home / "whole.log")
    assert lives.ended(whole, 300) == 0, (arguments.home / "whole.log").read_text()
    expected = toys.outcome(arguments.home / "whole/lm/default/s1")
    count = bad = 0
    pairs_of_ways = [tuple(pair.split("-")) for pair in arguments.pairs.split(",") if pair]
    pairs = pairs_of_ways or [(out, err) for out in WAYS for err in WAYS]
    for _ in range(arguments.each):
        for ways in pairs:
            count += 1
            name, after = f"n{count}", draw.randrange(1, LINES)
            bar = draw.random() < 0.5 and many == []
            words = [*base, "--runs", name, *(["--trainer.enable_progress_bar", "true"] if bar else [])]
            code = lives.ended(start(words, arguments.home, ways, after), 300)
            run = arguments.home / f"{name}/lm/default/s1"
            wrong = flaws(run, arguments.home, ways, code)
            if not wrong and toys.outcome(run) != expected:
                wrong = ["it ended elsewhere"]
            bad += bool(wrong)
            print(f"{count} {ways} after {after}{' bar' if bar else ''}: {'; '.join(wrong) or 'ok'}", flush=True)
    for deaf in (False, True):
        count += 1
        wrong = hang_up(arguments.home, deaf)
        bad += bool(wrong)
        print(f"{count} terminal hangs up{', unheard' if deaf else ''}: {'; '.join(wrong) or 'ok'}", flush=True)
    print(f"{count} runs, {bad} bad")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
