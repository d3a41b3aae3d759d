"""DeepSeek-V2 and V3 (DeepSeek-AI, 2024): attention through latents, and shared experts beside routed ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from zoo.errors import UsageError
from zoo_pretrained.config_keys import flag, real, size, word
from zoo_pretrained.decoder import Decoder, MixtureDecoder, relative_keys
from zoo_pretrained.family import Config, Options, budget, inner, unsupported_value
from zoo_pretrained.neox import Permuted
from zoo_pretrained.rope import rope_object
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule, Transform

SIZES = {
    "kv_lora_rank": size(512), "q_lora_rank": size(1536, optional=True), "qk_nope_head_dim": size(128),
    "qk_rope_head_dim": size(64), "v_head_dim": size(128), "head_dim": size(None),
}  # fmt: skip
TRAINING = ("ep_size", "qk_head_dim", "seq_aux", "output_router_logits", "router_aux_loss_coef")


def sharpness(rope: Mapping[str, Any]) -> float:
    """The factor on queries, and on keys, of a RoPE: 1 + mscale_all_dim ln(factor) / 10, where it is scaled."""
    kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor") or 1.0
    power = rope.get("mscale_all_dim") or 0.0 if kind != "default" else 0.0
    return 0.1 * power * math.log(factor) + 1.0 if factor > 1 else 1.0


class DeepSeekV2(MixtureDecoder):
    """DeepSeek-V2 and V2-Lite: the likeliest experts, within the likeliest groups where there are some."""

    name = "deepseek_v2"
    types = ("deepseek_v2",)
    architectures = ("DeepseekV2ForCausalLM",)
    attention: ClassVar = {"class_path": "zoo_frontier.attention.MLA", "init_args": {}}
    experts, expert_width, shared = "n_routed_experts", "moe_intermediate_size", "mlp.shared_experts"
    mixture = "SharedMoE"
    places: ClassVar = {
        **{key: place for key, place in Decoder.places.items() if not place.startswith("attention.")},
        "kv_lora_rank": "attention.latent_dim", "q_lora_rank": "attention.query_latent_dim",
        "qk_nope_head_dim": "attention.head_dim", "qk_rope_head_dim": "attention.rope_dim",
        "v_head_dim": "attention.value_dim",
    }  # fmt: skip
    keys = relative_keys(
        {
            **SIZES, "vocab_size": size(102400), "hidden_size": size(4096), "num_key_value_heads": size(None),
            "moe_intermediate_size": size(1407), "n_routed_experts": size(64), "n_shared_experts": size(2),
            "num_experts_per_tok": size(None), "routed_scaling_factor": real(1.0), "n_group": size(None),
            "topk_group": size(None), "topk_method": word("greedy"), "first_k_dense_replace": size(0, 0),
            "aux_loss_alpha": real(0.001),
        },
        {
            "attention_bias": [False], "norm_topk_prob": [False, None], "moe_layer_freq": [1],
            "scoring_func": ["softmax"],
        },
        TRAINING, {"num_experts": "n_routed_experts"},
    )  # fmt: skip
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 16, "kv_lora_rank": 10, "q_lora_rank": 6, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 5, "moe_intermediate_size": 7, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
    }  # fmt: skip
    inside: ClassVar = {
        **{name: theirs for name, theirs in Decoder.inside.items() if not name.startswith("attend.part")},
        "attend.part.down": "self_attn.kv_a_proj_with_mqa", "attend.part.norm": "self_attn.kv_a_layernorm",
        "attend.part.up": "self_attn.kv_b_proj", "attend.part.out": "self_attn.o_proj",
        "attend.part.query_down": "self_attn.q_a_proj", "attend.part.query_latent_norm": "self_attn.q_a_layernorm",
        "attend.part.query": "self_attn.q_b_proj", "ffn.part.ffn.router": "mlp.gate",
        "ffn.part.ffn.experts.{e}.up": ("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj"),
        "ffn.part.ffn.experts.{e}.down": "mlp.experts.{e}.down_proj",
    }  # fmt: skip

    def heads(self, config: Config) -> tuple[int, int, int]:
        """Heads twice, and the width that turns. Raises UsageError for other heads of keys, or another width."""
        count, turning = config["num_attention_heads"], config["qk_rope_head_dim"]
        if config.get("num_key_value_heads") not in (None, count):
            raise unsupported_value(config, "num_key_value_heads", self.name, f"num_attention_heads={count}")
        if config.get("head_dim") not in (None, turning):
            raise unsupported_value(config, "head_dim", self.name, f"qk_rope_head_dim={turning}")
        if turning % 4:
            raise unsupported_value(config, "qk_rope_head_dim", self.name, "a multiple of 4")
        return count, count, turning

    def read_attention(self, config: Config) -> Options:
        """Attention through latents; where RoPE is stretched, scores are sharper by mscale_all_dim."""
        _, rope = rope_object(config)
        factor, scale = sharpness(rope), (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
        return {**self.attention, "init_args": {"scale": scale * factor * factor} if factor != 1 else {}}

    def groups(self, config: Config) -> Options:
        """The groups of experts. Raises UsageError for an unknown method of selection, or sizes that do not fit."""
        if config["topk_method"] == "greedy":
            return {}
        if config["topk_method"] != "group_limited_greedy":
            raise unsupported_value(config, "topk_method", self.name, "'greedy' or 'group_limited_greedy'")
        return self.fitting_groups(config)

    def fitting_groups(self, config: Config) -> Options:
        """The groups of experts and how many are picked. Raises UsageError for sizes that do not fit."""
        experts, groups, picked = config["n_routed_experts"], config["n_group"], config["topk_group"]
        if not groups or experts % groups:
            raise unsupported_value(config, "n_group", self.name, f"a divisor of n_routed_experts={experts}")
        if not picked or picked > groups or config["num_experts_per_tok"] > picked * experts // groups:
            raise unsupported_value(
                config, "topk_group", self.name, f"room for num_experts_per_tok in n_group={groups}"
            )
        return {"groups": groups, "group_top_k": picked}

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """A mixture, or in the first layers a plain feed-forward. Raises UsageError for sizes that do not fit."""
        if number < (config["first_k_dense_replace"] or 0):
            return Decoder.read_feed(self, config, number)
        experts, top_k = config["n_routed_experts"], config["num_experts_per_tok"]
        if top_k is None or top_k > experts:
            raise unsupported_value(config, "num_experts_per_tok", self.name, f"{experts} or less")
        options = {
            "experts": experts, "top_k": top_k, "shared": config["n_shared_experts"], **self.groups(config),
            "scale": config["routed_scaling_factor"], "expert": self.gated(config), **self.balance(config),
        }  # fmt: skip
        mixture = {"class_path": f"zoo_frontier.ffn.{self.mixture}", "init_args": options}
        return mixture, budget(config["moe_intermediate_size"])

    def balance(self, config: Config) -> Options:
        """How the load of experts becomes even, and how their weights are normalised."""
        return {"normalize": False, "aux_loss_weight": config["aux_loss_alpha"]}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = {**super().config(options), "num_key_value_heads": options["heads"]}
        scale = inner(options["attention"])["scale"]
        unscaled = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
        if scale is not None and scale != unscaled:
            rope = config.get("rope_scaling") or {}
            power = (math.sqrt(scale / unscaled) - 1) / (0.1 * math.log(rope.get("factor", 1.0)) or math.inf)
            config["rope_scaling"] = {**rope, "mscale_all_dim": round(power, 9)}
        return config

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of the feed-forwards. Raises UsageError where the layers are none of this family's."""
        mixed = ["experts" in inner(layer["ffn"]) for layer in layers]
        if sorted(mixed) != mixed:
            raise UsageError("a plain feed-forward stands behind a mixture of experts.")
        dense, mixture = mixed.count(False), inner(layers[-1]["ffn"])
        front = self.write_gated(layers[0]["ffn"], layers[0]["hidden"] or 4 * options["dim"]) if dense else {}
        if not any(mixed):
            return {**front, "first_k_dense_replace": dense}
        expert = self.write_gated(mixture["expert"], layers[-1]["hidden"], size="moe_intermediate_size")
        return {**expert, **front, **self.write_balance(mixture), "n_routed_experts": mixture["experts"],
                "num_experts_per_tok": mixture["top_k"], "n_shared_experts": mixture["shared"],
                "routed_scaling_factor": mixture["scale"], "first_k_dense_replace": dense}  # fmt: skip

    def write_balance(self, mixture: Mapping[str, Any]) -> Options:
        """The keys of groups and of balance."""
        grouped = {"topk_method": "group_limited_greedy", "n_group": mixture["groups"],
                   "topk_group": mixture["group_top_k"]}  # fmt: skip
        return {**(grouped if mixture["groups"] > 1 else {}), "aux_loss_alpha": mixture["aux_loss_weight"]}

    def modules(self, config: Config) -> Mapping[str, Any]:
        """The modules of a layer; queries are made from the token where they have no latent."""
        return self.inside if config["q_lora_rank"] else {**self.inside, "attend.part.query": "self_attn.q_proj"}

    def transform(self, name: str, config: Config) -> Transform:
        """Rows that turn stand as pairs of neighbours, and keys and values of a head below each other."""
        count, _, turning = self.heads(config)
        near, value, latent = config["qk_nope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
        pairs = torch.arange(turning)
        pairs = pairs.view(-1, 2).T.flatten() if config.get("rope_interleave", True) else pairs
        if name == "attend.part.query":
            head = torch.cat([torch.arange(near), near + pairs])
            return Permuted((torch.arange(count)[:, None] * (near + turning) + head).flatten())
        if name == "attend.part.down":
            return Permuted(torch.cat([torch.arange(latent), latent + pairs]))
        if name == "attend.part.up":
            rows = torch.arange(count * (near + value)).view(count, -1)
            return Permuted(torch.cat([part.flatten() for part in rows.split([near, value], 1)]))
        return super().transform(name, config)

    def shared_sizes(self, config: Config) -> tuple[int, int]:
        """How many shared experts there are, and the width of each."""
        return config["n_shared_experts"], config["moe_intermediate_size"]


class DeepSeekV3(DeepSeekV2):
    """DeepSeek-V3 and R1: a bias that selects experts and balances their load, within the groups of the best pairs."""

    name = "deepseek_v3"
    types = ("deepseek_v3",)
    architectures = ("DeepseekV3ForCausalLM",)
    mixture = "DeepSeekMoE"
    example: ClassVar = {**DeepSeekV2.example, "num_key_value_heads": 2}
    keys = relative_keys(
        {
            **SIZES, "vocab_size": size(129280), "hidden_size": size(7168), "intermediate_size": size(18432),
            "num_hidden_layers": size(61), "num_attention_heads": size(128),
            "num_key_value_heads": size(128, optional=True), "v_head_dim": size(128),
            "max_position_embeddings": size(4096), "moe_intermediate_size": size(2048),
            "n_routed_experts": size(256), "n_shared_experts": size(1), "num_experts_per_tok": size(8),
            "routed_scaling_factor": real(2.5), "n_group": size(8), "topk_group": size(4),
            "first_k_dense_replace": size(3, 0, optional=True), "rope_interleave": flag(True),
            "num_nextn_predict_layers": size(1, 0),
        },
        {
            "attention_bias": [False], "norm_topk_prob": [True], "moe_layer_freq": [1], "scoring_func": ["sigmoid"],
            "topk_method": ["noaux_tc"],
        },
        (*TRAINING, "aux_loss_alpha"),
        {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    )  # fmt: skip

    def groups(self, config: Config) -> Options:
        """The groups of experts. Raises UsageError for groups that have no pairs, and for sizes that do not fit."""
        groups = self.fitting_groups(config)
        if config["n_routed_experts"] < 2 * config["n_group"]:
            raise unsupported_value(config, "n_group", self.name, "at most half of n_routed_experts")
        return groups

    def balance(self, config: Config) -> Options:
        """The bias is one number for each expert, as it is."""
        return {"speed": 1.0}

    def write_balance(self, mixture: Mapping[str, Any]) -> Options:
        """The keys of groups; no tensor predicts a further token."""
        if mixture["speed"] != 1:
            raise UsageError("a selection bias that is multiplied by a speed has no place in the checkpoint.")
        return {"n_group": mixture["groups"], "topk_group": mixture["group_top_k"], "num_nextn_predict_layers": 0}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        mapping = super().map_tensors(config)
        bias = f"{self.layer}mlp.gate.e_score_correction_bias", "stack.blocks.{n}.ffn.part.ffn.selection_bias"
        return MappedTensors([*mapping.rules, TensorRule(*bias)], mapping.constants, mapping.copies)

    def prefixes_beside(self, config: Config) -> tuple[str, ...]:
        """Prefixes of the layers that predict further tokens, which stand behind the others."""
        depth = config["num_hidden_layers"]
        return tuple(f"model.layers.{depth + n}." for n in range(config["num_nextn_predict_layers"]))
