"""
Search options with Optuna
==========================

``zoo.fit`` trains a recipe as the command does, and returns the run with its figures: all that a search needs. It needs
``pip install optuna``, and trains a small Vision Transformer six times, for some seconds each.
"""

import tempfile

import optuna

import zoo

runs = tempfile.mkdtemp()
small = {"data.size": 1000, "trainer.max_steps": 60, "trainer.val_check_interval": 30, "model.schedule.warmup": 10}


def train(trial):
    """The validation loss of a run with options that the trial suggests."""
    options = {
        "model.lr": trial.suggest_float("model.lr", 1e-4, 1e-2, log=True),
        "model.norm": trial.suggest_categorical("model.norm", ["layernorm", "rmsnorm"]),
    }
    run = zoo.fit("vit-glyphs", {**small, **options}, runs=runs, existing="resume")
    return run.figures["val/loss"]


study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
study.optimize(train, n_trials=6)
print(study.best_params, study.best_value)
