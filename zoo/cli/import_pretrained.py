"""`zoo import`: a published checkpoint becomes an export of zoo, perhaps with another part."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import UsageError
from zoo.io import atomic_files

if TYPE_CHECKING:
    from zoo.pretrained.importer import Checkpoint

USAGE = """\
usage: zoo import DIR OUT [--model.PART NAME ...] [--force]
Read a published checkpoint, DIR with config.json and safetensors, and save it into OUT, which every command takes as
RUN. OUT gets recipe.yaml too, to train it further. No network is used, no code is read from DIR, and every tensor is
accounted for: an unknown key, a missing one or another shape is an error. Families: docs/import.md.
  --model.PART NAME           swap a part; says which tensors are kept, converted, newly initialised and left out
  --force                     write into OUT although it is not empty
  --debug                     tracebacks"""
DATA = {
    "CausalLM": {"class_path": "TextFiles", "init_args": {"path": "corpus", "batch_size": 8}},
    "MaskedLM": {
        "class_path": "MaskedText",
        "init_args": {"text": {"class_path": "TextFiles", "init_args": {"path": "corpus", "batch_size": 8}}},
    },
    "SequenceClassification": {"class_path": "LabelledFiles", "init_args": {"path": "texts.tsv"}},
    "TokenClassification": {"class_path": "PythonRoles"},
    "Translation": {"class_path": "ParallelFiles", "init_args": {"path": "corpus"}},
    "Classification": {"class_path": "ImageFolder", "init_args": {"root": "images", "batch_size": 32}},
}
TRAINER = {"max_steps": 1000, "val_check_interval": 100, "check_val_every_n_epoch": None, "gradient_clip_val": 1.0}


def run(argv: list[str]) -> int:
    """Import, and print what became of the tensors."""
    source, target, force, changes = _read(argv)
    if target.is_dir() and any(target.iterdir()) and not force:
        raise UsageError(f"{target} is not empty. Import into it nevertheless: --force")
    if target.resolve() == source.resolve():
        raise UsageError(f"{target} is where the checkpoint lies. Choose another folder.")
    from zoo.cli import doctor, warning_filters

    doctor.check_torch()
    warning_filters.filter_warnings("--debug" in argv)
    from zoo.pretrained import importer

    source_checkpoint = importer.checkpoint(source)
    model = _changed(source_checkpoint, changes) if changes else source_checkpoint.model
    task, tensors, lines = importer.swapped_parts(source_checkpoint, model)
    importer.save(source_checkpoint, target, model, task, tensors, _recipe(source_checkpoint, model, source.name))
    kind = model["class_path"].rpartition(".")[2]
    total = sum(tensor.numel() for tensor in tensors.values())
    print(f"{source_checkpoint.family.name}: {kind} of {total:,} parameters → {target}")
    print(importer.table(lines, source_checkpoint))
    return 0


def _read(argv: list[str]) -> tuple[Path, Path, bool, list[str]]:
    """Two folders, whether to force, and the options that change the model."""
    words: list[str] = []
    changes: list[str] = []
    rest, force = list(argv), False
    while rest:
        word = rest.pop(0)
        if word.startswith("--model."):
            changes.append(word)
            if "=" not in word and rest:
                changes.append(rest.pop(0))
        elif word == "--force":
            force = True
        elif word == "--debug":
            continue
        elif word.startswith("-"):
            raise UsageError(f"zoo import has no option {word!r}: --model.PART NAME, or --force. See: zoo import -h")
        else:
            words.append(word)
    if len(words) != 2:
        raise UsageError("zoo import needs two folders: zoo import CHECKPOINT OUT")
    return Path(words[0]).expanduser(), Path(words[1]).expanduser(), force, changes


def _changed(source: Checkpoint, changes: list[str]) -> Mapping[str, Any]:
    """The model's configuration after the options of the command line, resolved as `zoo fit` does."""
    from zoo.config import fit_options, run_config
    from zoo.inference.rebuild_task import complete_options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        atomic_files.write_text(path, _recipe(source, source.model, source.folder.name))
        parsed = fit_options.parse("fit", [str(path), *changes])
        return complete_options(run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"])


def _recipe(source: Checkpoint, model: Mapping[str, Any], name: str) -> str:
    import yaml

    kind = model["class_path"].rpartition(".")[2]
    content = {"model": dict(model), "data": DATA[kind], "trainer": TRAINER}
    header = f"# {name}: imported from a checkpoint of the family {source.family.name}\n"
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
