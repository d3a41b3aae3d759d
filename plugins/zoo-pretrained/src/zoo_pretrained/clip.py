"""The image towers of SigLIP (Zhai et al., 2023) and CLIP (Radford et al., 2021), as classifiers of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from zoo.inference.weight_files import LazyTensors
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, real, size, word
from zoo_pretrained.family import Config, Options
from zoo_pretrained.tensor_mapping import MappedTensors, Shaped, Stacked, TensorRule, Tensors
from zoo_pretrained.vit import CLASSES, ViT

TOWER = {
    "hidden_size": size(768), "intermediate_size": size(3072), "num_hidden_layers": size(12),
    "num_attention_heads": size(12), "num_channels": size(3), "image_size": Key(224, object),
    "patch_size": Key(16, object), "hidden_act": word("gelu_pytorch_tanh"), "layer_norm_eps": real(1e-6),
    "attention_dropout": real(0.0),
}  # fmt: skip
# what older files of a tower hold
OLDER: dict[str, list[Any]] = {
    "is_encoder_decoder": [False], "is_decoder": [False], "add_cross_attention": [False], "pruned_heads": [{}],
    "tie_encoder_decoder": [False], "dropout": [0.0], "cross_attention_hidden_size": [None],
}  # fmt: skip
UNUSED = BOOKKEEPING | {"projection_dim", "initializer_factor", "tie_word_embeddings"}
BESIDE = {"text_config", "text_config_dict", "projection_dim", "logit_scale_init_value", "initializer_factor"}
OUTER = Keys(
    {"vision_config": Key(None, dict, optional=True), **CLASSES.read},
    {**CLASSES.fixed, "vision_config_dict": [None], "is_encoder_decoder": [False]},
    BOOKKEEPING | BESIDE | {"tie_word_embeddings"},
)


def layers(stem: str, dim: int, pairs: Mapping[str, str]) -> list[TensorRule]:
    """The rules of the layers of a tower of width ``dim``, and of further modules."""
    theirs, ours, rules = f"{stem}encoder.layers.{{n}}.", "stack.blocks.{n}.", []
    modules = {
        f"{theirs}self_attn.out_proj": f"{ours}attend.part.out", f"{theirs}layer_norm1": f"{ours}attend.norm",
        f"{theirs}mlp.fc1": f"{ours}ffn.part.up", f"{theirs}mlp.fc2": f"{ours}ffn.part.down",
        f"{theirs}layer_norm2": f"{ours}ffn.norm", **pairs,
    }  # fmt: skip
    for end in ("weight", "bias"):
        three = tuple(f"{theirs}self_attn.{letter}_proj.{end}" for letter in "qkv")
        rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3)))
        rules += [TensorRule(f"{key}.{end}", f"{name}.{end}") for key, name in modules.items()]
    return rules


class SigLIP(ViT):
    """SigLIP's image tower: no class token, and a classifier that reads the mean of the normalised patches."""

    name = "siglip"
    types = ("siglip",)
    # of a model of images and texts the image tower is read, with a classifier of zeros
    architectures = ("SiglipForImageClassification", "SiglipModel")
    keys = OUTER
    tower = Keys({**TOWER, "vision_use_head": Key(True, bool)}, OLDER, UNUSED)
    beside: ClassVar[tuple[str, ...]] = ("text_model.", "logit_scale", "logit_bias", "vision_model.head.")
    own: ClassVar[Mapping[str, Any]] = {"pool": "mean"}
    own_tower: ClassVar[Mapping[str, Any]] = {"vision_use_head": False}
    example: ClassVar = {
        "vision_config": {
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
            "image_size": 8, "patch_size": 4,
        },
        "num_labels": 5,
    }  # fmt: skip
    outer: ClassVar[dict[str, str]] = {"embedding": "embeddings.patch_embedding", "stack.norm": "post_layernorm"}

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration with the peer's default of each key that it lacks, in the tower's too."""
        full = super().complete(config, source)
        tower = self.tower.complete(full["vision_config"] or {}, self.name, f"{source}: vision_config")
        return {**full, "vision_config": tower}

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a complete configuration. Raises UsageError for unsupported values."""
        tower = config["vision_config"]
        rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": tower["attention_dropout"]}
        names = {key: config[key] for key in CLASSES.read}
        return {**super().options({**tower, **rates, **names, "qkv_bias": True, "model_type": self.name}), **self.own}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        flat = super().config(options)
        tower = {key: flat[key] for key in TOWER if key in flat}
        tower |= {"attention_dropout": flat["attention_probs_dropout_prob"], **self.own_tower}
        if tower["hidden_act"] == "gelu_new":  # the same function; this one is rounded as ours
            tower["hidden_act"] = "gelu_pytorch_tanh"
        return {"vision_config": tower, "id2label": flat["id2label"], "label2id": flat["label2id"]}

    def prefixes_beside(self, config: Config) -> tuple[str, ...]:
        """Prefixes of the tensors of texts, and of those that no class depends on."""
        return self.beside

    def supplied(self, config: Config, tensors: Tensors) -> Tensors:
        """A classifier of zeros for a model of images and texts, which has none."""
        if (config.get("architectures") or [""])[0] != self.architectures[1] or "classifier.weight" in tensors:
            return {}
        count = self.options(config)["num_classes"]
        wide = config["vision_config"]["hidden_size"]
        return {"classifier.weight": torch.zeros(count, wide), "classifier.bias": torch.zeros(count)}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        options, stem = self.options(config), "vision_model."
        dim, pixels, channels = options["dim"], options["patch_size"], options["channels"]
        pairs = {f"{stem}{key}": name for name, key in self.outer.items() if name != "embedding"}
        patches = f"{stem}{self.outer['embedding']}"
        rules = [
            TensorRule(f"{patches}.weight", "embedding.weight", Shaped((dim, channels, pixels, pixels), (dim, -1))),
            TensorRule(f"{patches}.bias", "embedding.bias"),
            TensorRule(f"{stem}embeddings.position_embedding.weight", "stack.position.table.weight"),
            TensorRule(f"{stem}embeddings.class_embedding", "registers.weight", Shaped((dim,), (1, 1, dim))),
        ]
        rules += layers(stem, dim, {**pairs, "classifier": "head"})
        return MappedTensors(rules, [f"{stem}embeddings.position_ids"])


class CLIP(SigLIP):
    """CLIP's image tower: a class token that no class is read from, and a norm in front of the layers alone."""

    name = "clip"
    types = ("clip",)
    architectures = ("CLIPForImageClassification", "CLIPModel")
    tower = Keys(
        {**TOWER, "patch_size": Key(32, object), "hidden_act": word("quick_gelu"), "layer_norm_eps": real(1e-5)},
        OLDER, UNUSED,
    )  # fmt: skip
    beside = ("text_model.", "text_projection.", "visual_projection.", "logit_scale", "vision_model.post_layernorm.")
    own: ClassVar = {
        "pool": "mean", "registers": 1, "embedding_norm": True, "patch_bias": False,
        "block": {"class_path": "zoo_frontier.block.OpenPreNorm", "init_args": {}},
    }  # fmt: skip
    own_tower: ClassVar = {}
    outer: ClassVar = {"embedding": "embeddings.patch_embedding", "stack.entry": "pre_layrnorm"}

    def write_tensors(self, config: Config, tensors: Tensors) -> LazyTensors:
        """Published tensors for those of zoo, with the norm that no class depends on as it is drawn."""
        wide = config["vision_config"]["hidden_size"]
        norm = {"weight": torch.ones(wide), "bias": torch.zeros(wide)}
        unused = {f"vision_model.post_layernorm.{end}": tensor for end, tensor in norm.items()}
        return super().write_tensors(config, tensors).joined(unused)
