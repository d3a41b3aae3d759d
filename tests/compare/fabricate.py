"""Ledgers of runs that were never made, with the noise that real ones showed: sd 0.03 nats between seeds."""

import functools
import hashlib
import json
import math
from pathlib import Path

import numpy as np

from zoo.compare.run_records import RunRecord

NOISE = 0.03
STEPS, PER_STEP, EVERY = 3000, 2048, 250
TENSORS = ["net.embedding.weight", "net.stack.norm.weight"] + [
    f"net.stack.blocks.{block}.{name}.weight"
    for block in range(4)
    for name in ("attend.part.qkv", "attend.part.out", "attend.norm", "ffn.part.up", "ffn.part.down", "ffn.norm")
]
# what every record has, for those of which a test needs little
WHOLE = {
    "format": 1, "choices": {}, "goals": {"loss": "min"}, "unit": "token", "prediction": "the next token", "data": {},
    "start": {}, "batches": {}, "setting": {}, "cost": {}, "validations": [], "steps": 0, "tokens": 0, "best": {},
    "last": {}, "finished": True, "diverged": False, "outcome": {}, "config": {}, "code": {}, "earlier_code": [],
}  # fmt: skip
KERNELS = {"ALiBi": "SDPA (math)"}


@functools.cache
def digest(*pieces):
    return hashlib.sha256("/".join(map(str, pieces)).encode()).hexdigest()[:16]


def ledger(variant="default", seed=1, loss=1.9, choices=None, diverges=None, **changes):
    """The content of one ledger.json; ``loss`` is where it ends, ``diverges`` the step of its first NaN.

    Dotted changes reach inside: ``**{"cost.parameters": 1e6}``.
    """
    choices = {"position": "RoPE", "norm": "RMSNorm", "lr": 0.003, **(choices or {})}
    steps = diverges or STEPS
    noise = np.random.default_rng([seed, *variant.encode(), int(1e9 * loss)])
    validations = []
    for step in range(EVERY, steps + 1, EVERY):
        value = loss + 5.0 * math.exp(-step / 420) + 0.004 * noise.standard_normal() * (step < steps)
        validations.append({"step": step, "tokens": step * PER_STEP, "loss": value, "bits_per_byte": value / 1.17})
    best = dict.fromkeys(("loss", "bits_per_byte"), math.nan)
    if validations:
        best = {name: min(each[name] for each in validations) for name in best}
    if diverges:
        validations.append({"step": steps, "tokens": steps * PER_STEP, "loss": math.nan, "bits_per_byte": math.nan})
    last = {name: validations[-1][name] for name in best}
    content = {
        "format": 1, "recipe": "lm-tiny", "variant": variant, "seed": seed, "choices": choices,
        "goals": {"loss": "min", "bits_per_byte": "min"}, "unit": "token",
        "prediction": "the next token", "data": {"class": "StdlibDocs", "fingerprint": digest("docs") * 4},
        "start": {name: digest(name, seed) for name in TENSORS},
        "batches": {"digest": digest("batches", seed), "count": steps, "first": [digest(seed, n) for n in range(8)]},
        "setting": {
            "precision": "32-true", "device": "cpu", "machine": "AMD EPYC 7763", "threads": 1, "processes": 1,
            "torch": "2.15.0", "zoo": "0.1.0", "python": "3.11.7", "accumulate": 1, "max_steps": STEPS,
            "optimizer": "AdamW(betas=[0.9, 0.99], weight_decay=0.1)", "schedule": "Cosine(warmup=100)",
            "batch": {"batch_size": 12, "max_length": 64}, "kernel": KERNELS.get(choices["position"], "SDPA (flash)"),
        },
        "cost": {
            "parameters": 917_632, "flops_per_token": 1.84e6, "spread": 0.03,
            "tokens_per_s": 9500 * (1 + 0.02 * noise.standard_normal()),
            "peak_memory_bytes": 612_000_000, "seconds": 182.0 + seed,
        },
        "validations": validations, "steps": steps, "tokens": steps * PER_STEP, "best": best, "last": last,
        "finished": diverges is None, "diverged": False, "earlier_code": [], "resumed": [],
        "outcome": {"state": "finished" if diverges is None else "running", "skipped": 0},
        "code": {"zoo": {"version": "0.1.0", "source": "c0de" * 4}},
        "config": {"trainer.gradient_clip_val": 1.0, "trainer.val_check_interval": EVERY, "on_nonfinite": "stop"},
    }  # fmt: skip
    for name, value in changes.items():
        *above, key = name.split(".")
        place = content
        for piece in above:
            place = place[piece]
        place[key] = value
    return content


def run(*args, **options):
    """The same as a RunRecord."""
    content = ledger(*args, **options)
    content.pop("format")
    return RunRecord(Path("runs") / "ledger.json", **content)


def study(effects, seeds=5, noise=NOISE, start=0, **options):
    """Runs of several variants, name → true loss; variants are ``position=...``. Seeds share half of their variance."""
    return [run(**options, **each) for each in random_runs(effects, seeds, noise, start)]


def random_runs(effects, seeds=5, noise=NOISE, start=0):
    """Variant, seed, loss and choices of every run of a study."""
    rng = np.random.default_rng(start)
    shared = rng.standard_normal(seeds)
    for variant, loss in effects.items():
        for seed, value in enumerate(noise * (shared + rng.standard_normal(seeds)) / math.sqrt(2), 1):
            key, _, choice = variant.partition("=")
            yield {"variant": variant, "seed": seed, "loss": loss + value, "choices": {key: choice} if choice else None}


def lay(content, root):
    """Write a ledger where a run would; the file."""
    path = Path(root) / content["recipe"] / content["variant"] / f"s{content['seed']}" / "ledger.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
