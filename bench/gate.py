"""Has zoo become slower? Ten short paired contests, against an earlier zoo and against plain torch, on this machine.

Each ratio is the geometric mean over turns of the other's time divided by ours, with a 95 % interval of Student's t on
logarithms of turns. A contest is lost if its whole interval lies below 1 - MARGIN.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import statistics
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from scipy import stats

from bench.arena import Entrant, Record, compete
from bench.workloads import IMAGES, LANGUAGE, WRITING

MARGIN = 0.03  # a loss that a run may hide
RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
RELEASE, PLAIN_TORCH = "the release", "plain torch"


@dataclass(frozen=True)
class Contest:
    """A factory with its options, and whose time ours is compared with."""

    name: str
    factory: str
    options: dict[str, Any]
    other: str = RELEASE
    other_factory: str = ""  # that of plain torch

    def entrants(self, release: str) -> list[Entrant]:
        """Ours and the other one; the zoo of the folder ``release`` is imported for the latter."""
        ours = Entrant("zoo", self.factory, self.options, ours=True, keep=True)
        if self.other == PLAIN_TORCH:
            return [ours, Entrant(PLAIN_TORCH, self.other_factory, self.options)]
        return [ours, Entrant(RELEASE, self.factory, self.options, keep=True, release=release)]


def _step(style: str, precision: str, vocab: int = 8192) -> dict[str, Any]:
    return {"style": style, "vocab": vocab, "precision": precision}


CONTESTS = (
    Contest("gpt2-fp32", f"{LANGUAGE}zoo", _step("gpt2", "fp32")),
    Contest("gpt2-bf16", f"{LANGUAGE}zoo", _step("gpt2", "bf16")),
    Contest("llama-fp32", f"{LANGUAGE}zoo", _step("llama", "fp32")),
    Contest("llama-bf16", f"{LANGUAGE}zoo", _step("llama", "bf16")),
    Contest("vit-bf16", f"{IMAGES}zoo", {"precision": "bf16"}),
    Contest("generation-1", f"{WRITING}zoo", {"rows": 1}),
    Contest("generation-8", f"{WRITING}zoo", {"rows": 8}),
    Contest("gpt2-fp32-plain", f"{LANGUAGE}zoo", _step("gpt2", "fp32"), PLAIN_TORCH, f"{LANGUAGE}torch_nn"),
    Contest("gpt2-bf16-plain", f"{LANGUAGE}zoo", _step("gpt2", "bf16"), PLAIN_TORCH, f"{LANGUAGE}torch_nn"),
    Contest("gpt2-50k-plain", f"{LANGUAGE}zoo", _step("gpt2", "bf16", 50257), PLAIN_TORCH, f"{LANGUAGE}torch_nn"),
)


def run(
    against: str,
    about: dict[str, Any],
    *,
    turns: int,
    clock: str,
    results: Path = RESULTS,
    names: Sequence[str] | None = None,
) -> int:
    """Run the contests of these names, all unless given, against a revision, a folder or a wheel; 1 if one was lost or
    failed, else 0.

    ``about`` describes the machine; its entry goes to a file of its processor in ``results``, after each contest.
    Raises ValueError for fewer than two turns, and what ``unpack`` raises.
    """
    if turns < 2:
        raise ValueError(f"an interval needs at least 2 turns, got {turns}")
    path = results / f"{re.sub(r'[^a-z0-9]+', '-', str(about['processor']).lower()).strip('-')}.json"
    history = json.loads(path.read_text("utf-8")) if path.exists() else []
    entry: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "revision": _git("rev-parse", "--short", "HEAD"),
        "against": against, "clock": clock, "machine": about, "contests": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # outside of the repository, whose tests read its files
        release = unpack(against, Path(folder))
        for contest in CONTESTS:
            if names is not None and contest.name not in names:
                continue
            entry["contests"][contest.name] = judge(
                contest, *compete(contest.entrants(str(release)), first=2, turns=turns, steps=1, clock=clock)
            )
            results.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([*history, entry], indent=1) + "\n", "utf-8")
            print(line(contest.name, entry["contests"][contest.name]), flush=True)
    path.with_suffix(".md").write_text("\n\n".join(map(markdown, [*history, entry])) + "\n", "utf-8")
    return 1 if any(one["verdict"] in ("slower", "failed") for one in entry["contests"].values()) else 0


def judge(contest: Contest, ours: Record, other: Record) -> dict[str, Any]:
    """The ratio of a contest with its interval and verdict: faster, same, slower or failed."""
    result: dict[str, Any] = {"other": contest.other}
    for record in (ours, other):
        if record.failed:
            return {**result, "verdict": "failed", "error": f"{record.entrant.name}: {record.failed.splitlines()[0]}"}
    ratio, low, high = paired_ratio(ours.seconds, other.seconds)
    verdict = "slower" if high < 1 - MARGIN else "faster" if low > 1 else "same"
    milliseconds = [round(1e3 * statistics.median(record.seconds), 2) for record in (ours, other)]
    return {**result, "verdict": verdict, "ratio": ratio, "interval": [low, high], "ms": milliseconds}


def paired_ratio(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of others / ours over turns, and its 95 % interval."""
    logs = [math.log(other / own) for own, other in zip(ours, others, strict=True)]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def unpack(against: str, folder: Path, run_git: Callable[..., bytes] | None = None) -> Path:
    """The folder with the package zoo of a release: of a folder, a wheel, or a revision of this repository.

    Raises ValueError for anything else.
    """
    place = Path(against)
    if place.is_dir():
        if not (place / "zoo").is_dir():
            raise ValueError(
                f"{against} has no folder zoo: give an exported revision, or an installation's site-packages"
            )
        return place.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if place.suffix == ".whl":
        with zipfile.ZipFile(place) as wheel:
            wheel.extractall(folder)
        return folder.resolve()
    try:
        archive = (run_git or _archive)(against)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{against!r} is no folder, no wheel and no revision of this repository") from error
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder.resolve()


def last_tag() -> str:
    """The newest tag of this repository. Raises ValueError where there is none."""
    tag = _git("describe", "--tags", "--abbrev=0")
    if not tag:
        raise ValueError("this repository has no tag: name a commit, a folder or a wheel (--gate REVISION)")
    return tag


def line(name: str, result: dict[str, Any]) -> str:
    """A contest in a line of text."""
    if result["verdict"] == "failed":
        return f"{name}: failed: {result['error']}"
    low, high = result["interval"]
    return f"{name}: {result['ratio']:.3f} [{low:.3f}, {high:.3f}] of {result['other']}: {result['verdict']}"


def markdown(entry: dict[str, Any]) -> str:
    """A run of the gate as a table."""
    about = " · ".join(f"{name} {value}" for name, value in entry["machine"].items())
    lines = [f"## {entry['date']}: {entry['revision']} against {entry['against']}", "", about, ""]
    lines += ["| contest | against | ratio | 95 % interval | ms | verdict |", "|---|---|---|---|---|---|"]
    for name, one in entry["contests"].items():
        if one["verdict"] == "failed":
            lines.append(f"| {name} | {one['other']} | | | | failed: {one['error']} |")
            continue
        low, high = one["interval"]
        times = " against ".join(f"{value:,.0f}" for value in one["ms"])
        lines.append(
            f"| {name} | {one['other']} | {one['ratio']:.2f} | {low:.2f} to {high:.2f} | {times} | {one['verdict']} |"
        )
    return "\n".join(lines)


def _git(*words: str) -> str:
    """What git prints; nothing where it fails."""
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def _archive(revision: str) -> bytes:
    words = ["git", "archive", "--format=tar", revision, "--", "zoo", "bench"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
