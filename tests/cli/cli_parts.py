"""Entry points made by hand."""

from pathlib import Path

from zoo import registry

TOYS = {
    "norm": ["RMS", "Layer"],
    "backend": ["Fast"],
    "attention": ["Sliding"],
    "task": ["Toy", "Other", "Similar"],
    "data": ["Text"],
}


def part(kind: str, name: str, target: str, distribution: str = "toys", version: str = "1.0") -> registry.Part:
    return registry.Part(kind, name, target, distribution, version)


METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def package(
    site: Path, name: str, points: str, body: str | None = None, version: str = "0.1.0", metadata: str | None = METADATA
) -> Path:
    """What pip would write for a package of one module, and the folder of its metadata."""
    module = name.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(points)
    if metadata:
        (info / "METADATA").write_text(metadata.format(name=name, version=version))
    if body is not None:
        (site / f"{module}.py").write_text(body)
    return info


def norm(name: str, cls: str) -> str:
    """The entry point of a norm."""
    return f"[zoo.norm]\n{cls} = {name.replace('-', '_')}:{cls}\n"


RECIPE = """\
# a toy language model
model:
  class_path: CausalLM
  init_args: {dim: 16, depth: 1, heads: 2, lr: 1e-3}
data:
  class_path: TextFiles
  init_args: {path: text.txt, max_length: 16, batch_size: 4}
trainer: {max_steps: 3, limit_val_batches: 1, accelerator: cpu, enable_progress_bar: false}
"""
