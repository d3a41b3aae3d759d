"""Parts against the same formula in torch, transformers and timm: a table of part, oracle and largest difference.

``ZOO_ORACLES=FILE pytest -m campaign -n0 tests/campaigns/test_oracles.py`` also writes the table to the file.
"""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from zoo.parts.attention import MultiHead
from zoo.parts.ffn import GEGLU, MLP, Bilinear, ReGLU, SwiGLU
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, Learned, RoPE, Sinusoidal

timm = pytest.importorskip("timm.layers", reason="the oracles are those of the extra [import]")
transformers = pytest.importorskip("transformers", reason="the oracles are those of the extra [import]")
pytestmark = pytest.mark.campaign

DIM, HEADS, LENGTH = 16, 4, 12


def draw(*modules):
    """Random numbers for all parameters of the modules."""
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)


def tokens():
    return torch.randn(2, LENGTH, DIM)


def copy_state(part, oracle, names):
    """Give the oracle the tensors of the part: ``names`` has, by the oracle's name, that of the part and its rows."""
    draw(part, oracle)
    state = part.state_dict()
    tensors = {name: state[source][rows] for name, (source, rows) in names.items()}
    missing = oracle.load_state_dict(tensors, strict=False).missing_keys
    assert not missing, missing


def compare_modules(part, oracle, names):
    copy_state(part, oracle, {name: (source, slice(None)) for name, source in names.items()})
    x = tokens()
    return part(x), oracle(x)


def norm(part, oracle):
    return compare_modules(part, oracle, {name: name for name, _ in oracle.named_parameters()})


def gated(part, oracle, names=("gate_proj", "up_proj", "down_proj")):
    width = part.down.weight.size(1)
    rows = (("up", slice(width)), ("up", slice(width, None)), ("down", slice(None)))
    copy_state(part, oracle, {f"{n}.weight": (f"{s}.weight", r) for n, (s, r) in zip(names, rows, strict=True)})
    x = tokens()
    return part(x), oracle(x)


def llama_mlp(activation):
    from transformers.models.llama.modeling_llama import LlamaMLP

    return LlamaMLP(
        transformers.LlamaConfig(
            hidden_size=DIM, intermediate_size=16, num_attention_heads=HEADS, hidden_act=activation
        )
    )


def timm_mlp(part, act):
    oracle = timm.Mlp(DIM, 24, act_layer=act)
    return compare_modules(part, oracle, {
        f"{theirs}.{kind}": f"{own}.{kind}" for theirs, own in (("fc1", "up"), ("fc2", "down"))
        for kind in ("weight", "bias")
    })  # fmt: skip


def causal():
    return Pattern(causal=True)


def decoder_attention(family, part, extra=(), **options):
    """Grouped attention without positions, whose oracle gets turns by angles of zero."""
    import importlib

    module = importlib.import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
    config = getattr(transformers, f"{family}Config")(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=4, attn_implementation="eager",
        **options,
    )  # fmt: skip
    oracle = getattr(module, f"{family}Attention")(config, 0).eval()
    rows = {"q_proj": slice(0, 16), "k_proj": slice(16, 24), "v_proj": slice(24, 32)}
    names = {f"{name}.weight": ("qkv.weight", place) for name, place in rows.items()}
    names |= {f"{name}.weight": (f"{own}.weight", slice(None)) for name, own in (("o_proj", "out"), *extra)}
    copy_state(part, oracle, names)
    x, hidden = tokens(), torch.full((LENGTH, LENGTH), -1e30).triu(1)[None, None]
    angles = torch.zeros(2, LENGTH, 4)
    theirs = oracle(x, position_embeddings=(angles.cos(), angles.sin()), attention_mask=hidden)[0]
    return part.eval()(x, pattern=causal()), theirs


def torch_attention():
    part, oracle = MultiHead(DIM, HEADS), nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    names = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias", "out_proj.weight": "out.weight"}
    names |= {"out_proj.bias": "out.bias"}
    copy_state(part, oracle, {name: (source, slice(None)) for name, source in names.items()})
    x, mask = tokens(), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return part(x, pattern=causal()), oracle(x, x, x, attn_mask=mask, need_weights=False)[0]


def turns(theirs=None, **options):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": 1e4, **(theirs or {})}
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=HEADS, rope_parameters=rope)
    config.max_position_embeddings = 16
    x, pos = torch.randn(2, HEADS, LENGTH, 8), torch.arange(LENGTH)
    oracle = LlamaRotaryEmbedding(config)
    oracle.inv_freq = oracle.inv_freq.to(x)
    theirs = apply_rotary_pos_emb(x, x, *oracle(x, pos[None]))[0]
    return RoPE(32, HEADS, Extent((64,), causal=True), **options).rotate(x, pos), theirs


def alibi(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    part, pos = ALiBi(DIM, heads, Extent((64,), causal=True)), torch.arange(LENGTH)
    theirs = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float64).view(heads, LENGTH)
    # published models leave out what all keys of a query have in common: its own position
    ours = part.bias(torch.arange(heads)[:, None], pos[-1], pos)
    return ours, theirs - theirs[:, -1:]


def t5():
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(d_model=DIM, num_heads=HEADS, d_kv=4)
    oracle = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    part = T5(DIM, HEADS, Extent((64,)))
    draw(part, oracle)
    table = part.table.detach().reshape(-1, *part.table.shape[-2:])[0]
    with torch.no_grad():
        weight = oracle.relative_attention_bias.weight
        weight.copy_(table if table.shape == weight.shape else table.T)
    pos = torch.arange(40)
    return part.bias(torch.arange(HEADS)[:, None, None], pos[:, None], pos), oracle.compute_bias(40, 40).squeeze()


def sinusoids(layout, **options):
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    if options:
        theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(LENGTH, DIM)
    else:
        table = MarianSinusoidalPositionalEmbedding(LENGTH, DIM)
        theirs = table.create_weight() if hasattr(table, "create_weight") else table.weight
    part = Sinusoidal(DIM, HEADS, Extent((64,)), layout=layout, **options)
    return part.embed(torch.zeros(1, LENGTH, DIM), torch.arange(LENGTH))[0], theirs


def learned():
    part, oracle = Learned(DIM, HEADS, Extent((LENGTH,))), nn.Embedding(LENGTH, DIM)
    x, pos = tokens(), torch.arange(LENGTH)
    copy_state(part, oracle, {"weight": ("table.weight", slice(None))})
    return part.embed(x, pos), x + oracle(pos)


def squared_relu():
    from transformers.models.nemotron.modeling_nemotron import NemotronMLP

    part = pytest.importorskip("zoo_frontier.ffn").SquaredReLU(DIM, 24)
    config = transformers.NemotronConfig(hidden_size=DIM, intermediate_size=24, mlp_bias=False)
    return compare_modules(
        part, NemotronMLP(config), {"up_proj.weight": "up.weight", "down_proj.weight": "down.weight"}
    )


def softcap():
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    part = pytest.importorskip("zoo_frontier.attention").Softcap(DIM, HEADS, cap=2.0).eval()
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, 4)
    part.num_key_value_groups = 1
    mask = torch.full((LENGTH, LENGTH), -1e30).triu(1)[None, None]
    theirs = eager_attention_forward(part, 3 * q, k, v, mask, scaling=0.5, softcap=2.0)[0].transpose(1, 2)
    return part.attend(3 * q, k, v, causal()), theirs


def gemma_norm():
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    return norm(RMSNorm(DIM, offset=1.0), GemmaRMSNorm(DIM))


def llama_norm():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return norm(RMSNorm(DIM), LlamaRMSNorm(DIM))


def yarn_plugin():
    part = pytest.importorskip("zoo_frontier.position").YaRN
    pos, x = torch.arange(LENGTH), torch.randn(2, HEADS, LENGTH, 8)
    options = {"scaling_factor": 4.0, "original_max_length": 16}
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    torch.manual_seed(1)
    _, theirs = turns(scaling)
    torch.manual_seed(1)
    x = torch.randn(2, HEADS, LENGTH, 8)
    return part(32, HEADS, Extent((64,), causal=True), **options).rotate(x, pos), theirs


grouped = partial(MultiHead, DIM, HEADS, kv_heads=2, bias=False)
ORACLES = {
    ("LayerNorm", "torch LayerNorm"): lambda: norm(LayerNorm(DIM), nn.LayerNorm(DIM)),
    ("LayerNorm without bias", "torch LayerNorm"): lambda: norm(
        LayerNorm(DIM, bias=False), nn.LayerNorm(DIM, bias=False)),
    ("RMSNorm", "torch RMSNorm"): lambda: norm(RMSNorm(DIM), nn.RMSNorm(DIM, eps=1e-6)),
    ("RMSNorm", "timm RmsNorm"): lambda: norm(RMSNorm(DIM), timm.RmsNorm(DIM, eps=1e-6)),
    ("RMSNorm", "transformers LlamaRMSNorm"): llama_norm,
    ("RMSNorm offset 1", "transformers GemmaRMSNorm"): gemma_norm,
    ("MLP gelu", "timm Mlp"): lambda: timm_mlp(MLP(DIM, 24), nn.GELU),
    ("MLP relu", "timm Mlp"): lambda: timm_mlp(MLP(DIM, 24, "relu"), nn.ReLU),
    ("MLP gelu_tanh", "timm Mlp"): lambda: timm_mlp(MLP(DIM, 24, "gelu_tanh"), partial(nn.GELU, approximate="tanh")),
    ("MLP swish", "timm Mlp"): lambda: timm_mlp(MLP(DIM, 24, "swish"), nn.SiLU),
    ("SwiGLU", "transformers LlamaMLP"): lambda: gated(SwiGLU(DIM, 24), llama_mlp("silu")),
    ("SwiGLU", "timm SwiGLU"): lambda: gated(
        SwiGLU(DIM, 24), timm.SwiGLU(DIM, 16, bias=False), ("fc1_g", "fc1_x", "fc2")),
    ("GEGLU", "transformers LlamaMLP gelu"): lambda: gated(GEGLU(DIM, 24), llama_mlp("gelu")),
    ("ReGLU", "transformers LlamaMLP relu"): lambda: gated(ReGLU(DIM, 24), llama_mlp("relu")),
    ("Bilinear", "transformers LlamaMLP linear"): lambda: gated(Bilinear(DIM, 24), llama_mlp("linear")),
    ("SquaredReLU", "transformers NemotronMLP"): squared_relu,
    ("MultiHead", "torch MultiheadAttention"): torch_attention,
    ("MultiHead grouped", "transformers LlamaAttention"): lambda: decoder_attention("Llama", grouped()),
    ("MultiHead grouped, qk_norm", "transformers Qwen3Attention"): lambda: decoder_attention(
        "Qwen3", grouped(qk_norm=RMSNorm), (("q_norm", "query_norm"), ("k_norm", "key_norm"))),
    ("Softcap", "transformers Gemma2 attention"): softcap,
    ("RoPE", "transformers LlamaRotaryEmbedding"): turns,
    ("RoPE linear", "transformers linear"): lambda: turns(
        {"rope_type": "linear", "factor": 4.0}, scaling_factor=4.0, scaling={"kind": "linear"}),
    ("RoPE llama3", "transformers llama3"): lambda: turns(
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16}, scaling_factor=4.0, original_max_length=16),
    ("YaRN", "transformers yarn"): yarn_plugin,
    ("ALiBi 8 heads", "transformers build_alibi_tensor"): lambda: alibi(8),
    ("ALiBi 6 heads", "transformers build_alibi_tensor"): lambda: alibi(6),
    ("T5", "transformers T5Attention.compute_bias"): t5,
    ("Sinusoidal halves", "transformers Marian"): lambda: sinusoids("halves"),
    ("Sinusoidal endpoint", "transformers M2M100"): lambda: sinusoids("halves", endpoint=True),
    ("Learned", "torch Embedding"): learned,
}  # fmt: skip


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    if target := os.environ.get("ZOO_ORACLES"):
        lines = [
            "| part | oracle | largest difference |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in sorted(rows)),
        ]
        Path(target).write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.parametrize("case", ORACLES, ids=" = ".join)
@torch.no_grad()
def test_a_part_computes_what_the_field_computes(case, table):
    torch.manual_seed(0)
    ours, theirs = ORACLES[case]()
    assert ours.shape == theirs.shape
    assert ours.std() > 0
    difference = (ours - theirs).abs().max().item()
    table.append((*case, f"{difference:.1e}"))
    assert difference <= 1e-5
