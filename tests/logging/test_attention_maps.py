"""Attention in TensorBoard: of every task, on any backend, without an effect on the run."""

import io
import time

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.testing import assert_close

from zoo.data.glyphs import Glyphs
from zoo.data.phrasebook import Phrasebook
from zoo.data.text import TextFiles
from zoo.errors import PluginError
from zoo.logging.attention_maps import (
    Heatmaps,
    align_tokens,
    attention_grid,
    evaluation,
    labels,
    most_telling,
    patch_attention,
    pictures,
    spaced_samples,
    summary,
)
from zoo.logging.attention_maps import translation_alignment as align
from zoo.logging.tensorboard import RunLogger
from zoo.models import Seq2Seq, ViT
from zoo.models.attention_weights import record_weights
from zoo.parts.attention import Additive
from zoo.parts.backend import Flash
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.schedule import Constant
from zoo.tasks.task import Task
from zoo.tasks.translation import Translation
from zoo.training.setup import make_logger_and_callbacks

TINY = {"dim": 16, "depth": 2, "heads": 2, "dropout": 0.1}


def lm(folder, **options):
    path = folder / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    data = TextFiles(str(path), max_length=24, batch_size=4)
    return CausalLM(**data.sizes(), max_length=24, **TINY | options), data


def translation(folder, **options):
    data = Phrasebook(size=300, kinds=["date", "unit"], vocab_size=400, max_tokens=256, max_length=64, eval_limit=2)
    return Translation(**data.sizes(), max_length=64, **TINY | options), data


def classification(folder, **options):
    data = Glyphs(size=200, batch_size=20)
    return Classification(**data.sizes(), patch_size=7, **TINY | options), data


def run(build, folder, heatmaps=True, steps=2, **options):
    """Train for some steps; the task, and the losses of its events."""
    seed_everything(3, verbose=False)
    task, data = build(folder, **options)
    trainer = Trainer(
        max_steps=steps, accelerator="cpu", logger=RunLogger(folder / "run", "r/v", {}), val_check_interval=1,
        check_val_every_n_epoch=None, callbacks=[Heatmaps()] if heatmaps else [], limit_val_batches=1,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1,
        use_distributed_sampler=False, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(task, data)
    return task


def events(folder):
    result = EventAccumulator(str(folder / "run"), size_guidance={"images": 0})
    result.Reload()
    return result


@pytest.mark.parametrize(
    ("build", "options", "tags"),
    [
        (translation, {}, ["alignment 1", "alignment 2", "alignment 3"]),
        (lm, {"backend": Flash}, ["heads"]),
        (lm, {"attention": Additive, "position": None}, ["heads"]),
        (classification, {"pool": "mean", "backend": Flash}, ["patches"]),
        (classification, {"pool": "cls"}, ["patches"]),
    ],
)
def test_every_task_draws_the_same_samples_after_each_validation(tmp_path, build, options, tags):
    if options.get("position", 0) is None:
        from zoo.parts.position import NoPosition

        options = {**options, "position": NoPosition}
    run(build, tmp_path, **options)
    result = events(tmp_path)
    assert sorted(result.Tags()["images"]) == [f"attention/{tag}" for tag in tags]
    for tag in tags:
        images = result.Images(f"attention/{tag}")
        assert [event.step for event in images] == [1, 2]
        first, last = (np.asarray(Image.open(io.BytesIO(event.encoded_image_string))) for event in images)
        assert first.shape[2] == 3
        assert min(first.shape[:2]) > 200
        assert first.shape != last.shape or (first != last).any()  # the weights have moved
        assert max(len(event.encoded_image_string) for event in images) < 400_000


@pytest.mark.parametrize("build", [translation, lm, classification])
def test_pictures_have_no_effect_on_the_run(tmp_path, build):
    result = []
    for heatmaps in (True, False):
        folder = tmp_path / str(heatmaps)
        folder.mkdir()
        task = run(build, folder, heatmaps)
        scalars = events(folder)
        losses = [(event.step, event.value) for name in ("train/loss", "val/loss") for event in scalars.Scalars(name)]
        result.append((losses, torch.get_rng_state(), [p.detach() for p in task.parameters()]))
    (mine, chance, weights), (without_pictures, chance_before, weights_before) = result
    assert mine == without_pictures
    assert torch.equal(chance, chance_before)
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_before, strict=True))


def test_a_run_is_equipped_with_heat_maps(tmp_path):
    task, _ = lm(tmp_path)
    callbacks = make_logger_and_callbacks(task, None, tmp_path / "r" / "v" / "s1", {})["callbacks"]
    assert [type(one) for one in callbacks].count(Heatmaps) == 1


@pytest.mark.filterwarnings("ignore:attention is not drawn")
def test_a_picture_that_fails_does_not_stop_the_run_and_is_not_tried_again(tmp_path, monkeypatch):
    tries = []

    class Odd(CausalLM):
        pictures = f"{__name__}:refuse"

    def refuse(task, data):
        tries.append(task)
        raise ValueError("no picture")

    monkeypatch.setitem(globals(), "refuse", refuse)

    def build(folder):
        data = lm(folder)[1]
        return Odd(**data.sizes(), max_length=24, **TINY), data

    with pytest.warns(UserWarning, match="attention is not drawn in this run: ValueError: no picture"):
        run(build, tmp_path)
    assert len(tries) == 1


def mine(task, data):
    return {"mine": data}


def test_a_task_of_its_own_has_no_picture_until_it_names_a_function():
    class Mine(Task):
        loss = evaluate = example = None

    task = Mine(nn.Linear(2, 2), 1e-3, torch.optim.AdamW, Constant)
    assert pictures(task, None) == {}
    Mine.pictures = f"{__name__}:mine"
    assert pictures(task, 3) == {"mine": 3}
    for target in ("mine", f"{__name__}:nothing", "no_such_package:mine"):
        Mine.pictures = target
        with pytest.raises(PluginError, match="pictures of Mine"):
            pictures(task, 3)


def test_a_name_with_a_slash_is_the_whole_tag():
    result = summary({"heads": Image.new("RGB", (3, 2)), "detection/boxes": Image.new("RGB", (5, 4))})
    assert [value.tag for value in result.value] == ["attention/heads", "detection/boxes"]
    assert (result.value[1].image.width, result.value[1].image.height) == (5, 4)


def trainer_like(**changes):
    """What the callback asks of a trainer."""
    base = {"loggers": [], "is_global_zero": True, "sanity_checking": False, "datamodule": None, "strategy": None}
    return type("T", (), base | changes)()


def test_nothing_is_drawn_by_other_processes_in_sanity_checks_or_where_a_process_holds_a_part_of_the_weights(
    tmp_path, monkeypatch
):
    task, data = lm(tmp_path)

    monkeypatch.setattr(CausalLM, "pictures", f"{__name__}:nowhere")

    class Sharded(DDPStrategy):  # as DeepSpeed's is
        pass

    logger = RunLogger(tmp_path, "r/v", {})
    good = {"loggers": [logger], "datamodule": data, "strategy": DDPStrategy()}
    for change in ({"is_global_zero": False}, {"sanity_checking": True}, {"strategy": Sharded()}, {"loggers": []}):
        Heatmaps().on_validation_end(trainer_like(**good | change), task)
    with pytest.warns(UserWarning, match="AttributeError|PluginError"):
        Heatmaps().on_validation_end(trainer_like(**good), task)


def test_alignment_is_the_last_cross_attention_whatever_the_padding():
    net = Seq2Seq(19, 19, 16, **TINY)
    source, target = torch.randint(19, (2, 6)), torch.randint(19, (2, 4))
    valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    weights = align(net, source, valid, target)
    assert net.training
    assert not weights.requires_grad
    assert_close(weights.sum(-1), torch.ones(2, 4))
    assert (weights[1, :, 4:] == 0).all()
    with evaluation(net), record_weights(net) as recorded:
        net(source, target, valid)
    assert torch.equal(weights, recorded["decoder.blocks.1.cross.part"].mean(1))
    assert_close(align(net, source[1:, :4], None, target[1:]), weights[1:, :, :4], atol=1e-5, rtol=0)


def test_one_sentence_and_its_translation_make_a_picture(tmp_path):
    task, data = translation(tmp_path)
    coder = data.target_tokenizer
    ids = torch.tensor([*coder.encode("3 kg"), coder.eos]), torch.tensor([coder.bos, *coder.encode("3 kg"), coder.eos])
    picture = align_tokens(task.net, ids, (data.source_tokenizer, coder))
    assert picture.width > 200


def test_alignment_of_a_decoder_without_attention_is_none():
    net = nn.Module()
    net.decoder = nn.Linear(1, 1)
    net.forward = lambda *args: None
    assert align(net, *[torch.ones(1, 2)] * 3) is None
    assert align_tokens(net, (torch.ones(2), torch.ones(2)), (None, None)) is None


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_patches_are_what_the_classifier_reads_looks_at(pool):
    net = ViT(5, 12, channels=1, patch_size=4, pool=pool, **TINY).eval()
    images = torch.randn(2, 1, 12, 12)
    maps, label = patch_attention(net, images)
    with torch.no_grad(), record_weights(net) as weights:
        assert torch.equal(label, net(images).argmax(-1))
    last = list(weights.values())[-1]
    expected = last[:, :, 0, 1:] if pool == "cls" else last.mean(2)
    assert_close(maps, expected.unflatten(-1, (3, 3)))


def test_a_large_model_shows_some_layers_and_heads():
    from zoo.models import LanguageModel

    net = LanguageModel(19, 16, dim=24, depth=9, heads=12)
    grid = attention_grid(net, torch.zeros(2, 5, dtype=torch.long))
    assert list(grid) == [f"layer {n}" for n in (1, 3, 4, 6, 7, 9)]
    assert {weights.shape for weights in grid.values()} == {(8, 5, 5)}
    assert spaced_samples(3, 8) == [0, 1, 2]
    assert spaced_samples(0, 8) == []


def test_evaluation_restores_modes_and_chance():
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    net[1].eval()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with evaluation(net):
        assert not any(part.training for part in net.modules())
        torch.rand(3)
        assert not torch.is_grad_enabled()
    assert [part.training for part in net.modules()] == [True, True, False]
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_with_a_known_alignment_come_first_and_kinds_in_turn():
    assert most_telling([False, True, True, True], ["a", "b", "b", "c"]) == [1, 3, 2, 0]


def test_labels_are_single_tokens_with_spaces_shown(tmp_path):
    _, data = translation(tmp_path)
    ids = [data.target_tokenizer.bos, *data.target_tokenizer.encode("3. Mai"), data.target_tokenizer.eos]
    result = labels(data.target_tokenizer, torch.tensor(ids))
    assert result[0] == "<bos>"
    assert result[-1] == "<eos>"
    assert "".join(result[1:-1]) == "3._Mai"


@pytest.mark.parametrize("build", [translation, lm, classification])
def test_drawing_is_cheap(tmp_path, build):
    torch.manual_seed(0)
    task, data = build(tmp_path)
    task.eval()
    pictures(task, data)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        pictures(task, data)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0
