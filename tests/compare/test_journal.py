"""What a comparison was asked, and when: lines that are appended, read again after a kill, and judged."""

import itertools
import json
import multiprocessing
from dataclasses import replace

import pytest

from tests.rows import try_each
from zoo.compare.journal import (
    FILE,
    LOOK,
    PLAN,
    Event,
    RunsQuestion,
    append_event,
    changed_runs,
    choices_after_looking,
    describe_gaps,
    list_seeds,
    planned_targets,
    read_journal,
    report_folder,
)  # fmt: skip
from zoo.errors import StorageError


def ask(goal, at, baseline, seeds, variants=("default",)):
    return RunsQuestion(goal, baseline, at, seeds=seeds, variants=variants)


QUESTION = ask("loss", "last", "default", (1, 2))


def plan(question=QUESTION, ended_runs=0):
    return Event(PLAN, question, ended_runs, {})


def look(question=QUESTION, ended_runs=4):
    return Event(LOOK, question, ended_runs, {"verdicts": {"a": "better"}})


def test_events_are_read_as_they_were_written(tmp_path):
    for event in (plan(), look()):
        append_event(tmp_path / "new", event)
    events = read_journal(tmp_path / "new")[0]
    assert [(one.what, one.question, one.ended_runs) for one in events] == [(PLAN, QUESTION, 0), (LOOK, QUESTION, 4)]
    assert events[1].details["verdicts"] == {"a": "better"}
    assert "time" in events[0].details
    assert read_journal(tmp_path)[0] == []


def test_a_line_that_a_kill_cut_short_is_left_out_and_the_next_one_whole(tmp_path):
    append_event(tmp_path, plan())
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "look", "goal": "lo')
    append_event(tmp_path, look())
    assert [one.what for one in read_journal(tmp_path)[0]] == [PLAN, LOOK]


def write_events(folder, count):
    for _ in range(count):
        append_event(folder, look())


def test_several_processes_append_whole_lines(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=write_events, args=(tmp_path, 20)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read_journal(tmp_path)[0]) == len((tmp_path / FILE).read_text().splitlines()) == 60


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
        ([plan(), plan(ask("bleu", "last", "default", (1, 2)))], ask("bleu", "last", "default", (1, 2)), ()),
        (
            [plan(), look()],
            ask("bleu", "last", "default", (1, 2)),
            ("the goal bleu instead of loss after 1 look",),
        ),
        (
            [plan(), look(), plan(ask("loss", "best", "a=1", (1, 2)), 4)],
            ask("loss", "best", "a=1", (1, 2)),
            ("--at best instead of last after 1 look", "the baseline a=1 instead of default after 1 look"),
        ),
        (
            [plan(), look(), look()],
            ask("loss", "last", "default", (1, 3, 4, 5)),
            ("seeds, of which added 3 to 5 and left out 2 after 2 looks",),
        ),
        ([plan(ended_runs=4)], QUESTION, ("the comparison itself, when 4 of its runs had ended",)),
        (
            [plan(ended_runs=4), look()],
            ask("bleu", "best", "default", (1, 2)),
            (
                "the comparison itself, when 4 of its runs had ended",
                "the goal bleu instead of loss after 1 look",
                "--at best instead of last after 1 look",
            ),
        ),
    ],
)
def test_what_was_chosen_after_a_look(events, question, expected):
    assert choices_after_looking(events, question) == expected


CHANGES = {
    "goal": {"goal": "bleu"},
    "--at": {"at": "best"},
    "baseline": {"baseline": "a=1"},
    "--margin": {"margin": 0.1},
    "--test": {"test": "permutation"},
    "seeds": {"seeds": (1, 2, 3)},
    "variants": {"variants": ("default", "b=1")},
}


@try_each(itertools.product([0, 1, 4], [0, 1, 3], CHANGES))
def test_every_change_of_the_question_is_named_whatever_had_ended_before_the_first_plan(ended_runs, looks, word):
    change = CHANGES[word]
    first = replace(QUESTION, variants=("default", "a=1"))
    events = [plan(first, ended_runs), *[look(first)] * looks, plan(replace(first, **change), max(1, ended_runs))]
    phrases = choices_after_looking(events, replace(first, **change))
    assert sum(word in phrase for phrase in phrases) == 1
    assert ("the comparison itself" in phrases[0]) is (ended_runs > 0)


def test_reports_on_other_questions_stand_beside_the_first(tmp_path):
    events = [plan(), look()]
    assert report_folder(tmp_path, [], QUESTION) == report_folder(tmp_path, events, QUESTION) == tmp_path
    other = ask("bleu", "last:3", "position=rope", (1, 2, 3, 4))
    assert report_folder(tmp_path, events, other).name == (
        "goal=bleu,at=last_3-e68c5037,baseline=position_rope-c2d555b4,seeds=1-4"
    )
    assert list_seeds((1, 2)) == "1, 2"
    assert report_folder(tmp_path, events, QUESTION, runs_changed=True) == tmp_path / "runs=changed"


def figures_look(**figures):
    return Event(LOOK, QUESTION, 4, {"runs": {f"../../{name}": figure for name, figure in figures.items()}})


def test_runs_that_are_gone_or_different_are_named_once():
    events = [plan(), look(), figures_look(**{"a/s1": 1.0, "a/s2": 2.0, "b/s1": None}), figures_look(**{"a/s1": 1.0})]
    required = ["../../a/s1", "../../a/s2", "../../b/s1"]
    same = {"../../a/s1": 1.0, "../../a/s2": 2.0, "../../b/s1": None}
    assert changed_runs(events, QUESTION, same, required) == ()
    assert changed_runs(events, QUESTION, {"../../a/s1": 1.0, "../../b/s1": 3.25}, required) == (
        "runs, of which removed a s2 after 3 looks",
        "runs, of which made again with another figure b s1 (failed, now 3.25) after 3 looks",
    )
    assert changed_runs(events, QUESTION, {"../../a/s1": 1.0}, required[:1]) == ()  # fewer seeds were asked for
    other = ask("bleu", "last", "default", (1, 2))
    assert changed_runs(events, other, {**same, "../../a/s1": 30.0}, required) == ()


def test_lines_that_are_no_events_are_counted(tmp_path):
    assert read_journal(tmp_path)[1] == 0
    assert describe_gaps(tmp_path, False) == ""
    assert "journal.jsonl is gone" in describe_gaps(tmp_path, True)
    append_event(tmp_path, plan())
    assert describe_gaps(tmp_path, True) == ""
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "look"}\n\n[1]\n')
    assert read_journal(tmp_path)[1] == 2
    assert "2 of 3 lines cannot be read or were changed" in describe_gaps(tmp_path, False)


@pytest.mark.parametrize("change", ["edited", "removed", "exchanged", "of another journal"])
def test_lines_that_were_changed_by_hand_are_counted(tmp_path, change):
    for ended_runs in (0, 4, 8, 12):
        append_event(tmp_path, plan(ended_runs=ended_runs))
    assert read_journal(tmp_path)[1] == 0
    lines = (tmp_path / FILE).read_text().splitlines()
    if change == "edited":
        lines[1] = lines[1].replace('"ended_runs": 4', '"ended_runs": 0')
    elif change == "removed":
        del lines[1]
    elif change == "exchanged":
        lines[1:3] = lines[2:0:-1]
    else:
        append_event(tmp_path / "other", plan(ended_runs=4))
        lines[1] = (tmp_path / "other" / FILE).read_text().strip()
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    assert read_journal(tmp_path)[1] > 0
    before = read_journal(tmp_path)[1]
    append_event(tmp_path, plan(ended_runs=16))
    assert read_journal(tmp_path)[1] == before  # later lines are whole


def test_a_line_without_a_digest_is_damaged(tmp_path):
    append_event(tmp_path, plan())
    line = json.loads((tmp_path / FILE).read_text())
    del line["digest"]
    with (tmp_path / FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert (len(read_journal(tmp_path)[0]), read_journal(tmp_path)[1]) == (2, 1)


@pytest.mark.parametrize(
    ("seeds", "is_choice"), [((1, 2), False), ((1, 2, 3), False), ((1, 3), True), ((1, 2, 3, 4), True)]
)
def test_how_many_seeds_a_test_until_decided_took_is_no_choice(seeds, is_choice):
    """A variant that was decided or hopeless after six of thirty seeds had "left out" the others."""
    event = Event(PLAN, ask("loss", "last", "default", (1, 2, 3)), 0, {"until": "decided"})
    assert bool(choices_after_looking([event], ask("loss", "last", "default", seeds))) is is_choice


def test_events_about_other_variants_make_no_choice_late_and_no_target():
    """Comparisons of one option at two sizes have one folder: `--vary model.position=…` with and without a width."""
    earlier = ask("loss", "last", "default", (1, 2, 3), ("default", "position=alibi"))
    later = ask("loss", "to:3.0", "dim=32", (1, 2), ("dim=32", "dim=32,position=alibi"))
    events = [plan(earlier), look(earlier, 6), plan(later)]
    assert choices_after_looking(events, later) == ()
    assert choices_after_looking(events[:2], later) is None


def test_a_target_is_as_old_as_the_plan_of_its_variants(tmp_path):
    earlier = ask("loss", "last", "default", (1, 2, 3), ("default", "position=alibi"))
    later = ask("loss", "to:3.0", "dim=32", (1, 2), ("dim=32", "dim=32,position=alibi"))
    for event in (plan(earlier), look(earlier, 6), plan(later)):
        append_event(tmp_path, event)
    assert planned_targets(tmp_path, later.variants) == {("loss", "to:3")}
    assert planned_targets(tmp_path, earlier.variants) == set()
