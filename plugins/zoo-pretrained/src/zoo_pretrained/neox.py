"""Decoders with LayerNorm and RoPE: StarCoder 2, GPT-NeoX with Pythia, and GPT-J."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo_pretrained.config_keys import Keys, flag, real, size, word
from zoo_pretrained.decoder import Decoder, relative_keys
from zoo_pretrained.family import ACTIVATION_NAMES, Config, Options, activation, inner, name_of, part, unsupported_value
from zoo_pretrained.rope import read_rope, rope_object, write_rope
from zoo_pretrained.tensor_mapping import Stacked, Transform

BESIDE_LLAMA = ("rms_norm_eps", "num_key_value_heads", "rope_theta")


class Permuted(Transform):
    """Rows in another order, of several tensors below each other: row ``order[i]`` of theirs is row i of ours."""

    def __init__(self, order: Tensor, sizes: Sequence[int] = ()) -> None:
        self.order, self.stack = order, Stacked(sizes or [len(order)])

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their tensors (rows_i, ...) as one, (rows, ...). Raises ValueError for other rows."""
        return self.stack.read(theirs)[self.order]

    def write(self, ours: Tensor) -> list[Tensor]:
        """A tensor (rows, ...) as theirs, (rows_i, ...)."""
        return self.stack.write(ours[self.order.argsort()])


class LayerNormDecoder(Decoder):
    """A decoder with LayerNorm and a feed-forward of two matrices with biases."""

    norm = part("norm.LayerNorm")
    activation_key, width_key, bias_key = "hidden_act", "intermediate_size", ""
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 16,
    }  # fmt: skip

    def read_feed(self, config: Config, number: int) -> tuple[Options, int]:
        """The two matrices and their activation."""
        bias = {"bias": config[self.bias_key]} if self.bias_key else {}
        hidden = config[self.width_key] or 4 * config["hidden_size"]
        return part("ffn.MLP", activation=activation(config, self.activation_key), **bias), hidden

    def write_feed(self, options: Options, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of the feed-forward."""
        name = ACTIVATION_NAMES[inner(layers[-1]["ffn"])["activation"]]
        return {self.activation_key: name, self.width_key: layers[-1]["hidden"] or 4 * options["dim"]}


class StarCoder2(LayerNormDecoder):
    """StarCoder 2 (Lozhkov et al., 2024)."""

    name = "starcoder2"
    types = ("starcoder2",)
    architectures = ("Starcoder2ForCausalLM",)
    attention = part("attention.MultiHead")
    bias_key = "use_bias"
    places: ClassVar = {
        **Decoder.places, "norm_epsilon": "norm.eps", "use_bias": "attention.bias", "residual_dropout": "dropout",
    }  # fmt: skip
    inside: ClassVar = {**Decoder.inside, "ffn.part.up": "mlp.c_fc", "ffn.part.down": "mlp.c_proj"}
    keys = relative_keys(
        {
            "vocab_size": size(49152), "hidden_size": size(3072), "intermediate_size": size(12288),
            "num_hidden_layers": size(30), "num_attention_heads": size(24), "num_key_value_heads": size(2),
            "head_dim": size(None), "hidden_act": word("gelu_pytorch_tanh"), "max_position_embeddings": size(4096),
            "norm_epsilon": real(1e-5), "sliding_window": size(None), "residual_dropout": real(0.0),
            "use_bias": flag(True), "tie_word_embeddings": flag(True),
        },
        {},
        (
            "embedding_dropout", "activation_function", "layer_norm_epsilon", "mlp_type", "norm_type",
            "scale_attn_weights", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
        ),
        without=("rms_norm_eps",),
    )  # fmt: skip


class GPTNeoX(LayerNormDecoder):
    """GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023)."""

    name = "gpt_neox"
    types = ("gpt_neox",)
    architectures = ("GPTNeoXForCausalLM",)
    prefix = "gpt_neox."
    attention = part("attention.MultiHead")
    partial_rotary = True
    places: ClassVar = {**Decoder.places, "layer_norm_eps": "norm.eps", "hidden_dropout": "dropout"}
    outside: ClassVar = {
        "embedding": "gpt_neox.embed_in", "stack.norm": "gpt_neox.final_layer_norm", "head": "embed_out",
    }  # fmt: skip
    layer = "gpt_neox.layers.{n}."
    inside: ClassVar = {
        "attend.norm": "input_layernorm", "ffn.norm": "post_attention_layernorm",
        "attend.part.qkv": "attention.query_key_value", "attend.part.out": "attention.dense",
        "ffn.part.up": "mlp.dense_h_to_4h", "ffn.part.down": "mlp.dense_4h_to_h",
    }  # fmt: skip
    constants = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
    keys = relative_keys(
        {
            "vocab_size": size(50432), "hidden_size": size(6144), "intermediate_size": size(24576),
            "num_hidden_layers": size(44), "num_attention_heads": size(64), "hidden_act": word("gelu"),
            "hidden_dropout": real(0.0), "layer_norm_eps": real(1e-5), "use_parallel_residual": flag(True),
            "rotary_pct": real(0.25), "rotary_emb_base": real(10000.0), "attention_bias": flag(True),
        },
        {}, ("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"), without=BESIDE_LLAMA,
    )  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        own = part("block.Parallel", own_norms=True)
        return {**super().options(config), **({"block": own} if config["use_parallel_residual"] else {})}

    def read_position(self, config: Config, number: int) -> Options:
        """The RoPE of all layers."""
        source, described = rope_object(config)
        base = {"rope_theta": config["rotary_emb_base"], "partial_rotary_factor": config["rotary_pct"]}
        return read_rope(config, {**base, **described}, source, partial=True)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        return {**super().config(options), "use_parallel_residual": name_of(options["block"]) == "Parallel"}

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The keys of RoPE. Raises UsageError for other positions."""
        described = write_rope(layers[-1]["position"])
        names = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
        base = {theirs: described.pop(ours, 1.0) for theirs, ours in names.items()}
        return base if described["rope_type"] == "default" else {**base, "rope_scaling": described}

    def transform(self, name: str, config: Config) -> Transform:
        """Their rows are those of each head's query, key and value, one head after the other."""
        if name != "attend.part.qkv":
            return super().transform(name, config)
        count, _, wide = self.heads(config)
        return Permuted(torch.arange(count * 3 * wide).view(count, 3, wide).transpose(0, 1).flatten())


class GPTJ(LayerNormDecoder):
    """GPT-J (Wang and Komatsuzaki, 2021)."""

    name = "gptj"
    types = ("gptj",)
    architectures = ("GPTJForCausalLM",)
    prefix = "transformer."
    activation_key, width_key = "activation_function", "n_inner"
    block = part("block.Parallel")
    constant_options: ClassVar = {"head_bias": True}
    places: ClassVar = {
        "vocab_size": "vocab_size", "n_positions": "max_length", "n_embd": "dim", "n_layer": "depth",
        "n_head": "heads", "resid_pdrop": "dropout", "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "norm.eps", "tie_word_embeddings": "tie",
    }  # fmt: skip
    outside: ClassVar = {"embedding": "transformer.wte", "stack.norm": "transformer.ln_f", "head": "lm_head"}
    layer = "transformer.h.{n}."
    inside: ClassVar = {
        "norm": "ln_1", "attend.part.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        "attend.part.out": "attn.out_proj", "ffn.part.up": "mlp.fc_in", "ffn.part.down": "mlp.fc_out",
    }  # fmt: skip
    constants = ("attn.bias", "attn.masked_bias", "attn.embed_positions")
    keys = Keys(
        {
            "vocab_size": size(50400), "n_positions": size(2048), "n_embd": size(4096), "n_layer": size(28),
            "n_head": size(16), "rotary_dim": size(64, 2), "n_inner": size(None),
            "activation_function": word("gelu_new"), "resid_pdrop": real(0.0), "attn_pdrop": real(0.0),
            "layer_norm_epsilon": real(1e-5),
        },
        {
            "tie_word_embeddings": [False], "is_causal": [True], "is_decoder": [False, True],
            "is_encoder_decoder": [False], "scale_attn_weights": [True],
        },
        {*relative_keys({}).ignored, "embd_pdrop", "n_ctx", "rotary", "summary_activation", "summary_first_dropout",
         "summary_proj_to_labels", "summary_type", "summary_use_proj"},
        {
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
    )  # fmt: skip
    example: ClassVar = {"vocab_size": 41, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 2, "rotary_dim": 4}

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks; the output is never tied."""
        return {**super().complete(config, source), "tie_word_embeddings": False}

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        return {**super().options(config), "tie": False}

    def read_position(self, config: Config, number: int) -> Options:
        """The RoPE of all layers, for the first rotary_dim features of a head."""
        wide, turning = config["head_dim"], config["rotary_dim"]
        if turning > wide or turning % 2:
            raise unsupported_value(config, "rotary_dim", self.name, f"an even number of at most {wide}")
        share = turning / wide
        return part("position.RoPE", fraction=share if int(share * wide) == turning else math.nextafter(share, 1))

    def write_positions(self, layers: Sequence[Options]) -> dict[str, Any]:
        """The number of features that turn, as a share of a head."""
        return {"fraction": write_rope(layers[-1]["position"]).get("partial_rotary_factor", 1.0)}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = super().config(options)
        turning = int(config.pop("fraction") * (options["dim"] // options["heads"]))
        return {**config, "rotary_dim": turning}

    def transform(self, name: str, config: Config) -> Transform:
        """Their pairs of features are neighbours, ours stand half of rotary_dim apart."""
        if name != "attend.part.qkv":
            return super().transform(name, config)
        count, _, wide = self.heads(config)
        turning = torch.arange(config["rotary_dim"])
        head = torch.cat([turning[::2], turning[1::2], torch.arange(len(turning), wide)])
        rows = (torch.arange(2 * count)[:, None] * wide + head).flatten()
        return Permuted(torch.cat([rows, torch.arange(2 * count * wide, 3 * count * wide)]), [count * wide] * 3)
