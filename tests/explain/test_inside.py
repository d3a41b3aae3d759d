"""The predictions after every layer and the attention are those of the model."""

from contextlib import ExitStack

import pytest
import torch
from PIL import Image

from zoo.errors import UsageError
from zoo.explain.inside import first_blocks, look_inside
from zoo.explain.subjects import find_subject


@pytest.fixture
def opened(recipes):
    """The models of the recipes, by the names of their files, with random weights."""
    with ExitStack() as stack:
        yield lambda name, *settings: find_subject([f"{name}.yaml"], settings).open(stack, "cpu")


def logits_after(model, depth, tokens):
    """By hand: embedding, the first blocks, final norm, output."""
    net = model.net
    x = net.stack.embed(net.embedding(tokens) * net.scale, None)
    contexts = net.stack.contexts(0, None, None, None, None, False)
    for block, context in zip(list(net.stack.blocks)[:depth], contexts, strict=False):
        x = block(x, context)
    return net.stack.norm(x) @ net.output.T


def test_predictions_after_every_layer_go_through_the_final_norm_and_head(opened):
    model = opened("lm")
    text = "the cat eats"
    inside = look_inside(model, text)
    tokens = torch.tensor([model.tokenizer.encode(text)])
    assert len(inside.layers) == 4
    assert inside.positions == inside.tokens == ["t", "h", "e", "_", "c", "a", "t", "_", "e", "a", "t", "s"]
    for depth, layer in enumerate(inside.layers):
        chances = logits_after(model, depth, tokens)[0].double().softmax(-1)
        for position, guesses in enumerate(layer):
            best = chances[position].topk(3)
            assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), rel=1e-5)


@pytest.mark.parametrize("name", ["Naive", "SDPA", "Tiled"])
def test_the_attention_of_every_head_on_any_backend_sums_to_one(opened, name):
    inside = look_inside(opened("lm", ("model.backend", name, "")), "the cat")
    assert [heads.name for heads in inside.heads] == [f"stack.blocks.{layer}.attend.part" for layer in range(3)]
    for heads in inside.heads:
        assert heads.weights.shape == (2, 7, 7)
        assert heads.rows == heads.columns == inside.tokens
        assert torch.allclose(heads.weights.sum(-1), torch.ones(2, 7), atol=1e-5)


def test_the_model_is_unchanged_afterwards(opened):
    model = opened("lm")
    blocks, tokens = model.net.stack.blocks, torch.tensor([[1, 2, 3]])
    before = model.net(tokens)
    look_inside(model, "the dog")
    assert model.net.stack.blocks is blocks
    assert torch.equal(model.net(tokens), before)
    with pytest.raises(RuntimeError), first_blocks(model.net.stack, 1):
        raise RuntimeError
    assert len(model.net.stack.blocks) == 3


def test_a_translation_shows_its_decoder_and_what_it_looks_at(opened):
    model = opened("pairs")
    letters = model.source_tokenizer.decode(range(model.source_tokenizer.vocab_size))[:5]
    inside = look_inside(model, letters)
    cross = [heads for heads in inside.heads if ".cross." in heads.name]
    encoder = [heads for heads in inside.heads if heads.name.startswith("encoder.")]
    assert len(cross) == len(encoder) == 2
    assert all(heads.columns == inside.tokens and heads.rows == inside.positions for heads in cross)
    assert all(heads.rows == heads.columns == inside.tokens for heads in encoder)
    assert len(inside.layers) == 3
    assert "own translation" in inside.notes[-1]


def test_an_image_has_patches_and_classes(opened, tmp_path):
    model = opened("vit")
    size = model.net.image_size
    Image.new("L", (size, size), 40).save(tmp_path / "grey.png")
    inside = look_inside(model, image=str(tmp_path / "grey.png"))
    patches = (size // 7) ** 2
    assert inside.tokens[:2] == ["class", "1,1"]
    assert all(heads.weights.shape == (2, patches + 1, patches + 1) for heads in inside.heads)
    assert [len(layer) for layer in inside.layers] == [1, 1, 1]
    assert {guess.label for guess in inside.layers[-1][0]} <= set(model.names)
    best = model.classify(str(tmp_path / "grey.png"), top=3)[0]
    assert [guess.probability for guess in inside.layers[-1][0]] == pytest.approx([one.probability for one in best])
    assert inside.picture.size == (size, size)


def test_a_long_text_is_cut_and_an_empty_one_refused(opened):
    model = opened("lm")
    inside = look_inside(model, "the cat " * 20)
    assert len(inside.tokens) == 16
    assert inside.notes == ["the text has 160 tokens, of which the first 16 are explained"]
    with pytest.raises(UsageError, match="no tokens"):
        look_inside(model, "")
    with pytest.raises(UsageError, match="reads texts: --text"):
        look_inside(model, image="x.png")
    with pytest.raises(UsageError, match="reads images: --image"):
        look_inside(opened("vit"), "text")
