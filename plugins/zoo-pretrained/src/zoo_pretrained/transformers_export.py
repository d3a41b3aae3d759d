"""Write a trained model of zoo, whatever parts it has, as a folder that transformers loads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.errors import UsageError
from zoo.inference import part_versions
from zoo.inference.export import check_folder
from zoo.inference.rebuild_task import complete_options
from zoo.io import atomic_files
from zoo_pretrained import hf_files, image_files, tokenizer_files

if TYPE_CHECKING:
    from zoo.inference.trained_model import Trained

log = logging.getLogger(__name__)


class Export(NamedTuple):
    """What was written: ``name`` of the form and ``architecture``, the class that loads it."""

    name: str
    architecture: str


def export_transformers(trained: Trained, folder: Path, force: bool = False) -> Export:
    """Write weights, configuration, tokenizer and the class that loads them into a folder.

    Raises UsageError where transformers is missing or has no class for this kind of model, and for a folder that is
    not empty unless ``force``.
    """
    check_folder(trained, folder, force)
    try:
        from zoo_pretrained.transformers_models import MODELS, ZooForCausalLM
    except ImportError as error:
        raise UsageError(
            f"transformers cannot be used: {error}. Install it: pip install 'zoo-pretrained[transformers]'"
        ) from error
    classes = [model for model in MODELS if isinstance(trained.net, model.reads)]
    if not classes:
        kinds = ", ".join(model.reads.__name__ for model in MODELS)
        raise UsageError(
            f"transformers has no kind of model for {type(trained.net).__name__}. There is one for: {kinds}."
        )
    cls = classes[0]
    task = complete_options(trained.place.config["model"])
    packages = {"zoo-transformers": version("zoo-transformers"), "zoo-pretrained": version("zoo-pretrained")}
    for record in part_versions.packages_used({"model": task}):
        if record["distribution"] and record["class_path"].partition(".")[0] not in ("torch", "zoo"):
            packages[record["distribution"]] = record["version"]
    needed = [f"{name} {number}" for name, number in packages.items()]
    rules = trained.place.config.get("generation")
    about: dict[str, Any] = {"task": task, "packages": needed, **sizes(task["init_args"])}
    try:
        with atomic_files.replace_files(folder, hf_files.CONFIG, hf_files.ANY_WEIGHTS) as draft:
            # DPO, FIM and MTP have the files of the language model that they train
            kind = {**task, "class_path": tokenizer_files.LANGUAGE_MODEL} if cls is ZooForCausalLM else task
            about = tokenizer_files.export_tokenizers(trained.place.folder, draft, kind, about, rules)
            image_files.write_preprocessor(trained, draft)
            _copy_target_tokenizer(trained.place.folder, draft)
            config = cls.config_class(**about)
            config.auto_map = cls.auto_map()
            model = cls(config).to(next(trained.net.parameters()).dtype).eval()
            model.net.load_state_dict(trained.net.state_dict())
            model.save_pretrained(draft)
            model.write_beside(draft, task["init_args"], trained.place.folder)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {atomic_files.reason(error)}") from error
    return Export("transformers", cls.__name__)


def _copy_target_tokenizer(source: Path, folder: Path) -> None:
    """Keep the tokenizer of targets where it is another than that of sources, and say so: AutoTokenizer reads one."""
    pair = [source / f"{side}-tokenizer.json" for side in ("source", "target")]
    if all(path.is_file() for path in pair) and pair[0].read_bytes() != pair[1].read_bytes():
        atomic_files.copy(pair[1], folder / pair[1].name)
        log.warning(
            "AutoTokenizer reads the tokenizer of sources: decode targets by %s, as "
            "PreTrainedTokenizerFast(tokenizer_file=…)",
            pair[1].name,
        )


def sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers asks a configuration for, by its names, from the options of a task."""
    names = {
        "vocab_size": "vocab_size", "target_vocab_size": "vocab_size", "dim": "hidden_size",
        "depth": "num_hidden_layers", "heads": "num_attention_heads", "max_length": "max_position_embeddings",
        "image_size": "image_size", "patch_size": "patch_size", "channels": "num_channels",
        "num_classes": "num_labels",
    }  # fmt: skip
    facts = {name: options[key] for key, name in names.items() if options.get(key) is not None}
    if options.get("decoder_depth"):
        facts |= {"num_hidden_layers": options["decoder_depth"], "encoder_layers": options["depth"]}
    return facts | {"tie_word_embeddings": options.get("tie", False) not in (False, "none")}
