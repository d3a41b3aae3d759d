"""Watching attention: weights of chosen rows, heads and layers, on any backend, in memory that grows with the rows."""

import inspect

import pytest
import torch
from small import SIZES, language, names, seq2seq, spread, tokens, vit
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tests.covering import covering_params
from zoo import registry
from zoo.conformance.combinations import tasks
from zoo.errors import UsageError
from zoo.logging.attention_maps import attention_grid, patch_attention, translation_alignment
from zoo.models import attention_weights as watch_module
from zoo.models.attention_weights import attention_layers, record_weights
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.attention import BLOCK, Attention, MultiHead, runs
from zoo.parts.backend import Flash, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition

pytestmark = pytest.mark.usefixtures("double")
ROWS = [[0], [3, 1], [-1, 2, 3, 4], slice(1, 5), slice(None, None, -2), []]
EXTENTS = {"text": Extent((9,)), "causal": Extent((9,), causal=True), "grid": Extent((2, 4), special=1)}
VALID = torch.tensor([[True, True, True, False, False, True, True, False, True], [False] + [True] * 8])


def layer(attention, position, extent, **options):
    """One attention that is given what a stack gives it, or None where a sentence refuses the parts."""
    part = registry.get("attention", attention)
    grouped = options.pop("grouped", False) and "kv_heads" in inspect.signature(part).parameters
    build = (lambda *args: part(*args, kv_heads=2)) if grouped else part
    try:
        return spread(
            Stack(
                extent,
                **{**SIZES, "heads": 4, "dim": 32},
                attention=build,
                position=registry.get("position", position),
                **options,
            )
        ).eval()
    except UsageError:
        return None


OPTIONS = {
    "plain": {}, "window": {"window": 3}, "padded": {"padded": True},
    "all": {"window": 2, "padded": True, "grouped": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "position", "options", "extent"),
    covering_params(names("attention"), names("position"), OPTIONS, EXTENTS),
)
def test_chosen_rows_and_heads_are_those_of_all_weights(attention, position, extent, options):
    options = OPTIONS[options]
    net = layer(attention, position, EXTENTS[extent], **options)
    if net is None:
        return
    x, valid = torch.randn(2, 9, 32), VALID if "padded" in options else None
    with record_weights(net) as all_of_them:
        expected = net(x, valid)
    assert list(all_of_them) == attention_layers(net)
    last = attention_layers(net)[-1:]
    for rows, heads in zip(ROWS, [None, [2], slice(1, 3), [3, 0], None, [-1]], strict=True):
        with record_weights(net, last, rows, heads) as weights:
            assert torch.equal(net(x, valid), expected)
        picked = [list(range(9))[i] for i in rows] if isinstance(rows, list) else list(range(9))[rows]
        whole = all_of_them[last[0]][:, :, picked]
        assert_close(weights[last[0]], whole if heads is None else whole[:, heads], atol=1e-13, rtol=0)
        assert list(weights) == last


@pytest.mark.parametrize("backend", names("backend"))
@pytest.mark.parametrize("attention", names("attention"))
@pytest.mark.parametrize("causal", [False, True])
def test_weights_sum_to_one_and_make_the_output_of_every_backend(attention, backend, causal):
    extent = Extent((70,), causal=causal)
    try:
        net = spread(
            Stack(
                extent,
                **SIZES,
                position=NoPosition,
                attention=registry.get("attention", attention),
                backend=registry.get("backend", backend),
            )
        )
    except UsageError:
        assert attention == "Additive" or (attention in ("Disentangled", "Shaw") and backend == "Flash")
        return
    part, rows = net.blocks[-1].attend.part, [0, 5, 69]
    inputs = {}
    part.register_forward_hook(
        lambda part, args, kwargs, out: inputs.update(args=args, out=out, **kwargs), with_kwargs=True
    )
    with record_weights(net, rows=rows) as recorded:
        net(torch.randn(2, 70, 16))
    weights = recorded[attention_layers(net)[-1]]
    assert_close(weights.sum(-1), torch.ones(2, 2, 3), atol=1e-12, rtol=0)
    v = part.project(*inputs["args"], None, inputs["pattern"], inputs["position"], None)[2]
    mixed = part.out((weights @ v).transpose(1, 2).flatten(2))
    assert_close(mixed, inputs["out"][:, rows], atol=1e-10, rtol=0)


@pytest.mark.parametrize("offset", [0, 4])
def test_rows_of_a_call_with_an_offset_are_those_of_the_pattern(offset):
    part, x = spread(MultiHead(16, 4, kv_heads=2)), torch.randn(1, 9, 16)
    pattern = Pattern(causal=True, window=3, bias=lambda h, q, k: 0.1 * (h + 1) * (q - 2 * k), offset=offset)
    whole = part.weights(x, pattern=pattern)
    assert_close(part.weights(x, pattern=pattern, rows=[7, 2, 3]), whole[:, :, [7, 2, 3]], atol=1e-13, rtol=0)
    memory = torch.randn(1, 5, 16)
    whole = part.weights(x, memory, pattern=Pattern())
    assert_close(part.weights(x, memory, pattern=Pattern(), rows=[8]), whole[:, :, [8]], atol=1e-13, rtol=0)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max(
            [self.numel, *(part.numel() for part in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(part))]
        )
        return out


@pytest.mark.parametrize("attention", names("attention"))
def test_memory_is_linear_in_rows_and_linear_in_keys(attention):
    tables = {"Disentangled": {"span": 4, "max_distance": None}, "Shaw": {"max_distance": 4}}  # constant in length
    sizes = tables.get(attention, {})
    part = spread(registry.get("attention", attention)(8, 2, **sizes))
    width = 8 if attention == "Additive" else 1

    def largest(rows, T, heads=None):
        with torch.no_grad(), Largest() as mode:
            part.weights(
                torch.randn(1, T, 8),
                pattern=Pattern(causal=True, bias=lambda h, q, k: h * (q - k)),
                rows=rows,
                heads=heads,
            )
        return mode.numel

    numbers = {n: largest(list(range(0, 2 * n, 2)), 4096) for n in (16, 32, 64)}
    assert numbers[32] == 2 * numbers[16] == numbers[64] // 2 == 2 * 32 * 4096  # the result, heads × rows × keys
    assert largest(slice(32), 4096) <= 32 * 4096 * max(2, width)
    assert largest(slice(32), 8192) == 2 * largest(slice(32), 4096)
    # all rows of one head: the other head's weights are never there at once
    assert largest(None, 1024, [0]) <= max(1024 * 1024, 64 * 1024 * width)
    assert largest(None, 1024) >= 2 * 1024 * 1024


@pytest.mark.parametrize("build", [language, seq2seq, vit])
def test_watching_changes_neither_outputs_nor_gradients_nor_chance(build):
    net = spread(build(dropout=0.2, attention_dropout=0.1))
    inputs = {language: (torch.ones(2, 7, dtype=torch.long),), vit: (torch.randn(2, 1, 12, 12),)}.get(build)
    inputs = inputs or (torch.ones(2, 7, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))

    def trained(watched):
        torch.manual_seed(3)
        net.zero_grad()
        with record_weights(net if watched else nn.Identity(), rows=slice(1, 4)) as recorded:
            out = net(*inputs)
            out.sum().backward()
        assert len(recorded) == (len(attention_layers(net)) if watched else 0)
        assert not any(weights.requires_grad for weights in recorded.values())
        return [out, torch.get_rng_state(), *(p.grad for p in net.parameters() if p.grad is not None)]

    for mine, unwatched in zip(trained(True), trained(False), strict=True):
        assert torch.equal(mine, unwatched)
    assert not any(part._forward_hooks for part in net.modules())


def test_flash_can_be_watched_though_it_has_no_weights():
    parts = [language(backend=backend) for backend in (Flash, Naive)]
    x, result = torch.arange(12)[None], []
    for net in parts:
        with record_weights(net) as weights:
            net(x)
        result.append(weights)
    for name in attention_layers(parts[0]):
        assert_close(result[0][name], result[1][name], atol=1e-12, rtol=0)


def test_a_part_that_knows_its_weights_can_be_watched_without_being_an_attention():
    class Look(nn.Module):
        def forward(self, x):
            return x

        def weights(self, x):
            return x.softmax(-1)

    net, x = nn.Sequential(Look()), torch.randn(2, 3, 4, 5)
    with record_weights(net, ["0"], rows=[2], heads=[1, 0]) as recorded:
        net(x)
    assert torch.equal(recorded["0"], x.softmax(-1)[:, [1, 0]][:, :, [2]])


def test_unknown_names_and_cached_queries_are_refused():
    net = language()
    with (
        pytest.raises(UsageError, match=r"no attention 'blocks.7' to watch. There are: stack.blocks.0.attend.part, "),
        record_weights(net, ["blocks.7"]),
    ):
        pass
    caches = net.stack.caches(8)
    with record_weights(net) as weights:
        net(torch.ones(1, 4, dtype=torch.long), caches=caches)
        assert weights[attention_layers(net)[0]].shape == (1, 2, 4, 4)
        with pytest.raises(UsageError, match="while it goes on from a cache"):
            net(torch.ones(1, 1, dtype=torch.long), caches=caches)


def test_a_cross_attention_is_watched_while_decoding_with_a_cache():
    net = seq2seq().eval()
    source, target = torch.randint(19, (1, 6)), torch.randint(19, (1, 4))
    cross = [name for name in attention_layers(net.decoder) if ".cross." in name]
    with torch.no_grad(), record_weights(net.decoder, cross) as weights:
        net(source, target)
        whole = dict(weights)
        state = net.begin(source, None, 4)
        for step in range(4):
            state.step(target[:, step : step + 1])
            for name in cross:
                assert_close(weights[name], whole[name][:, :, [step]], atol=1e-12, rtol=0)


def test_runs_join_neighbours_and_keep_the_order():
    assert runs(range(10), [3, 4, 5, 1, 9, -2]) == [(3, 6), (1, 2), (9, 10), (8, 9)]
    assert runs(range(200), slice(None)) == [(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 3 * BLOCK), (3 * BLOCK, 200)]
    assert runs(range(4), []) == [(0, 0)]
    with pytest.raises(IndexError):
        runs(range(4), [4])


def test_every_attention_of_a_model_is_watchable():
    for net in (language(), seq2seq(), vit()):
        assert [net.get_submodule(name) for name in attention_layers(net)] == [
            m for m in net.modules() if isinstance(m, Attention)
        ]


class Weightless(MultiHead):
    """It computes, and declares that it has no weights."""

    shows_weights = False


class NoWeigh(Attention):
    """It computes, and has no weigh."""

    def attend(self, q, k, v, pattern):
        return q


def test_in_a_hybrid_the_layers_with_weights_are_drawn_by_their_numbers():
    for other in (Weightless, NoWeigh):
        net = language(depth=4, overrides=[Override(layers="first 2", attention=other)])
        assert attention_layers(net) == ["stack.blocks.2.attend.part", "stack.blocks.3.attend.part"]
        assert list(attention_grid(net, tokens(1, 4))) == ["layer 3", "layer 4"]
        with (
            pytest.raises(UsageError, match="no attention"),
            record_weights(net, ["stack.blocks.0.attend.part"]),
        ):
            pass
    with pytest.raises(NotImplementedError):
        Weightless(16, 2).weights(torch.randn(1, 3, 16), pattern=Pattern())


def test_translations_are_drawn_where_only_the_last_layer_has_no_weights():
    cls = registry.get("task", "Translation")
    hybrid = [Override(layers="last", attention=Weightless)]
    task = cls(**cls.small_sizes({}), dim=16, depth=2, heads=2, overrides=hybrid).eval()
    batch = task.sample(2)
    batch["slots"] = torch.tensor([[0, 0, 1, 0, 1]])
    with torch.no_grad():
        assert task.evaluate(batch).total.isfinite()
        weights = translation_alignment(task.net, batch["source"], None, batch["target"])
    assert weights.shape == (2, batch["target"].size(1), batch["source"].size(1))


def test_an_attention_without_weights_leaves_none_and_says_so_once(caplog):
    watch_module._warn_without_weights.cache_clear()
    net = language(attention=Weightless)
    for _ in range(2):
        with record_weights(net) as weights:
            net(tokens(1, 4))
        assert weights == {}
    assert [record.getMessage() for record in caplog.records] == [
        "Weightless has no attention weights to show: heat maps and alignments leave it out"
    ]


@pytest.mark.parametrize("name", tasks())
def test_every_task_is_evaluated_and_drawn_without_weights(name):
    cls = registry.get("task", name)
    task = cls(**cls.small_sizes({}), dim=16, depth=1, heads=2, attention=Weightless).eval()
    with torch.no_grad():
        batch = task.sample(2)
        if "slots" in batch:
            batch["slots"] = torch.tensor([[0, 0, 1, 0, 1]])
        assert task.evaluate(batch).total.isfinite()
    if name == "Classification":
        assert patch_attention(task.net, batch["images"])[0] is None
    elif name == "Translation":
        assert translation_alignment(task.net, batch["source"], None, batch["target"]) is None
    elif name == "CausalLM":
        assert attention_grid(task.net, batch["inputs"]) == {}
