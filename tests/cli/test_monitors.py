"""A misspelt figure that a callback monitors is refused before training, with the figure that was probably right."""

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer

from zoo.cli.fit import check_monitors, configures_bar
from zoo.errors import UsageError
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.translation import Translation

SIZES = {"dim": 8, "depth": 1, "heads": 2}
TASKS = {
    "lm": (lambda: CausalLM(8, 8, **SIZES), ["val/perplexity", "val/bits_per_byte"]),
    "translation": (lambda: Translation(8, 8, 8, **SIZES), ["val/bleu", "val/chrf", "val/exact", "val/exact_date"]),
    "classification": (lambda: Classification(3, 8, 1, patch_size=4, **SIZES), ["val/top1", "val/top5"]),
}


@pytest.mark.parametrize("name", TASKS)
def test_figures_that_a_validation_reports_are_monitored(name):
    build, figures = TASKS[name]
    for monitor in ("val/loss", *figures):
        mode = build().monitored_metrics.get(monitor.removeprefix("val/"), "min")
        callbacks = [EarlyStopping(monitor, mode=mode), ModelCheckpoint(monitor=monitor, mode=mode)]
        check_monitors([*callbacks, Timer(), ModelCheckpoint()], build())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint])
def test_a_mode_that_takes_the_best_value_for_the_worst_is_refused(name, callback):
    task = TASKS[name][0]()
    for metric, way in task.monitored_metrics.items():
        wrong = "max" if way == "min" else "min"
        with pytest.raises(UsageError, match=rf"'val/{metric}' with mode {wrong}, .*: set its mode to {way}"):
            check_monitors([callback(monitor=f"val/{metric}", mode=wrong)], task)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("wrong", "right"), [("val_loss", "val/loss"), ("val/los", "val/loss"), ("vall/loss", "val/loss")]
)
@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint])
def test_a_misspelt_one_is_refused_with_what_was_meant(name, wrong, right, callback):
    with pytest.raises(UsageError, match=rf"{callback.__name__} monitors '{wrong}', .*Did you mean '{right}'\?"):
        check_monitors([callback(monitor=wrong)], TASKS[name][0]())


def test_each_of_several_of_one_class_is_looked_at():
    with pytest.raises(UsageError, match="ModelCheckpoint monitors 'val/nonsense'"):
        check_monitors([ModelCheckpoint(monitor="val/nonsense"), ModelCheckpoint(monitor="val/loss")], TASKS["lm"][0]())


def test_a_strange_one_is_refused_with_the_names_that_there_are():
    with pytest.raises(UsageError, match=r"There are: val/loss, val/top1, val/top5"):
        check_monitors([EarlyStopping("accuracy_of_nothing")], TASKS["classification"][0]())


BARS = [{"class_path": f"lightning.pytorch.callbacks.{name}"} for name in ("TQDMProgressBar", "RichProgressBar")]


@pytest.mark.parametrize("callbacks", [BARS[0], [{"class_path": "x.Timer"}, BARS[1]]])
def test_a_configured_bar_is_seen_alone_and_in_a_list(callbacks):
    assert configures_bar({"callbacks": callbacks})
    assert not configures_bar({"callbacks": [{"class_path": "x.Timer"}]})
    assert not configures_bar({})
