"""A trained model of embeddings: a vector per text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import Trained, as_list
from zoo.io import limits
from zoo_text.data.textpairs import PROMPTS

if TYPE_CHECKING:
    from zoo.tasks.task import Task

log = logging.getLogger(__name__)


class TrainedTextEmbedding(Trained):
    """A model of embeddings with its tokenizer and its prompts."""

    files = ("tokenizer.json", PROMPTS)

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))
        path = place.file(PROMPTS)
        try:
            about = cast(Any, limits.read_json(path))
            self.prompts: dict[str, str] = {str(name): str(text) for name, text in about["prompts"].items()}
            self.default_prompt: str | None = about["default_prompt"]
            self.room = self.net.max_tokens - len(self.tokenizer.marked([]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not what a run writes: {type(error).__name__} {error}") from error

    @torch.no_grad()
    def embed(
        self, texts: str | Sequence[str], *, prompt: str | None = None, size: int | None = None, batch_size: int = 64
    ) -> np.ndarray:
        """A vector per text, (texts, width) in float32 in the order of the texts, whatever the batch size.

        ``prompt`` is the name of a text to put before each: that of the run unless given. ``size`` is how many numbers
        of each vector to keep, for models of Matryoshka sizes. A text without tokens has the vector of its special
        tokens, and zeros where there are none. Longer texts than the model reads are truncated with a warning.

        Raises UsageError for a prompt that the model does not have, and for sizes out of range.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
        if size is not None and not 1 <= size <= self.net.width:
            raise UsageError(f"size must be from 1 to {self.net.width}, the width of the model's vectors, got {size}.")
        texts = as_list(texts)
        rows = self._rows([self._prompt(prompt) + text for text in texts])
        vectors = np.zeros((len(rows), size or self.net.width), np.float32)
        order = sorted((number for number, row in enumerate(rows) if row), key=lambda number: len(rows[number]))
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            vectors[numbers] = self._vectors([rows[number] for number in numbers], size)
        return vectors

    def _prompt(self, name: str | None) -> str:
        name = self.default_prompt if name is None else name
        if name is not None and name not in self.prompts:
            there = ", ".join(self.prompts) or "none"
            raise UsageError(f"{self.place.folder} has no prompt {name!r}. There are: {there}.")
        return "" if name is None else self.prompts[name]

    def _rows(self, texts: list[str]) -> list[list[int]]:
        rows = self.tokenizer.encode_batch(texts)
        for text, ids in zip(texts, rows, strict=True):
            if len(ids) > self.room:
                log.warning(
                    "the text %r has %d tokens, more than the %d that the model reads: its end is cut off",
                    text[:60], len(ids), self.room,
                )  # fmt: skip
        return [self.tokenizer.marked(ids[: self.room]) for ids in rows]

    def _vectors(self, rows: list[list[int]], size: int | None) -> np.ndarray:
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        valid = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        vectors = self.net.shortened(self.net(tokens.to(self.device), valid.to(self.device)), size)
        return self.require_finite(vectors).float().cpu().numpy()
