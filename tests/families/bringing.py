"""Bring a checkpoint in and load it in any dtype; zoo.load has float32 only."""

import torch

from zoo.families import bring
from zoo.trained import weights
from zoo.trained.base import Trained
from zoo.trained.build import build
from zoo.trained.place import find


def imported(source, target):
    """What `zoo import` does."""
    found = bring.checkpoint(source)
    task, tensors, _ = bring.swapped(found, found.model)
    bring.save(found, target, found.model, task, tensors)
    return found


def loaded(folder, dtype=torch.float32):
    """An import, without the tokenizer that a checkpoint of random weights has not."""
    place = find(folder)
    task = build(place.config, place.source).to(dtype)
    weights.put(task, weights.read(place.weights), place.weights)
    return Trained(task.eval(), place)


def gap(one, other):
    assert one.shape == other.shape
    return float((one - other).abs().max())


def same_tensors(model, again):
    one, other = model.state_dict(), again.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
