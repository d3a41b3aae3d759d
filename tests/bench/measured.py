"""What tests of benchmarks run in processes of their own, in a module that imports little."""

from bench import study


def counting(loss=1.0):
    """An entrant that says how often it was called."""
    return lambda number: loss + number


def broken():
    """An entrant that cannot be built."""
    raise ValueError("no such model\nmore")


def breaks_later():
    """An entrant that fails in its third step."""

    def step(number):
        if number == 2:
            raise ArithmeticError("overflow")
        return 1.0

    return step


def grown(megabytes):
    """By how much this process grows when so much is held, and again afterwards: a peak starts anew."""
    import torch

    def hold(size):
        return lambda: torch.ones(size * 2**18)

    hold(1)()
    return [study.peak_above(hold(size)) for size in (megabytes, megabytes // 4)]


def curves(names):
    """Seconds and bytes by length, of each backend."""
    from bench.studies.attention import points

    return {name: points(name, "causal", [512, 1024, 2048], clock="cpu", seconds=0.0) for name in names}


def fails():
    """Raises ValueError."""
    raise ValueError("no such thing\nmore")
