"""
Let a program improve a recipe
==============================

A loop proposes a change, compares it with what it has kept so far, and keeps it only on evidence: ``zoo compare``
answers with an exit code, and ``--series`` bounds the probability that noise is kept in any of all the tries to 5 %.
Kept changes are compared once more, on seeds that no choice has seen. ``MINUTES=60`` makes it an hour.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

ANSWERS = {10: "keep", 11: "discard", 12: "discard", 13: "undecided", 14: "not comparable"}
PROPOSALS = {
    "model.lr": ["1e-3", "3e-3", "1e-2", "2e-2"],
    "model.optimizer": ["AdamW", "Muon"],
    "model.norm": ["rmsnorm", "layernorm"],
    "model.ffn": ["swiglu", "mlp"],
    "model.position": ["rope", "alibi", "learned"],
}
START = {"model.lr": "3e-3", "model.optimizer": "AdamW", "model.norm": "rmsnorm", "model.ffn": "swiglu",
         "model.position": "rope"}  # fmt: skip
SMALL = ["model.dim=32", "model.depth=1", "trainer.max_steps=30", "trainer.val_check_interval=30",
         "trainer.limit_val_batches=10", "model.schedule.init_args.warmup=5"]  # fmt: skip
SEEDS, UNTOUCHED = "1,2,3,4,5,6", "101,102,103,104,105,106"
end = time.time() + 60 * float(os.environ.get("MINUTES", "1"))
runs = os.environ.get("RUNS") or tempfile.mkdtemp()


def compare(kept, option, value, seeds, *more):
    """The answer to a change of one option, and the sentences of the comparison."""
    command = ["zoo", "compare", "lm-tiny", "--vary", f"{option}={kept[option]},{value}", f"--seeds={seeds}"]
    command += [f"--baseline={option}={kept[option]}"]  # not the recipe, whose own value may be the one proposed
    command += [f"--{name}={kept[name]}" for name in kept if name != option]
    command += [f"--{setting}" for setting in SMALL]
    command += [f"--runs={runs}/{seeds[:3]}"]
    result = subprocess.run([*command, "--json", "--exit-code", *more], capture_output=True, text=True)
    if result.returncode not in ANSWERS:
        sys.exit(result.stderr)
    return ANSWERS[result.returncode], " ".join(json.loads(result.stdout)["answer"])


kept, changes, tried, chance = dict(START), [], set(), random.Random(1)
while time.time() < end:
    fresh = [(option, value) for option, values in PROPOSALS.items() for value in values
             if value != kept[option] and (option, value, *kept.values()) not in tried]  # fmt: skip
    if not fresh:
        break
    option, value = chance.choice(fresh)
    tried.add((option, value, *kept.values()))
    answer, sentences = compare(kept, option, value, SEEDS, f"--series={runs}/tries.json", "--tries=20")
    print(f"{answer}: {option} {kept[option]} -> {value}. {sentences}", flush=True)
    if answer == "keep":
        changes.append((dict(kept), option, value))
        kept[option] = value

for before, option, value in changes:
    print("on untouched seeds:", *compare(before, option, value, UNTOUCHED))
