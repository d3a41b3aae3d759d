"""gpt-oss (OpenAI, 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo_pretrained.config_keys import flag, real, size
from zoo_pretrained.decoder import MixtureDecoder, relative_keys
from zoo_pretrained.family import Config, Options, inner, width
from zoo_pretrained.llama import ROUTER, Llama
from zoo_pretrained.rope import LIST, write_rope
from zoo_pretrained.tensor_mapping import MappedTensors, Split, TensorRule, Transform, Transposed

YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


class GateAndValue(Transform):
    """Gates and values of an expert, which take turns as columns (dim, 2 width) or numbers (2 width,), as rows of
    gates and then of values.
    """

    def read(self, theirs: list[Tensor]) -> Tensor:
        """(dim, 2 width) to (2 width, dim), or (2 width,) to (2 width,)."""
        rows = theirs[0].T if theirs[0].dim() == 2 else theirs[0]
        return torch.cat([rows[::2], rows[1::2]])

    def write(self, ours: Tensor) -> list[Tensor]:
        """(2 width, dim) to (dim, 2 width), or (2 width,) to (2 width,)."""
        rows = torch.stack(ours.chunk(2), 1).flatten(0, 1)
        return [rows.T if rows.dim() == 2 else rows]


class GptOss(MixtureDecoder, Llama):
    """gpt-oss: a sink in each softmax, a window in every second layer, and experts with bounded gates and biases."""

    name = "gpt_oss"
    types = ("gpt_oss",)
    architectures = ("GptOssForCausalLM",)
    attention: ClassVar = {"class_path": "zoo_frontier.attention.Sinks", "init_args": {}}
    experts = "num_local_experts"
    full_every = 2
    example: ClassVar = {**Llama.example, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 5}
    inside: ClassVar = {
        **{name: theirs for name, theirs in Llama.inside.items() if not name.startswith("ffn.part")},
        "ffn.part.ffn.router": "mlp.router",
    }  # fmt: skip
    keys = relative_keys(
        {
            "vocab_size": size(201088), "hidden_size": size(2880), "intermediate_size": size(2880),
            "num_hidden_layers": size(36), "num_attention_heads": size(64), "num_key_value_heads": size(8),
            "head_dim": size(64), "max_position_embeddings": size(131072), "rms_norm_eps": real(1e-5),
            "rope_theta": real(150000.0), "sliding_window": size(128, optional=True), "layer_types": LIST,
            "num_local_experts": size(128), "num_experts_per_tok": size(4), "swiglu_alpha": real(1.702),
            "swiglu_limit": real(7.0), "router_aux_loss_coef": real(0.001), "attention_bias": flag(True),
        },
        {"hidden_act": ["silu"]}, (*ROUTER, "initial_context_length", "experts_per_token"),
        {"num_experts": "num_local_experts"}, without=("hidden_act",),
    )  # fmt: skip

    def read_position(self, config: Config, number: int) -> Options:
        """RoPE; that of the published models where none is described."""
        if config["rope_parameters"] is None and not config["rope_scaling"]:
            config = {**config, "rope_parameters": YARN}
        return super().read_position(config, number)

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE, said in full."""
        return {"rope_parameters": write_rope(layers[-1]["position"])}

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """The mixture of experts, whose router has a bias."""
        mixture, hidden = super().read_feed(config, number)
        mixture["init_args"]["router_bias"] = True
        return mixture, hidden

    def gated(self, config: Config, key: str = "hidden_act") -> Options:
        """An expert."""
        bounds = {"alpha": config["swiglu_alpha"], "limit": config["swiglu_limit"]}
        return {"class_path": "zoo_frontier.ffn.ClampedSwiGLU", "init_args": bounds}

    def write_gated(self, feed: Any, hidden: int, key: str = "hidden_act", size: str = "intermediate_size") -> Options:
        """The bounds and the width of an expert. Raises KeyError for another one."""
        options = inner(feed)
        return {size: width(hidden, options["multiple_of"]), "swiglu_alpha": options["alpha"],
                "swiglu_limit": options["limit"]}  # fmt: skip

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        base, theirs, ours = super().map_tensors(config), self.layer, "stack.blocks.{n}."
        rules = [*base.rules, TensorRule(f"{theirs}self_attn.sinks", f"{ours}attend.part.sink")]
        for key, name, how in (
            ("gate_up_proj", "up.weight", GateAndValue()), ("gate_up_proj_bias", "up.bias", GateAndValue()),
            ("down_proj", "down.weight", Transposed()), ("down_proj_bias", "down.bias", Transform()),
        ):  # fmt: skip
            experts = (f"{ours}ffn.part.ffn.experts.{e}.{name}" for e in range(config["num_local_experts"]))
            rules.append(TensorRule(f"{theirs}mlp.experts.{key}", tuple(experts), Split(how)))
        return MappedTensors(rules, base.constants, base.copies)
