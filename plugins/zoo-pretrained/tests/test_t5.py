"""Encoder-decoders of transformers, imported: the same logits with padding and with caches, the same text, and back."""

import json

import peers
import pytest
import torch
from import_steps import gap, imported, loaded, same_tensors
from zoo_pretrained.hf_export import export_pretrained

import zoo
from zoo.cli import main

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}


@torch.no_grad()
@peers.in_both_types(peers.PAIRS)
def test_a_pair_and_its_import_agree_and_its_export_is_the_pair(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", dtype)
        source, target = torch.randint(3, peers.WORDS, (2, 21)), torch.randint(3, peers.WORDS, (2, 24))
        right = model(input_ids=source, decoder_input_ids=target).logits
        assert gap(ours.net(source, target), right) <= DTYPES[dtype]

        valid = torch.ones(2, 21, dtype=torch.bool)
        valid[0, 13:] = False
        padded = model(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
        assert gap(ours.net(source, target, valid), padded) <= DTYPES[dtype]
        assert gap(padded[0], right[0]) > 1e-4

        memory, caches, steps = ours.net.encode(source, valid), ours.net.decoder.caches(24), []
        for begin, end in ((0, 1), (1, 6), (6, 24)):
            steps.append(ours.net.decode(target[:, begin:end], memory, caches))
        assert gap(torch.cat(steps, 1), padded) <= DTYPES[dtype]

        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert same_tensors(model, again)
        assert gap(again(input_ids=source, decoder_input_ids=target).logits, right) <= DTYPES[dtype] / 10


@torch.no_grad()
@peers.some_by_default(peers.PAIRS, {"t5-1.1", "marian"})  # the others write as commands below
def test_both_write_the_same_64_tokens(case, tmp_path):
    # transformers' cache is as long as the encoder
    case = (*case[:2], {**case[2], "num_layers": 3}) if "T5" in case[0] else case
    model = peers.build_peer(case)
    model.save_pretrained(tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    ours = loaded(tmp_path / "ours").net
    source, first = torch.randint(3, peers.WORDS, (3, 9)), case[2]["decoder_start_token_id"]
    tokens = model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=64, min_new_tokens=64,
                          do_sample=False, num_beams=1)[:, 1:]  # fmt: skip
    state, new, generated = ours.begin(source, None, 65), torch.full((3, 1), first), []
    for _ in range(64):
        new = state.step(new).argmax(-1)[:, None]
        generated.append(new)
    assert torch.cat(generated, 1).tolist() == tokens.tolist()


def tokenizer(target, template, **names):
    """A tokenizer of 41 tokens as transformers saves one: its template puts special tokens around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{n}" for n in range(peers.WORDS - 4))]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(words[:4])
    inner.post_processor = processors.TemplateProcessing(template, None, [("<s>", 0), ("</s>", 2), ("w4", 8)])
    inner.save(str(target / "tokenizer.json"))
    (target / "special_tokens_map.json").write_text(json.dumps(names))
    return inner


NAMES = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TEXTS = {
    "bart": ("<s> $A </s>", {**NAMES, "bos_token": "<s>"}, {"bos_token_id": 0, "eos_token_id": 2}),
    "bart-forced": (
        "<s> $A </s>",
        {**NAMES, "bos_token": "<s>"},
        {"bos_token_id": 0, "eos_token_id": 2, "forced_bos_token_id": 0},
    ),
    "mbart-forced": ("$A </s> w4", NAMES, {"eos_token_id": 2, "forced_bos_token_id": 3}),
    "m2m100-forced": (
        "w4 $A </s>",
        NAMES,
        {"eos_token_id": 2, "pad_token_id": 1, "forced_bos_token_id": 0, "scale_embedding": False},
    ),
    "marian": ("$A </s>", NAMES, {"eos_token_id": 2, "decoder_start_token_id": 1}),
    "t5": ("$A </s>", NAMES, {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 1, "num_layers": 3}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_translated_as_transformers_generates_them(name, tmp_path):
    template, names, options = TEXTS[name]
    one, two, sizes = peers.PAIRS[name.partition("-")[0]]
    model = peers.build_peer((one, two, {**sizes, **options}))
    model.generation_config.forced_bos_token_id = options.get("forced_bos_token_id")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model.save_pretrained(theirs)
    inner = tokenizer(theirs, template, **names)
    assert main(["import", str(theirs), str(ours)]) == 0
    forced = "forced_bos_token_id" in options  # what is forced is a token more
    trained, expected, searched = zoo.load(ours), [], []
    texts = ["w3 w9 w1", "w5 w30 w2 w2 w8 w17", "w11"]
    for text in texts:
        source = torch.tensor([inner.encode(text).ids])
        answer = model.generate(
            source, attention_mask=torch.ones_like(source), do_sample=False, num_beams=1, eos_token_id=2,
            max_new_tokens=2 * source.size(1) + 10 + forced,
        )  # fmt: skip
        expected.append(inner.decode(answer[0, 1:].tolist()))
        answer = model.generate(
            source, attention_mask=torch.ones_like(source), do_sample=False, num_beams=3, length_penalty=0.0,
            eos_token_id=2, max_new_tokens=9,
        )  # fmt: skip
        searched.append(inner.decode(answer[0, 1:].tolist()))
    by_beams = trained.translate(texts, beams=3, length_penalty=0.0, max_length=9)
    assert [one.text for one in by_beams] == searched
    got = [one.text for one in trained.translate(texts)]
    assert got == expected
    assert any(len(text.split()) > 9 for text in expected)
