"""Classification of images."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from zoo.models.vit import ViT
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task, required_size
from zoo.value_checks import a_rate

Mix: TypeAlias = Literal["none", "mixup", "cutmix", "both"]


class ImageTask(Task):
    """What tasks share whose net names the class of an image; ``net`` has image_size and channels.

    Reports loss (nats per image), top-1 and top-5 accuracy.
    """

    kind = "task"  # a base of its own: plugins derive tasks from it
    unit = "image"
    trained = "zoo.inference.classification:TrainedClassification"
    learns_from = "images"
    example_data: ClassVar[tuple[str, ...]] = ("Glyphs", "ImageFolder")
    data_sizes: ClassVar = {"num_classes": 10, "image_size": 32, "channels": 3}
    monitored_metrics: ClassVar[Directions] = {"top1": "max", "loss": "min"}
    net: Any

    def __init__(
        self,
        net: nn.Module,
        num_classes: int | None,
        label_smoothing: float,
        mix: Mix,
        lr: float,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory,
    ):
        """
        Args:
            label_smoothing: share of the target spread over all classes.
            mix: blend images and labels of a batch (mixup), paste patches between them (cutmix), or either by chance.
        """
        super().__init__(net, lr, optimizer, schedule)
        num_classes = required_size(num_classes, "num_classes")
        a_rate(label_smoothing=label_smoothing)
        self.num_classes, self.label_smoothing, self.mix = num_classes, label_smoothing, mix
        self.mixer: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        metrics: dict[str, Metric | MetricCollection] = {
            "top1": MulticlassAccuracy(num_classes, average="micro"),
            "top5": MulticlassAccuracy(num_classes, average="micro", top_k=min(5, num_classes)),
        }  # each takes logits (B, num_classes) and labels (B,)
        self.metrics = MetricCollection(metrics, compute_groups=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, num_classes)."""
        return self.net(images)

    def on_fit_start(self) -> None:
        """Make the blend of images and labels, which training alone has."""
        super().on_fit_start()
        self.mixer = mixer(self.mix, self.num_classes)

    def prediction_logits(self, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Logits (B, num_classes) of images that are not blended."""
        return net(batch["images"])

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over images (), in nats, and their number (); images (B, C, H, W), labels (B,)."""
        images, labels = batch["images"], batch["labels"]
        size = torch.tensor(len(images), device=images.device)
        if self.mixer is not None:
            images, labels = self.mixer(images, labels)
        logits = self(images).float()
        return Loss(F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing), size)

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same without smoothing and blending, after updating accuracies."""
        labels = batch["labels"]
        logits = self(batch["images"]).float()
        self.metrics.update(logits, labels)
        return Loss(F.cross_entropy(logits, labels, reduction="sum"), torch.tensor(len(labels), device=labels.device))

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """Per image its likeliest class, that one's probability, and its label."""
        probability, classes = self(batch["images"]).float().softmax(-1).max(-1)
        rows = zip(classes.tolist(), probability.tolist(), batch["labels"].tolist(), strict=True)
        return [{"class": guess, "probability": chance, "label": label} for guess, chance, label in rows]

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random images (rows, C, H, W) and labels (rows,)."""
        size = self.net.image_size
        return {
            "images": torch.randn(rows, self.net.channels, size, size),
            "labels": torch.randint(self.num_classes, (rows,)),
        }

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """One image (1, C, H, W) on the meta device, and 1."""
        size = self.net.image_size
        return (torch.zeros(1, self.net.channels, size, size, device="meta"),), 1


class Classification(ImageTask):
    """Name the class of an image; reports loss (nats per image), top-1 and top-5 accuracy."""

    training_options = ("label_smoothing", "mix")
    pictures = "zoo.logging.attention_maps:patch_pictures"
    net: ViT

    def __init__(
        self,
        num_classes: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        label_smoothing: float = 0.0,
        mix: Mix = "none",
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            num_classes: number of classes; what the data has unless given.
            image_size: height and width in pixels; what the data has unless given.
            channels: 1 for grey, 3 for colour; what the data has unless given.
        """
        net = self.build_network(num_classes=num_classes, image_size=image_size, channels=channels, **model)
        super().__init__(net, num_classes, label_smoothing, mix, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> nn.Module:
        """A ViT."""
        return ViT(**options)

    @classmethod
    def small_sizes(cls, options: Mapping[str, Any]) -> dict[str, int]:
        """Images of two patches a side."""
        return {**cls.data_sizes, "image_size": 2 * int(options.get("patch_size") or 16)}


def mixer(mix: str, classes: int):
    """torchvision's MixUp, CutMix or a random choice of both; None to leave batches alone."""
    if mix == "none":
        return None
    from torchvision.transforms.v2 import CutMix, MixUp, RandomChoice

    mixers = {"mixup": MixUp(num_classes=classes), "cutmix": CutMix(num_classes=classes)}
    return RandomChoice(list(mixers.values())) if mix == "both" else mixers[mix]
