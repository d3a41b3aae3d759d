"""Vision Transformers: transformers' ViT and DeiT, and timm's state dicts."""

from __future__ import annotations

import re
from typing import Any

from zoo.errors import UsageError
from zoo.families.family import WRITTEN, Config, Family, Options, activation, inner, part
from zoo.families.rule import Mapped, Rule, Shaped, Stacked

TASK = "zoo.tasks.classification.Classification"
# timm's names say the size: width, depth, heads
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large)_patch(\d+)_(\d+)(?:\..*)?")


def classes(config: Config) -> int:
    """How many classes a configuration names; transformers' own default is 2."""
    return len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)


def options(config: Config) -> Options:
    return {
        "num_classes": classes(config),
        "image_size": config["image_size"],
        "channels": config.get("num_channels", 3),
        "patch": config["patch_size"],
        "pool": "cls",
        "registers": 1 if config["model_type"] == "deit" else 0,
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "position": part("position.Learned"),
        "attention": part("attention.MultiHead", bias=config.get("qkv_bias", True), out_bias=True),
        "norm": part("norm.LayerNorm", eps=config.get("layer_norm_eps", 1e-12)),
        "ffn": part("ffn.Plain", activation=activation(config.get("hidden_act", "gelu"))),
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.0),
    }


def config(options: Options) -> dict[str, Any]:
    count = options["num_classes"]
    return {
        "model_type": "deit" if options["registers"] else "vit",
        "id2label": {str(n): f"LABEL_{n}" for n in range(count)},
        "label2id": {f"LABEL_{n}": n for n in range(count)},
        "image_size": options["image_size"],
        "num_channels": options["channels"],
        "patch_size": options["patch"],
        "hidden_size": options["dim"],
        "num_hidden_layers": options["depth"],
        "num_attention_heads": options["heads"],
        "intermediate_size": options["hidden"] or 4 * options["dim"],
        "qkv_bias": inner(options["attention"])["bias"],
        "layer_norm_eps": inner(options["norm"])["eps"],
        "hidden_act": WRITTEN[inner(options["ffn"])["activation"]],
        "hidden_dropout_prob": options["dropout"],
        "attention_probs_dropout_prob": options["attention_dropout"],
    }


def embeddings(config: Config, projection: str, table: str, cls: str) -> list[Rule]:
    """Patches by a convolution that we do as a matrix, positions with and tokens without the first dimension."""
    told = options(config) if "hidden_size" in config else timm_options(config)
    dim, size, channels = told["dim"], told["patch"], told["channels"]
    return [
        Rule(f"{projection}.weight", "embedding.weight", Shaped((dim, channels, size, size), (dim, -1))),
        Rule(f"{projection}.bias", "embedding.bias"),
        Rule(table, "stack.position.table.weight", Shaped((1, -1, dim), (-1, dim))),
        Rule(cls, "cls.weight"),
    ]


def mapped(config: Config) -> Mapped:
    kind = config["model_type"]
    theirs, ours, dim = f"{kind}.encoder.layer.{{n}}.", "stack.blocks.{n}.", config["hidden_size"]
    first = f"{kind}.embeddings."
    names = tuple(f"{theirs}attention.attention.{one}." for one in ("query", "key", "value"))
    rules = embeddings(
        config, f"{first}patch_embeddings.projection", f"{first}position_embeddings", f"{first}cls_token"
    )
    if kind == "deit":
        rules.append(Rule(f"{first}distillation_token", "registers.weight"))
    for end in ("weight", "bias"):
        rules.append(Rule(tuple(name + end for name in names), f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3)))
        for key, name in (
            (f"{theirs}attention.output.dense", f"{ours}attend.part.out"),
            (f"{theirs}intermediate.dense", f"{ours}ffn.part.up"),
            (f"{theirs}output.dense", f"{ours}ffn.part.down"),
            (f"{theirs}layernorm_before", f"{ours}attend.norm"),
            (f"{theirs}layernorm_after", f"{ours}ffn.norm"),
            (f"{kind}.layernorm", "stack.norm"),
            ("classifier", "head"),
        ):
            rules.append(Rule(f"{key}.{end}", f"{name}.{end}"))
    return Mapped(rules)


def timm_options(config: Config) -> Options:
    args, found = config.get("model_args") or {}, NAME.fullmatch(str(config["architecture"]))
    cfg = config.get("pretrained_cfg") or {}
    if found is None and not {"embed_dim", "depth", "num_heads", "patch_size", "img_size"} <= args.keys():
        raise UsageError(
            f"config.json: architecture {config['architecture']!r} does not tell its size. There are: "
            f"vit_{{{', '.join(SIZES)}}}_patchP_SIZE, or any with model_args."
        )
    dim, depth, heads = SIZES[found[1]] if found else (0, 0, 0)
    patch, size = (int(found[2]), int(found[3])) if found else (0, 0)
    pooled = args.get("global_pool", config.get("global_pool", "token"))
    if pooled != "token":
        raise UsageError(f"config.json: global_pool={pooled!r} is not supported; 'token' would be.")
    dim, ratio = args.get("embed_dim", dim), args.get("mlp_ratio", 4.0)
    return {
        "num_classes": config["num_classes"],
        "image_size": args.get("img_size", (cfg.get("input_size") or (3, size))[1]),
        "channels": args.get("in_chans", (cfg.get("input_size") or (3,))[0]),
        "patch": args.get("patch_size", patch),
        "pool": "cls",
        "dim": dim,
        "depth": args.get("depth", depth),
        "heads": args.get("num_heads", heads),
        "hidden": int(dim * ratio),
        "position": part("position.Learned"),
        "attention": part("attention.MultiHead", bias=args.get("qkv_bias", True), out_bias=True),
        "norm": part("norm.LayerNorm", eps=1e-6),
        "ffn": part("ffn.Plain", activation="gelu"),
    }


def timm_config(options: Options) -> dict[str, Any]:
    dim, size = options["dim"], options["image_size"]
    word = next((word for word, sizes in SIZES.items() if sizes[0] == dim), "tiny")
    name = f"vit_{word}_patch{options['patch']}_{size}"
    return {
        "architecture": name,
        "num_classes": options["num_classes"],
        "num_features": dim,
        "global_pool": "token",
        "model_args": {
            "img_size": size,
            "in_chans": options["channels"],
            "patch_size": options["patch"],
            "embed_dim": dim,
            "depth": options["depth"],
            "num_heads": options["heads"],
            "mlp_ratio": (options["hidden"] or 4 * dim) / dim,
            "qkv_bias": inner(options["attention"])["bias"],
        },
    }


def timm_mapped(config: Config) -> Mapped:
    theirs, ours = "blocks.{n}.", "stack.blocks.{n}."
    rules = embeddings(config, "patch_embed.proj", "pos_embed", "cls_token")
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
            rules.append(Rule(f"{key}.{end}", f"{name}.{end}"))
    return Mapped(rules)


POOLED = {"pooler_act": "tanh"}
VIT = Family("vit", ("vit",), ("ViTForImageClassification",), TASK, options, config, mapped, POOLED)
DEIT = Family("deit", ("deit",), ("DeiTForImageClassification",), TASK, options, config, mapped, POOLED)
TIMM = Family("timm", (), ("VisionTransformer",), TASK, timm_options, timm_config, timm_mapped, {})
