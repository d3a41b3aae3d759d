"""Every key of every text file beside the weights: read as transformers reads it, of no effect, or refused by name."""

import json
import random

import peers
import pytest
import torch
from odd_tokenizers import TEXTS, decoder_tokenizers, encoder_tokenizers, pair_tokenizers
from test_tokenizers import DECODERS, build_checkpoint, right_text
from zoo_pretrained import tokenizer_classes, tokenizer_files
from zoo_pretrained.side_files import GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG

import zoo
from zoo.cli import main
from zoo.data.tokenizer import Tokenizer
from zoo.errors import ZooError
from zoo.inference.decoding_rules import GenerationRules

transformers = peers.transformers
TOKEN = {"content": "<tag>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False,
         "__type": "AddedToken"}  # fmt: skip
VALUES = [True, False, None, 0, 1, 2, 0.5, 1.5, "x", "<tag>", "fox", [], [3, 4], ["<tag>"], {}, TOKEN, {"0": TOKEN}]
STRAY = ["a_key_that_nobody_knows", "image_token", "auto_map", "fast_tokenizer_files", "keep_accents", "lang_codes"]
FOLDERS = {
    "gpt2": (DECODERS["gpt2"], decoder_tokenizers()["bytes-added-by-file"]),
    "llama": (DECODERS["llama"], decoder_tokenizers()["pieces-first"]),
    "bert": (peers.ENCODERS["bert"], encoder_tokenizers()["bert-uncased"]),
    "bart": (peers.PAIRS["bart"], pair_tokenizers()["bart"]),
    "t5": (peers.PAIRS["t5"], pair_tokenizers()["t5-sentinels"]),
}
KEYS = {"tokenizer_config.json": TOKENIZER_CONFIG, "special_tokens_map.json": SPECIAL_TOKENS_MAP}


def read_of(source, size):
    """The tokenizer of a checkpoint as `zoo import` reads it, or the message of its refusal."""
    try:
        published = tokenizer_classes.read(source, json.loads((source / "config.json").read_text()))
        inner, _ = tokenizer_files._within(published.inner, size)
        names = {f"<{role}>": token for role, token in published.roles.items()}
        return Tokenizer(inner, names, published.splits_specials), ""
    except ZooError as error:
        return None, str(error)


def changes(name):
    """Each key of both files with a sample of values, the same in every run."""
    draw = random.Random(name)
    for file, keys in KEYS.items():
        for key in [*keys.read, *keys.fixed, *keys.ignored, *STRAY]:
            some = VALUES if name == "all" else draw.sample(VALUES, 2)
            for value in some:
                yield file, key, value


@pytest.mark.parametrize("name", FOLDERS)
def test_a_changed_key_is_read_as_transformers_does_or_refused_by_its_name(name, tmp_path):
    case, save = FOLDERS[name]
    more = {"decoder_start_token_id": 0} if name in ("bart", "t5") else {}
    _, right = build_checkpoint(case, save, tmp_path / "theirs", **more)
    size = json.loads((tmp_path / "theirs" / "config.json").read_text())["vocab_size"]
    outcomes = {"equal": 0, "refused": 0, "refused by both": 0}
    for file, key, value in changes(name):
        path = tmp_path / "theirs" / file
        before = path.read_text() if path.is_file() else None
        path.write_text(json.dumps({**json.loads(before or "{}"), key: value}))
        tokenizer, message = read_of(tmp_path / "theirs", size)
        try:
            right = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
            expected = [right(text).input_ids for text in TEXTS]
        except Exception:  # whatever it raises for a value of another type
            right = None
        if tokenizer is None:
            assert key in message, (file, key, value, message)
            outcomes["refused by both" if right is None else "refused"] += 1
        elif right is not None:
            for text, ids in zip(TEXTS, expected, strict=True):
                if max(ids, default=0) < size:
                    assert tokenizer.framed(tokenizer.encode(text)) == ids, (file, key, value, text)
                    mine, theirs = tokenizer.decode(ids), right.decode(ids, skip_special_tokens=True)
                    assert mine == theirs, (file, key, value, text)
            outcomes["equal"] += 1
        path.write_text(before) if before is not None else path.unlink()
    assert outcomes["equal"] > 50
    assert outcomes["refused"] + outcomes["refused by both"] > 20


def rules():
    """Values of every key of generation_config.json, by what the key takes."""
    numbers = {"eos_token_id": [7, [7, 11], "x", None], "repetition_penalty": [1.0, 2.5, -1, "x"]}
    for key in [*GENERATION_CONFIG.read, *GENERATION_CONFIG.fixed, *GENERATION_CONFIG.ignored, *STRAY]:
        for value in numbers.get(key, [3, [3, 40], [[9], [30, 31]], 1.0, 0, False, True, None, "x"]):
            yield key, value


def settings_of(source):
    try:
        return tokenizer_files.generation_settings(source, {}, 300)[0], ""
    except ZooError as error:
        return None, str(error)


@pytest.mark.parametrize("key", ["suppress_tokens", "begin_suppress_tokens", "eos_token_id", "bad_words_ids"])
def test_numbers_of_tokens_are_checked_against_the_vocabulary(key, tmp_path):
    path = tmp_path / "generation_config.json"
    for number, right in ((299, True), (300, False), (-1, False)):
        path.write_text(json.dumps({key: [[5, number]] if key == "bad_words_ids" else [5, number]}))
        settings, message = settings_of(tmp_path)
        if key == "eos_token_id":  # no text ends with such a number, as in transformers
            assert settings[key] == ([5, number] if right else [5])
            continue
        assert (settings is not None) == right
        assert right or (f"{key}=" in message and "has the numbers 0 to 299" in message)


@pytest.mark.parametrize(
    "rule", [{"bad_words_ids": [[]]}, {"bad_words_ids": [5, 6]}, {"suppress_tokens": ["x"]}, {"repetition_penalty": 0}]
)
def test_a_malformed_rule_is_named(rule, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(rule))
    assert next(iter(rule)) in settings_of(tmp_path)[1]


@torch.no_grad()
@pytest.mark.parametrize("part", range(4))
def test_a_rule_of_generation_is_obeyed_or_refused_by_its_name(part, tmp_path):
    model, theirs = build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    content, outcomes = json.loads(path.read_text()), {"equal": 0, "refused": 0}
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    trained = zoo.load(tmp_path / "ours", device="cpu")
    searches = {"max_length", "max_new_tokens", "do_sample", "num_beams", "num_return_sequences", "max_time"}
    for key, value in list(rules())[part::4]:
        path.write_text(json.dumps({**content, key: value}))
        settings, message = settings_of(tmp_path / "theirs")
        if settings is None:
            assert key in message, (key, value, message)
            outcomes["refused"] += 1
            continue
        trained.rules = GenerationRules.of_config({"generation": settings})
        trained.ends = trained.rules.ends
        if key in searches:
            continue
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path / "theirs")
            right = right_text(model, theirs, "the quick", max_new_tokens=8)
        except Exception:  # a value that it cannot use
            continue
        assert trained.generate("the quick", length=8, temperature=0.0)[0].text == right, (key, value)
        outcomes["equal"] += 1
    assert outcomes["equal"] > 15
    assert outcomes["refused"] > 15
