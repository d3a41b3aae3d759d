"""What the Rust library makes of bad texts and patterns is an error of ours, and nothing is printed besides."""

import json
import os

import pytest

from zoo.data.tokenizer import Tokenizer
from zoo.data.tokenizer_errors import is_panic, native_call
from zoo.errors import UsageError

TEXT = "a text of some words"
KINDS = {
    "chars": lambda: Tokenizer.chars([TEXT]),
    "bytes": lambda: Tokenizer.bytes(),
    "bpe": lambda: Tokenizer.bpe([TEXT], 280),
}
HALVES = ["\ud800", "text \udfff", "\udce9t\udce9", "a" * 50 + "\udc80" + "b" * 50]
# patterns that the library accepts, and gives up on while it matches
EXPLOSIVE = ["(a+)+$", "(?=(a+)+b)a*b", "(a|aa)+$", "(.*a){12}b"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HALVES)
def test_half_a_character_is_named(kind, text):
    tokenizer = KINDS[kind]()
    for call in (tokenizer.encode, tokenizer.offsets, lambda one: tokenizer.encode_batch([TEXT, one])):
        with pytest.raises(UsageError, match=r"half a character|U\+D") as caught:
            call(text)
        str(caught.value).encode()


@pytest.mark.parametrize("learn", [Tokenizer.chars, lambda texts: Tokenizer.bpe(texts, 280)])
def test_half_a_character_is_not_learned(learn):
    with pytest.raises(UsageError, match="half a character"):
        learn([TEXT, "caf\udce9"])


@pytest.mark.parametrize("pattern", EXPLOSIVE)
def test_a_pattern_that_explodes_is_said_by_file_alone(tmp_path, pattern, capfd):
    content = json.loads(Tokenizer.bpe([TEXT], 280).to_json())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "special_tokens_map.json").write_text("{}")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    for call in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UsageError, match=r"tokenizer\.json cannot be used: .*gave up"):
            call("a" * 60 + "!")
    assert capfd.readouterr().err == ""


def test_other_errors_and_what_others_print_are_passed_on(capfd):
    def fail():
        with native_call("file", silent=True):
            os.write(2, b"a line of somebody else\n")
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        fail()
    assert capfd.readouterr().err == "a line of somebody else\n"
    assert not is_panic(KeyboardInterrupt())
    assert not is_panic(ValueError())
