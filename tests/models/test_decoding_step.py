"""The step of a few tokens gives the numbers of ``Stack.forward``, bit by bit, and serves common parts alone."""

from functools import partial

import pytest
import torch
from torch import nn

from zoo.errors import UsageError
from zoo.models import LanguageModel, stack
from zoo.models.layer_overrides import Override
from zoo.parts.attention import Gaussian, MultiHead
from zoo.parts.backend import Naive
from zoo.parts.block import PostNorm
from zoo.parts.ffn import GEGLU, MoE, SwiGLU
from zoo.parts.norm import RMSNorm
from zoo.parts.position import ALiBi, Learned, NoPosition, RoPE, Sinusoidal

V, LENGTH = 61, 40
SERVED = {
    "gpt2": {"position": Learned},
    "llama": {
        "position": RoPE,
        "norm": RMSNorm,
        "ffn": SwiGLU,
        "attention": partial(MultiHead, bias=False, kv_heads=2),
    },
    "window": {"position": partial(RoPE, fraction=0.5), "window": 7, "ffn": GEGLU},
    "sinusoidal": {"position": Sinusoidal, "embedding_norm": True, "attention": partial(MultiHead, scale=0.3)},
    "two schemes": {"position": RoPE, "overrides": [Override(layers="1", position=partial(RoPE, base=50.0))]},
    "experts": {"position": NoPosition, "ffn": partial(MoE, experts=3, top_k=2)},
    "head widths": {"position": RoPE, "overrides": [Override(layers="1", attention=partial(MultiHead, head_dim=16))]},
    "layers": {"position": RoPE, "overrides": [Override(layers="1", position=NoPosition, window=5, heads=2)]},
}
REFUSED = {
    "bias": {"position": ALiBi},
    "attention": {"attention": Gaussian},
    "qk_norm": {"attention": partial(MultiHead, qk_norm=RMSNorm)},
    "backend": {"backend": Naive},
    "block": {"block": PostNorm},
    "one of two layers": {"overrides": [Override(layers="1", block=PostNorm)]},
}


def language_model(dtype=torch.float32, **parts):
    torch.manual_seed(1)
    return LanguageModel(V, LENGTH, dim=32, depth=2, heads=4, **parts).eval().to(dtype)


@pytest.fixture
def steps(monkeypatch):
    """Whether each single token so far was computed by the step."""
    used, function = [], stack.step_of

    def spy(*arguments):
        result = function(*arguments)
        used.append(result is not None)
        return result

    monkeypatch.setattr(stack, "step_of", spy)
    return used


@torch.no_grad()
def logits(model, rows, length=20):
    """Logits of every step of greedy decoding; the second half goes on with the rows in another order, one left out."""
    state, out = model.begin(LENGTH), []
    torch.manual_seed(2)
    tokens = torch.randint(V, (rows, 9))
    for number in range(length):
        out.append(state.step(tokens))
        tokens = out[-1].argmax(-1, keepdim=True)
        if number == length // 2 and rows > 1:
            order = torch.arange(rows - 1, 0, -1)
            state.select(order)
            tokens = tokens[order]
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("parts", SERVED.values(), ids=SERVED)
@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_are_those_of_the_whole_stack(parts, rows, dtype, steps, monkeypatch):
    model = language_model(dtype, **parts)
    result = logits(model, rows)
    assert steps == [True] * 19
    monkeypatch.setattr(stack, "step_of", lambda *arguments: None)
    assert all(torch.equal(one, other) for one, other in zip(result, logits(model, rows), strict=True))


@torch.no_grad()
def logits_of_guesses(model, rows):
    """Logits behind all tokens of guesses of several lengths; where keys can be forgotten, some are, and read again."""
    state, out = model.begin(LENGTH), []
    torch.manual_seed(3)
    state.step(torch.randint(V, (rows, 4)))
    for count in (3, 1, 5, 3, 9):
        tokens = torch.randint(V, (rows, count))
        out.append(state.logits(tokens, count))
        if count == 3 and state.can_truncate:
            state.truncate(state.caches.length - 2)
            out.append(state.logits(tokens[:, :2], 2))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("parts", SERVED.values(), ids=SERVED)
@pytest.mark.parametrize("rows", [1, 3])
def test_several_tokens_have_the_numbers_of_the_whole_stack(parts, rows, dtype, steps, monkeypatch):
    model = language_model(dtype, **parts)
    result = logits_of_guesses(model, rows)
    assert len(steps) == len(result)
    assert all(steps)
    monkeypatch.setattr(stack, "step_of", lambda *arguments: None)
    assert all(torch.equal(one, other) for one, other in zip(result, logits_of_guesses(model, rows), strict=True))


@torch.no_grad()
def test_many_tokens_take_the_ordinary_way(steps):
    state = language_model().begin(LENGTH)
    for tokens in (1, 11, 10):
        state.step(torch.zeros(3, tokens, dtype=torch.long))
    assert steps == [False, True]


@pytest.mark.parametrize("parts", REFUSED.values(), ids=REFUSED)
def test_other_parts_take_the_ordinary_way(parts, steps):
    logits(language_model(**parts), 2)
    assert steps == [False] * 19


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def alter(model, way):
    """Change what a call of one module of a model computes, in a way that its class does not show."""
    norm, up = model.stack.blocks[1].ffn.norm, model.stack.blocks[0].ffn.part.up
    if way == "hook":
        norm.register_forward_hook(lambda module, inputs, output: output + 1)
    elif way == "pre-hook":
        norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] + inputs[0].cumsum(-1),))
    elif way == "method":
        norm.forward = lambda x: 3 * x
    elif way == "parametrization":
        nn.utils.parametrize.register_parametrization(up, "weight", Doubled())
    elif way == "compiled call":
        norm._compiled_call_impl = lambda x: x - 1
    elif way == "subclass":
        own = type(up)
        up.__class__ = type("Wider", (own,), {"forward": lambda self, x: own.forward(self, x) + 1})


@pytest.mark.parametrize("way", ["hook", "pre-hook", "method", "parametrization", "compiled call", "subclass"])
def test_a_module_that_was_altered_computes_what_it_was_altered_to(way, steps, monkeypatch):
    model = language_model()
    before = logits(model, 1)
    alter(model, way)
    result = logits(model, 1)
    assert not torch.allclose(result[-1], before[-1])
    monkeypatch.setattr(stack, "step_of", lambda *arguments: None)
    assert all(torch.equal(one, other) for one, other in zip(result, logits(model, 1), strict=True))


def test_modes_that_change_what_operations_do_take_the_ordinary_way(steps):
    model = language_model()
    with torch.no_grad():
        state = model.begin(LENGTH)
        token = state.step(torch.zeros(1, 5, dtype=torch.long)).argmax(-1, keepdim=True)
        with torch.autocast("cpu", torch.bfloat16):
            state.step(token)
        assert steps == [False]
        torch.func.vmap(lambda x: x + len(state.step(token)))(torch.zeros(2))
        assert steps == [False, False]
    state.step(token)  # with gradients
    assert steps == [False] * 3
    with torch.no_grad():
        state.step(token)
        assert steps == [False, False, False, True]
        model.train()
        state.step(token)
        assert not steps[-1]
        model.eval().stack.blocks[0].ffn.train()
        state = model.begin(LENGTH)
        for _ in range(2):
            state.step(token)
        assert steps == [False, False, False, True, False, False], "a part in training mode"


@torch.no_grad()
def test_weights_may_change_between_steps(steps):
    model, token = language_model(), torch.zeros(1, 1, dtype=torch.long)
    state = model.begin(LENGTH)
    for _ in range(3):
        state.step(token)
    frozen = state.snapshot()
    before = state.step(token)
    model.stack.blocks[0].ffn.part.up.weight.mul_(3.0)
    state.restore(frozen)
    changed = state.step(token)
    assert all(steps)
    assert not torch.allclose(before, changed)


@torch.no_grad()
def test_tokens_beyond_the_last_position_are_refused(steps):
    state = language_model(position=Learned).begin(LENGTH + 5)
    state.step(torch.zeros(1, LENGTH - 1, dtype=torch.long))
    state.step(torch.zeros(1, 1, dtype=torch.long))
    assert steps == [True]
    with pytest.raises(UsageError, match="max_length"):
        state.step(torch.zeros(1, 1, dtype=torch.long))


@torch.no_grad()
def test_texts_with_padding_take_the_ordinary_way(steps):
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, :2] = False
    state = language_model().begin(LENGTH, valid)
    state.step(torch.zeros(2, 6, dtype=torch.long))
    state.step(torch.zeros(2, 1, dtype=torch.long))
    assert not steps


@pytest.mark.parametrize("place", ["stack", "norm", "ffn"])
@torch.no_grad()
def test_a_subclass_of_the_stack_or_of_a_part_computes_what_it_defines(place):
    model = language_model()
    branch = model.stack.blocks[0].ffn
    part = {"stack": model.stack, "norm": branch.norm, "ffn": branch.part}[place]
    base = type(part)
    part.__class__ = type(
        "Own", (base,), {"forward": lambda self, *x, **options: 2 * base.forward(self, *x, **options)}
    )
    state, prompt = model.begin(LENGTH), torch.zeros(1, 5, dtype=torch.long)
    token = state.step(prompt).argmax(-1, keepdim=True)
    expected = model(torch.cat([prompt, token], 1))[:, -1]
    torch.testing.assert_close(state.step(token), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_subclass_of_the_stack_may_compute_its_blocks_in_its_own_way(steps):
    model = language_model()
    model.stack.__class__ = type("Reversed", (stack.Stack,), {"runs": lambda self, contexts: [(torch.mul, 2)]})
    logits(model, 1, 3)
    assert not steps
