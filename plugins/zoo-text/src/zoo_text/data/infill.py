"""Text whose middle is moved to the end, so that a causal model learns to fill it in (Bavarian et al., 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator
from zoo.data.stdlib import StdlibDocs
from zoo.data.text import IGNORE, Blocks, TextData
from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError
from zoo_text.data.derived import FromText, Stream
from zoo_text.data.infill_prompt import MIDDLE, PREFIX, SUFFIX, Marks

MARKS = 4  # tokens that an infilled document has more: the three above, and <eos> behind the middle
SHORTEST = 3  # tokens of a document that is worth filling in


class Parts(NamedTuple):
    """The tokens of a document, each (T,): what stands before the middle, the middle, and what stands behind it."""

    prefix: np.ndarray
    middle: np.ndarray
    suffix: np.ndarray


def arrange(parts: Parts, marks: Marks, suffix_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """A document with its middle last, and which of its tokens are the middle or the <eos> behind it, (T + 4,) each.

    Prefix, suffix, middle (PSM): ``<fim_prefix> p <fim_suffix> s <fim_middle> m <eos>``. With ``suffix_first`` (SPM):
    ``<fim_prefix> <fim_suffix> s <fim_middle> p m <eos>``.
    """
    prefix, middle, suffix = parts
    if suffix_first:
        before = [[marks.prefix, marks.suffix], suffix, [marks.middle], prefix]
    else:
        before = [[marks.prefix], prefix, [marks.suffix], suffix, [marks.middle]]
    tokens = np.concatenate([*before, middle, [marks.end]]).astype(np.int64)
    return tokens, np.arange(len(tokens)) >= len(tokens) - len(middle) - 1


class InfillRows(BatchDataset):
    """The rows of a text as a language model reads them, and the same rows with the middle of documents moved.

    Which documents, where they are cut and in which order their parts stand is drawn from (seed, epoch, row).
    """

    def __init__(self, blocks: Blocks, stream: Stream, marks: Marks, tokenizer: Tokenizer, data: InfillText) -> None:
        self.blocks, self.stream, self.marks, self.tokenizer = blocks, stream, marks, tokenizer
        self.rate = data.rate if stream.seed is not None else 1.0
        self.suffix_first, self.level, self.split_at = data.spm, data.level, data.split_at

    def __len__(self) -> int:
        return len(self.blocks)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """The columns of a text, and ``infill_inputs``, ``infill_targets`` and ``middle_targets`` (B, T): tokens, the
        next ones, and those of them that belong to a middle; -100 where there is nothing to predict.
        """
        columns = self.blocks.batch(indices, epoch)
        targets = columns["targets"].numpy()
        first = columns["inputs"][:, :1].numpy()
        shape = (len(indices), targets.shape[1] + 1)
        tokens, middle = np.full(shape, self.marks.end, np.int64), np.zeros(shape, bool)
        real = np.zeros(shape, bool)
        for row, index in enumerate(indices.tolist()):
            following = targets[row][targets[row] != IGNORE]
            row_tokens, of_middle = self.rearrange(np.concatenate([first[row], following]), shape[1], index, epoch)
            tokens[row, : len(row_tokens)], middle[row, : len(row_tokens)] = row_tokens, of_middle
            real[row, : len(row_tokens)] = True
        next_tokens = np.where(real, tokens, IGNORE)[:, 1:]
        infill_columns = {
            "infill_inputs": tokens[:, :-1],
            "infill_targets": next_tokens,
            "middle_targets": np.where(middle[:, 1:], next_tokens, IGNORE),
        }
        return {
            **columns,
            **{name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in infill_columns.items()},
        }

    def rearrange(self, tokens: np.ndarray, room: int, index: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """A row (n,) with the middles of its documents moved, at most ``room`` tokens, and which of them are middles.

        What the special tokens take is cut from the end of the row before documents are rearranged, so that every
        middle is whole.
        """
        draw = generator(*self.stream.key(epoch), 4, index)
        rows, flags = [], []
        for document in self.documents(tokens):
            ends = bool(document[-1] == self.marks.end) and self.level == "document"
            before = self.tokenizer.template[0]
            begin = document[: len(before) if document[: len(before)].tolist() == before else 0]
            body = document[len(begin) : len(document) - ends][: max(0, room - MARKS - len(begin))]
            moves = draw.random() < self.rate
            suffix_first = draw.random() < self.suffix_first
            if moves and len(body) >= SHORTEST:
                row, flag = arrange(self.parts(body, draw), self.marks, suffix_first)
                row, flag = np.concatenate([begin, row]), np.concatenate([np.zeros(len(begin), bool), flag])
            else:
                row = document[:room]
                flag = np.zeros(len(row), bool)
            rows.append(row)
            flags.append(flag)
            room -= len(row)
            if room <= 0:
                break
        return np.concatenate(rows), np.concatenate(flags)

    def documents(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The documents of a row, each with its <eos>; the whole row where a row counts as one."""
        if self.level == "block":
            return [tokens]
        return [one for one in np.split(tokens, np.flatnonzero(tokens == self.marks.end) + 1) if len(one)]

    def parts(self, body: np.ndarray, draw: np.random.Generator) -> Parts:
        """A document cut at two places, all alike, in as many tokens as it has.

        Places lie between characters, and tokens there are cut too; they lie between tokens where the text of these
        tokens is not whole, or would have fewer tokens.
        """
        if self.split_at == "character" and not np.isin(body, list(self.tokenizer.specials.values())).any():
            text = self.tokenizer.decode(body.tolist())
            low, high = np.sort(draw.integers(0, len(text) + 1, 2)).tolist()
            encode, encode_rest = self.tokenizer.encode, self.tokenizer.encode_rest
            pieces = (encode(text[:low]), (encode_rest if low else encode)(text[low:high]), encode_rest(text[high:]))
            prefix, middle, suffix = (np.array(piece, np.int64) for piece in pieces)
            extra = len(prefix) + len(middle) + len(suffix) - len(body)
            if "\ufffd" not in text and 0 <= extra <= len(suffix):
                return Parts(prefix, middle, suffix[: len(suffix) - extra])
        low, high = np.sort(draw.integers(0, len(body) + 1, 2)).tolist()
        return Parts(body[:low], body[low:high], body[high:])


class InfillText(FromText):
    """A text for filling in: rows as a language model reads them, and rows whose documents have their middle last.

    CausalLM learns from the first and FIM from the second, of the same data. A row holds documents, or parts of them,
    and each is rearranged by itself (the paper's context level).
    """

    added = (EOS, PREFIX, SUFFIX, MIDDLE)

    def __init__(
        self,
        text: Callable[[], TextData] = StdlibDocs,
        rate: float = 0.5,
        spm: float = 0.5,
        level: Literal["document", "block"] = "document",
        split_at: Literal["character", "token"] = "character",
        seed: int | None = None,
    ) -> None:
        """
        Args:
            rate: share of the documents whose middle is moved in training; in evaluation that of all is.
            spm: share of these whose suffix comes first (SPM), below 1; the others begin with their prefix (PSM).
            level: rearrange each document of a row, or a row as one document.
            split_at: where documents are cut: between any two characters, or between tokens.
            seed: of what is moved; the text's unless given.
        """
        super().__init__(text, seed)
        if not 0 <= spm < 1:
            raise UsageError(f"spm is {spm}: it must be at least 0 and below 1: generation asks in the order of PSM.")
        if not 0 < rate <= 1:
            raise UsageError(f"rate is {rate}: it must be above 0 and at most 1. For none: --model CausalLM")
        if level not in ("document", "block") or split_at not in ("character", "token"):
            raise UsageError(
                f"level is document or block, and split_at is character or token, got {level!r}, {split_at!r}"
            )
        self.rate, self.spm, self.level, self.split_at = rate, spm, level, split_at

    def make_dataset(self, stream: Stream, split: str) -> BatchDataset:
        """The rows of a split, plain and rearranged."""
        marks = Marks(*(self.number(name) for name in (PREFIX, SUFFIX, MIDDLE, EOS)))
        blocks = self.text.datasets[split]
        assert isinstance(blocks, Blocks)
        return InfillRows(blocks, stream, marks, self.tokenizer, self)

    def recipe(self) -> dict[str, Any]:
        """The options that change rows."""
        return {"rate": self.rate, "spm": self.spm, "level": self.level, "split_at": self.split_at}
