"""Random stacks whose layers differ, decoded in every way: python -m tests.models.hybrids [COUNT [SEED [DTYPE]]]."""

import random
import sys

import torch

from tests.conformance.published import GatedConvolution, MixerBlock, Retention, TokenShift
from zoo import registry
from zoo.conformance.sequence_checks import EXACT, check_decoding
from zoo.conformance.subject import spread
from zoo.errors import UsageError
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.position import Extent

PATTERNS = ("first", "last", "last 2", "every 2nd", "every 3rd", "1 of 3", "2 of 3", "all but first", "1, 3", "0-2")
KINDS = ("position", "norm", "attention", "backend", "ffn", "block")


def parts(kind):
    builtin = [part for part in registry.parts(kind) if part.distribution == registry.BUILTIN]
    # a GPU's kernels serve no float64
    classes = [part.load() for part in builtin if part.name != "Flash"]
    return classes + {"attention": [Retention, GatedConvolution], "block": [TokenShift, MixerBlock]}.get(kind, [])


def random_override(choose):
    options = {kind: choose.choice(parts(kind)) for kind in choose.sample(KINDS, choose.randint(1, 2))}
    sizes = {"window": (0, 2, 5), "heads": (2, 4), "hidden": (12, 20)}
    options |= {name: choose.choice(sizes[name]) for name in choose.sample(list(sizes), choose.randint(0, 1))}
    return Override(layers=choose.choice(PATTERNS), **options)


def random_hybrid(seed):
    """A stack of the first random choices that no part refuses, and how it is written."""
    choose = random.Random(seed)
    while True:
        overrides = [random_override(choose) for _ in range(choose.randint(2, 4))]
        own = {"position": choose.choice(parts("position")), "window": choose.choice((None, 4))}
        try:
            net = Stack(
                Extent((40,), causal=True), padded=True, dim=16, depth=4, heads=2, hidden=16, overrides=overrides, **own
            )
        except UsageError:
            continue
        return spread(net).double(), f"{own} {overrides}"


def check(seed, dtype=torch.float64):
    """The largest difference by way of decoding, and how the hybrid is written."""
    torch.manual_seed(seed)
    net, text = random_hybrid(seed)
    with torch.no_grad():
        try:
            return check_decoding(net.to(dtype)), text
        except AssertionError as error:
            raise AssertionError(f"hybrid {seed}, {text}: {error}") from error


if __name__ == "__main__":
    count, first = (int(word) for word in [*sys.argv[1:3], *("30", "0")[len(sys.argv[1:3]) :]])
    dtype = getattr(torch, sys.argv[3] if len(sys.argv) > 3 else "float64")
    worst = {}
    for seed in range(first, first + count):
        gaps, text = check(seed, dtype)
        for way, gap in gaps.items():
            worst[way] = max(gap, worst.get(way, 0.0))
        print(f"{seed} {' '.join(f'{gap:.1e}' for gap in gaps.values())} {text}", flush=True)
    print(" · ".join(f"{way} {gap:.1e}" for way, gap in worst.items()))
    print(f"{count} hybrids decode alike in every way, in {str(dtype)[6:]} to {EXACT[dtype]:.0e}")
