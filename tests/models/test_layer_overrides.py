"""Options of models and parts that published models need: each does what it says and nothing else."""

import math
from functools import partial

import hybrids
import pytest
import torch
import torch.nn.functional as F
from small import language, seq2seq, spread, tokens, vit
from torch.testing import assert_close

from tests.conformance.published import GatedConvolution, MixerBlock
from zoo.errors import UsageError
from zoo.models import Seq2Seq
from zoo.models.layer_overrides import Override
from zoo.parts.attention import Additive, Gaussian, MultiHead
from zoo.parts.backend import SDPA, Flash, Tiled
from zoo.parts.block import PostNorm, PreNorm
from zoo.parts.ffn import GEGLU, MLP, MoE, SwiGLU
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, Learned, NoPosition, RoPE, Sinusoidal

pytestmark = pytest.mark.usefixtures("double")


def scaled(scale):
    return lambda dim, heads, backend, rate: MultiHead(dim, heads, backend, rate, scale=scale)


def test_the_biases_of_an_attention_are_chosen_apart():
    def has(**options):
        part = MultiHead(8, 2, **options)
        return part.qkv.bias is not None, part.out.bias is not None

    assert has() == has(bias=True) == (True, True)
    assert has(bias=False) == (False, False)
    assert has(bias=True, out_bias=False) == (True, False)
    assert has(bias=False, out_bias=True) == (False, True)


def test_an_attentions_scale_multiplies_its_scores_and_is_seen_in_its_weights():
    part = spread(MultiHead(8, 2, scale=0.3))
    x = torch.randn(2, 5, 8)
    q, k, v = part.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    weights = (0.3 * q @ k.mT).softmax(-1)
    assert_close(part.weights(x, pattern=Pattern()), weights)
    assert_close(part(x, pattern=Pattern()), part.out((weights @ v).transpose(1, 2).flatten(2)))
    with pytest.raises(UsageError, match="scale must be above 0"):
        MultiHead(8, 2, scale=0.0)


def test_the_default_scale_of_an_attention_is_one_over_the_root_of_its_width():
    x, default, with_scale = torch.randn(2, 5, 8), MultiHead(8, 2), MultiHead(8, 2, scale=0.5)
    with_scale.load_state_dict(default.state_dict())
    assert_close(default(x, pattern=Pattern()), with_scale(x, pattern=Pattern()))


def test_gelus_approximation_is_the_published_one():
    x = torch.linspace(-4, 4, 50)[:, None].expand(-1, 6)
    default, gated = spread(MLP(6, 9, "gelu_tanh")), spread(GEGLU(6, 9, approximate="tanh"))

    def gelu(y):
        return 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))

    assert_close(default(x), default.down(gelu(default.up(x))))
    gate, value = gated.up(x).chunk(2, -1)
    assert_close(gated(x), gated.down(gelu(gate) * value))
    assert_close(gated.reference(x), gated(x))
    assert not torch.allclose(gated.gate(x), GEGLU(6, 9).gate(x), atol=1e-6)


def test_sines_in_front_of_cosines_are_the_same_features():
    x, pos = torch.zeros(1, 7, 8), torch.arange(7)
    mixed = Sinusoidal(8, 2, Extent((9,))).embed(x, pos)
    assert_close(Sinusoidal(8, 2, Extent((9,)), layout="halves").embed(x, pos)[..., :4], mixed[..., ::2])
    assert_close(Sinusoidal(8, 2, Extent((9,)), layout="halves").embed(x, pos)[..., 4:], mixed[..., 1::2])


@pytest.mark.parametrize("special", [0, 1])
def test_the_rows_in_front_of_a_learned_table_are_never_read(special):
    part = spread(Learned(4, 1, Extent((5,), special), offset=2))
    assert part.table.weight.shape == (7 + special, 4)
    assert part.limit == 5
    places = torch.arange(-special, 5)
    assert_close(part.embed(torch.zeros(1, 5 + special, 4), places)[0], part.table.weight[2:])


def test_a_fraction_of_rope_turns_as_a_narrower_head_would():
    x, pos = torch.randn(1, 2, 6, 8), torch.arange(6)
    part = RoPE(16, 2, Extent((9,)), fraction=0.5)
    turned = part.rotate(x, pos)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert_close(turned[..., :4], RoPE(8, 2, Extent((9,))).rotate(x[..., :4], pos))
    part.check(8)
    with pytest.raises(UsageError, match="head width \\* fraction"):
        part.check(6)
    with pytest.raises(UsageError, match=r"\(0, 1\]"):
        RoPE(16, 2, Extent((9,)), fraction=1.5)


def test_a_scaled_rope_slows_only_turns_that_never_close():
    default, part = RoPE(16, 1, Extent((9,))), RoPE(16, 1, Extent((9,)), scaling_factor=8.0, original_max_length=64)
    rate = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    for pair, each in enumerate(rate.tolist()):
        wave = 2 * math.pi / each
        if wave < 64 / 4:
            right = each
        elif wave > 64 / 1:
            right = each / 8
        else:
            smooth = (64 / wave - 1) / (4 - 1)
            right = (1 - smooth) * each / 8 + smooth * each
        assert part._turn(torch.tensor(5), 16, torch.float64)[pair] == pytest.approx(5 * right, rel=1e-12)
    x = torch.randn(1, 1, 3, 16)
    assert not torch.allclose(default.rotate(x, torch.arange(3)), part.rotate(x, torch.arange(3)))
    with pytest.raises(UsageError, match="scaling_factor >= 1"):
        RoPE(16, 1, Extent((9,)), scaling_factor=0.5)


def test_an_embedding_norm_reads_the_embeddings_with_their_positions():
    model, ids = spread(language(embedding_norm=True, position=Learned)), tokens(2, 5)
    table = model.stack.position.table.weight[:5]
    entry = model.stack.entry
    right = F.layer_norm(model.embedding(ids) + table, (16,), entry.weight, entry.bias, 1e-5)
    inputs = []
    model.stack.blocks[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(ids)
    assert_close(inputs[0], right)


def test_logits_of_a_pair_can_be_scaled_and_shifted():
    source, target = tokens(2, 5), tokens(2, 4)
    default, other = spread(seq2seq(tie="all")), spread(seq2seq(tie="all", scale_logits=True, output_bias=True))
    bias = other.state_dict()["bias.weight"]
    other.load_state_dict(default.state_dict() | {"bias.weight": bias})
    assert_close(other(source, target), default(source, target) / 4 + bias)


def test_two_embeddings_can_be_one_without_the_output():
    model = seq2seq(tie="inputs")
    assert model.source_embedding is model.target_embedding
    assert model.head.weight is not model.target_embedding.weight
    with pytest.raises(UsageError, match="tie=inputs needs one vocabulary"):
        Seq2Seq(5, 6, 9, tie="inputs", dim=16, heads=2)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_registers_take_part_and_are_not_read(pool):
    model, images = spread(vit(pool=pool, registers=2)), torch.randn(2, 1, 12, 12)
    default = spread(vit(pool=pool))
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in default.parameters()) + 2 * 16
    before = model(images)
    with torch.no_grad():
        model.registers.weight.mul_(-1)
    assert not torch.allclose(model(images), before)
    states = model.stack.norm.register_forward_hook(
        lambda *args: args[2].index_fill(1, torch.tensor(model.special - 1), 9.0)
    )
    changed = model(images)
    states.remove()
    assert_close(changed, model(images))  # the last register's state reaches no logit


class TestOverrides:
    def test_every_second_layer_can_have_another_window(self):
        model = spread(language(depth=4, overrides=[Override(first=1, step=2, window=3)]))
        assert model.stack.windows == [None, 3, None, 3]

    def test_a_layer_can_have_another_feed_forward_and_a_later_override_counts(self):
        model = language(depth=4, overrides=[Override(ffn=MoE, first=2), Override(first=3, last=3, ffn=MLP, hidden=8)])
        assert [type(getattr(block.ffn.part, "ffn", block.ffn.part)) for block in model.stack.blocks] == [
            MLP, MLP, MoE, MLP,
        ]  # fmt: skip
        assert model.stack.blocks[3].ffn.part.up.out_features == 8

    @pytest.mark.parametrize("valid", [False, True])
    def test_decoding_with_mixed_windows_equals_one_pass(self, valid):
        model = spread(language(depth=3, overrides=[Override(first=1, last=1, window=2)])).eval()
        ids = tokens(2, 9)
        mask = torch.ones(2, 9, dtype=torch.bool) if valid else None
        if valid:
            mask[0, :2] = False
        whole = model(ids, mask)
        caches, steps = model.stack.caches(9), []
        for begin, end in ((0, 4), (4, 5), (5, 8), (8, 9)):
            steps.append(model(ids[:, begin:end], None if mask is None else mask[:, :end], caches))
        assert_close(torch.cat(steps, 1), whole)
        assert caches[1].own.size == 4
        assert caches[0].own.size == 9

    def test_a_window_hides_what_a_full_layer_sees(self):
        model = spread(language(depth=1, overrides=[Override(window=2)])).eval()
        ids = tokens(1, 6)
        other = ids.clone()
        other[0, 0] = (ids[0, 0] + 1) % 19
        assert_close(model(ids)[:, 2:], model(other)[:, 2:])

    @pytest.mark.parametrize("bad", [{"first": 4}, {"step": 0}, {"first": -1}, {"first": 2, "last": 1}])
    def test_an_override_for_no_layer_is_refused(self, bad):
        with pytest.raises(UsageError, match="none of the layers 0 to 3"):
            language(depth=4, overrides=[Override(window=2, **bad)])


def test_a_backend_without_gradients_refuses_the_first_forward_in_training():
    class Forward(SDPA):
        def check_training(self, device):
            raise UsageError(f"backend Forward has no gradients on a {device.type}. Use SDPA.")

    net, inputs = language(backend=Forward), tokens(1, 4)
    net.eval()(inputs)
    with torch.no_grad():
        net.train()(inputs)
    with pytest.raises(UsageError, match="no gradients on a cpu"):
        net.train()(inputs)


class TestEverySlot:
    """Each slot of a layer can be another than the stack's."""

    @pytest.mark.parametrize(
        ("pattern", "numbers"),
        [
            ("first", [0]), ("first 3", [0, 1, 2]), ("last", [11]), ("last 2", [10, 11]), ("every 4th", [3, 7, 11]),
            ("every 1st", list(range(12))), ("Every  2nd", [1, 3, 5, 7, 9, 11]), ("first 30", list(range(12))),
            ("5 of 6", [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]), ("all but 5 of 6", [5, 11]), ("all but last", list(range(11))),
            ("all but every 6th", [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]), ("3", [3]), ("0, 3,6-8", [0, 3, 6, 7, 8]),
        ],
    )  # fmt: skip
    def test_layers_can_be_said_in_words(self, pattern, numbers):
        assert Override(layers=pattern).numbers(12) == numbers

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"layers": "every third"}, "is none of: first, last"),
            ({"layers": ""}, "is none of: first, last"),
            ({"layers": "every 0th"}, "for none of the layers 0 to 3"),
            ({"layers": "every 5th"}, "for none of the layers 0 to 3"),
            ({"layers": "all but first 4"}, "for none of the layers 0 to 3"),
            ({"layers": "1, 4"}, "there is no layer 4 among 0 to 3"),
            ({"layers": "2-9999999999"}, "there is no layer 4 among 0 to 3"),
            ({"layers": "0, 3-1"}, "3-1 runs backwards. Write 1-3"),
            ({"layers": "last", "step": 2}, "leave out first, step and last"),
        ],
    )
    def test_words_for_no_layer_are_refused(self, options, message):
        with pytest.raises(UsageError, match=message):
            language(depth=4, overrides=[Override(window=2, **options)])

    def test_every_slot_reaches_its_layers_and_no_other(self):
        other = Override(
            layers="every 2nd", position=ALiBi, norm=RMSNorm, attention=Gaussian, backend=Tiled, ffn=SwiGLU, hidden=12,
            block=PostNorm, window=3, heads=4,
        )  # fmt: skip
        stack = language(depth=4, overrides=[other]).stack
        for number, block in enumerate(stack.blocks):
            attention, feed = block.attend.part, block.ffn.part
            kinds = [type(part) for part in (block, block.attend.norm, attention, attention.backend, feed)]
            changed = number % 2 == 1
            assert kinds == (
                [PostNorm, RMSNorm, Gaussian, Tiled, SwiGLU] if changed else [PreNorm, LayerNorm, MultiHead, SDPA, MLP]
            )
            assert (attention.heads, stack.windows[number]) == ((4, 3) if changed else (2, None))
            assert type(stack.positions[number]) is (ALiBi if changed else RoPE)
        assert stack.positions[1].heads == 4
        assert stack.positions[1] is stack.positions[3]
        assert stack.blocks[1].ffn.part.up.out_features < stack.blocks[0].ffn.part.up.out_features
        assert isinstance(stack.norm, torch.nn.Identity)  # the last block is normalised at its end

    def test_a_window_of_zero_is_none(self):
        model = language(depth=6, window=3, overrides=[Override(layers="every 6th", window=0)])
        assert model.stack.windows == [3, 3, 3, 3, 3, None]

    def test_layers_without_positions_do_not_turn_queries(self):
        ids, every = tokens(2, 9), spread(language(depth=1, overrides=[Override(position=NoPosition)]))
        without, turned = language(depth=1, position=NoPosition), language(depth=1)
        without.load_state_dict(every.state_dict())
        turned.load_state_dict(every.state_dict())
        assert_close(every(ids), without(ids))
        assert not torch.allclose(every(ids), turned(ids))

    def test_every_parameter_learns_where_layers_have_other_positions_and_heads(self):
        model = language(depth=4, position=T5, overrides=[Override(layers="last 2", heads=4)])
        model(tokens(2, 9)).square().sum().backward()
        learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert {"stack.position.table", "stack.other_positions.0.table"} <= learned
        assert learned == {name for name, _ in model.named_parameters()}

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ({"backend": Flash, "position": ALiBi}, "layer 2: position ALiBi adds a bias to .*, which backend Flash"),
            ({"attention": Additive}, "layer 2: position RoPE turns queries and keys, which attention Additive"),
            ({"heads": 3}, "layer 2: dim=16 is not divisible by heads=3"),
            ({"heads": 16}, "layer 2: position RoPE needs a head width"),
            ({"position": Learned}, "layer 2: position Learned is added to the embeddings"),
            ({"window": -1}, "window"),
            ({"heads": 0}, "heads"),
        ],
    )  # fmt: skip
    def test_a_refused_combination_names_the_layer(self, override, message):
        with pytest.raises(UsageError, match=message):
            language(depth=4, overrides=[Override(layers="2", **override)])

    def test_a_position_with_weights_that_no_layer_uses_is_refused(self):
        with pytest.raises(UsageError, match="no layer has position T5"):
            language(position=T5, overrides=[Override(position=RoPE)])

    def test_blocks_of_one_class_that_are_neighbours_run_together(self):
        runs = []

        class Together(PreNorm):
            @classmethod
            def through(cls, blocks, x, contexts):
                runs.append(len(blocks))
                return super().through(blocks, x, contexts)

        language(depth=6, overrides=[Override(layers="first", block=Together), Override(layers="3-5", block=Together)])(
            tokens(1, 4)
        )
        assert runs == [1, 3]
        with pytest.raises(UsageError, match="layer 0: block Together decides itself"):
            language(recompute=True, overrides=[Override(layers="first", block=Together)])

    def test_recomputed_hybrids_have_the_same_gradients(self):
        ids, grads, hybrid = tokens(2, 9), [], [Override(layers="1", block=PostNorm, window=2)]
        for again in (False, True):
            model = language(depth=3, recompute=again, overrides=hybrid)
            model.train()(ids).square().sum().backward()
            grads.append([parameter.grad for parameter in model.parameters()])
        for one, other in zip(*grads, strict=True):
            assert_close(one, other)


class TestPlace:
    """Parts whose constructors take ``layer`` and ``depth`` learn where they stand."""

    def test_every_kind_of_part_gets_its_layer_and_the_depth(self):
        places = []

        def placed(base):
            class Placed(base):
                def __init__(self, *args, layer: int = -1, depth: int = 0, **options):
                    super().__init__(*args, **options)
                    places.append((base, layer, depth))

            return Placed

        parts = {"attention": MultiHead, "ffn": MLP, "block": PreNorm, "norm": LayerNorm}
        language(depth=2, **{kind: placed(part) for kind, part in parts.items()})
        for part in (MultiHead, MLP, PreNorm):
            assert [place for place in places if place[0] is part] == [(part, 0, 2), (part, 1, 2)]
        norms = [layer for part, layer, _ in places if part is LayerNorm]
        assert norms == [-1, -1, 0, 0, 1, 1] or norms == [0, 0, 1, 1, -1]  # the last one is the stack's

    def test_bound_options_and_functions_are_no_hindrance(self):
        class Placed(MLP):
            def __init__(self, dim, hidden, activation="gelu", layer: int = 0):
                super().__init__(dim, hidden, activation)
                self.layer = layer

        for factory in (partial(Placed, activation="relu"), partial(partial(Placed, layer=9), activation="relu")):
            assert [block.ffn.part.layer for block in language(ffn=factory).stack.blocks] == [0, 1]
        assert language(ffn=lambda dim, hidden: MLP(dim, hidden)).stack.blocks


@pytest.mark.parametrize("seed", range(10))
def test_hybrids_decode_alike_in_every_way(seed):
    hybrids.check(seed)


class TestSlots:
    """A block's unused parts are not built, and a token mixer stands in an attention's place."""

    def test_what_a_block_does_not_use_is_not_built(self):
        class Refuses(MLP):
            def __init__(self, dim, hidden):
                raise AssertionError("built")

        model = language(block=MixerBlock, ffn=Refuses)
        assert [block.ffn for block in model.stack.blocks] == [None, None]
        assert [name for name, module in model.named_modules() if isinstance(module, MLP)] == []
        model(tokens(2, 5)).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())

    def test_a_block_of_a_feed_forward_alone_decodes(self):
        class FeedOnly(PreNorm):
            slots = frozenset({"ffn"})

        with pytest.raises(UsageError, match="no layer has position T5"):
            language(block=FeedOnly, position=T5)
        model, ids = spread(language(depth=2, overrides=[Override(layers="first", block=FeedOnly)])), tokens(2, 7)
        assert model.stack.blocks[0].attend is None
        caches = model.stack.caches(7)
        steps = [model(ids[:, begin:end], None, caches) for begin, end in ((0, 4), (4, 5), (5, 7))]
        assert_close(torch.cat(steps, 1), model(ids))
        assert caches.length == 7

    def test_a_model_with_a_memory_refuses_a_block_that_does_not_look_at_it(self):
        with pytest.raises(UsageError, match="this model looks at a memory, which block MixerBlock does not"):
            seq2seq(block=MixerBlock)

    def test_positions_of_attention_pass_token_mixers_by(self):
        mixers = Override(layers="all but every 3rd", attention=GatedConvolution, block=MixerBlock)
        for position in (RoPE, ALiBi, T5):
            model = spread(language(depth=3, position=position, overrides=[mixers]))
            hybrids.check_decoding(model.stack)
        with pytest.raises(UsageError, match="no layer has position T5"):
            language(position=T5, attention=GatedConvolution)
        with pytest.raises(UsageError, match="layer 0: window=2 hides keys, which attention GatedConvolution"):
            language(depth=3, window=2, overrides=[mixers])
        with pytest.raises(UsageError, match="has no dot product"):
            GatedConvolution(16, 2, Tiled())
