"""Swin's windows, and what a cell sees through them, found by the gradients of live layers.

python -m zoo_vision.pictures FILE.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.compare.drawing import Drawing
from zoo_vision.windows import WindowAttention, join, seen, split

SIDE, GRID, WINDOW, SHIFT = 22, 8, 4, 2
GAP, TOP = 46, 56
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
    allowed = seen(GRID, GRID, WINDOW, shift)
    first = torch.where(allowed, numbers[:, None, :], GRID * GRID).amin(-1)
    return join(first[None, ..., None], GRID, GRID)[0, ..., 0].roll((shift, shift), (0, 1))


def windows() -> Drawing:
    """Three grids: the windows of a layer, those of the next one, and what a cell sees through both."""
    torch.manual_seed(0)
    plain, moved = (WindowAttention(4, 1, GRID, WINDOW, shift) for shift in (0, SHIFT))
    panels = [
        ("layer 1: windows of 4 x 4", regions(0), view(plain, CELL)),
        (f"layer 2: shifted by {SHIFT}", regions(SHIFT), view(moved, CELL)),
        ("seen through both", regions(SHIFT), view(nn.Sequential(plain, moved), CELL)),
    ]
    size = SIDE * GRID
    drawing = Drawing(3 * size + 4 * GAP, TOP + size + 44, "Swin's windows")
    for number, (title, region, visible) in enumerate(panels):
        left = GAP + number * (size + GAP)
        drawing.text(title, left, 28, 14)
        for row in range(GRID):
            for column in range(GRID):
                x, y = left + column * SIDE, TOP + row * SIDE
                box = (x + 1, y + 1, x + SIDE - 1, y + SIDE - 1)
                drawing.rectangle(box, "c1" if visible[row, column] else "frame", 0.75)
        edges(drawing, region, left)
        drawing.mark(left + (CELL[1] + 0.5) * SIDE, TOP + (CELL[0] + 0.5) * SIDE, "c6", size=6)
    told = "dark: cells whose values move the marked one, by the gradient; lines: edges of windows"
    drawing.text(told, GAP, TOP + size + 24, 12.5, "grey")
    return drawing


def edges(drawing: Drawing, region: Tensor, left: float) -> None:
    """Lines between cells that do not see each other."""
    for row in range(GRID):
        for column in range(GRID):
            x, y = left + column * SIDE, TOP + row * SIDE
            if column + 1 < GRID and region[row, column] != region[row, column + 1]:
                drawing.line([(x + SIDE, y), (x + SIDE, y + SIDE)], "ink", 2)
            if row + 1 < GRID and region[row, column] != region[row + 1, column]:
                drawing.line([(x, y + SIDE), (x + SIDE, y + SIDE)], "ink", 2)


def main(arguments: Sequence[str]) -> int:
    """Draw the windows; 2 where no file is named."""
    if len(arguments) != 1:
        print("usage: python -m zoo_vision.pictures FILE.png", file=sys.stderr)
        return 2
    windows().image().save(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
