"""The memory of a training step that is said of a recipe is near what a step takes."""

import subprocess
import sys

import pytest

TOLERANCE = 0.15
RECIPES = [
    "lm-tiny",
    "llama-style-tiny",
    "mlm-tiny",
    "topics-tiny",
    "translation-tiny",
    "vit-tiny",
    "copy-tiny",
    "recall-tiny",
    "parity-tiny",
    "induction-tiny",
]
PROBE = """
import sys, torch, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from bench.study import peak_above
from zoo.explain.costs import _memory
from zoo.explain.subjects import find_subject
from zoo.compare.measure_model import CostMeter
from zoo.config import fit_options, run_config
command = fit_options.parse("fit", [sys.argv[1]])
config = run_config.make_plan(command, run_config.read_draft(command)).config
subject = find_subject([sys.argv[1]])
memory = _memory(subject)
meter = CostMeter()
data = meter.data(config)
task = meter._task(config["model"], meter._sizes(config), "cpu").train()
optimizer = task.make_optimizer()
batches = [batch for _, batch in zip(range(9), data.train_dataloader())]
def step(batch):
    loss = task.loss(batch)
    (loss.total / loss.size).backward()
    optimizer.step()
    optimizer.zero_grad()
step(batches[0])
peak = max(peak_above(lambda: step(batch)) for batch in batches[1:])
print(memory.total, peak + memory.weights + memory.states)
"""

WRAPPED = """\
model:
  class_path: MaskedLM
  init_args: {dim: 16, depth: 1, heads: 2}
data:
  class_path: MaskedText
  init_args:
    text: {class_path: TextFiles, init_args: {path: corpus.txt, tokenizer: chars, max_length: 16, batch_size: 4}}
trainer: {max_steps: 2}
"""


@pytest.mark.parametrize("recipe", ["lm.yaml", "vit.yaml", "reverse.yaml", "wrapped.yaml"])
@pytest.mark.parametrize("key", ["trainer.precision=bf16-mixed", "trainer.precision=16-mixed", "model.recompute=true"])
def test_the_memory_of_every_recipe_is_estimated_and_a_note_says_what_the_estimate_leaves_out(recipe, key, recipes):
    from zoo.explain.costs import _memory
    from zoo.explain.subjects import find_subject, with_options

    (recipes / "wrapped.yaml").write_text(WRAPPED)
    in_float32 = find_subject([recipe], with_options(["trainer.precision=32-true"]))
    assert _memory(in_float32).total > 0
    assert not in_float32.notes
    changed = find_subject([recipe], with_options([key]))
    assert changed.rows == in_float32.rows
    assert "the memory of a step is that of float32" in " ".join(changed.notes)


@pytest.mark.campaign
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process can be set back on Linux only")
@pytest.mark.parametrize("name", RECIPES)
def test_a_step_of_a_recipe_takes_what_is_said(name, monkeypatch):
    from bench.study import RETURN_MEMORY

    for variable, value in {**RETURN_MEMORY, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(variable, value)
    done = subprocess.run([sys.executable, "-c", PROBE, name], capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    estimate, peak = map(int, done.stdout.split()[-2:])
    assert estimate == pytest.approx(peak, rel=TOLERANCE)
