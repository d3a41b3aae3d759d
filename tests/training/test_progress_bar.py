"""The bar is drawn a few times a second, and once more at the end of a run."""

import io
import math

from lightning.pytorch import Trainer

from tests.tasks.training import build
from zoo.training.progress_bar import Bar


def trainer(folder, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    defaults = {"max_steps": 3, "max_epochs": -1, "limit_val_batches": 0, "logger": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, use_distributed_sampler=False, **quiet | defaults | options)


def test_the_bar_ends_where_the_run_does(tmp_path):
    screen = io.StringIO()
    bar = Bar(leave=True, console_kwargs={"file": screen, "force_terminal": True, "width": 120})
    bar._last_drawing = math.inf  # no drawing is due
    run = trainer(tmp_path, callbacks=[bar], max_steps=7, enable_progress_bar=True)
    run.fit(*build("lm", 4, tmp_path))
    text = screen.getvalue()
    assert "7/7" in text
    assert "6/7" not in text  # nobody asked before the last step
    assert "Epoch 0 " in text
