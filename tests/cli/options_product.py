"""Every option of every part with hostile values: a step is trained with it, or the option is refused by its name.

    python -m tests.cli.options_product --home DIR                     # all
    python -m tests.cli.options_product --home DIR --sample 100 --seed 3
    python -m tests.cli.options_product --home DIR --only norm

Each case is `zoo fit RECIPE --model.KIND PART --model.KIND.OPTION=VALUE --trainer.fast_dev_run 1`, in this process.
Right is exit code 0, or 2 with at most four lines that name the option and no traceback; a size that no memory holds
may end with 1 and say so. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.chaos import toys
from zoo import registry
from zoo.cli import main as zoo
from zoo.config.run_config import KINDS_OF_PARTS
from zoo.config.signatures import parameters
from zoo.errors import UsageError

VALUES = (
    "0",
    "-1",
    "1",
    "0.5",
    "nan",
    "inf",
    "-inf",
    "1e30",
    "1000000000000",
    "",
    "word",
    "null",
    "true",
    "[1]",
    "{a: 1}",
)
SECONDS = 120  # for one case
SKIPPED_OPTIONS = {
    "dim",
    "heads",
    "hidden",
    "backend",
    "dropout",
    "extent",
    "norm",
    "ffn",
    "attention",
    "position",
    "self",
}


def cases(only: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Kind, part, option and value."""
    for kind in KINDS_OF_PARTS:
        for part in registry.parts(kind) if only in kind else ():
            try:
                options = [name for name in parameters(part.load()) if name not in SKIPPED_OPTIONS]
            except UsageError:
                continue
            for option in options:
                for value in VALUES:
                    yield kind, part.name, option, value


class LateError(Exception):
    """A case takes too long."""


def _late(*_: object) -> None:
    raise LateError


def answer(kind: str, part: str, option: str, value: str) -> tuple[str, str]:
    """How a case ended, and what is wrong with that, or nothing."""
    words = ["fit", "lm.yaml", f"--model.{kind}", part, f"--model.{kind}.{option}={value}"]
    # some attentions, and those of plugins, take no other position
    words += ["--model.position", "NoPosition"] if kind == "attention" else []
    output = io.StringIO()
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = zoo([*words, "--trainer.fast_dev_run", "1"])
    except LateError:
        return "late", f"not ended after {SECONDS} s"
    except (Exception, SystemExit) as error:
        return "raised", f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    text = output.getvalue()
    start = text.find("error:")
    message = text[start:] if start >= 0 else text
    if code == 0:
        return "trained", ""
    if "Traceback" in text:
        return f"code {code}", f"a traceback: {text.strip().splitlines()[-1]:.300}"
    if code == 1 and "does not fit into memory" in message:
        return "too large", ""
    if code != 2 or option not in message or len(message.strip().splitlines()) > 4:
        return f"code {code}", message.strip()[:300]
    return "refused", ""


def campaign(home: Path, only: str = "", sample: int = 0, seed: int = 0) -> dict:
    """The counts of each outcome, and every problem."""
    toys.write(home, steps=1, accumulate=1)
    os.chdir(home)
    every = list(cases(only))
    sampled_cases = random.Random(seed).sample(every, min(sample, len(every))) if sample else every
    counts: collections.Counter[str] = collections.Counter()
    problems = []
    for case in sampled_cases:
        outcome, problem = answer(*case)
        counts[outcome] += 1
        if problem:
            problems.append(f"{' '.join(case[:3])}={case[3]!r}: {outcome}: {problem}")
            print(problems[-1], file=sys.stderr, flush=True)
    return {"cases": len(every), "tried": len(sampled_cases), "seed": seed, **counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    result = campaign(options.home.resolve(), options.only, options.sample, options.seed)
    json.dump(result, sys.stdout, indent=1)
    print()
    sys.exit(bool(result["problems"]))


if __name__ == "__main__":
    main()
