"""Generation with a cache: a GPT-2-like model writes 128 tokens after a prompt of 32, greedily."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.training import same_start
from bench.work import Work
from bench.workloads import language

PROMPT, NEW = 32, 128
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shrink() -> None:
    """Sizes for a quick check of the entrants themselves."""
    global NEW
    language.shrink()
    NEW = 8
    language.LENGTH = PROMPT + NEW


def work(precision: str = "fp32") -> Work:
    """Of one text: each new token has every matrix read once."""
    return Work(bytes=float(TYPES[precision].itemsize) * NEW * language.weights("gpt2", 8192))


def prompt(rows: int) -> torch.Tensor:
    return torch.randint(8192, (rows, PROMPT), generator=torch.Generator().manual_seed(2))


def zoo(rows: int, int8: bool = False, precision: str = "fp32") -> Callable[[int], None]:
    from zoo.models import LanguageModel
    from zoo.models.generation import GenerationConfig, generate
    from zoo.parts.few_row_linear import Linear
    from zoo.parts.int8 import quantize
    from zoo.parts.position import Learned

    net = LanguageModel(
        8192, language.LENGTH, dim=language.DIM, depth=language.DEPTH, heads=language.HEADS, position=Learned
    ).eval()
    same_start(net)
    net.to(TYPES[precision])
    tokens = prompt(rows)
    linears = [part.weight for part in net.modules() if isinstance(part, Linear)]
    packed = quantize([*linears, net.output]) if int8 else None

    @torch.no_grad()
    def step(number: int, _packed: object = packed) -> None:
        hypotheses = generate(net.begin(PROMPT + NEW), tokens, None, GenerationConfig(max_length=NEW))
        assert all(len(best.tokens) == NEW for best, *_ in hypotheses)

    return step


def transformers(rows: int, precision: str = "fp32") -> Callable[[int], None]:
    net = language.transformers("gpt2", 8192).net.eval().to(TYPES[precision])
    net.config.use_cache = net.generation_config.use_cache = True
    tokens = prompt(rows)

    @torch.no_grad()
    def step(number: int) -> None:
        tokens_out = net.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        assert tokens_out.shape == (rows, PROMPT + NEW)

    return step


def litgpt(rows: int, precision: str = "fp32") -> Callable[[int], None]:
    net = language.litgpt("gpt2", 8192).net.eval().to(TYPES[precision])
    net.transformer.wte = net.transformer.wte.tokens  # its table would stand at position 0 in every step
    net.set_kv_cache(batch_size=rows, max_seq_length=PROMPT + NEW, dtype=TYPES[precision])
    tokens = prompt(rows)

    @torch.no_grad()
    def step(number: int) -> None:
        token, place = tokens, torch.arange(PROMPT)
        for _ in range(NEW):
            token = net(token, place)[:, -1:].argmax(-1)
            place = place[-1:] + 1

    return step
