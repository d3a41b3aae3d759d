"""`zoo lesson`: the list, a page in two languages, inputs, exercises, and what is refused."""

import json
import os
import subprocess
import sys

import pytest
from zoo_learn import page, source

from zoo.cli import main

RIGHT = {
    "recurrence": ["4", "3", "50"],
    "attention": ["20", "0.731, 0.269, 0", "4"],
    "cat": ["3.58", "-1.34,-0.45,0.45,1.34", "1"],
    "ladder": ["0.235", "0.982,0.018", "10"],
    "transformer": ["4722432", "0.936,-0.351", "Invariant"],
}
NEAR_MISSES = {
    "recurrence": ["4.3", "4", "100"],
    "attention": ["400", "0.629,0.231,0.140", "24"],
    "cat": ["3.5", "-1.5,-0.5,0.5,1.5", "-1"],
    "ladder": ["0.429", "1,0", "12"],
    "transformer": ["4718592", "0.909,-0.416", "equivariant"],
}
RUN_LESSON, PAGES = page.run_lesson, {}
EXERCISES = [(name, number) for name in RIGHT for number in range(1, 4)]


def test_the_list_has_a_line_for_each_lesson_and_needs_no_torch():
    code = "import sys; from zoo.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for words in (["lesson"], ["lesson", "--lang", "zh"], ["lesson", "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        names = [
            line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and "--json" not in words
        ]
        assert names == list(source.lessons()) or "--json" in words
    assert [entry["name"] for entry in json.loads(done.stdout)] == list(RIGHT)


def test_a_lesson_is_printed_in_both_languages_with_the_same_numbers(capsys):
    assert main(["lesson", "cat"]) == 0
    english = capsys.readouterr().out
    assert main(["lesson", "cat", "--lang", "zh"]) == 0
    chinese = capsys.readouterr().out
    assert "✗ V: printed [0.0546  0.0728], computed [-0.1091  -0.1091]" in english
    assert "✗ V: 讲义 [0.0546  0.0728], 计算 [-0.1091  -0.1091]" in chinese
    assert english.count("✗") == chinese.count("✗") == 4


def test_a_changed_input_is_computed_again_and_json_lists_events(capsys):
    assert main(["lesson", "cat", "--set", "cat=1,2,3,4", "--set=sentence=1,1,1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["cat"] == [1, 2, 3, 4]
    labels = {event.get("label"): event for event in document["events"]}
    assert labels["mean"]["value"] == 2.5
    assert labels["rows"]["value"] == [1, 1, 1]


def test_code_is_shown_on_request(capsys):
    assert main(["lesson", "cat", "--code"]) == 0
    assert "    │ normal = LayerNorm(4, eps=1e-12)(cat).detach()" in capsys.readouterr().out


@pytest.fixture
def once(monkeypatch):
    """What a lesson computes of its own inputs is computed once for all its exercises."""

    def run_lesson(lesson, inputs, **options):
        key = (lesson.name, repr(inputs), *options.items())
        if key not in PAGES:
            PAGES[key] = RUN_LESSON(lesson, inputs, **options)
        return PAGES[key]

    monkeypatch.setattr(page, "run_lesson", run_lesson)


@pytest.mark.parametrize(("name", "number"), EXERCISES)
def test_an_exercise_accepts_the_right_answer_and_gives_a_hint_for_a_wrong_one(name, number, capsys, once):
    words = ["lesson", name, "--exercise", str(number)]
    assert main([*words, "--answer", RIGHT[name][number - 1]]) == 0
    assert capsys.readouterr().out == "right.\n"
    assert main([*words, "--answer", NEAR_MISSES[name][number - 1]]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("not right. ")
    assert 1 <= len(output.err.splitlines()) <= 4
    assert not any(
        answer in output.err for answer in (RIGHT[name][number - 1], f" {RIGHT[name][number - 1]} ") if len(answer) > 2
    )


def test_an_exercise_without_an_answer_is_asked_and_the_right_word_may_be_chinese(capsys):
    assert main(["lesson", "transformer", "--exercise", "3", "--lang", "zh"]) == 0
    assert "打乱" in capsys.readouterr().out
    assert main(["lesson", "transformer", "--exercise", "3", "--lang", "zh", "--answer", "不变"]) == 0
    assert capsys.readouterr().out == "答对了。\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kat"], "no lesson 'kat'. Did you mean 'cat'?"),
        (["cat", "--set", "dog=1"], "no input 'dog'"),
        (["cat", "--set", "cta=1,2,3,4"], "Did you mean 'cat'?"),
        (["cat", "--set", "cat"], "NAME=VALUE"),
        (["cat", "--set", "cat="], "4 numbers with commas"),
        (["cat", "--set", "cat=1,2,3"], "4 numbers with commas"),
        (["cat", "--set", "cat=a,b,c,d"], "4 numbers with commas"),
        (["cat", "--set", "cat=nan,1,2,3"], "at least -1000"),
        (["cat", "--set", "cat=inf,1,2,3"], "at most 1000"),
        (["cat", "--set", "sentence=0,1,9"], "at most 3"),
        (["cat", "--set", "sentence=0.5,1,2"], "whole numbers"),
        (["recurrence", "--set", "tokens=1e3"], "a whole number"),
        (["recurrence", "--set", "tokens=-1"], "at least 1"),
        (["recurrence", "--set", "tokens=100,00"], "a whole number"),
        (["transformer", "--set", "width=100"], "a multiple of 8"),
        (["ladder", "--set", f"cats={10**30}"], "at most"),
        (["cat", "--exercise", "9", "--answer", "1"], "exercises 1 to 3"),
        (["cat", "--exercise", "0"], "above 0"),
        (["cat", "--answer", "1"], "--exercise N"),
        (["cat", "--lang", "de"], "en or zh"),
        (["--set", "cat=1"], "needs a lesson"),
        (["cat", "transformer"], "one word too many"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, capsys):
    assert main(["lesson", *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert len(output.err.splitlines()) <= 4


@pytest.mark.parametrize("answer", ["nan", "inf", "abc", "1,2", "", "\x1b[2J"])
def test_what_cannot_be_an_answer_is_refused(answer, capsys):
    assert main(["lesson", "cat", "--exercise", "1", f"--answer={answer}"]) == 2
    output = capsys.readouterr()
    assert "the answer to exercise 1 must be" in output.err
    assert "\x1b" not in output.err
    assert len(output.err.splitlines()) <= 4


@pytest.mark.parametrize("form", [str, lambda text: text.replace(",", "，"), lambda text: text.replace(",", "、"),
                                  lambda text: "".join(chr(ord(one) + 0xFEE0) if one != "、" else one for one in text)],
                         ids=["ascii", "chinese comma", "list comma", "full width"])  # fmt: skip
def test_numbers_may_be_typed_as_chinese_keyboards_write_them(form, capsys):
    text = form(RIGHT["cat"][1])
    words = ["lesson", "cat", "--exercise", "2", "--json"]
    assert main([*words, f"--answer={text}"]) == 0
    assert json.loads(capsys.readouterr().out)["right"] is True
    assert main([*words, f"--answer={NEAR_MISSES['cat'][1]}"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["right"], bool(document["hint"])) == (False, True)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["question"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["Transformer", "--exercise", "1", "--answer", "4,722,432"], 0),  # as the lesson prints numbers
        (["transformer", "--exercise", "1", "--answer", "4,722,433"], 1),
        (["transformer", "--exercise", "1", "--answer", "4,72,432"], 2),
        (["transformer", "--exercise", "1", "--answer", "４，７２２，４３２"], 0),
        (["cat", "--exercise", "2", "--answer", "-1.34 -0.45 0.45 1.34"], 0),
        (["cat", "--exercise", "2", "--answer", "[-1.34, -0.45, 0.45, 1.34]"], 0),
        (["cat", "--exercise", "2", "--answer", "( -1.34 -0.45  0.45, 1.34 )"], 0),
        (["cat", "--exercise", "2", "--answer", "-1.34 -0.45 0.45"], 2),
        (["cat", "--exercise", "2", "--answer", "-1.34,,0.45,1.34"], 2),
        (["recurrence", "--set", "tokens=100,000", "--exercise", "3", "--answer", "50"], 0),
    ],
)
def test_numbers_may_be_typed_as_the_lessons_print_them(words, code, capsys):
    assert main(["lesson", *words]) == code
    assert len(capsys.readouterr().err.splitlines()) <= 4


@pytest.mark.parametrize("text", ["\x1b[31mown", "\x08own", "a\u202eb", "\x9b2J", "a\u2028b"])
@pytest.mark.parametrize("words", [["{}"], ["cat", "--set", "x{}=1"], ["cat", "--set=cat={}"]], ids=len)
def test_no_foreign_control_is_printed(text, words, capsys):
    assert main(["lesson", *(word.format(text) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert text not in out + err
    assert err.startswith("error: ")
