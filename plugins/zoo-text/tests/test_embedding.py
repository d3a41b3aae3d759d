"""Embeddings: the contrast is its formula, in any number of processes; vectors depend on nothing but their text."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from embedding_process import SMALL, build_task, draw_batch, run_process
from torch.multiprocessing import start_processes
from torch.testing import assert_close
from zoo_text.data.functiondocs import FunctionDocs
from zoo_text.models.embedding import Scale, TextEmbedder
from zoo_text.models.encoder import pooled
from zoo_text.tasks.embedding import Retrieval, TextEmbedding, Texts

from zoo.errors import UsageError
from zoo.recipe_files import packaged_recipe


def formula(task, batch, size=None):
    """The sum of InfoNCE over queries and over passages, by loops."""
    vectors = {
        name: task.net.shortened(task.net(batch[name], batch[f"{name}_valid"]), size)
        for name in ("queries", "passages", "negatives")
        if name in batch
    }
    query, passage = batch["query_ids"].tolist(), batch["passage_ids"].tolist()
    rows, total, back = range(len(query)), 0.0, 0.0
    for i in rows:
        score = {i: vectors["queries"][i] @ vectors["passages"][i]}
        for j in rows:
            if j != i and passage[j] not in (passage[i], query[i]) and query[j] != query[i]:
                score[j] = vectors["queries"][i] @ vectors["passages"][j]
        for j, number in enumerate(batch.get("negative_ids", torch.empty(0)).tolist()):
            if number not in (passage[i], query[i]):
                score[f"negative {j}"] = vectors["queries"][i] @ vectors["negatives"][j]
        total = total + torch.stack([*score.values()]).div(0.05).logsumexp(0) - score[i] / 0.05
        score = {i: vectors["passages"][i] @ vectors["queries"][i]}
        for j in rows:
            if j != i and query[j] not in (query[i], passage[i]) and passage[j] != passage[i]:
                score[j] = vectors["passages"][i] @ vectors["queries"][j]
        back = back + torch.stack([*score.values()]).div(0.05).logsumexp(0) - score[i] / 0.05
    return total, back


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("negatives", [False, True])
def test_the_loss_is_its_formula_without_false_negatives(seed, negatives):
    task = build_task()
    batch = draw_batch(task, 6, seed, negatives=negatives)
    with torch.no_grad():
        total, back = formula(task, batch)
        assert_close(task.loss(batch).total, total, atol=1e-5, rtol=1e-5)
        both = build_task(symmetric=True)
        assert_close(both.loss(batch).total, (total + back) / 2, atol=1e-5, rtol=1e-5)
        sizes = build_task(matryoshka=[4, 8])
        right = torch.stack([formula(sizes, batch, size)[0] for size in (None, 4, 8)]).mean()
        assert_close(sizes.loss(batch).total, right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_recall_and_rank_are_those_of_a_search_by_hand(seed):
    draw = torch.Generator().manual_seed(seed)
    net = TextEmbedder(**SMALL, temperature=0.5)
    vectors = torch.nn.functional.normalize(torch.randn(14, 16, generator=draw), dim=-1)
    queries, passages = torch.randint(6, (20,), generator=draw), torch.randint(4, 14, (20,), generator=draw)
    others = torch.randint(14, (5,), generator=draw)
    metric = Retrieval(net, [4])
    for rows in torch.arange(20).split(7):
        negatives = Texts(vectors[others], others, torch.full_like(others, -1)) if rows[0] == 7 else None
        pairs = Texts(vectors[queries[rows]], queries[rows], passages[rows])
        metric.update(pairs, Texts(vectors[passages[rows]], passages[rows], queries[rows]), negatives)
    figures = metric.compute()
    belongs = {(q, p) for q, p in zip(queries.tolist(), passages.tolist(), strict=True)}
    corpus = {*passages.tolist(), *others.tolist()}
    ranks, losses = [], []
    for query, own in zip(queries.tolist(), passages.tolist(), strict=True):
        rivals = [p for p in corpus if p not in (own, query) and (query, p) not in belongs]
        score = {p: float(vectors[query] @ vectors[p]) for p in [own, *rivals]}
        ranks.append(1 + sum(score[p] >= score[own] for p in rivals))
        losses.append(math.log(sum(math.exp(value / 0.5) for value in score.values())) - score[own] / 0.5)
    assert figures["loss"] == pytest.approx(sum(losses) / 20, abs=1e-5)
    assert figures["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 20)
    for k in (1, 5, 10):
        assert figures[f"recall@{k}"] == pytest.approx(sum(rank <= k for rank in ranks) / 20)
    assert 0 <= figures["recall@1_of_4"] <= 1


@pytest.mark.parametrize("which", ["queries", "passages", "both"])
def test_vectors_that_are_no_numbers_find_nothing(which):
    """Recall and MRR of six pairs, whose own passage is the last of six where a score is nan."""
    metric, ids = Retrieval(TextEmbedder(**SMALL)), torch.arange(6)
    good = torch.ones(6, metric.__dict__["net"].width)
    queries, passages = (good * torch.nan if which in (side, "both") else good for side in ("queries", "passages"))
    metric.update(Texts(queries, ids, ids + 6), Texts(passages, ids + 6, ids), None)
    figures = metric.compute()
    assert (figures["recall@1"], figures["recall@5"]) == (0.0, 0.0)
    assert figures["mrr"] == pytest.approx(1 / 6)
    assert math.isnan(figures["loss"])


def test_vectors_that_are_all_alike_find_nothing():
    ids = torch.arange(8)
    metric = Retrieval(TextEmbedder(**SMALL))
    metric.update(Texts(torch.ones(8, 16), ids, 8 + ids), Texts(torch.ones(8, 16), 8 + ids, ids), None)
    assert metric.compute()["recall@5"] == 0


@pytest.mark.parametrize("sizes", [pytest.param((4, 4), marks=pytest.mark.campaign), (5, 2)])
def test_processes_share_their_negatives_and_the_gradient_is_that_of_one_process(sizes, tmp_path):
    start_processes(run_process, (tmp_path, sizes), nprocs=len(sizes), start_method="fork")
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(sizes))]
    task = build_task(symmetric=True)
    whole = task.loss(draw_batch(task, sum(sizes), 3, texts=9, negatives=True))
    whole.total.backward()
    assert [share[1] for share in shares] == list(sizes)
    assert_close(sum(share[0] for share in shares), whole.total.detach(), atol=1e-5, rtol=1e-5)
    for name, weight in task.named_parameters():
        summed = torch.stack([share[2][name] for share in shares]).sum(0)
        assert_close(summed, weight.grad, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("pool", ["first", "mean", "max", "last"])
@pytest.mark.parametrize("on_the_left", [False, True])
def test_padding_is_in_no_vector(pool, on_the_left):
    states = torch.randn(3, 7, 5)
    lengths = [7, 1, 4]
    width = 9
    padded, valid = 100 * torch.randn(3, width, 5), torch.zeros(3, width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if on_the_left else slice(0, length)
        padded[row, place], valid[row, place] = states[row, :length], True
    for row, length in enumerate(lengths):
        assert_close(pooled(padded, valid, pool)[row], pooled(states[row : row + 1, :length], None, pool)[0])


def test_options_that_fit_nothing_are_refused():
    for options, message in (
        ({"features": 8, "pool": "first", "causal": True}, "pool=first reads a token that sees nothing else"),
        ({"dense_activation": "tanh"}, "need a dense layer"),
        ({"max_tokens": 13}, "from 1 to max_length=12, got 13"),
        ({"temperature": 0.0}, "above 0, got 0.0"),
        ({"matryoshka": [16]}, "sizes from 1 to 15, got 16"),
    ):
        with pytest.raises(UsageError, match=message):
            TextEmbedding(**{**SMALL, **options})
    assert_close(Scale(0.05, learned=True)(torch.ones(1)).detach(), torch.tensor([20.0]))


def name_of(pair):
    """The bare name of the function of a passage."""
    return pair.passage.partition("(")[0].rpartition(".")[2]


def test_a_functions_name_stands_in_no_query_and_no_function_on_both_sides():
    splits = FunctionDocs().pairs()
    assert len(splits["train"]) > 2000
    assert len(splits["val"]) > 300
    names = {
        side: Counter(pair.passage.partition("(")[0].rpartition(".")[2] for pair in splits[side]) for side in splits
    }
    assert not names["train"].keys() & names["val"].keys()
    for column in (0, 1):
        assert not {pair[column] for pair in splits["train"]} & {pair[column] for pair in splits["val"]}
    for pair in splits["val"]:
        assert name_of(pair).lower() not in pair.query.lower().replace(".", " ").replace("(", " ").split(), pair


class Bm25:
    """Okapi BM25 with words in small letters, identifiers split at underscores and capital letters."""

    def __init__(self, documents, k=1.5, b=0.75):
        documents = [self.words(text) for text in documents]
        mean = np.mean([len(words) for words in documents])
        counts = Counter(word for words in documents for word in {*words})
        self.weight = {word: math.log(1 + (len(documents) - n + 0.5) / (n + 0.5)) for word, n in counts.items()}
        self.places, self.size = {}, len(documents)
        for number, words in enumerate(documents):
            for word, n in Counter(words).items():
                score = n * (k + 1) / (n + k * (1 - b + b * len(words) / mean))
                self.places.setdefault(word, []).append((number, score))

    @staticmethod
    def words(text):
        import re

        return re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower().replace("_", " "))

    def rank(self, query, own):
        """The rank of a document, the worst of those with the same score."""
        scores = np.zeros(self.size)
        for word in self.words(query):
            for number, score in self.places.get(word, ()):
                scores[number] += self.weight[word] * score
        return int((scores >= scores[own]).sum())


def bm25_recall():
    """recall@1 of word overlap on the validation pairs of FunctionDocs."""
    pairs = FunctionDocs().pairs()["val"]
    search = Bm25([pair.passage for pair in pairs])
    return float(np.mean([search.rank(pair.query, number) == 1 for number, pair in enumerate(pairs)]))


@pytest.mark.campaign
@pytest.mark.skipif(packaged_recipe("embedding-tiny") is None, reason="the recipe is one of zoo-pretrained")
def test_the_recipe_finds_more_than_word_overlap_does(tmp_path, monkeypatch):
    import zoo
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["fit", "embedding-tiny", "--seed", "1"]) == 0
    model = zoo.load("embedding-tiny")
    pairs = FunctionDocs().pairs()["val"]
    queries, passages = (model.embed([pair[column] for pair in pairs]) for column in (0, 1))
    scores = queries @ passages.T
    recall = float(np.mean((scores >= scores.diagonal()[:, None]).sum(1) == 1))
    assert recall > bm25_recall() + 0.05
