"""`zoo search`: words lead to parts, installed or in an index file, without torch and without a network."""

import json
import subprocess
import sys

import pytest
from cli_parts import norm, package

from zoo.cli import search

BODY = '''\
from zoo.parts.norm import RMSNorm as Base


class Gentle(Base):
    """A norm that forgives outliers (Meyer, 2025).

    Paper: Forgiving Activations: Robust
    Statistics in Transformers, Meyer, 2025.
    """
'''


@pytest.fixture
def gentle(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package(site(), "zoo-gentle", norm("zoo-gentle", "Gentle"), BODY)
    site()


def names(zoo, *words):
    code, out, err = zoo("search", *words, "--json")
    assert (code, err) == (0, "")
    return [(one["kind"], one["name"]) for one in json.loads(out)]


FIRST = {
    "rmsnorm": ("norm", "RMSNorm"), "rms norm": ("norm", "RMSNorm"), "RMSNorm": ("norm", "RMSNorm"),
    "rmsnrom": ("norm", "RMSNorm"), "rotary positon": ("position", "RoPE"), "linear bias": ("position", "ALiBi"),
    "zhang sennrich": ("norm", "RMSNorm"), "mixture experts": ("ffn", "MoE"), "outliers": ("norm", "Gentle"),
    "forgiving statistics": ("norm", "Gentle"), "zoo-gentle": ("norm", "Gentle"), 
    "schedule cosine": ("schedule", "Cosine"),
    "jointly learning to align": ("attention", "Additive"),
}  # fmt: skip


@pytest.mark.parametrize("words", FIRST)
def test_words_lead_to_a_part(gentle, zoo, words):
    assert names(zoo, *words.split())[0] == FIRST[words]


def test_every_word_must_occur(gentle, zoo):
    assert names(zoo, "norm", "outliers") == [("norm", "Gentle")]
    code, out, err = zoo("search", "rmsnorm", "outliers")
    assert (code, out) == (2, "")
    assert err == "error: no part matches 'rmsnorm outliers'. Did you mean 'RMSNorm'? See all: zoo list\n"
    assert zoo("search")[0] == 2
    assert "needs WORDS" in zoo("search", "--")[2]
    table = zoo("search", "outliers")[1].splitlines()
    assert table[1].split(maxsplit=2)[:2] == ["norm", "Gentle"]
    assert table[1].endswith("zoo-gentle 0.1.0")


def test_an_index_is_written_read_and_merged(gentle, site, zoo, tmp_path):
    code, out, _ = zoo("search", "--write-index", "zoo-index.json")
    assert (code, out) == (0, "1 parts of plugins → zoo-index.json\n")
    index = json.loads((tmp_path / "zoo-index.json").read_text())
    assert (index["format"], index["version"]) == ("zoo-index", 1)
    (part,) = index["parts"]
    assert part == {
        "kind": "norm", "name": "Gentle", "distribution": "zoo-gentle", "version": "0.1.0", "path": "zoo_gentle.Gentle",
        "summary": "A norm that forgives outliers (Meyer, 2025).",
        "paper": "Forgiving Activations: Robust Statistics in Transformers, Meyer, 2025.",
    }  # fmt: skip
    for path in site().glob("zoo_gentle*/*"):
        path.unlink()
    site()
    assert "zoo-gentle 0.1.0 (not installed)" in zoo("search", "outliers")[1]  # from zoo-index.json of this folder
    assert json.loads(zoo("search", "outliers", "--json")[1])[0]["installed"] is False
    other = {**part, "name": "Other", "distribution": "zoo-other"}
    (tmp_path / "other.json").write_text(json.dumps({**index, "parts": [other]}))
    assert names(zoo, "outliers", "--index", "other.json") == [("norm", "Other")]
    both = ("--index", "other.json", "--index", "zoo-index.json")
    assert names(zoo, "outliers", *both) == [("norm", "Gentle"), ("norm", "Other")]
    assert zoo("search", "--write-index", "all.json", *both)[1] == "2 parts of plugins → all.json\n"


FAULTS = {
    "": "is not valid JSON",
    "[]": "is not an index of parts. Make one: zoo search --write-index FILE",
    '{"format": "zoo-index", "version": 1}': "is not an index of parts",
    '{"format": "zoo-index", "version": 2, "parts": []}': "has version 2 of the format, this zoo reads 1.",
    '{"format": "zoo-index", "version": 1, "parts": [3]}': "part 1 has a fault: no kind",
    '{"format": "zoo-index", "version": 1, "parts": [{"kind": "norm", "name": "A"}]}': "fault: no distribution",
    '{"format": "zoo-index", "version": 1, "parts": [{"kind": "norm", "name": 3, "distribution": "d"}]}': "name is",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_file_that_is_no_index_is_refused_and_stays(gentle, zoo, tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    for words in (["rope", "--index", "x.json"], ["--write-index", "x.json"]):
        code, out, err = zoo("search", *words)
        assert (code, out, FAULTS[text] in err) == (2, "", True), err
    assert (tmp_path / "x.json").read_text() == text
    assert zoo("search", "rope", "--index", "none.json")[2].startswith("error: cannot read none.json: No such file")
    assert "takes no words" in zoo("search", "rope", "--write-index", "new.json")[2]
    assert zoo("search", "--write-index", "none/new.json")[2].startswith("error: cannot write none/new.json")


def test_what_an_index_says_cannot_steer_the_terminal(gentle, zoo, tmp_path):
    part = {"kind": "norm", "name": "Evil\x1b[2J", "distribution": "d", "summary": "outliers\x1b]0;x\x07"}
    (tmp_path / "x.json").write_text(json.dumps({"format": "zoo-index", "version": 1, "parts": [part]}))
    assert "\x1b" not in zoo("search", "outliers", "--index", "x.json")[1]


def test_it_needs_no_torch_and_no_network(tmp_path):
    code = (
        "import socket, sys; socket.socket = None; from zoo.cli import main; main(['search', 'rotary', 'position']); "
        "print(sorted({'torch', 'numpy', 'lightning', 'jsonargparse', 'urllib.request'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_words_of_names():
    assert [search.split(text) for text in ("RMSNorm", "zoo-my_norm", "T5", "GPT2", "ALiBi", "Zhu et al., 2025")] == [
        ["rms", "norm"], ["zoo", "my", "norm"], ["t5"], ["gpt2"], ["a", "li", "bi"], ["zhu", "et", "al", "2025"],
    ]  # fmt: skip
