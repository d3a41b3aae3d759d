"""Training without a Trainer."""

from zoo_exercises import short_runs
from zoo_exercises.synthetic import Copying

from zoo.tasks.lm import CausalLM


def test_short_runs_go_on_over_epochs_and_report_what_tasks_measure():
    data = Copying(length=6, letters=5, size=8, eval_size=4, batch_size=4, seed=1)
    data.ready()
    task = CausalLM(**data.sizes(), dim=8, depth=1, heads=2, lr=1e-2)
    before = short_runs.validate(task, data)
    assert short_runs.train(task, data, 25) < before["loss"]
    after = short_runs.validate(task, data)
    assert after["loss"] < before["loss"]
    assert 0 <= after["accuracy_longer"] <= 1
