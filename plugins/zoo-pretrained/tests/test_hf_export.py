"""What zoo exports, loaded by the libraries that will load it: transformers' Auto classes, timm and lm-eval."""

import json
from types import SimpleNamespace

import peers
import pytest
import torch
from import_steps import gap, imported, loaded
from transformers import AutoModelForCausalLM
from zoo_pretrained import hf_files, lookup
from zoo_pretrained.hf_export import _family, export_pretrained

import zoo
from zoo.cli import main
from zoo.config import fit_options, run_config
from zoo.data.conversation import Conversation, Turn
from zoo.data.tokenizer import BOS, CLS, EOS, MASK, PAD, Tokenizer
from zoo.inference.rebuild_task import complete_options, rebuild_task
from zoo.inference.weight_files import keep_own_tensors

TEXT = "the quick <eos> brown fox, 12 × naïve"
SPECIALS = (PAD, BOS, EOS, CLS, MASK)
WORDS = 256 + len(SPECIALS)
AUTO = {
    "CausalLM": "AutoModelForCausalLM", "Translation": "AutoModelForSeq2SeqLM", "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
    "TokenClassification": "AutoModelForTokenClassification", "Classification": "AutoModelForImageClassification",
}  # fmt: skip
NEWEST = ("deepseek-v2", "deepseek-v3", "qwen3-next", "mamba2")
# one of each kind of task, of tokenizer and of rules; the parity tests load all others by their own classes
NAMES = {
    **{name: peers.LANGUAGE[name] for name in ("gpt2", "llama-3", "mixtral", *NEWEST)},
    **{name: peers.PAIRS[name] for name in ("t5-1.1", "bart", "marian")},
    **{name: peers.ENCODERS[name] for name in ("bert-texts", "roberta-tokens", "deberta-3")},
}


def folder_of_ours(case, target, specials=SPECIALS):
    """A model of a family with a tokenizer as zoo's own data writes one: no library has named its special tokens."""
    words = 256 + len(specials)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": case[2].get("pad_token_id")}
    model = peers.build_peer((*case[:2], {**case[2], **ids, "vocab_size": words}))
    model.save_pretrained(target / "theirs")
    net = imported(target / "theirs", target / "ours")
    kind = net.model["class_path"].rpartition(".")[2]
    pair = ("source-tokenizer.json", "target-tokenizer.json")
    for name in pair if kind == "Translation" else ("tokenizer.json",):
        Tokenizer.bytes(specials).save(target / "ours" / name)
    (target / "ours" / "family.json").write_text("{}")  # as of a run
    (target / "ours" / "generation_config.json").unlink(missing_ok=True)
    if "Classification" in kind:
        (target / "ours" / "labels.json").write_text(json.dumps({"names": list("abcde")}))
    return kind


@torch.no_grad()
@peers.some_by_default(NAMES, NAMES.keys() - {"gpt2", "mixtral", "bart", *NEWEST})
def test_an_export_is_loaded_by_the_auto_classes_with_its_tokenizer(case, tmp_path):
    kind = folder_of_ours(case, tmp_path)
    ours = loaded(tmp_path / "ours")
    export_pretrained(ours, tmp_path / "again")
    tokenizer = peers.transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    model = getattr(peers.transformers, AUTO[kind]).from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
    peers.without_chance(model)
    mine = Tokenizer.bytes(SPECIALS)
    ids = {
        "CausalLM": mine.encode, "Translation": lambda text: [*mine.encode(text), mine.eos],
    }.get(kind, lambda text: mine.marked(mine.encode(text)))(TEXT)  # fmt: skip
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == ids
    assert tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True) == TEXT
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (mine.eos, mine.pad)
    target = torch.randint(WORDS, (1, 5))
    more = {"decoder_input_ids": target} if kind == "Translation" else {}
    theirs = model(**{key: value for key, value in inputs.items() if key != "token_type_ids"}, **more).logits
    right = ours.net(inputs["input_ids"], target) if more else ours.net(inputs["input_ids"])
    assert gap(right, theirs) <= 1e-5
    if kind in ("CausalLM", "Translation"):
        assert model.generation_config.eos_token_id == mine.eos
        assert model.generate(**inputs, max_new_tokens=3, do_sample=False, use_cache=False).size(0) == 1
    if kind == "Translation":
        assert model.generation_config.decoder_start_token_id == mine.bos
    if "Classification" in kind:
        assert [model.config.id2label[n] for n in range(5)] == list("abcde")


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", "vit-no-bias", "deit", "dinov2-gated"])
def test_an_image_classifier_is_loaded_with_its_preparation_of_images(name, tmp_path):
    model = peers.build_peer(peers.IMAGES[name])
    model.save_pretrained(tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    content = json.loads((tmp_path / "ours" / "images.json").read_text())
    content |= {"names": list("abcde"), "mean": [0.3] * content["channels"], "std": [0.2] * content["channels"]}
    (tmp_path / "ours" / "images.json").write_text(json.dumps(content))
    (tmp_path / "ours" / "family.json").write_text("{}")  # as of a run
    ours = loaded(tmp_path / "ours")
    export_pretrained(ours, tmp_path / "again")
    again = peers.transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "again")
    prepare = peers.transformers.AutoImageProcessor.from_pretrained(tmp_path / "again")
    assert (list(prepare.image_mean), list(prepare.image_std)) == (content["mean"], content["std"])
    assert again.config.id2label[3] == "d"
    images = torch.randn(2, content["channels"], 16, 16)
    assert gap(again.eval()(images).logits, ours.net(images)) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("sizes", [{}, {"image_size": 24, "patch_size": 8, "channels": 1, "dim": 24, "depth": 1}])
def test_timm_loads_an_export_by_its_folder_and_by_its_file(sizes, tmp_path):
    from zoo_pretrained.family import part

    from zoo.inference.export import FORMAT
    from zoo.inference.find_run import EXPORT, WEIGHTS
    from zoo.inference.rebuild_task import complete_options, rebuild_task
    from zoo.inference.weight_files import write_weights

    options = {
        "num_classes": 5, "image_size": 16, "channels": 3, "patch_size": 4, "pool": "cls", "dim": 32, "depth": 2,
        "heads": 4,
        "position": part("position.Learned"), "attention": part("attention.MultiHead"),
        "norm": part("norm.LayerNorm", eps=1e-6), "ffn": part("ffn.MLP", activation="gelu_tanh"), **sizes,
    }  # fmt: skip
    model = complete_options({"class_path": "zoo.tasks.classification.Classification", "init_args": options})
    folder = tmp_path / "ours"
    folder.mkdir()
    write_weights(rebuild_task({"model": model}, folder), folder / WEIGHTS)
    (folder / EXPORT).write_text(
        json.dumps({"format": FORMAT, "kind": "Classification", "family": "timm", "model": model})
    )
    channels = options["channels"]
    content = {"names": list("abcde"), "mean": [0.3] * channels, "std": [0.2] * channels,
            "image_size": options["image_size"], "channels": channels}  # fmt: skip
    (folder / "images.json").write_text(json.dumps(content))
    ours = loaded(folder)
    assert export_pretrained(ours, tmp_path / "theirs").name == "timm"
    images = torch.randn(2, channels, options["image_size"], options["image_size"])
    one = peers.timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()
    assert gap(one(images), ours.net(images)) <= 1e-5
    assert one.pretrained_cfg["label_names"] == list("abcde")
    assert list(peers.timm.data.resolve_data_config({}, model=one)["mean"]) == content["mean"]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    two = peers.timm.create_model(config["architecture"], num_classes=5, **config["model_args"]).eval()
    peers.timm.models.load_checkpoint(two, str(tmp_path / "theirs" / "model.safetensors"))
    assert gap(two(images), ours.net(images)) <= 1e-5
    net = imported(tmp_path / "theirs", tmp_path / "back")
    side = options["image_size"]
    way = {"library": "timm", "resize": [side, side], "interpolation": "bilinear", "crop": [side, side]}
    assert json.loads((tmp_path / "back" / "images.json").read_text()) == {**content, "prepare": way}
    assert net.model["init_args"]["ffn"] == ours.place.config["model"]["init_args"]["ffn"]


# the sizes of published checkpoints, where they are not the defaults of the peer's class
SIZES = {
    "bert-large": ("BertForPreTraining", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                                          "intermediate_size": 4096}),
    "xlm-roberta-base": ("XLMRobertaForMaskedLM", {"vocab_size": 250002, **peers.PUBLISHED_ROBERTA}),
    "camembert-base": ("CamembertForMaskedLM", {"vocab_size": 32005, **peers.PUBLISHED_ROBERTA}),
    "distilbert-base": ("DistilBertForMaskedLM", {}),
    "modernbert-base": ("ModernBertForMaskedLM", {}),
    "eurobert-210m": ("EuroBertForMaskedLM", {}),
    "nllb-600m": ("M2M100ForConditionalGeneration", {"vocab_size": 256206}),
    "siglip-base": ("SiglipForImageClassification", {
        "vision_config": {"vision_use_head": False}, "num_labels": 1000}),
    "clip-vit-b32": ("CLIPForImageClassification", {"num_labels": 1000}),
    "dinov2-base": ("Dinov2ForImageClassification", {"image_size": 518, "num_labels": 1000, "use_mask_token": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_recipe_of_a_family_has_the_parameters_of_the_published_model(name):
    parsed = fit_options.parse("fit", [name])
    model = complete_options(run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"])
    _, config = _family(model, SIZES[name][0])
    cls, options = getattr(peers.transformers, SIZES[name][0]), SIZES[name][1]
    with torch.device("meta"):
        ours = rebuild_task({"model": model}, name).net
        theirs, exported = (cls(cls.config_class(**one)) for one in (options, config))
    for module in (theirs, exported) if "CLIP" in SIZES[name][0] else ():
        module.vision_model.post_layernorm = torch.nn.Identity()  # no class depends on it, and it is not read
    counts = [sum(one.numel() for one in module.parameters()) for module in (ours, theirs, exported)]
    assert counts == [counts[0]] * 3


TASK = """\
task: zoo_local
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""
CHOICE = 'doc_to_choice: ["yes", "no"]\nmetric_list: [{metric: acc}]'
ROLLING = "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]"


@pytest.mark.parametrize("specials", [(EOS,), SPECIALS], ids=["end", "all"])
def test_lm_eval_runs_a_local_task_on_an_exported_language_model(specials, tmp_path, monkeypatch, capsys):
    for name in ("lm_eval", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'lm-eval[hf]'")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder_of_ours(peers.LANGUAGE["llama"], tmp_path, specials)
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "again"), "--format", "hf"]) == 0
    rows = [{"question": f"is {n} even?", "answer": "yes" if n % 2 == 0 else "no"} for n in range(4)]
    (tmp_path / "data.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks").mkdir()
    for kind, more in (("multiple_choice", CHOICE), ("loglikelihood_rolling", ROLLING)):
        text = TASK.format(data=tmp_path / "data.json", kind=kind, more=more).replace("zoo_local", f"zoo_{kind}")
        (tmp_path / "tasks" / f"{kind}.yaml").write_text(text)
    tasks = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    arguments = f"pretrained={tmp_path / 'again'},dtype=float32"
    result = lm_eval.simple_evaluate(
        "hf", model_args=arguments, tasks=["zoo_multiple_choice", "zoo_loglikelihood_rolling"], task_manager=tasks,
        device="cpu", batch_size=2, bootstrap_iters=0,
    )["results"]  # fmt: skip
    assert 0 <= result["zoo_multiple_choice"]["acc,none"] <= 1
    model, tokenizer = zoo.load(tmp_path / "ours"), Tokenizer.bytes(specials)
    nats = sum(-log_probability(model, tokenizer, row["answer"]) for row in rows)
    sizes = sum(len(row["answer"].encode()) for row in rows)
    bits = nats / sizes / torch.log(torch.tensor(2.0))
    assert result["zoo_loglikelihood_rolling"]["bits_per_byte,none"] == pytest.approx(float(bits), rel=1e-4)


def log_probability(model, tokenizer, text):
    """Of a text behind the token with which a document begins, by the model itself."""
    first = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
    ids = torch.tensor([[first, *tokenizer.encode(text)]])
    with torch.no_grad():
        chance = model.net(ids).log_softmax(-1)[0, :-1]
    return float(chance.gather(-1, ids[0, 1:, None]).sum())


def test_an_export_of_a_model_of_dialogues_has_the_chat_template(tmp_path):
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "red"}]
    (tmp_path / "turns.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 20)
    words = [f"--data.{name}={tmp_path / 'turns.jsonl'}" for name in ("path", "val_path")]
    words += ["--data", "DialogueFiles", "--data.vocab_size", "300", "--data.max_length", "48", "--model.dim", "32"]
    words += [
        "--model.depth",
        "1",
        "--model.heads",
        "2",
        "--trainer.max_steps",
        "2",
        "--trainer.val_check_interval",
        "2",
    ]
    words += ["--trainer.logger", "false", "--trainer.accelerator", "cpu"]
    assert main(["fit", "dialogue-tiny", "--runs", str(tmp_path / "runs"), *words]) == 0
    run = next((tmp_path / "runs").glob("*/*/s1"))
    assert main(["export", str(run), str(tmp_path / "hf"), "--format", "hf"]) == 0
    theirs = peers.transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    messages.append({"role": "user", "content": "And before?"})
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    turns = Conversation(Turn(message["role"], message["content"]) for message in messages)
    assert ids == zoo.load(run).encode_prompt(turns)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo3", "gpt_oss", "qwen2"])
def test_a_model_whose_layers_all_see_everything_runs_in_transformers(kind, tmp_path):
    config = {"vocab_size": 41, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "head_dim": 8,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 5,
              "layer_types": ["full_attention"] * 2, "model_type": kind}  # fmt: skip
    if kind == "gpt_oss":
        config |= {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {"rope_type": "default"}}
    family = lookup.family_of(config, "c")
    model = complete_options({"class_path": family.task, "init_args": family.options(family.complete(config, "c"))})
    net = rebuild_task({"model": model}, "c").net.eval()
    family, published = _family(model, family.name)
    tensors = family.write_tensors(family.complete(published, "c"), keep_own_tensors(net))
    hf_files.save(tmp_path, {"architectures": [family.architecture], **published}, tensors)
    theirs = peers.transformers.AutoModelForCausalLM.from_pretrained(tmp_path).float().eval()
    ids = torch.randint(3, 41, (2, 20))
    assert torch.allclose(theirs(ids).logits, net(ids), atol=1e-5)
    again = family.options(family.complete(json.loads((tmp_path / "config.json").read_text()), "c"))
    assert complete_options({"class_path": family.task, "init_args": again}) == model


@torch.no_grad()
@pytest.mark.parametrize("path", ["zoo_text.tasks.preference.DPO", "zoo_text.tasks.infill.FIM"])
def test_a_language_model_is_one_of_its_family_whatever_task_trained_it(path, tmp_path):
    folder_of_ours(peers.LANGUAGE["llama-3"], tmp_path)
    trained = loaded(tmp_path / "ours")
    model = complete_options({"class_path": path, "init_args": trained.place.config["model"]["init_args"]})
    place = SimpleNamespace(config={"model": model}, folder=tmp_path / "ours")
    export_pretrained(SimpleNamespace(net=trained.net, place=place), tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(again(tokens).logits, trained.net(tokens))
