"""The loop of the gallery compares every proposal with what it has kept, which may differ from the recipe."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "gallery" / "keep_or_discard.py"
ZOO = """\
#!{python} -IS
import sys
with open({calls!r}, "a+") as file:
    file.seek(0)
    better = len(file.readlines()) < {keeps}
    file.write("\\t".join(sys.argv[1:]) + "\\n")
print('{{"answer": ["an answer"]}}')
sys.exit(10 if better else 11)
"""


def calls_of(tmp_path, keeps):
    """The options of each comparison that the loop asks for, where so many proposals are better and all others worse;
    and what it prints.
    """
    program, calls = tmp_path / "zoo", tmp_path / "calls"
    program.write_text(ZOO.format(python=sys.executable, calls=str(calls), keeps=keeps))
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "RUNS": str(tmp_path), "MINUTES": "9"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in calls.read_text().splitlines()], done.stdout


def option(words, name):
    return next(word.removeprefix(f"--{name}=") for word in words if word.startswith(f"--{name}="))


def varied(words):
    key, _, values = words[words.index("--vary") + 1].partition("=")
    return key, *values.split(",")


def test_what_was_kept_is_the_baseline_of_the_next_proposal(tmp_path):
    calls, output = calls_of(tmp_path, keeps=4)
    proposals = [words for words in calls if option(words, "seeds").startswith("1,")]
    gains: dict[str, str] = {}
    for number, words in enumerate(proposals):
        key, before, after = varied(words)
        assert option(words, "baseline") == f"{key}={before}"
        assert gains.get(key, before) == before
        assert all(option(words, name) == value for name, value in gains.items() if name != key)
        if number < 4:
            gains[key] = after
    again = [words for words in calls if words not in proposals]
    assert [varied(words) for words in again] == [varied(words) for words in proposals[:4]], "on untouched seeds"
    assert output.count("on untouched seeds: discard") == 4


def test_what_is_worse_is_not_kept_and_each_proposal_is_tried_once(tmp_path):
    calls, output = calls_of(tmp_path, keeps=0)
    assert "keep" not in output
    proposals = [varied(words) for words in calls]
    assert len(proposals) == len(set(proposals)) == 8
    assert {before for key, before, _ in proposals if key == "model.lr"} == {"3e-3"}
