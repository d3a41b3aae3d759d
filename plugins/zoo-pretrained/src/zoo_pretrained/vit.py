"""Vision Transformers: transformers' ViT and DeiT, and timm's state dicts."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from zoo.errors import UsageError
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import Config, Family, Options, inner, part, read_places, unsupported_value, write_places
from zoo_pretrained.tensor_mapping import MappedTensors, Shaped, Stacked, TensorRule

# timm's names say the size: width, depth, heads
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large)_patch(\d+)_(\d+)(?:\..*)?")


# what a configuration says of classes
CLASSES = Keys(
    {"id2label": Key(None, dict, optional=True), "num_labels": size(None, 2)},
    {"problem_type": [None, "single_label_classification"]},
)
KEYS = Keys(
    read={
        "hidden_size": size(768), "num_hidden_layers": size(12), "num_attention_heads": size(12),
        "intermediate_size": size(3072), "hidden_act": word("gelu"), "hidden_dropout_prob": real(0.0),
        "attention_probs_dropout_prob": real(0.0), "layer_norm_eps": real(1e-12), "image_size": Key(224, object),
        "patch_size": Key(16, object), "num_channels": size(3), "qkv_bias": flag(True), **CLASSES.read,
    },
    fixed={**CLASSES.fixed, "is_encoder_decoder": [False]},
    ignored=BOOKKEEPING | {"encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings"},
)  # fmt: skip


# keys whose values are options, and the places of these
PLACES = {
    "hidden_size": "dim", "num_hidden_layers": "depth", "num_attention_heads": "heads", "intermediate_size": "hidden",
    "hidden_act": "ffn.activation", "hidden_dropout_prob": "dropout", "layer_norm_eps": "norm.eps",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip
IMAGE_PLACES = {**PLACES, "num_channels": "channels", "qkv_bias": "attention.bias"}


def classes(config: Config) -> int:
    """How many classes a configuration names; transformers' own default is 2.

    Raises UsageError where id2label and num_labels contradict each other.
    """
    names, count = config["id2label"], config["num_labels"]
    if names is None:
        return count or 2
    if len(names) < 2:
        raise unsupported_value(config, "id2label", config["model_type"], "names of two classes or more")
    if sorted(names, key=str) != sorted(map(str, range(len(names))), key=str):
        raise unsupported_value(config, "id2label", config["model_type"], "one name for each number from 0")
    if count not in (None, len(names)):
        raise unsupported_value(config, "num_labels", config["model_type"], f"the {len(names)} of id2label")
    return len(names)


def side(config: Config, key: str) -> int:
    """The length of a square's side, said once or twice. Raises UsageError for anything else, and for no square."""
    value = config[key]
    pair = value if isinstance(value, list) else [value, value]
    whole = len(pair) == 2 and all(isinstance(one, int) and not isinstance(one, bool) and one >= 1 for one in pair)
    if not whole or pair[0] != pair[1]:
        raise unsupported_value(config, key, config.get("model_type", "timm"), "the side of a square")
    return pair[0]


def embeddings(model_options: Options, projection: str, table: str, cls: str) -> list[TensorRule]:
    """Patches by a convolution that we do as a matrix, positions with and tokens without the first dimension."""
    dim, size, channels = model_options["dim"], model_options["patch_size"], model_options["channels"]
    return [
        TensorRule(f"{projection}.weight", "embedding.weight", Shaped((dim, channels, size, size), (dim, -1))),
        TensorRule(f"{projection}.bias", "embedding.bias"),
        TensorRule(table, "stack.position.table.weight", Shaped((1, -1, dim), (-1, dim))),
        TensorRule(cls, "cls.weight"),
    ]


# timm's VisionTransformer: what model_args may say
ARGS = Keys(
    read={
        "img_size": Key(None, object), "patch_size": Key(None, object), "in_chans": size(None),
        "num_classes": size(None), "global_pool": Key(None, str, optional=True), "embed_dim": size(None),
        "depth": size(None), "num_heads": size(None), "mlp_ratio": real(4.0), "qkv_bias": flag(True),
        "act_layer": Key(None, str, optional=True), "attn_drop_rate": real(0.0),
    },
    fixed={
        "qk_norm": [False], "scale_attn_norm": [False], "scale_mlp_norm": [False], "proj_bias": [True],
        "init_values": [None], "class_token": [True], "pos_embed": ["learn"], "no_embed_class": [False],
        "reg_tokens": [0], "pre_norm": [False], "final_norm": [True], "fc_norm": [None, False],
        "dynamic_img_size": [False], "dynamic_img_pad": [False], "strict_img_size": [True], "use_naflex": [None, False],
        "norm_layer": [None], "embed_norm_layer": [None],
    },
    ignored={
        "drop_path_rate", "drop_rate", "fix_init", "patch_drop_rate", "pool_include_prefix", "pos_drop_rate",
        "proj_drop_rate", "weight_init",
    },
)  # fmt: skip
# its pretrained_cfg: how images are prepared, and where the weights come from
CFG = Keys(
    read={
        "input_size": Key([3, 224, 224], list), "fixed_input_size": flag(False), "num_classes": size(1000, 0),
        "global_pool": Key(None, str, optional=True), "mean": Key([0.485, 0.456, 0.406], list),
        "std": Key([0.229, 0.224, 0.225], list), "crop_mode": word("center"), "crop_pct": real(0.875),
        "interpolation": word("bicubic"),
    },
    fixed={"classifier": ["head"], "first_conv": ["patch_embed.proj"], "custom_load": [False]},
    ignored={
        "architecture", "architectures", "description", "file", "hf_hub_filename", "hf_hub_id",
        "label_descriptions", "label_names", "label_offset", "labels", "license", "min_input_size",
        "model_type", "notes", "num_features", "origin_url", "paper_ids", "paper_name", "pool_size", "source", "tag",
        "test_crop_pct", "test_input_size", "test_pool_size", "url",
    },
)  # fmt: skip
TIMM_KEYS = Keys(
    read={
        "architecture": word(""), "model_args": Key({}, dict, optional=True), "num_classes": size(None, 0),
        "pretrained_cfg": Key(None, dict, optional=True),
    },
    ignored={
        "architectures", "global_pool", "label_descriptions", "label_names", "labels", "model_type", "num_features",
    },
)  # fmt: skip
# their names of activations, by which ours go
ACT_LAYERS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu", "quick_gelu": "quick_gelu",
              "silu": "swish", "swish": "swish"}  # fmt: skip


def timm_classes(config: Config) -> int:
    """How many classes there are. Raises UsageError for a model without, which has no head."""
    inside = config["model_args"]["num_classes"]
    count = config["num_classes"] if inside is None else inside
    if count < 2:
        raise unsupported_value({"num_classes": count}, "num_classes", "timm", "2 or more")
    return count


class ViT(Family):
    """ViT (Dosovitskiy et al., 2021) as transformers has it."""

    name = "vit"
    types: ClassVar[tuple[str, ...]] = ("vit",)
    architectures: ClassVar[tuple[str, ...]] = ("ViTForImageClassification",)
    task = "zoo.tasks.classification.Classification"
    keys = KEYS
    example: ClassVar = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8,
        "patch_size": 4, "num_labels": 5,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        image, patch = side(config, "image_size"), side(config, "patch_size")
        if image % patch:
            raise unsupported_value(config, "patch_size", config["model_type"], f"a divisor of image_size={image}")
        if config["hidden_size"] % config["num_attention_heads"]:
            divisor = f"a divisor of hidden_size={config['hidden_size']}"
            raise unsupported_value(config, "num_attention_heads", config["model_type"], divisor)
        options = {
            "num_classes": classes(config),
            "image_size": image,
            "patch_size": patch,
            "pool": "cls",
            "registers": 1 if config["model_type"] == "deit" else 0,
            "position": part("position.Learned"),
            "attention": part("attention.MultiHead", out_bias=True),
            "norm": part("norm.LayerNorm"),
            "ffn": part("ffn.MLP"),
        }
        return read_places(config, IMAGE_PLACES, options)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        count = options["num_classes"]
        return {
            "id2label": {str(n): f"LABEL_{n}" for n in range(count)},
            "label2id": {f"LABEL_{n}": n for n in range(count)},
            "image_size": options["image_size"],
            "patch_size": options["patch_size"],
            **write_places(options, IMAGE_PLACES),
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        kind = config["model_type"]
        theirs, ours, dim = f"{kind}.encoder.layer.{{n}}.", "stack.blocks.{n}.", config["hidden_size"]
        first = f"{kind}.embeddings."
        names = tuple(f"{theirs}attention.attention.{one}." for one in ("query", "key", "value"))
        rules = embeddings(
            self.options(config),
            f"{first}patch_embeddings.projection",
            f"{first}position_embeddings",
            f"{first}cls_token",
        )
        if kind == "deit":
            rules.append(TensorRule(f"{first}distillation_token", "registers.weight"))
        for end in ("weight", "bias"):
            rules.append(
                TensorRule(tuple(name + end for name in names), f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3))
            )
            for key, name in (
                (f"{theirs}attention.output.dense", f"{ours}attend.part.out"),
                (f"{theirs}intermediate.dense", f"{ours}ffn.part.up"),
                (f"{theirs}output.dense", f"{ours}ffn.part.down"),
                (f"{theirs}layernorm_before", f"{ours}attend.norm"),
                (f"{theirs}layernorm_after", f"{ours}ffn.norm"),
                (f"{kind}.layernorm", "stack.norm"),
                ("classifier", "head"),
            ):
                rules.append(TensorRule(f"{key}.{end}", f"{name}.{end}"))
        return MappedTensors(rules)


class DeiT(ViT):
    """DeiT (Touvron et al., 2021), a ViT with a token for distillation."""

    name = "deit"
    types = ("deit",)
    architectures = ("DeiTForImageClassification",)


class TimmViT(ViT):
    """The VisionTransformer of timm."""

    name = "timm"
    types = ()
    architectures = ()
    keys = TIMM_KEYS
    example: ClassVar = {
        "architecture": "vit_tiny_patch16_224", "num_classes": 5,
        "model_args": {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2},
    }  # fmt: skip

    def claims(self, config: Config) -> bool:
        """Whether a configuration names no type and an architecture, as timm's do."""
        return config.get("model_type") is None and "architecture" in config

    def complete(self, config: Config, source: str) -> dict[str, Any]:
        """A configuration of timm with its two inner ones complete; an old one has pretrained_cfg's keys outside."""
        if "pretrained_cfg" not in config:
            every = {*CFG.read, *CFG.fixed, *CFG.ignored} - {"architecture", "label_names", "labels", "num_features"}
            outside = {key: value for key, value in config.items() if key in every}
            config = {
                **{key: value for key, value in config.items() if key not in outside or key == "num_classes"},
                "pretrained_cfg": {**outside, **({"num_classes": 1000} if "num_classes" not in outside else {})},
            }  # fmt: skip
        full = self.keys.complete(config, "timm", source)
        cfg = CFG.complete(full["pretrained_cfg"] or {}, "timm", f"{source}: pretrained_cfg")
        # what stands outside is in force, be it null, which is then the default
        full["num_classes"] = config.get("num_classes", cfg["num_classes"])
        if full["num_classes"] is None:
            full["num_classes"] = CFG.read["num_classes"].default
        shape = cfg["input_size"]
        if len(shape) != 3 or not all(isinstance(one, int) and one >= 1 for one in shape):
            raise unsupported_value(cfg, "input_size", "timm", "three whole numbers")
        return {**full, "model_args": ARGS.complete(full["model_args"] or {}, "timm", f"{source}: model_args"),
                "pretrained_cfg": cfg}  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for timm's configuration. Raises UsageError for unsupported values."""
        args, cfg, match = config["model_args"], config["pretrained_cfg"], NAME.fullmatch(config["architecture"])
        if match is None and None in (
            args[key] for key in ("embed_dim", "depth", "num_heads", "patch_size", "img_size")
        ):
            raise UsageError(
                f"config.json: architecture {config['architecture']!r} does not tell its size. There are: "
                f"vit_{{{', '.join(SIZES)}}}_patchP_SIZE, or any with model_args."
            )
        dim, depth, heads = SIZES[match[1]] if match else (0, 0, 0)
        patch, pixels = (int(match[2]), int(match[3])) if match else (0, 0)
        pooled = next((one for one in (args["global_pool"], cfg["global_pool"]) if one is not None), "token")
        if pooled != "token":
            raise unsupported_value({"global_pool": pooled}, "global_pool", "timm", "'token'")
        act = args["act_layer"] or "gelu"
        if act not in ACT_LAYERS:
            raise unsupported_value(args, "act_layer", "timm", " or ".join(repr(name) for name in ACT_LAYERS))
        if cfg["fixed_input_size"] and args["img_size"] is None:
            _, pixels, width = cfg["input_size"]
            if pixels != width:
                raise unsupported_value(cfg, "input_size", "timm", "that of a square")
        sizes = {key: args[key] if args[key] is not None else other
                 for key, other in (("img_size", pixels), ("patch_size", patch))}  # fmt: skip
        image, patch = side(sizes, "img_size"), side(sizes, "patch_size")
        dim, heads = args["embed_dim"] or dim, args["num_heads"] or heads
        if image % patch:
            raise unsupported_value(sizes, "patch_size", "timm", f"a divisor of img_size={image}")
        if int(dim * args["mlp_ratio"]) < 1:
            raise unsupported_value(args, "mlp_ratio", "timm", f"at least 1 / {dim}")
        if dim % heads:
            raise unsupported_value({"num_heads": heads}, "num_heads", "timm", f"a divisor of {dim}")
        return {
            "num_classes": timm_classes(config),
            "image_size": image,
            "channels": args["in_chans"] or cfg["input_size"][0],
            "patch_size": patch,
            "pool": "cls",
            "dim": dim,
            "depth": args["depth"] or depth,
            "heads": heads,
            "hidden": int(dim * args["mlp_ratio"]),
            "position": part("position.Learned"),
            "attention": part("attention.MultiHead", bias=args["qkv_bias"], out_bias=True),
            "norm": part("norm.LayerNorm", eps=1e-6),
            "ffn": part("ffn.MLP", activation=ACT_LAYERS[act]),
            "attention_dropout": args["attn_drop_rate"],
        }

    def config(self, options: Options) -> dict[str, Any]:
        """The architecture whose sizes are nearest, and all sizes beside it, so that timm builds any."""
        dim, pixels, channels = options["dim"], options["image_size"], options["channels"]
        word = next((word for word, sizes in SIZES.items() if sizes[0] == dim), "tiny")
        act = inner(options["ffn"])["activation"]
        return {
            "architecture": f"vit_{word}_patch16_224",
            "num_classes": options["num_classes"],
            "num_features": dim,
            "global_pool": "token",
            "pretrained_cfg": {
                "input_size": [channels, pixels, pixels],
                "fixed_input_size": True,
                "num_classes": options["num_classes"],
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
            "model_args": {
                "img_size": pixels,
                "in_chans": channels,
                "patch_size": options["patch_size"],
                "embed_dim": dim,
                "depth": options["depth"],
                "num_heads": options["heads"],
                "mlp_ratio": (options["hidden"] or 4 * dim) / dim,
                "qkv_bias": inner(options["attention"])["bias"],
                "act_layer": next(name for name, ours in ACT_LAYERS.items() if ours == act),
            },
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert timm's tensors to zoo's."""
        theirs, ours = "blocks.{n}.", "stack.blocks.{n}."
        rules = embeddings(self.options(config), "patch_embed.proj", "pos_embed", "cls_token")
        for end in ("weight", "bias"):
            for key, name in (
                (f"{theirs}attn.qkv", f"{ours}attend.part.qkv"),
                (f"{theirs}attn.proj", f"{ours}attend.part.out"),
                (f"{theirs}mlp.fc1", f"{ours}ffn.part.up"),
                (f"{theirs}mlp.fc2", f"{ours}ffn.part.down"),
                (f"{theirs}norm1", f"{ours}attend.norm"),
                (f"{theirs}norm2", f"{ours}ffn.norm"),
                ("norm", "stack.norm"),
                ("head", "head"),
            ):
                rules.append(TensorRule(f"{key}.{end}", f"{name}.{end}"))
        return MappedTensors(rules)
