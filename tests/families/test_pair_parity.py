"""Encoder-decoders of transformers, imported: the same logits with padding and with caches, the same text, and back."""

import peers
import pytest
import torch
from bringing import gap, imported, loaded, same_tensors

from zoo.families.carry import carry

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
cases = pytest.mark.parametrize("case", peers.PAIRS.values(), ids=peers.PAIRS)


@torch.no_grad()
@cases
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_a_pair_and_its_import_agree_and_its_export_is_the_pair(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.made(case, dtype)
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

        carry(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert same_tensors(model, again)
        assert gap(again(input_ids=source, decoder_input_ids=target).logits, right) <= DTYPES[dtype] / 10


@torch.no_grad()
@cases
def test_both_write_the_same_64_tokens(case, tmp_path):
    # transformers' cache is as long as the encoder
    case = (*case[:2], {**case[2], "num_layers": 3}) if "T5" in case[0] else case
    model = peers.made(case)
    model.save_pretrained(tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    ours = loaded(tmp_path / "ours").net
    source, first = torch.randint(3, peers.WORDS, (3, 9)), case[2]["decoder_start_token_id"]
    said = model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=64, min_new_tokens=64,
                          do_sample=False, num_beams=1)[:, 1:]  # fmt: skip
    state, new, written = ours.begin(source, None, 65), torch.full((3, 1), first), []
    for _ in range(64):
        new = state.step(new).argmax(-1)[:, None]
        written.append(new)
    assert torch.cat(written, 1).tolist() == said.tolist()
