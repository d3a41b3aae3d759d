"""Whisper (Radford et al., 2022): transcription and translation of speech. Needs the package zoo-multimodal."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.inference.weight_files import LazyTensors
from zoo.io import atomic_files
from zoo_pretrained import hf_files
from zoo_pretrained.bart import ALIASES, BART, both_sides, layers, written_sides
from zoo_pretrained.config_keys import BOOKKEEPING, Key, Keys, real, size, word
from zoo_pretrained.family import Config, Options, part, unsupported_value
from zoo_pretrained.image_files import IMAGES, PROCESSOR
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule, Transform

FEATURES, RATE = "feature_extractor", 16000
SETTINGS = {"feature_size": 80, "hop_length": 160, "chunk_length": 30, "n_fft": 400}
EXTRACTOR = Keys(
    {key: size(default) for key, default in SETTINGS.items()},
    {
        "sampling_rate": [RATE], "padding_value": [0.0], "padding_side": ["right"], "dither": [0.0],
        "do_normalize": [False, None], "feature_extractor_type": ["WhisperFeatureExtractor"],
    },
    ("mel_filters", "n_samples", "nb_max_frames", "processor_class", "return_attention_mask"),
)  # fmt: skip
SIDES = {"layers": 4, "attention_heads": 6, "ffn_dim": 1536}


class QueryValueBias(Transform):
    """The biases of queries and values, with zeros for keys between them: what a key's bias adds is the same for all
    scores of a query, which a softmax does not see.
    """

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their two biases (dim,) as one, (3 * dim,)."""
        return torch.cat([theirs[0], torch.zeros_like(theirs[0]), theirs[1]])

    def write(self, ours: Tensor) -> list[Tensor]:
        """A bias (3 * dim,) as theirs of queries and of values, (dim,)."""
        return [part.contiguous() for part in ours.chunk(3)[::2]]


class Whisper(BART):
    """Whisper (Radford et al., 2022), which hears 30 s, silence behind a sound included."""

    name = "whisper"
    types = ("whisper",)
    architectures: ClassVar = ("WhisperForConditionalGeneration",)
    task = "zoo_multimodal.transcription.Transcription"
    known_failures: ClassVar = {"tensors_return": "a bias of keys, on which nothing depends, comes back as zeros"}
    keys = Keys(
        {
            **{f"{side}_{key}": size(default) for side in ("encoder", "decoder") for key, default in SIDES.items()},
            "vocab_size": size(51865), "num_mel_bins": size(80), "d_model": size(384), "dropout": real(0.0),
            "attention_dropout": real(0.0), "activation_function": word("gelu"), "max_source_positions": size(1500),
            "max_target_positions": size(448), FEATURES: Key(None, dict, optional=True),
        },
        {"tie_word_embeddings": [True], "is_encoder_decoder": [True]},
        BOOKKEEPING | {
            "activation_dropout", "apply_spec_augment", "classifier_proj_size", "decoder_layerdrop",
            "encoder_layerdrop", "forced_decoder_ids", "init_std", "mask_feature_length", "mask_feature_min_masks",
            "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob", "median_filter_width",
            "scale_embedding", "use_weighted_layer_sum",
        },
        {**ALIASES, "num_key_value_heads": "encoder_attention_heads"},
    )  # fmt: skip
    example: ClassVar = {
        **{f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in SIDES}, "vocab_size": 41, "d_model": 16,
        "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 12,
        FEATURES: {"feature_size": 8, "hop_length": 800, "chunk_length": 1, "n_fft": 800},
    }  # fmt: skip

    def read_beside(self, folder: Path) -> dict[str, Any]:
        """How sounds are heard, of processor_config.json or preprocessor_config.json."""
        whole = hf_files.optional(folder / PROCESSOR).get(FEATURES)
        return {FEATURES: hf_files.optional(folder / IMAGES) if whole is None else whole}

    def options(self, config: Config) -> Options:
        """Options of zoo's task for a published configuration. Raises UsageError for unsupported values."""
        if find_spec("zoo_multimodal") is None:
            raise UsageError(
                "whisper has the task of the package zoo-multimodal: pip install -e plugins/zoo-multimodal"
            )
        features = EXTRACTOR.complete(config[FEATURES] or {"feature_size": config["num_mel_bins"]}, self.name, IMAGES)
        frames, hop = 2 * config["max_source_positions"], features["hop_length"]
        if features["n_fft"] < hop:
            raise UsageError(
                f"{IMAGES}: n_fft={features['n_fft']} is not supported in whisper; hop_length or more would be."
            )
        if features["feature_size"] != config["num_mel_bins"]:
            raise unsupported_value(config, "num_mel_bins", self.name, f"{IMAGES}'s feature_size")
        if config[FEATURES] and features["chunk_length"] * RATE // hop != frames:
            right = f"half of the frames of {features['chunk_length']} s, of which {IMAGES} speaks,"
            raise unsupported_value(config, "max_source_positions", self.name, right)
        return {
            **both_sides(config, "block.PreNorm"),
            "sample_rate": RATE,
            "max_samples": frames * hop,
            "max_length": config["max_target_positions"],
            "mels": config["num_mel_bins"],
            "window_ms": 1000 * features["n_fft"] / RATE,
            "hop_ms": 1000 * hop / RATE,
            "front": "whisper",
            "position": part("position.Learned"),
        }

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task, with what the other file says."""
        window, hop = (round(options[f"{name}_ms"] * RATE / 1000) for name in ("window", "hop"))
        return {
            **written_sides(options),
            "num_mel_bins": options["mels"],
            "max_source_positions": options["max_samples"] // hop // 2,
            "max_target_positions": options["max_length"],
            FEATURES: {
                "feature_size": options["mels"], "hop_length": hop, "n_fft": window,
                "chunk_length": options["max_samples"] // RATE,
            },
        }  # fmt: skip

    def export_beside(
        self, folder: Path, run: Path, options: Options, config: dict[str, Any], tensors: LazyTensors
    ) -> tuple[dict[str, Any], LazyTensors]:
        """Write preprocessor_config.json; the configuration without what it says."""
        about = {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": RATE, **config[FEATURES]}
        atomic_files.write_json(folder / IMAGES, {**about, "padding_value": 0.0, "padding_side": "right"})
        return {key: value for key, value in config.items() if key != FEATURES}, tensors

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        stem = "model.encoder.conv"
        pairs = {f"{stem}1": "stem.first", f"{stem}2": "stem.second"}
        rules = [TensorRule("model.decoder.embed_tokens.weight", "target_embedding.weight")]
        for side in ("encoder", "decoder"):
            pairs[f"model.{side}.layer_norm"] = f"{side}.norm"
            rules.append(TensorRule(f"model.{side}.embed_positions.weight", f"{side}.position.table.weight"))
            rules += layers(config["d_model"], side, ("qv", QueryValueBias()))
        rules += [
            TensorRule(f"{key}.{end}", f"{name}.{end}") for key, name in pairs.items() for end in ("weight", "bias")
        ]
        return MappedTensors(rules, (), {"proj_out.weight": "model.decoder.embed_tokens.weight"})
