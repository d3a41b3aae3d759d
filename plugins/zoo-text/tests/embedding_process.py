"""A small task of embeddings, batches for it, and one of several processes that compute its loss together."""

import torch
from zoo_text.tasks.embedding import TextEmbedding

SMALL = {"vocab_size": 40, "max_length": 12, "dim": 16, "depth": 1, "heads": 2}


def build_task(seed=0, **options):
    torch.manual_seed(seed)
    return TextEmbedding(**{**SMALL, **options}).double().eval()


def draw_batch(task, rows, seed, texts=5, negatives=False):
    """Pairs of few texts, so that queries and passages repeat, each text with the tokens of its number."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(40, (texts, 9), generator=generator)
    lengths = torch.randint(2, 10, (texts, 1), generator=generator)
    batch = {}
    for name, ids in (("queries", "query_ids"), ("passages", "passage_ids"), ("negatives", "negative_ids")):
        if name == "negatives" and not negatives:
            continue
        numbers = torch.randint(texts, (rows,), generator=generator)
        batch |= {ids: numbers, name: tokens[numbers], f"{name}_valid": torch.arange(9) < lengths[numbers]}
    return batch


def run_process(rank, folder, sizes):
    """The loss and the gradient of one process's share of the pairs, written to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=len(sizes))
    task = build_task(symmetric=True)
    batch = draw_batch(task, sum(sizes), 3, texts=9, negatives=True)
    begin = sum(sizes[:rank])
    loss = task.loss({name: column[begin : begin + sizes[rank]] for name, column in batch.items()})
    loss.total.backward()
    gradient = {name: weight.grad for name, weight in task.named_parameters()}
    torch.save([loss.total.detach(), int(loss.size), gradient], folder / f"{rank}.pt")
