"""Every number of the course's worked examples is in a lesson; pages say what they said before, in both languages."""

import dataclasses
import functools
import json
import re
from decimal import Decimal
from pathlib import Path

import golden_text
import pytest
from zoo_learn import page, render, source

from bench.studies.claims import LESSONS

ROWS = json.loads((Path(__file__).parent / "worked_examples.json").read_text())
NAMES = list(source.lessons())
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")
CHINESE = re.compile("[\u4e00-\u9fff]")
WRONG = ["W3", "W4", "W10", "W12", "W21", "W22", "W26", "W28", "W31", "W34", "W36", "W39", "W40", "W41", "W42"]


# lessons that train for seconds: most tests train for STEPS steps, so that their code runs
TRAINED = ("attention", "ladder")
STEPS = 2
LOOP = re.compile(r"^( *for _ in range\()\d+", re.M)


def run(name, whole=False):
    """The page of a lesson; of TRAINED, with short trainings unless it is to be whole."""
    return whole_page(name) if whole or name not in TRAINED else page_of_short_trainings(name)


whole_page = functools.cache(golden_text.run)


@functools.cache
def page_of_short_trainings(name):
    lesson = source.Lesson(source.get_lesson(name).path)
    assert any(cell.slow and LOOP.search(cell.content) for cell in lesson.cells)
    vars(lesson)["cells"] = tuple(
        dataclasses.replace(cell, content=LOOP.sub(rf"\g<1>{STEPS}", cell.content)) if cell.slow else cell
        for cell in lesson.cells
    )
    return page.run_lesson(lesson, source.parse_inputs(lesson, []))


def without_measured_bars(text):
    """The lines but those of bars that are measured, as the losses of models that are trained are."""
    return "".join(line for line in text.splitlines(keepends=True) if not ("█" in line and "≈" in line))


def numbers(row, language):
    """The numbers that stand in what the lessons report about a row."""
    events = [event for name in NAMES for event in run(name).events if row in event.rows]
    assert events, f"no lesson is about {row}"
    return {
        Decimal(text.replace(",", "")) for event in events for text in NUMBER.findall(render.render(event, language))
    }


@pytest.mark.parametrize("language", source.LANGUAGES)
@pytest.mark.parametrize("row", ROWS)
def test_every_number_of_a_worked_example_is_in_a_lesson(row, language):
    output = numbers(row, language)
    assert not [text for text in ROWS[row]["numbers"] if Decimal(text) not in output]
    for text in ROWS[row]["measured"]:
        assert any(abs(one / Decimal(text) - 1) < Decimal("0.03") for one in output), text


def test_wrong_rows_and_no_others_are_marked_wrong():
    assert [row for row in ROWS if ROWS[row]["wrong"]] == WRONG
    events = [event for name in NAMES for event in run(name).events if event.kind in ("comparison", "claim")]
    wrong = {row for event in events if not event.fields["right"] for row in event.rows}
    assert wrong == set(WRONG)
    for event in events:
        if not event.fields["right"]:
            reason = event.fields["why" if event.kind == "comparison" else "correct"]
            assert all(reason[language] for language in source.LANGUAGES)
            assert all("✗" in render.render(event, language) for language in source.LANGUAGES)


@pytest.mark.parametrize("language", source.LANGUAGES)
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *((name, name not in TRAINED) for name in NAMES),
        *((name, True) for name in TRAINED),
    ],
)
def test_a_lesson_says_what_it_said(name, whole, language):
    golden = (golden_text.FOLDER / f"{name}.{language}.txt").read_text(encoding="utf-8")
    text = golden_text.text_of(run(name, whole).events, language)
    if not whole:
        golden, text = without_measured_bars(golden), without_measured_bars(text)
    assert not golden_text.difference(golden, text)


def test_the_golden_comparison_refuses_other_numbers_and_forgives_measured_ones():
    assert not golden_text.difference("a ≈0.50 ██ ~3\n", "a ≈0.55 ███ ~900\n")
    assert not golden_text.difference("layer  ms\n  ~9\n", "layer   ms\n  ~10\n")
    assert golden_text.difference("cat █ █\n", "cat █  █\n")
    assert golden_text.difference("a ≈0.50\n", "a ≈0.90\n")
    assert golden_text.difference("a 0.50\n", "a 0.51\n")
    assert golden_text.difference("a ≈0.50\n", "b ≈0.50\n")


@pytest.mark.parametrize("name", NAMES)
def test_texts_stand_in_every_language_in_front_of_the_same_code(name):
    lesson = source.get_lesson(name)
    languages = [cell.language for cell in lesson.cells]
    texts = [language for language in languages if language]
    assert texts == ["en", "zh"] * (len(texts) // 2)
    assert all(languages[place + 1] == "zh" for place, language in enumerate(languages) if language == "en")
    for cell in lesson.cells:
        if cell.language:
            assert bool(CHINESE.search(re.sub("我爱吃苹果|果|苹|我是一个学生。|你多大了？", "", cell.content))) == (
                cell.language == "zh"
            )
    for facts in (lesson.facts["title"], lesson.facts["summary"], *lesson.inputs.values()):
        assert CHINESE.search(facts["zh"])
        assert facts["en"]


@pytest.mark.parametrize("name", NAMES)
def test_every_phrase_has_a_translation(name):
    def check(value):
        if isinstance(value, dict) and value.keys() == set(source.LANGUAGES):
            assert all(value.values())
        elif isinstance(value, dict):
            for one in value.values():
                check(one)
        elif isinstance(value, list | tuple):
            for one in value:
                check(one)

    for event in run(name).events:
        check(dict(event.fields))
        for field in ("label", "statement", "question"):
            phrase = event.fields.get(field, "")
            assert not isinstance(phrase, str) or len(re.findall("[a-z]{4,}", phrase)) < 4, phrase


class Reached(Exception):  # noqa: N818
    """A page has reported what a test waits for."""


def events_until(lesson, inputs, name):
    """The events of a page until that of this name, measured ones with them."""
    events = []

    def listen(event):
        events.append(event)
        if event.fields.get("name") == name:
            raise Reached

    with pytest.raises(Reached):
        page.run_lesson(lesson, inputs, listen)
    return events


@pytest.mark.parametrize("name", NAMES)
def test_every_input_changes_what_a_lesson_computes(name):
    lesson = source.get_lesson(name)
    other = {
        "sentence": "1,3,2", "cat": "1,2,3,5", "score": "0", "tokens": "8192", "heads": "2", "sigma": "3",
        "scores": "3,1,2,1,1,1,0,0,1" if name == "attention" else "3,1", "cats": "12", "sits": "5", "vocabulary": "9",
        "head_dim": "4", "position": "7", "width": "64", "vector": "1,2,3,5", "seed": "2",
    }  # fmt: skip
    before = [
        render.render(event, "en")
        for event in page.run_lesson(lesson, source.parse_inputs(lesson, []), slow=False).events
    ]
    for number, input_name in enumerate(lesson.inputs):
        inputs = source.parse_inputs(lesson, [f"{input_name}={other[input_name]}"])
        slow = input_name == "seed" and name == "recurrence"  # there the seed is of measurements alone
        if slow:
            after = events_until(lesson, inputs, "gradients")
        else:
            after = page.run_lesson(lesson, inputs, slow=False).events
        texts = [render.render(event, "en") for event in after]
        same = [render.render(event, "en") for event in run(name).events[: len(after)]] if slow else before
        assert texts != same, (number, input_name)


def test_what_is_printed_is_left_out_where_its_input_is_changed():
    lesson = source.get_lesson("cat")
    result = page.run_lesson(lesson, source.parse_inputs(lesson, ["cat=1,2,3,5"]), slow=False)
    labels = [event.fields["label"] for event in result.events if event.kind == "comparison"]
    assert "V" not in labels
    assert "PE(1)" in labels


def test_words_beside_a_heat_map_stand_in_the_readers_language():
    (words,) = [event for event in run("cat").events if event.kind == "heat" and event.fields["columns"]]
    assert render.render(words, "en").splitlines()[1].split() == ["cat", "eats", "fish"]
    assert render.render(words, "zh").splitlines()[1].split() == ["猫", "吃", "鱼"]


def test_the_prediction_of_a_kernel_follows_from_the_numbers_on_the_page():
    events = run("attention").events
    (weights,) = [event.fields["values"] for event in events if event.kind == "bars" and not event.measured]
    numbers = {event.fields["label"]["en"]: event.fields["value"] for event in events if event.kind == "value"}
    prediction = sum(weight * value for weight, value in zip(weights.values(), numbers["the values"], strict=True))
    assert prediction == pytest.approx(numbers["prediction: the sum of weights times values"])


def test_what_is_said_of_the_ladder_is_what_its_bars_show():
    """Counts of more letters are better, and networks of a few seconds come near the best count."""
    events = run("ladder", whole=True).events
    (bars,) = [event.fields["values"] for event in events if event.kind == "bars" and event.measured]
    assert bars["1-gram"] > bars["2-gram"] > bars["3-gram"]
    for name in ("NNLM", "LSTM", "Transformer"):
        assert abs(bars[name] - bars["3-gram"]) < 0.3


def test_a_larger_model_has_a_lower_loss():
    (bars,) = [event for event in run("attention", whole=True).events if event.kind == "bars" and event.measured]
    bits = list(bars.fields["values"].values())
    assert len(bits) == 5
    assert bits == sorted(bits, reverse=True)


def test_a_recurrence_has_steps_for_each_token_in_a_row_and_attention_a_few_at_any_length():
    (table,) = [event for event in run("recurrence").events if event.fields.get("name") == "layers"]
    assert [line[5] for line in table.fields["lines"]] == [10 * 512 + 3, 1, 8]  # 10 operations a step of a GRU


@pytest.mark.parametrize(("name", "names"), LESSONS.items())
def test_lessons_have_what_is_measured_over_seeds(name, names):
    assert set(names) <= {event.fields.get("name") for event in run(name).events}


def test_gradients_vanish_in_a_recurrence_explode_with_a_large_matrix_and_stay_in_attention():
    table = next(event for event in run("recurrence").events if event.kind == "table" and event.measured)
    ratios = [line[1:] for line in table.fields["lines"]]
    assert ratios[0] == sorted(ratios[0], reverse=True)
    assert ratios[0][-1] < 1e-6
    assert ratios[1][-1] > 1e3
    assert ratios[2][-1] < ratios[3][-1]
    assert all(0.8 < ratio < 1.25 for ratio in ratios[4])


def test_positions_are_necessary_and_adding_is_as_good_as_concatenating():
    table = next(event for event in run("transformer").events if "W47" in event.rows)
    without, added, concatenated = (line[2:] for line in table.fields["lines"])
    assert without[0] < 0.4
    assert min(added[0], concatenated[0]) > 0.95
    assert max(added[1], concatenated[1]) < 0.9  # longer than in training


def test_an_answer_is_right_within_its_tolerance():
    exercise = page.Exercise(1, "", "", [0.5, 2.0], tolerance=0.01)
    assert exercise.accepts("0.505, 2")
    assert not exercise.accepts("0.5, 2.1")


def test_a_header_that_begins_no_cell_is_refused():
    with pytest.raises(ValueError, match="line 1"):
        source.split_cells("# %% [markdown] language=en\n# text\n")


def test_a_page_runs_as_a_script(capsys):
    path = source.get_lesson("cat").path
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "cat"})
    assert "-0.1091" in capsys.readouterr().out
