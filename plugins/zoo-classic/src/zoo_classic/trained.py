"""What can be asked of trained word vectors and of a trained ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.find_run import ModelLocation
from zoo.inference.language import TrainedLanguageModel
from zoo.inference.trained_model import Trained
from zoo.tasks.task import Task
from zoo_classic.spelling import spell


class Near(NamedTuple):
    """A word, and the cosine between its vector and the one that was asked for."""

    word: str
    cosine: float


class TrainedVectors(Trained):
    """The vectors of Word2Vec or GloVe with their tokenizer."""

    files = ("tokenizer.json",)

    def __init__(self, task: Task, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))

    def vector(self, word: str) -> Tensor:
        """The vector (dim,) of a word as it stands after a space; the mean where it is several tokens."""
        ids = self.tokenizer.encode(f" {word}")
        return self.net.vectors[ids].mean(0)

    def similarity(self, one: str, two: str) -> float:
        """The cosine between two words."""
        return float(F.cosine_similarity(self.vector(one), self.vector(two), dim=0))

    def nearest(self, word_or_vector: str | Tensor, count: int = 5, without: Sequence[str] = ()) -> list[Near]:
        """The tokens nearest to a word or a vector, by cosine; special ones and the word itself are left out."""
        words = [word_or_vector, *without] if isinstance(word_or_vector, str) else list(without)
        vector = self.vector(word_or_vector) if isinstance(word_or_vector, str) else word_or_vector
        cosines = F.cosine_similarity(self.net.vectors, vector[None])
        hidden = [*self.tokenizer.specials.values(), *(n for word in words for n in self.tokenizer.encode(f" {word}"))]
        cosines[hidden] = -2.0
        best = cosines.topk(min(count, len(cosines) - len(set(hidden))))
        names = [self.tokenizer.decode([number]).strip() for number in best.indices.tolist()]
        return [Near(*one) for one in zip(names, best.values.tolist(), strict=True)]

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[Near]:
        """a is to b as what is to c: the tokens nearest to a - b + c, each of length one (Mikolov et al., 2013)."""
        a_, b_, c_ = (F.normalize(self.vector(word), dim=0) for word in (a, b, c))
        return self.nearest(a_ - b_ + c_, count, without=(a, b, c))


class TrainedELMo(TrainedLanguageModel):
    """A language model in both directions, which gives words vectors by their context."""

    @torch.no_grad()
    def embed(self, text: str) -> tuple[list[str], Tensor]:
        """The words of a text, split at spaces, and all layers of their vectors (1 + depth, words, 2 dim).

        A word of several tokens has their mean. A model of letters reads every word as a whole, seen before or not.
        """
        words = text.split()
        if not words:
            raise UsageError("there is no word in the text.")
        if self.net.letters is not None:
            spelling = spell([f" {word}".encode() for word in words]).to(self.device)
            layers = self._layers(self.net.letters(spelling)[None])
            return words, layers[:, 1:]
        pieces = [self.tokenizer.encode(f" {word}") for word in words]
        tokens = torch.tensor([[token for piece in pieces for token in piece]], device=self.device)
        layers = self._layers(self.net.read(tokens))[:, 1:]
        split = layers.split([len(piece) for piece in pieces], dim=1)
        return words, torch.stack([part.mean(1) for part in split], 1)

    def _layers(self, x: Tensor) -> Tensor:
        """Layers (1 + depth, 1 + T, 2 dim) of (1, T, dim) between the marks of a document."""
        mark = self.tokenizer.eos
        if mark is None:
            layers = self.net.layers(x, torch.tensor([x.size(1)], device=x.device))[:, 0]
            return torch.cat([layers[:, :1], layers], 1)
        edge = self.net.read(torch.tensor([[mark]], device=x.device))
        whole = torch.cat([edge, x, edge], 1)
        return self.net.layers(whole, torch.tensor([whole.size(1)], device=x.device))[:, 0, :-1]

    def vector(self, word: str, text: str, layer: int = -1) -> Tensor:
        """The vector (2 dim,) of the first occurrence of a word in a text, in one layer; the last unless given."""
        words, layers = self.embed(text)
        if word not in words:
            raise UsageError(f"{word!r} is no word of {text!r}.")
        return layers[layer, words.index(word)]
