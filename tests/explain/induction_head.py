"""A model whose weights are set by hand: an exact induction head."""

import torch

from zoo.parts.ffn import MLP
from zoo.parts.norm import RMSNorm
from zoo.parts.position import Learned
from zoo.tasks.lm import CausalLM

TOKENS, PLACES = 6, 16


def one_hot_model(depth=2):
    """A model of one head whose first layer copies the token before to a slot of its own, and whose second one looks
    for its own token in that slot, and writes the token there to a slot that the output reads: an induction head.

    The stream: the token, the token before, the answer (6 numbers each), the place (16).
    """
    dim = 3 * TOKENS + PLACES
    task = CausalLM(
        vocab_size=TOKENS,
        max_length=PLACES,
        dim=dim,
        depth=depth,
        heads=1,
        ffn=MLP,
        norm=RMSNorm,
        position=Learned,
        tie=False,
    )
    token, before, answer = (slice(start, start + TOKENS) for start in range(0, 3 * TOKENS, TOKENS))
    place, net = slice(3 * TOKENS, dim), task.net
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "norm" not in name:
                p.zero_()
        net.embedding.weight[:, token] = torch.eye(TOKENS)
        net.stack.position.table.weight[:PLACES, place] = torch.eye(PLACES)
        first, *others = (block.attend.part for block in net.stack.blocks)
        sharp, eye = 30.0, torch.eye(TOKENS)
        first.qkv.weight[place, place] = sharp * torch.eye(PLACES).roll(-1, 0)  # the query at t is the key at t - 1
        first.qkv.weight[dim : 2 * dim][place, place] = sharp * torch.eye(PLACES)
        first.qkv.weight[2 * dim :][token, token] = eye
        first.out.weight[before, token] = eye
        for second in others:
            second.qkv.weight[token, token] = sharp * eye
            second.qkv.weight[dim : 2 * dim][token, before] = sharp * eye
            second.qkv.weight[dim : 2 * dim][token, place.start] = -sharp  # nothing stands before the first token
            second.qkv.weight[2 * dim :][token, token] = eye
            second.out.weight[answer, token] = eye
        net.head.weight[:, answer] = eye
    return task.eval()
