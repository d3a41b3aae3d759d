"""A trained translator keeps order, memory and count, whatever it is made of."""

import gc
import io
import itertools
import random
import sys
import tracemalloc

import pytest
import torch

import zoo
from zoo.cli import main
from zoo.errors import UsageError
from zoo.inference.translation import buckets
from zoo.models.generation import generate

LINES = ["March 3, 2021", "", "5 hours", "  ", "2 days", "12:30 PM", "7 weeks", "January 1, 1999 and more"]


def texts(translations):
    return [one.text for one in translations]


def test_lines_keep_their_order_and_do_not_depend_on_their_batch(model):
    lines, how = LINES * 5, {"max_length": 16}
    random.Random(2).shuffle(lines)
    alone = {line: model("pairs").translate(line, **how)[0].text for line in LINES}
    expected = [alone[line] for line in lines]
    assert texts(model("pairs").translate(lines, **how)) == expected
    assert texts(model("pairs").translate(lines[:9], batch_tokens=1, **how)) == expected[:9]
    for window in (1, 7, 4096):
        assert list(model("pairs").translate_stream(lines[:20], window=window, **how)) == expected[:20]
    assert alone[""] == alone["  "] == ""
    assert len(set(expected)) > 5


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_translation_may_be_as_short_as_what_it_begins_with(model, length, monkeypatch):
    trained = model("pairs")
    monkeypatch.setattr(trained, "forced", [5])
    for beams in (1, 2):
        (translation,) = trained.translate(["5 hours"], max_length=length, beams=beams)
        assert len(trained.target_tokenizer.encode(translation.text)) <= max(1, length - 1)


def test_a_stream_reads_one_window_ahead_and_keeps_nothing(model):
    read = itertools.count()
    lines = (f"{next(read) % 9} hours" for _ in range(10**9))
    stream = model("pairs").translate_stream(lines, window=8, max_length=4)
    for _ in range(9):
        next(stream)
    assert next(read) == 16
    for _ in range(50):
        next(stream)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(400):
        next(stream)
    gc.collect()  # what refers to itself is not kept, though it waits for the collector
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000


@pytest.mark.parametrize("beams", [1, 3])
def test_the_score_of_a_translation_is_the_log_probability_of_its_tokens(model, beams):
    trained = model("pairs")
    for line in ("5 hours", "March 3, 2021"):
        source = [*trained.source_tokenizer.encode(line), trained.source_end]
        search = trained.search(beams, 1.0, beams, 12)
        state = trained.net.begin(torch.tensor([source]), None, 12)
        hypotheses = generate(state, torch.tensor([[trained.start]]), trained.end, search)[0]
        answer = trained.translate(line, beams=beams, n_best=beams, max_length=12)
        assert texts(answer) == [trained.target_tokenizer.decode(one.tokens) for one in hypotheses]
        for one, (tokens, _, ended) in zip(answer, hypotheses, strict=True):
            target = [trained.start, *tokens, *([trained.end] if ended else [])]
            log_probs = trained.log_probabilities([source], [target])[0].sum().item()
            assert one.score == pytest.approx(log_probs, abs=1e-4)
            assert one.ended == ended
            if ended and trained.target_tokenizer.encode(one.text) == tokens:
                assert trained.score(line, one.text).log_probability == pytest.approx(log_probs, abs=1e-4)


def test_scores_are_those_of_the_task(model):
    trained = model("pairs")
    sources, targets = ["5 hours", "March 3, 2021", ""], ["5 Stunden", "3. März 2021", "x"]
    result = trained.score(sources, targets)
    for source, target, one in zip(sources, targets, result, strict=True):
        source_tokens = torch.tensor([[*trained.source_tokenizer.encode(source), trained.source_end]])
        right = torch.tensor([[trained.start, *trained.target_tokenizer.encode(target), trained.end]])
        batch = {
            "source": source_tokens,
            "target": right,
            "source_valid": source_tokens >= 0,
            "target_valid": right >= 0,
        }
        nothing = {"slots": torch.zeros(0, 5, dtype=torch.long), "decode": torch.tensor([False])}
        total, size = trained.task.evaluate(batch | nothing)
        assert one.log_probability == pytest.approx(-total.item(), rel=1e-4)
        assert (one.tokens, one.bytes) == (int(size), len(target.encode()))
    with pytest.raises(UsageError, match="2 sources and 1 targets"):
        model("pairs").score(["a", "b"], ["c"])
    with pytest.raises(UsageError, match="target 1 has"):
        model("pairs").score("a", "b " * 200)


def test_a_line_that_is_too_long_is_named_left_out_or_cut(model, caplog):
    lines = ["5 hours", "9 " * 300, "2 days"]
    with pytest.raises(UsageError, match=r"line 2 has \d+ tokens, more than max_length=96 of the model"):
        model("pairs").translate(lines)
    with pytest.raises(UsageError, match=r"line 6 has"):
        list(model("pairs").translate_stream(["5 hours"] * 4 + lines, window=4))
    skipped = texts(model("pairs").translate(lines, too_long="skip"))
    assert skipped[1] == ""
    assert "line 2 has" in caplog.text
    assert texts(model("pairs").translate(lines, too_long="truncate"))[::2] == skipped[::2]
    (source,) = model("pairs")._sources([lines[1]], 1, "truncate").values()
    assert len(source) == model("pairs").net.max_length
    assert source[-1] == model("pairs").source_end
    with pytest.raises(UsageError, match="too_long must be one of"):
        model("pairs").translate(lines, too_long="drop")
    with pytest.raises(UsageError, match="max_length=97 is more than the model's own max_length=96"):
        model("pairs").translate(lines, max_length=97)


def test_batches_hold_what_they_may():
    lengths = sorted([3, 9, 4, 4, 30, 1, 2])
    result = list(buckets(range(7), lengths, 12))
    assert [row for part in result for row in part] == list(range(7))
    assert all(len(part) == 1 or len(part) * lengths[part[-1]] <= 12 for part in result)


def test_tokenizers_without_ends_are_refused(model, tmp_path, runs):
    folder = model("pairs").export(tmp_path / "out")
    tokens = next(runs.glob("*/learned/s1")) / "tokenizer.json"
    (folder / "source-tokenizer.json").write_bytes(tokens.read_bytes())
    with pytest.raises(UsageError, match="lack <bos> or <eos>"):
        zoo.load(folder)


def test_a_language_is_chosen_by_its_token(tmp_path, monkeypatch, capsys, model):
    words = ["--data.size", "300", "--data.vocab_size", "400", "--data.eval_limit", "2", "--data.max_tokens", "600"]
    words += ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.logger", "false"]
    words += ["--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--trainer.accelerator", "cpu"]
    assert main(["fit", "multilingual-tiny", "--runs", str(tmp_path), *words]) == 0
    run = next(tmp_path.glob("*/*/s1"))
    several, sources = zoo.load(run), []
    begin = several.net.begin
    monkeypatch.setattr(several.net, "begin", lambda source, *more: sources.append(source) or begin(source, *more))
    with pytest.raises(UsageError, match=r"translates into de, fr, es, it: name one with --to"):
        several.translate("5 hours")
    tokenizer = several.source_tokenizer
    for locale in ("it", "de"):
        several.set_language(locale)
        several.translate("5 hours", max_length=4)
        expected = [tokenizer.specials[f"<2{locale}>"], *tokenizer.encode("5 hours"), tokenizer.eos]
        assert sources[-1][0].tolist() == expected
    with pytest.raises(UsageError, match="and not into 'ru'"):
        several.set_language("ru")
    with pytest.raises(UsageError, match="has one target language, and not into 'de'"):
        model("pairs").set_language("de")
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"5 hours\n")))
    assert main(["translate", str(run), "--to", "it", "--max-length", "4"]) == 0
    several.set_language("it")
    assert capsys.readouterr().out.rstrip("\n") == several.translate("5 hours", max_length=4)[0].text.replace("\n", " ")


def test_a_translation_that_is_cut_off_is_told_unless_its_length_was_asked_for(model, caplog, monkeypatch):
    from zoo.inference import translation

    pairs = model("pairs")
    monkeypatch.setattr(translation, "FACTOR", 0)
    monkeypatch.setattr(translation, "MORE", 1)
    translations = pairs.translate(["3 hours", "5 hours"])
    assert not any(one.ended for one in translations)
    assert "line 1: the translation did not end" in caplog.text or "line 2: the translation did not end" in caplog.text
    assert "2 of 2 translations were cut off" in caplog.text
    caplog.clear()
    assert not pairs.translate("3 hours", max_length=1)[0].ended
    assert not caplog.text
