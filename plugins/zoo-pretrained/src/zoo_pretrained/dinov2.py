"""DINOv2 (Oquab et al., 2024) as an image classifier: layers with scales, and a head of class token and patches."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, ClassVar

from zoo.errors import UsageError
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size
from zoo_pretrained.family import Config, Options, inner, name_of, part
from zoo_pretrained.tensor_mapping import MappedTensors, Stacked, TensorRule
from zoo_pretrained.vit import KEYS, ViT, embeddings

NAME, BLOCK = "dinov2", "zoo_frontier.block.LayerScale"
READ = {
    **{key: value for key, value in KEYS.read.items() if key != "intermediate_size"}, "layer_norm_eps": real(1e-6),
    "patch_size": Key(14, object), "mlp_ratio": size(4), "use_swiglu_ffn": flag(False),
    "layerscale_value": real(1.0),
}  # fmt: skip
IGNORED = {
    "apply_layernorm", "drop_path_rate", "out_features", "out_indices", "reshape_hidden_states", "stage_names",
    "tie_word_embeddings", "use_mask_token",
}  # fmt: skip


class DINOv2(ViT):
    """DINOv2 (Oquab et al., 2024) that classifies images; the token for masked patches is of its pre-training alone."""

    name = NAME
    types = (NAME,)
    architectures = ("Dinov2ForImageClassification",)
    keys = Keys(READ, KEYS.fixed, BOOKKEEPING | IGNORED)
    example: ClassVar = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "image_size": 8,
        "patch_size": 4, "num_labels": 5,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        if find_spec("zoo_frontier") is None:
            raise UsageError(f"{NAME} has blocks of the package zoo-frontier: pip install -e plugins/zoo-frontier")
        options = super().options({**config, "intermediate_size": config["hidden_size"] * config["mlp_ratio"]})
        gated = {"ffn": part("ffn.SwiGLU", bias=True, multiple_of=8)} if config["use_swiglu_ffn"] else {}
        block = {"class_path": BLOCK, "init_args": {"scale": config["layerscale_value"]}}
        return {**options, **gated, "pool": "both", "block": block}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        gated = name_of(options["ffn"]) == "SwiGLU"
        ungated = {**options, "ffn": part("ffn.MLP", activation="gelu")} if gated else options
        config = super().config(ungated)
        return {
            **{key: value for key, value in config.items() if key != "intermediate_size"},
            "mlp_ratio": config["intermediate_size"] // options["dim"],
            "use_swiglu_ffn": gated,
            "layerscale_value": inner(options["block"])["scale"],
            "use_mask_token": False,
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        first, theirs, ours = f"{NAME}.embeddings.", f"{NAME}.encoder.layer.{{n}}.", "stack.blocks.{n}."
        places, cls = f"{first}position_embeddings", f"{first}cls_token"
        rules = embeddings(self.options(config), f"{first}patch_embeddings.projection", places, cls)
        for number, branch in ((1, "attend"), (2, "ffn")):
            rules.append(TensorRule(f"{theirs}layer_scale{number}.lambda1", f"{ours}{branch}.scale.weight"))
        up, down = ("weights_in", "weights_out") if config["use_swiglu_ffn"] else ("fc1", "fc2")
        pairs = {
            f"{theirs}attention.output.dense": f"{ours}attend.part.out", f"{theirs}norm1": f"{ours}attend.norm",
            f"{theirs}mlp.{up}": f"{ours}ffn.part.up", f"{theirs}mlp.{down}": f"{ours}ffn.part.down",
            f"{theirs}norm2": f"{ours}ffn.norm", f"{NAME}.layernorm": "stack.norm", "classifier": "head",
        }  # fmt: skip
        for end in ("weight", "bias"):
            three = tuple(f"{theirs}attention.attention.{word}.{end}" for word in ("query", "key", "value"))
            rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked([config["hidden_size"]] * 3)))
            rules += [TensorRule(f"{key}.{end}", f"{name}.{end}") for key, name in pairs.items()]
        return MappedTensors(rules, [f"{first}mask_token"])
