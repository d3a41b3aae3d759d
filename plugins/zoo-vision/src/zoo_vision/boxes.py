"""Boxes: how they are written, and how far two of them overlap."""

from __future__ import annotations

import torch
from torch import Tensor


def corners(boxes: Tensor) -> Tensor:
    """(..., 4) of centre x, centre y, width, height to left, top, right, bottom."""
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([middle - half, middle + half], -1)


def centred(boxes: Tensor) -> Tensor:
    """(..., 4) of left, top, right, bottom to centre x, centre y, width, height."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def iou(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union of boxes (..., 4) by their corners, and the area of the union; shapes broadcast.

    Two boxes without area have 0 in common.
    """
    both = _area(torch.cat([torch.maximum(one[..., :2], two[..., :2]), torch.minimum(one[..., 2:], two[..., 2:])], -1))
    union = _area(one) + _area(two) - both
    return both / union.clamp(min=torch.finfo(union.dtype).tiny), union


def giou(one: Tensor, two: Tensor) -> Tensor:
    """IoU - (hull - union) / hull, in (-1, 1], of boxes (..., 4), (...,): it has a slope for boxes apart too.

    Rezatofighi et al. (2019).
    """
    share, union = iou(one, two)
    hull = _area(torch.cat([torch.minimum(one[..., :2], two[..., :2]), torch.maximum(one[..., 2:], two[..., 2:])], -1))
    return share - (hull - union) / hull.clamp(min=torch.finfo(hull.dtype).tiny)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
