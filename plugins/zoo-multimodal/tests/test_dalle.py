"""DALL-E's codes survive a round trip, images follow texts and never lead them, and the tokenizer stops learning."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from torch.testing import assert_close
from zoo_multimodal.dalle import DALLE
from zoo_multimodal.imagetokens import ImageTokenizer, Quantiser
from zoo_multimodal.shapes import CaptionedShapes

from zoo.errors import UsageError
from zoo.models.generation import GenerationConfig

SMALL = {"dim": 32, "depth": 1, "heads": 4, "width": 8}


def small(data, **options):
    return DALLE(**data.sizes(), **SMALL | options)


def spread(tokenizer):
    """Untrained it gives every patch the middle code: here its last numbers are twenty times as large."""
    with torch.no_grad():
        tokenizer.encoder[-1].weight.mul_(20)
    return tokenizer


def test_every_code_is_its_own_point_and_comes_back():
    quantiser = Quantiser((3, 5, 7))
    codes = torch.arange(105)
    values = quantiser.values(codes)
    assert torch.equal(quantiser.number(values), codes)
    assert len(torch.unique(values, dim=0)) == 105
    assert values.abs().max() == 1
    levels = [sorted(set(column.tolist())) for column in values.T]
    assert levels == [pytest.approx([2 * i / (level - 1) - 1 for i in range(level)], abs=1e-6) for level in (3, 5, 7)]


def test_numbers_go_to_the_nearest_level_and_gradients_pass():
    quantiser = Quantiser((3, 5, 7))
    x = (2 * torch.randn(40, 3)).requires_grad_()
    rounded = quantiser(x)
    for row, nearest in zip(x.tolist(), rounded.tolist(), strict=True):
        for number, level, value in zip(row, (3, 5, 7), nearest, strict=True):
            places = [2 * i / (level - 1) - 1 for i in range(level)]
            assert value == pytest.approx(min(places, key=lambda place: abs(place - math.tanh(number))), abs=1e-6)
    rounded.sum().backward()
    assert_close(x.grad, 1 - x.detach().tanh().square())


@pytest.mark.parametrize("levels", [(), (4, 5), (1, 3)])
def test_levels_without_a_middle_are_refused(levels):
    with pytest.raises(UsageError, match="odd numbers"):
        Quantiser(levels)


def test_images_that_codes_cannot_tile_are_refused():
    with pytest.raises(UsageError, match="image_size=30 is not divisible by stride=4"):
        ImageTokenizer(30)
    with pytest.raises(UsageError, match="2, 4, 8, …, got 6"):
        ImageTokenizer(30, stride=6)


def test_an_image_is_worth_its_codes(shapes):
    """Decoding codes gives what a round trip gives, and its rounded numbers are those of its codes, to the last bit."""
    tokenizer = spread(small(shapes).eval().net.tokenizer)
    images = shapes.datasets["val"].batch(np.arange(6), 0)["images"]
    codes = tokenizer.encode(images)
    assert codes.shape == (6, 64)
    assert codes.min() >= 0
    assert codes.max() < tokenizer.count == 125
    assert len(codes.unique()) > 5
    assert torch.equal(tokenizer.quantiser.values(codes), tokenizer.rounded(images).flatten(1, 2))
    assert_close(tokenizer.decode(codes), tokenizer(images), atol=1e-5, rtol=0)


def test_the_tokenizer_learns_to_give_images_back(shapes):
    """The error falls below half of what the best grey square leaves."""
    tokenizer = ImageTokenizer(32, width=16)
    images = shapes.datasets["train"].batch(np.arange(16), 0)["images"]
    optimiser = torch.optim.AdamW(tokenizer.parameters(), lr=5e-3)
    for _ in range(120):
        optimiser.zero_grad()
        error = (tokenizer(images) - images).square().mean()
        error.backward()
        optimiser.step()
    assert error < images.var() / 2
    assert len(tokenizer.encode(images).unique()) > 10


def test_untrained_it_guesses_among_words_and_among_codes(shapes):
    """ln of how many there are; the images' own codes are all one when nothing has learned, so these are drawn."""
    net = small(shapes).eval().net
    captions, codes = shapes.datasets["val"].captions[:16], torch.randint(125, (16, 64))
    words, painted = net.read(captions, codes)
    real = captions[:, 1:] > 0
    assert F.cross_entropy(words[real], captions[:, 1:][real]).item() == pytest.approx(math.log(net.words), rel=0.1)
    assert F.cross_entropy(painted.flatten(0, 1), codes.flatten()).item() == pytest.approx(math.log(125), rel=0.1)


def test_the_loss_is_that_of_each_next_word_and_code(shapes):
    """One token at a time, by softmax over words alone or codes alone."""
    task = small(shapes).eval()
    batch = shapes.datasets["val"].batch(np.arange(2), 0)
    words, codes, size = task._token_losses(batch)
    net = task.net
    images = net.tokenizer.encode(batch["images"])
    expected = []
    for caption, painted in zip(batch["captions"].tolist(), images.tolist(), strict=True):
        row = caption + [code + net.words for code in painted]
        logits = net.language(torch.tensor([row]))[0]
        for place in range(1, len(row)):
            if place < len(caption) and caption[place] == 0:
                continue
            inside = slice(0, net.words) if place < len(caption) else slice(net.words, None)
            target = row[place] if place < len(caption) else row[place] - net.words
            expected.append(-logits[place - 1, inside].log_softmax(-1)[target])
    assert int(size) == len(expected)
    assert_close(words.sum() + codes.sum(), torch.stack(expected).sum(), atol=1e-3, rtol=1e-5)


def test_images_follow_texts_and_texts_never_images(shapes):
    net = small(shapes, depth=2).eval().net
    batch = shapes.datasets["val"].batch(np.arange(3), 0)
    captions, codes = batch["captions"], torch.randint(125, (3, 64))
    words, painted = net.read(captions, codes)
    other = codes.clone()
    other[:, 20] = (other[:, 20] + 1) % 125
    words_after, painted_after = net.read(captions, other)
    assert torch.equal(words, words_after)
    assert_close(painted[:, :21], painted_after[:, :21], atol=0, rtol=0)
    assert (painted[:, 21:] != painted_after[:, 21:]).any(-1).all()
    changed = captions.clone()
    changed[:, 3] = changed[:, 3] % 20 + 4
    assert (net.read(changed, codes)[1] != painted).any(-1).all()


def test_painting_with_a_cache_is_painting_without(shapes):
    net = small(shapes, depth=2).eval().net
    captions = shapes.datasets["val"].captions[:3]
    codes = torch.zeros(3, 0, dtype=torch.long)
    for _ in range(64):
        logits = net.language(torch.cat([captions, codes + net.words], 1))[:, -1, net.words :]
        codes = torch.cat([codes, logits.argmax(-1, keepdim=True)], 1)
    painted = net.paint(captions, GenerationConfig(max_length=64, min_length=64))
    assert_close(painted, net.tokenizer.decode(codes))
    with pytest.raises(UsageError, match="19 tokens"):
        net.paint(captions[:, :9], GenerationConfig(max_length=64))


class Diary(Callback):
    def __init__(self):
        self.states, self.without_gradient = [], set()

    def on_after_backward(self, trainer, pl_module):
        self.without_gradient |= {name for name, value in pl_module.named_parameters() if value.grad is None}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.states.append({name: value.clone() for name, value in pl_module.net.state_dict().items()})


def test_the_tokenizer_stops_learning_and_codes_keep_their_meaning(tmp_path):
    data = CaptionedShapes(objects=1, size=40, batch_size=8, seed=1)
    task, diary = small(data, tokenizer_steps=2), Diary()
    Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[diary], limit_val_batches=0, use_distributed_sampler=False,
        default_root_dir=tmp_path,
    ).fit(task, data)  # fmt: skip
    assert not diary.without_gradient  # else DistributedDataParallel ends the run
    first, second, _, last = diary.states
    mine = [name for name in first if name.startswith("tokenizer.")]
    assert any(not torch.equal(first[name], second[name]) for name in mine)
    assert all(torch.equal(second[name], last[name]) for name in mine)
    assert not torch.equal(second["language.embedding.weight"], last["language.embedding.weight"])
