"""Text classifiers without attention: convolutions (Kim, 2014) and bags of n-grams (fastText; Joulin et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from zoo_text.tasks.labelling import SequenceClassification, TextClassification

from zoo.models.initialization import initialize, preserve_rng
from zoo.tasks.schedule import Linear
from zoo.tasks.task import OptimizerFactory, ScheduleFactory
from zoo.value_checks import a_rate, at_least

FACTOR = 116049371  # of fastText's hash of n-grams


class ConvolutionalClassifier(nn.Module):
    """max_i relu(W x_{i:i+h-1} + b) for each width h, side by side, and a matrix that reads them (Kim, 2014).

    Windows lie in the text; of a text shorter than h there is one, with zeros behind the text.
    """

    def __init__(
        self, vocab_size: int, num_classes: int, max_length: int, dim: int = 64, filters: int = 100,
        widths: Sequence[int] = (3, 4, 5), dropout: float = 0.5, seed: int = 0,
    ):  # fmt: skip
        """
        Args:
            vocab_size: number of tokens.
            num_classes: number of classes.
            max_length: longest text in tokens.
            dim: width of a token's vector.
            filters: feature maps of each width.
            widths: tokens that a filter reads.
            dropout: rate on the features.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, dim=dim, filters=filters, widths=min(widths, default=0))
        a_rate(dropout=dropout)
        self.vocab_size, self.max_length, self.widths = vocab_size, max_length, tuple(widths)
        self.scale = dim**0.5  # embeddings are drawn as output matrices: this makes them as large as features
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size, dim)
            self.filters = nn.ModuleList(nn.Linear(width * dim, filters) for width in widths)
            self.dropout = nn.Dropout(dropout)
            self.head = nn.Linear(filters * len(self.widths), num_classes)
            initialize(self, seed)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, num_classes); ``valid`` (B, T) is False at padding."""
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        longest = max(0, max(self.widths) - tokens.size(1))
        x = F.pad(self.embedding(tokens) * self.scale * valid[..., None], (0, 0, 0, longest))
        valid = F.pad(valid, (0, longest))
        features = []
        for width, layer in zip(self.widths, self.filters, strict=True):
            windows = x.unfold(1, width, 1).transpose(2, 3).flatten(2)  # (B, T - width + 1, width dim)
            inside = valid[:, width - 1 :].clone()
            inside[:, 0] = True
            # relu(…) is at least 0, so that windows which do not count may be 0
            features.append((layer(windows).relu() * inside[..., None]).amax(1))
        return self.head(self.dropout(torch.cat(features, 1)))


class NGramBag(nn.Module):
    """The mean of the vectors of a text's tokens and n-grams, and a matrix that reads it (Joulin et al., 2016).

    Tokens have a vector each. The vector of an n-gram of 2 to ``ngrams`` tokens is that of its hash, one of
    ``buckets``, so that different n-grams may share it.
    """

    def __init__(
        self, vocab_size: int, num_classes: int, max_length: int, dim: int = 32, ngrams: int = 2,
        buckets: int = 20000, seed: int = 0,
    ):  # fmt: skip
        """
        Args:
            vocab_size: number of tokens.
            num_classes: number of classes.
            max_length: longest text in tokens.
            dim: width of a vector.
            ngrams: longest n-gram; 1 is a bag of words.
            buckets: vectors of n-grams.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, dim=dim, ngrams=ngrams, buckets=buckets)
        self.vocab_size, self.max_length, self.ngrams, self.buckets = vocab_size, max_length, ngrams, buckets
        with preserve_rng():
            self.embedding = nn.Embedding(vocab_size + (buckets if ngrams > 1 else 0), dim)
            self.head = nn.Linear(dim, num_classes)
            initialize(self, seed)

    def features(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the table for tokens (B, T) and their n-grams, (B, F), and which of them count, (B, F)."""
        numbers, real = [tokens], [valid]
        code, inside = tokens, valid
        for _ in range(1, min(self.ngrams, tokens.size(1))):
            # the hash of n tokens is that of the first n - 1, times a factor, plus the last
            code = (code[:, :-1] * FACTOR + tokens[:, tokens.size(1) - code.size(1) + 1 :]) % 2**31
            inside = inside[:, :-1] & valid[:, valid.size(1) - inside.size(1) + 1 :]
            numbers.append(self.vocab_size + code % self.buckets)
            real.append(inside)
        return torch.cat(numbers, 1), torch.cat(real, 1)

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to logits (B, num_classes); ``valid`` (B, T) is False at padding."""
        numbers, real = self.features(tokens, torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid)
        weights = real.to(self.embedding.weight.dtype)
        total = (weights[:, None] @ self.embedding(numbers))[:, 0]
        return self.head(total / weights.sum(1, keepdim=True).clamp(min=1))


class TextCNN(SequenceClassification):
    """Name the class of a text by convolutions over its tokens, each reduced to its maximum (Kim, 2014)."""

    @staticmethod
    def network(**options: Any) -> ConvolutionalClassifier:
        """A ConvolutionalClassifier."""
        return ConvolutionalClassifier(**options)


class FastText(TextClassification):
    """Name the class of a text by the mean of the vectors of its tokens and n-grams (Joulin et al., 2016)."""

    training_options = ("label_smoothing",)
    net: NGramBag

    def __init__(
        self,
        vocab_size: int | None = None,
        num_classes: int | None = None,
        max_length: int | None = None,
        label_smoothing: float = 0.0,
        lr: float = 1e-2,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            num_classes: number of classes; what the data has unless given.
            max_length: longest text in tokens; what the data has unless given.
        """
        net = self.build_network(num_classes=num_classes, vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, num_classes, label_smoothing, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> NGramBag:
        """A NGramBag."""
        return NGramBag(**options)
