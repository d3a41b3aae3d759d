"""DETR: objects of an image as a set, from queries that a decoder answers by looking at the image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.stack import Stack
from zoo.parts.block import Block, Memory
from zoo.parts.norm import LayerNorm
from zoo.parts.position import Extent, NoPosition, Sinusoidal, angles
from zoo_vision.setloss import Predictions

BASE = 20.0  # of the sines of places: its longest wave is some grids of cells long, not thousands (Liu et al., 2022)

PLASTIC = 1.324717957244746  # the root of x³ = x + 1, whose powers spread points evenly


class Halving(nn.Module):
    """gelu(norm(convolution)), twice, the first of which halves height and width; the second is added to the first."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.halve, self.refine = nn.Conv2d(channels, width, 3, 2, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, width, H / 2, W / 2)."""
        x = self._bend(self.halve(x), self.norms[0])
        return x + self._bend(self.refine(x), self.norms[1])

    @staticmethod
    def _bend(x: Tensor, norm: nn.Module) -> Tensor:
        return nn.functional.gelu(norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Backbone(nn.Sequential):
    """Cells of an image: each halving has twice the width of the one before, the last one ``dim``."""

    def __init__(self, channels: int, dim: int, stride: int):
        count = stride.bit_length() - 1
        if stride < 2 or stride != 1 << count:
            raise UsageError(f"stride must be a power of two from 2 on, got {stride}.")
        widths = [max(16, dim >> halvings) for halvings in reversed(range(1, count))] + [dim]
        super().__init__(*(Halving(*pair) for pair in zip([channels, *widths], widths, strict=False)))


class Queries(nn.Module):
    """Learned vectors, each of which asks for an object."""

    parameter_roles: ClassVar = {"weight": "embedding"}

    def __init__(self, count: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the queries from N(0, 1)."""
        nn.init.normal_(self.weight)

    def forward(self, batch: int) -> Tensor:
        """(batch, count, dim)."""
        return self.weight.expand(batch, -1, -1)


class Anchors(nn.Module):
    """Learned points, evenly spread over the image at first: a query starts from what is there, and where it is."""

    parameter_roles: ClassVar = {"weight": "vector"}

    def __init__(self, count: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread the points evenly over the image."""
        number = torch.arange(1, len(self.weight) + 1, device=self.weight.device)[:, None]
        steps = torch.tensor([1 / PLASTIC, 1 / PLASTIC**2], device=self.weight.device)  # no two points come close
        with torch.no_grad():
            self.weight.copy_((0.1 + 0.8 * (number * steps % 1)).logit())

    def forward(self, cell_states: Tensor, grid: int) -> Tensor:
        """Cells (B, grid², dim) to what they say at the points, between their middles, and the sines of these."""
        points = self.weight.sigmoid()
        cells = cell_states.transpose(1, 2).unflatten(2, (grid, grid))
        where = (2 * points - 1).to(cell_states.dtype).expand(cell_states.size(0), 1, -1, -1)
        there = nn.functional.grid_sample(cells, where, padding_mode="border", align_corners=False)[:, :, 0]
        return there.transpose(1, 2) + sines(points, grid, cell_states.size(2))


class DETR(nn.Module):
    """A class and a box for each query (Carion et al., 2020): convolutions, an encoder of their cells, a decoder.

    The decoder's memory holds the sines of where each cell is, whatever positions the encoder has; queries are a set
    and have none but themselves.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        channels: int = 3,
        stride: int = 8,
        queries: int = 16,
        anchors: bool = False,
        decoder_depth: int | None = None,
        depth: int = 6,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            num_classes: number of classes, no object not counted.
            image_size: height and width of an image in pixels.
            channels: 1 for grey, 3 for colour.
            stride: height and width of a cell in pixels, a power of two.
            queries: the most objects that can be found in an image.
            anchors: a query starts from what the encoder says at a learned point, and its box is measured from there.
            decoder_depth: number of decoder blocks; as many as the encoder has unless given.
            depth: number of encoder blocks.
            seed: of the initial weights.
        """
        super().__init__()
        if image_size % stride:
            raise UsageError(f"image_size={image_size} is not divisible by stride={stride}.")
        if queries < 1:
            raise UsageError(f"queries must be at least 1, got {queries}.")
        with preserve_rng():
            self.image_size, self.channels = image_size, channels
            self.grid = image_size // stride
            grid = Extent((self.grid, self.grid))
            self.encoder = Stack(grid, cross=False, padded=False, depth=depth, **stack)
            self.decoder = Stack(
                Extent((queries,)), cross=True, depth=decoder_depth or depth, **{**stack, "position": NoPosition}
            )
            self.dim: int = self.encoder.dim
            self.backbone = Backbone(channels, self.dim, stride)
            self.place = Sinusoidal(self.dim, 1, grid, BASE)
            self.queries = Queries(queries, self.dim)
            self.anchors = Anchors(queries) if anchors else None
            self.label = nn.Linear(self.dim, num_classes + 1)
            wide = (nn.Linear(self.dim, self.dim), nn.ReLU())
            self.box = nn.Sequential(*wide, nn.Linear(self.dim, self.dim), nn.ReLU(), nn.Linear(self.dim, 4))
            initialize(self, seed)

    def states(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to what every block of the decoder makes of the queries, (depth, B, Q, dim); the last one
        alone where blocks have several residual streams.
        """
        cells = self.backbone(images).flatten(2).transpose(1, 2)
        cell_states = self.encoder(cells)
        queries = self.queries(images.size(0)).to(cell_states.dtype)  # not len, of which torch.export makes a constant
        if self.anchors is not None:
            queries = queries + self.anchors(cell_states, self.grid)
        cell_states = self.place.embed(cell_states, torch.arange(cell_states.size(1), device=cell_states.device))
        with outputs(self.decoder) as layers:
            last = self.decoder(queries, memory=Memory(cell_states))
        if first_block(self.decoder).residual_streams > 1:  # of which layers give each, and the stack their mean
            return last[None]
        return torch.stack([*(self.decoder.norm(layer) for layer in layers[:-1]), last])

    def forward(self, images: Tensor) -> Predictions:
        """Images (B, C, H, W) to the predictions of every block of the decoder, (depth, B, Q, ...), the last the best.

        Boxes are centre and size in shares of the image.
        """
        states = self.states(images)
        boxes = self.box(states)
        if self.anchors is not None:
            boxes = boxes + nn.functional.pad(self.anchors.weight, (0, 2))
        return Predictions(self.label(states), boxes.sigmoid())


def sines(points: Tensor, grid: int, dim: int) -> Tensor:
    """What Sinusoidal adds to a cell, for any points (..., 2): x and y in shares of a grid of so many cells a side."""
    waves = [angles(points[..., axis] * grid - 0.5, dim // 2, BASE, points.dtype) for axis in (1, 0)]
    return torch.cat([torch.stack([wave.sin(), wave.cos()], -1).flatten(-2) for wave in waves], -1)


@contextmanager
def outputs(stack: Stack) -> Iterator[list[Tensor]]:
    """Within the block, a forward of the stack appends the output (B, T, dim) of each of its blocks to the list."""
    states: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _block, _args, x: states.append(x)) for block in stack.blocks]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def check_layers(block: Block) -> None:
    """Raise UsageError where blocks are run in a way of their own, so that nobody sees what each one gives."""
    if block.residual_streams > 1 or type(block).through.__func__ is not Block.through.__func__:  # type: ignore[attr-defined]
        raise UsageError(f"block {type(block).__name__} shows only its last layer: model.auxiliary must be false.")


def first_block(stack: Stack) -> Block:
    """The block that stands for the others."""
    return cast(Block, stack.blocks[0])
