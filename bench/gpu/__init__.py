"""What a GPU must prove, in order of worth: python -m bench.gpu [--dry] [--out FOLDER] [--minutes N] [CHECK ...]

Each check runs in a process of its own with a time limit. results.json and results.md in the folder are written after
each; what failed is recorded, and the others go on. A second call leaves out what passed. --dry runs the same code on a
CPU at toy size. It needs no network: bench/gpu/wheels.sh packs beforehand what a machine with torch, Lightning and
transformers lacks. Install zoo, plugins/zoo-flash and plugins/zoo-flex from this repository.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.checks import CHECKS, DRY, FULL, Check, Sizes, machine

HEAD_SECONDS = 120.0  # for the first call of CUDA


def main(argv: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks; 0 if all passed, 1 if one failed, 2 for wrong options, or without a GPU unless ``--dry``."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(check.name for check in checks)}")
    parser.add_argument("--dry", action="store_true", help="on a CPU, at toy size")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="a folder for results.json and results.md"
    )
    parser.add_argument("--minutes", type=float, default=12.0, help="no check starts later, or runs longer")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.checks) - {check.name for check in checks}:
        parser.error(f"unknown check {min(unknown)!r}: choose from {', '.join(check.name for check in checks)}")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a process that touched CUDA cannot be forked
    sizes, end = DRY if arguments.dry else FULL, time.monotonic() + 60 * arguments.minutes
    head = run_apart(machine, sizes, HEAD_SECONDS)
    if head["outcome"] != "passed":
        parser.error(f"no GPU can be used: {head['error'].splitlines()[-1]}. On a CPU, at toy size: --dry")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "results.json"
    content = json.loads(path.read_text("utf-8")) if path.exists() else {"machine": head["figures"], "results": {}}
    if content["machine"] != head["figures"]:
        parser.error(f"{path} holds results of another machine or size: choose another folder (--out)")
    results = content["results"]
    for check in checks:
        if (arguments.checks and check.name not in arguments.checks) or _passed(results.get(check.name)):
            continue
        remaining = end - time.monotonic()
        if remaining <= 0:
            results[check.name] = {"outcome": "not run", "error": "no time was left", "figures": {}, "seconds": 0.0}
        else:
            results[check.name] = run_apart(check.function, sizes, min(check.seconds, remaining))
        _write(path, json.dumps(content, indent=1) + "\n")
        _write(arguments.out / "results.md", markdown(content, checks))
        print(f"{check.name}: {results[check.name]['outcome']} ({results[check.name]['seconds']:.1f} s)", flush=True)
    selected = [check for check in checks if not arguments.checks or check.name in arguments.checks]
    return 0 if all(_passed(results.get(check.name)) for check in selected) else 1


def run_apart(function: Callable[[Sizes], dict[str, Any]], sizes: Sizes, seconds: float) -> dict[str, Any]:
    """The figures of a function in a process of its own, or why there are none; the process and its children end after
    ``seconds``.
    """
    context = multiprocessing.get_context("fork")  # torch starts once; this process never touches the GPU
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, function, sizes))
    start = time.monotonic()
    process.start()
    there.close()
    result: dict[str, Any] = {"outcome": "failed", "error": "", "figures": {}}
    try:
        if here.poll(seconds):
            result |= here.recv()
        else:
            result |= {"outcome": "out of time", "error": f"it took more than {seconds:.0f} s"}
    except (EOFError, OSError):
        process.join(5)
        result["error"] = f"its process ended with {process.exitcode}"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # compilers that it started, too
        process.kill()
        process.join()
    return {**result, "seconds": round(time.monotonic() - start, 2)}


def _serve(pipe: Any, function: Callable[[Sizes], dict[str, Any]], sizes: Sizes) -> None:
    os.setsid()
    try:
        pipe.send({"outcome": "passed", "figures": function(sizes)})
    except BaseException as error:
        lines = traceback.format_exception(error)[-4:]
        pipe.send({"outcome": "failed", "error": "".join(lines)[-2000:].strip()})
    pipe.close()


def markdown(content: dict[str, Any], checks: Sequence[Check]) -> str:
    """The results so far as tables."""
    lines = [" · ".join(f"{name} {value}" for name, value in content["machine"].items()), ""]
    lines += ["| check | outcome | s | what it proves |", "|---|---|---|---|"]
    for check in checks:
        result = content["results"].get(check.name, {"outcome": "", "seconds": ""})
        lines.append(f"| {check.name} | {result['outcome']} | {result['seconds']} | {check.what} |")
    for check in checks:
        result = content["results"].get(check.name, {})
        if result.get("figures"):
            lines += ["", f"### {check.name}", "", "| figure | value |", "|---|---|"]
            lines += [f"| {name} | {value} |" for name, value in result["figures"].items()]
        if result.get("error"):
            lines += ["", f"### {check.name}: {result['outcome']}", "", "```", result["error"], "```"]
    return "\n".join(lines) + "\n"


def _passed(result: dict[str, Any] | None) -> bool:
    return result is not None and result["outcome"] == "passed"


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, "utf-8")
    draft.replace(path)
