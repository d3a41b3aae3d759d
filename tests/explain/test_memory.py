"""The memory of a training step that is said of a recipe is near what a step takes."""

import subprocess
import sys

import pytest

from tests.covering import choices_in_turn
from zoo import recipe_files

TOLERANCE = 0.15
PUBLISHED = {  # samples of a step that fit here, of recipes whose data is not embedded
    "gpt1": 1, "gpt2-small": 1, "lm-shakespeare": 12, "t5-small": 8, "translation-multi30k": 93,
    "vit-cifar10": 128, "vit-s16": 2, "vit-ti16": 4,
}  # fmt: skip
PROBE = """
import sys, torch, warnings
from itertools import islice
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from bench.study import peak_above
from zoo.training.config_meter import ConfigMeter
from zoo.explain.costs import step_memory
from zoo.explain.subjects import find_subject
from zoo.training.memory_estimate import BATCHES, estimate, full_batch
name, rows = sys.argv[1], int(sys.argv[2])
subject = find_subject([name])
meter = ConfigMeter()
if rows:
    batches = [full_batch(subject.task, rows)] * 3
    memory = estimate(subject.task, batches[0])
else:
    memory, _ = step_memory(subject)
    batches = list(islice(subject.data().train_dataloader(), BATCHES))
sizes = {one.key.removeprefix("model."): int(one.value) for one in subject.options if one.value.isdigit()}
task = meter._task(subject.config["model"], sizes, "cpu").train()
optimizer = task.make_optimizer()
def step(batch):
    loss = task.loss(batch)
    (loss.total / loss.size).backward()
    optimizer.step()
    optimizer.zero_grad()
step(batches[0])
weights = sum(one.nbytes for one in task.parameters())
states = sum(one.nbytes for state in optimizer.state.values() for one in state.values() if one.dim())
print(memory.total, max(peak_above(lambda: step(batch)) for batch in batches[1:] or batches) + weights + states)
"""

KEYS = ["trainer.precision=bf16-mixed", "trainer.precision=16-mixed", "model.recompute=true"]


@pytest.mark.parametrize(("recipe", "key"), choices_in_turn(["lm.yaml", "vit.yaml", "pairs.yaml"], KEYS))
def test_the_memory_of_every_recipe_is_estimated_and_a_note_says_what_the_estimate_leaves_out(recipe, key, recipes):
    from zoo.explain.costs import step_memory
    from zoo.explain.subjects import find_subject, with_options

    in_float32 = find_subject([recipe], with_options(["trainer.precision=32-true"]))
    memory, batch = step_memory(in_float32)
    assert memory.total > 0
    assert "batch" in batch
    assert not in_float32.notes
    changed = find_subject([recipe], with_options([key]))
    assert changed.rows == in_float32.rows
    assert "the memory of a step is that of float32" in " ".join(changed.notes)


def embedded_recipes():
    """Names of the packaged recipes whose header says that their data needs no file."""
    return [one.name for one in recipe_files.recipes() if one.builtin and "data: embedded" in "\n".join(one.header)]


@pytest.mark.campaign
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process can be set back on Linux only")
@pytest.mark.parametrize("name", [*embedded_recipes(), "vit-tiny", *PUBLISHED])
def test_a_step_of_a_recipe_takes_what_is_said(name, monkeypatch):
    from bench.study import RETURN_MEMORY

    for variable, value in {**RETURN_MEMORY, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(variable, value)
    command = [sys.executable, "-c", PROBE, name, str(PUBLISHED.get(name, 0))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    estimate, peak = map(int, done.stdout.split()[-2:])
    print(f"{name}: {estimate / 2**20:.2f} MB said, {peak / 2**20:.2f} measured, {100 * (estimate / peak - 1):+.1f} %")
    assert estimate == pytest.approx(peak, rel=TOLERANCE)
