"""Labelled texts and tokens: labels are what they say, splits share nothing, and a few are chosen fairly."""

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from zoo_text.data.labelled import IGNORE, LabelledText, select_labels
from zoo_text.data.labelledfiles import LabelledFiles
from zoo_text.data.roles import OTHER, ROLES, PythonRoles, roles_of
from zoo_text.data.topics import DocTopics, package_origins

from zoo.data.stdlib import StdlibDocs
from zoo.errors import UsageError


@pytest.fixture(scope="module")
def topics(session_cache):
    """The data, loaded once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(session_cache))
        module = DocTopics(topics=6, seed=1)
        module.setup()
        module.by_split = module.texts()
        module.documents = StdlibDocs(val_fraction=0.25).documents().splits
        module.homes = package_origins()
    return module


def test_a_topic_is_the_only_package_that_has_the_text(topics):
    for split, texts in topics.by_split.items():
        for text, label in texts:
            assert topics.homes[text] == [label]
            assert text in topics.documents[split]
    assert len({label for text, label in topics.by_split["train"]}) == 6
    assert not {text for text, _ in topics.by_split["train"]} & {text for text, _ in topics.by_split["val"]}


def test_topics_are_the_packages_with_most_texts(topics):
    counts = Counter(homes[0] for homes in topics.homes.values() if len(homes) == 1)
    least = min(counts[name] for name in topics.names)
    assert sum(count > least for count in counts.values()) < 6


def test_a_batch_holds_the_texts_and_their_labels(topics):
    rows = topics.datasets["val"]
    batch = rows.batch(np.arange(9), 0)
    for row, (text, label) in enumerate(topics.by_split["val"][:9]):
        tokens = batch["tokens"][row][batch["valid"][row]].tolist()
        assert tokens == [topics.tokenizer.specials["<cls>"], *topics.tokenizer.encode(text)[:63]]
        assert topics.names[int(batch["labels"][row])] == label
    assert batch["tokens"].size(1) <= 64


def test_a_few_labels_are_as_many_of_each_class():
    texts = [LabelledText(str(number), "a" if number % 10 else "b") for number in range(200)]
    subset = select_labels(texts, 40)
    assert Counter(one.label for one in subset) == {"a": 20, "b": 20}
    assert Counter(one.label for one in select_labels(texts, 60)) == {"a": 40, "b": 20}
    assert set(select_labels(texts, 20)) < set(subset)
    assert select_labels(texts, None) == texts
    with pytest.raises(UsageError, match="labels is 201"):
        select_labels(texts, 201)


def write(folder, **splits):
    for split, lines in splits.items():
        (folder / f"{split}.tsv").write_text("".join(line + "\n" for line in lines))
    return LabelledFiles(str(folder), vocab_size=300, seed=1)


def test_files_are_read_and_split(tmp_path):
    module = write(tmp_path, train=[f"{'ab'[i % 2]}\ttext {i}\twith a tab" for i in range(50)])
    module.setup()
    assert (len(module.datasets["train"]), len(module.datasets["val"])) == (45, 5)
    assert module.names == ["a", "b"]
    assert module.sizes()["num_classes"] == 2
    texts = module.texts()
    assert sorted(one.text for split in texts.values() for one in split) == sorted(
        f"text {i}\twith a tab" for i in range(50)
    )


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": ["a\tb", "nothing"]}, r"train.tsv:2 must hold a class, a tab and a text"),
        ({"train": ["a\tb", "b\tb"], "val": ["c\td"]}, r"the val split has the label 'c'"),
        ({"train": ["a\tb", "a\tc"]}, "train.tsv has a single class"),
        ({"train": []}, "is empty"),
        ({"val": ["a\tb"]}, "has the splits val and none to train on"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, splits, message):
    with pytest.raises(UsageError, match=message):
        write(tmp_path, **splits).setup()


CODE = """\
import os.path as where
from a import (b,
  c)

@wrap
class Big(Base):
    '''A docstring
    of two lines.'''
    size: int = 3.5

    def run(self, x, y=1):
        return g(x.y(z=2), self.size) # hi
"""


def role_pairs(text):
    """The words of each role, in order."""
    result, roles = [], roles_of(text)
    begin = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or roles[place] != roles[begin]:
            result.append((text[begin:place], ROLES[roles[begin]]))
            begin = place
    return [(piece, role) for piece, role in result if role != "other"]


def test_roles_of_a_module():
    result = role_pairs(CODE)
    assert ("os", "module") in result
    assert ("c", "module") in result
    assert ("Big", "class") in result
    assert ("Base", "variable") in result
    assert ("'''A docstring\n    of two lines.'''", "string") in result
    assert ("3.5", "number") in result
    assert ("run", "function") in result
    assert ("y", "argument") in result
    assert ("g", "call") in result
    assert ("y", "call") in result
    assert ("z", "argument") in result
    assert ("size", "attribute") in result
    assert ("# hi", "comment") in result
    assert result[0] == ("import", "keyword")


def test_roles_agree_with_the_syntax_tree():
    """Definitions, calls and attributes of a real module are where Python's parser says that they are."""
    text = Path(ast.__file__).read_text("utf-8")
    roles, lines = roles_of(text), text.splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)])
    counts, tree = Counter(), ast.parse(text)
    quoted = {id(below) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for below in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in quoted:  # one string to Python's tokenizer, before 3.12
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = text.index(node.name, starts[node.lineno - 1] + node.col_offset + 3)
            assert ROLES[roles[place]] == ("class" if isinstance(node, ast.ClassDef) else "function")
            counts["defined"] += 1
        elif isinstance(node, ast.Attribute) and node.end_lineno:
            place = starts[node.end_lineno - 1] + node.end_col_offset - len(node.attr)
            after = text[place + len(node.attr) :].lstrip()[:1]
            assert ROLES[roles[place]] == ("call" if after == "(" else "attribute")
            counts["attributes"] += 1
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        ):
            assert ROLES[roles[starts[node.lineno - 1] + node.col_offset]] == "number"
            counts["numbers"] += 1
    assert min(counts.values()) > 20


def test_a_token_has_the_role_of_its_first_character():
    module = PythonRoles(pieces=40, vocab_size=400, max_length=48, seed=1)
    module.setup()
    sources = module.sources()
    batch = module.datasets["train"].batch(np.arange(12), 0)
    assert torch.equal(batch["labels"][:, 0], torch.full((12,), IGNORE))
    assert (batch["labels"][~batch["valid"]] == IGNORE).all()
    for row, one in enumerate(sources["train"][:12]):
        ids, offsets = module.tokenizer.offsets(one.text)
        count = min(len(ids), 47)
        for column, (start, end) in enumerate(offsets[:count], 1):
            piece = one.text[start:end]
            place = start + len(piece) - len(piece.lstrip()) if piece.strip() else start
            assert int(batch["labels"][row, column]) == one.roles[place]
            assert piece.strip() or one.roles[place] in (OTHER, ROLES.index("string"), ROLES.index("comment"))
    assert {one.text for one in sources["train"]}.isdisjoint({one.text for one in sources["val"]})
