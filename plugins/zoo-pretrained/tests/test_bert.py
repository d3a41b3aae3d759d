"""Encoders of transformers, imported: the same logits with padding and two kinds of tokens, in use, and back."""

import json

import peers
import pytest
import torch
from import_steps import gap, imported, loaded, same_tensors
from safetensors.torch import load_file, save_file
from zoo_pretrained.hf_export import export_pretrained
from zoo_pretrained.lookup import family_of

import zoo
from zoo.cli import main
from zoo.errors import CheckpointError, UsageError

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTH = 37  # beyond the reach of every table of distances


def logits(model, **inputs):
    """Those of the tokens or the classes, and of the pair where there is a head for it."""
    output = model(**inputs)
    both = getattr(output, "prediction_logits", None)
    return (output.logits, None) if both is None else (both, output.seq_relationship_logits)


@torch.no_grad()
@peers.in_both_types(peers.ENCODERS)
def test_an_encoder_and_its_import_agree_and_its_export_is_the_encoder(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", dtype)
        pad = case[2].get("pad_token_id")  # by which RoBERTa counts its positions
        tokens = torch.randint(4, peers.WORDS, (2, LENGTH))
        valid = torch.ones(2, LENGTH, dtype=torch.bool)
        valid[0, 23:] = False
        tokens[0, 23:] = pad or 0
        inputs = {"input_ids": tokens, "attention_mask": valid.long()}
        right, follows = logits(model, **inputs)
        real = valid if right.dim() == 3 else slice(None)
        assert gap(ours.net(tokens, valid)[real], right[real]) <= DTYPES[dtype]
        assert gap(ours.net(tokens)[1], right[1]) <= DTYPES[dtype]
        if follows is not None:
            follow_logits = ours.net.follow(ours.net.states(tokens, valid))
            assert gap(follow_logits.flip(-1), follows) <= DTYPES[dtype]

        if right.dim() == 3:  # padding on the left, where the first state that a class is read from is padding
            padded = {key: value.roll(LENGTH - 23, 1) for key, value in inputs.items()}
            numbers = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0)
            shifted, _ = logits(model, **padded, **({"position_ids": numbers} if pad is None else {}))
            mask = padded["attention_mask"].bool()
            assert gap(ours.net(padded["input_ids"], mask)[mask], shifted[mask]) <= DTYPES[dtype]

        if ours.net.segments > 1:
            kinds = (torch.arange(LENGTH) > 11).long().expand(2, -1)
            other, _ = logits(model, **inputs, token_type_ids=kinds)
            assert gap(ours.net(tokens, valid, kinds)[real], other[real]) <= DTYPES[dtype]
            assert gap(other[real], right[real]) > 1e-3

        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert gap(logits(again, **inputs)[0][real], right[real]) <= DTYPES[dtype] / 10
        assert same_tensors(model, again) or case[2].get("legacy") is False  # written with the other head's names


def folder(name, target, **changes):
    """A checkpoint with another configuration, and the logits that it gave before."""
    case = peers.ENCODERS[name]
    model = peers.build_peer(case)
    model.save_pretrained(target)
    content = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**content, **changes}))
    return model


def edited(target, change):
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "type='relative_key' is not supported"),
        ("bert", {"is_decoder": True}, "is_decoder=True is not supported in bert"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
        ("bert", {"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ("bert", {"type_vocab_size": 0}, "type_vocab_size=0 is not supported"),
        (
            "bert",
            {"architectures": ["BertForNextSentencePrediction"]},
            "BertForNextSentencePrediction is not read; of bert there is BertForMaskedLM",
        ),
        ("bert-texts", {"problem_type": "regression"}, "problem_type='regression' is not supported"),
        ("roberta", {"pad_token_id": None}, "pad_token_id=None is not supported in roberta"),
        ("deberta-3", {"conv_kernel_size": 3}, "conv_kernel_size=3 is not supported in deberta-v2; 0 would be"),
        ("deberta-3", {"relative_attention": False}, "relative_attention=False is not supported"),
        ("deberta-3", {"pos_att_type": ["p2p", "c2p"]}, "pos_att_type=.* is not supported"),
        ("deberta-3", {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd='batch_norm' is not supported"),
        ("deberta-3", {"embedding_size": 16}, "embedding_size=16 is not supported"),
        ("deberta-3", {"attention_head_size": 16}, "attention_head_size=16 is not supported"),
        ("deberta-texts", {"pooler_dropout": 0.1}, "pooler_dropout=0.1 is not supported"),
        ("deberta-texts", {"pooler_hidden_size": 16}, "pooler_hidden_size=16 is not supported"),
    ],
)
def test_what_no_part_expresses_is_refused_by_its_key(name, changes, message, tmp_path):
    folder(name, tmp_path / "theirs", **changes)
    with pytest.raises(UsageError, match=message):
        imported(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("bert", "cls.predictions.transform.dense.bias", r"no tensor for transform\.bias"),
        ("bert-pairs", "cls.seq_relationship.bias", r"no tensor for follows\.bias"),
        ("roberta", "roberta.embeddings.token_type_embeddings.weight", r"no tensor for segment\.weight"),
        ("deberta-3", "deberta.encoder.rel_embeddings.weight", r"no tensor for .*places\.table\.weight"),
        ("deberta-own-matrices", "deberta.encoder.layer.1.attention.self.pos_key_proj.weight", r"1\.attend.*place_key"),
        ("deberta-3", "deberta.encoder.layer.0.attention.self.key_proj.weight", r"lacks .*key_proj\.weight"),
    ],
)
def test_a_missing_tensor_is_named(name, key, message, tmp_path):
    folder(name, tmp_path / "theirs")
    edited(tmp_path / "theirs", lambda tensors: tensors.pop(key))
    with pytest.raises(CheckpointError, match=message):
        imported(tmp_path / "theirs", tmp_path / "ours")


def test_a_table_of_another_size_and_a_tensor_without_a_place_are_named(tmp_path):
    folder("deberta-3", tmp_path / "theirs", position_buckets=7)
    with pytest.raises(CheckpointError, match=r"rel_embeddings\.weight is \(12, 32\) where .* says \(14, 32\)"):
        imported(tmp_path / "theirs", tmp_path / "ours")
    folder("deberta-own-matrices", tmp_path / "other", share_att_key=True)
    with pytest.raises(CheckpointError, match=r"pos_key_proj\.bias: its configuration has no place for it"):
        imported(tmp_path / "other", tmp_path / "ours")


def test_early_names_of_norms_are_read_and_both_names_are_refused(tmp_path):
    model = folder("bert", tmp_path / "theirs")

    def change(tensors):
        for key in list(tensors):
            if "LayerNorm" in key:
                old = key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                tensors[old] = tensors.pop(key)

    edited(tmp_path / "theirs", change)
    imported(tmp_path / "theirs", tmp_path / "ours")
    tokens = torch.randint(peers.WORDS, (1, 9))
    with torch.no_grad():
        assert gap(loaded(tmp_path / "ours").net(tokens), model(tokens).logits) <= 1e-5
    edited(tmp_path / "theirs", lambda tensors: tensors.update({"bert.embeddings.LayerNorm.weight": torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"LayerNorm\.\w+ and .*LayerNorm\.\w+, which are one tensor"):
        imported(tmp_path / "theirs", tmp_path / "again")


def test_a_checkpoint_that_has_the_head_of_pairs_is_read_with_it_whatever_it_is_called(tmp_path):
    folder("bert-pairs", tmp_path / "theirs", architectures=["BertForMaskedLM"])
    model = imported(tmp_path / "theirs", tmp_path / "ours")
    assert model.model["init_args"]["next_sentence"] == 1.0
    assert loaded(tmp_path / "ours").net.follows is not None


def test_heads_that_are_not_read_are_listed(tmp_path, capsys):
    folder("deberta-new-head", tmp_path / "theirs", legacy=True)  # as version 3 is published: it does not say so
    extra = {f"mask_predictions.dense.{end}": torch.ones(2) for end in ("weight", "bias")}
    edited(tmp_path / "theirs", lambda tensors: tensors.update(extra))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert "mask_predictions.dense.bias, mask_predictions.dense.weight" in capsys.readouterr().out


def test_a_swapped_part_of_an_imported_encoder_is_accounted_for(tmp_path, capsys):
    folder("bert", tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--model.norm", "rmsnorm"]) == 0
    output = capsys.readouterr().out
    assert "left out: 8 tensors, 256 numbers" in output  # shifts: two of each layer, the embedding's and the head's
    assert "new: 0 tensors" in output
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "two"), "--model.attention", "disentangled"]) == 0
    output = capsys.readouterr().out
    assert "new: 1 tensors" in output
    assert "stack.blocks.*.attend.part.places.table.weight (64, 32)" in output
    assert "left out: 0 tensors" in output
    assert (
        export_pretrained(loaded(tmp_path / "two"), tmp_path / "again").name == "deberta-v2"
    )  # for that is what it now is
    tokens = torch.randint(peers.WORDS, (2, LENGTH))
    with torch.no_grad():
        again = peers.transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "again").eval()
        assert gap(again(tokens).logits, loaded(tmp_path / "two").net(tokens)) <= 1e-5
    with pytest.raises(UsageError, match=r"bert has model\.norm LayerNorm and not RMSNorm"):
        export_pretrained(loaded(tmp_path / "ours"), tmp_path / "third")


def test_every_family_is_found_by_its_head():
    for case in peers.ENCODERS.values():
        kind = getattr(peers.transformers, case[1]).model_type
        assert case[0] in family_of({"model_type": kind, "architectures": [case[0]]}, "config.json").architectures


def wordpiece(target):
    """A tokenizer as BERT's are saved, with its special tokens' numbers."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "brown", "fox", "##es", "jump", "over", "."]
    inner = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(words[:5])
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    inner.save(str(target / "tokenizer.json"))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    (target / "tokenizer_config.json").write_text(json.dumps(names))
    return inner


@torch.no_grad()
def test_an_imported_bert_fills_in_and_names_texts_as_transformers_does(tmp_path, capsys):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model = folder("bert", theirs)
    inner = wordpiece(theirs)
    assert main(["import", str(theirs), str(ours)]) == 0
    filled = zoo.load(ours).fill("the quick [MASK] jump over", top=3)[0]
    ids = torch.tensor([inner.encode("the quick [MASK] jump over").ids])
    assert ids[0, 3] == 4
    chance = model(ids).logits[0, 3].double()
    chance[:5] = -torch.inf
    best = chance.softmax(-1).topk(3)
    assert [guess.probability for guess in filled.guesses[0]] == pytest.approx(best.values.tolist(), abs=1e-6)

    model = folder("bert-texts", tmp_path / "texts", id2label={str(n): name for n, name in enumerate("abcde")})
    inner = wordpiece(tmp_path / "texts")
    assert main(["import", str(tmp_path / "texts"), str(tmp_path / "named")]) == 0
    answer = zoo.load(tmp_path / "named").classify("the brown foxes")[0]
    right = model(torch.tensor([inner.encode("the brown foxes").ids])).logits[0].softmax(-1).sort(descending=True)
    assert [guess.label for guess in answer] == ["abcde"[n] for n in right.indices.tolist()]
    assert [guess.probability for guess in answer] == pytest.approx(right.values.tolist(), abs=1e-5)
    assert main(["export", str(tmp_path / "named"), str(tmp_path / "again"), "--format", "hf"]) == 0
    assert peers.transformers.AutoConfig.from_pretrained(tmp_path / "again").id2label[2] == "c"
    assert main(["fit", str(ours / "recipe.yaml"), "--print_config"]) == 0
