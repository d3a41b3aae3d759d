"""Trained classifiers of texts and of tokens."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from zoo.data.tokenizer import CLS, Tokenizer
from zoo.errors import UsageError
from zoo.inference.classification import Guess
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import Trained, as_list
from zoo.io import limits

if TYPE_CHECKING:
    from zoo.tasks.task import Task

log = logging.getLogger(__name__)


class TaggedText(NamedTuple):
    """The text of one token or word, its most probable class, and the probability."""

    text: str
    label: str
    probability: float


class TrainedLabelling(Trained):
    """Base class with the tokenizer and the names of the classes."""

    files = ("tokenizer.json", "labels.json")
    explained_inputs = "zoo_text.explain_inputs:labelling_inputs"

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))
        path = place.file("labels.json")
        try:
            content = cast(Any, limits.read_json(path))
            self.names: list[str] = content["names"]
            self.of_words = bool(content.get("of_words"))
            self.cls = self.tokenizer.special(CLS)
            self.room = self.net.max_length - len(self.tokenizer.marked([]))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not what a run writes: {type(error).__name__} {error}") from error

    def _chances(self, ids: list[int]) -> torch.Tensor:
        """Class probabilities in float64: (classes,) for a text, (T, classes) for its T tokens."""
        with torch.no_grad():
            logits = self.net(torch.tensor([self.tokenizer.marked(ids)], device=self.device))[0]
        return self.require_finite(logits.double().softmax(-1)[..., : len(self.names)].cpu())


class TrainedSequenceClassification(TrainedLabelling):
    """A classifier of texts."""

    def classify(self, texts: str | Sequence[str], top: int = 5) -> list[list[Guess]]:
        """The ``top`` most probable classes of each text, truncated with a warning to the model's max_length.

        Raises UsageError for ``top`` below 1.
        """
        if top < 1:
            raise UsageError(f"top must be at least 1, got {top}.")
        guesses = []
        for text in as_list(texts):
            ids = self.tokenizer.encode(text)
            if len(ids) > self.room:
                log.warning(
                    "the text %r has %d tokens, more than the %d that the model reads: its end is cut off",
                    text[:60], len(ids), self.room,
                )  # fmt: skip
            chance, place = self._chances(ids[: self.room]).topk(min(top, len(self.names)))
            pairs = zip(place.tolist(), chance.tolist(), strict=True)
            guesses.append([Guess(self.names[one], value) for one, value in pairs])
        return guesses


class TrainedTokenClassification(TrainedLabelling):
    """A classifier of tokens."""

    def tag(self, texts: str | Sequence[str]) -> list[list[TaggedText]]:
        """The tokens of each text with their classes; texts longer than max_length are read in pieces.

        Words where words were learned: of each, what stands between spaces, the class of its first token.
        """
        return [self._tag(text) for text in as_list(texts)]

    def _tag(self, text: str) -> list[TaggedText]:
        ids, offsets = self.tokenizer.offsets(text)
        words = {match.start(): match[0] for match in re.finditer(r"\S+", text)} if self.of_words else {}
        tagged: list[TaggedText] = []
        room, before = self.room, self.tokenizer.marks_before
        for begin in range(0, len(ids), room):
            chance, place = self._chances(ids[begin : begin + room])[before : before + room].max(-1)
            for (start, end), value, one in zip(offsets[begin:], chance.tolist(), place.tolist(), strict=False):
                place_of_word = next((character for character in range(start, end) if character in words), None)
                if not self.of_words:
                    tagged.append(TaggedText(text[start:end], self.names[one], value))
                elif place_of_word is not None:
                    tagged.append(TaggedText(words.pop(place_of_word), self.names[one], value))
        return tagged
