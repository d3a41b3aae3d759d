"""Every scaling of RoPE, drawn at random: frequencies, attention factor and the way back as transformers has them."""

import math
import random

import peers
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from zoo_pretrained.llama import Llama
from zoo_pretrained.rope import plain_rope, read_rope, write_rope

from zoo.errors import UsageError
from zoo.inference.rebuild_task import complete_options
from zoo.parts.position import Extent, RoPE

KINDS = [kind for kind in ROPE_INIT_FUNCTIONS if kind != "proportional"]


def random_config(kind, draw):
    """A configuration of a decoder with one scaling, each optional key there or not."""
    wide, heads, original = 2 * draw.randint(3, 32), draw.randint(1, 4), draw.choice([7, 32, 100, 4096])
    fraction = draw.choice([1.0, 1.0, 0.5]) if wide % 4 == 0 and wide > 8 else 1.0
    pairs = int(wide * fraction) // 2
    factor = draw.choice([1.0, 1.5, 8.0, 40.0])
    needed = {"rope_type": kind, "rope_theta": draw.choice([100.0, 1e4, 5e5]), "partial_rotary_factor": fraction}
    keys = {
        "linear": ({"factor": factor}, {}), "dynamic": ({"factor": factor}, {}),
        "yarn": ({"factor": draw.choice([factor, None])}, {
            "original_max_position_embeddings": original, "beta_fast": draw.choice([32.0, 8.0, 2.0]),
            "beta_slow": draw.choice([1.0, 0.5]), "attention_factor": draw.choice([1.0, 1.3]),
            "mscale": draw.choice([1.0, 0.707]), "mscale_all_dim": draw.choice([1.0, 0.5]),
            "truncate": draw.random() < 0.5,
        }),
        "llama3": (
            {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])},
            {"original_max_position_embeddings": original},
        ),
        "longrope": ({
            "short_factor": [draw.uniform(1, 2) for _ in range(pairs)],
            "long_factor": [draw.uniform(1, 60) for _ in range(pairs)],
        }, {"original_max_position_embeddings": original, "factor": factor, "attention_factor": 1.2}),
    }[kind]  # fmt: skip
    needed |= keys[0] | {key: value for key, value in keys[1].items() if draw.random() < 0.6}
    return wide, {
        "hidden_size": wide * heads, "num_attention_heads": heads, "head_dim": wide, "rope_parameters": needed,
        "max_position_embeddings": original * draw.choice([1, 2, 8]),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_attention_factor_are_those_of_transformers(kind, seed, monkeypatch):
    draw = random.Random(f"{kind} {seed}")
    for number in range(10):
        wide, config = random_config(kind, draw)
        described = dict(config["rope_parameters"])
        options = read_rope({**config, "model_type": "x"}, described, "rope_parameters", partial=True)
        scheme = RoPE(wide, 1, Extent((64,)), **options["init_args"])
        scheme.check(wide)
        with peers.wide(monkeypatch, torch.float64):
            theirs = peers.transformers.LlamaConfig(**{**config, "rope_parameters": dict(described)})
        for length in (1, scheme.original_max_length, scheme.original_max_length + 1, 3 * scheme.original_max_length):
            with peers.wide(monkeypatch, torch.float64):
                rates, attention = ROPE_INIT_FUNCTIONS[kind](theirs, seq_len=length)
                angles = torch.tensor([0.0, 1.0, length - 1.0])[:, None] * rates
                right = torch.stack([angles.cos(), angles.sin()]) * attention
            turned = scheme.waves(torch.tensor([0, 1, length - 1]), wide, torch.float64)
            assert scheme.attention_factor == pytest.approx(attention, rel=1e-12)
            assert torch.stack(turned)[..., 0, :].sub(right[..., 0, :]).abs().max() <= 1e-12
            if length > 1:
                assert torch.stack(turned).sub(right).abs().max() <= 1e-10, described
        if number:  # reading the options of a whole model takes most of this test
            continue
        model = {**Llama.example, "head_dim": wide, "max_position_embeddings": config["max_position_embeddings"]}
        model = complete_options({"class_path": Llama.task, "init_args": {
            **Llama().options(Llama().complete({"model_type": "llama", **model}, "x")), "position": options,
        }})  # fmt: skip
        position = model["init_args"]["position"]
        again = read_rope({**config, "model_type": "x"}, write_rope(position), "rope_parameters", partial=True)
        again = complete_options({**model, "init_args": {**model["init_args"], "position": again}})
        assert plain_rope(again["init_args"]["position"]["init_args"]) == plain_rope(position["init_args"])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_a_scaling_decodes_past_its_original_length_as_transformers_does(kind, monkeypatch):
    """In one pass and in uneven cached steps; the frequencies of dynamic and longrope change on the way."""
    from import_steps import gap
    from zoo_pretrained.tensor_mapping import read_published

    from zoo.inference.rebuild_task import rebuild_task

    scaling = {
        "linear": {"factor": 4.0}, "dynamic": {"factor": 3.0}, "yarn": {"factor": 5.0, "beta_fast": 4.0},
        "llama3": peers.STRETCH,
        "longrope": {"short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 9.0]},
    }[kind]  # fmt: skip
    length = {} if kind in ("linear", "dynamic") else {"original_max_position_embeddings": 12}
    scaling = {"rope_theta": 500.0, **scaling, "rope_type": kind, **length}
    longest = 12 if kind == "dynamic" else 48
    with peers.wide(monkeypatch, torch.float64):
        case = ("LlamaForCausalLM", "LlamaConfig", {
            **peers.LLAMA, "rope_parameters": scaling, "max_position_embeddings": longest, "head_dim": 8,
        })  # fmt: skip
        model = peers.build_peer(case, torch.float64)
        config = Llama().complete({**case[2], "model_type": "llama"}, "config.json")
        task = complete_options({"class_path": Llama.task, "init_args": Llama().options(config)})
        net = rebuild_task({"model": task}, "config.json").net.to(torch.float64).eval()
        mapping = Llama().map_tensors(config)
        net.load_state_dict(read_published(dict(model.state_dict()), mapping, "x").tensors, strict=False)
        tokens = torch.randint(peers.WORDS, (2, 40))
        assert gap(net(tokens), model(tokens).logits) <= 1e-10
        caches, cache = net.stack.caches(40), peers.transformers.DynamicCache()
        for begin, end in ((0, 9), (9, 10), (10, 11), (11, 12), (12, 13), (13, 30), (30, 40)):
            right = model(tokens[:, begin:end], cache=cache, use_cache=True).logits
            assert gap(net(tokens[:, begin:end], None, caches), right) <= 1e-10
        assert net.stack.position.relative == (kind not in ("dynamic", "longrope"))


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"rope_type": "linear"}, "lacks factor"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "lacks long_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": ["x"]}, "long_factor .* numbers above 0"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "factor for each of 4 pairs, got 1"),
        ({"rope_type": "linear", "factor": 0.5}, "rope_scaling: .* scaling_factor >= 1"),
        ({"rope_type": "proportional"}, "There are: default, linear, dynamic, yarn, llama3, longrope"),
        ({"rope_type": "yarn", "factor": -2.0}, "factor=-2.0 is not supported"),
        ({"rope_type": "yarn", "factor": math.nan}, "factor=nan is not supported"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "no partial_rotary_factor would be"),
    ],
)
def test_a_scaling_that_says_too_little_or_nonsense_is_refused(described, words):
    with pytest.raises(UsageError, match=words):
        Llama().options(Llama().complete({**Llama.example, "model_type": "llama", "rope_scaling": described}, "x"))
