"""Transcripts of docs/compare.md: their commands are understood, and short ones print what the page has.

Digits differ between machines and the page's are of one of them: what is compared are the words, the headings and how
many figures there are.
"""

import re
import shlex
from pathlib import Path

import pytest

from zoo.cli import find_command, main
from zoo.compare import command, run_comparison
from zoo.logging import run_state

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "\n".join((DOCS / name).read_text() for name in ("compare.md", "lab/compare.md"))
BLOCKS = re.findall(r"```console\n\$ zoo compare (.*?[^\\])\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [(shlex.split(command.replace("\\\n", " ")), output) for command, output in BLOCKS]
SHORT = [(words, output) for words, output in COMMANDS if "--probe" in words and "--trainer.max_steps" in words]


def shape(text):
    """The words of a text with every number as #, and numbers of seeds, which depend on figures, left out."""
    text = re.sub(
        r"(about [\d,]+|more than 1,000) would be needed(, range [^)]*)?|[~>][\d,]+(?= needed)",
        "N",
        text.replace("\n", " "),
    )
    return re.sub(r"[−+-]?[\d][\d.,]*", "#", " ".join(text.split()))


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=lambda words: " ".join(words)[:60])
def test_the_commands_of_the_page_are_understood(words):
    options = find_command.parse(find_command.find_command("compare"), words)
    if "--attribute" not in words:
        assert command.read_comparison(options).vary


def test_transcripts_are_found():
    assert len(COMMANDS) >= 8
    assert len(SHORT) == 1


@pytest.mark.parametrize(("words", "transcript"), SHORT)
def test_a_short_transcript_is_what_the_command_prints(words, transcript, tmp_path, monkeypatch, capsys):
    """And a variant has one name: that of a run in progress is that of the table."""
    monkeypatch.chdir(tmp_path)
    names = set()

    def execute(jobs, options):
        names.update(job.title.rpartition(" s")[0] for job in jobs)
        for job in jobs:
            if run_state.read_state(job.folder) != "finished":
                assert main(["fit", *job.words, "--trainer.enable_progress_bar=false"]) == 0
        return []

    monkeypatch.setattr(run_comparison, "execute", execute)
    assert main(["compare", *words, "--data.batch_size", "2", "--data.max_length", "16"]) == 0
    printed = capsys.readouterr().out
    assert shape(transcript) in shape(printed), shape(printed)
    assert len(names) > 1
    assert all(re.search(rf"^{re.escape(name)}  ", printed, re.MULTILINE) for name in names), names
