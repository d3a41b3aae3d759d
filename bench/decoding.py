"""Whether writing stays fast: time per token early and late, and with a cache against without.

    python -m bench.decoding

Prints ratios within one run, medians of interleaved repetitions: a 4-layer model of width 256, one sequence.
"""

import statistics
import time

import torch

from zoo.models import LanguageModel


def stretch(model: LanguageModel, first: int, last: int) -> float:
    """Seconds for tokens first..last, with a cache that already holds those before."""
    state = model.begin(last + 1)
    state.step(torch.zeros(1, first, dtype=torch.long))
    token = torch.zeros(1, 1, dtype=torch.long)
    start = time.perf_counter()
    for _ in range(first, last):
        token = state.step(token).argmax(-1, keepdim=True)
    return time.perf_counter() - start


def without_cache(model: LanguageModel, length: int, every: int) -> float:
    """Seconds for ``length`` tokens, each from a forward over all before; every ``every``-th is timed and weighted."""
    total = 0.0
    for size in range(1, length + 1, every):
        start = time.perf_counter()
        model(torch.zeros(1, size, dtype=torch.long))[:, -1].argmax(-1)
        total += (time.perf_counter() - start) * every
    return total


@torch.no_grad()
def main() -> None:
    model = LanguageModel(8192, 1024, dim=256, depth=4, heads=4).eval()
    stretch(model, 100, 120)
    early, late, cached, bare = [], [], [], []
    for _ in range(5):
        early.append(stretch(model, 100, 200))
        late.append(stretch(model, 900, 1000))
        cached.append(stretch(model, 1, 512))
        bare.append(without_cache(model, 512, 8))
    ratios = [b / a for a, b in zip(early, late, strict=True)]
    gains = [b / a for a, b in zip(cached, bare, strict=True)]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"tokens 900-1000 against 100-200: {statistics.median(ratios):.2f} times the time")
    print(f"512 tokens without cache against with: {statistics.median(gains):.1f} times the time")


if __name__ == "__main__":
    main()
