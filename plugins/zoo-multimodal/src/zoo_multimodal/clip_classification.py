"""Classification of clips."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW

from zoo.tasks.classification import ImageTask
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import OptimizerFactory, ScheduleFactory
from zoo_multimodal.clip_transformer import ClipTransformer


class ClipClassification(ImageTask):
    """Name the class of a clip, a few frames; reports loss (nats per clip), top-1 and top-5 accuracy."""

    unit = "clip"
    trained = "zoo_multimodal.trained_media:TrainedClips"
    training_options = ("label_smoothing",)
    learns_from = "clips"
    example_data = ("MovingCharacters",)
    data_sizes: ClassVar = {"num_classes": 10, "frames": 4, "image_size": 32, "channels": 1}
    in_matrix = False  # its stack is used as Classification's is
    net: ClipTransformer

    def __init__(
        self,
        num_classes: int | None = None,
        frames: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        label_smoothing: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            num_classes: number of classes; what the data has unless given.
            frames: number of frames of a clip; what the data has unless given.
            image_size: height and width in pixels; what the data has unless given.
            channels: 1 for grey, 3 for colour; what the data has unless given.
        """
        net = self.build_network(
            num_classes=num_classes, frames=frames, image_size=image_size, channels=channels, **model
        )
        super().__init__(net, num_classes, label_smoothing, "none", lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> ClipTransformer:
        """A ClipTransformer."""
        return ClipTransformer(**options)

    @classmethod
    def small_sizes(cls, options: Mapping[str, Any]) -> dict[str, int]:
        """Frames of two patches a side."""
        return {**cls.data_sizes, "image_size": 2 * int(options.get("patch_size") or 16)}

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random clips (rows, F, C, H, W) and labels (rows,)."""
        size = self.net.image_size
        return {
            "images": torch.randn(rows, self.net.frames, self.net.channels, size, size),
            "labels": torch.randint(self.num_classes, (rows,)),
        }

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One clip (1, F, C, H, W) on the meta device, and 1."""
        size = self.net.image_size
        return (torch.zeros(1, self.net.frames, self.net.channels, size, size, device="meta"),), 1
