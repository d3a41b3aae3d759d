"""The files of the library sentence-transformers beside a checkpoint: how an encoder's states become a vector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import CheckpointError, UsageError
from zoo.inference import weight_files
from zoo.inference.weight_files import LazyTensors
from zoo.io import atomic_files, limits
from zoo_pretrained import hf_files
from zoo_pretrained.config_keys import Key, Keys, flag, shorten, size
from zoo_pretrained.tensor_mapping import Tensors

UNLIMITED = 2**31  # a longest text that says nothing
ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
MODULES, ABOUT, TOKENIZER = "modules.json", "config_sentence_transformers.json", "tokenizer_config.json"
PROMPTS = "embedding.json"  # of a run of zoo
# the file of the encoder, which older versions named after its family
SETTINGS = [f"sentence_{name}_config.json" for name in
            ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")]  # fmt: skip
POOLS = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
# flags of older versions by the word of today
MODES = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
ACTIVATIONS = {
    None: "torch.nn.modules.linear.Identity", "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU", "gelu": "torch.nn.modules.activation.GELU",
    "swish": "torch.nn.modules.activation.SiLU",
}  # fmt: skip
TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
EMPTY: list[Any] = [None, {}]
ENCODER = Keys(
    {"max_seq_length": size(None), "do_lower_case": flag(False)},
    {
        "transformer_task": ["feature-extraction"], "modality_config": [TEXT],
        "module_output_name": ["token_embeddings"], "processing_kwargs": EMPTY,
        **dict.fromkeys(["model_args", "tokenizer_args", "config_args"], EMPTY),
        **dict.fromkeys(["model_kwargs", "processor_kwargs", "config_kwargs"], EMPTY),
        "query_length": [None], "document_length": [None], "query_expansion": [None],
    },
    {"unpad_inputs"},  # how padding is computed
)  # fmt: skip
WIDTH = {"embedding_dimension": size(None), "word_embedding_dimension": size(None)}
POOLING = Keys(
    {
        **WIDTH,
        "pooling_mode": Key(None, object, optional=True),
        **{flag: Key(None, bool, optional=True) for flag in MODES.values()},
    },
    {"include_prompt": [True]},
    (),
)
INPUT, OUTPUT = "sentence_embedding", {"module_input_name": ["sentence_embedding"]}
DENSE = Keys(
    {
        "in_features": size(1), "out_features": size(1), "bias": flag(True),
        "activation_function": Key(ACTIVATIONS["tanh"], str),
    },
    {**OUTPUT, "module_output_name": [None, INPUT], "use_residual": [False]},
    (),
)  # fmt: skip
NORMALIZE = Keys({}, {**OUTPUT, "module_output_name": [None, INPUT]}, ())
MODEL = Keys(
    {
        "prompts": Key({}, dict, optional=True), "default_prompt_name": Key(None, str, optional=True),
        "similarity_fn_name": Key(None, str, optional=True),
    },
    {"model_type": ["SentenceTransformer"], "truncate_dim": [None]},
    {"__version__", "requirements"},  # who wrote it
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "pool": "mean", "features": None, "dense_activation": None, "dense_bias": True, "normalize": False,
    "max_tokens": None, "prompts": {}, "default_prompt": None, "similarity": "cosine",
}  # fmt: skip


def modules(folder: Path) -> dict[str, Path] | None:
    """The folder of each module by the name of its class; None without modules.json, and for a model with a head.

    Raises UsageError for modules that are not read, or in another order.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    try:
        content: Any = limits.read_json(path)
        entries = [(str(module["type"]), str(module["path"])) for module in content]
        unknown = {key for module in content for key in module} - {"idx", "name", "path", "type"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no list of modules, each with a type and a path: {error}") from error
    if unknown:
        raise UsageError(f"{path}: {sorted(unknown)[0]} is no key of a module that zoo reads.")
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind, _ in entries]
    if names == ["Transformer"]:  # its own head, as newer versions save classifiers of pairs
        return None
    if names != [name for name in ORDER if name in names] or names[:2] != list(ORDER[:2]):
        raise UsageError(
            f"{path}: the modules {', '.join(names) or 'none'} are not read; Transformer, Pooling, and perhaps Dense "
            "and Normalize, in this order, are."
        )
    if entries[0][1]:
        raise UsageError(f"{path}: the encoder is in the folder {entries[0][1]!r}. Move its files beside {MODULES}.")
    for _, place in entries:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise UsageError(f"{path}: {place!r} is no folder beside it.")
    return {name: folder / place for name, (_, place) in zip(names, entries, strict=True)}


def read(folder: Path) -> dict[str, Any]:
    """What the files of a folder say, in the words of a TextEmbedder and of embedding.json.

    Raises UsageError that names a file, and the module or the key which is not read.
    """
    places = modules(folder) or {}
    tokenizer = hf_files.optional(folder / TOKENIZER)
    longest = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    result = {**DEFAULTS, "max_tokens": longest if isinstance(longest, int) and 0 < longest < UNLIMITED else None}
    if not places:
        return result
    settings = next((folder / name for name in SETTINGS if (folder / name).is_file()), folder / SETTINGS[0])
    encoder = _read(settings, ENCODER)
    longest = encoder["max_seq_length"]
    normalizer = json.dumps(hf_files.optional(folder / "tokenizer.json").get("normalizer"))
    lowers = '"lowercase": true' in normalizer or '"Lowercase"' in normalizer or tokenizer.get("do_lower_case")
    if encoder["do_lower_case"] and not lowers:
        raise UsageError(f"{settings}: do_lower_case=True is not supported where the tokenizer keeps capitals.")
    about = _read(folder / ABOUT, MODEL)
    prompts = {name: text for name, text in (about["prompts"] or {}).items() if text is not None}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise UsageError(f"{folder / ABOUT}: prompts={shorten(prompts)} is not supported; texts by names would be.")
    if about["default_prompt_name"] not in (None, *prompts):
        raise UsageError(f"{folder / ABOUT}: default_prompt_name={about['default_prompt_name']!r} is none of prompts.")
    result |= {
        "pool": _pool(places["Pooling"] / hf_files.CONFIG), "prompts": prompts,
        "default_prompt": about["default_prompt_name"], "similarity": about["similarity_fn_name"] or "cosine",
        "normalize": "Normalize" in places, **({} if longest is None else {"max_tokens": longest}),
    }  # fmt: skip
    if "Normalize" in places:
        _read(places["Normalize"] / hf_files.CONFIG, NORMALIZE)
    return result | (_dense(places["Dense"] / hf_files.CONFIG) if "Dense" in places else {})


def _dense(path: Path) -> dict[str, Any]:
    """The options of the dense layer. Raises UsageError for an activation that is not read."""
    dense = _read(path, DENSE)
    names = {name: ours for ours, name in ACTIVATIONS.items()}
    if dense["activation_function"] not in names:
        there = " or ".join(names)
        raise UsageError(
            f"{path}: activation_function={dense['activation_function']!r} is not supported; {there} would be."
        )
    return {
        "features": dense["out_features"], "dense_bias": dense["bias"],
        "dense_activation": names[dense["activation_function"]],
    }  # fmt: skip


def _read(path: Path, keys: Keys) -> dict[str, Any]:
    return keys.complete(
        hf_files.optional(path), path.name if path.name != hf_files.CONFIG else path.parent.name, str(path)
    )


def _pool(path: Path) -> str:
    """The pooling of a configuration, by one word or by flags. Raises UsageError for one that is not read."""
    content = _read(path, POOLING)
    modes = content["pooling_mode"]
    if modes is None:
        modes = [mode for mode, name in MODES.items() if content[name]] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLS:
        raise UsageError(f"{path}: pooling by {shorten(modes)} is not supported; one of {', '.join(POOLS)} would be.")
    return POOLS[modes[0]]


def check_width(folder: Path, dim: int) -> None:
    """Raise UsageError where a module reads vectors of another width than the encoder gives."""
    for name, place in (modules(folder) or {}).items():
        content = hf_files.optional(place / hf_files.CONFIG)
        for key in {"Pooling": [*WIDTH], "Dense": ["in_features"]}.get(name, ()):
            if content.get(key, dim) != dim:
                path = place / hf_files.CONFIG
                raise UsageError(f"{path}: {key}={shorten(content[key])} is not the width of the encoder, {dim}.")


def dense_tensors(folder: Path) -> Tensors:
    """The tensors of the dense layer by zoo's names; none without one. Raises CheckpointError for pickled ones."""
    place = (modules(folder) or {}).get("Dense")
    if place is None:
        return {}
    path = place / hf_files.WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, the weights of the dense layer. {hf_files.SAFE}")
    names = {"linear.weight": "dense.weight", "linear.bias": "dense.bias"}
    tensors = weight_files.read_tensors(path)
    if unknown := sorted(tensors.keys() - names.keys()):
        raise CheckpointError(f"{path} has unknown {unknown[0]}: a dense layer has linear.weight and linear.bias.")
    return {names[name]: tensor for name, tensor in tensors.items()}


def write(folder: Path, options: Mapping[str, Any], run: Path, dense: Tensors) -> None:
    """Write the files beside an encoder's, for a task's options, the prompts of a run, and a dense layer's tensors."""
    about = hf_files.optional(run / PROMPTS)
    width = options["dim"]
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), *(["Normalize"] if options["normalize"] else [])]
    entries = [
        {"idx": number, "name": f"{number}", "path": f"{number}_{kind}" if number else "",
         "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    for module in entries[1:]:
        (folder / str(module["path"])).mkdir()
    mode = next(theirs for theirs, ours in POOLS.items() if ours == options["pool"])
    flags = {name: key == mode for key, name in MODES.items()}
    atomic_files.write_json(folder / "1_Pooling" / hf_files.CONFIG, {"word_embedding_dimension": width, **flags})
    if dense:
        content = {
            "in_features": width, "out_features": options["features"], "bias": options["dense_bias"],
            "activation_function": ACTIVATIONS[options["dense_activation"]],
        }  # fmt: skip
        names = {"dense.weight": "linear.weight", "dense.bias": "linear.bias"}
        hf_files.save(
            folder / "2_Dense", content, LazyTensors.of({names[name]: tensor for name, tensor in dense.items()})
        )
    if options["normalize"]:
        atomic_files.write_json(folder / str(entries[-1]["path"]) / hf_files.CONFIG, {})
    settings = {"max_seq_length": options["max_tokens"] or options["max_length"], "do_lower_case": False}
    atomic_files.write_json(folder / SETTINGS[0], settings)
    atomic_files.write_json(
        folder / ABOUT,
        {
            "prompts": about.get("prompts") or {}, "default_prompt_name": about.get("default_prompt"),
            "similarity_fn_name": about.get("similarity") or "cosine",
        },
    )  # fmt: skip
    atomic_files.write_json(folder / MODULES, entries)


def write_prompts(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write what is put before texts into a run or an import of zoo."""
    names = ("prompts", "default_prompt", "similarity")
    atomic_files.write_json(folder / PROMPTS, {name: settings[name] for name in names})
