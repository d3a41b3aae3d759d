"""Draw what trained models do: ``python bench/pictures.py clip RUN``, ``… dalle RUN``, ``… flamingo RUN``.

Writes clip.png, dalle.png or flamingo.png beside the README, and prints the figures of it.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from zoo_multimodal.captions import KINDS, decode, wordings
from zoo_multimodal.shapes import CaptionedShapes, pixels

import zoo

HERE = Path(__file__).parents[1]
SCALE, EDGE = 3, 6
FONT = ImageFont.load_default(15)


def enlarge(images):
    """(B, 3, H, W) in [-1, 1] to enlarged pictures."""
    rows = [Image.fromarray(one) for one in pixels(images).permute(0, 2, 3, 1).numpy()]
    return [row.resize((row.width * SCALE, row.height * SCALE), Image.Resampling.NEAREST) for row in rows]


def arrays(images):
    """(B, 3, H, W) in [-1, 1] to uint8 arrays (H, W, 3)."""
    return list(pixels(images).permute(0, 2, 3, 1).numpy())


def lone(batch, count):
    """The first images of one thing each, of different captions."""
    rows = {}
    for number, label in enumerate(batch["labels"].tolist()):
        if label >= 0:
            rows.setdefault(decode(batch["captions"][number].tolist()), number)
    return list(rows.values())[:count]


def everything(split):
    data = CaptionedShapes(objects=2, seed=1)
    data.ready()
    samples = data.datasets[split]
    return samples.batch(np.arange(len(samples)), 0)


def clip(run):
    """Cosines of images and captions of kinds never trained on, and accuracies by the nearest of 240 captions."""
    model = zoo.load(run)
    every = [text for kind in range(len(KINDS)) for text in wordings(kind)]
    for split in ("val", "test"):
        batch = everything(split)
        alone = batch["labels"] >= 0
        with torch.no_grad():
            nearest = model.task.nearest(model.net.images(batch["images"][alone]), batch["prompts"])
        kind = (nearest // batch["prompts"].size(1) == batch["labels"][alone]).float().mean()
        own = [decode(row) for row in batch["captions"][alone].tolist()]
        exact = np.mean([every[number] == text for number, text in zip(nearest.tolist(), own, strict=True)])
        print(f"{split}: {len(own)} images of one thing; kind right {kind:.3f}, whole caption right {exact:.3f}")
    rows = lone(batch, 8)
    texts = [decode(row) for row in batch["captions"][rows].tolist()]
    scores = model.similarity(arrays(batch["images"][rows]), texts)
    cell, margin, top = 32 * SCALE, 300, 32 * SCALE + 2 * EDGE
    page = Image.new("RGB", (margin + len(rows) * (cell + EDGE), top + len(rows) * 44), "white")
    pen = ImageDraw.Draw(page)
    for column, one in enumerate(enlarge(batch["images"][rows])):
        page.paste(one, (margin + column * (cell + EDGE), EDGE))
    for row, text in enumerate(texts):
        pen.text((EDGE, top + row * 44 + 12), text, fill="black", font=FONT)
        for column in range(len(rows)):
            score = scores[column, row].item()
            shade = int(255 - 215 * min(1, max(0, score)))
            box = [margin + column * (cell + EDGE), top + row * 44]
            pen.rectangle([*box, box[0] + cell, box[1] + 40], (shade, shade, 255))
            best = int(scores[column].argmax()) == row
            pen.text((box[0] + 30, box[1] + 12), f"{score:.2f}{' *' if best else ''}",
                     fill="white" if shade < 128 else "black", font=FONT)  # fmt: skip
    page.save(HERE / "clip.png")


def dalle(run, judge=None):
    """Samples of captions, and how many a CLIP takes for what was asked."""
    torch.manual_seed(1)
    model = zoo.load(run)
    names = ("red square", "blue circle", "green ring", "purple triangle", "orange cross", "yellow circle")
    kinds = [KINDS.index(kind) for kind in names]
    texts = [wordings(kind)[4 + place % 4] for place, kind in enumerate(kinds)]
    columns = 6
    page = Image.new("RGB", (300 + columns * (32 * SCALE + EDGE), len(texts) * (32 * SCALE + EDGE)), "white")
    pen = ImageDraw.Draw(page)
    for row, text in enumerate(texts):
        y = row * (32 * SCALE + EDGE)
        pen.text((EDGE, y + 40), text, fill="black", font=FONT)
        for column, one in enumerate(model.draw([text] * columns)):
            page.paste(
                one.resize((32 * SCALE, 32 * SCALE), Image.Resampling.NEAREST), (300 + column * (32 * SCALE + EDGE), y)
            )
    page.save(HERE / "dalle.png")
    if judge:
        every = [text for kind in range(30) for text in wordings(kind)]
        eye, numbers = zoo.load(judge), list(range(0, 240, 2))
        scores = eye.similarity(model.draw([every[number] for number in numbers]), every)
        best = scores.argmax(-1)
        kind = (best // 8 == torch.tensor(numbers) // 8).float().mean()
        place = (best % 4 == torch.tensor(numbers) % 4).float().mean()
        print(f"120 samples, by the nearest of 240 captions: kind {kind:.3f}, place {place:.3f}")


def flamingo(run):
    """Captions of validation and test images, and how many are right to the word."""
    model = zoo.load(run)
    for split in ("val", "test"):
        batch = everything(split)
        captions = model.caption(arrays(batch["images"]))
        own = [decode(row) for row in batch["captions"].tolist()]
        right = [a == b for a, b in zip(captions, own, strict=True)]
        words = [a == b for x, y in zip(captions, own, strict=True) for a, b in zip(x.split(), y.split(), strict=False)]
        print(f"{split}: {len(own)} images, {np.mean(right):.3f} captions exact, {np.mean(words):.3f} of words")
        if split == "val":
            page = Image.new("RGB", (96 + 700, 10 * (96 + EDGE)), "white")
            pen = ImageDraw.Draw(page)
            for row, one in enumerate(enlarge(batch["images"])[:10]):
                y = row * (96 + EDGE)
                page.paste(one, (0, y))
                pen.text((106, y + 26), captions[row], fill="black" if right[row] else "red", font=FONT)
                if not right[row]:
                    pen.text((106, y + 52), f"({own[row]})", fill="grey", font=FONT)
            page.save(HERE / "flamingo.png")


if __name__ == "__main__":
    {"clip": clip, "dalle": dalle, "flamingo": flamingo}[sys.argv[1]](*sys.argv[2:])
