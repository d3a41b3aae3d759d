"""A translation model's training step: 3 + 3 layers of width 256, batches of 64 pairs with the lengths of Multi30k.

Words stand for tokens: the lengths are those of the real sentences, in whatever order or sorted into batches.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training import RATE, Step, our_optimizer, ours
from bench.work import Work, training

DIM, DEPTH, HEADS, VOCAB, ROWS, LONGEST = 256, 3, 4, 8192, 64, 128
DATA = Path(os.environ.get("ZOO_BENCH_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "multi30k"
PAD, BOS, EOS = 0, 1, 2


def shrink() -> None:
    """Sizes for a quick check of the entrants themselves."""
    global DIM, DEPTH, VOCAB, ROWS
    DIM, DEPTH, VOCAB, ROWS = 32, 1, 256, 8


def lengths() -> list[tuple[int, int]]:
    """Words per sentence of each pair of the training set; FileNotFoundError where the corpus is not."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(DATA / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([min(len(line.split()) + 2, LONGEST - 2) for line in file])
    return list(zip(*sides, strict=True))


def batches(order: str, count: int = 8) -> list[dict[str, Tensor]]:
    """``order`` is "random", or "bucketed": sentences of one length together."""
    generator = torch.Generator().manual_seed(1)
    pairs = lengths()
    picked = torch.randperm(len(pairs), generator=generator).tolist()
    if order == "bucketed":
        picked.sort(key=lambda row: (max(pairs[row]), pairs[row]))
        starts = (torch.randperm(len(picked) // ROWS, generator=generator)[:count] * ROWS).tolist()
    else:
        starts = [ROWS * number for number in range(count)]
    share = torch.arange(1, VOCAB - 2).float().reciprocal()
    result = []
    for start in starts:
        rows = [pairs[row] for row in picked[start : start + ROWS]]
        batch: dict[str, Tensor] = {}
        for name, side, first in (("source", 0, 0), ("target", 1, 1)):
            length = torch.tensor([pair[side] for pair in rows])[:, None]
            width = -(-int(length.max()) // 8) * 8 + first
            words = torch.multinomial(share, ROWS * width, replacement=True, generator=generator) + 3
            place = torch.arange(width)
            valid = place < length + first
            batch[name] = words.view(ROWS, width).masked_fill(~valid, PAD)
            batch[f"{name}_valid"] = valid
        batch["target"][:, 0] = BOS
        result.append(batch)
    return result


def work(order: str) -> Work:
    """The work of one step on real tokens; padding does not count."""
    flops, every = 0.0, batches(order)
    for batch in every:
        source, target = (batch[f"{name}_valid"][:, first:].sum(1) for name, first in (("source", 0), ("target", 1)))
        # of the cross-attention, keys and values are computed per source token, the rest per target token
        flops += training(DEPTH * 14 * DIM**2, float(source.sum()), float(DEPTH * (source**2).sum()), DIM)
        pairs = float(DEPTH * (target**2 + source * target).sum())
        flops += training(DEPTH * 14 * DIM**2 + VOCAB * DIM, float(target.sum()), pairs, DIM)
    return Work(flops / len(every))


def mean_loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    targets = batch["target"][:, 1:]
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=PAD, reduction="sum")
    return total / batch["target_valid"][:, 1:].sum()


def zoo(order: str, precision: str = "fp32") -> Step:
    from zoo.parts.position import Sinusoidal
    from zoo.tasks.translation import Translation

    task = Translation(
        VOCAB, VOCAB, LONGEST, 0.0, dim=DIM, depth=DEPTH, heads=HEADS, position=Sinusoidal, tie="output", lr=RATE
    ).train()
    return Step(task.net, ours(task), batches(order), precision, our_optimizer(task))


class Classic(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(
            DIM, HEADS, DEPTH, DEPTH, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
        )  # fmt: skip
        self.source, self.target = nn.Embedding(VOCAB, DIM), nn.Embedding(VOCAB, DIM)
        angle = torch.arange(LONGEST)[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        self.waves: Tensor
        self.register_buffer("waves", torch.stack([angle.sin(), angle.cos()], -1).flatten(-2))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        source, target = batch["source"], batch["target"][:, :-1]
        padding = ~batch["source_valid"]
        states = self.net(
            self.source(source) * DIM**0.5 + self.waves[: source.size(1)],
            self.target(target) * DIM**0.5 + self.waves[: target.size(1)],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.size(1)),
            tgt_is_causal=True, src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return F.linear(states, self.target.weight)


def torch_nn(order: str, precision: str = "fp32") -> Step:
    net = Classic()
    return Step(net, lambda batch: mean_loss(net(batch), batch), batches(order), precision)


def joeynmt(order: str, precision: str = "fp32") -> Step:
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[],
        pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=3, sep_id=None,
    )  # fmt: skip
    # joeynmt lists its special tokens as unk, pad, bos, eos: their numbers only have to differ
    special.unk_id, special.pad_id, special.bos_id, special.eos_id = 0, 1, 2, 3
    words = [f"w{number}" for number in range(VOCAB - 4)]
    sides = [Vocabulary(words, special) for _ in range(2)]
    half = {
        "type": "transformer", "num_layers": DEPTH, "num_heads": HEADS, "hidden_size": DIM, "ff_size": 4 * DIM,
        "dropout": 0.0, "layer_norm": "pre", "activation": "gelu", "embeddings": {"embedding_dim": DIM, "scale": True},
    }  # fmt: skip
    net: Any = build_model({"encoder": half, "decoder": half, "tied_softmax": True}, *sides)
    net.loss_function = ("crossentropy", 0.0)

    def swapped(tokens: Tensor) -> Tensor:
        """Padding and the beginning of a sentence by joeynmt's numbers, which the first words' give way to."""
        return torch.where(tokens == PAD, 1, torch.where(tokens == BOS, 2, tokens.clamp(min=3)))

    def loss(batch: dict[str, Tensor]) -> Tensor:
        source, target = swapped(batch["source"]), swapped(batch["target"])
        valid = batch["target_valid"][:, 1:]
        total, *_ = net(
            return_type="loss", src=source, trg_input=target[:, :-1], trg=target[:, 1:],
            src_mask=batch["source_valid"][:, None], trg_mask=valid[:, None],
            src_length=batch["source_valid"].sum(1),
        )  # fmt: skip
        return total / valid.sum()

    return Step(net, loss, batches(order), precision)


def transformers(order: str, precision: str = "fp32") -> Step:
    """BART, whose norms stand behind the sums: as much arithmetic, another function."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=VOCAB, max_position_embeddings=LONGEST, d_model=DIM, encoder_layers=DEPTH, decoder_layers=DEPTH,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=4 * DIM, scale_embedding=True,
        decoder_ffn_dim=4 * DIM, dropout=0.0, activation_function="gelu", use_cache=False, pad_token_id=PAD,
    )  # fmt: skip
    net = BartForConditionalGeneration(config)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        logits = net(
            input_ids=batch["source"], attention_mask=batch["source_valid"].long(),
            decoder_input_ids=batch["target"][:, :-1],
        ).logits  # fmt: skip
        return mean_loss(logits, batch)

    return Step(net, loss, batches(order), precision)
