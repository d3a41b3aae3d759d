"""GPT-2 (Radford et al., 2019)."""

from __future__ import annotations

from typing import Any, ClassVar

from zoo_pretrained.config_keys import BOOKKEEPING, Keys, flag, real, size, word
from zoo_pretrained.family import Config, Family, Options, part, read_places, write_places
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
        "embd_pdrop", "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    },
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)  # fmt: skip


# keys whose values are options, and the places of these
PLACES = {
    "vocab_size": "vocab_size", "n_positions": "max_length", "n_embd": "dim", "n_layer": "depth", "n_head": "heads",
    "n_inner": "hidden", "tie_word_embeddings": "tie", "layer_norm_epsilon": "norm.eps",
    "activation_function": "ffn.activation", "resid_pdrop": "dropout", "attn_pdrop": "attention_dropout",
}  # fmt: skip


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
        options = {
            "position": part("position.Learned"),
            "attention": part("attention.MultiHead"),
            "norm": part("norm.LayerNorm"),
            "ffn": part("ffn.MLP"),
        }
        return read_places({**config, "n_inner": config["n_inner"] or 4 * config["n_embd"]}, PLACES, options)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**write_places(options, PLACES), "n_ctx": options["max_length"], "embd_pdrop": options["dropout"]}

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
