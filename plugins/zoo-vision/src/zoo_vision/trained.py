"""A trained detector: it says what images show, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from zoo.data.image_data import resize_images
from zoo.data.image_decoding import decode
from zoo.errors import UsageError
from zoo.inference.classification import MODES, Picture, open_image, prepare_image
from zoo.inference.find_run import ModelLocation
from zoo.inference.trained_model import Trained
from zoo.tasks.task import Task
from zoo_vision.boxes import corners
from zoo_vision.setloss import Predictions

ROWS = 64  # images at once


class DetectedObject(NamedTuple):
    """An object: its class, how sure the model is, and left, top, right, bottom."""

    label: str
    probability: float
    box: tuple[float, float, float, float]


class TrainedDetection(Trained):
    """A detector with the names of its classes and its normalisation."""

    files = ("images.json",)

    def __init__(self, task: Task, place: ModelLocation) -> None:
        super().__init__(task, place)
        path = place.file("images.json")
        self.names, self.mean, self.std, self.size, self.channels = prepare_image(path)
        self.check_entries("num_classes", len(self.names), path.name)

    def detect(self, images: Picture | Sequence[Picture], threshold: float = 0.5) -> list[list[DetectedObject]]:
        """What each image shows with at least this probability, the surest first, boxes in pixels of that image.

        Images are paths, PIL images or uint8 arrays (H, W) or (H, W, C); those of another size are stretched to that
        of training. Raises UsageError for what is no image.
        """
        if not 0 <= threshold <= 1:
            raise UsageError(f"threshold is a probability, got {threshold}.")
        several = [images] if isinstance(images, (str, Path, Image.Image, np.ndarray)) else list(images)
        objects: list[list[DetectedObject]] = []
        for begin in range(0, len(several), ROWS):
            part = [
                self._pixels(image, number) for number, image in enumerate(several[begin : begin + ROWS], begin + 1)
            ]
            predictions = self._answer(torch.cat([pixels for pixels, _ in part]))
            for logits, boxes, (_, size) in zip(*predictions, part, strict=True):
                objects.append(likely_objects(Predictions(logits, boxes), self.names, size, threshold))
        return objects

    @torch.no_grad()
    def _answer(self, pixels: Tensor) -> Predictions:
        normal = (pixels.float() / 255 - self.mean.view(-1, 1, 1)) / self.std.view(-1, 1, 1)
        return self.task(normal.to(self.device))

    def _pixels(self, picture: Picture, number: int) -> tuple[Tensor, tuple[int, int]]:
        """uint8 (1, C, size, size), and how wide and high the image is as it is seen."""
        name = str(picture) if isinstance(picture, (str, Path)) else f"image {number}"
        image = decode(open_image(picture, name), MODES[self.channels], name)
        array = np.array(image)
        pixels = torch.from_numpy(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1).copy())[None]
        return (pixels if image.size == (self.size, self.size) else resize_images(pixels, self.size)), image.size


def likely_objects(
    predictions: Predictions, names: Sequence[str], size: tuple[int, int], threshold: float = 0.5
) -> list[DetectedObject]:
    """The likely objects among predictions (Q, ...) of an image of this width and height, the surest first."""
    chance, label = predictions.logits.float().softmax(-1)[:, :-1].max(-1)
    edges = corners(predictions.boxes.float()).clamp(0, 1).cpu() * torch.tensor([*size, *size])
    rows = zip(label.tolist(), chance.tolist(), edges.tolist(), strict=True)
    objects = [
        DetectedObject(names[one], sure, (box[0], box[1], box[2], box[3]))
        for one, sure, box in rows
        if sure >= threshold
    ]
    return sorted(objects, key=lambda one: -one.probability)
