"""The pairing against all pairings, overlaps worked by hand, the loss by a loop, precision by its definition."""

import itertools

import numpy as np
import pytest
import torch
from zoo_vision.boxes import centred, corners, giou, iou
from zoo_vision.precision import AveragePrecision
from zoo_vision.setloss import NOTHING, Predictions, Targets, Weights, costs, match, set_loss


def scene(images=3, places=4, classes=6, queries=7, empty=True):
    """Random predictions, and targets of which some images have none and one has all."""
    boxes = torch.rand(images, places, 4) * 0.3 + 0.2
    labels = torch.randint(classes, (images, places))
    if empty:
        labels[torch.arange(places) >= torch.arange(images)[:, None] * 2] = NOTHING
    predictions = Predictions(torch.randn(images, queries, classes + 1), torch.rand(images, queries, 4) * 0.5 + 0.2)
    return predictions, Targets(labels, boxes)


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
            sum(cost[number, q, t].item() for q, t in zip(some, targets, strict=True))
            for targets in itertools.combinations(filled, few)
            for some in itertools.permutations(range(queries), few)
        )
        assert sum(cost[number, q, t].item() for q, t in mine) == pytest.approx(best)


def test_what_a_pair_costs_is_worked_out_one_by_one():
    predictions, targets = scene(empty=False)
    weights = Weights(1.5, 3.0, 2.5)
    table = costs(predictions, targets, weights)
    for image, query, place in itertools.product(range(3), range(7), range(4)):
        chance = predictions.logits[image, query].softmax(-1)[targets.classes[image, place]]
        one, two = predictions.boxes[image, query], targets.boxes[image, place]
        expected = -1.5 * chance + 3 * (one - two).abs().sum() - 2.5 * giou(corners(one), corners(two))
        assert table[image, query, place].item() == pytest.approx(expected.item(), abs=1e-5)


def test_costs_that_are_not_numbers_are_paired_too():
    cost = torch.tensor([[[float("nan"), 1], [float("inf"), float("-inf")]]])
    assert sorted(match(cost, torch.zeros(1, 2)).query.tolist()) == [0, 1]


# loss


def total(*args):
    return sum(set_loss(*args, Weights()).values())


def test_the_loss_does_not_know_the_order_of_targets_or_of_queries():
    predictions, targets = scene()
    once = total(predictions, targets)
    places, queries = torch.randperm(4), torch.randperm(7)
    assert torch.allclose(total(predictions, Targets(*(part[:, places] for part in targets))), once)
    assert torch.allclose(total(Predictions(*(part[:, queries] for part in predictions)), targets), once)
    images = torch.randperm(3)
    shuffled = Targets(*(part[images] for part in targets))
    assert torch.allclose(total(Predictions(*(part[images] for part in predictions)), shuffled), once)


def test_the_loss_is_that_of_a_loop_over_pairs():
    predictions, targets = scene()
    weights = Weights(1.0, 5.0, 2.0, 0.25)
    pairs = match(costs(predictions, targets, weights), targets.classes)
    label = distance = overlap = 0.0
    for image in range(3):
        of = {q: t for i, q, t in zip(*(part.tolist() for part in pairs), strict=True) if i == image}
        for query in range(7):
            surprise = -predictions.logits[image, query].log_softmax(-1)
            if query not in of:
                label += 0.25 * surprise[-1]
                continue
            one, two = predictions.boxes[image, query], targets.boxes[image, of[query]]
            label += surprise[targets.classes[image, of[query]]]
            distance += 5 * (one - two).abs().sum()
            overlap += 2 * (1 - giou(corners(one), corners(two)))
    parts = set_loss(predictions, targets, weights)
    for name, expected in (("label", label), ("distance", distance), ("overlap", overlap)):
        assert torch.allclose(parts[name], torch.as_tensor(expected)), name


def test_what_is_right_costs_nothing_and_images_without_objects_are_no_harm():
    _, targets = scene(empty=False)
    logits = torch.nn.functional.one_hot(targets.classes, 7) * 50.0
    assert total(Predictions(logits, targets.boxes), targets) < 1e-4
    predictions, _ = scene()
    none = Targets(torch.full((3, 4), NOTHING), torch.zeros(3, 4, 4))
    parts = set_loss(predictions, none, Weights())
    assert parts["distance"] == parts["overlap"] == 0
    no_places = Targets(torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, 0, 4))
    assert torch.equal(set_loss(predictions, no_places, Weights())["label"], parts["label"])


# average precision


def slow(images, level, classes):
    """Average precision by its definition: images are lists of (class, probability, IoU with each) and of classes."""
    hits = []
    for label in range(classes):
        total = sum(there.count(label) for _, there in images)
        if not total:
            continue
        marks = []
        for predicted, there in images:
            free = [n for n, one in enumerate(there) if one == label]
            for _, sure, overlap in sorted((one for one in predicted if one[0] == label), key=lambda one: -one[1]):
                fits = [n for n in free if overlap[n] >= level]
                if fits:
                    free.remove(max(fits, key=lambda n: overlap[n]))
                marks.append((sure, bool(fits)))
        marks.sort(key=lambda mark: -mark[0])
        points = [
            (sum(right for _, right in marks[: n + 1]) / total, sum(right for _, right in marks[: n + 1]) / (n + 1))
            for n in range(len(marks))
        ]
        hits.append(
            np.mean([max((p for r, p in points if r >= at - 1e-12), default=0.0) for at in np.linspace(0, 1, 101)])
        )
    return np.mean(hits)


def near(images=12, queries=6, places=4, classes=3):
    """Predictions that are mostly near to what there is."""
    _, targets = scene(images, places, classes, queries, empty=False)
    targets.classes[torch.rand(images, places) < 0.3] = NOTHING
    boxes = targets.boxes[:, torch.arange(queries) % places] + torch.randn(images, queries, 4) * 0.02
    labels = targets.classes.clamp(min=0)[:, torch.arange(queries) % places]
    logits = torch.randn(images, queries, classes + 1)
    logits.scatter_add_(2, labels[..., None], torch.full((images, queries, 1), 1.5))
    return Predictions(logits, boxes.clamp(0.01, 0.99)), targets


def test_average_precision_is_that_of_its_definition():
    metric, images = AveragePrecision(3), []
    for _ in range(2):
        predictions, targets = near()
        metric.update(predictions, targets)
        chance, label = predictions.logits.double().softmax(-1)[..., :-1].max(-1)
        for n in range(len(label)):
            real = (targets.classes[n] != NOTHING).nonzero()[:, 0]
            one, two = (corners(part.double()) for part in (predictions.boxes[n], targets.boxes[n, real]))
            rows = zip(label[n].tolist(), chance[n].tolist(), iou(one[:, None], two[None])[0].tolist(), strict=True)
            images.append((list(rows), targets.classes[n, real].tolist()))
    levels = [slow(images, level, 3) for level in np.linspace(0.5, 0.95, 10)]
    figures = metric.compute()
    assert 0.1 < levels[0] < 0.95
    assert figures["ap50"] == pytest.approx(levels[0])
    assert figures["ap75"] == pytest.approx(levels[5])
    assert figures["ap"] == pytest.approx(np.mean(levels))


def test_average_precision_is_that_of_pycocotools():
    api = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    from pycocotools.cocoeval import COCOeval

    predictions, targets = near(images=20)
    chance, label = predictions.logits.double().softmax(-1)[..., :-1].max(-1)
    truth = api.COCO()
    boxes = [torch.cat([(part := corners(side.double()) * 1000)[..., :2], part[..., 2:] - part[..., :2]], -1)
             for side in (targets.boxes, predictions.boxes)]  # fmt: skip
    rows = [(n, p) for n in range(20) for p in range(4) if targets.classes[n, p] != NOTHING]
    truth.dataset = {
        "info": {}, "images": [{"id": n} for n in range(20)], "categories": [{"id": c} for c in range(3)],
        "annotations": [
            {"id": i + 1, "image_id": n, "category_id": int(targets.classes[n, p]), "bbox": boxes[0][n, p].tolist(),
             "area": float(boxes[0][n, p, 2:].prod()), "iscrowd": 0} for i, (n, p) in enumerate(rows)
        ],
    }  # fmt: skip
    truth.createIndex()
    detections = truth.loadRes([
        {"image_id": n, "category_id": int(label[n, q]), "bbox": boxes[1][n, q].tolist(), "score": float(chance[n, q])}
        for n in range(20) for q in range(6)
    ])  # fmt: skip
    judge = COCOeval(truth, detections, "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    metric = AveragePrecision(3)
    metric.update(predictions, targets)
    assert [metric.compute()[name] for name in ("ap", "ap50", "ap75")] == pytest.approx(judge.stats[:3].tolist())


def test_nothing_found_is_0_and_nothing_there_is_not_a_number():
    metric = AveragePrecision(3)
    metric.nothing()
    assert np.isnan(metric.compute()["ap"])
    predictions, targets = near()
    metric.update(Predictions(predictions.logits, predictions.boxes * 0), targets)
    assert metric.compute() == {"ap": 0, "ap50": 0, "ap75": 0}
    metric.reset()
    sure = torch.nn.functional.one_hot(targets.classes % 4, 4) * 9.0
    metric.update(Predictions(sure, targets.boxes), targets)
    assert metric.compute() == {"ap": 1, "ap50": 1, "ap75": 1}
