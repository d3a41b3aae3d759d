"""Options of models and parts that published models need: each does what it says and nothing else."""

import math

import pytest
import torch
import torch.nn.functional as F
from small import language, seq2seq, spread, tokens, vit
from torch.testing import assert_close

from zoo.errors import UsageError
from zoo.models import Seq2Seq
from zoo.models.layer_overrides import Override
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA
from zoo.parts.ffn import GEGLU, MLP, MoE
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, Learned, RoPE, Sinusoidal

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
    with pytest.raises(UsageError, match="scale above 0"):
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
