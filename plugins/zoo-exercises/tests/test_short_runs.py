"""Training without a Trainer."""

from zoo_exercises import short_runs
from zoo_exercises.synthetic import Copying

from zoo.parts.ffn import MoE, aux_losses
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


def test_losses_of_parts_teach_too():
    data = Copying(length=6, letters=5, size=8, eval_size=4, batch_size=4, seed=1)
    data.ready()

    class Unbalanced(MoE):
        """Whose router nothing but its own loss teaches."""

        def select(self, probability):
            weight, choice = super().select(probability)
            return weight.detach(), choice

    task = CausalLM(**data.sizes(), dim=8, depth=1, heads=2, lr=1e-2, ffn=Unbalanced)
    router = next(part for part in task.net.modules() if isinstance(part, MoE)).router.weight
    before = router.detach().clone()
    short_runs.train(task, data, 2)
    assert not router.equal(before)
    assert aux_losses(task.net) == []
