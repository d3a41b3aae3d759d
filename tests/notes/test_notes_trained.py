"""What course notes train, trained: sentences of theirs translated, images told apart, and their applications."""

import json

import pytest
import torch

import zoo
from zoo.cli import main

SMALL = ["--model.dim", "48", "--model.depth", "1", "--model.heads", "2", "--trainer.logger", "false"]
ITALIAN = {
    "sky": "il cielo", "sea": "il mare", "moon": "la luna", "house": "la casa", "dog": "il cane", "book": "il libro",
}  # fmt: skip
WE = {"see": "vediamo", "love": "amiamo", "want": "vogliamo", "draw": "disegniamo"}
CHINESE = {
    "学生": "a student", "老师": "a teacher", "医生": "a doctor", "工人": "a worker", "厨师": "a cook",
    "画家": "a painter",
}  # fmt: skip
WHO = {"我是": "I am", "你是": "you are", "他是": "he is", "她是": "she is"}
CORPORA = {
    "en-it": {f"we {do} the {thing}": f"{verb} {noun}" for do, verb in WE.items() for thing, noun in ITALIAN.items()},
    "zh-en": {f"{who}一个{what}。": f"{are} {job}." for who, are in WHO.items() for what, job in CHINESE.items()},
}
CORPORA["en-zh"] = {target: source for source, target in CORPORA["zh-en"].items()}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def finished(folder):
    (result,) = folder.rglob("finished.json")
    return json.loads(result.read_text())


@pytest.mark.parametrize(
    "languages", [pytest.param(name, marks=[] if name == "en-zh" else [pytest.mark.campaign]) for name in CORPORA]
)
def test_sentences_of_the_notes_are_learned_whole_and_beams_of_one_are_greedy(languages, tmp_path):
    pairs = CORPORA[languages]
    assert pairs.get("we see the sky") == "vediamo il cielo" or "我是一个学生。" in (*pairs, *pairs.values())
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs.items()), encoding="utf-8")
    (tmp_path / "val.tsv").write_text("{}\t{}\n".format(*next(iter(pairs.items()))), encoding="utf-8")
    words = ["--data", "ParallelFiles", "--data.path", str(tmp_path), "--data.vocab_size", "320", "--model.lr", "0.01"]
    steps = ["--trainer.max_steps", "90", "--trainer.val_check_interval", "90", "--model.schedule.warmup", "10"]
    assert main(["fit", "translation-tiny", "--runs", str(tmp_path / "runs"), *words, *steps, *SMALL]) == 0
    model = zoo.load("translation-tiny", runs=tmp_path / "runs")
    greedy = [result.text for result in model.translate(list(pairs))]
    assert greedy == list(pairs.values())
    for source, target in list(pairs.items())[::7]:  # the likeliest token again and again, without search and cache
        tokens, ids = [model.start], torch.tensor([model.source_tokenizer.encode(source)])
        while tokens[-1] != model.end and len(tokens) < 30:
            tokens.append(int(model.net(ids, torch.tensor([tokens]))[0, -1].argmax()))
        assert model.target_tokenizer.decode(tokens[1:-1]) == target
    lengths = {(len(model.source_tokenizer.encode(a)), len(model.target_tokenizer.encode(b))) for a, b in pairs.items()}
    assert any(one != other for one, other in lengths)


@pytest.mark.parametrize(("steps", "least"), [(80, 0.5), pytest.param(250, 0.85, marks=pytest.mark.campaign)])
def test_patches_and_attention_tell_ten_digits_apart(tmp_path, steps, least):
    pytest.importorskip("sklearn")
    words = ["--trainer.max_steps", str(steps), "--trainer.val_check_interval", str(steps)]
    assert main(["fit", "vit-tiny", "--runs", str(tmp_path), "--trainer.logger", "false", *words]) == 0
    assert finished(tmp_path)["val/top1"] > least
