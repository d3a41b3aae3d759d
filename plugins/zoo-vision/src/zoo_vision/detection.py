"""Object detection: which things an image shows, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities import move_data_to_device
from PIL import Image
from torch import Tensor
from torch.optim import AdamW

from zoo.logging.attention_maps import validation
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task, required_size
from zoo.value_checks import at_least
from zoo_vision.detr import DETR, check_layers, first_block
from zoo_vision.precision import AveragePrecision
from zoo_vision.setloss import NOTHING, Predictions, Targets, Weights, set_loss


class Detection(Task):
    """Find the objects of an image as a set (Carion et al., 2020): classes and boxes, each of one query.

    The loss of an image is the cross-entropy of all queries, the L1 distance of the paired boxes and their 1 - gIoU,
    weighted and summed, of the cheapest pairing; in training its mean over the blocks of the decoder, each paired by
    itself. Reports loss, average precision over IoU 0.5 to 0.95 (``ap``), and at 0.5 and 0.75 alone.
    """

    unit = "image"
    trained = "zoo_vision.trained:TrainedDetection"
    pictures = "zoo_vision.detection:box_pictures"
    learns_from = "images with boxes"
    example_data = ("DrawnScenes",)
    data_sizes: ClassVar = {"num_classes": 5, "image_size": 32, "channels": 3}
    monitored_metrics: ClassVar[Directions] = {"ap50": "max", "ap": "max", "loss": "min"}
    net: DETR

    def __init__(
        self,
        num_classes: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        auxiliary: bool = True,
        empty_weight: float = 0.1,
        box_weights: tuple[float, float] = (5.0, 2.0),
        lr: float = 5e-4,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            num_classes: number of classes; what the data has unless given.
            image_size: height and width in pixels; what the data has unless given.
            channels: 1 for grey, 3 for colour; what the data has unless given.
            auxiliary: every block of the decoder must find the objects, not the last one alone.
            empty_weight: what a query that finds nothing counts in the cross-entropy, where one that does counts 1.
            box_weights: what L1 distance and 1 - gIoU count, where the cross-entropy counts 1.
        """
        net = self.build_network(num_classes=num_classes, image_size=image_size, channels=channels, **model)
        super().__init__(net, lr, optimizer, schedule)
        if auxiliary:
            check_layers(first_block(net.decoder))
        distance, overlap = box_weights
        at_least(0, empty_weight=empty_weight)
        self.auxiliary, self.weights = auxiliary, Weights(1.0, distance, overlap, empty_weight)
        self.num_classes = required_size(num_classes, "num_classes")
        self.precision_of = AveragePrecision(self.num_classes)

    @staticmethod
    def network(**options: Any) -> DETR:
        """A DETR."""
        return DETR(**options)

    @classmethod
    def small_sizes(cls, options: Mapping[str, Any]) -> dict[str, int]:
        """Images of four cells a side."""
        return {**cls.data_sizes, "image_size": 4 * int(options.get("stride") or 8)}

    def forward(self, images: Tensor) -> Predictions:
        """Images (B, C, H, W) to the predictions of the last block: logits (B, Q, C + 1) and boxes (B, Q, 4)."""
        logits, boxes = self.net(images)
        return Predictions(logits[-1].float(), boxes[-1].float())

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """The set loss summed over images (), the mean over blocks, and their number ()."""
        logits, boxes = (part if self.auxiliary else part[-1:] for part in self.net(batch["images"]))
        layers, size = len(logits), len(batch["images"])
        # one pairing of all blocks at once: a block's predictions are those of other images of the same objects
        targets = Targets(*(batch[name].repeat(layers, *[1] * (batch[name].dim() - 1)) for name in Targets._fields))
        parts = set_loss(Predictions(logits.flatten(0, 1).float(), boxes.flatten(0, 1).float()), targets, self.weights)
        return Loss(torch.stack([*parts.values()]).sum() / layers, torch.tensor(size, device=logits.device))

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The last block's set loss summed over images () and their number (), after updating average precision."""
        predictions, targets = self(batch["images"]), Targets(batch["classes"], batch["boxes"])
        self.precision_of.update(predictions, targets)
        total = torch.stack([*set_loss(predictions, targets, self.weights).values()]).sum()
        return Loss(total, torch.tensor(len(predictions.logits), device=total.device))

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """ap, ap50 and ap75; the metric starts anew."""
        self.precision_of.nothing()
        values = self.precision_of.compute()
        self.precision_of.reset()
        return values

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """Per image its objects: class, probability and box, the surest first."""
        predictions = self(batch["images"])
        chance, label = predictions.logits.softmax(-1)[..., :-1].max(-1)
        rows = zip(label.tolist(), chance.tolist(), predictions.boxes.tolist(), strict=True)
        return [
            {
                "objects": [
                    {"class": one, "probability": sure, "box": box}
                    for one, sure, box in sorted(zip(*row, strict=True), key=lambda each: -each[1])
                ]
            }
            for row in rows
        ]

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random images (rows, C, H, W), classes (rows, 4) and boxes (rows, 4, 4)."""
        side = self.net.image_size
        classes = torch.randint(self.num_classes, (rows, 4))
        classes[torch.arange(4) > torch.arange(rows)[:, None] % 4] = NOTHING
        boxes = torch.cat([torch.rand(rows, 4, 2) * 0.6 + 0.2, torch.rand(rows, 4, 2) * 0.3 + 0.1], -1)
        images = torch.randn(rows, self.net.channels, side, side)
        return {"images": images, "classes": classes, "boxes": boxes * (classes != NOTHING)[..., None]}

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One image (1, C, H, W) on the meta device, and 1."""
        side = self.net.image_size
        return (torch.zeros(1, self.net.channels, side, side, device="meta"),), 1


def box_pictures(task: Detection, data: Any) -> dict[str, Image.Image]:
    """The boxes of a few images of the validation data, true and found."""
    from zoo_vision.detection_figures import SCENES, compared  # late: matplotlib takes half a second to load

    batch = move_data_to_device(validation(data, SCENES), task.device)
    return {"detection/boxes": compared(task, data, batch)}
