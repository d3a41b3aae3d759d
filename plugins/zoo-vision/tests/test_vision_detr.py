"""The pairing against all pairings, overlaps worked by hand, precision by its definition, and a net that can find."""

import itertools

import numpy as np
import pytest
import torch
from zoo_vision.boxes import centred, corners, giou, iou
from zoo_vision.detection import Detection
from zoo_vision.detr import BASE, DETR, Anchors, sines
from zoo_vision.precision import AveragePrecision
from zoo_vision.setloss import NOTHING, Predictions, Targets, Weights, costs, match, set_loss

from zoo.errors import UsageError
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE, Sinusoidal

SMALL = {"stride": 4, "queries": 5, "dim": 16, "depth": 2, "heads": 2, "hidden": 24}


def scene(images=3, places=4, classes=6, queries=7, empty=True):
    """Random predictions, and targets of which some images have none and one has all."""
    made = torch.rand(images, places, 4) * 0.3 + 0.2
    labels = torch.randint(classes, (images, places))
    if empty:
        labels[torch.arange(places) >= torch.arange(images)[:, None] * 2] = NOTHING
    found = Predictions(torch.randn(images, queries, classes + 1), torch.rand(images, queries, 4) * 0.5 + 0.2)
    return found, Targets(labels, made)


# boxes


@pytest.mark.parametrize(
    ("one", "two", "share", "general"),
    [
        ((0, 0, 2, 2), (0, 0, 2, 2), 1, 1),
        ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7, 1 / 7 - 2 / 9),  # hull 9, union 7
        ((0, 0, 1, 1), (2, 0, 3, 1), 0, -1 / 3),  # hull 3, union 2
        ((0, 0, 4, 4), (1, 1, 3, 3), 1 / 4, 1 / 4),  # one in the other: the hull is the union
        ((0, 0, 1, 1), (1, 0, 2, 1), 0, 0),  # edge to edge
        ((0, 0, 1, 1), (9, 9, 10, 10), 0, -0.98),  # hull 100, union 2
        ((1, 1, 1, 1), (1, 1, 1, 1), 0, 0),  # no area at all
    ],
)
def test_overlaps_are_those_worked_by_hand(one, two, share, general):
    one, two = torch.tensor(one, dtype=torch.double), torch.tensor(two, dtype=torch.double)
    assert iou(one, two)[0].item() == pytest.approx(share, abs=1e-12)
    assert giou(one, two).item() == pytest.approx(general, abs=1e-12)
    assert giou(two, one).item() == pytest.approx(general, abs=1e-12)


def test_boxes_are_torchvisions_and_come_back():
    from torchvision.ops import box_convert, generalized_box_iou

    boxes = torch.rand(2, 9, 4, dtype=torch.double) + 0.1
    assert torch.allclose(centred(corners(boxes)), boxes)
    assert torch.allclose(corners(boxes), box_convert(boxes, "cxcywh", "xyxy"))
    one, two = corners(boxes)
    assert torch.allclose(giou(one[:, None], two[None]), generalized_box_iou(one, two))


def test_boxes_apart_are_drawn_together_by_the_slope_of_the_overlap():
    box = torch.tensor([0.0, 0, 1, 1], requires_grad=True)
    giou(box, torch.tensor([3.0, 0, 4, 1])).backward()
    assert box.grad[2] > 0  # its right edge should move to the right, where the other one is
    assert torch.equal(iou(box, torch.tensor([3.0, 0, 4, 1]))[0], torch.tensor(0.0))


# pairing


@pytest.mark.parametrize(("queries", "places"), [(1, 1), (4, 3), (6, 4), (3, 5)])
def test_the_pairing_costs_as_little_as_the_best_of_all(queries, places):
    cost = torch.randn(5, queries, places)
    classes = torch.randint(0, 3, (5, places))
    classes[0] = NOTHING
    classes[1, 0] = NOTHING
    pairs = match(cost, classes)
    for number in range(5):
        filled = [place for place in range(places) if classes[number, place] != NOTHING]
        mine = pairs.image == number
        mine = list(zip(pairs.query[mine].tolist(), pairs.target[mine].tolist(), strict=True))
        few = min(queries, len(filled))
        assert len(mine) == len({q for q, _ in mine}) == len({t for _, t in mine}) == few
        assert {t for _, t in mine} <= set(filled)
        best = min(
            sum(cost[number, q, t].item() for q, t in zip(some, chosen, strict=True))
            for chosen in itertools.combinations(filled, few)
            for some in itertools.permutations(range(queries), few)
        )
        assert sum(cost[number, q, t].item() for q, t in mine) == pytest.approx(best)


def test_what_a_pair_costs_is_worked_out_one_by_one():
    found, wanted = scene(empty=False)
    weights = Weights(1.5, 3.0, 2.5)
    table = costs(found, wanted, weights)
    for image, query, place in itertools.product(range(3), range(7), range(4)):
        chance = found.logits[image, query].softmax(-1)[wanted.classes[image, place]]
        one, two = found.boxes[image, query], wanted.boxes[image, place]
        told = -1.5 * chance + 3 * (one - two).abs().sum() - 2.5 * giou(corners(one), corners(two))
        assert table[image, query, place].item() == pytest.approx(told.item(), abs=1e-5)


def test_costs_that_are_not_numbers_are_paired_too():
    cost = torch.tensor([[[float("nan"), 1], [float("inf"), float("-inf")]]])
    assert sorted(match(cost, torch.zeros(1, 2)).query.tolist()) == [0, 1]


# loss


def total(*given):
    return sum(set_loss(*given, Weights()).values())


def test_the_loss_does_not_know_the_order_of_targets_or_of_queries():
    found, wanted = scene()
    once = total(found, wanted)
    places, queries = torch.randperm(4), torch.randperm(7)
    assert torch.allclose(total(found, Targets(*(part[:, places] for part in wanted))), once)
    assert torch.allclose(total(Predictions(*(part[:, queries] for part in found)), wanted), once)
    images = torch.randperm(3)
    shuffled = Targets(*(part[images] for part in wanted))
    assert torch.allclose(total(Predictions(*(part[images] for part in found)), shuffled), once)


def test_the_loss_is_that_of_a_loop_over_pairs():
    found, wanted = scene()
    weights = Weights(1.0, 5.0, 2.0, 0.25)
    pairs = match(costs(found, wanted, weights), wanted.classes)
    label = distance = overlap = 0.0
    for image in range(3):
        of = {q: t for i, q, t in zip(*(part.tolist() for part in pairs), strict=True) if i == image}
        for query in range(7):
            surprise = -found.logits[image, query].log_softmax(-1)
            if query not in of:
                label += 0.25 * surprise[-1]
                continue
            one, two = found.boxes[image, query], wanted.boxes[image, of[query]]
            label += surprise[wanted.classes[image, of[query]]]
            distance += 5 * (one - two).abs().sum()
            overlap += 2 * (1 - giou(corners(one), corners(two)))
    parts = set_loss(found, wanted, weights)
    for name, told in (("label", label), ("distance", distance), ("overlap", overlap)):
        assert torch.allclose(parts[name], torch.as_tensor(told)), name


def test_what_is_right_costs_nothing_and_images_without_objects_are_no_harm():
    _, wanted = scene(empty=False)
    logits = torch.nn.functional.one_hot(wanted.classes, 7) * 50.0
    assert total(Predictions(logits, wanted.boxes), wanted) < 1e-4
    found, _ = scene()
    none = Targets(torch.full((3, 4), NOTHING), torch.zeros(3, 4, 4))
    parts = set_loss(found, none, Weights())
    assert parts["distance"] == parts["overlap"] == 0
    no_places = Targets(torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, 0, 4))
    assert torch.equal(set_loss(found, no_places, Weights())["label"], parts["label"])


# average precision


def slow(images, level, classes):
    """Average precision by its definition: images are lists of (class, probability, IoU with each) and of classes."""
    found = []
    for label in range(classes):
        total = sum(there.count(label) for _, there in images)
        if not total:
            continue
        marks = []
        for said, there in images:
            free = [n for n, one in enumerate(there) if one == label]
            for _, sure, overlap in sorted((one for one in said if one[0] == label), key=lambda one: -one[1]):
                fits = [n for n in free if overlap[n] >= level]
                if fits:
                    free.remove(max(fits, key=lambda n: overlap[n]))
                marks.append((sure, bool(fits)))
        marks.sort(key=lambda mark: -mark[0])
        points = [
            (sum(right for _, right in marks[: n + 1]) / total, sum(right for _, right in marks[: n + 1]) / (n + 1))
            for n in range(len(marks))
        ]
        found.append(
            np.mean([max((p for r, p in points if r >= at - 1e-12), default=0.0) for at in np.linspace(0, 1, 101)])
        )
    return np.mean(found)


def near(images=12, queries=6, places=4, classes=3):
    """Predictions that are mostly near to what there is."""
    _, wanted = scene(images, places, classes, queries, empty=False)
    wanted.classes[torch.rand(images, places) < 0.3] = NOTHING
    boxes = wanted.boxes[:, torch.arange(queries) % places] + torch.randn(images, queries, 4) * 0.02
    labels = wanted.classes.clamp(min=0)[:, torch.arange(queries) % places]
    logits = torch.randn(images, queries, classes + 1)
    logits.scatter_add_(2, labels[..., None], torch.full((images, queries, 1), 1.5))
    return Predictions(logits, boxes.clamp(0.01, 0.99)), wanted


def test_average_precision_is_that_of_its_definition():
    metric, images = AveragePrecision(3), []
    for _ in range(2):
        found, wanted = near()
        metric.update(found, wanted)
        chance, label = found.logits.double().softmax(-1)[..., :-1].max(-1)
        for n in range(len(label)):
            real = (wanted.classes[n] != NOTHING).nonzero()[:, 0]
            one, two = (corners(part.double()) for part in (found.boxes[n], wanted.boxes[n, real]))
            said = zip(label[n].tolist(), chance[n].tolist(), iou(one[:, None], two[None])[0].tolist(), strict=True)
            images.append((list(said), wanted.classes[n, real].tolist()))
    levels = [slow(images, level, 3) for level in np.linspace(0.5, 0.95, 10)]
    figures = metric.compute()
    assert 0.1 < levels[0] < 0.95
    assert figures["ap50"] == pytest.approx(levels[0])
    assert figures["ap75"] == pytest.approx(levels[5])
    assert figures["ap"] == pytest.approx(np.mean(levels))


def test_average_precision_is_that_of_pycocotools():
    api = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    from pycocotools.cocoeval import COCOeval

    found, wanted = near(images=20)
    chance, label = found.logits.double().softmax(-1)[..., :-1].max(-1)
    truth = api.COCO()
    boxes = [torch.cat([(part := corners(side.double()) * 1000)[..., :2], part[..., 2:] - part[..., :2]], -1)
             for side in (wanted.boxes, found.boxes)]  # fmt: skip
    rows = [(n, p) for n in range(20) for p in range(4) if wanted.classes[n, p] != NOTHING]
    truth.dataset = {
        "info": {}, "images": [{"id": n} for n in range(20)], "categories": [{"id": c} for c in range(3)],
        "annotations": [
            {"id": i + 1, "image_id": n, "category_id": int(wanted.classes[n, p]), "bbox": boxes[0][n, p].tolist(),
             "area": float(boxes[0][n, p, 2:].prod()), "iscrowd": 0} for i, (n, p) in enumerate(rows)
        ],
    }  # fmt: skip
    truth.createIndex()
    said = truth.loadRes([
        {"image_id": n, "category_id": int(label[n, q]), "bbox": boxes[1][n, q].tolist(), "score": float(chance[n, q])}
        for n in range(20) for q in range(6)
    ])  # fmt: skip
    judge = COCOeval(truth, said, "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    metric = AveragePrecision(3)
    metric.update(found, wanted)
    assert [metric.compute()[name] for name in ("ap", "ap50", "ap75")] == pytest.approx(judge.stats[:3].tolist())


def test_nothing_found_is_0_and_nothing_there_is_not_a_number():
    metric = AveragePrecision(3)
    metric.nothing()
    assert np.isnan(metric.compute()["ap"])
    found, wanted = near()
    metric.update(Predictions(found.logits, found.boxes * 0), wanted)
    assert metric.compute() == {"ap": 0, "ap50": 0, "ap75": 0}
    metric.reset()
    sure = torch.nn.functional.one_hot(wanted.classes % 4, 4) * 9.0
    metric.update(Predictions(sure, wanted.boxes), wanted)
    assert metric.compute() == {"ap": 1, "ap50": 1, "ap75": 1}


# net and task


def test_every_block_of_the_decoder_predicts_and_the_last_one_is_the_answer():
    net = DETR(6, 16, 3, position=Sinusoidal, **SMALL).eval()
    images = torch.randn(2, 3, 16, 16)
    logits, boxes = net(images)
    assert logits.shape == (2, 2, 5, 7)
    assert boxes.shape == (2, 2, 5, 4)
    assert 0 < boxes.min() < boxes.max() < 1
    net.decoder.blocks[1] = torch.nn.Identity()
    net.decoder.blocks[1].forward = lambda x, context: x  # without the last block, the first one's answer is the last
    assert torch.equal(net(images)[0][1], logits[0])


def test_a_query_gets_its_answer_whatever_the_order_and_cells_have_a_place():
    net = DETR(6, 16, 3, position=Sinusoidal, **SMALL).eval()
    images = torch.randn(1, 3, 16, 16)
    logits = net(images)[0]
    with torch.no_grad():
        net.queries.weight.copy_(net.queries.weight[[4, 2, 0, 1, 3]])
    assert torch.allclose(net(images)[0], logits[:, :, [4, 2, 0, 1, 3]], atol=1e-5)
    assert not torch.allclose(net(images.flip(-1))[1], net(images)[1], atol=1e-4)


def test_cells_have_a_place_for_the_decoder_even_where_the_encoder_gives_them_none():
    net = DETR(6, 16, 3, position=NoPosition, **SMALL).eval()
    net.backbone = torch.nn.Conv2d(3, 16, 4, 4)  # unlike one with padding it does not know where it is
    images = torch.randn(1, 3, 1, 1) * torch.arange(16).view(4, 4).repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert not torch.allclose(net(images.mT)[1], net(images)[1], atol=1e-4)
    net.place = NoPosition(16, 1, Extent((4, 4)))
    assert torch.allclose(net(images.mT)[1], net(images)[1], atol=1e-5)


def test_figures_start_anew():
    task = Detection(6, 16, 3, position=Sinusoidal, **SMALL).eval()
    batch = task.sample(4)
    logits = torch.nn.functional.one_hot(batch["classes"] % 7, 7) * 9.0
    task.precision_of.update(Predictions(logits, batch["boxes"]), Targets(batch["classes"], batch["boxes"]))
    assert task.figures(0.0)["ap"] == 1
    task.precision_of.update(Predictions(logits.roll(1, -1), batch["boxes"]), Targets(batch["classes"], batch["boxes"]))
    assert task.figures(0.0)["ap"] == 0


@pytest.mark.parametrize("position", [Sinusoidal, RoPE, ALiBi])
def test_the_gradient_of_the_loss_reaches_everything(position):
    task = Detection(6, 16, 3, position=position, norm=RMSNorm, **SMALL)
    assert sum(isinstance(module, RMSNorm) for module in task.net.modules()) == 12
    total, size = task.loss(task.sample(4))
    assert size == 4
    total.backward()
    assert not [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]


def test_without_auxiliary_losses_only_the_last_answer_counts():
    batch = Detection(6, 16, 3, position=Sinusoidal, **SMALL).sample(4)
    losses = []
    for auxiliary in (True, False):
        torch.manual_seed(0)
        task = Detection(6, 16, 3, auxiliary=auxiliary, position=Sinusoidal, **SMALL).eval()
        losses.append(task.loss(batch).total)
    assert torch.allclose(losses[1], task.evaluate(batch).total)
    logits, boxes = task.net(batch["images"])
    wanted = Targets(batch["classes"], batch["boxes"])
    every = [total(Predictions(*one), wanted) for one in zip(logits, boxes, strict=True)]
    assert torch.allclose(losses[0], torch.stack(every).mean())


@pytest.mark.usefixtures("double")
def test_anchors_say_what_a_cell_says_in_its_middle_and_what_lies_between_in_between():
    anchors, cells = Anchors(3), torch.randn(2, 16, 8)
    middle = torch.tensor([[0.625, 0.375], [0.75, 0.375], [0.875, 0.375]])  # cells (1, 2) and (1, 3) of 4 x 4
    anchors.weight.data.copy_(middle.logit())
    asked = anchors(cells, 4)
    place = Sinusoidal(8, 1, Extent((4, 4)), base=BASE).embed(torch.zeros(1, 16, 8), torch.arange(16))[0]
    assert torch.allclose(asked[:, 0], cells[:, 6] + place[6])
    assert torch.allclose(asked[:, 2], cells[:, 7] + place[7])
    assert torch.allclose(asked[:, 1] - sines(middle[1], 4, 8), (cells[:, 6] + cells[:, 7]) / 2)


def test_anchors_are_spread_and_boxes_start_there():
    points = Anchors(16).weight.sigmoid()
    apart = torch.cdist(points, points) + torch.eye(16)
    assert 0.1 <= points.min() < 0.2
    assert 0.8 < points.max() <= 0.9
    assert apart.min() > 0.1
    net = DETR(6, 16, 3, anchors=True, position=Sinusoidal, **SMALL)
    net.box[-1].weight.data.zero_()
    assert torch.allclose(net(torch.randn(1, 3, 16, 16))[1][-1, 0, :, :2], net.anchors.weight.sigmoid())


def test_predictions_are_written_down_with_the_surest_first():
    task = Detection(6, 16, 3, position=Sinusoidal, **SMALL).eval()
    batch = task.sample(3)
    rows = task.predict_step(batch, 0)
    assert [len(row["objects"]) for row in rows] == [5, 5, 5]
    sure = [one["probability"] for one in rows[0]["objects"]]
    assert sure == sorted(sure, reverse=True)
    found = task(batch["images"])
    best = found.logits[0].softmax(-1)[:, :-1].max(-1).values.argmax()
    assert rows[0]["objects"][0]["box"] == found.boxes[0, best].tolist()


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UsageError, match="image_size=30 is not divisible by stride=4"):
        DETR(6, 30, 3, **SMALL)
    with pytest.raises(UsageError, match="stride must be a power of two from 2 on, got 6"):
        DETR(6, 30, 3, **SMALL | {"stride": 6})
    with pytest.raises(UsageError, match="queries must be at least 1"):
        DETR(6, 16, 3, **SMALL | {"queries": 0})


def test_a_block_that_hides_its_layers_cannot_be_taught_one_by_one():
    from zoo.parts.block import PreNorm

    class Hidden(PreNorm):
        @classmethod
        def through(cls, blocks, x, contexts):
            return super().through(blocks, x, contexts)

    with pytest.raises(UsageError, match=r"block Hidden shows only its last layer: model\.auxiliary must be false"):
        Detection(6, 16, 3, position=Sinusoidal, block=Hidden, **SMALL)
    Detection(6, 16, 3, auxiliary=False, position=Sinusoidal, block=Hidden, **SMALL)


def test_two_scenes_are_learned_by_heart():
    task = Detection(6, 32, 3, stride=8, queries=6, dim=32, depth=1, heads=4, hidden=64, position=Sinusoidal).train()
    batch = {
        "images": torch.randn(2, 3, 32, 32),
        "classes": torch.tensor([[0, 3, NOTHING], [5, 1, 3]]),
        "boxes": torch.tensor([[[0.3, 0.3, 0.2, 0.4], [0.7, 0.6, 0.3, 0.3], [0, 0, 0, 0]],
                               [[0.2, 0.7, 0.3, 0.3], [0.5, 0.3, 0.5, 0.2], [0.8, 0.8, 0.2, 0.2]]]),
    }  # fmt: skip
    optimizer = torch.optim.AdamW(task.parameters(), lr=3e-3)
    task.evaluate(batch)
    before = task.figures(0.0)["ap75"]
    for _ in range(150):
        optimizer.zero_grad()
        task.loss(batch).total.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
    task.evaluate(batch)
    assert before < 0.2
    assert task.figures(0.0)["ap75"] == 1
    assert isinstance(task.net.encoder.norm, LayerNorm)
