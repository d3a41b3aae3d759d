"""muP's coordinate check: ``python -m tests.models.coordinates`` trains language models of several widths.

For each rule it prints the root mean square of what the blocks and the logits change by in some steps, relative to the
start, per width, and the slope of its logarithm over the logarithm of the width: flat is 0.
"""

import argparse

from zoo.conformance.coordinates import changes, slope
from zoo.models.initialization import FanIn, MuP

WIDTHS = (64, 128, 256, 512)


def main() -> None:
    """Print the table of both rules."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--lr", type=float, default=1e-2)
    arguments = options.parse_args()
    for rule in (FanIn, MuP):
        table = {dim: changes(rule, dim, arguments.steps, arguments.lr) for dim in WIDTHS}
        print(f"{rule.__name__:8}{'':10}" + "".join(f"{dim:>9}" for dim in WIDTHS) + "    slope")
        for name in table[WIDTHS[0]]:
            sizes = {dim: table[dim][name] for dim in WIDTHS}
            print(f"{'':8}{name:10}" + "".join(f"{size:9.3g}" for size in sizes.values()) + f"{slope(sizes):9.2f}")


if __name__ == "__main__":
    main()
