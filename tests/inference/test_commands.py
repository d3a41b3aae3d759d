"""The commands that use a trained model."""

import copy
import io
import json
import os
import pty
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from tests import forks
from zoo.cli import inference, main
from zoo.cli.find_command import find_command, parse
from zoo.config import precision
from zoo.errors import UsageError
from zoo.inference.load import load
from zoo.models import speculation


def zoo_process(*words, stdin="", code=0):
    command = [sys.executable, "-m", "zoo", *map(str, words)]
    done = forks.run(command, input=stdin, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def zoo(*words, stdin="", code=0):
    """As a process of its own, which would start torch again."""
    stdin_stream, out, err = (io.TextIOWrapper(io.BytesIO(content), "utf-8") for content in (stdin.encode(), b"", b""))
    with mock.patch.object(sys, "stdin", stdin_stream), redirect_stdout(out), redirect_stderr(err):
        ended = main([str(word) for word in words])
    for stream in (out, err):
        stream.flush()
    texts = out.buffer.getvalue().decode(), err.buffer.getvalue().decode()
    assert ended == code, texts[1]
    return texts


def test_translate_gives_a_line_for_each_line(runs, model):
    lines = [f"{number % 13} hours" if number % 7 else "" for number in range(50)]
    out, err = zoo_process(
        "translate",
        "translation-tiny",
        "--runs",
        runs,
        "--max-length",
        8,
        stdin="".join(f"{line}\r\n" for line in lines),
    )
    expected = [one.text for one in model("pairs").translate(lines, max_length=8)]
    assert out == "".join(text.replace("\n", " ") + "\n" for text in expected)
    assert err.startswith("using ")
    cut_off = [line for line in err.splitlines()[1:] if line]
    assert all("cut off" in line for line in cut_off), err
    assert len(set(expected)) > 8


def test_a_count_on_the_terminal_leaves_the_output_alone(runs, model, tmp_path):
    lines = [f"{number} hours" for number in range(30)]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "zoo", "translate", next(runs.glob("*/pairs/s1")), "--max-length", "8"]
    with (tmp_path / "in").open() as source, (tmp_path / "out").open("w") as out:
        code = forks.Process(command, stdin=source, stdout=out, stderr=theirs).wait(120)
    os.close(theirs)
    output = os.read(ours, 100_000).decode()
    os.close(ours)
    assert code == 0, output
    assert "30 lines · " in output
    expected = [one.text for one in model("pairs").translate(lines, max_length=8)]
    assert (tmp_path / "out").read_text().splitlines() == expected
    assert expected[0] not in output


def test_what_a_translation_looked_at_is_drawn(runs, model, tmp_path):
    picture = tmp_path / "seen.png"
    out, _ = zoo("translate", "translation-tiny", "--runs", runs, "--attention", picture, stdin="\n7 hours\n")
    assert out.count("\n") == 2
    with Image.open(picture) as image:
        assert min(image.size) > 200
    _, err = zoo("translate", "translation-tiny", "--runs", runs, "--attention", tmp_path, stdin="7 hours\n", code=2)
    assert "cannot write the picture" in err


def test_generate_classify_and_export(runs, model, tmp_path, capsys):
    out, _ = zoo("generate", "lm-tiny", "--runs", runs, "--length", 7, "--seed", 4, stdin="the\n")
    newest = max((runs / "lm-tiny").rglob("finished.json"), key=lambda path: path.stat().st_mtime).parent.parent.name
    assert out == "the" + model(newest).generate("the", length=7, seed=4)[0].text + "\n"
    rope = next(runs.glob("*/rope/s1"))
    words = ["--prompt", "the", "--prompt", "dog", "--beams", "2", "--n-best", "2", "--length", "5", "--json"]
    assert main(["generate", str(rope), *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["prompt"] for row in rows] == ["the", "the", "dog", "dog"]
    answer = model("rope").generate(["the", "dog"], beams=2, n_best=2, length=5)
    assert [row["text"] for row in rows] == [one.text for one in answer]
    glyphs, folder, image = next(runs.glob("*/glyphs/s1")), tmp_path / "out", tmp_path / "a.png"
    assert main(["export", str(glyphs), str(folder)]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    Image.fromarray(np.eye(14, dtype=np.uint8) * 200).save(image)
    assert main(["classify", str(folder), str(image), "--top", "2"]) == 0
    best = model("glyphs").classify(image)[0]
    assert capsys.readouterr().out.startswith(f"{image}\t{best[0].label} {best[0].probability:.3f}\t{best[1].label} ")
    assert main(["classify", str(folder), str(image), str(image), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1]["classes"][0] == {"label": best[0].label, "probability": pytest.approx(best[0].probability)}


def refused(capsys, *words, code=2):
    assert main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 4
    return err


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no 8-bit products here")
def test_generate_writes_with_matrices_in_eight_bits(runs, model):
    words = ["generate", "lm-tiny", "--runs", runs, "--length", 5, "--prompt", "the", "--temperature", 0, "--json"]
    (full, _), (rounded, _) = zoo(*words), zoo(*words, "--int8")
    before, after = json.loads(full)["score"], json.loads(rounded)["score"]
    assert before != after
    assert after == pytest.approx(before, rel=0.3)
    _, err = zoo(*words, "--int8", "--device", "meta", code=2)
    assert "--device cpu" in err
    trained = load(next(runs.glob("*/rope/s1")))
    full = trained.score("the dog").log_probability
    trained.quantise()
    scores = [each.score("the dog").log_probability for each in (trained, copy.deepcopy(trained))]
    assert scores[0] == scores[1] != full  # a copy computes in eight bits as well


def test_generate_with_weights_in_bf16_equals_a_converted_model(runs, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "has_bf16", lambda place: place == "cpu")
    folder = next(runs.glob("*/rope/s1"))
    words = ["generate", folder, "--length", 12, "--prompt", "the", "--temperature", 0, "--json"]
    (full, _), (same, _), (half, _) = (zoo(*words, *more) for more in ([], ["--dtype", "fp32"], ["--dtype", "bf16"]))
    reference = load(folder)
    reference.net.to(torch.bfloat16)
    (expected,) = reference.generate("the", length=12, temperature=0)
    assert json.loads(half) == {"prompt": "the", **expected._asdict()}
    assert full == same
    assert json.loads(half)["score"] != json.loads(full)["score"]
    assert "--dtype bf16 and --int8 exclude each other" in refused(capsys, *words, "--dtype", "bf16", "--int8")
    assert "does not go with 8-bit matrices" in refused(capsys, *words, "--speculate", "lookup", "--int8")
    monkeypatch.setattr(precision, "has_bf16", lambda place: False)
    (output, _) = zoo("export", folder, tmp_path / "half", "--dtype", "bf16")  # rounded, and not multiplied
    assert "model.safetensors" in output
    assert "no bfloat16 instructions on cpu" in refused(capsys, *words, "--dtype", "bf16")
    rounded = load(folder)
    rounded.rounded = [1]
    with pytest.raises(UsageError, match="8 bits"):
        rounded.use_bf16()
    monkeypatch.setattr(reference.task, "net", torch.nn.Identity())
    with pytest.raises(UsageError, match="Identity has no weights"):
        reference.use_bf16()


def test_generate_with_guesses_prints_what_it_prints_without(runs, capsys, monkeypatch):
    guesses = []
    for kind in (speculation.PromptLookup, speculation.DraftModel):
        guess = kind.guess
        monkeypatch.setattr(
            kind, "guess", lambda *call, guess=guess: guesses.append((guess(*call), type(call[0]))) or guesses[-1][0]
        )
    folder = next(runs.glob("*/rope/s1"))
    words = ["generate", folder, "--length", 24, "--prompt", "the quick the quick", "--json"]
    for way in (["--temperature", 0], ["--temperature", 0, "--stop", "dog"]):
        expected = json.loads(zoo(*words, *way)[0])
        for draft in ("lookup", folder):
            guesses.clear()
            line = json.loads(zoo(*words, *way, "--speculate", draft)[0])
            assert line.pop("score") == pytest.approx(expected["score"], abs=1e-3)
            assert line == {name: value for name, value in expected.items() if name != "score"}
            assert guesses[0][1] is (speculation.PromptLookup if draft == "lookup" else speculation.DraftModel)
            assert any(guess.tokens for guess, _ in guesses)
    sampled = [zoo(*words, "--seed", seed, "--speculate", "lookup")[0] for seed in (3, 3, 4)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert "--speculate and --beams exclude each other" in refused(
        capsys, *words, "--speculate", "lookup", "--beams", 2
    )
    other, pairs = next(runs.glob("*/learned/s1")), next(runs.glob("*/pairs/s1"))
    assert f"the draft {other} has another tokenizer than {folder}" in refused(capsys, *words, "--speculate", other)
    assert "cannot be a draft: use a language model" in refused(capsys, *words, "--speculate", pairs)
    assert "no run, checkpoint or recipe 'lookupp'" in refused(capsys, *words, "--speculate", "lookupp")
    assert "got an empty value" in refused(capsys, *words, "--speculate", "")


def test_beginners_mistakes_are_answered(runs, capsys, tmp_path):
    _, err = zoo("generate", "lm-tny", "--runs", runs, "--prompt", "x", code=2)
    assert "no run, checkpoint or recipe 'lm-tny'. Did you mean 'lm-tiny'?" in err
    Image.new("L", (20, 30)).save(tmp_path / "a.png")
    glyphs, learned = next(runs.glob("*/glyphs/s1")), next(runs.glob("*/learned/s1"))
    assert "a.png is 20 × 30 pixels, and this model needs 14 × 14" in refused(
        capsys, "classify", glyphs, tmp_path / "a.png"
    )
    assert "ends at max_length=24" in refused(capsys, "generate", learned, "--prompt", "the quick brown fox jumps")
    assert "is a CausalLM: it can generate, score, and cannot translate" in refused(capsys, "translate", learned)
    assert "no image to classify" in refused(capsys, "classify", glyphs)
    assert "zoo export needs DIR: " in refused(capsys, "export", glyphs)
    assert "zoo generate needs RUN: " in refused(capsys, "generate")
    assert "one word too many" in refused(capsys, "generate", learned, "once upon a time")
    assert "'--beams' must be a whole number above 0" in refused(
        capsys, "generate", learned, "--prompt", "a", "--beams", 0
    )
    assert "--json" in refused(capsys, "translate", learned, "--n-best", "2")
    assert "Did you mean 'translate'?" in refused(capsys, "transalte")


def test_a_line_that_is_not_utf8_is_named(runs, capsys, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"5 hours\n\xff\n")))
    assert "standard input, line 2: byte 0xff" in refused(capsys, "translate", next(runs.glob("*/pairs/s1")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lenght", "3"], "Did you mean '--length'?"),
        (["--length", "3.5"], "'--length' must be a whole number above 0, got '3.5'."),
        (["--temperature", "nan"], "'--temperature' must be a number"),
        (["--length"], "'--length' needs a whole number above 0."),
        (["--json=1"], "'--json' takes true, false or no value, got '1'."),
        (["-x"], "no option '-x'"),
    ],
)
def test_wrong_options_are_answered(words, message):
    with pytest.raises(UsageError) as caught:
        parse(find_command("generate"), words)
    assert message in str(caught.value)


def test_options_keep_zoos_grammar():
    options = parse(find_command("classify"), ["r", "--top=4", "--text", "a", "--text", "-b", "--json", "--", "--odd"])
    assert options.words == ["r", "--odd"]
    assert options.values == {"top": 4, "text": ["a", "-b"], "json": True}


@pytest.mark.parametrize("command", ["generate", "translate", "classify", "export"])
def test_help_needs_no_torch(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: zoo {command} RUN" in capsys.readouterr().out


def test_equal_prompts_have_samples_of_their_own(runs):
    prompts = ["--prompt", "the "] * 4
    out, _ = zoo("generate", next(runs.glob("*/rope/s1")), *prompts, "--length", "9", "--json")
    texts = [json.loads(line)["text"] for line in out.splitlines()]
    assert len(texts) == 4
    assert len(set(texts)) > 1


@pytest.mark.parametrize("content", ["\ufeffthe cat\n\ufeffa\n", "\ufeff", "\ufeff\ufeffa"])
def test_standard_input_loses_its_byte_order_mark_and_no_other(content, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert list(inference.stdin_lines()) == content[1:].split("\n")[: content.count("\n") or 1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_input_in_another_encoding_is_named(runs, encoding):
    stream = io.TextIOWrapper(io.BytesIO("7 hours\n".encode(encoding)))
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "stdin", stream), redirect_stdout(out), redirect_stderr(err):
        code = main(["translate", "translation-tiny", "--runs", str(runs)])
    assert (code, out.getvalue()) == (2, "")
    assert "iconv -f UTF-16" in err.getvalue()


def test_chat_is_refused_before_a_line_is_typed(runs, capsys):
    assert "not trained on dialogues" in refused(capsys, "chat", next(runs.glob("*/rope/s1")))
