"""A trained language model writes and scores."""

import itertools
import math

import pytest
import torch

from tests.covering import choices_in_turn
from zoo.data.conversation import Turn
from zoo.errors import UsageError
from zoo.inference import language
from zoo.models.generation import GenerationConfig, generate

PROMPTS = ["the quick", "t", "dog, and the", "over", "the lazy d", "a"]
FLAVOURS = ("learned", "rope", "flash")


def close(one, other):
    assert [a.text for a in one] == [b.text for b in other]
    assert [a.score for a in one] == pytest.approx([b.score for b in other], abs=1e-4)


@pytest.mark.parametrize("name", FLAVOURS)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_writes_what_each_prompt_alone_does(model, name, beams):
    how = {"length": 10, "temperature": 0.0, "beams": beams, "n_best": beams}
    together = model(name).generate(PROMPTS, **how)
    close(together, [one for prompt in PROMPTS for one in model(name).generate(prompt, **how)])
    assert len(together) == beams * len(PROMPTS)


def test_padding_is_used_where_every_attention_takes_it(model):
    lengths = [3, 1, 3, 2]
    assert list(model("rope")._batches(lengths)) == [[1, 3, 0, 2]]
    assert list(model("flash")._batches(lengths)) == [[1], [3], [0, 2]]


@pytest.mark.parametrize("name", FLAVOURS)
def test_the_greedy_text_is_the_likeliest_token_again_and_again(model, name):
    trained = model(name)
    prompt, end = trained.tokenizer.encode("the"), trained.tokenizer.eos
    ids = list(prompt)
    for _ in range(8):
        ids.append(int(trained.net(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == end:
            break
    answer = trained.generate("the", length=8, temperature=0.0)[0]
    assert answer.text == trained.tokenizer.decode(ids[len(prompt) :])
    assert answer.score == pytest.approx(
        trained.log_probabilities(torch.tensor([ids]))[0, len(prompt) - 1 :].sum().item(), abs=1e-4
    )


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["learned", "flash"])
def test_what_was_written_scores_what_the_search_said(model, name, beams):
    trained = model(name)  # characters: a text has one sequence of tokens only
    for one in trained.generate("the lazy", length=9, temperature=0.0, beams=beams, n_best=beams):
        if not one.ended:
            lead = trained.tokenizer.encode("the lazy")
            ids = torch.tensor([lead + trained.tokenizer.encode(one.text)])
            assert trained.log_probabilities(ids)[0, len(lead) - 1 :].sum().item() == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize("name", FLAVOURS)
def test_the_chain_rule(model, name):
    trained = model(name)
    whole, first = trained.score("the quick brown fox jumps over"), trained.score("the quick")
    continuation = trained.score(" brown fox jumps over", context="the quick")
    assert whole.log_probability == pytest.approx(first.log_probability + continuation.log_probability, abs=1e-4)
    assert (whole.tokens, whole.bytes) == (first.tokens + continuation.tokens, first.bytes + continuation.bytes)
    assert whole.tokens == len("the quick brown fox jumps over") - (trained.tokenizer.eos is None)


@pytest.mark.parametrize("name", FLAVOURS)
def test_a_score_is_the_sum_of_the_steps(model, name):
    trained = model(name)
    eos = trained.tokenizer.eos
    text = "the dog sleeps"
    ids = ([] if eos is None else [eos]) + trained.tokenizer.encode(text)
    state, total = trained.net.begin(len(ids)), 0.0
    for token, following in itertools.pairwise(ids):
        total += state.step(torch.tensor([[token]])).double().log_softmax(-1)[0, following].item()
    result = trained.score(text)
    assert result.log_probability == pytest.approx(total, abs=1e-4)
    assert result.perplexity == pytest.approx(math.exp(-total / result.tokens))


def test_a_long_text_is_read_as_in_evaluation(model, runs):
    from zoo.data.text import Blocks

    trained = model("learned")
    text = (runs.parent / "one.txt").read_text()[:500]
    tokens = trained.tokenizer.encode_array(text)
    rows = Blocks(tokens, trained.tokenizer.byte_lengths(), 24, None)
    batch = rows.batch(torch.arange(len(rows)).numpy(), 0)
    total, size = trained.task.loss(batch)
    result = trained.score(text)
    assert result.log_probability == pytest.approx(-total.item(), rel=1e-5)
    assert (result.tokens, result.bytes) == (int(size), int(batch["bytes"].sum()))
    assert result.bits_per_byte == pytest.approx(total.item() / math.log(2) / 499, rel=1e-5)


def test_several_texts_score_as_each_alone(model):
    texts = ["the dog", "", "a", "the quick brown fox jumps over the lazy dog, and on", "dog"]
    together = model("rope").score(texts)
    assert [one.tokens for one in together] == [len(text) for text in texts]
    for text, one in zip(texts, together, strict=True):
        assert one.log_probability == pytest.approx(model("rope").score(text).log_probability, abs=1e-4)
    assert math.isnan(together[1].bits_per_byte)


def test_a_stop_string_ends_a_text_and_is_cut_off(model):
    for name, beams in itertools.product(FLAVOURS, (1, 2)):
        trained, how = model(name), {"length": 12, "temperature": 0.0, "beams": beams}
        free = trained.generate("the quick", **how)[0].text
        stop = free[3:5]
        answer = trained.generate("the quick", **how, stop=stop)[0]
        assert answer.ended
        assert stop not in answer.text
        if beams == 1:
            assert answer.text == free[: free.find(stop)]
            lead, tokens_out = trained.tokenizer.encode("the quick"), free[: free.find(stop) + len(stop)]
            ids = torch.tensor([lead + trained.tokenizer.encode(tokens_out)])
            expected = trained.log_probabilities(ids)[0, len(lead) - 1 :].sum().item()
            assert answer.score == pytest.approx(expected, abs=1e-4)
    with pytest.raises(UsageError, match="a stop string is empty"):
        model("rope").generate("x", stop="")


@pytest.mark.parametrize(("name", "draft"), choices_in_turn(FLAVOURS, [None, "lookup", "model"]))
def test_the_same_prompt_again_in_one_call_is_drawn_independently(model, name, draft, monkeypatch):
    monkeypatch.setattr(language, "ROWS", 4)
    trained = model(name)
    trained.speculate(trained if draft == "model" else draft)
    try:
        texts = [one.text for one in trained.generate(["the"] * 10, length=12, temperature=2.0)]
        again = [one.text for one in trained.generate(["the"] * 10, length=12, temperature=2.0)]
        alone = trained.generate("the", length=12, temperature=2.0)[0].text
    finally:
        trained.speculate(None)
    assert len(set(texts)) == 10
    assert texts == again
    assert draft is None or texts[0] == alone


def test_drawing_is_repeated_by_its_seed(model):
    texts = [model("rope").generate("the", length=20, seed=seed)[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_what_the_positions_cannot_hold_is_refused(model):
    trained = model("learned")
    fits = trained.generate("the quick", length=16, temperature=0.0)[0]
    assert len(fits.text) == 16
    with pytest.raises(UsageError, match=r"position Learned ends at max_length=24\.\nGenerate at most 16 \(length\)"):
        trained.generate("the quick", length=17)
    with pytest.raises(UsageError, match=r"Shorten the prompt to 24 tokens"):
        trained.generate("the quick brown fox jumps", length=1)
    assert len(model("rope").generate("the quick", length=40, seed=3)[0].text) > 16
    assert [len(one.text) for one in trained.generate(["the quick", "the"], temperature=0.0)] == [16, 16]


def test_an_empty_prompt_starts_a_document_where_there_are_documents(model):
    trained = model("rope")
    first = torch.tensor([[trained.tokenizer.eos]])
    expected = generate(trained.net.begin(9), first, trained.tokenizer.eos, GenerationConfig(max_length=8))[0][0]
    assert trained.generate("", length=8, temperature=0.0)[0].text == trained.tokenizer.decode(expected.tokens)
    with pytest.raises(UsageError, match="the prompt is empty"):
        model("learned").generate("")


def test_an_unknown_character_is_named(model):
    with pytest.raises(UsageError, match="'Ω'"):
        model("learned").generate("Ω")


def test_a_prompt_beyond_the_length_of_training_is_warned_of_once(model, caplog, monkeypatch):
    one = model("rope")
    monkeypatch.setattr(one, "warned_of_length", False)
    longest = one.net.max_length
    for count, warnings in ((1, 0), (longest, 0), (longest + 1, 1), (4 * longest, 1)):
        one.generate("a" * count, length=1)
        assert caplog.text.count("trained with at most") == warnings
    assert f"a prompt has {longest + 1} tokens" in caplog.text


def test_a_model_without_turns_and_one_of_another_task_refuse_to_chat(model):
    turns = [Turn("user", "a")]
    with pytest.raises(UsageError, match=r"was not trained on dialogues.*\n.*zoo fit dialogue-tiny"):
        model("rope").chat(turns)
    with pytest.raises(UsageError, match="is a Classification: it can classify, and cannot chat"):
        model("glyphs").chat(turns)
    assert model("rope").abilities == ["generate", "score"]
    assert model("pairs").abilities == ["translate", "score"]
