"""The workloads: who enters each, and how much work a step is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.arena import Entrant
from bench.work import Work

LANGUAGE, PAIRS, IMAGES, WRITING, INDIRECTION = (
    f"bench.workloads.{name}:" for name in ("language", "translation", "images", "writing", "indirection")
)


@dataclass(frozen=True)
class Workload:
    """A contest; ``agree`` is how far losses may lie apart, as a share, None where a step has no loss."""

    name: str
    what: str
    entrants: tuple[Entrant, ...]
    goal: float | None = None  # ours over the best peer
    agree: float | None = 0.03
    bf16: bool = False
    work: Callable[[], Work] | None = None


def _contest(home: str, ours: Mapping[str, Mapping[str, Any]], peers: Mapping[str, str], **options: Any):
    """Our entrants, each with what is special about it, and the peers, all with the same options."""
    entrants = []
    for name, special in ours.items():
        own_options = dict(special)
        keep = own_options.pop("keep", True)
        entrants.append(Entrant(name, f"{home}zoo", {**options, **own_options}, ours=True, keep=keep))
    entrants += [Entrant(name, f"{home}{function}", options) for name, function in peers.items()]
    return tuple(entrants)


OURS: dict[str, dict[str, Any]] = {"zoo": {}, "zoo, memory given back": {"keep": False}}
GPT2 = {"transformers": "transformers", "litgpt": "litgpt", "x-transformers": "x_transformers", "torch.nn": "torch_nn"}
LLAMA = {name: function for name, function in GPT2.items() if name != "torch.nn"}


def _work(name: str, **options: Any) -> Callable[[], Work]:
    """The work of a step, computed by the workload's module when needed: it may read a corpus."""
    return lambda: importlib.import_module(f"bench.workloads.{name}").work(**options)


def _all() -> list[Workload]:
    result = []
    goals = {"gpt2": (1.2, 1.5), "llama": (1.10, 1.25)}
    for style, peers in (("gpt2", GPT2), ("llama", LLAMA)):
        for precision, goal in zip(("fp32", "bf16"), goals[style], strict=True):
            contest = _contest(LANGUAGE, OURS, peers, style=style, vocab=8192, precision=precision)
            what = f"{style}-like training step, vocabulary 8,192, {precision}"
            work = _work("language", style=style, vocab=8192)
            result.append(Workload(f"{style}-{precision}", what, contest, goal, bf16=precision == "bf16", work=work))
    wide = _contest(LANGUAGE, OURS, GPT2, style="gpt2", vocab=50257, precision="fp32")
    work = _work("language", style="gpt2", vocab=50257)
    result.append(Workload("gpt2-50k", "gpt2-like training step, vocabulary 50,257, fp32", wide, 1.0, work=work))
    result += _compiled()
    for precision, goal in (("fp32", 1.05), ("bf16", 1.05)):
        contest = _contest(IMAGES, OURS, {"timm": "timm", "transformers": "transformers"}, precision=precision)
        result.append(
            Workload(f"vit-{precision}", f"ViT-Tiny training step, 32×32 images, {precision}", contest, goal,
                     bf16=precision == "bf16", work=_work("images"))
        )  # fmt: skip
    rivals = {"torch.nn": "torch_nn", "joeynmt": "joeynmt", "transformers": "transformers"}
    for order, aims in (("random", (2.2, 1.5)), ("bucketed", (1.2, None))):
        for precision, aim in zip(("fp32", "bf16"), aims, strict=True):
            contest = _contest(PAIRS, OURS, rivals, order=order, precision=precision)
            what = f"translation training step, {order} batches of Multi30k lengths, {precision}"
            name, work = f"translation-{order}-{precision}", _work("translation", order=order)
            result.append(Workload(name, what, contest, aim, bf16=precision == "bf16", work=work))
    for rows, least in ((1, 1.5), (8, 1.6)):
        contest = _contest(WRITING, {"zoo": {}}, {"transformers": "transformers", "litgpt": "litgpt"}, rows=rows)
        what = f"generation with a cache, prompt 32, 128 new tokens, batch {rows}, fp32"
        result.append(Workload(f"generation-{rows}", what, contest, least, agree=None, work=_work("writing")))
        ours = {"zoo, int8": {"int8": True}, "zoo": {}}
        contest = _contest(WRITING, ours, {"transformers": "transformers", "litgpt": "litgpt"}, rows=rows)
        result.append(
            Workload(f"generation-int8-{rows}", f"{what}, and int8", contest, 2.0, agree=None, work=_work("writing"))
        )
        ours = {"zoo, bf16": {"precision": "bf16"}, "zoo": {}}
        contest = _contest(WRITING, ours, {"transformers": "transformers", "litgpt": "litgpt"}, rows=rows)
        what = what.replace(", fp32", ", ours also in bf16, peers in fp32")
        result.append(Workload(f"generation-bf16-{rows}", what, contest, 2.0, agree=None, work=_work("writing")))
        peers = {"transformers": "transformers", "litgpt": "litgpt"}
        contest = _contest(WRITING, {"zoo": {}}, peers, rows=rows, precision="bf16")
        what = what.replace("ours also in bf16, peers in fp32", "all in bf16")
        work = _work("writing", precision="bf16")
        result.append(Workload(f"generation-all-bf16-{rows}", what, contest, agree=None, work=work))
    ours = Entrant("part of a plugin", f"{INDIRECTION}plugged", ours=True)
    contest = (ours, Entrant("the same code inlined", f"{INDIRECTION}inlined"))
    result.append(Workload("plugin", "a training step with a norm from a plugin package", contest, 0.98))
    return result


def _compiled() -> list[Workload]:
    """Ours compiled against the peers as they are, and against the peers compiled as well."""
    result = []
    for precision, over, beside in (("fp32", 1.25, 1.05), ("bf16", 1.7, None)):
        for rivals, goal in (("eager", over), ("compiled", beside)):
            options: dict[str, Any] = {"style": "gpt2", "vocab": 8192, "precision": precision}
            ours = _contest(LANGUAGE, {"zoo, compiled": {"compiled": True}}, {}, **options)
            peers = _contest(LANGUAGE, {}, GPT2, **options, compiled=rivals == "compiled")
            what = f"gpt2-like training step, {precision}, ours compiled, peers {rivals}"
            name, work = f"gpt2-{precision}-compiled-{rivals}", _work("language", style="gpt2", vocab=8192)
            result.append(Workload(name, what, (*ours, *peers), goal, bf16=precision == "bf16", work=work))
    return result


WORKLOADS = {workload.name: workload for workload in _all()}
