"""Pictures of what a detector finds: of validation scenes in TensorBoard, of test scenes or images in a file.

python -m zoo_vision.detection_figures RUN FILE.png [IMAGE ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

import zoo
from zoo.data.image_decoding import decode
from zoo.errors import UsageError, ZooError
from zoo.inference.classification import open_image
from zoo.logging.attention_figures import GAP, MARGIN, Page, text_pixels
from zoo_vision.boxes import corners
from zoo_vision.scenes import DrawnScenes
from zoo_vision.setloss import NOTHING, Predictions
from zoo_vision.trained import DetectedObject, TrainedDetection, likely_objects

SCENES, TILE = 8, 256
# one per class, in turn: those of Okabe and Ito (2008), which people with any colour vision tell apart
INKS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))


def boxed(image: Image.Image, things: Sequence[DetectedObject], names: Sequence[str]) -> np.ndarray:
    """uint8 (TILE, TILE, 3): an image with the box of each thing, its class and, unless it is certain, how sure."""
    image = decode(image, "RGB", "an image")
    page = image.resize((TILE, TILE), Image.Resampling.NEAREST)
    pen, across, down = ImageDraw.Draw(page), TILE / image.width, TILE / image.height
    for thing in reversed(things):  # the surest in front
        x0, y0, x1, y1 = (edge * scale for edge, scale in zip(thing.box, (across, down) * 2, strict=True))
        ink = INKS[names.index(thing.label) % len(INKS)]
        pen.rectangle((x0 - 1, y0 - 1, x1 + 1, y1 + 1), outline=(0, 0, 0), width=5)
        pen.rectangle((x0, y0, x1, y1), outline=ink, width=3)
        sure = "" if thing.probability == 1 else f" {thing.probability:.2f}".replace(" 0.", " .").replace("1.00", "1")
        words = Image.fromarray(text_pixels(thing.label + sure, 17, "#000000"))
        x = round(min(max(x0, 0), TILE - words.width - 4))
        y = round(y0) - words.height if y0 >= words.height else round(min(y1, TILE - words.height))
        pen.rectangle((x, y, x + words.width + 3, y + words.height - 1), ink)
        page.paste(words, (x + 2, y), words)
    return np.asarray(page)


def sheet(rows: Sequence[tuple[str, Sequence[np.ndarray]]]) -> Image.Image:
    """Named rows of pictures."""
    longest, step = max(len(tiles) for _, tiles in rows), TILE + 36 + GAP
    page = Page(2 * MARGIN + longest * (TILE + GAP) - GAP, 2 * MARGIN + len(rows) * step - GAP)
    for row, (name, tiles) in enumerate(rows):
        y = MARGIN + row * step
        page.text(name, MARGIN, y + 16, 24)
        for number, tile in enumerate(tiles):
            page.pixels(tile, MARGIN + number * (TILE + GAP), y + 36)
    return page.canvas


def pixels(images: Tensor, data: Any) -> list[Image.Image]:
    """Normalised images (B, C, H, W) as they were."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    arrays = (images.float().cpu() * std + mean).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(one if one.shape[2] == 3 else one[..., 0]) for one in arrays]


def truth(batch: dict[str, Tensor], names: Sequence[str], side: int) -> list[list[DetectedObject]]:
    """What each image of a batch shows, boxes in its pixels."""
    edges = (corners(batch["boxes"]) * side).tolist()
    return [
        [DetectedObject(names[one], 1.0, tuple(box)) for one, box in zip(labels, boxes, strict=True) if one != NOTHING]
        for labels, boxes in zip(batch["classes"].tolist(), edges, strict=True)
    ]


def compared(detect: Callable[[Tensor], Predictions], data: Any, batch: dict[str, Tensor]) -> Image.Image:
    """What the images of a batch show, and below it what a detector finds there."""
    images = pixels(batch["images"], data)
    size = images[0].size
    with torch.no_grad():
        logits, boxes = detect(batch["images"])
    detections = [likely_objects(Predictions(*row), data.names, size) for row in zip(logits, boxes, strict=True)]
    real = truth(batch, data.names, size[0])
    rows = [
        (title, [boxed(image, things, data.names) for image, things in zip(images, every, strict=True)])
        for title, every in (("what there is", real), ("what is found", detections))
    ]
    return sheet(rows)


def main(arguments: Sequence[str]) -> int:
    """Draw test scenes, or images, with what a trained detector finds; 2 where the arguments are wrong."""
    if len(arguments) < 2:
        print("usage: python -m zoo_vision.detection_figures RUN FILE.png [IMAGE ...]", file=sys.stderr)
        return 2
    run, path, *images = arguments
    try:
        model = zoo.load(run)
        if not isinstance(model, TrainedDetection):
            raise UsageError(f"{run} is a {type(model.task).__name__}, which finds no objects.")
        if images:
            every = zip(images, model.detect(images), strict=True)
            page = sheet(
                [("what is found", [boxed(open_image(one, one), things, model.names) for one, things in every])]
            )
        else:
            data = DrawnScenes(image_size=model.size, size=1, seed=0)
            data.ready()
            page = compared(model.task, data, data.datasets["test"].batch(np.arange(SCENES), 0))
    except ZooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    page.save(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
