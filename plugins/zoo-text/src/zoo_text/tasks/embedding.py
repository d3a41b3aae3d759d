"""Embeddings of texts: vectors that are near where texts belong together, trained by contrast."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.optim import AdamW
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from zoo.errors import UsageError
from zoo.tasks.schedule import Linear
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task
from zoo_text.models.embedding import TextEmbedder

log = logging.getLogger(__name__)
NOTHING = -1  # the number of no text
CUTOFFS = (1, 5, 10)
CHUNK = 1024  # queries that are compared with all passages at once


class Texts(NamedTuple):
    """Vectors (N, width) of texts, the number of each text, and that of the text it is paired with, (N,) each.

    Equal texts have equal numbers; NOTHING is no text.
    """

    vectors: Tensor
    ids: Tensor
    partners: Tensor


class TextEmbedding(Task):
    """Embed texts so that a query is nearest to its own passage; reports loss, recall@1, @5, @10 and MRR.

    The loss is InfoNCE: each query is to choose its passage among all passages of a batch, in all processes, and their
    hard negatives, if the data have any. ``symmetric`` also lets each passage choose its query. Equal texts are no
    negatives of each other: another pair's passage that is the own passage, the query, or belongs to the same query is
    left out. With gradient accumulation, the negatives are those of one batch and not of the whole step.

    In a validation each query chooses among all passages of the split: neither loss (nats per query), recall nor MRR
    depends on the batch size. ``recall@5`` is how often the own passage is among the five nearest.
    """

    unit = "pair"
    prediction = "the passage of a query"
    trained = "zoo_text.inference.embedding:TrainedTextEmbedding"
    training_options = ("symmetric", "matryoshka")
    learns_from = "pairs of texts that belong together"
    example_data = ("FunctionDocs", "TextPairFiles")
    data_sizes: ClassVar = {"vocab_size": 64, "max_length": 64}
    in_matrix = False  # its stack is used as Translation's encoder is
    monitored_metrics: ClassVar[Directions] = {"recall@1": "max", "mrr": "max", "loss": "min"}
    known_failures: ClassVar = {"loss_is_a_sum": "a pair is measured against all others of its batch, not alone"}
    net: TextEmbedder

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        symmetric: bool = False,
        matryoshka: list[int] | None = None,
        lr: float = 5e-4,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Linear,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest text in tokens; what the data has unless given.
            symmetric: average the losses of both directions.
            matryoshka: shorter sizes that the first numbers of a vector are trained for, too (Kusupati et al., 2022).
        """
        net = self.build_network(vocab_size=vocab_size, max_length=max_length, **model)
        super().__init__(net, lr, optimizer, schedule)
        self.symmetric, self.matryoshka = symmetric, sorted(set(matryoshka or ()), reverse=True)
        for size in self.matryoshka:
            if not 1 <= size < net.width:
                raise UsageError(f"model.matryoshka must hold sizes from 1 to {net.width - 1}, got {size}.")
        self.metrics["retrieval"] = Retrieval(net, self.matryoshka)

    @staticmethod
    def network(**options: Any) -> TextEmbedder:
        """A TextEmbedder."""
        return TextEmbedder(**options)

    def on_fit_start(self) -> None:
        """As the base does, and say what gradient accumulation does not do."""
        super().on_fit_start()
        if self.trainer.accumulate_grad_batches > 1:
            rank_zero_only(log.warning)(
                "the negatives of a query are those of its batch: accumulate_grad_batches=%d adds none. A larger "
                "--data.batch_size does",
                self.trainer.accumulate_grad_batches,
            )

    def forward(self, tokens: Tensor, valid: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Tokens (B, T) to vectors (B, width)."""
        return self.net(tokens, valid, segments)

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """InfoNCE summed over the queries of this process (), in nats, and their number ()."""
        return self._loss(*self._embed(batch))

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """InfoNCE among the texts of the batch, which is not reported, after adding them to those that are measured."""
        queries, passages, negatives = self._embed(batch)
        self.metrics["retrieval"].update(queries, passages, negatives)
        return self._loss(queries, passages, negatives, alone=True)

    def _embed(self, batch: dict[str, Tensor]) -> tuple[Texts, Texts, Texts | None]:
        """Queries, passages, and hard negatives, if there are any."""
        texts: list[Texts | None] = []
        for name, partner in (("queries", "passage_ids"), ("passages", "query_ids"), ("negatives", None)):
            if name not in batch:
                texts.append(None)
                continue
            ids = batch[{"queries": "query_ids", "passages": "passage_ids", "negatives": "negative_ids"}[name]]
            partners = torch.full_like(ids, NOTHING) if partner is None else batch[partner]
            texts.append(Texts(self.net(batch[name], batch[f"{name}_valid"]), ids, partners))
        return cast(tuple[Texts, Texts, Texts | None], tuple(texts))

    def _loss(self, queries: Texts, passages: Texts, negatives: Texts | None, alone: bool = False) -> Loss:
        """The mean over the sizes of vectors; ``alone``: without the texts of other processes."""
        others = [passages] if negatives is None else [passages, negatives]
        (all_passages, first), *more = (gather(texts) if not alone else (texts, 0) for texts in others)
        candidates = Texts(
            *(torch.cat(columns) for columns in zip(all_passages, *(one for one, _ in more), strict=True))
        )
        total = self._contrast(queries, candidates, first)
        if self.symmetric:
            all_queries, first = (queries, 0) if alone else gather(queries)
            total = (total + self._contrast(passages, all_queries, first)) / 2
        return Loss(total, torch.tensor(len(queries.ids), device=total.device))

    def _contrast(self, texts: Texts, candidates: Texts, first: int) -> Tensor:
        """The cross-entropy of each text's partner, candidate number ``first`` and on, summed; mean over sizes ()."""
        own = first + torch.arange(len(texts.ids), device=texts.ids.device)
        excluded = false_negatives(texts, candidates, own)
        losses = []
        for size in (None, *self.matryoshka):
            rows, columns = (self.net.shortened(side.vectors, size) for side in (texts, candidates))
            scores = rows @ columns.T
            scores = self.net.sharpen(scores.to(torch.promote_types(scores.dtype, torch.float32)))
            scores = scores.masked_fill(excluded, -torch.inf)
            losses.append(F.cross_entropy(scores, own, reduction="sum"))
        return torch.stack(losses).mean()

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """Loss, recall and MRR of each query among all passages of the split; nan where there is none."""
        metric = self.metrics["retrieval"]
        width, ids = self.net.width, torch.empty(0, dtype=torch.long, device=self.device)
        nothing = Texts(torch.empty(0, width, device=self.device), ids, ids)
        metric.update(nothing, nothing, None)  # a process that measured nothing takes part in the exchange
        figures = metric.compute()
        metric.reset()
        return figures

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """The score of each query and its passage: their cosine, where vectors have unit length."""
        queries, passages, _ = self._embed(batch)
        return [{"score": score} for score in (queries.vectors * passages.vectors).sum(-1).float().tolist()]

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random pairs of texts (rows, T) with their masks and the numbers of the texts (rows,)."""
        length = min(self.net.max_length, self.sample_length)
        batch = {"query_ids": torch.arange(rows), "passage_ids": rows + torch.arange(rows)}
        for name in ("queries", "passages"):
            batch[name] = torch.randint(self.net.vocab_size, (rows, length))
            batch[f"{name}_valid"] = torch.arange(length) < torch.randint(2, length + 1, (rows, 1))
        return batch

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """Both texts of a pair, (2, T) on the meta device, and 1."""
        return (torch.zeros(2, self.net.max_length, dtype=torch.long, device="meta"),), 1


def false_negatives(texts: Texts, candidates: Texts, own: Tensor) -> Tensor:
    """Candidates that are no negatives of texts, (B, N) of bool; ``own`` (B,) is the candidate each belongs to.

    A candidate is none that equals the text or its partner, or whose partner equals the text. Padding is none either.
    """
    ids, partners = texts.ids[:, None], texts.partners[:, None]
    same = (candidates.ids == partners) | (candidates.ids == ids) | (candidates.partners == ids)
    same |= candidates.ids == NOTHING
    return same.scatter(1, own[:, None], False)


def gather(texts: Texts) -> tuple[Texts, int]:
    """The texts of all processes, in the order of processes, and where those of this process begin.

    Gradients flow back into the process that made a vector: they are summed over all losses that used it. A process
    with fewer texts is padded with texts of the number NOTHING.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return texts, 0
    from torch.distributed.nn.functional import all_gather  # it needs a torch that was built with it

    size = torch.tensor(len(texts.ids), device=texts.ids.device)
    dist.all_reduce(size, dist.ReduceOp.MAX)
    missing = int(size) - len(texts.ids)
    vectors = F.pad(texts.vectors, (0, 0, 0, missing))
    numbers = [F.pad(column, (0, missing), value=NOTHING) for column in texts[1:]]
    gathered = [torch.empty_like(torch.stack(numbers)) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.stack(numbers))
    ids, partners = torch.cat(gathered, 1)
    return Texts(torch.cat(all_gather(vectors)), ids, partners), dist.get_rank() * int(size)


class Retrieval(Metric):
    """How well queries find their passages among all that were added: InfoNCE, recall@k and MRR, each a mean of pairs.

    Passages with the same number count once. Other passages of a query, and the query itself, are left out. Where
    several passages have the same score, the own one is ranked last.
    """

    full_state_update = False
    queries: list[Tensor]
    passages: list[Tensor]
    query_ids: list[Tensor]
    passage_ids: list[Tensor]
    paired_ids: list[Tensor]

    def __init__(self, net: TextEmbedder, sizes: Sequence[int] = ()) -> None:
        """
        Args:
            net: says how vectors are shortened and scores sharpened.
            sizes: sizes of vectors whose recall@1 is reported besides.
        """
        super().__init__()
        self.__dict__["net"], self.sizes = net, tuple(sizes)  # not a part of the metric
        for name in ("queries", "passages", "query_ids", "paired_ids", "passage_ids"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, queries: Texts, passages: Texts, negatives: Texts | None) -> None:
        """Add pairs, and passages that belong to no query."""
        self.queries.append(queries.vectors.detach().float())
        self.query_ids.append(queries.ids)
        self.paired_ids.append(queries.partners)
        for texts in (passages,) if negatives is None else (passages, negatives):
            self.passages.append(texts.vectors.detach().float())
            self.passage_ids.append(texts.ids)

    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """The figures by name; nan without a query."""
        queries, passages = dim_zero_cat(self.queries), dim_zero_cat(self.passages)
        query_ids, paired, ids = (dim_zero_cat(one) for one in (self.query_ids, self.paired_ids, self.passage_ids))
        names = ["loss", *(f"recall@{k}" for k in CUTOFFS), "mrr", *(f"recall@1_of_{size}" for size in self.sizes)]
        if not len(query_ids):
            return dict.fromkeys(names, float("nan"))
        unique, place = ids.unique(return_inverse=True)
        first = torch.full_like(unique, len(ids)).scatter_reduce(
            0, place, torch.arange(len(ids), device=ids.device), "amin"
        )
        corpus = Texts(passages[first], unique, torch.full_like(unique, NOTHING))
        pairs = Texts(queries, query_ids, paired)
        loss, ranks = self._rank(pairs, corpus, None)
        values = [loss, *((ranks <= k).double().mean() for k in CUTOFFS), (1 / ranks.double()).mean()]
        values += [(self._rank(pairs, corpus, size)[1] == 1).double().mean() for size in self.sizes]
        return dict(zip(names, map(float, values), strict=True))

    def _rank(self, pairs: Texts, corpus: Texts, size: int | None) -> tuple[Tensor, Tensor]:
        """The mean loss () and the rank of each query's own passage (N,), 1 for the nearest."""
        net = self.__dict__["net"]
        own = torch.searchsorted(corpus.ids, pairs.partners)
        order = pairs.ids.argsort(stable=True)
        ids, passages = pairs.ids[order], own[order]
        columns = net.shortened(corpus.vectors, size)
        losses, ranks = [], []
        for rows in torch.arange(len(own), device=own.device).split(CHUNK):
            scores = net.shortened(pairs.vectors[rows], size) @ columns.T
            excluded = corpus.ids == pairs.ids[rows, None]
            begin, end = (torch.searchsorted(ids, pairs.ids[rows], right=right) for right in (False, True))
            row = torch.repeat_interleave(torch.arange(len(rows), device=own.device), end - begin)
            step = torch.arange(len(row), device=own.device) - (end - begin).cumsum(0)[row] + (end - begin)[row]
            excluded[row, passages[begin[row] + step]] = True  # all passages of the same query
            excluded.scatter_(1, own[rows, None], False)
            scores = scores.masked_fill(excluded, -torch.inf)
            right = scores.gather(1, own[rows, None])
            ranks.append((~(scores < right)).sum(1))  # those that are nan count as nearer
            losses.append(F.cross_entropy(net.sharpen(scores), own[rows], reduction="sum"))
        return torch.stack(losses).sum() / len(own), torch.cat(ranks)
