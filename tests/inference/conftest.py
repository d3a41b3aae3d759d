import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from zoo.cli import main

STEPS = ["--trainer.max_steps", "12", "--trainer.val_check_interval", "12"]
CPU = ["--trainer.accelerator", "cpu"]
SMALL = ["--model.dim", "32", "--model.depth", "2", "--model.heads", "2", "--trainer.logger", "false"]
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A folder of short runs: of each task one, and of language models those that differ in what they can.

    The first process of a session that needs them trains them, the others take a copy.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return train(tmp_path_factory.mktemp("trained"))
    shared = tmp_path_factory.getbasetemp().parent / "trained"  # of all workers
    with FileLock(f"{shared}.lock"):
        if not (shared / "complete").exists():
            shutil.rmtree(shared, ignore_errors=True)
            shared.mkdir()
            train(shared)
            (shared / "complete").touch()
    return shutil.copytree(shared, tmp_path_factory.mktemp("trained") / "copy") / "runs"


def train(home: Path) -> Path:
    """Train the runs in a folder; the folder ``runs`` in it."""
    before = os.environ.get("ZOO_CACHE")
    os.environ["ZOO_CACHE"] = str(home / "cache")
    (home / "one.txt").write_text(TEXT * 40)
    (home / "two").mkdir()
    for name in ("a", "b"):
        (home / "two" / f"{name}.txt").write_text(TEXT * 30)
    text = ["--data", "TextFiles", "--data.max_length", "24", "--model.lr", "0.01"]
    one, two = ["--data.path", str(home / "one.txt")], ["--data.path", str(home / "two")]
    chars, learned = ["--data.tokenizer", "chars"], ["--model.position", "learned"]
    pairs = ["--data.size", "400", "--data.vocab_size", "400", "--data.eval_limit", "5", "--model.tie", "all"]
    pairs += ["--data.kinds", "[unit,date]", "--data.max_tokens", "600", "--model.lr", "0.01"]
    pairs += ["--model.schedule.warmup", "10"]  # enough to say something else for every line
    longer = ["--trainer.max_steps", "80", "--trainer.val_check_interval", "80"]
    for recipe, name, options in (
        ("lm-tiny", "learned", [*text, *one, *chars, *learned]),
        ("lm-tiny", "rope", [*text, *two, "--data.tokenizer", "bytes"]),
        ("lm-tiny", "flash", [*text, *two, *chars, "--model.backend", "flash"]),
        ("translation-tiny", "pairs", pairs),
        ("vit-glyphs", "glyphs", ["--data.size", "300"]),
    ):
        steps = longer if name == "pairs" else STEPS
        words = ["fit", recipe, "--runs", str(home / "runs"), "--name", name, *options, *SMALL, *steps, *CPU]
        assert main(words) == 0, recipe
    if before is None:
        del os.environ["ZOO_CACHE"]
    else:
        os.environ["ZOO_CACHE"] = before
    return home / "runs"


@pytest.fixture(scope="session")
def model(runs):
    """A trained model by the name of its run."""
    import zoo

    cache = {}

    def load(name: str):
        if name not in cache:
            cache[name] = zoo.load(next(runs.glob(f"*/{name}/s1")))
        return cache[name]

    return load
