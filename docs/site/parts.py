"""A page for each installed part, as `zoo docs` writes it, with its cost against length."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.site import part_figures
from docs.site.sources import toctree
from zoo import registry
from zoo.conformance import docs_command
from zoo.plugins.description import cache_lookups
from zoo.registry import Part

LENGTHS = (64, 256, 1024, 4096)
SCORECARDS = "scorecards.md"
UNITS = {"lm-tiny": "nats per token", "translation-tiny": "nats per token", "vit-tiny": "nats per image"}
PROBED_TASKS = ("recall", "copying", "induction", "parity")

CHECK_SECONDS = 600.0  # the longest that the contract of a part may take


def write_pages(folder: Path, lengths: bool = True, check: bool = False) -> None:
    """Write the index and the pages of all parts.

    Args:
        folder: where.
        lengths: what a part costs by the length of a text.
        check: run the contract of each part, and put its result on its page.
    """
    parts = docs_command.selected_parts([])
    reports = {part: docs_command.contract(part, CHECK_SECONDS, False) for part in parts} if check else {}
    paths = docs_command.page_paths(parts)
    stored = part_figures.read()
    with cache_lookups():
        pages = {
            paths[part]: docs_command.page(part, reports.get(part))
            + figures_section(part, stored)
            + scorecard_section(part, stored)
            + (cost_section(part) if lengths else "")
            for part in parts
        }
    entries = [f"{part.kind} {part.name} <{path}>" for part, path in paths.items()]
    pages[SCORECARDS] = scorecards_page(paths, stored)
    pages[docs_command.INDEX] = docs_command.index_page(paths, reports) + toctree("", [SCORECARDS, *entries])
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def figures_section(part: Part, stored: Mapping[str, Any]) -> str:
    """The validation loss of short runs with a part on three tasks; empty where nothing is stored."""
    record = stored.get("parts", {}).get(part_figures.part_key(part), {})
    rows = []
    for task, unit in UNITS.items():
        if task in record:
            best = default_record(part.kind, task, stored)
            rows.append(f"| `{task}` | {loss_text(record[task])} | {loss_text(best)} | {unit} |")
    if not rows:
        return ""
    return "\n".join(
        [
            "", "## On three tasks", "",
            f"Validation loss, mean ± standard deviation over {part_figures.SEEDS} seeds, of short runs: "
            f"{part_figures.STEPS} steps with smaller models ([all parts](../{SCORECARDS})). They show that a part "
            "learns, not which is best after a full training: `zoo compare` answers that.",
            "", "| recipe | with it | with the recipe's own | unit |", "|---|---:|---:|---|", *rows, "",
        ]
    )  # fmt: skip


def default_record(kind: str, task: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of the part that a recipe has without a swap; empty where nothing is."""
    path = (model_options(task).get(kind) or {}).get("class_path", "")
    for part in registry.parts(kind):
        if part.path == path:
            return dict(stored.get("parts", {}).get(part_figures.part_key(part), {}).get(task, {}))
    return {}


@functools.cache
def model_options(recipe: str) -> dict[str, Any]:
    """The options of a recipe's model, with their defaults."""
    from zoo.config import fit_options, run_config

    command = fit_options.parse("fit", [recipe])
    return dict(run_config.make_plan(command, run_config.read_draft(command)).config["model"]["init_args"])


def loss_text(result: Mapping[str, Any]) -> str:
    """A loss with its spread, or why there is none."""
    if "refused" in result:
        return "refused"
    if not result:
        return "–"
    spread = f"{result['mean']:.3f} ± {result['deviation']:.3f}".replace(" ", "\N{NO-BREAK SPACE}")
    return spread + (" (position none)" if "with" in result else "")


def scorecard_section(part: Part, stored: Mapping[str, Any]) -> str:
    """What `zoo probe` measures of a small model with a part; empty where nothing is stored."""
    card = stored.get("parts", {}).get(part_figures.part_key(part), {}).get("probe")
    if not card:
        return ""
    command = f"zoo probe lm-tiny --model.{part.kind} {part.name.lower()} --steps {part_figures.PROBE_STEPS}"
    if "refused" in card:
        return "\n".join(["", "## Scorecard", "", f"`{command}` is refused: {prose(card['refused'])}", ""])
    scores = [
        f"| {name} | {accuracy:.2f} | {'' if longer is None else f'{longer:.2f}'} | {chance:.2f} |"
        for name, (accuracy, longer, chance) in card["scores"].items()
    ]
    ranks = ", ".join(f"{rank:.0f} of {most} {place_name(layer)}" for layer, rank, most in card["ranks"])
    gradients = ", ".join(f"{norm:.2g} ({layer})" for layer, norm in card["gradients"])
    return "\n".join(
        [
            "", "## Scorecard", "",
            f"`{command}`{', with position none' if 'with' in card else ''} "
            "([what it measures](../../docs/explain.md)):",
            "", "| task | right answers | in texts twice as long | by chance |", "|---|---:|---:|---:|", *scores, "",
            f"- heads with a role, of {card['heads']}: {roles_text(card)}",
            f"- effective rank of the residual stream: {ranks}",
            f"- norms of gradients: {gradients}", "",
        ]
    )  # fmt: skip


def roles_text(card: Mapping[str, Any]) -> str:
    """How many heads have each role."""
    counts = Counter(card["roles"])
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "none"


def place_name(layer: str) -> str:
    """Where in a stack a rank was measured."""
    return "in front of it" if layer.endswith("input") else f"after layer {layer.rpartition('.')[2]}"


def prose(sentence: str) -> str:
    """A sentence of an error within Markdown."""
    return sentence.replace("<", "&lt;").replace("|", "\\|")


def scorecards_page(paths: Mapping[Part, str], stored: Mapping[str, Any]) -> str:
    """One page with the figures of all parts, and how they were measured."""
    about = stored.get("about", {})
    sizes = "; ".join(f"`{name} {' '.join(words)}`" for name, words in part_figures.TASKS.items())
    lines = [
        docs_command.SIGN, "# Scorecards of all parts", "",
        "Each part in place of the recipe's own one: the validation loss after a short training on three tasks, and "
        "what `zoo probe` measures. One command makes the table, and goes on where it stopped:", "",
        "```bash", "python -m docs.site.part_figures", "```", "",
        f"- Tasks: smaller models ({sizes}), {part_figures.STEPS} steps; mean ± standard deviation over "
        f"{part_figures.SEEDS} seeds of the loss in nats per token or image.",
        f"- Scorecard: `zoo probe lm-tiny --steps {part_figures.PROBE_STEPS}` with the part, one seed: right answers "
        "in recall, copying, induction and parity, and heads with a role. So few steps show what is learned first.",
        f"- Measured on {about.get('date', '–')}, {about.get('machine', '–')}, one thread, beside other work.", "",
        "These are short runs of small models. Which part is better for a task of yours is for "
        "[`zoo compare`](../docs/compare.md).", "",
    ]  # fmt: skip
    headings = [*(f"`{name}`" for name in UNITS), *PROBED_TASKS, "heads"]
    for kind in part_figures.KINDS:
        rows = [
            f"| [{part.name}]({path}) | {' | '.join(scorecard_cells(part, stored))} |"
            for part, path in paths.items()
            if part.kind == kind and part_figures.part_key(part) in stored.get("parts", {})
        ]
        if rows:
            lines += [
                f"## {kind}",
                "",
                f"| part | {' | '.join(headings)} |",
                "|---" * (len(headings) + 1) + "|",
                *rows,
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def scorecard_cells(part: Part, stored: Mapping[str, Any]) -> list[str]:
    """The figures of a part as cells of a row."""
    record = stored["parts"][part_figures.part_key(part)]
    card = record.get("probe") or {}
    scores = card.get("scores", {})
    answers = [f"{scores[name][0]:.2f}" if name in scores else "–" for name in PROBED_TASKS]
    return [*(loss_text(record.get(task, {})) for task in UNITS), *answers, roles_text(card) if scores else "–"]


def cost_section(part: Part) -> str:
    """A table of FLOPs and bytes per token by length; empty for a part that is not of a stack or cannot be traced."""
    if part.kind not in registry.STACK_KINDS:
        return ""
    rows = []
    for length in LENGTHS:
        cost, default = trace_cost(part.kind, part.load(), length), trace_cost(part.kind, None, length)
        if cost and default:
            cells = [f"{value:,.0f} | {value / other:.3g} ×" for value, other in zip(cost, default, strict=True)]
            rows.append(f"| {length:,} | {' | '.join(cells)} |")
    if not rows:
        return ""
    return "\n".join(
        [
            "", "## Cost against length", "",
            "The forward of a language model of one layer of width 512 with 8 heads, per token, and as a multiple of "
            f"the model's with the default {part.kind}. FLOPs are of matrix products; bytes are those that operations "
            "read and write without fusion ([explained](../../docs/explain.md)).",
            "", "| length | FLOPs | to default | bytes | to default |", "|---:|---:|---:|---:|---:|", *rows, "",
        ]
    )  # fmt: skip


@functools.cache
def trace_cost(kind: str, cls: Any, length: int) -> tuple[float, float] | None:
    """FLOPs and bytes per token of one layer with a part, or the default one; None where it cannot be traced."""
    import torch

    from zoo.explain.subjects import PART_SIZES
    from zoo.explain.trace import trace
    from zoo.tasks.lm import CausalLM
    from zoo.training.model_cost import meta_copy

    replacement = {kind: cls} if cls else {}
    try:
        with torch.device("meta"):
            task = CausalLM(**(PART_SIZES | {"max_length": length} | replacement))
        arguments, units = task.example()
        traced = trace(meta_copy(task.net), *arguments)
    except Exception:  # a part with required options, or one that needs numbers: it has no such table
        return None
    return traced.flops / units, sum(one.traffic for one in traced.operations) / units
