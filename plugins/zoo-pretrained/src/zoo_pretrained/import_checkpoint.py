"""`zoo import`: convert a published checkpoint into an export of zoo, optionally with other parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.command_line import ParsedOptions
from zoo.errors import UsageError
from zoo.inference import hub
from zoo.io import atomic_files, plain_yaml

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.inference.weight_files import LazyTensors
    from zoo_pretrained.importer import Checkpoint

ROW, RATE = 512, 5e-5  # tokens of a row at most, and a learning rate, to train on with
TRAINER = {"max_steps": 1000, "val_check_interval": 100, "check_val_every_n_epoch": None, "gradient_clip_val": 1.0}


def run(options: ParsedOptions) -> int:
    """Import a checkpoint, and print which tensors were kept, converted, new or left out."""
    source, target = hub.local_folder(options.words[0]), Path(options.words[1])
    if target.is_dir() and any(target.iterdir()) and not options.get("force"):
        raise UsageError(f"{target} is not empty. To write into it: --force")
    if target.resolve() == source.resolve():
        raise UsageError(f"{target} is the folder of the checkpoint itself. Choose another folder.")
    from zoo.cli import doctor, warning_filters

    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    import torch

    from zoo_pretrained import importer

    source_checkpoint = importer.checkpoint(source)
    model = _changed(source_checkpoint, options) if options.settings else source_checkpoint.model
    task, tensors, lines = importer.swapped_parts(source_checkpoint, model)
    recipe = _recipe(source_checkpoint, model, target)
    if dtype := options.values.get("dtype"):
        tensors = tensors.rounded(torch.bfloat16 if dtype == "bf16" else torch.float32)
    with _progress(tensors) as drawn_tensors:
        notes = importer.save(source_checkpoint, target, model, task, drawn_tensors, recipe)
    kind = model["class_path"].rpartition(".")[2]
    total = sum(form.numel() for form in tensors.forms.values())
    print(f"{source_checkpoint.family.name}: {kind} of {total:,} parameters → {target}")
    print("\n".join([importer.table(lines, source_checkpoint), *notes]))
    return 0


@contextmanager
def _progress(tensors: LazyTensors) -> Iterator[LazyTensors]:
    """The same tensors; their bytes fill a bar as they are read, where standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from zoo.inference.weight_files import LazyTensors

    screen = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=sum(form.nbytes for form in tensors.forms.values()))

        def read(name: str) -> Tensor:
            tensor = tensors[name]
            bar.advance(task, tensor.nbytes)
            return tensor

        yield LazyTensors(tensors.forms, read)


def _changed(source: Checkpoint, options: ParsedOptions) -> Mapping[str, Any]:
    """The model's configuration after the options of the command line, resolved as `zoo fit` does."""
    from zoo.config import fit_options, run_config
    from zoo.inference.rebuild_task import complete_options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        atomic_files.write_text(path, _recipe(source, source.model, None))
        command = fit_options.parse("fit", [str(path)])
        command.settings += options.settings
        return complete_options(run_config.make_plan(command, run_config.read_draft(command)).config["model"])


def _recipe(source: Checkpoint, model: Mapping[str, Any], target: Path | None) -> str:
    """The text of a recipe that trains the model on: from the weights and with the tokenizer of the target folder."""

    kind, options = model["class_path"].rpartition(".")[2], dict(model["init_args"])
    content: dict[str, Any] = {"model": {**model, "init_args": options}}
    if target is not None:
        if options["lr"] == source.model["init_args"]["lr"]:
            options["lr"] = RATE
        options.pop("num_classes", None)  # those of the new data
        content["tune"] = {"start": str(target.resolve())}
    content |= {"data": _data(kind, options, str(target and target.resolve())), "trainer": TRAINER}
    origin = hub.describe_origin(source.folder)
    name = f"{origin['repository']} at {origin['revision']}" if origin else source.folder.name
    header = f"# {name}: imported from a checkpoint of the family {source.family.name}\n"
    return header + plain_yaml.dump(content)


def _data(kind: str, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The data module of a recipe for a task: files of the user's own, read with the tokenizer of a folder."""
    if kind == "Classification":
        return {"class_path": "ImageFolder", "init_args": {"path": "images", "batch_size": 32}}
    if kind == "Transcription":
        sizes = {"sample_rate": options["sample_rate"], "seconds": options["max_samples"] / options["sample_rate"]}
        texts = {"max_length": options["max_length"], "tokenizer": folder}
        return {"class_path": "SoundFiles", "init_args": {"path": "sounds", **sizes, **texts}}
    shared = {"tokenizer": folder, "max_length": min(options["max_length"], ROW)}
    text = {"class_path": "TextFiles", "init_args": {"path": "corpus", "batch_size": 8, **shared}}
    if kind == "MaskedLM":
        return {"class_path": "MaskedText", "init_args": {"text": text}}
    if kind == "Translation":
        pairs = {"path": "corpus", "max_length": shared["max_length"], "options": {"tokenizer": folder}}
        return {"class_path": "ParallelFiles", "init_args": pairs}
    if kind == "TextEmbedding":
        return {"class_path": "TextPairFiles", "init_args": {"path": "pairs", **shared}}
    if kind == "SequenceClassification":
        return {"class_path": "LabelledFiles", "init_args": {"path": "texts", **shared}}
    return {"class_path": "PythonRoles", "init_args": shared} if kind == "TokenClassification" else text
