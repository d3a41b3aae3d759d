"""OLMo 2 and 3 (OLMo Team, 2024, 2025)."""

from __future__ import annotations

from typing import ClassVar

from zoo_pretrained.config_keys import flag, real, size
from zoo_pretrained.decoder import KindsOfRoPE, relative_keys
from zoo_pretrained.family import part
from zoo_pretrained.llama import Llama
from zoo_pretrained.rope import LIST

KEYS = {"vocab_size": size(50304), "attention_bias": flag(False), "head_dim": size(None), "rms_norm_eps": real(1e-5)}


class OLMo2(Llama):
    """OLMo 2: norms behind each part, and over the queries and the keys of all heads together."""

    name = "olmo2"
    types = ("olmo2",)
    architectures = ("Olmo2ForCausalLM",)
    keys = relative_keys(KEYS)
    block = part("block.Sandwich", front=False)
    attention = part("attention.MultiHead")
    qk_norm = True
    qk_options: ClassVar = {"joint": True}
    inside: ClassVar = {
        **{name: theirs for name, theirs in Llama.inside.items() if not name.endswith("norm")},
        "attend.behind": "post_attention_layernorm", "ffn.behind": "post_feedforward_layernorm",
        "attend.part.query_norm.norm": "self_attn.q_norm", "attend.part.key_norm.norm": "self_attn.k_norm",
    }  # fmt: skip


class OLMo3(KindsOfRoPE, OLMo2):
    """OLMo 3: OLMo 2 with a window in three layers of four."""

    name = "olmo3"
    types = ("olmo3",)
    architectures = ("Olmo3ForCausalLM",)
    keys = relative_keys(
        {**KEYS, "rope_theta": real(5e5), "sliding_window": size(4096, optional=True), "layer_types": LIST}
    )
    local_base = 5e5  # transformers reads rope_theta for the layers that see all alone
    full_every = 4
