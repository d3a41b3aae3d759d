"""Counts of a traced call beside independent ones: torch's FlopCounterMode, and the events of torch's profiler.

    python -m tests.explain.operation_counts        # for every recipe of installed plugins, and every part of theirs
    python -m tests.explain.operation_counts 3      # for every third recipe, and every third part of each kind

prints a JSON object: for each recipe and part, what disagrees, or that nothing does.
"""

import json
import sys
from collections import Counter
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from tests import test_recipes
from zoo import recipe_files, registry
from zoo.errors import UsageError
from zoo.explain.trace import PRODUCTS, trace
from zoo.parts.position import NoPosition
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Task
from zoo.training.model_cost import cost, meta_copy

OPERATION_NAMES = (*PRODUCTS, "softmax", "native_layer_norm", "embedding")
LONGEST = 512  # tokens of a text on the CPU; the number of operations does not depend on it
SIZES = {"vocab_size": 64, "max_length": 16, "dim": 32, "depth": 2, "heads": 4}
LARGE = 5e8  # parameters of a recipe that is tried at a small size
IMAGES = {"num_classes": 64, "image_size": 16, "channels": 3, "patch_size": 4, "dim": 32, "depth": 2, "heads": 4}


def check_flops(task) -> None:
    """FLOPs of a traced call on the meta device are those of FlopCounterMode and of the cost that runs record."""
    arguments, units = task.example()
    net = meta_copy(task.net)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(*arguments)
    counts = trace(net, *arguments).flops, counter.get_total_flops(), cost(task).flops * units
    assert len(set(counts)) == 1, f"FLOPs traced, counted by torch, recorded: {counts}"


def check_operations(task) -> int:
    """Operations by name, of a traced call on the CPU, are the profiler's events. Returns the matrix products."""
    task.eval()
    examples = task.example()[0]
    if len(examples) == 1 and not examples[0].is_floating_point():  # scores of 32,768 tokens would take all memory
        examples = [examples[0][..., :LONGEST]]
    arguments = [fill(one) for one in examples]
    with torch.no_grad():
        task.net(*arguments)  # what is remembered from call to call is there now
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            task.net(*arguments)
    events = Counter(name for name in map(operation_name, profiler.events()) if name)
    traced = trace(task.net, *arguments).operations
    expected = Counter(operation_name(one) for one in traced)
    for name in OPERATION_NAMES:
        assert expected[name] == events[name], f"{name}: {expected[name]} traced, {events[name]} profiled"
    fused = events["scaled_dot_product"]
    assert expected["scaled_dot_product"] == fused, f"fused attention: {expected['scaled_dot_product']} and {fused}"
    products = sum(one.products for one in traced)
    assert products == sum(events[name] for name in PRODUCTS) + 2 * fused
    return products


def operation_name(one) -> str:
    """The name of a traced operation or of an event of the profiler as both are counted; empty for others."""
    name = one.name
    if name.startswith("aten::"):
        name = name.removeprefix("aten::")
        name = "softmax" if name == "_softmax" else "" if name == "softmax" else name  # the latter calls the former
    name = "softmax" if name == "safe_softmax" else name
    fused = ("scaled_dot_product_flash", "scaled_dot_product_efficient")
    return "scaled_dot_product" if name.strip("_").startswith(fused) else name if name in OPERATION_NAMES else ""


def fill(example: torch.Tensor) -> torch.Tensor:
    """Numbers in the shape and type of an argument that has none."""
    if example.dtype == torch.bool:
        return torch.ones(example.shape, dtype=torch.bool)
    return torch.randn(example.shape) if example.is_floating_point() else torch.randint(2, 8, example.shape)


def part_task(kind: str, cls: type, device: str = "cpu") -> Task:
    """A small model with a part: a language model, without positions or without a mask where the part refuses them."""
    refusal = None
    for task, options in ((CausalLM, SIZES), (CausalLM, SIZES | {"position": NoPosition}), (Classification, IMAGES)):
        try:
            with torch.device(device):
                return task(**{**options, kind: cls})
        except UsageError as error:
            refusal = refusal or error
    raise refusal


def main(every: int = 1) -> int:
    """Check what the installed plugins have, or one in ``every`` of it."""
    outcomes = {}
    for recipe in [one for one in recipe_files.recipes() if not one.builtin][::every]:
        name = recipe.name
        large = sum(weight.numel() for weight in test_recipes.build(name).net.parameters()) > LARGE
        build = partial(test_recipes.build, name, small=large)
        outcomes |= outcomes_of(f"recipe {name}", build)
    for kind in registry.STACK_KINDS:
        for part in [one for one in registry.parts(kind) if not one.builtin][::every]:
            outcomes |= outcomes_of(
                f"{part.kind} {part.name}", lambda device, part=part: part_task(part.kind, part.load(), device)
            )
    json.dump(outcomes, sys.stdout, indent=1)
    return 0


def outcomes_of(title: str, build) -> dict[str, str]:
    """What each check of a model says where it fails; "agrees" where it holds. ``build`` takes a device."""
    result = {}
    for name, check, device in (("FLOPs", check_flops, "meta"), ("operations", check_operations, "cpu")):
        try:
            check(build(torch.device(device)))
            result[f"{title}: {name}"] = "agrees"
        except Exception as error:
            result[f"{title}: {name}"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return result


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
