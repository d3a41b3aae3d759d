"""Every combination of installed parts trains, or is refused when it is built by a sentence that names the culprits."""

import itertools
import re

import pytest
import torch
from small import KINDS, covering_rows, language, names, ours, part_options, refused, seq2seq, vit

from tests.covering import choices_in_turn
from zoo.conformance.combinations import attempt
from zoo.errors import UsageError
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.translation import Translation

MODELS = {"LanguageModel": language, "Seq2Seq": seq2seq, "ViT": vit}
TASKS = {"LanguageModel": CausalLM, "Seq2Seq": Translation, "ViT": Classification}
models = pytest.mark.parametrize("model", MODELS)


def blamed_kinds(sentence, parts):
    """Which of the chosen kinds a refusal blames, before it lists what would work."""
    blame = sentence.split("Works with")[0]
    return {kind for kind, name in parts.items() if re.search(rf"\b{name}\b", blame)}


def blames_fairly(sentence, parts):
    guilty = blamed_kinds(sentence, parts)
    return len(guilty) > 1 or ("backend" in guilty and "pads" in sentence)


def blames_the_machine(sentence, parts):
    """Whether a backend says that it needs a GPU, where there is none."""
    needs = re.search(r"needs an NVIDIA GPU; this machine has none|trains on a GPU only", sentence)
    return not torch.cuda.is_available() and needs and "backend" in blamed_kinds(sentence, parts)


def judge(model, parts):
    """What is wrong with this combination, or nothing."""
    verdict = attempt(TASKS[model], part_options(parts))
    if verdict.status != "trains" and blames_the_machine(verdict.sentence, parts):
        return ""
    if verdict.status == "trains" or (verdict.status == "refused" and blames_fairly(verdict.sentence, parts)):
        return ""
    return str(verdict)


def wrong(model, *choices):
    combinations = [
        dict(choice)
        for choice in itertools.product(*([(kind, n) for n in names_of_kind] for kind, names_of_kind in choices))
    ]
    return [f"{'+'.join(parts.values())}: {verdict}" for parts in combinations if (verdict := judge(model, parts))]


@models
@pytest.mark.parametrize(("strength", "least"), [(2, 30), pytest.param(3, 160, marks=pytest.mark.campaign)])
def test_any_of_our_parts_that_do_not_refuse_each_other_train_in_one_model(model, strength, least):
    """Any two of them, and in a campaign any three."""
    rows = covering_rows(model, *KINDS, strength=strength)
    assert len(rows) >= least
    verdicts = {"+".join(row.values()): attempt(TASKS[model], part_options(row)) for row in rows}
    assert {name: str(verdict) for name, verdict in verdicts.items() if verdict.status != "trains"} == {}


@pytest.mark.parametrize(("attention", "model"), choices_in_turn(names("attention"), MODELS))
def test_every_attention_trains_or_is_refused_with_every_position_and_backend(model, attention):
    fixed = ("attention", [attention]), ("position", names("position"))
    assert wrong(model, *fixed) == []
    assert wrong(model, *fixed, ("backend", names("backend"))) == []


@models
def test_our_own_parts_refuse_each_other_only_where_they_must(model):
    mistakes = []
    for position, backend, attention in itertools.product(ours("position"), ours("backend"), ours("attention")):
        parts = {"position": position, "backend": backend, "attention": attention}
        try:
            MODELS[model](depth=1, **part_options(parts))
        except UsageError as refusal:
            if not refused(model, parts) or not blames_fairly(str(refusal), parts):
                mistakes.append(f"{parts}: {refusal}")
        else:
            if refused(model, parts):
                mistakes.append(f"{parts} is not refused")
    assert mistakes == []


SENTENCES = {
    (
        "LanguageModel",
        "position=ALiBi backend=Flash",
        "backend",
    ): "position ALiBi adds a bias to the scores, which backend Flash",
    (
        "ViT",
        "position=RoPE attention=Additive",
        "attention",
    ): "position RoPE turns queries and keys, which attention Add",
    (
        "Seq2Seq",
        "position=RoPE backend=Flash",
        "backend",
    ): "this model pads its batches, which backend Flash cannot take",
    (
        "ViT",
        "position=T5 backend=SDPA attention=Additive",
        "backend",
    ): "Additive has no dot product, which is all .* SDPA",
}


@pytest.mark.parametrize(("case", "words"), SENTENCES.items(), ids=str)
def test_a_refusal_says_who_asks_who_cannot_and_what_works(case, words):
    model, parts, kind = case[0], dict(word.split("=") for word in case[1].split()), case[2]
    with pytest.raises(UsageError, match=words) as refusal:
        MODELS[model](**part_options(parts))
    assert blames_fairly(str(refusal.value), parts)
    assert re.search(r"Works with: \w+", str(refusal.value))
    for name in re.findall(r"\w+", str(refusal.value).split("Works with:")[1].split(", or")[0]):
        assert judge(model, parts | {kind: name}) == ""  # the alternatives do work


@pytest.mark.parametrize("option", ["window", "attention_dropout"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="the CUDA flash kernel drops weights")
def test_options_that_a_backend_cannot_take_are_refused(option):
    messages = {
        "window": "window=3 hides keys, which backend Flash",
        "attention_dropout": "drops attention weights, which",
    }
    with pytest.raises(UsageError, match=messages[option]):
        language(**{option: 3 if option == "window" else 0.1}, **part_options({"backend": "Flash"}))


def test_a_position_that_cannot_split_a_head_is_refused():
    with pytest.raises(UsageError, match="position RoPE needs a head width divisible by 4 for 2 axes, got 2"):
        vit(heads=8, **part_options({"position": "RoPE"}))
