"""Parts against the same formula in torch, transformers and timm: a table of part, oracle and largest difference.

``ZOO_ORACLES=FILE pytest -m campaign -n0 tests/campaigns/test_oracles.py`` also writes the table to the file.
"""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from zoo_optimizers.lion import Lion

from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.block import Context, Parallel, PostNorm, PreNorm, Sandwich
from zoo.parts.ffn import GEGLU, MLP, Bilinear, MoE, ReGLU, SwiGLU
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, Learned, RoPE, Sinusoidal
from zoo.parts.shaw import Shaw
from zoo.tasks.schedule import WSD, Constant, Cosine, InverseSqrt, Linear

timm = pytest.importorskip("timm.layers", reason="the oracles are those of the extra [import]")
timm_optim = pytest.importorskip("timm.optim", reason="the oracles are those of the extra [import]")
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
    names = {f"{name}.weight": ("qkv.weight", part_rows) for name, part_rows in rows.items()}
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


def fill(oracle, tensors):
    """Give the oracle all of its parameters."""
    missing = oracle.load_state_dict(tensors, strict=False).missing_keys
    assert not missing, missing
    return oracle.eval()


def build(module, name, *sizes, **options):
    """A part of a package under plugins/ with random parameters, in evaluation."""
    part = getattr(pytest.importorskip(module), name)(*sizes, **options).eval()
    draw(part)
    return part


def hidden_later():
    """What eager attention of transformers adds to the scores, so that no query sees a later key."""
    return torch.full((LENGTH, LENGTH), -1e30).triu(1)[None, None]


def no_turn(width=4):
    """Cosines and sines of angles of zero."""
    angles = torch.zeros(2, LENGTH, width)
    return angles.cos(), angles.sin()


def sinks():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    part, (q, k, v) = build("zoo_frontier.attention", "Sinks", DIM, HEADS), torch.randn(3, 2, HEADS, LENGTH, 4)
    module = SimpleNamespace(sinks=part.sink, num_key_value_groups=1, training=False)
    theirs = eager_attention_forward(module, q, k, v, hidden_later(), scaling=0.5)[0].transpose(1, 2)
    return part.attend(q, k, v, causal()), theirs


def clamped():
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    part, x = build("zoo_frontier.ffn", "ClampedSwiGLU", DIM, 24, limit=1.0), tokens().flatten(0, 1)
    width = part.down.weight.size(1)
    config = transformers.GptOssConfig(hidden_size=DIM, intermediate_size=width, num_local_experts=1, swiglu_limit=1.0)
    config._experts_implementation = "eager"
    one = torch.ones(len(x), 1)
    oracle = fill(GptOssExperts(config), {
        "gate_up_proj": part.up.weight.view(2, width, DIM).permute(2, 1, 0).reshape(1, DIM, -1),
        "gate_up_proj_bias": part.up.bias.view(2, width).T.reshape(1, -1),
        "down_proj": part.down.weight.T[None], "down_proj_bias": part.down.bias[None],
    })  # fmt: skip
    return part(x), oracle(x, one.long() - 1, one)


def experts(part):
    """The matrices of a mixture's experts by the names that transformers gives them."""
    return {
        "experts.gate_up_proj": torch.stack([expert.up.weight for expert in part.experts]),
        "experts.down_proj": torch.stack([expert.down.weight for expert in part.experts]),
        "gate.weight": part.router.weight,
    }


def mixture():
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    part, x = MoE(DIM, 24, experts=4).eval(), tokens()
    draw(part)
    config = transformers.MixtralConfig(
        hidden_size=DIM, intermediate_size=part.experts[0].down.weight.size(1), num_local_experts=4
    )
    config._experts_implementation = "eager"
    return part(x), fill(MixtralSparseMoeBlock(config), experts(part))(x)


def balanced_mixture():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    part, x = build("zoo_frontier.ffn", "DeepSeekMoE", DIM, 24, experts=4, scale=2.5), tokens()
    width = part.shared[0].down.weight.size(1)
    config = transformers.DeepseekV3Config(
        hidden_size=DIM, moe_intermediate_size=width, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, n_shared_experts=1, routed_scaling_factor=2.5,
    )  # fmt: skip
    config._experts_implementation = "eager"
    gate, up = part.shared[0].up.weight.chunk(2)
    return part(x), fill(DeepseekV3MoE(config), experts(part) | {
        "gate.e_score_correction_bias": part.speed * part.selection_bias, "shared_experts.gate_proj.weight": gate,
        "shared_experts.up_proj.weight": up, "shared_experts.down_proj.weight": part.shared[0].down.weight,
    })(x)  # fmt: skip


def latent():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    part, x = build("zoo_frontier.attention", "MLA", DIM, HEADS, latent_dim=8, rope_dim=4), tokens()
    config = transformers.DeepseekV3Config(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=None, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4, rope_interleave=False, attn_implementation="eager",
    )  # fmt: skip
    oracle = fill(DeepseekV3Attention(config, 0), {
        "q_proj.weight": part.query.weight, "kv_a_proj_with_mqa.weight": part.down.weight,
        "kv_a_layernorm.weight": part.norm.weight, "o_proj.weight": part.out.weight,
        "kv_b_proj.weight": part.up.weight.view(2, HEADS, 4, 8).transpose(0, 1).reshape(-1, 8),
    })  # fmt: skip
    angles = torch.arange(LENGTH)[:, None] * torch.tensor([1.0, 1e-2]).repeat(2)
    turned = angles.cos()[None], angles.sin()[None]
    theirs = oracle(x, position_embeddings=turned, attention_mask=hidden_later())[0]
    position = RoPE(DIM, HEADS, Extent((64,), causal=True))
    return part(x, pattern=causal(), position=position), theirs


def differential():
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

    heads, x = 2, tokens()  # DiffLlama has twice as many, of half the width
    part = build("zoo_frontier.attention", "Differential", DIM, heads, layer=1)
    nn.init.ones_(part.head_norm.weight)
    config = transformers.DiffLlamaConfig(
        hidden_size=DIM, num_attention_heads=4, num_key_value_heads=4, head_dim=4, rms_norm_eps=1e-5,
        attn_implementation="eager",
    )  # fmt: skip
    q, k, v = part.qkv.weight.view(3, heads, 8, DIM)
    l_q1, l_k1, l_q2, l_k2 = part.vectors
    oracle = fill(DiffLlamaAttention(config, 1), {
        "q_proj.weight": torch.cat([q[:, ::2], q[:, 1::2]]).reshape(DIM, DIM),
        "k_proj.weight": torch.cat([k[:, ::2], k[:, 1::2]]).reshape(DIM, DIM),
        "v_proj.weight": torch.cat([v[:, :4], v[:, 4:]]).reshape(DIM, DIM), "o_proj.weight": part.out.weight,
        "lambda_q1": l_q1, "lambda_k1": l_k1, "lambda_q2": l_q2, "lambda_k2": l_k2,
    })  # fmt: skip
    return part(x, pattern=causal()), oracle(x, position_embeddings=no_turn(), attention_mask=hidden_later())[0]


def next_config(**options):
    return transformers.Qwen3NextConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=4, linear_num_value_heads=2,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, rms_norm_eps=1e-5,
        num_hidden_layers=1, layer_types=["linear_attention"], attn_implementation="eager", **options,
    )  # fmt: skip


def delta_rule():
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    part, x = build("zoo_frontier.mixer", "GatedDeltaNet", DIM, 2), tokens()
    rows, (a, b) = part.read.weight[: 4 * DIM].view(4, 2, 8, DIM), part.read.weight[4 * DIM :].view(2, 2, DIM)
    oracle = fill(Qwen3NextGatedDeltaNet(next_config(), 0), {
        "in_proj_qkvz.weight": rows.transpose(0, 1).reshape(-1, DIM),
        "in_proj_ba.weight": torch.stack([b, a], 1).reshape(-1, DIM), "conv1d.weight": part.kernel.T[:, None],
        "dt_bias": part.shift, "A_log": part.rate, "norm.weight": part.head_norm.weight,
        "out_proj.weight": part.write.weight,
    })  # fmt: skip
    return part(x, pattern=causal()), oracle(x)


def gated_attention():
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    x = tokens()
    part = build("zoo_frontier.attention", "GatedAttention", DIM, HEADS, kv_heads=2, bias=False)
    oracle = Qwen3NextAttention(next_config(), 0)
    oracle.q_norm = oracle.k_norm = nn.Identity()  # it has norms of queries and keys beside
    q, k, v = part.qkv.weight.split([16, 8, 8])
    fill(oracle, {
        "q_proj.weight": torch.stack([q.view(HEADS, 4, DIM), part.gate.weight.view(HEADS, 4, DIM)], 1).flatten(0, 2),
        "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": part.out.weight,
    })  # fmt: skip
    return part(x, pattern=causal()), oracle(x, position_embeddings=no_turn(), attention_mask=hidden_later())[0]


def state_space():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    part, x = build("zoo_frontier.mixer", "Mamba2", DIM, 2, state_dim=5), tokens()
    config = transformers.Mamba2Config(
        num_heads=2, hidden_size=DIM, state_size=5, expand=2, head_dim=16, n_groups=1, conv_kernel=4, chunk_size=4,
        use_conv_bias=False, use_bias=False, num_hidden_layers=1,
    )  # fmt: skip
    convolved, gate, step = part.read.weight.split([part.convolved, part.inner, 2])
    oracle = fill(Mamba2Mixer(config, 0), {
        "in_proj.weight": torch.cat([gate, convolved, step]), "conv1d.weight": part.kernel.T[:, None],
        "dt_bias": part.shift, "A_log": part.rate, "D": part.skip, "norm.weight": part.inner_norm.weight,
        "out_proj.weight": part.write.weight,
    })  # fmt: skip
    return part(x, pattern=causal()), oracle(x)


def distances():
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    part, x = Shaw(DIM, HEADS, max_distance=3).eval(), tokens()
    draw(part)
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=DIM, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        left_max_position_embeddings=3, right_max_position_embeddings=3, attn_implementation="eager",
    )  # fmt: skip
    tensors = {"distance_embedding.weight": part.distance_keys.weight}
    for kind in ("weight", "bias"):
        q, k, v = getattr(part.qkv, kind).chunk(3)
        tensors |= {f"linear_{n}.{kind}": t for n, t in zip("qkv", (q, k, v), strict=True)}
        tensors[f"linear_out.{kind}"] = getattr(part.out, kind)
    return part(x, pattern=Pattern()), fill(Wav2Vec2BertSelfAttention(config), tensors)(x)[0]


def block(cls, part_norm=LayerNorm, ffn=None, attention=None, **options):
    part = cls(
        attention or MultiHead(DIM, HEADS), None, ffn or MLP(DIM, 24), partial(part_norm, DIM), 0.0, **options
    ).eval()
    draw(part)
    return part


def plain_block(cls, norm_first):
    part, x = block(cls), tokens()
    oracle = nn.TransformerEncoderLayer(
        DIM, HEADS, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first, layer_norm_eps=1e-5
    )
    names = {"self_attn.in_proj_": "attend.part.qkv.", "self_attn.out_proj.": "attend.part.out."}
    names |= {"linear1.": "ffn.part.up.", "linear2.": "ffn.part.down.", "norm1.": "attend.norm.", "norm2.": "ffn.norm."}
    state = part.state_dict()
    fill(oracle, {f"{theirs}{k}": state[f"{own}{k}"] for theirs, own in names.items() for k in ("weight", "bias")})
    return part(x, Context(Pattern())), oracle.train()(x)  # in evaluation it takes a fused path of another rounding


def sandwich():
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer

    part, x = block(Sandwich, partial(RMSNorm, offset=1.0), GEGLU(DIM, 24), grouped()), tokens()
    width = part.ffn.part.down.weight.size(1)
    config = transformers.Gemma2Config(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=4, intermediate_size=width,
        hidden_activation="gelu", query_pre_attn_scalar=4, attn_logit_softcapping=None, num_hidden_layers=1,
        attn_implementation="eager",
    )  # fmt: skip
    q, k, v = part.attend.part.qkv.weight.split([16, 8, 8])
    gate, up = part.ffn.part.up.weight.chunk(2)
    oracle = fill(Gemma2DecoderLayer(config, 0), {
        "self_attn.q_proj.weight": q, "self_attn.k_proj.weight": k, "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": part.attend.part.out.weight, "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up, "mlp.down_proj.weight": part.ffn.part.down.weight,
        "input_layernorm.weight": part.attend.norm.weight, "pre_feedforward_layernorm.weight": part.ffn.norm.weight,
        "post_attention_layernorm.weight": part.attend.behind.weight,
        "post_feedforward_layernorm.weight": part.ffn.behind.weight,
    })  # fmt: skip
    theirs = oracle(x, position_embeddings=no_turn(), attention_mask=hidden_later())
    return part(x, Context(causal())), theirs[0] if isinstance(theirs, tuple) else theirs


def side_by_side():
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

    part, x = block(Parallel, own_norms=True), tokens()
    config = transformers.GPTNeoXConfig(
        hidden_size=DIM, num_attention_heads=HEADS, intermediate_size=24, hidden_act="gelu",
        use_parallel_residual=True, num_hidden_layers=1, attn_implementation="eager",
    )  # fmt: skip
    state, tensors = part.state_dict(), {}
    names = {"attention.dense": "attend.part.out", "mlp.dense_h_to_4h": "ffn.part.up"}
    names |= {"mlp.dense_4h_to_h": "ffn.part.down", "input_layernorm": "attend.norm"}
    for kind in ("weight", "bias"):
        rows = state[f"attend.part.qkv.{kind}"].unflatten(0, (3, HEADS, 4)).transpose(0, 1).flatten(0, 2)
        tensors |= {f"{theirs}.{kind}": state[f"{own}.{kind}"] for theirs, own in names.items()}
        tensors |= {
            f"attention.query_key_value.{kind}": rows, f"post_attention_layernorm.{kind}": state[f"ffn.norm.{kind}"],
        }  # fmt: skip
    oracle = fill(GPTNeoXLayer(config, 0), tensors)
    theirs = oracle(x, attention_mask=hidden_later(), position_embeddings=no_turn())
    return part(x, Context(causal())), theirs[0] if isinstance(theirs, tuple) else theirs


def scaled_branches():
    from timm.models.vision_transformer import Block

    part, x = block(pytest.importorskip("zoo_frontier.block").LayerScale), tokens()
    oracle = Block(
        DIM, HEADS, mlp_ratio=1.5, qkv_bias=True, init_values=0.5, norm_layer=partial(nn.LayerNorm, eps=1e-5)
    )
    names = {"norm1": "attend.norm", "attn.qkv": "attend.part.qkv", "attn.proj": "attend.part.out", "norm2": "ffn.norm"}
    names |= {"mlp.fc1": "ffn.part.up", "mlp.fc2": "ffn.part.down"}
    state = part.state_dict()
    tensors = {f"{theirs}.{k}": state[f"{own}.{k}"] for theirs, own in names.items() for k in ("weight", "bias")}
    fill(oracle, tensors | {"ls1.gamma": part.attend.scale.weight, "ls2.gamma": part.ffn.scale.weight})
    return part(x, Context(Pattern())), oracle(x)


def kernel(cls):
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, 4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return cls()(q, k, v, causal()), theirs


def near_keys():
    """The mask is transformers' own."""
    from transformers.masking_utils import sliding_window_causal_mask_function
    from transformers.models.mistral.modeling_mistral import eager_attention_forward

    part = build("zoo_efficient.local", "SlidingWindow", DIM, HEADS, width=4)
    place, x = torch.arange(LENGTH), tokens()
    visible = sliding_window_causal_mask_function(4)(0, 0, place[:, None], place)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(~visible, -1e30)[None, None]
    q, k, v = part.qkv(x).unflatten(-1, (3, HEADS, 4)).permute(2, 0, 3, 1, 4)
    module = SimpleNamespace(num_key_value_groups=1, training=False)
    theirs = eager_attention_forward(module, q, k, v, mask, scaling=0.5)[0]
    return part(x, pattern=causal()), part.out(theirs.flatten(2))


def steps_of(cls, oracle, **options):
    """A parameter after five steps by the same random gradients."""
    start, gradients = torch.randn(6, 5), torch.randn(5, 6, 5)
    parameters = [nn.Parameter(start.clone()) for _ in range(2)]
    for make, parameter in zip((cls, oracle), parameters, strict=True):
        optimizer = make([parameter], lr=0.01, **options)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            with torch.enable_grad():
                optimizer.step()
    return parameters[0].detach(), parameters[1].detach()


def rates(ours, make, early=False):
    """Factors of 100 steps. transformers begins the warm-up at 0 and zoo at 1 / warmup: a step ``early`` there."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = make(optimizer, num_warmup_steps=10).lr_lambdas[0]
    theirs = [factor(step + (step < 10 or early)) for step in range(100)]
    return torch.tensor([ours(step) for step in range(100)]), torch.tensor(theirs)


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
    ("Sinks", "transformers gpt-oss attention"): sinks,
    ("ClampedSwiGLU", "transformers GptOssExperts"): clamped,
    ("MoE", "transformers MixtralSparseMoeBlock"): mixture,
    ("DeepSeekMoE", "transformers DeepseekV3MoE"): balanced_mixture,
    ("MLA", "transformers DeepseekV3Attention"): latent,
    ("Differential", "transformers DiffLlamaAttention"): differential,
    ("GatedDeltaNet", "transformers Qwen3NextGatedDeltaNet"): delta_rule,
    ("GatedAttention", "transformers Qwen3NextAttention"): gated_attention,
    ("Mamba2", "transformers Mamba2Mixer"): state_space,
    ("Shaw", "transformers Wav2Vec2BertSelfAttention"): distances,
    ("SlidingWindow", "transformers Mistral attention and mask"): near_keys,
    ("PreNorm", "torch TransformerEncoderLayer"): lambda: plain_block(PreNorm, True),
    ("PostNorm", "torch TransformerEncoderLayer"): lambda: plain_block(PostNorm, False),
    ("Sandwich", "transformers Gemma2DecoderLayer"): sandwich,
    ("Parallel", "transformers GPTNeoXLayer"): side_by_side,
    ("LayerScale", "timm Block"): scaled_branches,
    ("Naive", "torch scaled_dot_product_attention, MATH"): lambda: kernel(Naive),
    ("SDPA", "torch scaled_dot_product_attention, MATH"): lambda: kernel(SDPA),
    ("Tiled", "torch scaled_dot_product_attention, MATH"): lambda: kernel(Tiled),
    ("Lion", "timm Lion"): lambda: steps_of(Lion, timm_optim.Lion, betas=(0.9, 0.99), weight_decay=0.1),
    ("Constant", "transformers constant_with_warmup"): lambda: rates(
        Constant(100, 10), transformers.get_constant_schedule_with_warmup),
    ("Linear", "transformers linear"): lambda: rates(
        Linear(100, 10), partial(transformers.get_linear_schedule_with_warmup, num_training_steps=100)),
    ("Cosine", "transformers cosine"): lambda: rates(
        Cosine(100, 10, floor=0.0), partial(transformers.get_cosine_schedule_with_warmup, num_training_steps=100)),
    ("InverseSqrt", "transformers inverse_sqrt"): lambda: rates(
        InverseSqrt(100, 10), transformers.get_inverse_sqrt_schedule, early=True),
    ("WSD linear", "transformers warmup_stable_decay"): lambda: rates(
        WSD(100, 10, curve="linear"), partial(
            transformers.get_wsd_schedule, num_decay_steps=20, num_training_steps=100, decay_type="linear")),
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


def test_thirty_parts_have_an_oracle():
    assert len({part.split()[0] for part, _ in ORACLES}) >= 30
