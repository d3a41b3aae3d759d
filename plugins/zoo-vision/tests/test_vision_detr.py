"""A net that answers every query from every block, knows places, and can learn."""

import pytest
import torch
from zoo_vision.detection import Detection
from zoo_vision.detr import BASE, DETR, Anchors, sines
from zoo_vision.setloss import NOTHING, Predictions, Targets, Weights, set_loss
from zoo_vision.swin import Swin

from zoo.errors import UsageError
from zoo.models.parameter_roles import parameter_roles
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE, Sinusoidal

SMALL = {"stride": 4, "queries": 5, "dim": 16, "depth": 2, "heads": 2, "hidden": 24}


def test_every_block_of_the_decoder_predicts_and_the_last_one_is_the_answer():
    net = DETR(6, 16, 3, position=Sinusoidal, **SMALL).eval()
    images = torch.randn(2, 3, 16, 16)
    logits, boxes = net(images)
    assert logits.shape == (2, 2, 5, 7)
    assert boxes.shape == (2, 2, 5, 4)
    assert 0 < boxes.min() < boxes.max() < 1
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
    assert task.compute_metrics(0.0)["ap"] == 1
    task.precision_of.update(Predictions(logits.roll(1, -1), batch["boxes"]), Targets(batch["classes"], batch["boxes"]))
    assert task.compute_metrics(0.0)["ap"] == 0


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
    targets = Targets(batch["classes"], batch["boxes"])
    every = [sum(set_loss(Predictions(*one), targets, Weights()).values()) for one in zip(logits, boxes, strict=True)]
    assert torch.allclose(losses[0], torch.stack(every).mean())


@pytest.mark.usefixtures("double")
def test_anchors_say_what_a_cell_says_in_its_middle_and_what_lies_between_in_between():
    anchors, cells = Anchors(3), torch.randn(2, 16, 8)
    middle = torch.tensor([[0.625, 0.375], [0.75, 0.375], [0.875, 0.375]])  # cells (1, 2) and (1, 3) of 4 x 4
    anchors.weight.data.copy_(middle.logit())
    queries = anchors(cells, 4)
    place = Sinusoidal(8, 1, Extent((4, 4)), base=BASE).embed(torch.zeros(1, 16, 8), torch.arange(16))[0]
    assert torch.allclose(queries[:, 0], cells[:, 6] + place[6])
    assert torch.allclose(queries[:, 2], cells[:, 7] + place[7])
    assert torch.allclose(queries[:, 1] - sines(middle[1], 4, 8), (cells[:, 6] + cells[:, 7]) / 2)


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
    predictions = task(batch["images"])
    best = predictions.logits[0].softmax(-1)[:, :-1].max(-1).values.argmax()
    assert rows[0]["objects"][0]["box"] == predictions.boxes[0, best].tolist()


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


def test_a_block_of_several_streams_gives_its_last_layer():
    """Each layer gives all streams, and the stack their mean."""
    blocks = pytest.importorskip("zoo_frontier.block", reason="has a block of several residual streams")
    options = {"position": Sinusoidal, "block": blocks.HyperConnections, **SMALL}
    with pytest.raises(UsageError, match=r"model\.auxiliary must be false"):
        Detection(6, 16, 3, **options)
    task = Detection(6, 16, 3, auxiliary=False, **options)
    logits, _ = task.net(task.sample(4)["images"])
    assert len(logits) == 1
    task.loss(task.sample(4)).total.backward()


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
    before = task.compute_metrics(0.0)["ap75"]
    for _ in range(150):
        optimizer.zero_grad()
        task.loss(batch).total.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
    task.evaluate(batch)
    assert before < 0.2
    assert task.compute_metrics(0.0)["ap75"] == 1
    assert isinstance(task.net.encoder.norm, LayerNorm)


def test_only_what_maps_features_to_features_is_a_matrix_to_optimizers():
    roles = parameter_roles(DETR(6, 16, 3, anchors=True, **SMALL))
    assert [roles[f"{name}.weight"] for name in ("queries", "anchors", "label")] == ["embedding", "vector", "head"]
    for net in (DETR(6, 16, 3, anchors=True, **SMALL), Swin(5, 32, 3, 4, 4, 16, (2, 2), (2, 4))):
        for name, role in parameter_roles(net).items():
            owner = net.get_submodule(name.rpartition(".")[0])
            assert role != "matrix" or isinstance(owner, torch.nn.Linear), name


@pytest.mark.parametrize("anchors", [True, False])
def test_torch_export_takes_any_number_of_images(anchors):
    net = DETR(6, 16, 3, anchors=anchors, **SMALL).eval()
    program = torch.export.export(net, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = torch.randn(5, 3, 16, 16)
    for ours, right in zip(program.module()(images), net(images), strict=True):
        assert torch.allclose(ours, right, atol=1e-5)
