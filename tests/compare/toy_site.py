"""A folder with a recipe of small real runs, and what the table of its comparison says."""

import json

RECIPE = """\
model:
  class_path: CausalLM
  init_args: {dim: 8, depth: 1, heads: 2, lr: 1e-2}
data:
  class_path: TextFiles
  init_args: {path: text.txt, val_path: val.txt, max_length: 16, batch_size: 4, tokenizer: bytes}
trainer: {max_steps: 60, val_check_interval: 20, check_val_every_n_epoch: null, accelerator: cpu, logger: false,
          enable_progress_bar: false}
"""
OF_CLOCKS = ("speed", "machine")  # flags about what a clock measures


def make_site(folder):
    folder.mkdir()
    (folder / "toy.yaml").write_text(RECIPE)
    for name in ("text", "val"):
        (folder / f"{name}.txt").write_text(f"all {name} and no play makes a dull toy " * 40)
    return folder


def read_table(folder, seeds):
    """What the table of a comparison of norms says but for what a clock measures."""
    content = json.loads((folder / "runs/toy/compare/norm/comparison.json").read_text())
    names = ("variant", "figures", "mean", "sd", "difference", "low", "high", "p", "verdict", "differences", "failures")
    rows = [{name: row[name] for name in names} for row in content["variants"]]
    assert all(len(row["figures"]) == seeds for row in rows)
    return content["outcome"], rows, [flag for flag in content["flags"] if flag["about"] not in OF_CLOCKS]
