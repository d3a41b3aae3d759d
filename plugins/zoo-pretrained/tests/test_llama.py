"""Decoders of transformers, imported: the same logits with padding and with a cache, the same text, and back."""

import json

import peers
import pytest
import torch
from import_steps import FAMILIES, gap, imported, loaded, same_tensors
from zoo_pretrained.decoder import Decoder
from zoo_pretrained.hf_export import export_pretrained
from zoo_pretrained.llama import Llama

import zoo
from zoo.cli import main
from zoo.errors import UsageError

transformers = peers.transformers

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}


@torch.no_grad()
@peers.in_both_types(peers.LANGUAGE)
def test_a_decoder_and_its_import_agree_and_its_export_is_the_decoder(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", dtype)
        tokens = torch.randint(peers.WORDS, (2, 24))
        right = model(tokens).logits
        assert gap(ours.net(tokens), right) <= DTYPES[dtype]

        # padding on the left, where each row's first real token is its first position
        valid = torch.ones(2, 24, dtype=torch.bool)
        valid[0, :7] = False
        places = (valid.cumsum(1) - 1).clamp(min=0)
        padded = model(tokens, attention_mask=valid.long(), position_ids=places).logits
        assert gap(ours.net(tokens, valid)[valid], padded[valid]) <= DTYPES[dtype]
        assert gap(padded[0, 7:], right[0, 7:]) > 1e-3 or not case[0].startswith("GPT2")

        # padding on the right changes nothing in front of it
        valid = torch.arange(24) < torch.tensor([[24], [15]])
        assert gap(ours.net(tokens, valid)[valid], right[valid]) <= DTYPES[dtype]

        # with a cache, in uneven steps
        caches, steps = ours.net.stack.caches(24), []
        for begin, end in ((0, 5), (5, 6), (6, 17), (17, 24)):
            steps.append(ours.net(tokens[:, begin:end], None, caches))
        assert gap(torch.cat(steps, 1), right) <= DTYPES[dtype]

        # and out again
        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert gap(again(tokens).logits, right) <= DTYPES[dtype] / 10
        assert same_tensors(model, again)


@torch.no_grad()
@peers.some_by_default(peers.LANGUAGE, {"gpt2", "llama-3", "qwen3-window"})  # positions in a table, stretched, a window
def test_both_write_the_same_64_tokens(case, tmp_path):
    model = peers.build_peer(case)
    model.save_pretrained(tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    ours = loaded(tmp_path / "ours").net
    prompts = torch.randint(2, peers.WORDS, (3, 9))
    tokens = model.generate(prompts, max_new_tokens=64, do_sample=False, pad_token_id=0)[:, 9:]
    state, generated, new = ours.begin(9 + 64), [], prompts
    for _ in range(64):
        new = state.step(new).argmax(-1)[:, None]
        generated.append(new)
    assert torch.cat(generated, 1).tolist() == tokens.tolist()
    assert len(set(tokens.flatten().tolist())) > 4  # no model that repeats one token


@torch.no_grad()
def test_a_decoder_without_a_tokenizer_goes_in_and_out(tmp_path, capsys):
    case = peers.LANGUAGE["gpt2"]
    model = peers.build_peer(case)
    model.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "again"), "--format", "hf"]) == 0
    assert same_tensors(model, peers.reloaded(case, tmp_path / "again"))
    assert main(["generate", str(tmp_path / "ours"), "--prompt", "x"]) != 0
    assert "tokenizer.json" in capsys.readouterr().err


@torch.no_grad()
def test_the_command_imports_uses_and_exports_with_its_tokenizer(tmp_path, capsys):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(alphabet), show_progress=False
    )
    inner.train_from_iterator(["the quick brown fox"], learn)
    size = inner.get_vocab_size()
    case = ("GPT2LMHeadModel", "GPT2Config", {**peers.GPT2, "vocab_size": size, "eos_token_id": 0, "bos_token_id": 0})
    model = peers.build_peer(case)
    theirs, ours, again = tmp_path / "theirs", tmp_path / "ours", tmp_path / "again"
    model.save_pretrained(theirs)
    inner.save(str(theirs / "tokenizer.json"))
    assert main(["import", str(theirs), str(ours)]) == 0
    output = capsys.readouterr().out
    assert "gpt2: CausalLM" in output
    assert "new: 0 tensors" in output
    trained = zoo.load(ours)
    assert trained.tokenizer.eos == 0
    text = trained.generate("the quick", length=20, temperature=0.0)[0]
    ids = torch.tensor([inner.encode("the quick").ids])
    other = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert text.text == inner.decode(other[0, ids.size(1) :].tolist())
    assert trained.score("the quick").bytes == 9
    assert main(["export", str(ours), str(again), "--format", "hf"]) == 0
    assert same_tensors(model, peers.reloaded(case, again))
    assert peers.transformers.AutoConfig.from_pretrained(again).eos_token_id == 0
    assert (again / "tokenizer.json").read_text() == (ours / "tokenizer.json").read_text()
    assert main(["fit", str(ours / "recipe.yaml"), "--print_config"]) == 0


DIVIDED_OR_NOT = [
    family() for family in FAMILIES
    if issubclass(family, Decoder) and {"head_dim", "num_key_value_heads"} <= {*family.keys.read}
    and "v_head_dim" not in family.keys.read
]  # fmt: skip
WIDE = {"hidden_size": 18, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}  # 18 / 4 is no width


@pytest.mark.parametrize("family", DIVIDED_OR_NOT, ids=lambda family: family.name)
def test_a_width_that_heads_do_not_divide_is_refused_where_its_class_refuses_it(family):
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family.types[0]]
    config = {**family.example, **WIDE}
    try:
        kind(**config).validate()
    except Exception:
        with pytest.raises(UsageError, match="a divisor of hidden_size=18"):
            family.complete(config, "config.json")
    else:
        assert family.complete(config, "config.json")["head_dim"] == 6


@torch.no_grad()
def test_a_width_that_heads_do_not_divide_is_exported_as_a_relative_that_takes_it(tmp_path):
    """Mistral is LLaMA where no layer has a window."""
    config = {**Llama.example, "model_type": "mistral", "sliding_window": None, **WIDE}
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**config)).eval()
    model.save_pretrained(tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    place = tmp_path / "ours" / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "family": "llama"}))
    assert export_pretrained(loaded(tmp_path / "ours"), tmp_path / "again").name == "mistral"
    again, tokens = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again"), torch.arange(12)[None]
    assert gap(again(tokens).logits, model(tokens).logits) <= 1e-6
