"""A language model's training step: 6 layers of width 384, 256 tokens, batches of 8, GPT-2-like or LLaMA-like."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training import RATE, Step, our_optimizer, ours
from bench.work import Work, training

DIM, DEPTH, HEADS, LENGTH, ROWS = 384, 6, 6, 256, 8
GATED = 1024  # width of a LLaMA-like feed-forward: two thirds of 4 * DIM


def shrink() -> None:
    """Sizes for a quick check of the entrants themselves."""
    global DIM, DEPTH, HEADS, LENGTH, ROWS, GATED
    DIM, DEPTH, HEADS, LENGTH, ROWS, GATED = 64, 2, 2, 32, 8, 192


def batches(vocab: int, count: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets, skewed as words are: there is something to learn in twenty steps."""
    generator = torch.Generator().manual_seed(1)
    share = torch.arange(1, vocab + 1).float().reciprocal()
    samples = torch.multinomial(share, count * ROWS * (LENGTH + 1), replacement=True, generator=generator)
    tokens = samples.view(count, ROWS, LENGTH + 1)
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in tokens]


def weights(style: str, vocab: int) -> int:
    """Numbers in the matrices that each token is multiplied with."""
    feed = 8 * DIM * DIM if style == "gpt2" else 3 * DIM * GATED
    return DEPTH * (4 * DIM * DIM + feed) + vocab * DIM


def work(style: str, vocab: int) -> Work:
    """Of one step."""
    return Work(training(weights(style, vocab), ROWS * LENGTH, DEPTH * ROWS * LENGTH**2, DIM))


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def zoo(style: str, vocab: int, precision: str = "fp32", compiled: bool = False, **model: Any) -> Step:
    from zoo.parts.attention import MultiHead
    from zoo.parts.ffn import MLP, SwiGLU
    from zoo.parts.norm import LayerNorm, RMSNorm
    from zoo.parts.position import Learned, RoPE
    from zoo.tasks.lm import CausalLM

    parts: dict[str, Any] = {"position": Learned, "norm": LayerNorm, "ffn": MLP}
    if style == "llama":
        parts = {
            "position": RoPE, "norm": RMSNorm, "ffn": lambda dim, hidden: SwiGLU(dim, hidden, multiple_of=64),
            "attention": lambda dim, heads, backend, dropout: MultiHead(dim, heads, backend, dropout, bias=False),
        }  # fmt: skip
    sizes: dict[str, int] = {"dim": DIM, "depth": DEPTH, "heads": HEADS}
    task = CausalLM(vocab, LENGTH, lr=RATE, tie=style == "gpt2", **{**sizes, **parts, **model})
    if compiled:
        from zoo.training.compilation import compile_loss

        compile_loss(task)
    data = [{"inputs": inputs, "targets": targets} for inputs, targets in batches(vocab)]
    return Step(task.net, ours(task), data, precision, our_optimizer(task))


def transformers(style: str, vocab: int, precision: str = "fp32", compiled: bool = False) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    net: Any
    if style == "gpt2":
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        net = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocab,
                n_positions=LENGTH,
                n_embd=DIM,
                n_layer=DEPTH,
                n_head=HEADS,
                use_cache=False,
                activation_function="gelu",
                **rates,
            )
        )
    else:
        net = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab, hidden_size=DIM, intermediate_size=GATED, num_hidden_layers=DEPTH, use_cache=False,
                num_attention_heads=HEADS, max_position_embeddings=LENGTH, tie_word_embeddings=False,
            )
        )  # fmt: skip
    run = torch.compile(net) if compiled else net
    return Step(net, lambda batch: mean_loss(run(input_ids=batch[0]).logits, batch[1]), batches(vocab), precision)


def litgpt(style: str, vocab: int, precision: str = "fp32", compiled: bool = False) -> Step:
    from litgpt.model import GPT, Config

    common: dict[str, Any] = {
        "block_size": LENGTH, "vocab_size": vocab, "padded_vocab_size": vocab, "n_layer": DEPTH, "n_head": HEADS,
        "n_embd": DIM, "parallel_residual": False,
    }  # fmt: skip
    if style == "gpt2":  # LitGPT has no learned positions: none are turned here, and a table is added in front
        config = Config(**common, bias=True, lm_head_bias=False, rotary_percentage=0.0, intermediate_size=4 * DIM)
    else:
        config = Config(
            **common, bias=False, rotary_percentage=1.0, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP",
            intermediate_size=GATED,
        )  # fmt: skip
    net = GPT(config)
    if style == "gpt2":
        net.lm_head.weight = net.transformer.wte.weight
        net.transformer.wte = WithPositions(net.transformer.wte)
    run = torch.compile(net) if compiled else net
    return Step(net, lambda batch: mean_loss(run(batch[0]), batch[1]), batches(vocab), precision)


class WithPositions(nn.Module):
    """An embedding with a learned vector per position."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.table = tokens, nn.Embedding(LENGTH, tokens.embedding_dim)

    @property
    def weight(self) -> Tensor:
        return self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.table.weight[: tokens.size(1)]


def x_transformers(style: str, vocab: int, precision: str = "fp32", compiled: bool = False) -> Step:
    from x_transformers import Decoder, TransformerWrapper

    common: dict[str, Any] = {
        "dim": DIM, "depth": DEPTH, "heads": HEADS, "attn_dim_head": DIM // HEADS, "attn_flash": True,
        "norm_add_unit_offset": False,
    }  # fmt: skip
    if style == "gpt2":
        layers = Decoder(**common)
        net = TransformerWrapper(
            num_tokens=vocab, max_seq_len=LENGTH, attn_layers=layers, tie_embedding=True, tie_embedding_scale=1.0
        )
        net.pos_emb.scale = 1.0
        with_biases(net)
    else:
        layers = Decoder(
            **common, rotary_pos_emb=True, rotary_emb_dim=DIM // HEADS, use_rmsnorm=True, ff_glu=True, ff_swish=True,
            ff_no_bias=True, ff_mult=GATED / DIM,
        )  # fmt: skip
        net = TransformerWrapper(num_tokens=vocab, max_seq_len=LENGTH, attn_layers=layers, use_abs_pos_emb=False)
    run = torch.compile(net) if compiled else net
    return Step(net, lambda batch: mean_loss(run(batch[0]), batch[1]), batches(vocab), precision)


def with_biases(net: nn.Module) -> None:
    """Give an x-transformers model torch's LayerNorm: its own has no bias, from which twenty steps learn much."""
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "LayerNorm" and hasattr(child, "gamma"):
                setattr(parent, name, nn.LayerNorm(child.gamma.numel()))


class Encoder(nn.Module):
    """GPT-2 from torch's own TransformerEncoder and a causal mask."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embedding, self.table = nn.Embedding(vocab, DIM), nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.table.weight
        return F.linear(self.layers(x, mask=self.mask, is_causal=True), self.embedding.weight)


def torch_nn(style: str, vocab: int, precision: str = "fp32", compiled: bool = False) -> Step:
    net = Encoder(vocab)
    run = torch.compile(net) if compiled else net
    return Step(net, lambda batch: mean_loss(run(batch[0]), batch[1]), batches(vocab), precision)
