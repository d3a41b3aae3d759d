"""Encoders without a head: the vectors of sentence-transformers, in both directions, by every file beside them."""

import json
import shutil

import numpy as np
import peers
import pytest
import torch
from import_steps import gap, imported, loaded, same_tensors
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from zoo_pretrained import sentence_files
from zoo_pretrained.hf_export import export_pretrained
from zoo_pretrained.sentence_files import ENCODER, MODEL, POOLING

import zoo
from zoo.cli import main
from zoo.errors import CheckpointError, UsageError

library = pytest.importorskip("sentence_transformers", reason="compares vectors with those of sentence-transformers")
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer  # noqa: E402

WORDS = "the quick brown fox ##es jump over . lazy dog a b c ##a ##b".split()
TEXTS = ["the quick brown fox", "", "a", "jump over the lazy dog . " * 9, "foxes aab [SEP] the", "  the  quick ", "☃"]
SIZES = {key: peers.BERT[key] for key in peers.BERT if key != "max_position_embeddings"}
FAMILIES = {
    "bert": ("BertModel", "BertConfig", {**peers.BERT, "type_vocab_size": 2}),
    "roberta": ("RobertaModel", "RobertaConfig", peers.ROBERTA),
    "mpnet": ("MPNetModel", "MPNetConfig", {**SIZES, "max_position_embeddings": 50}),
}
SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
SPECIAL["mpnet"] = {**SPECIAL["roberta"], "unk": "[UNK]"}
# modules behind the encoder, and the longest text
FORMS = {
    "mean": (lambda dim: [Pooling(dim, "mean"), Normalize()], 12),
    "cls": (lambda dim: [Pooling(dim, "cls"), Dense(dim, 20), Normalize()], None),
    "max": (lambda dim: [Pooling(dim, "max"), Dense(dim, 8, bias=False, activation_function=torch.nn.GELU())], None),
    "lasttoken": (lambda dim: [Pooling(dim, "lasttoken")], 30),
}


def write_tokenizer(folder, family):
    """A tokenizer of words with the special tokens of a family, as its class in transformers saves it."""
    special = SPECIAL[family]
    vocabulary = {word: number for number, word in enumerate([*special.values(), *WORDS])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([*special.values()])
    marks = [(special[role], vocabulary[special[role]]) for role in ("cls", "sep")]
    inner.post_processor = processors.TemplateProcessing(f"{special['cls']} $A {special['sep']}", None, marks)
    inner.save(str(folder / "tokenizer.json"))
    kinds = {"bert": "BertTokenizer", "mpnet": "MPNetTokenizer", "roberta": "PreTrainedTokenizerFast"}
    roles = {f"{role}_token": token for role, token in special.items()}
    more = {"bos_token": "<s>", "eos_token": "</s>"} if family != "bert" else {}
    about = {**roles, **more, "tokenizer_class": kinds[family], "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def saved(folder, family="bert", form="mean", prompts=None):
    """A model of sentence-transformers with random weights, saved by it; the encoder alone lies in ``plain``."""
    encoder = folder.with_name(f"{folder.name}-plain")
    peers.build_peer(FAMILIES[family]).save_pretrained(encoder)
    write_tokenizer(encoder, family)
    modules, longest = FORMS[form]
    model = library.SentenceTransformer(modules=[Transformer(str(encoder)), *modules(32)], prompts=prompts)
    if longest is not None:
        model.max_seq_length = longest
    model.save(str(folder))
    return model


def edit(path, **changes):
    """Change keys of a JSON file; ``...`` removes one."""
    content = {**json.loads(path.read_text()), **changes} if path.is_file() else changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_sentence_transformers_and_come_back(family, form, tmp_path, capsys):
    theirs, ours, again = (tmp_path / name for name in ("theirs", "ours", "again"))
    model = saved(theirs, family, form, {"query": "the quick: ", "note": "a"})
    right = model.encode(TEXTS)
    assert main(["import", str(theirs), str(ours)]) == 0
    embedder = zoo.load(ours)
    np.testing.assert_allclose(embedder.embed(TEXTS), right, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(TEXTS, batch_size=1), right, atol=1e-6)
    queries = model.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(embedder.embed(TEXTS, prompt="query"), queries, atol=1e-6)
    assert main(["export", str(ours), str(again), "--format", "hf"]) == 0
    returned = library.SentenceTransformer(str(again))
    np.testing.assert_allclose(returned.encode(TEXTS), right, atol=1e-6)
    np.testing.assert_allclose(returned.encode(TEXTS, prompt_name="query"), queries, atol=1e-6)
    assert returned.prompts == model.prompts
    assert returned.max_seq_length == model.max_seq_length


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_alone_has_mean_vectors_as_sentence_transformers_makes_them(family, tmp_path):
    saved(tmp_path / "theirs", family)
    encoder = tmp_path / "theirs-plain"
    assert main(["import", str(encoder), str(tmp_path / "ours")]) == 0
    right = library.SentenceTransformer(str(encoder)).encode(TEXTS)
    np.testing.assert_allclose(zoo.load(tmp_path / "ours").embed(TEXTS), right, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_those_of_transformers_in_float64(family, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, torch.float64):
        model = peers.build_peer(FAMILIES[family], torch.float64)
        model.save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", torch.float64)
        tokens, valid = torch.randint(3, peers.WORDS, (2, 37)), torch.ones(2, 37, dtype=torch.bool)
        valid[0, 23:] = False
        tokens[0, 23:] = 1  # by which RoBERTa and MPNet count positions
        right = model(tokens, attention_mask=valid.long()).last_hidden_state
        assert gap(ours.net.states(tokens, valid)[valid], right[valid]) <= 1e-10
        export_pretrained(ours, tmp_path / "again")
        name = FAMILIES[family][0]
        again = getattr(peers.transformers, name).from_pretrained(tmp_path / "again", dtype=torch.float64)
        own = {key: value for key, value in model.state_dict().items() if not key.startswith("pooler")}
        assert all(torch.equal(again.state_dict()[key], value) for key, value in own.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_mpnet_fills_in_as_in_transformers_and_comes_back(dtype, tmp_path, monkeypatch):
    case = ("MPNetForMaskedLM", *FAMILIES["mpnet"][1:])
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", dtype)
        tokens = torch.randint(3, peers.WORDS, (2, 37))
        assert gap(ours.net(tokens), model(tokens).logits) <= (1e-10 if dtype == torch.float64 else 1e-5)
        export_pretrained(ours, tmp_path / "again")
        assert same_tensors(model, peers.reloaded(case, tmp_path / "again", dtype))


def test_older_files_and_the_head_that_a_configuration_names(tmp_path):
    model = saved(tmp_path / "theirs", "mpnet")
    folder = tmp_path / "theirs"
    right = model.encode(TEXTS)
    edit(folder / "config.json", architectures=["MPNetForMaskedLM"])  # as all-mpnet-base-v2 says
    flags = {name: mode == "mean" for mode, name in sentence_files.MODES.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **flags}))
    shutil.rmtree(folder / "2_Normalize")
    first = "sentence_transformers.models."
    old = [{"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": first + kind}
           for n, kind in enumerate(("Transformer", "Pooling", "Normalize"))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(old))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    edit(folder / "tokenizer_config.json", model_max_length=40)
    (folder / "config_sentence_transformers.json").unlink()
    assert main(["import", str(folder), str(tmp_path / "ours")]) == 0
    np.testing.assert_allclose(zoo.load(tmp_path / "ours").embed(TEXTS), right, atol=1e-6)


# file, changed key and value, and a piece of the message; without a piece it changes nothing
CHANGES = [
    ("sentence_bert_config.json", {"do_lower_case": True}, ""),
    ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task='fill-mask'"),
    ("sentence_bert_config.json", {"module_output_name": "causal_logits"}, "module_output_name"),
    ("sentence_bert_config.json", {"query_length": 8}, "query_length=8"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": "max_length"}}}, "processing_kwargs"),
    ("sentence_bert_config.json", {"unpad_inputs": False}, ""),
    ("sentence_bert_config.json", {"unknown": 1}, "unknown=1 is not a key"),
    ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling by ['weightedmean'] is not supported"),
    ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "pooling by ['mean', 'max']"),
    ("1_Pooling/config.json", {"pooling_mode": ["mean"]}, ""),
    ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt=False is not supported"),
    ("1_Pooling/config.json", {"embedding_dimension": 31}, "embedding_dimension=31 is not the width"),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name='token_embeddings'"),
    ("2_Normalize/config.json", {"module_output_name": "other"}, "module_output_name='other'"),
    ("config_sentence_transformers.json", {"truncate_dim": 4}, "truncate_dim=4"),
    ("config_sentence_transformers.json", {"default_prompt_name": "none"}, "default_prompt_name='none'"),
    ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "prompts={'a': 3}"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type='SparseEncoder'"),
    ("config_sentence_transformers.json", {"default_prompt_name": "document"}, ""),
    ("config_sentence_transformers.json", {"__version__": ..., "similarity_fn_name": None}, ""),
]


@pytest.mark.parametrize(("name", "changes", "message"), CHANGES, ids=lambda value: str(value)[:40])
def test_every_key_of_the_files_is_read_harmless_or_refused(name, changes, message, tmp_path, capsys):
    saved(tmp_path / "theirs")
    edit(tmp_path / "theirs" / name, **changes)
    code = main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")])
    if message:
        assert code == 2
        assert message in capsys.readouterr().err
        return
    right = library.SentenceTransformer(str(tmp_path / "theirs")).encode(TEXTS)
    np.testing.assert_allclose(zoo.load(tmp_path / "ours").embed(TEXTS), right, atol=1e-6)


def test_capitals_that_the_library_takes_away_are_refused_beside_a_tokenizer_that_keeps_them(tmp_path, capsys):
    saved(tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))
    edit(tmp_path / "theirs" / "tokenizer_config.json", do_lower_case=False)
    edit(tmp_path / "theirs" / "sentence_bert_config.json", do_lower_case=True)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    assert "do_lower_case=True is not supported where the tokenizer keeps capitals" in capsys.readouterr().err


def test_every_key_that_the_library_writes_is_declared():
    declared = {*ENCODER.read, *ENCODER.fixed, *ENCODER.ignored}
    assert {*Transformer.config_keys} <= declared
    assert {*Pooling.config_keys, *Pooling.config_key_renames} <= {*POOLING.read, *POOLING.fixed}
    model = library.SentenceTransformer(modules=[Normalize()])
    assert {*model._get_model_config()} <= {*MODEL.read, *MODEL.fixed, *MODEL.ignored}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda modules: [*modules, {"path": "3_WordWeights", "type": "sentence_transformers.models.WordWeights"}],
         "Transformer, Pooling, Normalize, WordWeights are not read"),
        (lambda modules: [modules[0], {**modules[1], "type": "theirs.Pooling"}], "theirs.Pooling are not read"),
        (lambda modules: modules[1:], "are not read"),
        (lambda modules: [{**modules[0], "path": "0_Transformer"}, *modules[1:]], "Move its files beside"),
        (lambda modules: [modules[0], {**modules[1], "path": "../other"}], "is no folder beside it"),
        (lambda modules: [modules[0], {**modules[1], "kwargs": ["task"]}], "kwargs is no key"),
        (lambda modules: {}, "the modules none are not read"),
        (lambda modules: [1], "is no list of modules"),
    ],
)  # fmt: skip
def test_other_modules_are_refused(change, message, tmp_path, capsys):
    saved(tmp_path / "theirs")
    path = tmp_path / "theirs" / "modules.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    assert message in capsys.readouterr().err


def test_pickled_or_foreign_weights_of_the_dense_layer_are_refused(tmp_path):
    saved(tmp_path / "theirs", form="cls")
    path = tmp_path / "theirs" / "2_Dense" / "model.safetensors"
    path.rename(path.with_name("pytorch_model.bin"))
    with pytest.raises(CheckpointError, match="the weights of the dense layer"):
        imported(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("causal", [False, True])
def test_any_encoder_of_zoo_is_a_model_of_sentence_transformers(causal, tmp_path, monkeypatch):
    from zoo_text.data.textpairs import TextPairFiles

    (tmp_path / "pairs").mkdir()
    TextPairFiles.sample_files(tmp_path / "pairs", 1)
    options = {
        "data": "TextPairFiles", "data.path": "pairs", "data.vocab_size": 300, "data.max_length": 16,
        "data.query_prompt": "find: ", "trainer.max_steps": 2, "trainer.val_check_interval": 2, "model.dim": 32,
        "model.depth": 1, "model.heads": 2, "model.position": "alibi", "model.ffn": "swiglu", "model.features": 12,
        "model.causal": str(causal).lower(), "model.pool": "last" if causal else "mean", "trainer.logger": "false",
        "model.learn_temperature": "true", "trainer.accelerator": "cpu",
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert main(["fit", "embedding-tiny", "--seed", "1", *words]) == 0
    run = next((tmp_path / "runs").glob("*/*/s1"))
    assert main(["export", str(run), "there", "--format", "transformers"]) == 0
    model = library.SentenceTransformer(str(tmp_path / "there"), trust_remote_code=True)
    texts = [text for text in TEXTS if "[SEP]" not in text]
    np.testing.assert_allclose(model.encode(texts), zoo.load(run).embed(texts), atol=1e-6)
    np.testing.assert_allclose(
        model.encode("a fox", prompt_name="query"), zoo.load(run).embed("a fox", prompt="query")[0], atol=1e-6
    )
    with pytest.raises(UsageError, match="no published family is this model"):
        export_pretrained(zoo.load(run), tmp_path / "published")
