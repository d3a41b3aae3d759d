"""RoPE in published configurations: its base, the part of a head that turns, and its scaling, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zoo.errors import UsageError
from zoo.parts.position import SCALING, Extent, RoPE
from zoo_pretrained.config_keys import Key, Keys, real, size, word
from zoo_pretrained.family import Config, Options, inner, name_of, part, unsupported_value

LIST = Key(None, list, optional=True)
# what an object of RoPE may hold: by transformers 5 in rope_parameters, before in rope_scaling
ROPE = Keys(
    {
        "rope_type": word("default"), "type": word("default"), "rope_theta": real(10000.0), "factor": real(None),
        "partial_rotary_factor": real(1.0), "original_max_position_embeddings": size(None),
        "low_freq_factor": real(None), "high_freq_factor": real(None), "beta_slow": real(None),
        "beta_fast": real(None), "attention_factor": real(None), "mscale": real(None), "mscale_all_dim": real(None),
        "truncate": Key(True, bool), "short_factor": LIST, "long_factor": LIST,
    },
    ignored=(),
)  # fmt: skip
# the keys that each kind of scaling must have
NEEDED = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "longrope": ("short_factor", "long_factor"),
}  # fmt: skip


def rope_object(config: Config) -> tuple[str, Options]:
    """The key of the object that describes RoPE, rope_scaling or rope_parameters, and the object.

    Raises UsageError where there are two different ones.
    """
    both = [key for key in ("rope_scaling", "rope_parameters") if config.get(key)]
    if len(both) > 1 and config["rope_scaling"] != config["rope_parameters"]:
        raise unsupported_value(config, "rope_scaling", config["model_type"], "rope_parameters alone")
    source = both[0] if both else "rope_parameters"
    return source, dict(config.get(source) or {})


def read_rope(config: Config, described: Mapping[str, Any], source: str, partial: bool = False) -> Options:
    """The position of zoo for an object under the key ``source`` of a complete configuration.

    ``partial``: part of a head may turn. Raises UsageError that names a key whose value is not supported.
    """
    name, whole = config["model_type"], config["max_position_embeddings"]
    full = ROPE.complete(described, name, f"config.json: {source}")
    kind = full["rope_type"] if "rope_type" in described else full["type"]
    base, fraction = float(full["rope_theta"]), float(full["partial_rotary_factor"] or 1.0)
    if fraction > 1 or (fraction < 1 and not partial):
        right = "partial_rotary_factor of at most 1" if partial else "no partial_rotary_factor"
        raise unsupported_value(config, source, name, right)
    options: Options = {"base": base} if fraction == 1 else {"base": base, "fraction": fraction}
    if kind not in NEEDED:
        raise UsageError(f"config.json: {source}: rope_type={kind!r} is not supported. There are: {', '.join(NEEDED)}.")
    for key in NEEDED[kind]:
        if full[key] is None:
            raise UsageError(f"config.json: {source} lacks {key}, which rope_type={kind!r} needs.")
    if kind == "default":
        return part("position.RoPE", **options)
    length = config.get("original_max_position_embeddings") or full["original_max_position_embeddings"] or whole
    length = whole if kind == "dynamic" else length
    factor = float(full["factor"] or (whole / length if kind in ("yarn", "longrope") else 1.0))
    growth = math.log(max(factor, 1.0))
    options["scaling_factor"] = max(factor, 1.0) if kind == "longrope" else factor
    scaling: Options = {"kind": kind}
    if kind != "linear":
        options["original_max_length"] = length
    if kind in ("yarn", "longrope"):
        scaling["attention_factor"] = None if full["attention_factor"] is None else float(full["attention_factor"])
    if kind == "yarn" and full["attention_factor"] is None and full["mscale"] and full["mscale_all_dim"]:
        scales = [0.1 * float(full[key]) * growth + 1 for key in ("mscale", "mscale_all_dim")]
        scaling["attention_factor"] = scales[0] / scales[1]
    if kind == "yarn":
        scaling["turns"] = [float(full["beta_slow"] or 1), float(full["beta_fast"] or 32)]
        scaling["truncate"] = full["truncate"]
    if kind == "llama3":
        options |= {key: float(full[key]) for key in ("low_freq_factor", "high_freq_factor")}
    if kind == "longrope":
        for ours, theirs in (("short_factors", "short_factor"), ("long_factors", "long_factor")):
            if not all(isinstance(one, (int, float)) and one > 0 for one in full[theirs]):
                raise UsageError(f"config.json: {source}: {theirs} is not supported; numbers above 0 would be.")
            scaling[ours] = [float(one) for one in full[theirs]]
    options["scaling"] = {key: value for key, value in scaling.items() if key == "kind" or value != SCALING[key]}
    try:
        scheme = RoPE(2, 1, Extent((1,)), **options)
        if kind == "longrope":
            scheme.check(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    except UsageError as error:
        raise UsageError(f"config.json: {source}: {error}") from error
    return part("position.RoPE", **options)


def plain_rope(options: Mapping[str, Any]) -> Options:
    """The options of a RoPE, complete ones, without those that change nothing where nothing is scaled."""
    scaling = {**SCALING, **(options.get("scaling") or {})}
    scaled = options.get("scaling_factor", 1) != 1 or scaling["kind"] in ("dynamic", "longrope")
    if not scaled and scaling["attention_factor"] in (None, 1):
        return {"base": options["base"], "fraction": options.get("fraction", 1.0)}
    return {**options, "scaling": scaling}


def write_rope(position: Any) -> Options:
    """The object that describes a RoPE of zoo, its base in it. Raises UsageError for other positions."""
    if name_of(position) != "RoPE":
        raise UsageError(f"position {name_of(position)} has no place in the published configuration.")
    options = plain_rope(inner(position))
    described: Options = {"rope_theta": options["base"]}
    if options["fraction"] != 1:
        described["partial_rotary_factor"] = options["fraction"]
    if "scaling" not in options:
        return {"rope_type": "default", **described}
    scaling, factor, length = options["scaling"], options["scaling_factor"], options["original_max_length"]
    kind = scaling["kind"]
    described |= {"rope_type": kind, "factor": factor}
    if kind not in ("linear", "dynamic"):
        described["original_max_position_embeddings"] = length
    names = {
        "llama3": {"low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor"},
        "yarn": {"truncate": "truncate"},
        "longrope": {"short_factor": "short_factors", "long_factor": "long_factors"},
    }.get(kind, {})
    described |= {theirs: {**options, **scaling}[ours] for theirs, ours in names.items()}
    if kind == "yarn":
        described |= dict(zip(("beta_slow", "beta_fast"), scaling["turns"], strict=True))
    if scaling["attention_factor"] is not None:
        described["attention_factor"] = scaling["attention_factor"]
    return {key: value for key, value in described.items() if value is not None}
