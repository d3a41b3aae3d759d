"""The special tokens of a text whose middle is to be filled in, and their order: what training and filling in share."""

from __future__ import annotations

from typing import NamedTuple

PREFIX, SUFFIX, MIDDLE = "<fim_prefix>", "<fim_suffix>", "<fim_middle>"


class Marks(NamedTuple):
    """The numbers of the special tokens."""

    prefix: int
    suffix: int
    middle: int
    end: int


def prompt_tokens(prefix: list[int], suffix: list[int], marks: Marks) -> list[int]:
    """``<fim_prefix> prefix <fim_suffix> suffix <fim_middle>``, which a middle and <eos> follow."""
    return [marks.prefix, *prefix, marks.suffix, *suffix, marks.middle]
