"""MPNet (Song et al., 2020): BERT's layers with learned positions and a bias per distance, as T5's."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from zoo.parts.position import T5, Extent, Learned
from zoo_pretrained.bert import BERT, FIXED, READ, config_of, encoder, norm, same
from zoo_pretrained.config_keys import BOOKKEEPING, Keys, size
from zoo_pretrained.family import Config, Options, inner, unsupported_value
from zoo_pretrained.tensor_mapping import MappedTensors, Shaped, Stacked, TensorRule

NAME, OFFSET = "mpnet", 2  # positions begin behind the number of its padding, whatever the configuration says
BUCKETS, DISTANCE = 32, 128


class LearnedT5(T5):
    """A learned vector per position, added to the embeddings, and T5's learned addition to the scores per distance.

    Paper: MPNet: Masked and Permuted Pre-training for Language Understanding, Song et al., 2020.
    """

    relative = False

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Extent,
        num_buckets: int = BUCKETS,
        max_distance: int = DISTANCE,
        offset: int = 0,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads, each with numbers of its own.
            extent: where tokens can stand.
            num_buckets: rows of the table of distances, for both directions together.
            max_distance: from this many tokens on all distances share the last bucket.
            offset: unused rows in front of the first position's: 2 in MPNet.
        """
        super().__init__(dim, heads, extent, num_buckets, max_distance)
        self.places = Learned(dim, heads, extent, offset)
        self.limit = self.places.limit

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B, T, dim) plus the vectors of pos, (T,) or (B, T); shaped like x."""
        return self.places.embed(x, pos)


class MPNet(BERT):
    """MPNet (Song et al., 2020) as a masked language model."""

    name = NAME
    types = (NAME,)
    architectures = ("MPNetForMaskedLM",)
    keys = Keys(
        {**READ, "vocab_size": size(30527), "relative_attention_num_buckets": size(BUCKETS)},
        {**FIXED, "tie_word_embeddings": [True], "pad_token_id": [1, None]},
        BOOKKEEPING - {"pad_token_id"},
    )
    example: ClassVar = {**BERT.example, "relative_attention_num_buckets": BUCKETS}

    def options(self, config: Config) -> Options:
        """The head of a masked language model, whose activation is GELU. Raises UsageError for unsupported values."""
        if config["max_position_embeddings"] <= OFFSET:
            raise unsupported_value(config, "max_position_embeddings", NAME, f"more than {OFFSET}")
        if config["relative_attention_num_buckets"] < BUCKETS:
            raise unsupported_value(config, "relative_attention_num_buckets", NAME, f"{BUCKETS}, which are read,")
        position = {"num_buckets": BUCKETS, "max_distance": DISTANCE, "offset": OFFSET}
        return {
            **encoder(config),
            "max_length": config["max_position_embeddings"] - OFFSET,
            "segments": 0,
            "position": {"class_path": "zoo_pretrained.mpnet.LearnedT5", "init_args": position},
            "attention": {"class_path": "zoo.parts.attention.MultiHead", "init_args": {}},
            "tie": True,
            "activation": "gelu",
            "next_sentence": 0.0,
        }

    def config(self, options: Options) -> dict[str, Any]:
        """The published configuration for the options of zoo's task."""
        config = config_of(options, NAME)
        del config["type_vocab_size"]
        return {**config, "relative_attention_num_buckets": inner(options["position"])["num_buckets"]}

    def map_tensors(self, config: Config) -> MappedTensors:
        """The rules that convert the family's tensors to zoo's, for a configuration."""
        heads, dim = config["num_attention_heads"], config["hidden_size"]
        theirs, ours = "mpnet.encoder.layer.{n}.", "stack.blocks.{n}."
        rules = [
            TensorRule("mpnet.embeddings.word_embeddings.weight", "embedding.weight"),
            TensorRule("mpnet.embeddings.position_embeddings.weight", "stack.position.places.table.weight"),
            TensorRule(
                "mpnet.encoder.relative_attention_bias.weight", "stack.position.table",
                Shaped((BUCKETS, heads), (1, BUCKETS, heads)),
            ),
        ]  # fmt: skip
        rules += norm("mpnet.embeddings.LayerNorm", "stack.entry")
        for end in ("weight", "bias"):
            three = tuple(f"{theirs}attention.attn.{name}.{end}" for name in "qkv")
            rules.append(TensorRule(three, f"{ours}attend.part.qkv.{end}", Stacked([dim] * 3)))
        rules += same(f"{theirs}attention.attn.o", f"{ours}attend.part.out")
        rules += norm(f"{theirs}attention.LayerNorm", f"{ours}attend.norm")
        rules += same(f"{theirs}intermediate.dense", f"{ours}ffn.part.up")
        rules += same(f"{theirs}output.dense", f"{ours}ffn.part.down")
        rules += norm(f"{theirs}output.LayerNorm", f"{ours}ffn.norm")
        rules += same("lm_head.dense", "transform") + same("lm_head.layer_norm", "transform_norm")
        rules.append(TensorRule("lm_head.bias", "head.bias"))
        copies = {
            "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        }
        unread = ["mpnet.embeddings.position_ids", *(f"mpnet.pooler.dense.{end}" for end in ("weight", "bias"))]
        return MappedTensors(rules, unread, copies)
