"""Initial weights depend on the seed and on a module's name, and on nothing else."""

import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small import KINDS, language, names, part_options, seq2seq, tokens, vit
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import Adam, AdamW, Optimizer
from zoo_optimizers.adamw8bit import AdamW8bit
from zoo_optimizers.lion import Lion

from tests.covering import covering_params
from zoo.conformance.coordinates import slopes
from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.models.initialization import GPT2, FanIn, MuP, Xavier, derive_seed, initialize
from zoo.models.layer_overrides import Override
from zoo.models.seq2seq import Seq2Seq
from zoo.parts.ffn import FFN, MLP, MoE
from zoo.parts.norm import RMSNorm
from zoo.tasks.lm import CausalLM
from zoo.tasks.muon import Muon

MODELS = {"LanguageModel": language, "Seq2Seq": seq2seq, "ViT": vit}
models = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
# what a kind owns in a model's state
OWN_TENSORS = {
    "position": (".position.",), "backend": (), "attention": (".attend.part.", ".cross.part."), "norm": ("norm.",),
    "ffn": (".ffn.part.",), "block": ("norm.", ".behind."),
}  # fmt: skip


def every_tensor(model):
    return dict(itertools.chain(model.named_parameters(), model.named_buffers()))


@models
@pytest.mark.parametrize("kind", KINDS)
def test_a_swap_of_one_part_leaves_every_other_tensor_bit_identical(build, kind):
    def state(name):
        return every_tensor(build(**part_options({"position": "NoPosition", kind: name})))

    fixed = None
    for name in names(kind):
        if kind == "backend" and name == "Flash" and build is seq2seq:
            continue  # it takes no padding
        others = {
            key: value for key, value in state(name).items() if not any(mine in key for mine in OWN_TENSORS[kind])
        }
        fixed = others if fixed is None else fixed
        assert others.keys() == fixed.keys(), name
        assert [key for key in others if not torch.equal(others[key], fixed[key])] == [], name
    assert len(fixed) > 5


@models
def test_a_deeper_model_starts_with_the_blocks_of_a_shallow_one(build):
    shallow, deep = every_tensor(build(depth=1)), every_tensor(build(depth=3))
    assert shallow.keys() < deep.keys()
    assert all(torch.equal(value, deep[key]) for key, value in shallow.items())


@models
@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("ffn", ["MLP", "MoE"])
def test_the_global_generator_is_neither_used_nor_moved(build, position, ffn):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model = build(**part_options({"position": position, "ffn": ffn}))
        initialize(model)
        states.append(every_tensor(model))
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_generators_of_other_devices_are_left_alone(monkeypatch):
    """torch.manual_seed seeds every GPU, present or to come: its dropout would be the same whatever the user's seed."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded the GPUs"))
    language()


@models
def test_no_two_modules_start_alike(build):
    matrices = [value for value in every_tensor(build(depth=3)).values() if value.dim() > 1]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(matrices, 2))


@models
def test_another_seed_is_another_start(build):
    one, two = every_tensor(build(seed=0)), every_tensor(build(seed=1))
    matrices = [key for key, value in one.items() if value.dim() > 1]
    assert matrices
    assert not any(torch.equal(one[key], two[key]) for key in matrices)


@models
@pytest.mark.parametrize("parts", [{"position": p} for p in names("position")] + [{"ffn": f} for f in names("ffn")]
                         + [{"attention": a, "position": "Learned"} for a in names("attention")], ids=str)  # fmt: skip
def test_a_model_planned_on_the_meta_device_becomes_the_same_model(build, parts):
    with torch.device("meta"):
        planned = build(**part_options(parts))
    assert all(tensor.is_meta for tensor in every_tensor(planned).values())
    planned.to_empty(device="cpu")
    for tensor in every_tensor(planned).values():
        tensor.detach().fill_(7)  # whatever the memory held
    initialize(planned)
    usual = every_tensor(build(**part_options(parts)))
    assert [key for key, value in every_tensor(planned).items() if not torch.equal(value, usual[key])] == []


def test_matrices_have_the_documented_spread_biases_are_zero_and_norms_are_one():
    model = LanguageModel(400, 16, dim=128, depth=2, heads=2, tie=False, norm=RMSNorm)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.std().item() == pytest.approx((3 * parameter.size(1)) ** -0.5, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.003, name


@pytest.mark.parametrize(
    ("tie", "scale", "block", "position"),
    covering_params([True, False], [True, False], names("block"), ["RoPE", "Learned"]),
)
@torch.no_grad()
def test_the_first_loss_of_a_language_model_is_that_of_guessing(tie, scale, block, position):
    words = 50257
    model = LanguageModel(
        words, 64, tie, scale, dim=64, depth=3, heads=4, **part_options({"position": position, "block": block})
    )
    x = torch.randint(words, (8, 33))
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(words), rel=0.05)


@models
def test_a_saved_model_loads_into_a_new_one_and_computes_the_same(build, tmp_path):
    model, other = build(seed=0).eval(), build(seed=1).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.manual_seed(0)
    inputs = {vit: (torch.randn(2, 1, 12, 12),), seq2seq: (tokens(2, 5), tokens(2, 4))}.get(build, (tokens(2, 5),))
    assert torch.equal(model(*inputs), other(*inputs))


def test_the_rule_of_before_is_the_default_bit_for_bit():
    models = [language(seed=3), language(seed=3, init=FanIn)]
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_gpt2_scales_what_writes_into_the_stream():
    net = LanguageModel(500, 16, dim=64, depth=3, heads=4, init=GPT2, ffn=MoE, overrides=[Override(last=1, ffn=MLP)])
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            writes = name.rpartition(".weight")[0].rpartition(".")[2] in ("out", "down")
            std = 0.02 / 6**0.5 if writes else 0.02  # three blocks write twice
            assert parameter.std().item() == pytest.approx(std, rel=0.12), name
    sizes = {"dim": 64, "depth": 2, "heads": 4, "decoder_depth": 3, "init": GPT2}
    pair = Seq2Seq(50, 50, 16, **sizes)
    assert pair.encoder.blocks[0].attend.part.out.weight.std().item() == pytest.approx(0.02 / 4**0.5, rel=0.1)
    assert pair.decoder.blocks[0].attend.part.out.weight.std().item() == pytest.approx(0.02 / 9**0.5, rel=0.1)


def test_xavier_is_uniform():
    net = LanguageModel(50, 16, dim=64, depth=1, heads=4, init=Xavier)
    weight = net.stack.blocks[0].attend.part.qkv.weight
    assert weight.abs().max().item() == pytest.approx((6 / (64 + 192)) ** 0.5, rel=0.01)


def test_mup_is_fan_in_at_its_base_and_scales_output_and_rates_above():
    sizes = {"vocab_size": 40, "max_length": 16, "depth": 1, "tie": False}
    base, wide = (CausalLM(dim=dim, heads=dim // 16, init=MuP, **sizes) for dim in (64, 256))
    torch.manual_seed(base._seed)
    standard = CausalLM(dim=64, heads=4, **sizes)
    assert all(torch.equal(a, b) for a, b in zip(base.parameters(), standard.parameters(), strict=True))
    assert {group["lr"] for group in base.make_optimizer().param_groups} == {base.lr}
    spread = {name: parameter.std().item() for name, parameter in wide.net.named_parameters()}
    assert spread["embedding.weight"] == pytest.approx((3 * 64) ** -0.5, rel=0.03)
    assert spread["head.weight"] == pytest.approx((3 * 256) ** -0.5 / 2, rel=0.03)
    assert spread["stack.blocks.0.ffn.part.down.weight"] == pytest.approx((3 * 1024) ** -0.5, rel=0.03)
    rates = {}
    for group in wide.make_optimizer().param_groups:
        rates |= dict.fromkeys(group["param_names"], group["lr"] / wide.lr)
    assert rates["net.embedding.weight"] == rates["net.stack.norm.weight"] == 1
    assert rates["net.head.weight"] == rates["net.stack.blocks.0.attend.part.qkv.weight"] == pytest.approx(0.25)


def test_mup_refuses_a_tied_output():
    sizes = {"vocab_size": 40, "max_length": 16, "dim": 32, "heads": 2, "depth": 1, "init": MuP}
    with pytest.raises(UsageError, match=r"model\.tie"):
        CausalLM(**sizes).make_optimizer()


def blocks_change(optimizer, dim, lr):
    """The change of the last block's output by three steps of the blocks' matrices alone, root mean square."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "max_length": 16, "dim": dim, "depth": 2, "heads": dim // 16, "tie": False}
    task = CausalLM(**sizes, init=MuP, optimizer=optimizer, lr=lr)
    tokens = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(0))
    steps, outputs = task.make_optimizer(), []
    task.net.stack.blocks[-1].register_forward_hook(lambda module, args, out: outputs.append(out.detach()))
    for _ in range(4):
        F.cross_entropy(task.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for name, parameter in task.net.named_parameters():
            if "blocks" not in name or parameter.dim() < 2:
                parameter.grad = None
        steps.step()
        steps.zero_grad()
    return (outputs[-1] - outputs[0]).square().mean().sqrt().item()


TORCH_OPTIMIZERS = [cls for cls in vars(torch.optim).values() if isinstance(cls, type) and cls is not Optimizer]
ZOO_OPTIMIZERS = [Lion, Muon, partial(Muon, adjust_lr="original"), partial(AdamW8bit, smallest=1)]


@pytest.mark.parametrize("optimizer", [*TORCH_OPTIMIZERS, *ZOO_OPTIMIZERS], ids=lambda cls: str(cls)[-60:])
def test_with_mup_an_optimizer_moves_blocks_alike_at_any_width_or_is_refused(optimizer):
    lr = 2e-2 if getattr(optimizer, "keywords", {}).get("adjust_lr") else 1e-3
    try:
        narrow = blocks_change(optimizer, 64, lr)
    except UsageError:
        assert optimizer in TORCH_OPTIMIZERS
        assert optimizer not in (AdamW, Adam)
        return
    assert 0.7 < blocks_change(optimizer, 256, lr) / narrow < 1.4


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adafactor, torch.optim.RAdam])
def test_mup_refuses_optimizers_whose_steps_grow_otherwise(optimizer):
    sizes = {"vocab_size": 40, "max_length": 16, "dim": 32, "heads": 2, "depth": 1, "init": MuP, "tie": False}
    with pytest.raises(UsageError, match=rf"model\.optimizer is {optimizer.__name__}"):
        CausalLM(**sizes, optimizer=optimizer).make_optimizer()


def test_activations_change_as_much_at_any_width_with_mup_alone():
    widths = (32, 128)
    flat, grows = slopes(MuP, widths, steps=3), slopes(FanIn, widths, steps=3)
    assert all(abs(slope) < 0.25 for slope in flat.values()), flat
    assert all(grows[name] > 0.5 for name in ("block 0", "block 1")), grows


class ClosedMLP(MLP):
    """Its matrices are layers below it, which it draws by itself: a branch that starts closed, with open gates."""

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.up.weight, gain=0.5**0.5)
        nn.init.ones_(self.up.bias)
        nn.init.zeros_(self.down.weight)


class ZeroLinear(nn.Linear):
    """A matrix that starts at zero."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)


class OwnMatrix(MLP):
    """One of its layers draws itself."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.down = ZeroLinear(hidden, dim)


class ShiftedMLP(ClosedMLP):
    """It has a tensor of its own beside the layers that it draws."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.shift = nn.Parameter(torch.empty(dim))

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.normal_(self.shift)


class Outer(FFN):
    """It changes what a part within it has drawn."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.inner = ShiftedMLP(dim, hidden)

    def reset_parameters(self):
        nn.init.constant_(self.inner.down.weight, 0.5)


class ParameterListMLP(FFN):
    """Its tensors are in a list and in a dictionary of parameters alone."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        self.up = nn.ParameterList([torch.empty(hidden, dim), torch.empty(hidden)])
        self.down = nn.ParameterDict({"weight": torch.empty(dim, hidden)})

    def reset_parameters(self):
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)


class WeightNormed(MLP):
    """Direction and length of its matrices are parameters (Salimans and Kingma, 2016)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        weight_norm(self.up)
        self.down = weight_norm(nn.Linear(hidden, dim, bias=False))


class SpectralNormed(MLP):
    """Its matrices are divided by their largest singular values (Miyato et al., 2018)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__(dim, hidden)
        spectral_norm(self.up)
        self.down = spectral_norm(nn.Linear(hidden, dim, bias=False))


AUTHORS_PARTS = {  # and what they start with, by the names of tensors in them
    ClosedMLP: {"up.bias": 1.0, "down.weight": 0.0},
    OwnMatrix: {"down.weight": 0.0, "down.bias": 1.0},
    ShiftedMLP: {"up.bias": 1.0, "down.weight": 0.0},
    Outer: {"inner.up.bias": 1.0, "inner.down.weight": 0.5},
    ParameterListMLP: {},
    WeightNormed: {},
    SpectralNormed: {},
}


@pytest.mark.parametrize("rule", [FanIn, Xavier, GPT2, MuP])
@pytest.mark.parametrize("part", AUTHORS_PARTS)
def test_what_a_part_resets_itself_is_what_a_model_starts_with(part, rule):
    """Whether its tensors are its own, those of layers below it, or in containers, and on the meta device too."""

    def build(**options):
        return language(ffn=part, init=rule, **options)

    models = []
    for state in (1, 2):
        torch.manual_seed(state)
        models.append(build())
        assert torch.equal(torch.get_rng_state(), torch.manual_seed(state).get_state())
    with torch.device("meta"):
        models.append(build())
    models[-1].to_empty(device="cpu")
    initialize(models[-1])
    first, *others = map(every_tensor, models)
    for tensors in others:
        assert [key for key, value in tensors.items() if not torch.equal(value, first[key])] == []
    place = "stack.blocks.0.ffn.part"
    for name, value in AUTHORS_PARTS[part].items():
        assert (first[f"{place}.{name}"] == value).all(), name
    start = {name: value.clone() for name, value in first.items()}
    if part in (ClosedMLP, ShiftedMLP, ParameterListMLP):  # the numbers are those of its own name's seed
        torch.manual_seed(derive_seed(0, place))
        models[0].get_submodule(place).reset_parameters()
        assert all(torch.equal(value, start[name]) for name, value in first.items())
    seeded = every_tensor(build(seed=1))
    same = {name for name, value in first.items() if name.startswith(place) and torch.equal(value, seeded[name])}
    assert all((first[name] == first[name].flatten()[0]).all() for name in same)  # constants
    assert len(same) < sum(name.startswith(place) for name in first)


def test_a_parametrized_matrix_starts_as_a_plain_one():
    matrices, normed = language(ffn=MLP), language(ffn=WeightNormed)
    for one, other in zip(matrices.stack.blocks, normed.stack.blocks, strict=True):
        for name in ("up", "down"):
            expected, weight = (block.ffn.part.get_submodule(name).weight for block in (one, other))
            torch.testing.assert_close(weight, expected)


def test_a_spectral_norm_divides_by_the_singular_value_of_the_matrix_that_was_drawn():
    part = language(ffn=SpectralNormed).eval().stack.blocks[0].ffn.part
    for layer in (part.up, part.down):
        assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(1.0, rel=0.02)


def test_torch_has_no_last_word_on_matrices():
    """What torch's own module draws in layers below it is drawn by the rule."""
    loss = nn.AdaptiveLogSoftmaxWithLoss(48, 90, [20, 40])
    initialize(loss)
    assert loss.head.weight.std().item() == pytest.approx((3 * 48) ** -0.5, rel=0.05)


@pytest.mark.parametrize(
    "lazy", [partial(nn.LazyLinear, 16), partial(nn.LazyBatchNorm1d, affine=False), partial(nn.LazyConv1d, 16, 1)]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_has_no_sizes_yet_is_refused_by_its_name(lazy, device):
    class Part(FFN):
        def __init__(self, dim, hidden):
            super().__init__(dim, hidden)
            self.inner = lazy()

    with torch.device(device), pytest.raises(UsageError, match=r"ffn\.part\.inner: Lazy\w+ has no sizes .* take [A-Z]"):
        LanguageModel(11, 16, dim=16, depth=1, heads=2, ffn=Part)
