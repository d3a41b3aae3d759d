"""Bring a checkpoint in and load it in any dtype; zoo.load has float32 only."""

import torch
from zoo_pretrained import importer

from zoo.inference import weight_files
from zoo.inference.find_run import find_model
from zoo.inference.rebuild_task import rebuild_task
from zoo.inference.trained_model import Trained


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
