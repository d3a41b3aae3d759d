"""The text tower of CLIP (Radford et al., 2021), which embeds texts in the space of its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from zoo_pretrained import sentence_files
from zoo_pretrained.bert import TEXT_PLACES
from zoo_pretrained.clip import OLDER, UNUSED, layers
from zoo_pretrained.config_keys import Keys, real, size, word
from zoo_pretrained.family import Config, Family, Options, part, read_places, unsupported_value, write_places
from zoo_pretrained.tensor_mapping import MappedTensors, TensorRule

# keys whose values are options, and the places of these
PLACES = {key: place for key, place in TEXT_PLACES.items() if not key.endswith("dropout_prob")} | {
    "max_position_embeddings": "max_length", "attention_dropout": "attention_dropout",
}  # fmt: skip


class CLIPText(Family):
    """CLIP's causal tower of texts: a vector is the state of the last token, which a CLIPTextModel does not project."""

    name = "clip-text"
    types = ("clip_text_model",)
    architectures: ClassVar[tuple[str, ...]] = ("CLIPTextModelWithProjection", "CLIPTextModel")
    prefix = "text_model."
    task = "zoo_text.tasks.embedding.TextEmbedding"
    keys = Keys(
        {
            "vocab_size": size(49408), "hidden_size": size(512), "intermediate_size": size(2048),
            "projection_dim": size(512), "num_hidden_layers": size(12), "num_attention_heads": size(8),
            "max_position_embeddings": size(77), "hidden_act": word("quick_gelu"), "layer_norm_eps": real(1e-5),
            "attention_dropout": real(0.0),
        },
        OLDER, UNUSED - {"projection_dim"},
    )  # fmt: skip
    example: ClassVar = {
        "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 12, "projection_dim": 10,
    }  # fmt: skip

    def options(self, config: Config) -> Options:
        """Options of a task of embeddings. Raises UsageError for unsupported values."""
        if config["hidden_size"] % config["num_attention_heads"]:
            raise unsupported_value(config, "num_attention_heads", self.name, f"a divisor of {config['hidden_size']}")
        headless = (config.get("architectures") or self.architectures)[0] == "CLIPTextModel"
        options = {
            **({} if headless else {"features": config["projection_dim"], "dense_bias": False}),
            "causal": True,
            "pool": "last",
            "normalize": False,
            "position": part("position.Learned"),
            "attention": part("attention.MultiHead"),
            "norm": part("norm.LayerNorm"),
            "block": part("block.PreNorm"),
            "ffn": part("ffn.MLP"),
        }
        return read_places(config, PLACES, options)

    def import_beside(self, folder: Path, config: Config) -> None:
        """Write that there are no prompts into an import."""
        sentence_files.write_prompts(folder, sentence_files.DEFAULTS)

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        headless = options["features"] is None
        return {
            **write_places(options, PLACES),
            **({} if headless else {"projection_dim": options["features"]}),
            "architectures": [self.architectures[headless]],
        }

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a complete configuration."""
        first = "text_model.embeddings."
        rules = [
            TensorRule(f"{first}token_embedding.weight", "embedding.weight"),
            TensorRule(f"{first}position_embedding.weight", "stack.position.table.weight"),
            TensorRule("text_projection.weight", "dense.weight"),
            *layers("text_model.", config["hidden_size"], {"text_model.final_layer_norm": "stack.norm"}),
        ]
        return MappedTensors(rules, [f"{first}position_ids"])
