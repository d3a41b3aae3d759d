"""Optimizers of named parameters: what each parameter is for, several in one, exact resume, and refusals."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn, optim
from zoo_optimizers.adamw8bit import AdamW8bit, code_values, decode, encode
from zoo_optimizers.lion import Lion

from tests.campaigns.chaos.toys import differences
from tests.tasks.training import build, train
from tests.training.test_resume import At, ask, fit
from zoo.errors import UsageError
from zoo.models.parameter_roles import parameter_roles
from zoo.parts.attention import Additive, MultiHead
from zoo.parts.disentangled import Disentangled
from zoo.parts.ffn import MoE
from zoo.parts.position import T5, Learned, NoPosition
from zoo.tasks.lm import CausalLM
from zoo.tasks.muon import Muon
from zoo.tasks.optimizers import split_by_role
from zoo.tasks.schedule import WSD
from zoo.training.signals import StopRequested

SIZES = {"vocab_size": 23, "max_length": 16, "dim": 16, "depth": 2, "heads": 2}


def language(**options):
    torch.manual_seed(0)
    return CausalLM(**SIZES, **options)


@pytest.mark.parametrize("optimizer", [optim.AdamW, Muon])
@pytest.mark.parametrize(
    ("part", "vector"),
    [(MultiHead, None), (Additive, "score"), (functools.partial(Disentangled, key_bias=False), "qkv.ends")],
)
def test_what_decays_are_matrices_and_what_says_that_it_is_a_vector_never_does(part, vector, optimizer):
    """By shape where a part says nothing; by the role that it declares where it does."""
    make = functools.partial(optimizer, weight_decay=0.1)
    task = language(attention=part, position=NoPosition, optimizer=lambda params, lr: make(params, lr=lr))
    groups = task.make_optimizer().param_groups
    decays = {name: group["weight_decay"] for group in groups for name in group["param_names"]}
    assert decays.keys() == dict(task.named_parameters()).keys()
    for name, parameter in task.named_parameters():
        declared = vector is not None and name.endswith(f"attend.part.{vector}")
        assert (decays[name] > 0) == (parameter.dim() > 1 and not declared), name
    assert vector is None or any(name.endswith(vector) for name in decays)


def make_steps(task, optimizer, count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        tokens = torch.randint(23, (4, 9), generator=draw)
        total, size = task.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
        optimizer.zero_grad()
        (total / size).backward()
        optimizer.step()


def test_roles_of_the_parameters_of_a_language_model():
    roles = parameter_roles(language(tie=False, ffn=MoE, position=Learned).net)
    assert roles["embedding.weight"] == roles["stack.position.table.weight"] == "embedding"
    assert roles["head.weight"] == "head"
    assert roles["stack.norm.weight"] == "vector"
    assert {role for name, role in roles.items() if ".blocks." in name} == {"matrix", "vector"}
    assert parameter_roles(language(position=T5).net)["stack.position.table"] == "embedding"


def test_a_module_may_declare_roles():
    class Mixer(nn.Linear):
        parameter_roles = {"weight": "embedding"}  # noqa: RUF012

    assert parameter_roles(nn.Sequential(Mixer(2, 2), nn.Linear(2, 2))) == {
        "0.weight": "embedding", "0.bias": "vector", "1.weight": "matrix", "1.bias": "vector",
    }  # fmt: skip


def test_optimizers_are_given_names_and_the_groups_of_before():
    task = language()
    optimizer = task.make_optimizer()
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    grouped = [p for group in optimizer.param_groups for p in group["params"]]
    assert dict(zip(names, grouped, strict=True)) == dict(task.named_parameters())
    torch_adamw = optim.AdamW(task.groups(), task.lr)
    assert [[id(p) for p in group["params"]] for group in torch_adamw.param_groups] == [
        [id(p) for p in group["params"]] for group in optimizer.param_groups
    ]


def test_a_state_of_before_names_goes_on():
    task, other = language(), language()
    torch_adamw = optim.AdamW(task.groups(), task.lr)
    make_steps(task, torch_adamw, 3)
    other.load_state_dict(task.state_dict())
    optimizer_of_names = other.make_optimizer()
    optimizer_of_names.load_state_dict(copy.deepcopy(torch_adamw.state_dict()))
    assert optimizer_of_names.param_groups[0]["param_names"]
    for each, optimizer in ((task, torch_adamw), (other, optimizer_of_names)):
        make_steps(each, optimizer, 2, seed=1)
    for a, b in zip(task.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_muon_moves_matrices_by_orthogonal_steps_and_the_rest_as_adamw():
    task, twin = language(optimizer=functools.partial(Muon, weight_decay=0.0)), language()
    before = {name: p.detach().clone() for name, p in task.named_parameters()}
    muon = task.make_optimizer()
    adamw = optim.AdamW(twin.groups(), twin.lr, betas=(0.9, 0.95), weight_decay=0.0)
    make_steps(task, muon, 1)
    make_steps(twin, adamw, 1)
    roles = parameter_roles(task)
    others = dict(twin.named_parameters())
    for name, p in task.named_parameters():
        step = (p.detach() - before[name]) / task.lr
        if roles[name] == "matrix":
            sizes = torch.linalg.svdvals(step) / (0.2 * max(p.shape) ** 0.5)
            assert sizes.max() < 1.3, name
            assert (sizes > 0.4).float().mean() > 0.8, name
        else:
            torch.testing.assert_close(p, others[name])


def test_muon_gives_each_group_its_rate():
    task = language(optimizer=functools.partial(Muon, adamw_rate=0.5))
    task.rates = {name: 0.1 for name, _ in task.net.named_parameters() if "blocks.0" in name}
    rates = {}
    for group in task.make_optimizer().param_groups:
        rates |= dict.fromkeys(group["param_names"], group["lr"] / task.lr)
    assert rates["net.stack.blocks.0.ffn.part.up.weight"] == pytest.approx(0.1)
    assert rates["net.stack.blocks.1.ffn.part.up.weight"] == pytest.approx(1)
    assert rates["net.stack.blocks.0.ffn.part.up.bias"] == pytest.approx(0.05)
    assert rates["net.embedding.weight"] == pytest.approx(0.5)


def test_a_network_without_matrices_or_without_others_has_one_member():
    assert [type(one) for one in Muon([("a", nn.Parameter(torch.ones(3)))]).members] == [optim.AdamW]
    assert [type(one) for one in Muon([("a", nn.Parameter(torch.ones(3, 3)))]).members] == [optim.Muon]
    with pytest.raises(UsageError, match="named_parameters"):
        split_by_role([nn.Parameter(torch.ones(3))])


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("optimizer", [Muon, Lion, functools.partial(AdamW8bit, smallest=1), optim.AdamW])
def test_a_copy_of_an_optimizer_steps_by_itself_as_the_original_does(optimizer, copied):
    task = language(optimizer=optimizer)
    original = task.make_optimizer()
    make_steps(task, original, 1)
    net, twin = copied((task.net, original))
    before = [p.detach().clone() for p in task.net.parameters()]
    for p in (*net.parameters(), *task.net.parameters()):
        p.grad = torch.ones_like(p)
    twin.step()
    assert all(torch.equal(a, b) for a, b in zip(before, task.net.parameters(), strict=True))
    original.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), task.net.parameters(), strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


REFUSED = {
    optim.LBFGS: "LBFGS doesn't support per-parameter options",
    optim.SparseAdam: "sparse gradients",
    optim.Muon: "only supports 2D parameters",
}


@pytest.mark.parametrize("optimizer", REFUSED)
def test_what_cannot_train_is_refused_in_a_sentence(optimizer):
    with pytest.raises(UsageError, match=REFUSED[optimizer]) as refusal:
        language(optimizer=optimizer).make_optimizer()
    assert "zoo list optimizer" in str(refusal.value)


def test_an_optimizer_that_needs_a_closure_is_refused():
    class Searches(optim.SGD):
        def step(self, closure):
            return closure()

    with pytest.raises(UsageError, match="Searches needs the loss computed again"):
        language(optimizer=Searches).make_optimizer()


def state_bytes(optimizer):
    """Bytes of the moments of each parameter."""
    return {
        p: sum(value.nbytes for name, value in state.items() if name.startswith(("exp_avg", "state", "absmax")))
        for p, state in optimizer.state.items()
    }


def test_moments_in_8_bits_take_a_quarter_and_steps_are_nearly_adamws():
    tasks = [language(), language()]
    optimizers = [AdamW8bit(parameters_of(tasks[0]), 1e-3, smallest=1), optim.AdamW(parameters_of(tasks[1]), 1e-3)]
    before = [p.detach().clone() for p in tasks[0].parameters()]
    for task, optimizer in zip(tasks, optimizers, strict=True):
        make_steps(task, optimizer, 5)
    narrow, wide = (state_bytes(optimizer) for optimizer in optimizers)
    for p, q in zip(tasks[0].parameters(), tasks[1].parameters(), strict=True):
        if p.numel() % 256 == 0:
            assert narrow[p] == p.numel() * 2 + p.numel() // 256 * 8
            assert wide[q] == p.numel() * 8
    ends = [torch.cat([p.detach().flatten() for p in task.parameters()]) for task in tasks]
    way = ends[1] - torch.cat([old.flatten() for old in before])
    assert 0 < (ends[0] - ends[1]).norm() < 0.1 * way.norm()  # 0.2 for single vectors, whose blocks are small


def parameters_of(task):
    return list(task.named_parameters())


def test_moments_keep_their_width_in_float64_and_in_small_tensors():
    tensors = [torch.randn(8, dtype=torch.float64), torch.randn(8), torch.randn(3, 4)]
    ours, torchs = ([nn.Parameter(tensor.clone()) for tensor in tensors] for _ in range(2))
    optimizers = [AdamW8bit(ours, weight_decay=0.1), optim.AdamW(torchs, weight_decay=0.1)]
    for seed in range(4):
        torch.manual_seed(seed)
        for pair in zip(ours, torchs, strict=True):
            pair[0].grad = torch.randn_like(pair[0])
            pair[1].grad = pair[0].grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6 if mine.dtype == torch.float32 else 1e-14, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-12, 0.1, 1e12])
@pytest.mark.parametrize("smallest", [1, 10**6])
def test_numbers_without_gradient_stay_whatever_their_neighbours_do(dtype, scale, smallest):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(5000, dtype=dtype))
    optimizer = AdamW8bit([weight], lr=1e-2, weight_decay=0.0, smallest=smallest)
    still = torch.rand(5000) < 0.3
    still[256:512] = True  # a whole block
    for _ in range(20):
        weight.grad = (torch.randn(5000) * scale).masked_fill(still, 0.0).to(dtype)
        optimizer.step()
    assert (weight[still] == 1).all()
    assert scale < 1e-9 or (weight[~still] != 1).float().mean() > 0.9


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_the_nearest_of_their_block(signed):
    numbers = torch.randn(256 * 7 + 3) * torch.rand(256 * 7 + 3).pow(8)
    numbers = (numbers if signed else numbers.abs()).clone()
    numbers[:9] = 0.0
    codes, scales = encode(numbers, signed)
    values = code_values(signed, numbers.device)
    assert values.tolist() == sorted(values.tolist())
    assert len(values.unique()) == 256
    for start in range(0, len(numbers), 256):
        block, scale = numbers[start : start + 256], scales[start // 256]
        assert scale == block.abs().max()
        gaps = (block[:, None] / scale - (values if signed else values[1:])).abs()
        errors = (block / scale - values[codes[start : start + 256].long()]).abs()
        assert (errors[block != 0] <= (gaps.amin(1) + 2**-9 * (block / scale).abs() + 1e-9)[block != 0]).all()
    assert (decode(codes, scales, signed)[:9] == 0).all()


@pytest.mark.parametrize(("option", "value"), [("betas", (1.0, 0.9)), ("eps", 0.0), ("smallest", 0)])
def test_an_impossible_option_of_8_bits_is_refused(option, value):
    with pytest.raises(UsageError, match=f"optimizer.{option}"):
        AdamW8bit([nn.Parameter(torch.ones(2))], **{option: value})


@pytest.mark.parametrize("optimizer", [Muon, Lion, functools.partial(AdamW8bit, smallest=1)])
def test_a_run_goes_on_bit_for_bit(optimizer, tmp_path, monkeypatch):
    options = {"optimizer": optimizer, "schedule": functools.partial(WSD, warmup=3, decay=0.5)}
    monkeypatch.setattr("tests.training.test_resume.build", functools.partial(build, **options))
    whole, _ = fit("lm", tmp_path / "whole")
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [At("on_train_batch_end", 7, ask)])
    resumed, _ = fit("lm", tmp_path / "cut", resume=True)
    assert differences(resumed, whole) == []


def test_an_optimizer_may_have_other_weights_for_evaluation(tmp_path):
    """It is told before each batch of training and each validation, and validations come last."""
    calls = []

    class Swapping(optim.AdamW):
        def train(self):
            calls.append("train")

        def eval(self):
            calls.append("eval")

    train("lm", 4, tmp_path, {"optimizer": Swapping}, max_steps=4, val_check_interval=2)
    assert calls[-6:] == ["train", "train", "eval", "train", "train", "eval"]
