"""CLIP's loss is the formula, starts at ln B, and a class is found by its nearest caption."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from zoo_multimodal.captions import encode, wordings
from zoo_multimodal.clip import CLIP, info_nce

from zoo.parts.norm import Norm, RMSNorm

SMALL = {"dim": 32, "depth": 1, "heads": 4, "features": 16}


def small(data, **options):
    return CLIP(**data.sizes(), **SMALL | options)


@pytest.mark.usefixtures("double")
def test_info_nce_is_its_formula():
    logits = 3 * torch.randn(5, 5)
    expected = 0.0
    for i in range(5):
        row = sum(math.exp(float(logits[i, j])) for j in range(5))
        column = sum(math.exp(float(logits[j, i])) for j in range(5))
        expected -= (2 * float(logits[i, i]) - math.log(row) - math.log(column)) / 2
    assert_close(info_nce(logits), torch.tensor(expected), atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [16, 64])
def test_untrained_it_knows_nothing(shapes, rows):
    """ln B within five hundredths where cosines are not sharpened: they say nothing yet."""
    batch = shapes.datasets["train"].batch(np.arange(rows), 0)
    for seed in range(3):
        torch.manual_seed(seed)
        total, size = small(shapes, depth=2, dim=64, temperature=1.0).eval().loss(batch)
        assert total.item() / size.item() == pytest.approx(math.log(rows), rel=0.05)


def test_features_have_unit_length_and_padding_does_not_count(shapes):
    net = small(shapes).eval().net
    batch = shapes.datasets["val"].batch(np.arange(12), 0)
    texts = net.texts(batch["captions"], batch["valid"])
    assert_close(texts.norm(dim=-1), torch.ones(12))
    assert_close(net.images(batch["images"]).norm(dim=-1), torch.ones(12))
    short = int(batch["valid"].sum(1).argmin())
    length = int(batch["valid"][short].sum())
    assert length < batch["captions"].size(1)
    alone = net.texts(batch["captions"][short : short + 1, :length])
    assert_close(texts[short : short + 1], alone, atol=1e-6, rtol=0)


def test_cosines_are_sharpened_at_most_a_hundredfold(shapes):
    net = small(shapes, temperature=0.07).net
    assert net.scale(torch.ones(())).item() == pytest.approx(1 / 0.07)
    with torch.no_grad():
        net.scale.weight.fill_(9.0)
    assert net.scale(torch.ones(())).item() == 100


def test_zero_shot_is_the_class_of_the_nearest_caption(shapes):
    task = small(shapes).eval()
    net, batch = task.net, shapes.datasets["test"].batch(np.arange(60), 0)
    texts = [(kind, net.texts(encode([text], 19), encode([text], 19) != 0)[0])
             for kind in range(30) for text in wordings(kind)]  # fmt: skip
    right, lone = 0, 0
    for image, label in zip(batch["images"], batch["labels"].tolist(), strict=True):
        if label >= 0:
            vector = net.images(image[None])[0]
            right, lone = right + (max(texts, key=lambda pair: (vector @ pair[1]).item())[0] == label), lone + 1
    with torch.no_grad():
        task.evaluate(batch)
    assert 0 < lone < 60
    assert task.compute_metrics(0.0)["zero_shot"] == pytest.approx(right / lone)


def test_matching_counts_a_caption_that_reads_the_same(shapes):
    task = small(shapes).eval()
    batch = {name: value[:1].expand(4, *value.shape[1:]) for name, value in
             shapes.datasets["train"].batch(np.arange(1), 0).items()}  # fmt: skip
    task.evaluate(batch)
    assert task.compute_metrics(0.0)["matched"] == 1


def test_it_learns_which_of_eight_captions_is_an_images_own(shapes):
    task = small(shapes).train()
    batch = shapes.datasets["train"].batch(np.arange(8), 0)
    optimiser = torch.optim.AdamW(task.parameters(), lr=3e-3)
    for _ in range(120):
        optimiser.zero_grad()
        total, size = task.loss(batch)
        (total / size).backward()
        optimiser.step()
    task.eval().evaluate(batch)
    assert task.compute_metrics(0.0)["matched"] >= 0.75  # one in eight by chance


def test_a_part_is_swapped_in_both_towers(shapes):
    net = small(shapes, norm=RMSNorm).net
    for tower in (net.image, net.text):
        norms = [module for module in tower.modules() if isinstance(module, Norm)]
        assert norms
        assert all(isinstance(norm, RMSNorm) for norm in norms)
