"""`zoo import`: convert a published checkpoint into an export of zoo, optionally with other parts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config.option_parser import ParsedOptions
from zoo.errors import UsageError
from zoo.io import atomic_files

if TYPE_CHECKING:
    from zoo.pretrained.importer import Checkpoint

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


def run(options: ParsedOptions) -> int:
    """Import a checkpoint, and print which tensors were kept, converted, new or left out."""
    source, target = (Path(word) for word in options.words)
    if target.is_dir() and any(target.iterdir()) and not options.get("force"):
        raise UsageError(f"{target} is not empty. To write into it: --force")
    if target.resolve() == source.resolve():
        raise UsageError(f"{target} is the folder of the checkpoint itself. Choose another folder.")
    from zoo.cli import doctor, warning_filters

    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.pretrained import importer

    source_checkpoint = importer.checkpoint(source)
    model = _changed(source_checkpoint, options) if options.settings else source_checkpoint.model
    task, tensors, lines = importer.swapped_parts(source_checkpoint, model)
    importer.save(source_checkpoint, target, model, task, tensors, _recipe(source_checkpoint, model, source.name))
    kind = model["class_path"].rpartition(".")[2]
    total = sum(tensor.numel() for tensor in tensors.values())
    print(f"{source_checkpoint.family.name}: {kind} of {total:,} parameters → {target}")
    print(importer.table(lines, source_checkpoint))
    return 0


def _changed(source: Checkpoint, options: ParsedOptions) -> Mapping[str, Any]:
    """The model's configuration after the options of the command line, resolved as `zoo fit` does."""
    from zoo.config import fit_options, run_config
    from zoo.inference.rebuild_task import complete_options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        atomic_files.write_text(path, _recipe(source, source.model, source.folder.name))
        command = fit_options.Command("fit", str(path), options=options.settings)
        return complete_options(run_config.make_plan(command, run_config.read_draft(command)).config["model"])


def _recipe(source: Checkpoint, model: Mapping[str, Any], name: str) -> str:
    import yaml

    kind = model["class_path"].rpartition(".")[2]
    content = {"model": dict(model), "data": DATA[kind], "trainer": TRAINER}
    header = f"# {name}: imported from a checkpoint of the family {source.family.name}\n"
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
