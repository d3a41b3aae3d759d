"""Keys of published configurations: none is read wrongly without a word; missing ones are the peer's defaults."""

import dataclasses
import json
import random

import config_keys
import peers
import pytest
import torch
from import_steps import FAMILIES, imported
from safetensors.torch import load_file, save_file
from zoo_pretrained import lookup
from zoo_pretrained.config_keys import BOOKKEEPING
from zoo_pretrained.deepseek import DeepSeekV2, DeepSeekV3
from zoo_pretrained.recurrent import Qwen3Next

from zoo.cli import main
from zoo.errors import UsageError
from zoo.inference.rebuild_task import complete_options

EACH = 1  # of about 700 changes of each family; all of them: python config_keys.py


def first(name):
    """The changes of a family that are drawn here: more of those that are no bookkeeping."""
    every = [change for change in config_keys.changes(name) if change.key not in BOOKKEEPING]
    small = [change for change in every if not change.what.startswith("without")]  # defaults are no tiny sizes
    return random.Random(name).sample(small, EACH)


@pytest.mark.parametrize("name", [*sorted(config_keys.FIRST), "timm"])
def test_a_changed_key_is_read_as_the_peer_does_or_refused_by_its_name(name, tmp_path):
    for change in first(name):
        verdict, detail = config_keys.outcome(change, tmp_path)
        assert verdict not in config_keys.SILENT, f"{change.what}: {detail}"


def change(name, **options):
    """One key changed, or with ... taken away."""
    config = {key: value for key, value in {**config_keys.raw(name), **options}.items() if value is not ...}
    return config_keys.Change(name, next(iter(options)), config, str(options))


def inside(where, **options):
    config = config_keys.raw("timm")
    config[where] |= options
    return config_keys.Change("timm", next(iter(options)), config, str(options))


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (change("mixtral", rope_theta=...), "equal"),
        (change("marian", extra_pos_embeddings=61), "equal"),
        (change("gpt2", n_special=0, predict_special_tokens=True), "equal"),
        (change("qwen2", use_mrope=False), "equal"),
        (change("llama", rope_interleaved=False, is_llama_config=True, **{"transformers.js_config": {}}), "equal"),
        (change("qwen2", use_mrope=True), "refused"),
        (change("llama", rope_interleaved=True), "refused"),
        # keys that files on the hub have and no code reads
        (
            change(
                "starcoder2",
                activation_function="gelu",
                layer_norm_epsilon=1e-3,
                mlp_type="default",
                norm_type="layer_norm",
                scale_attn_weights=True,
                attention_softmax_in_fp32=True,
                scale_attention_softmax_in_fp32=True,
            ),
            "equal",
        ),
        (change("smollm3", pretraining_tp=2), "equal"),
        (change("gpt-neox", attention_probs_dropout_prob=0, hidden_dropout_prob=0), "equal"),
        (change("gemma2", sliding_window_size=4096), "equal"),
        (
            change(
                "phi3-long",
                auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
                full_attn_mod=1,
                interpolate_factor=1,
                lm_head_bias=False,
            ),
            "equal",
        ),
        (change("phi3-long", lm_head_bias=True), "refused"),
        (change("qwen3-next", use_sliding_window=False), "equal"),
        (change("mixtral", rms_norm_eps=...), "equal"),
        (change("llama", sliding_window=5), "refused"),
        (change("llama", layer_types=["sliding_attention"] * 3), "refused"),
        (change("mistral", layer_types=["full_attention"] * 3), "refused"),
        (change("mistral", sliding_window=...), "equal"),  # 4096
        (change("llama", partial_rotary_factor=0.5), "refused"),
        (change("qwen3", partial_rotary_factor=0.5), "refused"),
        (change("llama", rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}), "refused"),
        (change("llama", is_causal=False), "refused"),
        (change("llama", hidden_act="swish"), "equal"),
        (change("llama", hidden_act="gelu"), "equal"),
        (change("llama", rope_scaling={"type": "linear", "factor": 2.0}), "equal"),
        (change("qwen2-window", max_window_layers=...), "equal"),  # 28
        (change("qwen2", layer_types=["sliding_attention"] * 3), "refused"),
        (change("t5", dense_act_fn="silu"), "refused"),
        (change("t5", feed_forward_proj="gated-silu"), "equal"),
        (change("t5", tie_word_embeddings=False), "equal"),  # tied all the same, and not scaled
        (change("bart", architectures=["BartModel"]), "equal"),
        (change("vit", image_size=[16, 32]), "refused"),
        (change("vit", image_size=[16, 16]), "equal"),
        (change("bert-texts", num_labels=7, id2label={"0": "a", "1": "b"}), "refused"),
        (change("bert", a_key_that_nobody_knows=3), "refused"),
        (inside("model_args", act_layer="relu"), "equal"),
        (inside("model_args", act_layer="quick_gelu"), "equal"),
        (inside("model_args", norm_layer="rmsnorm"), "refused"),
        (inside("model_args", global_pool=""), "refused"),
        (inside("pretrained_cfg", input_size=[3, 16, 32]), "refused"),
        (change("deberta-3", max_relative_positions=2), "refused"),
        (change("vit", hidden_size=33), "refused"),
        (change("vit", num_labels=1), "refused"),
        (change("vit", id2label={"0": "a"}), "refused"),
        (change("bert-tokens", num_labels=1), "refused"),
        (change("bert-pairs", type_vocab_size=1), "refused"),
        (change("bert-texts", architectures=...), "refused"),
        (change("mt5", tie_word_embeddings=False), "refused"),
        (change("deepseek-v3", rope_interleave=False), "equal"),
        (change("deepseek-v3", head_dim=2), "refused"),
        (change("qwen3-next", hidden_act="gelu"), "refused"),
        (change("roberta", vocab_size=2), "equal"),
        (change("qwen3", hidden_size=2), "equal"),  # in float64
    ],
    ids=lambda value: f"{value.family}-{value.what}"[:60] if isinstance(value, config_keys.Change) else value,
)
def test_what_was_read_wrongly_or_refused_badly(one, verdict, tmp_path):
    assert config_keys.outcome(one, tmp_path)[0] == verdict


def families():
    """Each family of transformers with the configuration class of its peer."""
    every = {peers.transformers.CONFIG_MAPPING[kind]: family for family in FAMILIES for kind in family.types}
    return [(family.name, family, config) for config, family in every.items()]


@pytest.mark.parametrize(("name", "family", "config"), families(), ids=[name for name, _, _ in families()])
def test_a_missing_key_has_the_default_of_the_peers_class(name, family, config):
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    described = getattr(config(), "rope_parameters", None) or {}
    rope = {"rope_theta": described.get("full_attention", described)["rope_theta"]} if described else {}
    for key, spec in family.keys.read.items():
        if key in fields or key in rope:
            assert {**fields, **rope}[key] == spec.default, key


@pytest.mark.parametrize("name", config_keys.NAMES)
def test_every_key_that_the_peer_writes_is_declared(name):
    family = lookup.family_of(config_keys.raw(name), "config.json")
    declared = {*family.keys.read, *family.keys.fixed, *family.keys.ignored, *family.keys.aliases}
    assert not config_keys.whole(name).keys() - declared


def test_a_key_that_is_not_read_is_named_with_what_to_do(tmp_path, capsys):
    model = peers.build_peer(peers.LANGUAGE["llama"])
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "sliding_window": 5}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    message = capsys.readouterr().err
    assert "sliding_window=5 is not a key of llama that zoo reads" in message
    assert "delete it from the file" in message
    assert len(message.splitlines()) <= 4
    path.write_text(json.dumps({**content, "sliding_window": None, "some_note": None}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0


def test_a_bart_that_was_saved_without_its_head_is_read_with_a_bias_of_zeros(tmp_path):
    model = peers.build_peer(peers.PAIRS["bart"])
    model.model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    versions = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}  # as published ones have
    save_file({**load_file(path), **versions}, path)
    net = imported(tmp_path / "theirs", tmp_path / "ours")
    assert net.theirs["architectures"] == ["BartModel"]
    assert torch.equal(net.tensors["bias.weight"], torch.zeros(peers.WORDS))


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", "32"), ("hidden_size", True), ("rms_norm_eps", None), ("hidden_act", 3)]
)
def test_a_value_of_another_type_is_refused(key, value):
    with pytest.raises(UsageError, match=f"{key}=.* is not supported in llama; .* would be"):
        lookup.family_of(config_keys.raw("llama"), "x").complete({**config_keys.raw("llama"), key: value}, "x")


@pytest.mark.parametrize(("family", "key", "values"), [
    (DeepSeekV2, "first_k_dense_replace", [0, 1, 2]), (DeepSeekV3, "first_k_dense_replace", [0, 1, 2]),
    (Qwen3Next, "layer_types", [["full_attention"] * 2, ["full_attention", "linear_attention"]]),
    (Qwen3Next, "mlp_only_layers", [[], [0], [1]]),
])  # fmt: skip
def test_a_kind_of_layer_that_a_model_lacks_does_not_keep_it_from_going_out(family, key, values):
    """Also a model all of whose layers are of one kind."""
    family = family()

    def complete(config):
        section = {"class_path": family.task, "init_args": family.options(family.complete(config, "x"))}
        return complete_options(section)["init_args"]

    for value in values:
        options = complete({"model_type": family.types[0], **family.example, key: value})
        assert complete(family.write_config(options)) == options, value


def test_options_that_a_part_passes_on_to_its_base_are_complete():
    """Those of MoE, which SharedMoE takes as ``**options``: an export compares them with the model's own."""
    family = DeepSeekV2()
    config = family.complete({"model_type": "deepseek_v2", **family.example, "first_k_dense_replace": 0}, "x")
    model = {"class_path": family.task, "init_args": family.options(config)}
    assert complete_options(model)["init_args"]["ffn"]["init_args"]["router_bias"] is False
