"""The keys of a published config.json: which are read, with type and default, and which do not affect logits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.errors import UsageError

# of transformers' base class, of its generation and of training: no logits depend on them
BOOKKEEPING = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation_internal _name_or_path _num_labels architectures attn_implementation auto_map
    chunk_size_feed_forward dtype experts_implementation finetuning_task gradient_checkpointing id2label
    initializer_range is_llama_config label2id model_type name_or_path num_labels output_attentions output_hidden_states
    output_past prefix pretraining_tp problem_type return_dict task_specific_params tf_legacy_loss tokenizer_class
    torch_dtype torchscript transformers.js_config transformers_version use_bfloat16 use_cache use_return_dict
    bos_token_id cls_token_id decoder_start_token_id eos_token_id mask_token_id pad_token_id sep_token_id unk_token_id
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens
    min_length min_new_tokens no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate
    suppress_tokens target_lookbehind temperature top_k top_p typical_p
    """.split()
)


@dataclass(frozen=True)
class Key:
    """A key that is read: its default, and its valid values."""

    default: Any
    kind: type
    least: float = -math.inf
    optional: bool = False  # may it be null?

    def wrong(self, value: object) -> str | None:
        """What a value would have to be, or None where it may be as it is."""
        if value is None and self.optional:
            return None
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name", dict: "an object"}
        right = words.get(self.kind, "a list") + (f" of at least {self.least:g}" if self.least > -math.inf else "")
        if self.kind is not bool and isinstance(value, bool):
            return right
        if self.kind is object:
            return None
        if not isinstance(value, (int, float) if self.kind is float else self.kind):
            return right
        if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= self.least):
            return right
        return None


def size(default: int | None, least: int = 1, optional: bool = False) -> Key:
    """A whole number."""
    return Key(default, int, least, optional or default is None)


def real(default: float | None) -> Key:
    """A number that is not negative, such as a norm's eps or a rate of dropout."""
    return Key(default, float, 0.0, default is None)


def flag(default: bool) -> Key:
    """True or false."""
    return Key(default, bool)


def word(default: str) -> Key:
    """A name, such as that of an activation."""
    return Key(default, str)


@dataclass(frozen=True)
class Keys:
    """All keys that a family's configuration may have; any other is refused by its name.

    ``fixed`` are keys that our model has no option for, with the values that leave it as it is. ``ignored`` change no
    logits. ``aliases`` are second names of a key, whose value must be the same.
    """

    read: Mapping[str, Key]
    fixed: Mapping[str, Collection[Any]] = field(default_factory=dict)
    ignored: Collection[str] = BOOKKEEPING
    aliases: Mapping[str, str] = field(default_factory=dict)

    def complete(self, config: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
        """A configuration with the default of each key that it lacks.

        Raises UsageError that names the first key that is not of the family ``name`` or whose value is not supported.
        A null says nothing where the key is not of the family. A key may stand under its second name alone.
        """
        for alias, key in self.aliases.items():
            if config.get(alias) is not None and key not in config:
                config = {**config, key: config[alias]}
        if config.get("quantization_config"):
            raise UsageError(
                f"{source}: quantization_config={shorten(config['quantization_config'])}: quantised weights are not "
                "read. Save the model in float32, float16 or bfloat16."
            )
        for key, value in config.items():
            entry = f"{source}: {key}={shorten(value)}"
            if key in self.read:
                if (right := self.read[key].wrong(value)) is not None:
                    raise UsageError(f"{entry} is not supported in {name}; {right} would be.")
            elif key in self.fixed:
                if not any(_same(value, right) for right in self.fixed[key]):
                    rights = " or ".join(repr(right) for right in self.fixed[key])
                    raise UsageError(f"{entry} is not supported in {name}; {rights} would be.")
            elif key not in self.ignored and key not in self.aliases and value is not None:
                raise UsageError(
                    f"{entry} is not a key of {name} that zoo reads, so the model may be another than zoo would build. "
                    "Where it changes nothing, delete it from the file."
                )
        full = {**{key: spec.default for key, spec in self.read.items()}, **config}
        for alias, key in self.aliases.items():
            if full.get(alias, full[key]) != full[key]:
                raise UsageError(
                    f"{source}: {alias}={shorten(full[alias])} is another word for {key}, which is "
                    f"{shorten(full[key])}. Delete the wrong one."
                )
        return full


def shorten(value: object) -> str:
    """A value of a configuration as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _same(value: object, right: object) -> bool:
    """Equal, where true is not 1."""
    return value == right and isinstance(value, bool) == isinstance(right, bool)
