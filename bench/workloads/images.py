"""ViT-Tiny's training step: 12 layers of width 192, 3 heads, 32×32 images in patches of 4, batches of 32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.training import RATE, Step, our_optimizer, ours
from bench.work import Work, training

DIM, DEPTH, HEADS, SIZE, PATCH, CLASSES, ROWS = 192, 12, 3, 32, 4, 10, 32


def shrink() -> None:
    """Sizes for a quick check of the entrants themselves."""
    global DIM, DEPTH, ROWS
    DIM, DEPTH, ROWS = 48, 2, 8


def batches(count: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Noise on one pattern per class: there is something to learn."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=generator)
    result = []
    for _ in range(count):
        labels = torch.randint(CLASSES, (ROWS,), generator=generator)
        result.append((patterns[labels] + torch.randn(ROWS, 3, SIZE, SIZE, generator=generator), labels))
    return result


def work() -> Work:
    """Of one step; the patches' embedding counts, the classifier does not."""
    tokens = (SIZE // PATCH) ** 2 + 1
    return Work(training(DEPTH * 12 * DIM**2 + 3 * PATCH**2 * DIM, ROWS * tokens, DEPTH * ROWS * tokens**2, DIM))


def zoo(precision: str = "fp32") -> Step:
    from zoo.parts.position import Learned
    from zoo.tasks.classification import Classification

    task = Classification(
        CLASSES, SIZE, 3, patch_size=PATCH, pool="cls", dim=DIM, depth=DEPTH, heads=HEADS, position=Learned, lr=RATE
    )
    data = [{"images": images, "labels": labels} for images, labels in batches()]
    return Step(task.net, ours(task), data, precision, our_optimizer(task))


def timm(precision: str = "fp32") -> Step:
    from timm.models.vision_transformer import VisionTransformer

    net = VisionTransformer(
        img_size=SIZE, patch_size=PATCH, num_classes=CLASSES, embed_dim=DIM, depth=DEPTH, num_heads=HEADS
    )
    return Step(net, lambda batch: F.cross_entropy(net(batch[0]).float(), batch[1]), batches(), precision)


def transformers(precision: str = "fp32") -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    net = ViTForImageClassification(
        ViTConfig(
            hidden_size=DIM, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * DIM,
            image_size=SIZE, patch_size=PATCH, num_labels=CLASSES, hidden_act="gelu",
        )
    )  # fmt: skip
    return Step(
        net, lambda batch: F.cross_entropy(net(pixel_values=batch[0]).logits.float(), batch[1]), batches(), precision
    )
