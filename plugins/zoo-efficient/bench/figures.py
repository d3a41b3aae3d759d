"""The figures of the README: errors, memory, operations and time.

    python plugins/zoo-efficient/bench/figures.py [linformer performer lsh window reversible time]

Times are the least of interleaved repetitions on one thread.
"""

import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from zoo_efficient.linformer import Linformer
from zoo_efficient.local import SlidingWindow, Strided
from zoo_efficient.lsh import LSH, direction
from zoo_efficient.performer import Performer
from zoo_efficient.reversible import Reversible

from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.block import PreNorm
from zoo.parts.norm import Norm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from efficient_measures import exponent, saved_bytes

LENGTHS = (256, 512, 1024, 2048)
DIM, HEADS = 128, 4


def table(head, rows):
    print("\n" + " | ".join(map(str, head)))
    for row in rows:
        print(" | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))


def memory(name, build, causal):
    """MB kept by one layer's forward, and the power of the length it grows with."""
    sizes = {}
    for length in LENGTHS:
        part, x = initialize(build(DIM, HEADS)), torch.randn(1, length, DIM)
        sizes[length] = saved_bytes(partial(part, x, pattern=Pattern(causal=causal)), part.parameters())
    return [name, *(f"{size / 2**20:.2f}" for size in sizes.values()), f"{exponent(sizes):.2f}"]


def linformer():
    builds = {"MultiHead, Naive": lambda dim, heads: MultiHead(dim, heads, Naive()),
              "Linformer, Naive, rank 64": lambda dim, heads: Linformer(dim, heads, Naive(), length=2048)}  # fmt: skip
    table(["MB kept by a layer", *LENGTHS, "power"], [memory(name, each, False) for name, each in builds.items()])


def performer():
    def error(features, trials=60, D=16, T=256):
        errors = []
        for _ in range(trials):
            part, (q, k, v) = Performer(D, 1, features=features), torch.randn(3, 1, 1, T, D)
            q, k = 0.65 * q, 0.65 * k
            exact = SDPA()(q, k, v, Pattern())
            errors.append((part.attend(q, k, v, Pattern()) - exact).norm() / exact.norm())
        return torch.stack(errors).mean().item()

    counts = (16, 64, 256, 1024, 4096)
    table(["m", *counts], [["relative error", *(f"{error(m):.2f}" for m in counts)]])
    builds = {f"Performer{', causal' * causal}": causal for causal in (False, True)}
    rows = [memory(name, partial(Performer, features=64), causal) for name, causal in builds.items()]
    table(["MB kept by a layer", *LENGTHS, "power"], rows)


def lsh():
    rows = []
    for length in LENGTHS:
        for buckets in (8, length // 32):
            part, q = LSH(DIM, HEADS, buckets=buckets, rounds=1), torch.randn(1, HEADS, length, DIM // HEADS)
            counts = [torch.bincount(numbers, minlength=buckets).max().item() for numbers in part._hash(q)[0, :, 0]]
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                part.attend(q, direction(q), q, Pattern(causal=True))
            full = 4 * HEADS * length**2 * (DIM // HEADS)
            rows.append([length, buckets, max(counts), length / buckets, counter.get_total_flops() / full])
    table(["T", "buckets", "longest bucket", "mean bucket", "FLOPs of scores and values / full"], rows)


def window():
    rows = []
    for name, build in (
        ("SlidingWindow(128)", partial(SlidingWindow, width=128)),
        ("Strided(32)", partial(Strided, stride=32)),
    ):
        for backend in (Naive, SDPA, Tiled):
            flops = {}
            for length in LENGTHS:
                part, x = build(DIM, HEADS, backend()), torch.randn(1, HEADS, length, DIM // HEADS)
                with FlopCounterMode(display=False) as counter, torch.no_grad():
                    part.attend(x, x, x, part.thin(Pattern(causal=True)))
                flops[length] = max(1, counter.get_total_flops())
            rows.append([name, backend.__name__, *(f"{n / 1e6:.0f}" for n in flops.values()), exponent(flops)])
    table(["million FLOPs", "backend", *LENGTHS, "power"], rows)


def stack(block, depth):
    return initialize(
        Stack(Extent((256,), causal=True), dim=DIM, heads=HEADS, depth=depth, block=block, position=NoPosition)
    )


def reversible():
    x, rows = torch.randn(4, 256, DIM), []
    for depth in (2, 8, 16):
        net, inputs = stack(Reversible, depth), {}
        for name, module in net.blocks.named_modules():
            if isinstance(module, Norm):
                pair = inputs.setdefault(name, [])
                module.register_forward_hook(lambda module, args, out, pair=pair: pair.append(args[0].detach()))
        net(x).square().sum().backward()
        off = max((there - back).abs().max().item() for there, back in inputs.values())
        sizes, seconds = [], []
        for block in (PreNorm, Reversible):
            other = stack(block, depth)
            sizes.append(f"{saved_bytes(partial(other, x), other.parameters()) / 2**20:.1f}")
            seconds.append(f"{least([lambda other=other: other(x).sum().backward()])[0] * 1e3:.0f}")
        rows.append([depth, f"{off:.1e}", *sizes, *seconds])
    table(["depth", "inverse error", "MB PreNorm", "MB Reversible", "ms PreNorm", "ms Reversible"], rows)


def least(runs, repetitions=5):
    """The least time of each, interleaved."""
    times = [float("inf")] * len(runs)
    for _ in range(repetitions):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            times[number] = min(times[number], time.perf_counter() - start)
    return times


def times():
    builds = {
        "MultiHead, SDPA": (MultiHead, True), "MultiHead, SDPA, both sides": (MultiHead, False),
        "Linformer(rank 64), both sides": (partial(Linformer, length=4096), False),
        "Performer(64)": (partial(Performer, features=64), True),
        "Performer(64), both sides": (partial(Performer, features=64), False),
        "LSH(T / 32 buckets, 1 round)": (LSH, True),
        "SlidingWindow(128), SDPA": (SlidingWindow, True),
        "SlidingWindow(128), Tiled": (lambda dim, heads: SlidingWindow(dim, heads, Tiled()), True),
        "Strided(64), SDPA": (partial(Strided, stride=64), True),
    }  # fmt: skip
    columns = []
    lengths = (512, 1024, 2048, 4096)
    for length in lengths:
        x, runs = torch.randn(1, length, DIM, requires_grad=True), []
        for build, causal in builds.values():
            options = {"buckets": length // 32, "rounds": 1} if build is LSH else {}
            part = initialize(build(DIM, HEADS, **options))
            runs.append(lambda part=part, causal=causal, x=x: part(x, pattern=Pattern(causal=causal)).sum().backward())
        columns.append(least(runs, 3))
    rows = [[name, *(f"{column[n] * 1e3:.0f}" for column in columns)] for n, name in enumerate(builds)]
    table(["ms forward and backward", *lengths], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = {
        "linformer": linformer,
        "performer": performer,
        "lsh": lsh,
        "window": window,
        "reversible": reversible,
        "time": times,
    }
    for name in sys.argv[1:] or every:
        every[name]()
