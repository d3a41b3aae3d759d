"""GPT-2 (Radford et al., 2019)."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.config_keys import BOOKKEEPING, Keys, flag, real, size, word
from zoo_pretrained.family import ACTIVATION_NAMES, Config, Family, Options, activation, inner, part
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule, Transposed

TURNED = Transposed()
KEYS = Keys(
    read={
        "vocab_size": size(50257), "n_positions": size(1024), "n_embd": size(768), "n_layer": size(12),
        "n_head": size(12), "n_inner": size(None), "activation_function": word("gelu_new"), "resid_pdrop": real(0.1),
        "attn_pdrop": real(0.1), "layer_norm_epsilon": real(1e-5), "tie_word_embeddings": flag(True),
    },
    fixed={
        "scale_attn_weights": [True], "scale_attn_by_inverse_layer_idx": [False], "add_cross_attention": [False],
        "is_encoder_decoder": [False], "is_decoder": [False], "is_causal": [True],
    },
    ignored=BOOKKEEPING | {
        "embd_pdrop", "n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    },
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)  # fmt: skip


class GPT2(Family):
    """GPT-2 (Radford et al., 2019)."""

    name = "gpt2"
    types = ("gpt2",)
    architectures = ("GPT2LMHeadModel",)
    task = "zoo.tasks.lm.CausalLM"
    keys = KEYS
    prefix = "transformer."
    example: ClassVar = {"vocab_size": 41, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        dim = config["n_embd"]
        return {
            "vocab_size": config["vocab_size"],
            "max_length": config["n_positions"],
            "dim": dim,
            "depth": config["n_layer"],
            "heads": config["n_head"],
            "hidden": config["n_inner"] or 4 * dim,
            "tie": config["tie_word_embeddings"],
            "position": part("position.Learned"),
            "attention": part("attention.MultiHead"),
            "norm": part("norm.LayerNorm", eps=config["layer_norm_epsilon"]),
            "ffn": part("ffn.MLP", activation=activation(config, "activation_function")),
            "dropout": config["resid_pdrop"],
            "attention_dropout": config["attn_pdrop"],
        }

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        rate = options["dropout"]
        return {
            "vocab_size": options["vocab_size"],
            "n_positions": options["max_length"],
            "n_ctx": options["max_length"],
            "n_embd": options["dim"],
            "n_layer": options["depth"],
            "n_head": options["heads"],
            "n_inner": options["hidden"] or 4 * options["dim"],
            "tie_word_embeddings": options["tie"],
            "layer_norm_epsilon": inner(options["norm"])["eps"],
            "activation_function": ACTIVATION_NAMES[inner(options["ffn"])["activation"]],
            **{"resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": options["attention_dropout"]},
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        theirs, ours = "transformer.h.{n}.", "stack.blocks.{n}."
        rules = [
            TensorRule("transformer.wte.weight", "embedding.weight"),
            TensorRule("transformer.wpe.weight", "stack.position.table.weight"),
            TensorRule("transformer.ln_f.weight", "stack.norm.weight"),
            TensorRule("transformer.ln_f.bias", "stack.norm.bias"),
        ]
        for key, name in (("ln_1", "attend.norm"), ("ln_2", "ffn.norm")):
            rules += [TensorRule(f"{theirs}{key}.{end}", f"{ours}{name}.{end}") for end in ("weight", "bias")]
        for key, name in (
            ("attn.c_attn", "attend.part.qkv"),
            ("attn.c_proj", "attend.part.out"),
            ("mlp.c_fc", "ffn.part.up"),
            ("mlp.c_proj", "ffn.part.down"),
        ):
            rules.append(TensorRule(f"{theirs}{key}.weight", f"{ours}{name}.weight", TURNED))
            rules.append(TensorRule(f"{theirs}{key}.bias", f"{ours}{name}.bias"))
        tied = config["tie_word_embeddings"]
        if not tied:
            rules.append(TensorRule("lm_head.weight", "head.weight"))
        masks = (f"{theirs}attn.bias", f"{theirs}attn.masked_bias")
        return MappedTensors(rules, masks, {"lm_head.weight": "transformer.wte.weight"} if tied else {})
