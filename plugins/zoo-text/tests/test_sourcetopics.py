"""Pieces of source code with their packages."""

from pathlib import Path

import pytest
from zoo_text.data.sourcetopics import SourceTopics, pieces_of

from zoo.errors import UsageError


def test_pieces_are_whole_lines_one_after_the_other():
    text = "ab\nc\n\ndefg\nh\nrest"
    assert list(pieces_of(text, 4)) == ["ab\nc\n", "\ndefg\n"]
    assert "".join(pieces_of(text, 1)) == "ab\nc\n\ndefg\nh\n"


def test_every_piece_stands_in_its_package_and_in_one_split():
    import asyncio

    data = SourceTopics(topics=5, pieces=40)
    splits = data.texts()
    assert [len(splits[name]) for name in ("train", "val")] == [150, 50]
    assert {one.label for one in splits["val"]} == {one.label for one in splits["train"]}
    assert not {one.text for one in splits["train"]} & {one.text for one in splits["val"]}
    sources = "\n".join(file.read_text("utf-8") for file in Path(asyncio.__file__).parent.glob("*.py"))
    own = [one.text for one in splits["train"] if one.label == "asyncio"]
    assert len(own) == 30
    assert all(text in sources and 1500 <= len(text) < 1800 for text in own)


def test_more_topics_than_packages_are_refused():
    with pytest.raises(UsageError, match="topics is 5000, and the library has"):
        SourceTopics(topics=5000).texts()
