"""The text files beside published weights, and every key of them: read, of no effect, or refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo_pretrained import hf_files
from zoo_pretrained.config_keys import Key, Keys

ANY = Key(None, object, optional=True)
FLAG = Key(None, bool, optional=True)
COUNT = Key(None, int, 0, optional=True)
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
SPECIALS = {
    **{f"{role}_token": ANY for role in ROLES},
    **dict.fromkeys(["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"], ANY),
}

# where truncation and padding happen, who wrote the file, and options of tokenizers written in Python
_TOKENIZER_BOOKKEEPING = """
    backend chat_control_tokens chat_template cls_token_id do_basic_tokenize errors from_slow is_fast is_local
    local_files_only mask_token_id max_len max_length merges_file model_input_names model_max_length model_type
    name_or_path never_split pad_to_multiple_of pad_token_id pad_token_type_id padding padding_side processor_class
    response_schema response_template return_attention_mask return_token_type_ids source_lang sp_model_kwargs
    spaces_between_special_tokens special_tokens_map_file stride target_lang tokenizer_file tokenizer_type
    transformers_version truncation truncation_side truncation_strategy use_default_system_prompt use_fast verbose
    vocab_file vocab_size vocab_type fast language predict_timestamps task normalizer_file normalize
""".split()
TOKENIZER_CONFIG = Keys(
    {
        **SPECIALS,
        **dict.fromkeys(["add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces"], FLAG),
        **dict.fromkeys(["do_lower_case", "legacy", "split_by_punct", "split_special_tokens"], FLAG),
        **dict.fromkeys(["strip_accents", "tokenize_chinese_chars", "trim_offsets"], FLAG),
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": FLAG,
        "added_tokens_decoder": Key(None, dict, optional=True), "extra_ids": COUNT, "unk_id": COUNT,
        "tokenizer_class": Key(None, str, optional=True), "src_lang": Key(None, str, optional=True),
        "tgt_lang": Key(None, str, optional=True), "legacy_behaviour": FLAG,
    },
    {"fix_mistral_regex": [False, None], "separate_vocabs": [False], "init_inputs": [[]]},
    _TOKENIZER_BOOKKEEPING,
)  # fmt: skip
SPECIAL_TOKENS_MAP = Keys({**SPECIALS, "split_special_tokens": FLAG}, ignored=())

# how many, in which order and how long: what a command's own options say, or what no text depends on
SEARCH_SETTINGS = frozenset(
    """
    num_beams length_penalty early_stopping num_return_sequences do_sample temperature top_k top_p min_p top_h typical_p
    epsilon_cutoff eta_cutoff max_length max_new_tokens num_beam_groups diversity_penalty
    """.split()
)
_GENERATION_BOOKKEEPING = """
    _commit_hash _from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind cache_config cache_implementation compile_config continuous_batching_config disable_compile
    is_assistant low_memory max_cache_len max_matching_ngram_size max_time num_assistant_tokens
    num_assistant_tokens_schedule output_attentions output_hidden_states output_logits output_scores pad_token_id
    prefill_chunk_size prompt_lookup_num_tokens return_dict_in_generate speculation_type target_lookbehind
    transformers_version use_cache use_mtp
""".split()
# keys that choose other tokens than the rules which are read, and the values with which they do not
_UNUSED: dict[str, list[Any]] = {
    **{key: [0, None] for key in ("encoder_no_repeat_ngram_size", "penalty_alpha")},
    **{key: [1, 1.0, None] for key in ("encoder_repetition_penalty", "guidance_scale")},
    **{key: [False, None] for key in ("remove_invalid_values", "token_healing")},
    **{key: [None] for key in ("constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids")},
    **{key: [None] for key in ("forced_decoder_ids", "sequence_bias", "stop_strings", "watermarking_config")},
}
GENERATION_CONFIG = Keys(
    {
        **dict.fromkeys(["bos_token_id", "eos_token_id", "decoder_start_token_id"], ANY),
        **dict.fromkeys(["forced_bos_token_id", "forced_eos_token_id"], ANY),
        **dict.fromkeys(["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"], Key(None, list, optional=True)),
        **dict.fromkeys(["min_length", "min_new_tokens", "no_repeat_ngram_size"], COUNT),
        "repetition_penalty": Key(None, float, 0.0, optional=True),
        "renormalize_logits": FLAG,
    },
    _UNUSED,
    [*_GENERATION_BOOKKEEPING, *SEARCH_SETTINGS],
)
# of Whisper, which begins a text with tokens for its language and task
SPEECH_CONFIG = Keys(
    {
        **GENERATION_CONFIG.read,
        **dict.fromkeys(["lang_to_id", "task_to_id"], Key(None, dict, optional=True)),
        **dict.fromkeys(["language", "task"], Key(None, str, optional=True)),
        **dict.fromkeys(["no_timestamps_token_id", "prev_sot_token_id"], COUNT),
        "forced_decoder_ids": Key(None, list, optional=True), "is_multilingual": FLAG,
    },
    {**{key: rights for key, rights in _UNUSED.items() if key != "forced_decoder_ids"},
     "return_timestamps": [False, None]},
    [*GENERATION_CONFIG.ignored, "alignment_heads", "max_initial_timestamp_index", "median_filter_width"],
)  # fmt: skip


def read_side_file(path: Path, keys: Keys, suffix: str | None = None) -> dict[str, Any]:
    """The content of a JSON file beside the weights; {} for a missing file. Any key may end with ``suffix``.

    Raises UsageError that names the first key that is not read, or whose value is not supported.
    """
    content = hf_files.optional(path)
    own = {key for key in content if suffix and key.endswith(suffix)}
    declared = {key: value for key, value in content.items() if key in keys.read or key not in own}
    keys.complete(declared, path.name, str(path))
    return content
