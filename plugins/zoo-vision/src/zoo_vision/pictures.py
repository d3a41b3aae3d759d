"""Swin's windows, and what a cell sees through them, found by the gradients of live layers.

python -m zoo_vision.pictures FILE.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor, nn

from zoo.palette import LIGHT
from zoo.plotting import new_figure, style, to_image
from zoo_vision.windows import WindowAttention, join, split, visible_cells

SIDE, GRID, WINDOW, SHIFT = 22, 8, 4, 2
GAP, TOP = 46, 56  # units
CELL = (3, 3)  # whose view is shown


def view(layers: nn.Module, cell: tuple[int, int]) -> Tensor:
    """Which cells (GRID, GRID) have an influence on one of them."""
    x = torch.randn(1, GRID, GRID, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(layers(x)[(0, *cell)].sum(), x)
    return slope[0].abs().sum(-1) > 0


def regions(shift: int) -> Tensor:
    """A number per cell (GRID, GRID), the same for those that see each other in a layer with this shift."""
    cells = torch.arange(GRID * GRID).view(1, GRID, GRID, 1).roll((-shift, -shift), (1, 2))
    numbers = split(cells, WINDOW)[0, ..., 0]
    allowed = visible_cells(GRID, GRID, WINDOW, shift)
    first = torch.where(allowed, numbers[:, None, :], GRID * GRID).amin(-1)
    return join(first[None, ..., None], GRID, GRID)[0, ..., 0].roll((shift, shift), (0, 1))


@style()
def windows() -> Figure:
    """Three grids: the windows of a layer, those of the next one, and what a cell sees through both."""
    torch.manual_seed(0)
    unshifted, moved = (WindowAttention(4, 1, GRID, WINDOW, shift) for shift in (0, SHIFT))
    panels = [
        ("layer 1: windows of 4 x 4", regions(0), view(unshifted, CELL)),
        (f"layer 2: shifted by {SHIFT}", regions(SHIFT), view(moved, CELL)),
        ("seen through both", regions(SHIFT), view(nn.Sequential(unshifted, moved), CELL)),
    ]
    size = SIDE * GRID
    width, height = 3 * size + 4 * GAP, TOP + size + 44
    figure = new_figure(width, height)
    colours = ListedColormap([LIGHT["frame"], LIGHT["c1"]])
    for number, (title, region, visible) in enumerate(panels):
        x = GAP + number * (size + GAP)
        axes = figure.add_axes((x / width, 44 / height, size / width, size / height))
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=14, pad=12)
        cells = axes.pcolormesh(visible.numpy(), cmap=colours, vmin=0, vmax=1, edgecolor=LIGHT["paper"], linewidth=2)
        cells.set_alpha(0.75)
        axes.invert_yaxis()
        edges(axes, region)
        axes.plot(CELL[1] + 0.5, CELL[0] + 0.5, "o", color=LIGHT["c6"], markersize=12, markeredgecolor=LIGHT["paper"])
    legend = "dark: cells whose values move the marked one, by the gradient; lines: edges of windows"
    figure.text(GAP / width, 20 / height, legend, fontsize=12.5, color=LIGHT["grey"], va="center")
    return figure


def edges(axes: Axes, region: Tensor) -> None:
    """Lines between cells that do not see each other."""
    for row in range(GRID):
        for column in range(GRID):
            if column + 1 < GRID and region[row, column] != region[row, column + 1]:
                axes.plot((column + 1, column + 1), (row, row + 1), color=LIGHT["ink"], linewidth=2)
            if row + 1 < GRID and region[row, column] != region[row + 1, column]:
                axes.plot((column, column + 1), (row + 1, row + 1), color=LIGHT["ink"], linewidth=2)


def main(arguments: Sequence[str]) -> int:
    """Draw the windows; 2 where no file is named."""
    if len(arguments) != 1:
        print("usage: python -m zoo_vision.pictures FILE.png", file=sys.stderr)
        return 2
    to_image(windows()).save(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
