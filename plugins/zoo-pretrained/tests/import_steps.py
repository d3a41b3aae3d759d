"""Bring a checkpoint in and load it in any dtype; zoo.load has float32 only."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import torch
from zoo_pretrained import importer

from zoo.inference import weight_files
from zoo.inference.find_run import find_model
from zoo.inference.rebuild_task import rebuild_task
from zoo.inference.trained_model import Trained

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# every family of this package; tests are collected before the registry has them
FAMILIES = [
    EntryPoint(name, value, "zoo.family").load() for name, value in PROJECT["entry-points"]["zoo.family"].items()
]


def imported(source, target):
    """What `zoo import` does."""
    checkpoint = importer.checkpoint(source)
    task, tensors, _ = importer.swapped_parts(checkpoint, checkpoint.model)
    importer.save(checkpoint, target, checkpoint.model, task, tensors)
    return checkpoint


def loaded(folder, dtype=torch.float32):
    """An import, without the tokenizer that a checkpoint of random weights has not."""
    place = find_model(folder)
    task = rebuild_task(place.config, place.source).to(dtype)
    weight_files.load_tensors(task, weight_files.read_tensors(place.weights), place.weights)
    return Trained(task.eval(), place)


def gap(one, other):
    assert one.shape == other.shape
    return float((one - other).abs().max())


def same_tensors(model, again):
    one, other = model.state_dict(), again.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
