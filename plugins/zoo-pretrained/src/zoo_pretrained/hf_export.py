"""Export a model of zoo as a checkpoint that the library of its family loads (`zoo export --format hf`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config.signatures import parameters
from zoo.errors import UsageError
from zoo.inference.export import check_folder
from zoo.inference.rebuild_task import complete_options
from zoo.inference.weight_files import keep_own_tensors
from zoo.io import atomic_files
from zoo.models import LanguageModel
from zoo.tasks.lm import CausalLM
from zoo_pretrained import hf_files, image_files, lookup, tokenizer_files
from zoo_pretrained.decoder import gather_layers, spread_layers
from zoo_pretrained.family import Family, budget, inner, name_of, width
from zoo_pretrained.rope import plain_rope

if TYPE_CHECKING:
    from zoo.inference.trained_model import Trained

# how a model is trained or computed, and not what it computes
IGNORED_KEYS = {
    "lr", "optimizer", "schedule", "init", "dropout", "attention_dropout", "label_smoothing", "mix", "bleu_tokenize",
    "backend", "aux_loss_weight", "head_dropout", "mask_token",
    "temperature", "learn_temperature", "symmetric", "matryoshka",
}  # fmt: skip


def export_pretrained(trained: Trained, folder: Path, force: bool = False) -> Family:
    """Write a checkpoint of the family that the model belongs to, and return the family.

    Raises UsageError where there is none: it names the option that the nearest family does not have.
    """
    check_folder(trained, folder, force)
    model = complete_options(trained.place.config["model"])
    if type(trained.net) is LanguageModel:  # DPO and FIM train the language model of their families
        options = {name: value for name, value in model["init_args"].items() if name in parameters(CausalLM)}
        model = {"class_path": tokenizer_files.LANGUAGE_MODEL, "init_args": options}
    family, config = _family(model, trained.place.config.get("family"))
    tensors = family.write_tensors(family.complete(config, hf_files.CONFIG), keep_own_tensors(trained.net))
    rules = trained.place.config.get("generation")
    heads = {"architectures": [family.architecture], "dtype": _dtype(trained)} if family.architecture else {}
    about = {**heads, **config}
    try:
        with atomic_files.replace_files(folder, hf_files.CONFIG, hf_files.ANY_WEIGHTS) as draft:
            if family.types:
                about = tokenizer_files.export_tokenizers(trained.place.folder, draft, model, about, rules)
                image_files.write_preprocessor(trained, draft)
            else:
                about = image_files.timm_config(trained, about)
            about, tensors = family.export_beside(draft, trained.place.folder, model["init_args"], about, tensors)
            hf_files.save(draft, about, tensors)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic_files.reason(error)}") from error
    return family


def _family(model: Mapping[str, Any], recorded: object) -> tuple[Family, dict[str, Any]]:
    """The family that can express all options of this model, trying the recorded one first, and its configuration."""
    candidates = [family for family in lookup.families() if (family.format, family.task) == ("hf", model["class_path"])]
    candidates.sort(key=lambda family: family.name != recorded)
    best: tuple[int, str] | None = None
    for family in candidates:
        try:
            config = family.write_config(model["init_args"])
            full = family.complete(config, "config.json")
            complete = complete_options({"class_path": family.task, "init_args": family.options(full)})
        except (KeyError, TypeError, UsageError):
            continue  # it has no word for one of the parts
        differing = list(_differences("model", _normal(model["init_args"]), _normal(complete["init_args"])))
        if not differing:
            return family, config
        if best is None or len(differing) < best[0]:
            best = (len(differing), f"{family.name} has {differing[0]}")
    why = f"The nearest, {best[1]}." if best else "None has its task and parts."
    raise UsageError(
        f"no published family is this model, so there is no such checkpoint of it. {why}\n"
        "For transformers, with the packages of zoo: --format transformers"
    )


def _normal(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those of training, and what can be left out or said in two ways said in one."""
    plain_options = _as_json(options)
    if plain_options.get("overrides"):
        plain_options["hidden"] = plain_options.get("hidden") or 4 * plain_options["dim"]
        plain_options |= gather_layers(spread_layers(plain_options))
    for place in (plain_options, *(plain_options.get("overrides") or ())):
        if name_of(place.get("position")) == "RoPE":
            place["position"]["init_args"] = plain_rope(inner(place["position"]))
    plain_options["hidden"] = plain_options.get("hidden") or 4 * plain_options["dim"]
    if "next_sentence" in plain_options:
        plain_options["next_sentence"] = plain_options["next_sentence"] > 0  # which is a weight of the loss
    if "decoder_depth" in plain_options:
        plain_options["decoder_depth"] = plain_options["decoder_depth"] or plain_options["depth"]
    attention = plain_options["attention"]["init_args"]
    attention["kv_heads"] = attention.get("kv_heads") or plain_options["heads"]
    if "bias" in attention:
        attention["head_dim"] = attention.get("head_dim") or plain_options["dim"] // plain_options["heads"]
        attention["out_bias"] = attention["bias"] if attention.get("out_bias") is None else attention["out_bias"]
    feed = plain_options["ffn"]["init_args"].get("expert", plain_options["ffn"])["init_args"]
    if "multiple_of" in feed:
        plain_options["hidden"], feed["multiple_of"] = budget(width(plain_options["hidden"], feed["multiple_of"])), 1
    return plain_options


def _as_json(value: Any) -> Any:
    """A copy without the options of training."""
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items() if key not in IGNORED_KEYS}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _differences(name: str, ours: Any, theirs: Any) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if ours.get("class_path") != theirs.get("class_path"):
            yield f"{name} {_shorten(theirs)} and not {_shorten(ours)}"
            return
        for key in ours.keys() | theirs.keys():
            below = name if key == "init_args" else f"{name}.{key}"
            yield from _differences(below, ours.get(key), theirs.get(key))
    elif ours != theirs:
        yield f"{name}={_shorten(theirs)} and not {_shorten(ours)}"


def _shorten(value: Any) -> str:
    return (
        value["class_path"].rpartition(".")[2] if isinstance(value, Mapping) and "class_path" in value else f"{value}"
    )


def _dtype(trained: Trained) -> str:
    return str(next(trained.net.parameters()).dtype).removeprefix("torch.")
