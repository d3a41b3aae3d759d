"""What an installation writes about this package, and the small texts and models that its tests share."""

import tomllib
from pathlib import Path

import numpy as np

from zoo import registry
from zoo.cli import find_command
from zoo.data.text import TextFiles
from zoo.plugins import discovery

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORDS = "the quick brown fox jumps over the lazy dog and unbelievably many others don't run away 42 times".split()
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
TINY = {"dim": 16, "depth": 1, "heads": 2}
STEPS = ["--trainer.max_steps", "12", "--trainer.val_check_interval", "12"]
CPU = ["--trainer.accelerator", "cpu"]
SMALL = ["--model.dim", "32", "--model.depth", "2", "--model.heads", "2", "--trainer.logger", "false"]


def write_metadata(folder: Path) -> None:
    """Write what an installation of this package would write about it into a folder."""
    info = folder / f"zoo_text-{PROJECT['version']}.dist-info"
    info.mkdir()
    points = PROJECT["entry-points"]
    lines = [line for group, own in points.items() for line in (f"[{group}]", *map(" = ".join, own.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    facts = f"Metadata-Version: 2.1\nName: zoo-text\nVersion: {PROJECT['version']}\n"
    (info / "METADATA").write_text(facts, encoding="utf-8")


def read_again() -> None:
    """Forget which packages there are."""
    for cache in (discovery.discover, registry.installed_parts, find_command.all_commands):
        cache.cache_clear()


def write_documents(folder: Path) -> Path:
    """Twenty documents of sentences as files of a folder."""
    draw = np.random.default_rng(0)
    for number in range(20):
        sentences = [" ".join(draw.choice(WORDS, 7)) + "." for _ in range(12)]
        (folder / f"{number:02}.txt").write_text("\n".join(sentences))
    return folder


def documents(folder, **options):
    """What makes the data module of such a folder."""
    settings = {"tokenizer": "bpe", "vocab_size": 300, "max_length": 48, "batch_size": 8, **options}
    return lambda: TextFiles(str(folder), **settings)


def text_file(folder: Path) -> str:
    """The path of a file of 120 lines, which is written where it is missing."""
    path = folder / "text.txt"
    words = "the quick brown fox jumps over the lazy dog and runs away from a very slow bear".split()
    if not path.exists():
        path.write_text("\n".join(" ".join(words[(i * j) % 16] for j in range(1, 9)) for i in range(120)))
    return str(path)
