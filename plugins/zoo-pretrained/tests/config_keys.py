"""Every key of every family's configuration, changed, removed or taken from a sibling: the peer's logits or a refusal.

``python config_keys.py [--seed N] [--each N] [--only FAMILY]`` builds transformers' (or timm's) model
from each changed configuration at a tiny size, imports its checkpoint, and counts what came of it. No outcome may be in
SILENT.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import peers
import torch
from import_steps import FAMILIES
from zoo_pretrained import importer, lookup
from zoo_pretrained.config_keys import BOOKKEEPING

from zoo.errors import CheckpointError, UsageError
from zoo.inference.rebuild_task import complete_options, rebuild_task
from zoo.inference.weight_files import keep_own_tensors

SILENT = ("differs", "crash", "unnamed")
NAMES = (
    *("gpt2", "llama", "llama-3", "mistral", "qwen2", "qwen2-window", "qwen3", "qwen3-window", "mixtral", "vit"),
    *("deit", "t5", "t5-1.1", "mt5", "bart", "marian", "bert", "bert-pairs", "bert-texts", "bert-tokens", "roberta"),
    *("qwen3-moe", "smollm3", "granite", "phi3-long", "gemma2", "gemma3", "olmo2", "olmo3", "starcoder2", "gpt-neox"),
    *("gptj", "gpt-oss", "roberta-texts", "roberta-tokens", "deberta-3", "deberta-own-matrices", "deberta-texts"),
    *("deberta-tokens", "xlm-roberta", "xlm-roberta-texts", "camembert", "camembert-tokens", "distilbert"),
    *("distilbert-texts", "distilbert-tokens", "modernbert", "modernbert-biases", "modernbert-texts"),
    *("modernbert-tokens", "eurobert", "eurobert-biases", "eurobert-texts", "eurobert-tokens", "dinov2"),
    *("dinov2-gated", "mbart", "m2m100", "deepseek-v2", "deepseek-v3", "qwen3-next", "mamba2"),
    *("siglip", "clip", "whisper", "clip-text"),
)
# the others are further heads and options of these families, with whose keys of bookkeeping nothing new happens
FIRST = {
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "vit", "deit", "t5", "mt5", "bart", "marian", "bert"),
    *("roberta", "deberta-3", "qwen3-moe", "smollm3", "granite", "phi3-long", "gemma2", "gemma3", "olmo2", "olmo3"),
    *("starcoder2", "gpt-neox", "gptj", "gpt-oss", "xlm-roberta", "camembert", "distilbert", "modernbert", "eurobert"),
    *("dinov2", "mbart", "m2m100", "deepseek-v2", "deepseek-v3", "qwen3-next", "mamba2", "siglip", "clip"),
    *("whisper", "clip-text"),
}
BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert")  # whose positions begin behind the number of their padding
TIMM = {
    "architecture": "vit_tiny_patch16_224", "num_classes": 5,
    "pretrained_cfg": {"input_size": [3, 16, 16], "fixed_input_size": True, "num_classes": 5},
    "model_args": {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4},
}  # fmt: skip
# what transformers reads of a raw config.json without having it as a field, and what other families' files hold
STRAY: dict[str, list[Any]] = {
    "rope_theta": [500.0, 1], "rope_scaling": [{"type": "linear", "factor": 2.0}], "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [8], "is_causal": [False, True], "is_decoder": [True, False],
    "per_layer_config": [{"0": {"intermediate_size": 8}}], "quantization_config": [{"quant_method": "gptq", "bits": 4}],
    "tie_encoder_decoder": [True], "pruned_heads": [{"0": [1]}, {}], "position_embedding_type": ["relative_key"],
    "layer_types": [["sliding_attention"] * 3, ["full_attention"] * 3], "sliding_window": [3], "head_dim": [6, 16],
    "use_sliding_window": [True], "max_window_layers": [1], "attention_bias": [True, False], "mlp_bias": [True],
    "torch_dtype": ["float32"], "num_labels": [3, 7], "id2label": [{"0": "a", "1": "b", "2": "c"}, {}],
    "attn_logit_softcapping": [1.0], "final_logit_softcapping": [1.0], "logit_scale": [2.0], "qk_norm": [True],
    "query_pre_attn_scalar": [2], "embedding_multiplier": [2.0], "residual_multiplier": [2.0], "hidden_act": ["swish"],
    "dense_act_fn": ["relu", "silu"], "is_gated_act": [True], "scale_decoder_outputs": [True, False], "auto_map": [{}],
    "feed_forward_proj": ["gated-silu"], "num_experts": [2], "conv_kernel_size": [3], "add_bias_logits": [True],
    "normalize_before": [True], "static_position_embeddings": [False, True], "add_final_layer_norm": [True],
    "_attn_implementation": ["eager", "sdpa"], "attn_implementation": ["eager"], "embedding_size": [16],
    "attention_head_size": [4], "pooler_hidden_size": [16], "z_steps": [2], "a_key_that_nobody_knows": [3],
}  # fmt: skip
# the interesting values of a key, besides those of its type
SPECIAL: dict[str, list[Any]] = {
    "rope_scaling": [
        {"rope_type": kind, **more} for kind in ("linear", "dynamic", "yarn", "llama3", "longrope", "default")
        for more in ({}, {"factor": 2.0}, {**{k: v for k, v in peers.STRETCH.items() if k != "rope_type"}})
    ],
    "rope_parameters": [
        {}, {"rope_theta": 300.0}, {"rope_type": "default", "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 2.0}, {"rope_type": "default", "rope_theta": 99.0, "factor": 4.0},
        {"full_attention": {"rope_theta": 99.0, "rope_type": "default"}}, {**peers.STRETCH, "extra": 1},
        {"type": "llama3", **{key: value for key, value in peers.STRETCH.items() if key != "rope_type"}},
    ],
    "layer_types": [
        ["sliding_attention"] * 3, ["sliding_attention", "full_attention", "full_attention"], ["full_attention"] * 2,
        ["chunked_attention"] * 3, ["full_attention"] * 3, ["mamba"] * 3, [1, 2, 3],
    ],
    "vision_config": [
        {**peers.TOWER, key: value} for key, value in (
            ("image_size", 8), ("image_size", [16, 16]), ("patch_size", 5), ("num_channels", 1), ("hidden_act", "relu"),
            ("hidden_act", "quick_gelu"), ("hidden_act", "mish"), ("layer_norm_eps", 0.1), ("num_attention_heads", 3),
            ("intermediate_size", None), ("vision_use_head", True), ("attention_dropout", 0.1), ("stray", 1),
            ("projection_dim", 7),
        )
    ],
    "vision_config_dict": [None, {"hidden_size": 16}], "text_config": [None, {"hidden_size": 16}],
    "pos_att_type": ["c2p", "p2c|c2p", ["c2p"], ["p2c"], "p2p", [], ["c2p", "p2p"], [["c2p"]], "c2p | p2c"],
    "norm_rel_ebd": ["none", "layer_norm", "LAYER_NORM", "layer_norm|x", "batch_norm"],
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gated-relu", "gelu", "gelu_new", "silu",
                          "gated-gelu_new", "gated-swish", "x-relu", "gated-gelu-x"],
    "image_size": [[16, 16], [16, 32], [16], 8, 20, 16.0], "patch_size": [[4, 4], [4, 2], 8, 5, 2],
    "id2label": [{"0": "a"}, {"0": "a", "1": "b", "2": "c"}, {}, {"0": "a", "2": "b"}, {"x": "a"}],
    "problem_type": ["regression", "multi_label_classification", "single_label_classification"],
    "img_size": [16, [16, 16], [16, 32]], "global_pool": ["avg", "token", "map", "max", ""],
    "architectures": [["BartModel"], []], "model_type": [None, "x"],
    "act_layer": ["gelu", "gelu_tanh", "relu", "silu", "swish", "quick_gelu", "hard_swish", "mish", "nothing"],
    "norm_layer": ["rmsnorm", "layernorm"], "init_values": [1e-3], "reg_tokens": [2], "mlp_ratio": [2, 1.5, 0.3],
    "input_size": [[1, 16, 16], [3, 16, 32], [3, 16], [3, 224, 224], 3], "pos_embed": ["none"], "drop_rate": [0.3],
    "architecture": ["vit_small_patch16_224", "vit_base_patch32_224.x", "resnet18", "deit_tiny_patch16_224",
                     "vit_tiny_patch16_384", "vit_medium_patch16_gap_240"],
}  # fmt: skip
WIDE = {"hidden_size", "d_model", "n_embd"}  # whose defaults are no tiny model: the table of defaults is checked


class Change(NamedTuple):
    """A family's configuration with one key changed: of the whole, or of one of timm's two inner objects."""

    family: str
    key: str
    config: dict[str, Any]
    what: str


def cases() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """The peers' tiny models by name."""
    every = {**peers.LANGUAGE, **peers.IMAGES, **peers.PAIRS, **peers.ENCODERS, **peers.SPEECH, **peers.TEXT_TOWERS}
    return {name: every[name] for name in NAMES}


def raw(name: str) -> dict[str, Any]:
    """The configuration of a tiny model as a file holds it: with what differs from the peer's defaults alone."""
    if name == "timm":
        return copy.deepcopy(TIMM)
    architecture, config, options = cases()[name]
    kind = getattr(peers.transformers, config).model_type
    return {"model_type": kind, "architectures": [architecture], **copy.deepcopy(options)}


def whole(name: str) -> dict[str, Any]:
    """The same with every key that the peer writes."""
    config = getattr(peers.transformers, cases()[name][1])(**copy.deepcopy(cases()[name][2]))
    content = json.loads(json.dumps(config.to_dict(), default=str))
    return {**raw(name), **content, "architectures": [cases()[name][0]]}  # a configuration alone does not know them


def values(key: str, default: Any) -> list[Any]:
    """Other values for a key, by the type of what it holds."""
    result: list[Any] = list(SPECIAL.get(key, [])) + list(STRAY.get(key, []))
    if isinstance(default, bool):
        result += [not default, None, "x"]
    elif isinstance(default, int):
        result += [1, 2, default + 1, default * 2, max(default - 1, 1), 0, -1, None, 3.5, "x", True]
    elif isinstance(default, float):
        result += [0.0, 0.5, default * 10, default + 0.05, -1.0, None, "x", 1]
    elif isinstance(default, str):
        result += ["x", None, 3]
    else:
        result += [None, 1, 0.5, True, "x", [1], {"a": 1}]
    if key.endswith(("_act", "_function", "act_fn")):
        result += list(peers.transformers.activations.ACT2FN)
    return [value for n, value in enumerate(result) if repr(value) not in map(repr, result[:n])]


def siblings() -> dict[str, list[Any]]:
    """Every key of every family's configuration, with the values that they have."""
    result: dict[str, list[Any]] = {key: list(some) for key, some in STRAY.items()}
    for name in NAMES:
        for key, value in whole(name).items():
            result.setdefault(key, [])
            if value not in result[key]:
                result[key].append(value)
    for family in FAMILIES:
        for key in (*family.keys.read, *family.keys.fixed, *family.keys.ignored, *family.keys.aliases):
            result.setdefault(key, [1])
    return {key: some if key in STRAY else some[:2] for key, some in result.items()}


def changes(name: str) -> Iterator[Change]:
    """Every change of one family's configuration."""
    if name == "timm":
        yield from timm_changes()
        return
    base, full = raw(name), whole(name)
    again = name not in FIRST
    for key, value in full.items():
        if again and key in BOOKKEEPING - {"id2label", "num_labels", "problem_type", "pad_token_id"}:
            continue  # said of its family's first
        for other in values(key, value)[: 3 if key in BOOKKEEPING - SPECIAL.keys() else None]:
            if repr(other) != repr(base.get(key)):
                yield Change(name, key, {**base, key: other}, f"{key}={other!r}")
        if key not in WIDE:
            for other, which in ((full, "of all"), (base, "of few")):
                if key in other:
                    others = {one: item for one, item in other.items() if one != key}
                    yield Change(name, key, others, f"without {key} {which}")
    for key, some in siblings().items():
        if key not in full and not (again and key in BOOKKEEPING):
            for other in [*some, *([] if again else [None])]:
                yield Change(name, key, {**base, key: other}, f"{key}={other!r}")


def timm_changes() -> Iterator[Change]:
    """Changes of timm's three objects, among them every argument of its VisionTransformer."""
    import inspect

    from timm.models._pretrained import PretrainedCfg

    arguments = inspect.signature(peers.timm.models.VisionTransformer).parameters
    shapes = {
        "": {**TIMM, "num_features": 32, "global_pool": "token", "label_names": ["a"], "stray": 1},
        "model_args": {key: one.default for key, one in arguments.items() if not isinstance(one.default, type)},
        "pretrained_cfg": {field.name: field.default for field in dataclasses.fields(PretrainedCfg)},
    }
    shapes["model_args"] |= {"features_only": False, "use_naflex": None, "strict_img_size": True, "stray": 1}
    for where, keys in shapes.items():
        for key, default in keys.items():
            if where == "" and key in ("model_args", "pretrained_cfg"):
                continue
            for other in ["(missing)", *values(key, default)]:
                config = copy.deepcopy(TIMM)
                inside: dict[str, Any] = config[where] if where else config
                inside.pop(key, None)
                if other != "(missing)":
                    inside[key] = other
                yield Change("timm", key, config, f"{where}.{key}={other!r}")
    flat = {key: value for key, value in TIMM.items() if key != "pretrained_cfg"}
    yield Change("timm", "pretrained_cfg", {**flat, "input_size": [3, 16, 16], "fixed_input_size": True}, "flat")


def peer(name: str, config: dict[str, Any], folder: Path) -> Any:
    """The peer's model of a configuration, with random weights, saved into the folder beside that configuration."""
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    if name == "timm":
        model = peers.timm.create_model(f"local-dir:{folder}").float().eval()
    else:
        cls, kind, _ = cases()[name]
        loaded = getattr(peers.transformers, kind).from_dict(copy.deepcopy(config))
        cls = "BartForConditionalGeneration" if config.get("architectures") == ["BartModel"] else cls
        model = getattr(peers.transformers, cls)(loaded).float().eval()
        if any(word in cls for word in ("Mixtral", "Moe", "GptOss", "Deepseek", "Next")):
            model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dim() > 1:  # whatever the keys of initialisation say
                parameter.normal_(std=0.15)
            elif parameter.requires_grad:
                parameter.copy_(float(parameter.mean() > 0.5) + 0.1 * torch.randn_like(parameter))
    if name == "timm":
        from safetensors.torch import save_file

        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    else:
        model.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(config))
    return model


def inputs(model: Any, name: str, size: int) -> dict[str, Any]:
    """What both compute: tokens with padding where the family knows any, or images."""
    torch.manual_seed(1)
    if name in peers.IMAGES or name == "timm":
        if hasattr(model, "vision_model"):
            tower = model.vision_model.embeddings
            return {"pixel_values": torch.randn(2, tower.patch_embedding.in_channels, *[tower.image_size] * 2)}
        embeddings = (
            model.patch_embed if name == "timm" else getattr(model, name.partition("-")[0]).embeddings.patch_embeddings
        )
        pair = embeddings.img_size if name == "timm" else embeddings.image_size
        channels = embeddings.proj.in_channels if name == "timm" else embeddings.num_channels
        return {"pixel_values": torch.randn(2, channels, *pair)}
    vocab = model.config.vocab_size
    if name in peers.SPEECH:
        sizes = (model.config.num_mel_bins, 2 * model.config.max_source_positions)
        targets = torch.randint(vocab, (2, min(20, model.config.max_target_positions)))
        return {"input_features": torch.randn(2, *sizes), "decoder_input_ids": targets}
    length = min(20, size)
    tokens = torch.randint(min(3, vocab - 1), vocab, (2, length))
    if name in peers.PAIRS:
        targets, pad = torch.randint(vocab, (2, length)), model.config.pad_token_id
        if name == "m2m100":  # whose positions leave out padding: no text has any inside
            tokens, targets = (x.masked_fill(x == pad, 0 if pad else min(1, vocab - 1)) for x in (tokens, targets))
        return {"input_ids": tokens, "decoder_input_ids": targets}
    if name in peers.LANGUAGE:
        return {"input_ids": tokens}
    if name in peers.TEXT_TOWERS:  # whose vector is that of the end
        end = vocab - 1 if model.config.eos_token_id == 2 else model.config.eos_token_id
        tokens = tokens.masked_fill(tokens == end, 0 if end else 1)  # which no text has inside
        tokens[:, -1] = end
        return {"input_ids": tokens}
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, length // 2 + 1 :] = False
    pad = model.config.pad_token_id or 0
    tokens = tokens.masked_fill(tokens == pad, 0 if pad else min(1, vocab - 1))  # no text has padding inside
    return {"input_ids": tokens.masked_fill(~valid, pad), "attention_mask": valid}


@torch.no_grad()
def peer_logits(model: Any, name: str, inputs: dict[str, Any]) -> torch.Tensor:
    if name == "timm":
        return model(inputs["pixel_values"])
    more = {"use_cache": False} if name in {*peers.LANGUAGE, *peers.PAIRS, *peers.SPEECH} else {}
    if "attention_mask" in inputs:
        inputs = {**inputs, "attention_mask": inputs["attention_mask"].long()}
    output = model(**inputs, **more, return_dict=True)
    return next(output[key] for key in ("prediction_logits", "text_embeds", "logits") if key in output)


NETS: dict[str, Any] = {}
MODELS: dict[str, Any] = {}


def one_net(config: dict[str, Any], source: Path) -> Any:
    """A model of these options, which is built once: most changes leave them as they are."""
    key = json.dumps(config)
    if key not in NETS:
        with torch.device("cpu"):
            NETS[key] = rebuild_task(config, source)
    return NETS[key]


def one_model(model: dict[str, Any]) -> dict[str, Any]:
    """The complete options of these, resolved once."""
    key = json.dumps(model)
    if key not in MODELS:
        MODELS[key] = complete_options(model)
    return copy.deepcopy(MODELS[key])


@torch.no_grad()
def our_logits(folder: Path, name: str, inputs: dict[str, Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    importer.rebuild_task, importer.complete_options = one_net, one_model
    try:
        checkpoint = importer.checkpoint(folder)
    finally:
        importer.rebuild_task, importer.complete_options = rebuild_task, complete_options
    net = one_net({"model": checkpoint.model}, folder).net.eval()
    for key, tensor in keep_own_tensors(net).items():
        tensor.data.copy_(checkpoint.tensors[key])
    net = copy.deepcopy(net).to(dtype) if dtype != torch.float32 else net
    if not inputs:
        return torch.empty(0)
    if "pixel_values" in inputs:
        return net(inputs["pixel_values"])
    if name in peers.SPEECH:
        return net.decode(inputs["decoder_input_ids"], net.encode_frames(inputs["input_features"].mT))
    if name in peers.PAIRS:
        return net(inputs["input_ids"], inputs["decoder_input_ids"])
    return net(inputs["input_ids"], inputs.get("attention_mask"))


def outcome(change: Change, folder: Path) -> tuple[str, str]:
    """What came of one change: ``equal``, ``refused`` by its name, what only the peer refuses, or one of SILENT."""
    right: torch.Tensor | None = None
    model_inputs: dict[str, Any] = {}
    try:  # most are refused before any tensor is looked at, and then no peer need be built
        lookup.family_of(change.config, "config.json").complete(change.config, "config.json")
    except UsageError as error:
        if change.key in str(error):
            return "refused", str(error)
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peer(change.family, change.config, folder)
            longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or 20
            behind = change.family.startswith(BEHIND_PADDING)
            longest -= 1 + (model.config.pad_token_id or 0) if behind else 0
            model_inputs = inputs(model, change.family, longest)
            right = peer_logits(model, change.family, model_inputs)
            right = right if bool(right.isfinite().all()) else None
    except Exception:
        right = None
    model_inputs = {} if right is None else model_inputs
    if right is None:  # it has no model: nothing can be compared, and zoo must not crash
        if not (folder / "base.safetensors").is_file():
            with contextlib.redirect_stderr(io.StringIO()):
                inputs(peer(change.family, raw(change.family), folder), change.family, 20)
            shutil.copyfile(folder / "model.safetensors", folder / "base.safetensors")
        shutil.copyfile(folder / "base.safetensors", folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(change.config))
    try:
        ours = our_logits(folder, change.family, model_inputs)
    except (UsageError, CheckpointError) as error:
        text = str(error)
        if right is None or change.key in text:
            return "refused", text
        return "unnamed", text
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"
    if right is None:
        return "peer refuses", ""
    if ours.shape != right.shape:
        return "differs", f"{tuple(ours.shape)} and not {tuple(right.shape)}"
    gap = relative_gap(ours, right, model_inputs)
    if 1e-5 < gap < 1e-3:  # rounding, or another model: float64 tells
        double = {key: value.double() if value.is_floating_point() else value for key, value in model_inputs.items()}
        right = peer_logits(in_float64(model), change.family, double)
        gap64 = relative_gap(our_logits(folder, change.family, double, torch.float64), right, model_inputs)
        return ("equal" if gap64 <= 1e-9 else "differs"), f"{gap:.2g}, in float64 {gap64:.2g}"
    return ("equal" if gap <= 1e-5 else "differs"), f"{gap:.2g}"


def in_float64(model: Any) -> Any:
    """The peer's model in float64, with its norms and plain RoPE, which compute in float32 whatever they get."""

    def norm(module: Any, x: torch.Tensor) -> torch.Tensor:
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

    def rotate(module: Any, x: torch.Tensor, position_ids: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        exponents = torch.arange(len(module.inv_freq), dtype=torch.float64) / len(module.inv_freq)
        angles = position_ids[..., None] * module.config.rope_parameters["rope_theta"] ** -exponents
        return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    for module in model.double().modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(norm, module)
        elif type(module).__name__.endswith("RotaryEmbedding") and module.rope_type == "default":
            module.forward = functools.partial(rotate, module)
    return model


def relative_gap(ours: torch.Tensor, right: torch.Tensor, inputs: dict[str, Any]) -> float:
    """The largest difference of logits (B, T, V) or (B, C) at real tokens, relative to the largest logit."""
    mask = inputs.get("attention_mask")
    here, there = (ours[mask], right[mask]) if mask is not None and ours.dim() == 3 else (ours, right)
    return float((here - there).abs().max()) / max(1.0, float(there.abs().max()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, help="so many changes of each family, drawn by the seed")
    parser.add_argument("--only", help="one family")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    total: Counter[str] = Counter()
    start = time.monotonic()
    for name in (*NAMES, "timm"):
        if arguments.only and name != arguments.only:
            continue
        every = list(changes(name))
        if arguments.each:
            every = random.Random(f"{arguments.seed} {name}").sample(every, min(arguments.each, len(every)))
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            for change in every:
                verdict, detail = outcome(change, Path(folder))
                counts[verdict] += 1
                if verdict in SILENT:
                    print(f"  {name}: {change.what[:100]}: {verdict}: {detail[:200]}", flush=True)
        total += counts
        print(f"{name}: {len(every)} changes: {dict(counts)}", flush=True)
    print(f"seed {arguments.seed}: {sum(total.values())} changes, {dict(total)} in {time.monotonic() - start:.0f} s")
    return int(any(total[one] for one in SILENT))


if __name__ == "__main__":
    raise SystemExit(main())
