"""The files beside the weights: tokenizers, the names of classes, and how images are normalised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from zoo import atomic, limits
from zoo.data.native import native_call
from zoo.errors import UsageError
from zoo.families import files
from zoo.families.family import Family

KEPT = "family.json"  # what an export needs of their configuration and ours has no word for
FACTS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    "forced_bos_token_id",
    *("id2label", "label2id"),
)
NAMES = "special_tokens_map.json"
COPIED = (
    *(NAMES, "tokenizer_config.json", "added_tokens.json", "generation_config.json", "preprocessor_config.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm"),
)
MEAN, STD = [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]  # transformers' own default for ViT


def bring(source: Path, folder: Path, theirs: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files that our task needs; what config.json must say besides."""
    for name in COPIED:
        if (source / name).is_file():
            atomic.copy(source / name, folder / name)
    facts = {key: theirs[key] for key in FACTS if theirs.get(key) is not None}
    atomic.write_json(folder / KEPT, facts)
    options = model["init_args"]
    if "num_classes" in options and "image_size" in options:
        _images(source, folder, theirs, options)
        return {"resize": "crop"}
    if "num_classes" in options:
        labels = theirs.get("id2label") or {}
        names = [labels.get(str(n), f"class {n}") for n in range(options["num_classes"])]
        atomic.write_json(folder / "labels.json", {"names": names})
    _tokenizer(source, folder, theirs, "source_vocab_size" in options)
    return {}


def carry(source: Path, folder: Path, family: Family) -> dict[str, Any]:
    """Copy the files that their library needs; what their configuration must say besides."""
    for name in (*COPIED, "tokenizer.json"):
        if (source / name).is_file():
            atomic.copy(source / name, folder / name)
    shared = source / "source-tokenizer.json"
    if shared.is_file():
        atomic.copy(shared, folder / "tokenizer.json")
    facts = files.optional(source / KEPT)
    told = files.optional(source / "images.json") or files.optional(source / "labels.json")
    if told and "id2label" not in facts:
        facts["id2label"] = {str(n): name for n, name in enumerate(told["names"])}
        facts["label2id"] = {name: n for n, name in enumerate(told["names"])}
    return facts if family.types else {}


def _images(source: Path, folder: Path, theirs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    told = {**files.optional(source / "preprocessor_config.json"), **(theirs.get("pretrained_cfg") or {})}
    labels = theirs.get("id2label") or {}
    names = theirs.get("label_names") or [labels.get(str(n), f"class {n}") for n in range(options["num_classes"])]
    channels = options["channels"]
    found = {
        "names": list(names),
        "mean": list(told.get("image_mean") or told.get("mean") or MEAN)[:channels],
        "std": list(told.get("image_std") or told.get("std") or STD)[:channels],
        "image_size": options["image_size"],
        "channels": channels,
    }
    atomic.write_json(folder / "images.json", found)


def _tokenizer(source: Path, folder: Path, theirs: Mapping[str, Any], pair: bool) -> None:
    """Write tokenizer.json, and the names of special tokens beside it; nothing where the checkpoint has none."""
    inner = _read(source)
    if inner is None:
        return
    for name in ("source-tokenizer.json", "target-tokenizer.json") if pair else ("tokenizer.json",):
        atomic.write_text(folder / name, inner.to_str(pretty=True))
    if not (folder / NAMES).is_file():
        atomic.write_json(folder / NAMES, _names(source, inner, theirs))
    if pair:
        told = {**theirs, **files.optional(folder / "generation_config.json")}
        said = (("bos_token", "decoder_start_token_id"), ("forced_bos_token", "forced_bos_token_id"))
        first = {name: inner.id_to_token(told[key]) for name, key in said if isinstance(told.get(key), int)}
        inner.add_special_tokens([token for token in first.values() if token])
        atomic.write_text(folder / "target-tokenizer.json", inner.to_str(pretty=True))
        atomic.write_json(folder / f"target-{NAMES}", {**files.optional(folder / NAMES), **first})


def _names(source: Path, inner: tokenizers.Tokenizer, theirs: Mapping[str, Any]) -> dict[str, str]:
    """Which tokens end, begin and pad, by tokenizer_config.json or by their numbers in config.json."""
    told, found = files.optional(source / "tokenizer_config.json"), {}
    for word in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
        value = told.get(f"{word}_token")
        content = value.get("content") if isinstance(value, dict) else value
        number = theirs.get(f"{word}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if content is None and isinstance(number, int):
            content = inner.id_to_token(number)
        if content is not None:
            found[f"{word}_token"] = content
    return found


def _read(source: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of a checkpoint, from its standard file or from the files of BPE and WordPiece."""
    try:
        if (source / "tokenizer.json").is_file():
            with native_call(str(source / "tokenizer.json"), silent=True):
                return tokenizers.Tokenizer.from_str(limits.text(source / "tokenizer.json", limits.JSON_BYTES))
        if (source / "vocab.json").is_file() and (source / "merges.txt").is_file():
            inner = tokenizers.Tokenizer(models.BPE.from_file(str(source / "vocab.json"), str(source / "merges.txt")))
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            inner.decoder = decoders.ByteLevel()
            return _special(inner, source)
        if (source / "vocab.txt").is_file():
            lower = files.optional(source / "tokenizer_config.json").get("do_lower_case", True)
            inner = tokenizers.Tokenizer(models.WordPiece.from_file(str(source / "vocab.txt"), unk_token="[UNK]"))
            inner.normalizer = normalizers.BertNormalizer(lowercase=lower)
            inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            inner.decoder = decoders.WordPiece()
            return _special(inner, source)
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"the tokenizer in {source} cannot be read: {error}") from error
    return None


def _special(inner: tokenizers.Tokenizer, source: Path) -> tokenizers.Tokenizer:
    """Mark the special tokens that the files name, where the vocabulary has them."""
    told = {**files.optional(source / "tokenizer_config.json"), **files.optional(source / NAMES)}
    words = [value.get("content") if isinstance(value, dict) else value for key, value in told.items()
             if key.endswith("_token")]  # fmt: skip
    words += ["<|endoftext|>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.add_special_tokens([word for word in dict.fromkeys(words) if word and inner.token_to_id(word) is not None])
    return inner
