"""Models of each kind with each part, exported by torch.export and to ONNX with sizes left open.

``python -m tests.models.exports [--onnx]`` exports every part in every kind of model at one size, runs it at another,
and compares: the largest difference of each, and what torch cannot export.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import time
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from zoo.errors import UsageError
from zoo.inference.rebuild_task import rebuild_task


def part(path: str, **options: Any) -> dict[str, Any]:
    """A part as a configuration names it."""
    return {"class_path": f"zoo.parts.{path}", "init_args": options}


WORDS, LONGEST = 41, 512  # longer than what any part computes at once
TEXT = {"vocab_size": WORDS, "max_length": LONGEST}
PAIR = {"source_vocab_size": WORDS, "target_vocab_size": WORDS, "max_length": LONGEST}
IMAGE = {"num_classes": 5, "image_size": 16, "channels": 3, "patch_size": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    **{name: {"position": part(f"position.{name}")} for name in "NoPosition Sinusoidal Learned RoPE ALiBi T5".split()},
    **{name: {"backend": part(f"backend.{name}")} for name in ("Naive", "Tiled", "Flash")},
    "Additive": {"attention": part("attention.Additive"), "position": part("position.Learned")},
    "Gaussian": {"attention": part("attention.Gaussian")},
    "Disentangled": {"attention": part("disentangled.Disentangled"), "position": part("position.Learned")},
    "Shaw": {"attention": part("shaw.Shaw"), "position": part("position.NoPosition")},
    "TokenQueries": {"attention": part("attention.TokenQueries")},
    "groups": {"attention": part("attention.MultiHead", kv_heads=2)},
    **{name: {"ffn": part(f"ffn.{name}")} for name in "SwiGLU GEGLU ReGLU Bilinear MoE".split()},
    **{name: {"block": part(f"block.{name}")} for name in ("PostNorm", "Sandwich", "Parallel")},
    "RMSNorm": {"norm": part("norm.RMSNorm")},
    "window": {"window": 3, "position": part("position.RoPE")},
}
KINDS = ("language", "padded language", "pair", "image")


class Case(NamedTuple):
    """A model, what it is exported with, which of its sizes stay open, other inputs, and where their result counts."""

    net: nn.Module
    inputs: tuple[Tensor, ...]
    open: tuple[dict[int, Any], ...]
    others: tuple[Tensor, ...]
    counts: Tensor | None = None  # what a model computes for padding is anything

    def gap(self, result: Tensor) -> float:
        """The largest difference from the model's own result."""
        difference = (result - self.net(*self.others)).abs()
        return float((difference if self.counts is None else difference[self.counts]).max())


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(WORDS, (batch, length))


def real(batch: int, length: int) -> Tensor:
    """Where the second half of the first row is padding."""
    valid = torch.ones(batch, length, dtype=torch.bool)
    valid[0, length // 2 :] = False
    return valid


def case(kind: str, change: str) -> Case:
    """A tiny model of a kind with another part. Raises UsageError where they do not go together."""
    torch.manual_seed(0)
    B, T, S = Dim("B"), Dim("T", max=LONGEST), Dim("S", max=LONGEST)
    path, own = {
        "language": ("lm.CausalLM", TEXT), "padded language": ("lm.CausalLM", TEXT),
        "pair": ("translation.Translation", PAIR),
        "image": ("classification.Classification", IMAGE),
    }[kind]  # fmt: skip
    options = {"dim": 16, "depth": 1, "heads": 2, **own, **CHANGES[change]}
    model = {"class_path": f"zoo.tasks.{path}", "init_args": options}
    net = rebuild_task({"model": model}, None).net.eval()  # type: ignore[arg-type]
    if kind == "image":
        return Case(net, (torch.randn(2, 3, 16, 16),), ({0: B},), (torch.randn(5, 3, 16, 16),))
    if kind == "language":
        return Case(net, (tokens(2, 7),), ({0: B, 1: T},), (tokens(3, 300),))
    if kind == "pair":
        return Case(net, (tokens(2, 7), tokens(2, 9), real(2, 7)), ({0: B, 1: S}, {0: B, 1: T}, {0: B, 1: S}),
                    (tokens(3, 300), tokens(3, 4), real(3, 300)))  # fmt: skip
    valid = real(3, 300)
    return Case(net, (tokens(2, 7), real(2, 7)), ({0: B, 1: T}, {0: B, 1: T}), (tokens(3, 300), valid), valid)


@torch.no_grad()
def gap_of_export(one: Case) -> float:
    """The largest difference between a model and its export, at a size that it was not exported with."""
    program = torch.export.export(one.net, one.inputs, dynamic_shapes=one.open)
    return one.gap(program.module()(*one.others))


@torch.no_grad()
def gap_of_onnx(one: Case) -> float:
    """The same of its ONNX file, as onnxruntime computes it."""
    import onnxruntime

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        program = torch.onnx.export(one.net, one.inputs, dynamo=True, dynamic_shapes=one.open, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), one.others, strict=True)}
    return one.gap(torch.from_numpy(session.run(None, inputs)[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnx", action="store_true")
    onnx = parser.parse_args().onnx
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    worst, done, failed, start = 0.0, 0, 0, time.monotonic()
    for change in CHANGES:
        for kind in KINDS:
            try:
                one = case(kind, change)
                one.net(*one.inputs)
            except UsageError:
                continue  # they do not go together
            try:
                gap = (gap_of_onnx if onnx else gap_of_export)(one)
            except Exception as error:
                print(f"{kind}, {change}: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
                failed += 1
                continue
            worst, done = max(worst, gap), done + 1
            print(f"{kind}, {change}: {gap:.1e}", flush=True)
    print(f"{done} exported, largest difference {worst:.1e}; {failed} not; {time.monotonic() - start:.0f} s")
    return int(failed > 0 or worst > 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
