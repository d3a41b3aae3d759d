"""ModernBERT (Warner et al., 2024): RoPE with two bases, windows in most layers, GEGLU, and hardly any biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zoo.errors import UsageError
from zoo.models.layer_overrides import PLACES, configured_layers
from zoo_pretrained.bert import MASKED, TEXTS, TOKENS, labelled, same, written_labels
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, flag, real, size, word
from zoo_pretrained.family import (
    ACTIVATION_NAMES,
    Config,
    Family,
    Options,
    activation,
    budget,
    inner,
    name_of,
    part,
    read_places,
    unsupported_value,
    width,
    write_places,
)
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule
from zoo_pretrained.vit import CLASSES

NAME, FULL, SLIDING = "modernbert", "full_attention", "sliding_attention"
POOLS = {"cls": "first", "mean": "mean", "bos": "first", "late": "late"}
GATES = {
    "gelu": part("ffn.GEGLU"), "gelu_tanh": part("ffn.GEGLU", approximate="tanh"), "swish": part("ffn.SwiGLU"),
    "relu": part("ffn.ReGLU"),
}  # fmt: skip
ROPE = Keys({"rope_theta": real(None)}, {"rope_type": ["default"], "type": ["default"]}, ())
OBJECT = Key(None, dict, optional=True)
READ = {
    "vocab_size": size(50368), "hidden_size": size(768), "intermediate_size": size(1152),
    "num_hidden_layers": size(22), "num_attention_heads": size(12), "hidden_activation": word("gelu"),
    "max_position_embeddings": size(8192), "norm_eps": real(1e-5), "norm_bias": flag(False),
    "attention_bias": flag(False), "attention_dropout": real(0.0), "mlp_bias": flag(False), "mlp_dropout": real(0.0),
    "layer_types": Key(None, list, optional=True), "global_attn_every_n_layers": size(3, optional=False),
    "rope_parameters": OBJECT, "global_rope_theta": real(160000.0), "local_rope_theta": real(10000.0),
    "local_attention": size(128, 0),
}  # fmt: skip
# keys whose values are options, and the places of these: EuroBERT's too, and ModernBERT's alone
ENCODER_PLACES = {
    "vocab_size": "vocab_size", "max_position_embeddings": "max_length", "hidden_size": "dim",
    "num_hidden_layers": "depth", "num_attention_heads": "heads", "attention_bias": "attention.bias",
    "attention_dropout": "attention_dropout",
}  # fmt: skip
OWN_PLACES = {"norm_eps": "norm.eps", "norm_bias": "norm.bias", "mlp_dropout": "dropout"}
FIXED: dict[str, list[Any]] = {"is_encoder_decoder": [False]}
IGNORED = BOOKKEEPING | {
    "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor", "layer_norm_eps",
    "position_embedding_type", "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index",
    "sparse_prediction", "classifier_dropout", "classifier_pooling", "decoder_bias", "tie_word_embeddings",
}  # fmt: skip


def make_keys(task: str) -> Keys:
    """The keys of a model with a head."""
    read = {**READ, "classifier_activation": word("gelu"), "classifier_bias": flag(False)}
    if task == MASKED:
        return Keys({**read, "decoder_bias": flag(True), "tie_word_embeddings": flag(True)}, FIXED, IGNORED)
    pooling = {"classifier_pooling": word("cls")} if task == TEXTS else {}
    read |= {**CLASSES.read, **pooling, "classifier_dropout": real(0.0)}
    return Keys(read, {**CLASSES.fixed, **FIXED}, IGNORED)


def rope(entry: Any, theta: float, where: str, name: str) -> Options:
    """Plain RoPE of one kind of layers. Raises UsageError for a scaled one."""
    if not isinstance(entry, Mapping | None):
        raise UsageError(f"{where}={entry!r} is not supported in {name}; an object would be.")
    return part("position.RoPE", base=float(ROPE.complete(entry or {}, name, where)["rope_theta"] or theta))


def gated(name: str, bias: bool) -> Options:
    """The gated feed-forward of an activation."""
    return {**GATES[name], "init_args": {**GATES[name]["init_args"], "bias": bias}}


def gate(ffn: Any) -> str:
    """The activation of a gated feed-forward in complete options. Raises KeyError for any other."""
    tanh = inner(ffn).get("approximate") == "tanh"
    return {"GEGLU": "gelu_tanh" if tanh else "gelu", "SwiGLU": "swish", "ReGLU": "relu"}[name_of(ffn)]


def kinds_of_layers(config: Config) -> list[str]:
    """Which layers see everything and which a window, as said, or every third from the first on."""
    depth, kinds = config["num_hidden_layers"], config["layer_types"]
    if kinds is None:
        return [SLIDING if number % config["global_attn_every_n_layers"] else FULL for number in range(depth)]
    if len(kinds) != depth or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise unsupported_value(config, "layer_types", NAME, f"{FULL} or {SLIDING} for each of {depth} layers")
    return kinds


class ModernBERT(Family):
    """ModernBERT (Warner et al., 2024) as a masked language model."""

    name = NAME
    types = (NAME,)
    architectures: ClassVar[tuple[str, ...]] = ("ModernBertForMaskedLM",)
    task = MASKED
    keys = make_keys(MASKED)
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 16, "local_attention": 4,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        dim, kinds, entries = config["hidden_size"], kinds_of_layers(config), config["rope_parameters"] or {}
        if dim % config["num_attention_heads"]:
            raise unsupported_value(config, "num_attention_heads", NAME, f"a divisor of hidden_size={dim}")
        if others := sorted(set(entries) - {FULL, SLIDING}):
            raise unsupported_value(config, "rope_parameters", NAME, f"without {others[0]}, {FULL} and {SLIDING}")
        bases = {
            kind: rope(entries.get(kind), config[f"{key}_rope_theta"], f"config.json: rope_parameters: {kind}", NAME)
            for kind, key in ((FULL, "global"), (SLIDING, "local"))
        }
        narrow = ", ".join(str(number) for number, kind in enumerate(kinds) if kind == SLIDING)
        window = {"window": config["local_attention"] // 2 + 1, "position": bases[SLIDING]}
        act = activation(config, "classifier_activation")
        options = {
            "hidden": budget(config["intermediate_size"]),
            "embedding_norm": True,
            "position": bases[FULL],
            "attention": part("attention.MultiHead"),
            "norm": part("norm.LayerNorm"),
            "ffn": gated(activation(config, "hidden_activation"), config["mlp_bias"]),
            "overrides": [
                {"layers": "first", "block": part("block.PreNorm", attention_norm=False)},
                *([{"layers": narrow, **window}] if narrow else []),
            ],
            **self.head(config, act),
        }
        return read_places(config, {**ENCODER_PLACES, **OWN_PLACES}, options)

    def head(self, config: Config, act: str) -> Options:
        """The options of the head, whose layer has the activation ``act``."""
        if self.task == MASKED:
            bias = {"transform_bias": config["classifier_bias"], "output_bias": config["decoder_bias"]}
            return {"tie": config["tie_word_embeddings"], "activation": act, **bias}
        head = {"pooler": act, "pooler_bias": config["classifier_bias"], "pooler_norm": True}
        if self.task == TOKENS:
            return {**labelled(config), **head}
        if config["classifier_pooling"] not in ("cls", "mean"):
            raise unsupported_value(config, "classifier_pooling", NAME, "'cls' or 'mean'")
        return {**labelled(config), **head, "pool": POOLS[config["classifier_pooling"]]}

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        depth, masked = options["depth"], self.task == MASKED
        _, *others = options["overrides"] or [None]
        narrow = {"window": 1, "position": part("position.RoPE", base=10000.0), **(others[0] if others else {})}
        layers = configured_layers(others[0], depth) if others else []
        if len(others) > 1 or any(
            value and key not in ("window", "position", *PLACES) for key, value in narrow.items()
        ):
            raise UsageError("only a window and a position of some layers have a place in the published configuration.")
        bases = {FULL: inner(options["position"])["base"], SLIDING: inner(narrow["position"])["base"]}
        config = {
            **write_places(options, {**ENCODER_PLACES, **OWN_PLACES}),
            "intermediate_size": width(options["hidden"] or 4 * options["dim"], inner(options["ffn"])["multiple_of"]),
            "hidden_activation": ACTIVATION_NAMES[gate(options["ffn"])],
            "mlp_bias": inner(options["ffn"])["bias"],
            "embedding_dropout": options["dropout"],
            "layer_types": [SLIDING if number in layers else FULL for number in range(depth)],
            "local_attention": 2 * (narrow["window"] - 1),
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            "classifier_activation": ACTIVATION_NAMES[options["activation" if masked else "pooler"]],
            "classifier_bias": options["transform_bias" if masked else "pooler_bias"],
        }
        if masked:
            return {**config, "decoder_bias": options["output_bias"], "tie_word_embeddings": options["tie"]}
        pools = {ours: theirs for theirs, ours in POOLS.items() if theirs in ("cls", "mean")}
        pooling = {"classifier_pooling": pools[options["pool"]]} if self.task == TEXTS else {}
        return {**config, **written_labels(options), **pooling}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        theirs, ours, masked = "model.layers.{n}.", "stack.blocks.{n}.", self.task == MASKED
        words = "model.embeddings.tok_embeddings.weight"
        pairs = {
            "model.embeddings.norm": "stack.entry", f"{theirs}attn_norm": f"{ours}attend.norm",
            f"{theirs}attn.Wqkv": f"{ours}attend.part.qkv", f"{theirs}attn.Wo": f"{ours}attend.part.out",
            f"{theirs}mlp_norm": f"{ours}ffn.norm", f"{theirs}mlp.Wi": f"{ours}ffn.part.up",
            f"{theirs}mlp.Wo": f"{ours}ffn.part.down", "model.final_norm": "stack.norm",
            "head.dense": "transform" if masked else "pooler",
            "head.norm": "transform_norm" if masked else "pooler_norm", 
        }  # fmt: skip
        rules = [rule for theirs_key, ours_key in pairs.items() for rule in same(theirs_key, ours_key)]
        output = "decoder" if masked else "classifier"
        rules += [TensorRule(words, "embedding.weight"), TensorRule(f"{output}.bias", "head.bias")]
        if masked and config["tie_word_embeddings"]:
            return MappedTensors(rules, copies={"decoder.weight": words})
        own = "head.own.weight" if masked else "head.weight"
        return MappedTensors([*rules, TensorRule(f"{output}.weight", own)])


class ModernBERTClassifier(ModernBERT):
    """ModernBERT that classifies texts."""

    name = f"{NAME}-classifier"
    architectures = ("ModernBertForSequenceClassification",)
    task = TEXTS
    keys = make_keys(TEXTS)


class ModernBERTTagger(ModernBERT):
    """ModernBERT that classifies tokens."""

    name = f"{NAME}-tagger"
    architectures = ("ModernBertForTokenClassification",)
    task = TOKENS
    keys = make_keys(TOKENS)
