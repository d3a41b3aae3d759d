"""A package outside of the repository adds a task: fit, pictures, generate, export, explain and messages know it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_parts import package
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zoo.cli import main

POINTS = "[zoo.task]\nBigramLM = addition_task.task:BigramLM\nWideBigramLM = addition_task.task:WideBigramLM\n"
NETWORK = '''
import torch
from torch import nn

class Bigram(nn.Module):
    """Logits of the next token from the last one alone."""

    def __init__(self, vocab_size: int, max_length: int = 8, dim: int = 8, seed: int = 0):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence.
            dim: width.
            seed: of the initial weights.
        """
        super().__init__()
        self.vocab_size, self.max_length = vocab_size, max_length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding, self.output = nn.Embedding(vocab_size, dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        return self.output(self.embedding(tokens))

class WideBigram(Bigram):
    """Twice as wide."""

    def __init__(self, vocab_size: int, max_length: int = 8, dim: int = 8, seed: int = 0):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence.
            dim: half of the width.
            seed: of the initial weights.
        """
        super().__init__(vocab_size, max_length, 2 * dim, seed)
'''
TASK = '''
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim import AdamW

from addition_task.network import Bigram, WideBigram
from zoo.tasks.schedule import Constant
from zoo.tasks.task import Loss, OptimizerFactory, ScheduleFactory, Task

class BigramLM(Task):
    """Predict each next token from the last one."""

    trained = "addition_task.use:TrainedBigram"
    training_options = ("smoothing",)
    pictures = "addition_task.use:draw"
    learns_from = "words in a row"
    example_data = ("TextFiles",)
    data_sizes = {"vocab_size": 64, "max_length": 8}

    def __init__(
        self, vocab_size: int | None = None, max_length: int | None = None, smoothing: float = 0.0, lr: float = 1e-2,
        optimizer: OptimizerFactory = AdamW, schedule: ScheduleFactory = Constant, **model,
    ):
        """
        Args:
            vocab_size: number of tokens.
            max_length: longest sequence.
            smoothing: share of the target spread over all tokens.
        """
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)
        self.smoothing = smoothing

    @staticmethod
    def network(**options: Any) -> Bigram:
        """A Bigram."""
        return Bigram(**options)

    def _loss(self, batch, smoothing):
        logits, targets = self.net(batch["inputs"]).flatten(0, 1), batch["targets"].flatten()
        return Loss(F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing), (targets >= 0).sum())

    def loss(self, batch: Any) -> Loss:
        return self._loss(batch, self.smoothing)

    def evaluate(self, batch: Any) -> Loss:
        return self._loss(batch, 0.0)

    def example(self):
        return (torch.zeros(1, self.net.max_length, dtype=torch.long, device="meta"),), self.net.max_length

    def sample(self, rows):
        tokens = torch.randint(self.net.vocab_size, (rows, self.net.max_length + 1))
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

class WideBigramLM(BigramLM):
    """The same with another network: nothing but that is said again."""

    @staticmethod
    def network(**options: Any) -> WideBigram:
        """A WideBigram."""
        return WideBigram(**options)
'''
USE = '''
import torch
from PIL import Image

from zoo.data.tokenizer import Tokenizer
from zoo.inference.trained_model import GeneratedText, Trained

class TrainedBigram(Trained):
    """Goes on with the likeliest next token."""

    files = ("tokenizer.json",)
    explained_inputs = "addition_task.use:read"

    def __init__(self, task, place):
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))

    def generate(self, prompt, length=4, **settings):
        ids = self.tokenizer.encode(prompt)
        for _ in range(length):
            ids.append(int(self.net(torch.tensor([ids[-1:]]))[0, -1].argmax()))
        return [GeneratedText(self.tokenizer.decode(ids[-length:]), 0.0, False)]

def draw(task, data):
    weights = task.net.embedding.weight.detach().float()
    return {"embedding": Image.fromarray((weights.sigmoid() * 255).byte().cpu().numpy()).convert("RGB")}

def read(model, text, image):
    from zoo.explain.inside import Inputs  # here: only `zoo explain` needs it

    ids = model.tokenizer.encode(text)
    words = [model.tokenizer.decode([one]) for one in ids]
    return Inputs((torch.tensor([ids]),), None, words, [], words, model.tokenizer)
'''
RECIPE = """\
# a bigram model
model:
  class_path: NAME
  init_args: {dim: 4, smoothing: 0.1}
data:
  class_path: TextFiles
  init_args: {path: text.txt, max_length: 16, batch_size: 4}
trainer: {max_steps: 3, limit_val_batches: 1, accelerator: cpu, enable_progress_bar: false}
"""
# a command in a process of its own, and then the modules that it imported
COMMAND = """
import json, sys
from zoo.cli import main
code = main(sys.argv[1:])
print(json.dumps([*sys.modules]), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def addition(site, tmp_path, monkeypatch):
    """A folder to train in, where the package is installed."""
    folder = tmp_path / "site"
    package(folder, "addition-task", POINTS)
    source = folder / "addition_task"
    source.mkdir()
    for name, text in (("__init__", ""), ("network", NETWORK), ("task", TASK), ("use", USE)):
        (source / f"{name}.py").write_text(text)
    site()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 60)
    for name in ("BigramLM", "WideBigramLM"):
        (work / f"{name}.yaml").write_text(RECIPE.replace("NAME", name))
    return work


def separate(site: Path, *words: str) -> tuple[str, set[str]]:
    """What a command in another process prints, and the modules that it imports."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-800:]
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("name", ["BigramLM", "WideBigramLM"])
def test_a_task_of_another_package_takes_part_in_every_command(addition, capsys, tmp_path, name):
    assert main(["list", "task"]) == 0
    assert name in capsys.readouterr().out
    assert main(["show", "task", name]) == 0
    listing = capsys.readouterr().out
    assert "smoothing" in listing
    assert "dim" in listing
    assert "seed" not in listing
    assert main(["fit", f"{name}.yaml"]) == 0
    (run,) = (addition / "runs").glob("*/*/*/config.yaml")
    events = EventAccumulator(str(run.parent), size_guidance={"images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["attention/embedding"]
    capsys.readouterr()

    assert main(["generate", str(run.parent), "--prompt", "the cat", "--length", "3"]) == 0
    generated = capsys.readouterr().out
    assert generated.startswith("the cat")
    assert main(["export", str(run.parent), "exported"]) == 0
    again, modules = separate(tmp_path / "site", "generate", "exported", "--prompt", "the cat", "--length", "3")
    assert again == generated
    assert "addition_task.network" in modules
    assert not modules & {"addition_task.task", "lightning", "torchmetrics"}

    capsys.readouterr()
    assert main(["explain", "exported", "--text", "the cat"]) == 0
    assert "Prediction after every layer, at 't'" in capsys.readouterr().out
    assert main(["translate", "exported"]) == 2
    assert f"is a {name}: it can generate, and cannot translate" in capsys.readouterr().err


def test_messages_about_data_name_what_the_task_says(addition, capsys):
    recipe = (addition / "BigramLM.yaml").read_text().replace("TextFiles", "Digits").partition("data:")[0]
    (addition / "images.yaml").write_text(recipe + "data: {class_path: Digits}\ntrainer: {max_steps: 1}\n")
    assert main(["fit", "images.yaml"]) == 2
    message = capsys.readouterr().err
    assert "Digits gives images, and BigramLM learns from words in a row." in message
    assert "Choose such data: --data TextFiles" in message


def test_what_a_task_names_and_lacks_is_said_in_words(addition, capsys, tmp_path):
    assert main(["fit", "BigramLM.yaml"]) == 0
    (run,) = (addition / "runs").glob("*/*/*/config.yaml")
    (tmp_path / "site" / "addition_task" / "use.py").write_text("from no_such_package import nothing\n")
    sys.modules.pop("addition_task.use", None)
    capsys.readouterr()
    assert main(["generate", str(run.parent), "--prompt", "the cat"]) != 0
    message = capsys.readouterr().err
    assert "trained of addition_task.task.BigramLM, addition_task.use:TrainedBigram, cannot be imported" in message
    assert "no_such_package" in message
    assert "Traceback" not in message
