"""Validate tokenizer.json: the library loads files whose numbers are inconsistent or whose patterns never end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.io import limits

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
CLS, SEP, MASK = "<cls>", "<sep>", "<mask>"
FORCED = "<forced_bos>"  # what a published model writes first, whatever it would choose
NAMES = "special_tokens_map.json"
IDEOGRAPH, CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}]", r"[\s\S]"
STEPS = ("Sequence", "Split", "Digits", "ByteLevel", "Fuse")
PATTERNS = [{"Regex": IDEOGRAPH}, {"Regex": CHARACTER}]
LONGEST_TOKEN = 10_000  # characters
ELSEWHERE = "A tokenizer of another library is read with its tokenizer_config.json beside it"


def published_names(path: Path) -> tuple[dict[str, str] | None, bool]:
    """The names of <pad>, <bos>, <cls> and others in a published tokenizer, None for zoo's own tokenizers; and whether
    it splits special tokens that a text spells.

    It is told by special_tokens_map.json or tokenizer_config.json beside it, in which the library transformers keeps
    these names. For target-tokenizer.json it is target-special_tokens_map.json: a published model's targets begin with
    another token.
    """
    names_of = (path.name.replace("tokenizer.json", NAMES), NAMES, "tokenizer_config.json")
    beside = next((path.with_name(name) for name in names_of if path.with_name(name).is_file()), None)
    if beside is None:
        return None, False
    content: Any = limits.read_json(beside)
    if not isinstance(content, dict):
        raise UsageError(f"{beside} holds no JSON object with names such as pad_token.")
    names = {}
    for ours in (PAD, BOS, EOS, CLS, SEP, MASK, FORCED):
        value = content.get(f"{ours.strip('<>')}_token")
        name = value.get("content") if isinstance(value, dict) else value
        if isinstance(name, str):
            names[ours] = name
    return names, content.get("split_special_tokens") is True


def check_tokenizer(path: Path, text: str) -> None:
    """Raise UsageError where numbers have holes or clash: the library itself loads such files without a word."""
    content = json.loads(text, object_pairs_hook=_unique_keys(path))
    _check_steps(path, content)
    vocabulary = content["model"]["vocab"]
    if not isinstance(vocabulary, dict) or content["model"].get("type") not in ("WordLevel", "BPE"):
        raise UsageError(f"{path}: the model must be WordLevel or byte-level BPE, as zoo writes them. {ELSEWHERE}")
    numbers = dict(vocabulary)
    for token in content["added_tokens"]:
        name, number = token["content"], token["id"]
        if not isinstance(name, str) or not name:
            raise UsageError(f"{path}: an added token has no text: {token!r:.80}")
        if numbers.setdefault(name, number) != number:
            raise UsageError(f"{path}: {name!r} has two numbers, {numbers[name]} and {number}")
    for token, number in numbers.items():
        if type(number) is not int:
            raise UsageError(f"{path}: the number of {token!r:.80} is {number!r:.80}: it must be a whole number")
        if len(token) > LONGEST_TOKEN:
            raise UsageError(f"{path}: token {number} has {len(token)} characters, more than {LONGEST_TOKEN}")
    by_number: dict[int, str] = {}
    for token, number in numbers.items():
        owner = by_number.setdefault(number, token)
        if owner != token:
            raise UsageError(f"{path}: {owner!r} and {token!r} have the same number {number}")
    if sorted(by_number) != list(range(len(by_number))):
        hole = next((n for n in range(len(by_number)) if n not in by_number), 0)
        raise UsageError(f"{path}: numbers must run from 0 to {len(by_number) - 1} without a hole, but {hole} is free")
    added = {token["content"] for token in content["added_tokens"]}
    unlisted = {PAD, BOS, EOS} & set(vocabulary) - added
    if unlisted:
        raise UsageError(f"{path}: {', '.join(sorted(unlisted))} must be listed in added_tokens as special")
    if not all(token.get("special") for token in content["added_tokens"]):
        raise UsageError(f"{path}: every added token must be special")


def _check_steps(path: Path, content: dict[str, Any]) -> None:
    """Raise UsageError for steps that are not zoo's: a pattern of a stranger can take for ever, or change the text."""
    for name in ("normalizer", "post_processor", "truncation", "padding"):
        if content.get(name) is not None:
            raise UsageError(f"{path}: {name!r} must be null: zoo's tokenizers leave a text as it is. {ELSEWHERE}")
    if content["model"].get("dropout"):
        raise UsageError(f"{path}: the model has a dropout, with which a text is cut otherwise each time")
    waiting = [content.get(name) for name in ("pre_tokenizer", "decoder")]
    while waiting:
        step = waiting.pop()
        if step is None:
            continue
        kind = step["type"] if isinstance(step, dict) else step
        if kind not in STEPS:
            raise UsageError(f"{path}: the step {kind!r:.80} is not one of {', '.join(STEPS)}. {ELSEWHERE}")
        if kind == "Split" and step["pattern"] not in PATTERNS:
            raise UsageError(f"{path}: the pattern {step['pattern']!r:.80} is not one that zoo writes")
        waiting += step.get("pretokenizers") or step.get("decoders") or []


def _unique_keys(path: Path) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(items)
        if len(result) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"{path}: {twice!r} stands twice in the same object")
        return result

    return pairs
