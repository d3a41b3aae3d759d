"""What a comparison was asked, and when: lines that are appended, read again after a kill, and judged."""

import multiprocessing

import pytest

from zoo.compare.journal import (
    FILE,
    LOOK,
    PLAN,
    Event,
    Question,
    append_event,
    choices_after_looking,
    list_seeds,
    read_events,
    report_folder,
)  # fmt: skip
from zoo.errors import StorageError

QUESTION = Question("loss", "last", "default", (1, 2))


def plan(question=QUESTION, ended_runs=0):
    return Event(PLAN, question, ended_runs, {})


def look(question=QUESTION, ended_runs=4):
    return Event(LOOK, question, ended_runs, {"verdicts": {"a": "better"}})


def test_events_are_read_as_they_were_written(tmp_path):
    for event in (plan(), look()):
        append_event(tmp_path / "new", event)
    events = read_events(tmp_path / "new")
    assert [(one.what, one.question, one.ended_runs) for one in events] == [(PLAN, QUESTION, 0), (LOOK, QUESTION, 4)]
    assert events[1].details["verdicts"] == {"a": "better"}
    assert "time" in events[0].details
    assert read_events(tmp_path) == []


def test_a_line_that_a_kill_cut_short_is_left_out_and_the_next_one_whole(tmp_path):
    append_event(tmp_path, plan())
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "look", "goal": "lo')
    append_event(tmp_path, look())
    assert [one.what for one in read_events(tmp_path)] == [PLAN, LOOK]


def write_events(folder, count):
    for _ in range(count):
        append_event(folder, look())


def test_several_processes_append_whole_lines(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=write_events, args=(tmp_path, 20)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read_events(tmp_path)) == len((tmp_path / FILE).read_text().splitlines()) == 60


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="journal of the comparison cannot be written"):
        append_event(tmp_path / "file" / "below", plan())


@pytest.mark.parametrize(
    ("events", "question", "expected"),
    [
        ([], QUESTION, None),
        ([plan()], QUESTION, ()),
        ([plan(), look()], QUESTION, ()),
        ([plan(), plan(Question("bleu", "last", "default", (1, 2)))], Question("bleu", "last", "default", (1, 2)), ()),
        (
            [plan(), look()],
            Question("bleu", "last", "default", (1, 2)),
            ("the goal bleu instead of loss after 1 look",),
        ),
        (
            [plan(), look(), plan(Question("loss", "best", "a=1", (1, 2)), 4)],
            Question("loss", "best", "a=1", (1, 2)),
            ("--at best instead of last after 1 look", "the baseline a=1 instead of default after 1 look"),
        ),
        (
            [plan(), look(), look()],
            Question("loss", "last", "default", (1, 3, 4, 5)),
            ("seeds, of which added 3 to 5 and left out 2 after 2 looks",),
        ),
        ([plan(ended_runs=4)], QUESTION, ("the comparison itself, when 4 of its runs had ended",)),
    ],
)
def test_what_was_chosen_after_a_look(events, question, expected):
    assert choices_after_looking(events, question) == expected


def test_reports_on_other_questions_stand_beside_the_first(tmp_path):
    events = [plan(), look()]
    assert report_folder(tmp_path, [], QUESTION) == report_folder(tmp_path, events, QUESTION) == tmp_path
    other = Question("bleu", "last:3", "position=rope", (1, 2, 3, 4))
    assert report_folder(tmp_path, events, other).name == "goal=bleu,at=last_3,baseline=position_rope,seeds=1-4"
    assert list_seeds((1, 2)) == "1, 2"
