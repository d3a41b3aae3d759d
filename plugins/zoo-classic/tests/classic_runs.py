"""Runs by the command line, as a user makes them."""

import zoo
from zoo.cli import main


def trained(folder, recipe, *options):
    """The trained model of a recipe with options, in a folder of its own."""
    assert main(["fit", recipe, "--runs", str(folder), "--trainer.enable_progress_bar", "false", *options]) == 0
    return zoo.load(recipe, runs=folder)
