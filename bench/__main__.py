"""Benchmarks against other code bases, and studies of zoo alone.

    python -m bench                              # every workload, then every study
    python -m bench gpt2-fp32 generation-1 --turns 9 --out performance.md --json performance.json
    python -m bench attention startup overhead --turns 5
    python -m bench --gate v0.1.0 --clock cpu                           # has zoo become slower since?
    python -m bench published NAME --seeds 3                            # a figure that others printed, trained again

Peers that are not installed are reported as failed: pip install -e '.[bench]', then
pip install --no-deps litgpt joeynmt, whose own bounds contradict what zoo needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from bench import gate, published
from bench.arena import CLOCKS, compete
from bench.ceilings import machine
from bench.report import head, markdown, verdict
from bench.studies import NAMES, study
from bench.study import Options
from bench.workloads import WORKLOADS
from zoo.errors import UsageError


def parse_arguments(argv: list[str] | None) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """The options, and the parser, which refuses what cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join([*WORKLOADS, *NAMES])}; all unless given")
    parser.add_argument(
        "--first", type=int, default=20, help="untimed steps, after the last of which losses must agree"
    )
    parser.add_argument("--turns", type=int, default=7, help="timed turns of each entrant")
    parser.add_argument("--steps", type=int, default=1, help="steps of a turn")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu where others use the machine too")
    parser.add_argument("--threads", type=int, default=1, help="threads of each entrant")
    parser.add_argument("--longest", type=int, default=16384, help="the largest length of a study")
    parser.add_argument("--out", type=Path, help="a Markdown file; printed unless given")
    parser.add_argument("--json", type=Path, help="a file for all figures, each turn's included")
    parser.add_argument("--figures", type=Path, help="a folder for the figures of studies; none are drawn unless given")
    parser.add_argument("--parts", help="A,B: only these mixers in the studies recall and exercises")
    against = "ten short contests, or those named, against a revision, folder or wheel; the last tag unless given"
    parser.add_argument("--gate", nargs="?", const="", metavar="RELEASE", help=against)
    arguments = parser.parse_args(argv)
    names = [*WORKLOADS, *NAMES] if arguments.gate is None else [contest.name for contest in gate.CONTESTS]
    unknown = [name for name in arguments.workloads if name not in names]
    if unknown:
        kind = "workload" if arguments.gate is None else "contest of the gate"
        parser.error(f"unknown {kind} {unknown[0]!r}: choose from {', '.join(names)}")
    return arguments, parser


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["published"]:
        return published.main(words[1:])
    arguments, parser = parse_arguments(words)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    os.environ["ZOO_BF16"] = "0"  # precision is named
    if arguments.gate is not None:
        try:
            release = arguments.gate or gate.last_tag()
            contests = arguments.workloads or None
            return gate.run(release, machine(), turns=arguments.turns, clock=arguments.clock, names=contests)
        except ValueError as error:
            parser.error(str(error))
    about, results, turns, tables = machine(), [], {}, []
    text = [head(about, arguments.clock, arguments.first, arguments.turns)]
    for name in arguments.workloads or [*WORKLOADS, *NAMES]:
        if name in NAMES:
            parts = arguments.parts.split(",") if arguments.parts else ()
            options = Options(
                arguments.turns, arguments.clock, arguments.longest, arguments.threads, arguments.figures, parts
            )
            try:
                study_tables = study(name)(options)
            except UsageError as error:
                parser.error(str(error))
            tables += [table.as_dict() for table in study_tables]
            text += [table.markdown() for table in study_tables]
            print("\n\n".join(table.markdown() for table in study_tables), flush=True)
        else:
            workload = WORKLOADS[name]
            records = compete(
                list(workload.entrants),
                first=arguments.first,
                turns=arguments.turns,
                steps=arguments.steps,
                clock=arguments.clock,
            )
            results.append(verdict(workload, records, about))
            turns[name] = {record.entrant.name: record.seconds for record in records}
            text.append(markdown(results[-1]))
            print(text[-1], flush=True)
        # written after every contest: a long run that is stopped keeps what it has
        if arguments.out:
            arguments.out.write_text("\n\n".join(text) + "\n", encoding="utf-8")
        if arguments.json:
            content = {"machine": about, "contests": results, "turns": turns, "studies": tables}
            arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if any(contest["disagree"] for contest in results) else 0


if __name__ == "__main__":
    sys.exit(main())
