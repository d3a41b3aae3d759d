"""Pages of classes and functions, from their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from docs.site.sources import toctree

ROOT = Path(__file__).parents[2]
# what people import: parts and models to build with, trained models to use, and interfaces of plugins
MODULES = {
    "Parts": (
        "zoo.parts.position", "zoo.parts.attention", "zoo.parts.disentangled", "zoo.parts.backend", "zoo.parts.norm",
        "zoo.parts.ffn", "zoo.parts.block", "zoo.parts.pattern", "zoo.parts.cache", "zoo.parts.lora",
    ),
    "Models": (
        "zoo.models.language", "zoo.models.seq2seq", "zoo.models.vit",
        "zoo.models.stack", "zoo.models.layer_overrides", "zoo.models.initialization", "zoo.models.generation",
        "zoo.models.decoding_state", "zoo.models.speculation", "zoo.models.attention_weights", "zoo.models.loss",
    ),
    "Tasks": (
        "zoo.tasks.task", "zoo.tasks.lm", "zoo.tasks.translation",
        "zoo.tasks.classification", "zoo.tasks.schedule",
        "zoo.tasks.muon",
    ),
    "Data": (
        "zoo.data.data", "zoo.data.tokenizer", "zoo.data.text", "zoo.data.parallel_files", "zoo.data.image_sources",
        "zoo.data.batches",
    ),
    "Trained models": (
        "zoo.inference.load", "zoo.inference.trained_model", "zoo.inference.language", "zoo.inference.translation",
        "zoo.inference.classification", "zoo.inference.export",
    ),
    "Understanding models": (
        "zoo.explain.subjects", "zoo.explain.costs", "zoo.explain.trace", "zoo.explain.inside",
        "zoo.logging.attention_figures", "zoo.logging.attention_maps",
    ),
    "Plugins": ("zoo.registry", "zoo.conformance.check", "zoo.logging.cost_measures", "zoo.errors"),
}  # fmt: skip


def write_pages(folder: Path, draft: bool = False) -> None:
    """Write a page for each module and an index; a draft has the index alone."""
    folder.mkdir(parents=True)
    about = "Classes and functions by module. A model in ten lines: [Getting started](../docs/start.md)."
    lines = ["# Python", "", about, ""]
    for title, modules in MODULES.items():
        rows = [f"| {f'`{name}`' if draft else f'[{name}]({name}.md)'} | {summary(name)} |" for name in modules]
        lines += [f"## {title}", "", "| module | content |", "|---|---|", *rows, ""]
    names = [] if draft else [name for modules in MODULES.values() for name in modules]
    (folder / "index.md").write_text("\n".join(lines) + toctree("", names), encoding="utf-8")
    for name in names:
        page = ["# " + name, "", "```{eval-rst}", f".. automodule:: {name}", "```", ""]
        (folder / f"{name}.md").write_text("\n".join(page), encoding="utf-8")


def summary(module: str) -> str:
    """The first sentence of a module's docstring."""
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
