"""`zoo explain` on the command line."""

import json
import re
from html.parser import HTMLParser

import pytest

from tests.explain.conftest import ceilings, recipes  # noqa: F401 (fixtures)
from zoo.cli import main
from zoo.errors import UsageError
from zoo.explain.explain_command import split_words


def zoo(capsys, *words, code=0):
    assert main(["explain", *words]) == code, capsys.readouterr().err
    return capsys.readouterr()


def test_the_tables_of_a_recipe(recipes, capsys):  # noqa: F811
    out = zoo(capsys, "lm.yaml").out
    assert "The weights are random" in out
    assert re.search(r"stack\.blocks\.0–2\.attend\.part +MultiHead × 3 .* 4 each", out)
    assert "6 matrix products" in out
    assert re.search(r"model\.depth +3 +lm\.yaml:3", out)
    assert re.search(r"model\.vocab_size +\d+ +data: TextFiles", out)
    assert re.search(r"Memory of a step with the largest of the first \d+ batches: [\d.]+ [KM]iB", out)


def test_json_adds_up(recipes, capsys):  # noqa: F811
    value = json.loads(zoo(capsys, "lm.yaml", "--json").out)
    for field in ("parameters", "flops", "bytes"):
        assert sum(row[field] for row in value["parts"]) == value["total"][field]
    assert sum(one["flops"] for one in value["operations"]) == value["total"]["flops"]
    origins = {one["key"]: one["origin"] for one in value["options"]}
    assert origins["model.heads"] == "lm.yaml:3"
    assert origins["model.lr"] == "default"
    assert origins["data.path"] == "lm.yaml:6"
    assert all(origins.values())


def test_options_of_the_command_line_and_a_second_model(recipes, capsys):  # noqa: F811
    out = zoo(capsys, "lm.yaml", "model.ffn=swiglu", "--model.depth", "2").out
    options, parts = out.split("Parts that differ")
    assert re.search(r"model\.ffn +MLP +SwiGLU +default +model\.ffn=swiglu", options)
    assert "stack.blocks.*.ffn.part  MLP × 2 → SwiGLU × 2" in parts
    assert "attend.part" not in parts
    value = json.loads(zoo(capsys, "lm.yaml", "lm.yaml", "--json").out)
    assert value["difference"]["options"] == []
    assert [pair["part"] for pair in value["difference"]["parts"]] == ["total"]


def test_parts_are_compared(recipes, capsys):  # noqa: F811
    out = zoo(capsys, "norm", "layernorm", "rmsnorm").out
    assert "LayerNorm → RMSNorm" in out
    assert "norm LayerNorm" in zoo(capsys, "norm", "layernorm").out


class Page(HTMLParser):
    """Collects tags, and checks that each one is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "wbr") and not (self.open and self.open[-1] == "svg" and tag in ("rect", "path")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_network(recipes, capsys):  # noqa: F811
    file = recipes / "page.html"
    out = zoo(capsys, "lm.yaml", "model.ffn=swiglu", "--text", "the cat", "--html", str(file))
    assert str(file) in out.err
    text = file.read_text("utf-8")
    assert "://" not in text
    assert "@import" not in text
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object")
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), attributes
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= targets
    assert sum(tag == "img" for tag, _ in page.tags) == 3
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert sum(tag == "svg" for tag, _ in page.tags) >= 8
    assert {"Self-attention: MultiHead", "Feed-forward: SwiGLU"} <= set(re.findall("<figcaption>([^<]+)</", text))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["norm"], "name a part too"),
        (["norm", "nosuch"], "unknown norm 'nosuch'"),
        (["no-such-recipe"], "no recipe or file 'no-such-recipe'"),
        (["lm.yaml", "a", "b"], "two models at most"),
        (["lm.yaml", "--text", "a", "--image", "b"], "exclude each other"),
        (["norm", "layernorm", "--text", "a"], "reads nothing"),
        (["lm.yaml", "--image", "a.png"], "reads texts"),
        (["lm.yaml", "model.norm=nosuch"], "nosuch"),
        (["lm.yaml", "--html", "no/such/folder/x.html"], "cannot write"),
        (["lm.yaml", "--html", "."], "cannot write ."),
        (["lm.yaml", "--html", ""], "got an empty value"),
        (["lm.yaml", "--html", "~no-such-user/x.html"], "begins with ~"),
        (["optimizer", "lion"], "no recipe or file 'optimizer'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_end_in_a_sentence(recipes, capsys, words, sentence):  # noqa: F811
    err = zoo(capsys, *words, code=2).err
    assert sentence in err
    assert len(err.splitlines()) <= 5


def test_data_that_are_not_here_leave_small_sizes_and_a_note(recipes, capsys):  # noqa: F811
    (recipes / "corpus.txt").unlink()
    out = zoo(capsys, "lm.yaml").out
    assert "note: sizes that the data would set are small ones (vocab_size=" in out
    assert "data: TextFiles" not in out
    assert "no tokenizer" in zoo(capsys, "lm.yaml", "--text", "a", code=2).err


def test_words_are_one_subject_or_two():
    assert split_words(["norm", "a"]) == (["norm", "a"], [])
    assert split_words(["norms", "a", "b"]) == (["norm", "a"], ["norm", "b"])
    assert split_words(["norm", "a", "norm", "b"]) == (["norm", "a"], ["norm", "b"])
    assert split_words(["x", "y"]) == (["x"], ["y"])
    assert split_words(["x", "model.norm=a", "model.ffn=b"]) == (["x"], ["model.norm=a", "model.ffn=b"])
    with pytest.raises(UsageError):
        split_words(["norm", "a", "ffn", "b"])


def test_a_run_names_the_part_farthest_from_its_formula(recipes, capsys):  # noqa: F811
    assert main(["fit", "lm.yaml", "--trainer.accelerator", "cpu"]) == 0
    capsys.readouterr()
    value = json.loads(zoo(capsys, "runs/lm/default/s1", "--json").out)
    rows = {row["name"]: row for row in value["numerics"]}
    assert {"position", "attend", "ffn", "norm"} <= {part for name in rows for part in name.split(".")}
    worst = max(rows.values(), key=lambda row: row["error"] / row["tolerance"])
    assert 0 < worst["error"] < worst["tolerance"]
    assert worst["name"] in " ".join(value["notes"])
