"""Closed gates leave the language model as it is, what is frozen stays so, and captions are written about images."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch.testing import assert_close
from zoo_multimodal.captions import BEGIN, END
from zoo_multimodal.clip import CLIP
from zoo_multimodal.flamingo import Flamingo
from zoo_multimodal.gated import Seeing, looks, open_eyes

from zoo.data.cache import write_json
from zoo.errors import CheckpointError, UsageError
from zoo.inference import weight_files
from zoo.models.generation import GenerationConfig
from zoo.parts.block import PreNorm
from zoo.parts.norm import Norm, RMSNorm
from zoo.tasks.lm import CausalLM

SMALL = {"dim": 32, "depth": 2, "heads": 4}


def small(data, **options):
    return Flamingo(**data.sizes(), **SMALL | {"latents": 3} | options)


def saved(task, folder):
    """A folder with the weights of a task, as an export has them."""
    folder.mkdir()
    weight_files.write_weights(task, folder / "model.safetensors")
    write_json(folder / "config.json", {"model": {"class_path": type(task).__name__, "init_args": {}}})
    return str(folder)


@pytest.fixture
def runs(shapes, tmp_path):
    """A language model and a CLIP to begin with, their weights, and the folders they lie in."""
    sizes = shapes.sizes()
    torch.manual_seed(5)
    words = CausalLM(vocab_size=sizes["vocab_size"], max_length=sizes["max_length"], **SMALL)
    eyes = CLIP(**sizes, **SMALL)
    return SimpleNamespace(
        words=words, eyes=eyes, language=saved(words, tmp_path / "words"), vision=saved(eyes, tmp_path / "eyes")
    )


def batch_of(data, rows=6):
    return data.datasets["val"].batch(np.arange(rows), 0)


def open_gates(net, value=0.5):
    with torch.no_grad():
        for look in looks(net.language.stack):
            look.attention_gate.weight.fill_(value)
            look.ffn_gate.weight.fill_(value)


def test_closed_gates_leave_the_language_model_as_it_is(shapes, runs):
    """To the last bit, whatever the image is."""
    task = small(shapes, language=runs.language, vision=runs.vision).eval()
    task.setup("fit")
    batch = batch_of(shapes)
    alone = runs.words.eval().net(batch["inputs"])
    assert torch.equal(task.net(batch["images"], batch["inputs"]), alone)
    assert torch.equal(task.net.decode(batch["inputs"], None), alone)
    open_gates(task.net)
    logits = task.net(batch["images"], batch["inputs"])
    assert not torch.allclose(logits, alone, atol=1e-3)
    assert not torch.allclose(logits, task.net(batch["images"].flip(0), batch["inputs"]), atol=1e-4)


def test_a_gate_is_its_formula(shapes):
    net = small(shapes).eval().net
    open_gates(net, 0.3)
    look = next(looks(net.language.stack))
    x, memory = torch.randn(2, 5, 32), net.see(torch.randn(2, 3, 32, 32))
    from zoo.parts.block import Context
    from zoo.parts.pattern import Pattern

    result = look(x, Context(Pattern(causal=True), memory=memory))
    y = x + np.tanh(0.3) * look.attention(look.attention_norm(x), memory.states, pattern=Pattern())
    assert_close(result, y + np.tanh(0.3) * look.ffn(look.ffn_norm(y)))


def test_what_is_frozen_is_bit_identical_after_training_and_the_rest_moves(shapes, runs, tmp_path):
    task = small(shapes, language=runs.language, vision=runs.vision, dropout=0.1, lr=1e-2)
    Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0, use_distributed_sampler=False, default_root_dir=tmp_path,
    ).fit(task, shapes)  # fmt: skip
    now = task.net.state_dict()
    for name, value in runs.words.net.state_dict().items():
        inside = name.replace("stack.blocks.0.", "stack.blocks.0.block.").replace(
            "stack.blocks.1.", "stack.blocks.1.block."
        )
        assert torch.equal(now[f"language.{inside}"], value), name
    for name, value in runs.eyes.net.image.state_dict().items():
        assert name.startswith("head.") or torch.equal(now[f"image.{name}"], value), name
    learned = {name for name, parameter in task.net.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[0] for name in learned} == {"resampler", "language"}
    assert all(".look." in name for name in learned if name.startswith("language."))
    assert all(gate.weight.abs() > 1e-4 for look in looks(task.net.language.stack) for gate in (
        look.attention_gate, look.ffn_gate))  # fmt: skip


def test_dropout_is_off_in_what_is_frozen(shapes, runs):
    task = small(shapes, language=runs.language, vision=runs.vision, dropout=0.5).train()
    assert not task.net.image.training
    assert not task.net.language.stack.blocks[0].block.training
    assert task.net.language.stack.blocks[0].look.training
    assert task.net.resampler.training


def test_weights_of_another_model_are_refused_by_name(shapes, runs):
    task = small(shapes, language=runs.language, norm=RMSNorm)
    with pytest.raises(CheckpointError, match=r"unknown .*norm\.bias"):
        task.setup("fit")
    task = small(shapes, vision=runs.vision, patch_size=16)
    with pytest.raises(CheckpointError, match=r"embedding\.weight"):
        task.setup("fit")
    with pytest.raises(UsageError, match="no run, checkpoint or recipe 'nowhere'"):
        small(shapes, language="nowhere").setup("fit")


def test_captions_with_a_cache_are_those_without(shapes):
    net = small(shapes).eval().net
    open_gates(net, 1.0)
    images = batch_of(shapes)["images"]
    captions = net.tell(images, GenerationConfig(max_length=12))
    for image, caption in zip(images, captions, strict=True):
        row = [BEGIN]
        while len(row) <= 12:
            row.append(int(net(image[None], torch.tensor([row]))[0, -1].argmax()))
            if row[-1] == END:
                break
        assert caption == [token for token in row[1:] if token != END]


def test_a_look_stands_in_front_of_every_nth_block_and_has_its_parts(shapes):
    net = small(shapes, depth=3, every=2, norm=RMSNorm).net
    assert [isinstance(block, Seeing) for block in net.language.stack.blocks] == [True, False, True]
    for module in net.modules():
        assert not isinstance(module, Norm) or isinstance(module, RMSNorm)
    first, second = looks(net.language.stack)
    assert not torch.equal(first.attention.qkv.weight, second.attention.qkv.weight)
    assert not torch.equal(first.attention.qkv.weight, net.language.stack.blocks[0].block.attend.part.qkv.weight)


class AllAtOnce(PreNorm):
    """A block that goes through a whole stack in its own way."""

    @classmethod
    def through(cls, blocks, x, contexts):
        return x


def test_blocks_between_which_nothing_fits_are_refused(shapes):
    with pytest.raises(UsageError, match="AllAtOnce runs all layers at once"):
        small(shapes, block=AllAtOnce)
    with pytest.raises(UsageError, match="every must be at least 1"):
        open_eyes(small(shapes).net.language.stack, 0)
