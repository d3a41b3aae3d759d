"""Import and export the files next to the weights: tokenizers, class names, and normalisation of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from zoo.data.conversation import CHAT_TEMPLATE, has_chat_template
from zoo.data.native import native_call
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.pretrained import hf_files
from zoo.pretrained.family import Family
from zoo.pretrained.image_files import IMAGES, import_images

KEPT_FILES = "family.json"  # what an export needs of their configuration and ours has no word for
FACTS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    "forced_bos_token_id",
    *("id2label", "label2id"),
)
NAMES = "special_tokens_map.json"
TOKENIZER, GENERATION = "tokenizer_config.json", "generation_config.json"
COPIED_FILES = (
    *(NAMES, TOKENIZER, "added_tokens.json", GENERATION, IMAGES),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm"),
)


def import_tokenizers(
    source: Path, folder: Path, theirs: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the files that our task needs; what config.json must say besides."""
    for name in COPIED_FILES:
        if (source / name).is_file():
            atomic_files.copy(source / name, folder / name)
    facts = {key: theirs[key] for key in FACTS if theirs.get(key) is not None}
    atomic_files.write_json(folder / KEPT_FILES, facts)
    options = model["init_args"]
    if "num_classes" in options and "image_size" in options:
        import_images(source, folder, theirs, options)
        return {"resize": "crop"}
    if "num_classes" in options:
        labels = theirs.get("id2label") or {}
        names = [labels.get(str(n), f"class {n}") for n in range(options["num_classes"])]
        atomic_files.write_json(folder / "labels.json", {"names": names})
    _tokenizer(source, folder, theirs, "source_vocab_size" in options)
    return {}


def export_tokenizers(source: Path, folder: Path, family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files that their library needs beside the weights; the configuration with what those make it say."""
    for name in (*COPIED_FILES, "tokenizer.json"):
        if (source / name).is_file():
            atomic_files.copy(source / name, folder / name)
    shared = source / "source-tokenizer.json"
    if shared.is_file():
        atomic_files.copy(shared, folder / "tokenizer.json")
    facts = hf_files.optional(source / KEPT_FILES)
    images = hf_files.optional(source / "images.json")
    content = images or hf_files.optional(source / "labels.json")
    if not family.types:
        names = {"label_names": content["names"]} if content else {}
        return {**config, **names}
    if content and "id2label" not in facts:
        facts["id2label"] = {str(n): name for n, name in enumerate(content["names"])}
        facts["label2id"] = {name: n for n, name in enumerate(content["names"])}
    if (folder / "tokenizer.json").is_file():
        facts = {**_tokenizer_files(source, folder, family.task, facts), **facts}
    numbering = {key: config[key] for key in ("pad_token_id",) if key in config}  # RoBERTa counts its positions by it
    return {**config, **facts, **numbering}


def _tokenizer_files(source: Path, folder: Path, task: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write what AutoTokenizer and generate() look for and the run has not; the numbers of its special tokens.

    A tokenizer of ours puts no special tokens around a text, which our tasks do: its template then does it.
    """
    name, pair = task.rpartition(".")[2], (folder / "tokenizer.json", source / "target-tokenizer.json")
    tokenizer = Tokenizer.load(pair[0])
    inner, own = tokenizer.inner, not tokenizer.names
    tokens = {
        word: tokenizer.names.get(f"<{word}>", f"<{word}>") for word in ("pad", "bos", "eos", "cls", "sep", "mask")
    }
    tokens = {word: token for word, token in tokens.items() if token in tokenizer.specials}
    if name == "CausalLM" and "eos" in tokens:
        tokens.setdefault("bos", tokens["eos"])  # with which our documents begin
    if own:
        template = "<cls> $A" if name not in ("CausalLM", "Translation") and "cls" in tokens else "$A"
        template += " <eos>" if name == "Translation" and "eos" in tokens else ""
        marks = [(token, tokenizer.specials[token]) for token in ("<cls>", "<eos>") if token in template]
        inner.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=marks)
        inner.save(str(folder / "tokenizer.json"))
    if not (folder / TOKENIZER).is_file():
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            # "<eos>" in a text is five characters, but a rendered chat template spells its special tokens
            **({"split_special_tokens": True} if own and not has_chat_template(tokenizer) else {}),
            **({"chat_template": CHAT_TEMPLATE} if has_chat_template(tokenizer) else {}),
            **{f"{word}_token": token for word, token in tokens.items()},
        }
        atomic_files.write_json(folder / TOKENIZER, about)
    numbers = {f"{word}_token_id": tokenizer.specials[token] for word, token in tokens.items()}
    own_numbers: dict[str, Any] = {
        f"{word}_token_id": numbers.get(f"{word}_token_id") for word in ("bos", "eos", "pad")
    }
    if name == "Translation":
        target = Tokenizer.load(pair[1]) if pair[1].is_file() else tokenizer
        own_numbers |= {"decoder_start_token_id": target.bos, "forced_eos_token_id": None}
    if name in ("CausalLM", "Translation") and not (folder / GENERATION).is_file():
        token_numbers = {**own_numbers, **{key: value for key, value in facts.items() if key.endswith("_token_id")}}
        atomic_files.write_json(
            folder / GENERATION, {key: value for key, value in token_numbers.items() if value is not None}
        )
    return own_numbers


def _tokenizer(source: Path, folder: Path, theirs: Mapping[str, Any], pair: bool) -> None:
    """Write tokenizer.json, and the names of special tokens beside it; nothing where the checkpoint has none."""
    inner = _read(source)
    if inner is None:
        return
    for name in ("source-tokenizer.json", "target-tokenizer.json") if pair else ("tokenizer.json",):
        atomic_files.write_text(folder / name, inner.to_str(pretty=True))
    if not (folder / NAMES).is_file():
        atomic_files.write_json(folder / NAMES, _names(source, inner, theirs))
    if pair:
        config = {**theirs, **hf_files.optional(folder / "generation_config.json")}
        fallbacks = (("bos_token", "decoder_start_token_id"), ("forced_bos_token", "forced_bos_token_id"))
        first = {name: inner.id_to_token(config[key]) for name, key in fallbacks if isinstance(config.get(key), int)}
        inner.add_special_tokens([token for token in first.values() if token])
        atomic_files.write_text(folder / "target-tokenizer.json", inner.to_str(pretty=True))
        atomic_files.write_json(folder / f"target-{NAMES}", {**hf_files.optional(folder / NAMES), **first})


def _names(source: Path, inner: tokenizers.Tokenizer, theirs: Mapping[str, Any]) -> dict[str, str]:
    """Which tokens end, begin and pad, by tokenizer_config.json or by their numbers in config.json."""
    config, names = hf_files.optional(source / "tokenizer_config.json"), {}
    for word in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"):
        value = config.get(f"{word}_token")
        content = value.get("content") if isinstance(value, dict) else value
        number = theirs.get(f"{word}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if content is None and isinstance(number, int):
            content = inner.id_to_token(number)
        if content is not None:
            names[f"{word}_token"] = content
    return names


def _read(source: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of a checkpoint, from its standard file or from the files of BPE and WordPiece."""
    try:
        if (source / "tokenizer.json").is_file():
            with native_call(str(source / "tokenizer.json"), silent=True):
                return tokenizers.Tokenizer.from_str(limits.read_text(source / "tokenizer.json", limits.JSON_BYTES))
        if (source / "vocab.json").is_file() and (source / "merges.txt").is_file():
            inner = tokenizers.Tokenizer(models.BPE.from_file(str(source / "vocab.json"), str(source / "merges.txt")))
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            inner.decoder = decoders.ByteLevel()
            return _special(inner, source)
        if (source / "vocab.txt").is_file():
            lower = hf_files.optional(source / "tokenizer_config.json").get("do_lower_case", True)
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
    config = {**hf_files.optional(source / "tokenizer_config.json"), **hf_files.optional(source / NAMES)}
    words = [value.get("content") if isinstance(value, dict) else value for key, value in config.items()
             if key.endswith("_token")]  # fmt: skip
    words += ["<|endoftext|>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.add_special_tokens([word for word in dict.fromkeys(words) if word and inner.token_to_id(word) is not None])
    return inner
