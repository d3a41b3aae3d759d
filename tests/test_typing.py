"""What zoo offers to others has types: mypy in strict mode accepts a script that uses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = '''
from pathlib import Path

import torch
from torch import Tensor, nn

import zoo
from zoo import registry
from zoo.compare.run_records import RunRecord, read_records
from zoo.compare.verdict import Answer, answer
from zoo.compare.report import write_report
from zoo.conformance import checks
from zoo.data.data import Data
from zoo.data.text import TextFiles
from zoo.errors import UsageError
from zoo.inference.classification import Guess, TrainedClassification
from zoo.inference.language import TrainedLanguageModel
from zoo.inference.load import load
from zoo.inference.trained_model import GeneratedText, Score, Trained
from zoo.models import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.block import Block
from zoo.parts.norm import Norm, RMSNorm
from zoo.parts.position import ALiBi, RoPE
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Task


class DyT(Norm):
    """A norm without statistics."""

    def __init__(self, dim: int, scale: float = 0.5) -> None:
        super().__init__(dim, eps=0.0)
        self.weight = nn.Parameter(torch.full((dim,), scale))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * self.weight


def parts() -> list[str]:
    part: registry.Part = registry.find("norm", "rmsnorm")
    cls: type = registry.get("position", "rope")
    return [str(part), part.path, cls.__name__, *(one.name for one in registry.parts("norm"))]


def build() -> Tensor:
    model = LanguageModel(vocab_size=10, dim=8, depth=1, heads=2, position=ALiBi, norm=DyT, attention=MultiHead)
    logits: Tensor = model(torch.zeros(1, 4, dtype=torch.long))
    return logits


def learn(path: str) -> tuple[Task, Data]:
    data: Data = TextFiles(path, max_length=8)
    sizes: dict[str, int] = data.sizes()
    task: Task = CausalLM(vocab_size=sizes["vocab_size"], dim=8, depth=1, heads=2, position=RoPE, norm=RMSNorm)
    return task, data


def use(run: Path) -> list[str]:
    trained: Trained = load(run, device="cpu")
    same: Trained = zoo.load(str(run))
    if isinstance(trained, TrainedLanguageModel):
        texts: list[GeneratedText] = trained.generate("a", length=3)
        score: Score = trained.score("text", context="some")
        return [one.text for one in texts] + [str(score.bits_per_byte)]
    if isinstance(same, TrainedClassification):
        guesses: list[list[Guess]] = same.classify("image.png", top=1)
        return [guess.label for row in guesses for guess in row]
    return [str(trained.export("exported"))]


def compare(folder: str) -> Answer:
    records: list[RunRecord] = read_records(folder)
    try:
        result = answer(records, baseline="default")
    except UsageError as error:
        raise SystemExit(error.code) from error
    files: list[Path] = write_report(result, "report")
    print(*files, *(row.verdict.word for row in result.rows))
    return result


def contract() -> None:
    for check in checks(DyT):
        check()
'''


WRONG = """

def wrong(trained: TrainedLanguageModel) -> int:
    return trained.score("text")


def renamed(block: Block) -> object:
    return block.attention  # as a plugin reads it after the core has renamed it
"""


@pytest.mark.campaign
def test_mypy_in_strict_mode_accepts_a_users_script(tmp_path):
    """The two errors that it reports are ours: so it knows the types of what the script imports, and an attribute that
    a module does not declare, which nn.Module.__getattr__ would hide, is one.
    """
    script, config = tmp_path / "script.py", tmp_path / "mypy.ini"
    script.write_text(SCRIPT + WRONG)
    plugin = Path(__file__).with_name("mypy_attributes.py")
    config.write_text(f"[mypy]\nstrict = True\nfollow_imports = silent\nplugins = {plugin}\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    env = {**os.environ, "MYPYPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([*command, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert 'got "Score", expected "int"' in errors[0]
    assert '"zoo.parts.block.Block" declares no attribute "attention"' in errors[1]
