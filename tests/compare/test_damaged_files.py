"""Files of a comparison with any one value damaged: an error that names the file, or the verdict of before."""

import copy
import json
import math
import os
import random

import pytest

from tests.compare import fabricate
from zoo.compare import error_budget, run_records, table
from zoo.errors import UsageError

REMOVED = object()
VALUES = (REMOVED, None, "x", -1, math.nan, math.inf, [], {}, True, [[1]], {"a": 1})
SAMPLES = 60  # of all pairs of a place and a value, per file
FILES = ("runs.json", "looks.json", "journal.jsonl", "series.json", "ledger.json")


class Options(dict):
    argv = ()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The folder of a comparison of two variants that was looked at once, in a series."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    folders = []
    for variant, position, loss in (("default", "RoPE", 1.9), ("position=alibi", "ALiBi", 1.95)):
        for seed in (1, 2, 3):
            folders.append(tmp_path / "runs" / "lm-tiny" / variant / f"s{seed}")
            folders[-1].mkdir(parents=True)
            content = fabricate.ledger(
                variant, seed, loss + 0.02 * seed * (position == "ALiBi"), {"position": position}
            )
            (folders[-1] / "ledger.json").write_text(json.dumps(content))
    home = tmp_path / "runs" / "lm-tiny" / "compare" / "position"
    record = run_records.Record(tuple(folders), "default", varied=("model.position",), at="last")
    run_records.save_record(home, record)
    options = Options(test="t", series=str(tmp_path / "series.json"))

    def look():
        record = run_records.load_record(home)
        answer, _ = error_budget.look_and_record(record, options, home)
        table.compose_report(answer).as_text(100, False)
        json.loads(table.as_json(answer))
        return [row.verdict.word for row in answer.rows]

    paths = {name: home / name for name in FILES[:3]}
    return look, paths | {"series.json": tmp_path / "series.json", "ledger.json": folders[4] / "ledger.json"}


def places(content, path=()):
    """The keys to every value of a JSON document; of lists to the first two."""
    yield path
    if isinstance(content, dict):
        pairs = list(content.items())
    else:
        pairs = list(enumerate(content[:2])) if isinstance(content, list) else []
    for key, value in pairs:
        yield from places(value, (*path, key))


def damage(content, path, value):
    """The document with another value at a place, or without it."""
    if not path:
        return value
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


@pytest.mark.parametrize("name", FILES)
def test_one_damaged_value_is_refused_or_changes_no_verdict(site, name):
    look, files = site
    verdicts = look()
    assert verdicts == ["baseline", "no verdict"]
    contents = {path: path.read_bytes() for path in files.values()}
    document = json.loads(contents[files[name]].splitlines()[0] if name.endswith("l") else contents[files[name]])
    changes = [(place, value) for place in places(document) for value in VALUES if place or value is not REMOVED]
    refused = 0
    for place, value in random.Random(name).sample(changes, SAMPLES):
        for path, content in contents.items():
            path.write_bytes(content)
        files[name].write_text(json.dumps(damage(document, place, value)) + "\n")
        try:
            words = look()
        except UsageError:
            refused += 1
            continue
        # a margin is a question of its own, and a run record has the figures themselves
        assert name == "ledger.json" or place == ("margin",) or words == verdicts, (place, value, words)
    assert refused or name in ("journal.jsonl", "ledger.json")  # a damaged line or run is left out, with a flag


@pytest.mark.parametrize("level", [1.0, 0.06, math.inf, math.nan, -0.01])
@pytest.mark.parametrize(("name", "list_name"), [("looks.json", "looks"), ("series.json", "entries")])
def test_no_look_may_spend_more_than_there_is(site, name, list_name, level):
    """A look at an infinite level called every difference better or worse."""
    look, files = site
    look()
    content = json.loads(files[name].read_text())
    content[list_name][0]["level"] = level
    files[name].write_text(json.dumps(content))
    with pytest.raises(UsageError, match=f"{name} is damaged"):
        look()


@pytest.mark.parametrize(
    ("place", "value"), [(("batches", "first"), -1), (("code", "zoo"), None), (("seed",), 10**30), (("seed",), -1)]
)
def test_a_damaged_record_of_a_run_is_left_out(site, place, value):
    look, files = site
    files["ledger.json"].write_text(json.dumps(damage(json.loads(files["ledger.json"].read_text()), place, value)))
    assert f"no valid {place[0]}" in run_records.parse_record(files["ledger.json"]).problem
    assert look() == ["baseline", "no verdict"]
