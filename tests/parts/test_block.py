"""How parts are put together: residuals, norms, dropout, padding and experts, patches and class tokens, precision."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small import (
    SIZES,
    build_model,
    combinations,
    covering_cases,
    language,
    names,
    part_options,
    seq2seq,
    spread,
    stack,
    tokens,
    vit,
)
from torch import nn
from torch.testing import assert_close

from tests.rows import try_each
from zoo.errors import UsageError
from zoo.models import LanguageModel, Seq2Seq, ViT
from zoo.parts.block import Memory, Parallel, PostNorm, PreNorm, Sandwich
from zoo.parts.ffn import MoE, aux_losses
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, Learned, NoPosition

pytestmark = pytest.mark.usefixtures("double")
same = partial(assert_close, atol=1e-10, rtol=0)
LOW = [*combinations("norm", "ffn"), *covering_cases("ViT", "position", "backend", "attention")]


def label(parts):
    return "-".join(parts.values())


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("name", names("block"))
def test_every_block_is_its_formula(name, cross):
    net = stack(Extent((9,), causal=cross), cross=cross, position=NoPosition, depth=2, **part_options({"block": name}))
    x, memory = torch.randn(2, 5, SIZES["dim"]), torch.randn(2, 4, SIZES["dim"])
    expected = x
    for block in net.blocks:
        parts = [partial(block.attend.part, pattern=Pattern(causal=cross)), block.ffn.part]
        branches = [block.attend, block.ffn]
        if cross:
            parts.insert(1, partial(block.cross.part, memory=memory, pattern=Pattern()))
            branches.insert(1, block.cross)
        start = expected
        for part, branch in zip(parts, branches, strict=True):
            if name == "Parallel":
                expected = expected + part(block.norm(start))
            else:
                expected = {
                    "PreNorm": lambda y, part, branch: y + part(branch.norm(y)),
                    "PostNorm": lambda y, part, branch: branch.norm(y + part(y)),
                    "Sandwich": lambda y, part, branch: y + branch.behind(part(branch.norm(y))),
                }[name](expected, part, branch)
    same(net(x, memory=Memory(memory) if cross else None), net.norm(expected))


def test_only_blocks_that_leave_the_stream_unnormalised_are_closed_by_a_norm():
    last = {block: type(stack(Extent((9,)), block=block).norm) for block in (PreNorm, PostNorm, Sandwich, Parallel)}
    assert last == {PreNorm: LayerNorm, PostNorm: nn.Identity, Sandwich: LayerNorm, Parallel: LayerNorm}


@pytest.mark.parametrize("build", [language, seq2seq, vit])
def test_dropout_is_on_in_training_and_leaves_evaluation_and_its_generator_alone(build):
    torch.set_default_dtype(torch.float32)
    model, twin = build(dropout=0.5, attention_dropout=0.5), build()
    inputs = {vit: (torch.randn(2, 1, 12, 12),), seq2seq: (tokens(2, 5), tokens(2, 4))}.get(build, (tokens(2, 5),))
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    state = torch.get_rng_state()
    assert torch.equal(model(*inputs), twin(*inputs))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("block", names("block"))
def test_dropout_falls_on_embeddings_and_on_every_branch(block):
    net, x = (
        stack(Extent((9,)), dropout=0.5, depth=1, **part_options({"block": block})),
        torch.randn(1, 5, SIZES["dim"]),
    )
    calls = []
    for name, module in net.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda m, inputs, out, name=name: calls.append(name))
    net(x)
    assert calls == ["dropout", "blocks.0.attend.dropout", "blocks.0.ffn.dropout"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_reaches_no_expert_and_changes_neither_outputs_nor_counts(side):
    net = stack(Extent((9,)), ffn=partial(MoE, experts=4, aux_loss_weight=1.0), position=NoPosition)
    rows = [torch.randn(n, SIZES["dim"]) for n in (6, 3)]
    batch, valid = torch.full((2, 6, SIZES["dim"]), 1e3), torch.zeros(2, 6, dtype=torch.bool)
    for b, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(6 - len(row), 6)
        batch[b, place], valid[b, place] = row, True
    experts = [module for module in net.modules() if isinstance(module, MoE)]
    padded = net(batch, valid)
    counts = [moe.load.clone() for moe in experts]
    assert [count.sum().item() for count in counts] == [9 * 2] * SIZES["depth"]
    for moe in experts:
        moe.load.zero_()
    for b, row in enumerate(rows):
        same(padded[b][valid[b]], net(row[None])[0])
    assert all(torch.equal(moe.load, count) for moe, count in zip(experts, counts, strict=True))


def test_the_side_loss_of_padded_batches_is_that_of_the_real_tokens():
    net = stack(Extent((9,)), ffn=partial(MoE, experts=4, aux_loss_weight=1.0), position=NoPosition, depth=1)
    x, valid = torch.randn(1, 6, SIZES["dim"]), torch.arange(6)[None] < 4
    (moe,) = (module for module in net.modules() if isinstance(module, MoE))
    net(x, valid)
    (with_padding,) = aux_losses(net)
    net(x[:, :4])
    same(with_padding, moe.aux_loss)


def test_blocks_that_run_again_count_tokens_once_and_leave_no_loss():
    """Two steps, each of two calls and two backward passes, with and without ``recompute``."""
    results = []
    for recompute in (False, True):
        torch.manual_seed(0)
        net = stack(Extent((9,)), ffn=partial(MoE, experts=4), recompute=recompute).train()
        experts = [module for module in net.modules() if isinstance(module, MoE)]
        for _ in range(2):
            torch.manual_seed(1)
            out = sum(net(torch.randn(2, 6, SIZES["dim"])).sin().sum() for _ in range(2)) + sum(aux_losses(net))
            gradients = [torch.autograd.grad(out, list(net.parameters()), retain_graph=True) for _ in range(2)]
            assert aux_losses(net) == []
        results.append([*gradients[0], *gradients[1], *(moe.load for moe in experts)])
        assert [moe.load.sum().item() for moe in experts] == [2 * 2 * 12 * 2] * SIZES["depth"]
    for usual, again in zip(*results, strict=True):
        assert_close(usual, again, atol=1e-10, rtol=0)


def test_a_decoder_looks_at_its_memory_and_only_where_that_is_real():
    net = stack(Extent((9,), causal=True), cross=True)
    x, memory = torch.randn(1, 4, SIZES["dim"]), torch.randn(1, 6, SIZES["dim"])
    valid, rubbish = torch.arange(6)[None] < 4, memory.clone()
    rubbish[:, 4:] = 1e3
    same(net(x, memory=Memory(rubbish, valid)), net(x, memory=Memory(memory[:, :4])))
    assert (net(x, memory=Memory(memory)) - net(x, memory=Memory(memory[:, :4]))).abs().max() > 1e-6


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_and_a_matrix_are_a_strided_convolution(channels):
    model, images = ViT(5, 12, channels, patch_size=4, **SIZES), torch.randn(2, channels, 12, 12)
    kernel = model.embedding.weight.unflatten(1, (channels, 4, 4))
    expected = F.conv2d(images, kernel, model.embedding.bias, stride=4).flatten(2).mT
    same(model.embedding(model.patches(images)), expected)


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("position", names("position"))
def test_the_place_of_a_patch_matters_except_without_position(pool, position):
    model, images = build_model(vit, {"position": position}, pool=pool), torch.randn(1, 1, 12, 12)
    change = (model(images.roll(4, 2)) - model(images)).abs().max()
    assert (change < 1e-10) == (position == "NoPosition")


def test_mean_pooling_reads_all_patches_and_a_class_token_reads_itself():
    for pool in ("mean", "cls"):
        model, images = spread(vit(pool=pool)), torch.randn(2, 1, 12, 12)
        x = model.embedding(model.patches(images))
        if pool == "cls":
            x = torch.cat([model.cls.weight.expand(2, 1, -1), x], 1)
        states = model.stack(x)
        same(model(images), model.head(states.mean(1) if pool == "mean" else states[:, 0]))


def test_a_class_token_stands_outside_the_grid_in_every_scheme():
    positions = {}

    class Watched(ALiBi):
        def bias(self, head, query, key):
            positions["query"], positions["key"] = query.flatten().tolist(), key.flatten().tolist()
            return super().bias(head, query, key)

        def embed(self, x, pos):
            positions["embed"] = pos.tolist()
            return x

        def rotate(self, x, pos):
            positions["rotate"] = pos.tolist()
            return x

    vit(position=Watched, pool="cls", depth=1)(torch.randn(1, 1, 12, 12))
    assert positions == {hook: list(range(-1, 9)) for hook in ("embed", "rotate", "query", "key")}


def test_without_a_class_token_the_first_patch_is_number_zero():
    model = vit(position=Learned, pool="mean")
    assert model.stack.position.table.num_embeddings == 9
    assert vit(position=Learned, pool="cls").stack.position.table.num_embeddings == 10


@pytest.mark.parametrize("scale", [True, False])
def test_the_original_scales_its_embeddings_by_the_root_of_the_width(scale):
    calls = []
    for build in (language, seq2seq):
        model = spread(build(scale_embedding=scale))
        sides = [("stack", "embedding")]
        if build is seq2seq:
            sides = [("encoder", "source_embedding"), ("decoder", "target_embedding")]
        for part, table in ((getattr(model, part), getattr(model, table)) for part, table in sides):
            part.register_forward_pre_hook(lambda m, inputs, table=table: calls.append((inputs[0], table)))
        x = torch.arange(4)[None]
        model(*([x] if build is language else [x, x]))
    assert len(calls) == 3
    for embedded, table in calls:
        same(embedded[0], table.weight[:4] * (4.0 if scale else 1.0))


def test_a_translation_is_scaled_and_a_language_model_is_not_unless_asked():
    assert (language().scale, seq2seq().scale) == (1.0, 4.0)


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_tied_matrices_are_one_and_the_same(tie):
    model = Seq2Seq(19, 19, 16, tie=tie, **SIZES)
    assert (model.source_embedding is model.target_embedding) == (tie == "all")
    assert (model.head is None) == (tie != "none")
    x = tokens(2, 4)
    states = model.decoder(model.target_embedding(x) * 4, memory=model.encode(x))
    actual, expected = model(x, x), states @ (model.head or model.target_embedding).weight.T
    same(actual, expected)
    # the gradients of a tied matrix are those of both its uses
    weight, parameters = torch.randn_like(actual), list(model.parameters())
    same(*(torch.autograd.grad((out * weight).sum(), parameters, retain_graph=True) for out in (actual, expected)))


def test_a_decoder_may_be_deeper_than_its_encoder():
    model = seq2seq(decoder_depth=3, depth=1)
    assert (len(model.encoder.blocks), len(model.decoder.blocks)) == (1, 3)


@pytest.mark.parametrize(("build", "words"), [
    (lambda: Seq2Seq(5, 6, tie="all"), "tie=all needs one vocabulary for both sides, got 5 source and 6 target tokens"),
    (lambda: ViT(5, 12, patch_size=5), r"is not divisible by patch_size=5. Try patch_size=4 or patch_size=6\."),
    (lambda: LanguageModel(5, 6, dim=10, heads=4), r"dim=10 is not divisible by heads=4. Try heads=2 or heads=5\."),
])  # fmt: skip
def test_sizes_that_cannot_work_are_refused_with_sizes_that_do(build, words):
    with pytest.raises(UsageError, match=words):
        build()


@pytest.mark.parametrize("parts", LOW, ids=label)
@try_each(itertools.product([language, vit], [torch.bfloat16, torch.float16]))
def test_a_model_in_low_precision_computes_in_it(build, dtype, parts):
    model = build_model(build, parts, depth=1)
    dtypes = set()
    for module in model.to(dtype).modules():
        module.register_forward_hook(lambda m, inputs, out: dtypes.add(out.dtype))
    model(tokens(2, 5) if build is language else torch.randn(2, 1, 12, 12).to(dtype))
    assert dtypes == {dtype}


@try_each(combinations("position", "norm", "ffn"), label)
def test_autocast_trains_float32_weights(parts):
    torch.set_default_dtype(torch.float32)
    model, x = language(depth=1, **part_options(parts)), tokens(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_a_first_layer_can_do_without_the_norm_in_front_of_attention():
    block = stack(Extent((9,)), block=partial(PreNorm, attention_norm=False)).blocks[0]
    assert (type(block.attend.norm), type(block.ffn.norm)) == (nn.Identity, LayerNorm)


def test_a_vit_can_classify_by_its_class_token_and_its_patches_together():
    net = vit(pool="both")
    images, states = torch.randn(2, net.channels, net.image_size, net.image_size), []
    net.stack.register_forward_hook(lambda module, inputs, output: states.append(output))
    logits = net(images)
    read = torch.cat([states[0][:, 0], states[0][:, net.special :].mean(1)], -1)
    assert_close(logits, F.linear(read, net.head.weight, net.head.bias))
