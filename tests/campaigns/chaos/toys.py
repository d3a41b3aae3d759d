"""Four tiny recipes, and what two runs of one of them must have in common to the last bit.

That of a stream needs zoo-scale installed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from zoo.config.passive_settings import PASSIVE_SETTINGS
from zoo.inference.weight_files import read_checkpoint
from zoo.logging.run_record import tensor_bytes

TASKS = ("lm", "translation", "vit", "stream")
MODEL = "dim: 16, depth: 1, heads: 2, dropout: 0.1"
RECIPES = {
    "lm": f"""\
model: {{class_path: CausalLM, init_args: {{{MODEL}}}}}
data: {{class_path: TextFiles, init_args: {{path: text.txt, max_length: 16, batch_size: 4}}}}
""",
    "translation": f"""\
model: {{class_path: Translation, init_args: {{{MODEL}}}}}
data: {{class_path: Phrasebook, init_args: {{size: 600, kinds: [date, unit], vocab_size: 400, max_tokens: 256,
  max_length: 64, eval_limit: 4}}}}
""",
    "vit": f"""\
model: {{class_path: Classification, init_args: {{patch_size: 7, mix: mixup, {MODEL}}}}}
data: {{class_path: Glyphs, init_args: {{size: 400, batch_size: 16, num_workers: WORKERS}}}}
""",
    "stream": f"""\
model: {{class_path: CausalLM, init_args: {{{MODEL}}}}}
data: {{class_path: TextStream, init_args: {{path: texts, tokenizer: bytes, max_length: 16, batch_size: 4,
  num_workers: WORKERS, options: {{separator: "day ", window: 5, shards: 4}}}}}}
""",
}
TRAINER = """\
trainer: {max_steps: STEPS, val_check_interval: 11, check_val_every_n_epoch: null, limit_val_batches: 2,
  log_every_n_steps: 3, accumulate_grad_batches: ACCUMULATE, accelerator: cpu, enable_progress_bar: false}
"""
TEXT = "all work and no play makes a dull toy and a slow day "


def write(home: Path, steps: int = 24, accumulate: int = 2, workers: int = 0) -> None:
    """The recipes as files, ``lm.yaml`` and so on, and texts."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "text.txt").write_text("".join(f"{n} {TEXT}" for n in range(40)))
    (home / "texts").mkdir(exist_ok=True)
    for part in range(6):
        (home / "texts" / f"{part}.txt").write_text("".join(f"{n} {TEXT}" for n in range(part, 40, 6)))
    for name, text in RECIPES.items():
        whole = text + TRAINER.replace("STEPS", str(steps)).replace("ACCUMULATE", str(accumulate))
        (home / f"{name}.yaml").write_text(whole.replace("WORKERS", str(workers)))


def outcome(run: Path) -> dict[str, str]:
    """Digests of all that a finished run left, but for what a clock measured: equal where two runs are equal."""
    result = {}
    for name in ("last", "best"):
        content = read_checkpoint(run / "checkpoints" / f"{name}.ckpt")
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "ranks", "best", "measured", "global_step"):
            result[f"{name}.{part}"] = digest(content[part])
    ledger = json.loads((run / "ledger.json").read_text())
    for name in ("cost", "validation_seconds", "digest"):  # times, and the digest of a record that has them
        ledger.pop(name, None)
    ledger["config"] = {
        key: value for key, value in (ledger.get("config") or {}).items() if not key.startswith(PASSIVE_SETTINGS)
    }
    result |= {f"ledger.{name}": digest(value) for name, value in ledger.items()}
    finished = json.loads((run / "finished.json").read_text())
    result["finished"] = digest({name: value for name, value in finished.items() if name.startswith("val/")})
    result |= {f"scalars.{name}": digest(values) for name, values in scalars(run).items()}
    return result


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run, except speed and memory."""
    return {name: values for name, values in all_scalars(run).items() if not name.startswith("cost/")}


def all_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run, by name: steps and values in the order of its files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def digest(value: Any) -> str:
    """Of nested plain values and tensors."""
    sha = hashlib.sha256()
    _add(sha, value)
    return sha.hexdigest()[:16]


def _add(sha: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        sha.update(f"{value.dtype}{tuple(value.shape)}".encode() + tensor_bytes(value))
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            sha.update(f"{name}:".encode())
            _add(sha, value[name])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(sha, item)
            sha.update(b",")
    else:
        sha.update(repr(value).encode())


def differences(one: dict[str, str], two: dict[str, str]) -> list[str]:
    """The names under which two outcomes differ."""
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
