"""Import and export the files next to the weights: tokenizers, settings of generation, class names, and images."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from zoo.data.conversation import CHAT_TEMPLATE, Turn, chat_tokens, has_chat_template
from zoo.data.tokenizer import EOS, Tokenizer
from zoo.data.tokenizer_file import FORCED
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_pretrained import hf_files, tokenizer_classes
from zoo_pretrained.config_keys import shorten
from zoo_pretrained.image_files import IMAGES, import_images
from zoo_pretrained.side_files import GENERATION_CONFIG, SEARCH_SETTINGS, SPEECH_CONFIG, read_side_file

log = logging.getLogger(__name__)
VOCABULARIES = (
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "source.spm",
    "vocab.txt",
    "vocab.json",
)
GENERATING = ("CausalLM", "Translation", "Transcription")
LANGUAGE_MODEL = "zoo.tasks.lm.CausalLM"
KEPT_FILES = "family.json"  # what an export needs of their configuration and ours has no word for
FACTS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id"),
    *("forced_bos_token_id", "forced_decoder_ids"),
    *("id2label", "label2id"),
)
NAMES = "special_tokens_map.json"
TOKENIZER, GENERATION = "tokenizer_config.json", "generation_config.json"
COPIED_FILES = (
    *(NAMES, TOKENIZER, "added_tokens.json", GENERATION, IMAGES, "chat_template.jinja", "chat_template.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm"),
    *("sentencepiece.bpe.model", "normalizer.json"),
)
TEMPLATES = "additional_chat_templates"
INPUTS_OF_PAIRS = ["input_ids", "token_type_ids", "attention_mask"]  # of models that tell two texts of a pair apart
# a chat with spaces at the edges of its texts, and without any text
PROBE = [Turn("user", "the quick"), Turn("assistant", "No! "), Turn("user", " it "), Turn("assistant", ""),
         Turn("user", "x")]  # fmt: skip


def import_tokenizers(
    source: Path, folder: Path, theirs: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Write the files that our task needs; what config.json must say besides, and what the user must know."""
    _copy_files(source, folder, COPIED_FILES)
    facts = {key: theirs[key] for key in FACTS if theirs.get(key) is not None}
    atomic_files.write_json(folder / KEPT_FILES, facts)
    options = model["init_args"]
    if "num_classes" in options and "image_size" in options:
        import_images(source, folder, theirs, options)
        return {"resize": "crop"}, []
    if "num_classes" in options:
        labels = theirs.get("id2label") or {}
        names = [labels.get(str(n), f"class {n}") for n in range(options["num_classes"])]
        atomic_files.write_json(folder / "labels.json", {"names": names})
    size = options.get("target_vocab_size", options.get("vocab_size"))
    sides = [side for side in ("source", "target") if f"{side}_vocab_size" in options]
    notes = _tokenizer(source, folder, theirs, size, sides)
    if model["class_path"].rpartition(".")[2] not in GENERATING:
        return {}, notes
    settings, more = generation_settings(source, theirs, size)
    return {"generation": settings}, [*notes, *more, *_prefixes(theirs)]


def _copy_files(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy those files that are there, and the chat templates that have names."""
    templates = [path for path in sorted((source / TEMPLATES).glob("*.jinja")) if path.is_file()]
    if templates:
        (folder / TEMPLATES).mkdir(exist_ok=True)
    for path in (*(source / name for name in names), *templates):
        if path.is_file():
            atomic_files.copy(path, folder / path.relative_to(source))


def _prefixes(theirs: Mapping[str, Any]) -> list[str]:
    """A sentence on what their pipelines put before the texts of a task."""
    tasks: Any = theirs.get("task_specific_params")
    tasks = tasks if isinstance(tasks, dict) else {}
    pairs = [(task, params.get("prefix")) for task, params in tasks.items() if isinstance(params, dict)]
    prefixes = ", ".join(f"{task} {prefix!r}" for task, prefix in pairs if prefix)
    return [f"not put before texts; write it yourself (task_specific_params): {prefixes}"] if prefixes else []


def generation_settings(source: Path, theirs: Mapping[str, Any], size: int) -> tuple[dict[str, Any], list[str]]:
    """The rules of generation of a checkpoint, those of generation_config.json or else of config.json; and a sentence
    on settings that zoo's own options replace. Raises UsageError that names a key which is not read.
    """
    path, keys = source / GENERATION, SPEECH_CONFIG if theirs.get("model_type") == "whisper" else GENERATION_CONFIG
    if path.is_file():
        content = read_side_file(path, keys)
        if content.get(forced := "forced_decoder_ids") is None and forced in keys.read:  # then config.json's hold
            content |= {forced: theirs.get(forced)}
    else:
        path = source / hf_files.CONFIG
        names = {*keys.read, *keys.fixed, *SEARCH_SETTINGS}
        content = {key: value for key, value in theirs.items() if key in names}
        keys.complete(content, path.name, str(path))
    rules = {key: content[key] for key in keys.read if content.get(key) is not None}
    if "language" in rules:
        rules["language"] = tokenizer_classes.spoken_code(rules["language"], str(path))
    notes: list[str] = []
    for key, value in [*rules.items()]:
        entry = f"{path}: {key}={shorten(value)} is not supported"
        if key == "repetition_penalty" and value == 0:
            raise UsageError(f"{entry}; a number above 0 would be.")
        if key == "forced_decoder_ids" and [pair[:1] for pair in value] != [[n] for n in range(1, len(value) + 1)]:
            raise UsageError(f"{entry}; [1, TOKEN], [2, TOKEN], … would be.")
        numbers = _token_numbers(key, value)
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            right = "lists of tokens' numbers" if key == "bad_words_ids" else "a token's number"
            raise UsageError(f"{entry}; {right} would be.")
        beyond = [number for number in numbers if not 0 <= number < size]
        if key == "eos_token_id" and beyond:  # no text ends with it, as for the default 50256 of a small vocabulary
            rules[key] = [number for number in numbers if number not in beyond]
            notes.append(
                f"never generated: eos_token_id={shorten(value)}, since the model has the numbers 0 to {size - 1}"
            )
        elif key != "bos_token_id" and beyond:  # bos is in no rule
            raise UsageError(f"{entry}: the model has the numbers 0 to {size - 1}.")
    theirs_own = {"do_sample": False, "num_beams": 1, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    search = [f"{key}={content[key]}" for key in content if key in SEARCH_SETTINGS
              and content[key] not in (None, theirs_own.get(key))]  # fmt: skip
    note = f"not used ({path.name}; zoo's own options say how to search): {', '.join(sorted(search))}"
    return rules, [*notes, *([note] if search else [])]


def _token_numbers(key: str, value: Any) -> list[Any]:
    """The numbers of tokens in the value of a key; None stands for a word that is no list of numbers."""
    if key.endswith("_to_id"):
        return [*value.values()]
    if key == "forced_decoder_ids":  # null is the language that is heard
        return [token for _, *tokens in value for token in tokens or ["none"] if token is not None]
    if key == "bad_words_ids":
        return [number for word in value for number in (word if isinstance(word, list) and word else [None])]
    if not key.endswith(("_token_id", "suppress_tokens")):
        return []
    return value if isinstance(value, list) else [value]


def export_tokenizers(
    source: Path,
    folder: Path,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    rules: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files that transformers needs beside the weights of a model, {"class_path": …, "init_args": …}, that
    has these rules of generation; the configuration with what those make it say.
    """
    _copy_files(source, folder, (*COPIED_FILES, "tokenizer.json"))
    for side in ("target", "source"):
        for name in ("tokenizer.json", NAMES):
            if (source / f"{side}-{name}").is_file() and not (name == NAMES and (source / NAMES).is_file()):
                atomic_files.copy(source / f"{side}-{name}", folder / name)
    facts = hf_files.optional(source / KEPT_FILES)
    content = hf_files.optional(source / "images.json") or hf_files.optional(source / "labels.json")
    if content and "id2label" not in facts:
        facts["id2label"] = {str(n): name for n, name in enumerate(content["names"])}
        facts["label2id"] = {name: n for n, name in enumerate(content["names"])}
    if (folder / "tokenizer.json").is_file():
        facts = {**_tokenizer_files(source, folder, model, facts, rules or {}), **facts}
    numbering = {key: config[key] for key in ("pad_token_id",) if key in config}  # RoBERTa counts its positions by it
    return {**config, **facts, **numbering}


def _tokenizer_files(
    source: Path, folder: Path, model: Mapping[str, Any], facts: Mapping[str, Any], rules: Mapping[str, Any]
) -> dict[str, Any]:
    """Write what AutoTokenizer and generate() look for and the run has not; the numbers of its special tokens.

    A tokenizer of ours puts no special tokens around a text, which our tasks do: its template then does it.
    """
    options, name = model["init_args"], str(model["class_path"]).rpartition(".")[2]
    pair = (folder / "tokenizer.json", source / "target-tokenizer.json")
    tokenizer = Tokenizer.load(pair[0])
    inner, own = tokenizer.inner, not tokenizer.published
    tokens = {
        word: tokenizer.names.get(f"<{word}>", f"<{word}>") for word in ("pad", "bos", "eos", "cls", "sep", "mask")
    }
    tokens = {word: token for word, token in tokens.items() if token in tokenizer.specials}
    if name == "CausalLM" and "eos" in tokens:
        tokens.setdefault("bos", tokens["eos"])  # with which our documents begin
    if "eos" in tokens:
        tokens.setdefault("pad", tokens["eos"])  # without any, their pipelines take no batches
    if own:
        template = "<cls> $A" if name not in ("CausalLM", "Translation") and "cls" in tokens else "$A"
        template += " <eos>" if name == "Translation" and "eos" in tokens else ""
        marks = [(token, tokenizer.specials[token]) for token in ("<cls>", "<eos>") if token in template]
        inner.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=marks)
        inner.save(str(folder / "tokenizer.json"))
    if not (folder / TOKENIZER).is_file():
        chat = _chat_template(tokenizer)
        # a template spells special tokens, and a source its target language
        spells_specials = chat or tokenizer.languages()
        about = {
            "tokenizer_class": "WhisperTokenizer" if "lang_to_id" in rules else "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            # "<eos>" in a text is five characters
            **({"split_special_tokens": True} if tokenizer.splits_specials and not spells_specials else {}),
            **({"padding_side": "left"} if name == "CausalLM" else {}),
            **({"model_input_names": INPUTS_OF_PAIRS} if (options.get("segments") or 0) > 1 else {}),
            **({"model_max_length": options["max_length"]} if options.get("max_length") else {}),
            **({"chat_template": chat} if chat else {}),
            **{f"{word}_token": token for word, token in tokens.items()},
        }
        atomic_files.write_json(folder / TOKENIZER, about)
    numbers = {f"{word}_token_id": tokenizer.specials[token] for word, token in tokens.items()}
    own_numbers: dict[str, Any] = {
        f"{word}_token_id": numbers.get(f"{word}_token_id") for word in ("bos", "eos", "pad")
    }
    if name in ("Translation", "Transcription"):
        target = Tokenizer.load(pair[1]) if pair[1].is_file() else tokenizer
        own_numbers |= {"decoder_start_token_id": target.bos, "eos_token_id": target.eos, "forced_eos_token_id": None}
        own_numbers |= {"forced_bos_token_id": target.special(FORCED)}
    if name in GENERATING and not (folder / GENERATION).is_file():
        token_numbers = {**own_numbers, **{key: value for key, value in facts.items() if key.endswith("_token_id")}}
        # transformers' own default ends a text after 20 tokens
        longest = {} if name == "CausalLM" else {"max_length": options.get("max_length")}
        ends = rules.get("eos_token_id") or token_numbers["eos_token_id"]
        present_numbers = {key: value for key, value in token_numbers.items() if value is not None}
        content = {**longest, **rules, **present_numbers, "eos_token_id": ends}
        settings = {key: value for key, value in content.items() if value is not None}
        atomic_files.write_json(folder / GENERATION, settings)
    return own_numbers


def _chat_template(tokenizer: Tokenizer) -> str | None:
    """The template whose text has the tokens of `chat_tokens`; None for a tokenizer that knows no turns, and with a
    warning for one that has no such text.
    """
    if not has_chat_template(tokenizer) or not tokenizer.published:
        return CHAT_TEMPLATE if has_chat_template(tokenizer) else None
    end, reader = tokenizer.names.get(EOS, EOS), tokenizers.Tokenizer.from_str(tokenizer.to_json())
    for space in ("", " "):  # which a word at the beginning of a text has in LLaMA's vocabulary
        turns = [f"<{role}>{space * (text[:1] not in ('', ' '))}{text}{end * (role == 'assistant')}"
                 for role, text in PROBE]  # fmt: skip
        text = "".join([*turns, "<assistant>"])
        if reader.encode(text, add_special_tokens=False).ids == chat_tokens(tokenizer, PROBE)[0]:
            spaced = "(' ' if text[:1] not in ['', ' '] else '') + text"
            template = CHAT_TEMPLATE.replace("'>' + text", f"'>' + {spaced}") if space else CHAT_TEMPLATE
            return template.replace("'<eos>'", json.dumps(end))
    log.warning("no chat template is written: %s has no text with the tokens of a dialogue", tokenizer.source)
    return None


def _tokenizer(source: Path, folder: Path, theirs: Mapping[str, Any], size: int, sides: list[str]) -> list[str]:
    """Write tokenizer.json, or one for each side, and the names of special tokens beside it; what the user must know.

    Raises UsageError for a tokenizer with more tokens than ``size``, not counting added ones, which are left out.
    """
    published = tokenizer_classes.read(source, theirs)
    if published is None:
        there = [name for name in VOCABULARIES if (source / name).is_file()]
        why = f"{there[0]} is not read alone" if there else "there is no tokenizer.json"
        return [f"no tokenizer: {why}, so that texts cannot be used. Save tokenizer.json beside it: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) with transformers."]  # fmt: skip
    if published.inner.get_vocab_size(with_added_tokens=False) > size:
        count = published.inner.get_vocab_size(with_added_tokens=False)
        raise UsageError(f"the tokenizer in {source} has {count} tokens and the model {size}: it belongs to another.")
    inner, notes = _within(published.inner, size)
    names: dict[str, Any] = {f"{role}_token": token for role, token in published.roles.items()}
    for role in tokenizer_classes.ROLES:
        number = theirs.get(f"{role}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if f"{role}_token" not in names and isinstance(number, int):
            names[f"{role}_token"] = inner.id_to_token(number)
    names = {key: token for key, token in names.items() if token and inner.token_to_id(token) is not None}
    inner.add_special_tokens([token for token in names.values() if token not in _added(inner)])
    if inner.post_processor is None:  # there is nothing around a text, rather than what zoo would put there
        inner.post_processor = processors.TemplateProcessing(single="$A", pair=None, special_tokens=[])
    own = {"split_special_tokens": True} if published.splits_specials else {}
    for name in [f"{side}-tokenizer.json" for side in sides] or ["tokenizer.json"]:
        atomic_files.write_text(folder / name, inner.to_str(pretty=True))
    atomic_files.write_json(folder / NAMES, {**names, **own})
    if sides:
        config = {**theirs, **hf_files.optional(folder / GENERATION)}
        fallbacks = (("bos_token", "decoder_start_token_id"), ("forced_bos_token", "forced_bos_token_id"))
        first = {name: inner.id_to_token(config[key]) for name, key in fallbacks if isinstance(config.get(key), int)}
        inner.add_special_tokens([token for token in first.values() if token])
        inner.post_processor = published.target_template or inner.post_processor
        atomic_files.write_text(folder / "target-tokenizer.json", inner.to_str(pretty=True))
        atomic_files.write_json(folder / f"target-{NAMES}", {**names, **own, **first})
    return notes


def check_padding(folder: Path, theirs: Mapping[str, Any]) -> None:
    """Raise UsageError where the number that positions are counted by is that of another token than the padding."""
    number, names = theirs.get("pad_token_id"), hf_files.optional(folder / NAMES)
    for path in (folder / "tokenizer.json", folder / "source-tokenizer.json"):
        if number is None or not path.is_file():
            continue
        token = tokenizers.Tokenizer.from_file(str(path)).id_to_token(number)
        others = {text for key, text in names.items() if key not in ("pad_token", "unk_token")}
        if token is not None and (token != names.get("pad_token") or token in others):
            raise UsageError(
                f"config.json: pad_token_id={number} is the number of {token!r} in the tokenizer, which is no padding. "
                f"A {theirs.get('model_type')} gives that token no position. Save the model with the number of its "
                "own padding."
            )


def _added(inner: tokenizers.Tokenizer) -> set[str]:
    """The texts of the special tokens of a tokenizer."""
    return {token.content for token in inner.get_added_tokens_decoder().values() if token.special}


def _within(inner: tokenizers.Tokenizer, size: int) -> tuple[tokenizers.Tokenizer, list[str]]:
    """The tokenizer without added tokens that the model has no row for, and a sentence that names them."""
    beyond = sorted(number for number in inner.get_added_tokens_decoder() if number >= size)
    if not beyond:
        return inner, []
    content = json.loads(inner.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < size]
    names = ", ".join(inner.id_to_token(number) or "" for number in beyond[:3]) + (", …" if len(beyond) > 3 else "")
    note = f"{len(beyond)} added tokens are left out, since the model has {size} numbers: {names}"
    return tokenizers.Tokenizer.from_str(json.dumps(content)), [note]
