"""The page and the folder: whole, self-contained, safe, and written at once or not at all."""

import functools
import json
import math
import os
import re
from html.parser import HTMLParser

import pytest
import test_factorial
from fabricate import ledger, run, study
from PIL import Image

from zoo.compare import table
from zoo.compare.charts import ReportChart, draw_charts, draw_curves
from zoo.compare.document import escape_markdown
from zoo.compare.report import page, write_report
from zoo.compare.verdict import answer
from zoo.errors import UsageError

EVIL = "<script>alert(1)</script>&\"'"
VOID = {"meta", "br", "wbr"}


class Balanced(HTMLParser):
    """Raises where tags do not match; collects text and tags."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def result():
    runs = study({"default": 1.7, "position=ALiBi": 1.6, "position=Learned": 1.71})
    return answer(runs, commands=["zoo compare lm-tiny --vary model.position=rope,alibi,learned"])


def further_chart():
    figure = draw_curves(answer([run("default", 1)])).figure
    return ReportChart("lengths", "Beyond the training length", "A cross: undefined.", figure)


def failing(base=(), variant=()):
    """An answer of which these seeds of the baseline and of a variant diverged."""
    fails = {"default": base, "position=ALiBi": variant, "position=Learned": ()}
    return answer([run(name, seed, 1.7 + seed / 100, {"position": name}, diverges=500 if seed in seeds else None)
                   for name, seeds in fails.items() for seed in (1, 2, 3)])  # fmt: skip


ANSWERS = {
    "plain": lambda: answer(study({"default": 1.7, "position=ALiBi": 1.6})),
    "grid": lambda: test_factorial.grid(lambda n, p: -0.05 * n)[1],
    "target": lambda: answer(study({"default": 1.7, "position=ALiBi": 1.6}), at="to:2.5"),
    **{f"failed {base} {variant}": functools.partial(failing, base, variant)
       for base in ((), (2,), (1, 2, 3)) for variant in ((), (1,), (1, 2, 3))},
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_every_section_stands_in_the_page_and_in_markdown(name):
    check_sections(ANSWERS[name]())


def check_sections(result):
    """Everything that the sections of a report say stands in its page, in Markdown and in a terminal."""
    report, text = table.compose_report(result), "".join(Balanced(page(result)).text)
    markdown, terminal = report.as_markdown(), "".join(report.as_text().split())
    for section in report.sections:
        for cell in (section.text, *section.notes, *(cell for row in section.rows for cell in row)):
            assert cell in text
            assert escape_markdown(cell) in markdown or cell in markdown
        for words in (section.text, *section.notes) if section.in_text else ():
            assert "".join(words.split()) in terminal
    assert "()" not in markdown + text


def test_the_page_says_everything(result):
    text = " ".join(Balanced(page(result, [*draw_charts(result), further_chart()])).text)
    expected = (
        "lower the validation loss of lm-tiny?|is better by 0.|Not distinguishable from|Verdicts|Training|"
        "Difference from|Beyond the training length|What differs|Cost|What is not equal|Nothing. Tokens, data|"
        "Other figures|bits per byte|Every run|Common to all runs|AMD EPYC 7763|32-true|2.15.0|Holm|918k|"
        "SDPA (math)|norm|RMSNorm|StdlibDocs (fingerprint|zoo compare lm-tiny --vary"
    )
    for words in expected.split("|"):
        assert words in text, words


def test_the_page_needs_nothing_else(result):
    text = page(result, draw_charts(result))
    parsed = Balanced(text)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object", "base"}
    assert not any(name in attrs for _, attrs in parsed.tags for name in ("src", "href", "onload", "onclick"))
    inside = {f"#{attrs['id']}" for _, attrs in parsed.tags if "id" in attrs}
    assert {attrs["xlink:href"] for _, attrs in parsed.tags if "xlink:href" in attrs} <= inside
    assert set(re.findall(r"url\((.*?)\)", text)) <= inside
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink)\")", text)
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert len(text) < 400_000


def test_nothing_that_a_run_says_is_markup():
    fields = {"recipe": EVIL, "setting.kernel": EVIL, "setting.machine": EVIL}
    runs = [run(EVIL, seed, choices={"position": EVIL}, **fields) for seed in (1, 2)]
    result = answer([*runs, *(run("default", seed, recipe=EVIL) for seed in (1, 2))], commands=[EVIL])
    text = page(result, [*draw_charts(result), ReportChart("x", EVIL, EVIL, draw_curves(result).figure)])
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    Balanced(text)


def test_a_refusal_stands_on_top():
    runs = [*study({"default": 1.7}), *(run("a=1", seed, tokens=1_900_000) for seed in (1, 2, 3))]
    text = page(answer(runs))
    assert text.index("these runs are not comparable: tokens 1.9M (a=1) against 6.1M (default)") < text.index(
        "<h2>Verdicts"
    )
    assert "✕ not comparable: tokens" in text


def test_every_run_has_a_line_that_says_what_became_of_it():
    runs = [*study({"default": 1.7}, seeds=2), run("a=1", 1, diverges=500), run("a=1", 2, finished=False)]
    text = page(answer(runs))
    table = text[text.index("Every run") :]
    assert table.count("<tr>") >= 4
    assert '<td class="n">diverged</td>' in table
    assert '<td class="n">not finished</td>' in table
    assert '<td class="n">3,000</td>' in table


def test_one_variant_and_one_seed_have_a_page_too():
    Balanced(page(answer([run("default", 1)])))
    Balanced(page(answer([run("default", 1, choices={}, setting={}, cost={}, validations=[], data={})])))


def test_the_folder_is_complete(result, tmp_path):
    files = write_report(result, tmp_path / "new" / "folder", [further_chart()])
    assert [path.name for path in files] == [
        "comparison.md", "comparison.csv", "comparison.json", "comparison.html",
        "curves.png", "differences.png", "speed.png", "lengths.png",
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(path.name for path in files)
    for path in files:
        assert path.stat().st_size > 100
        assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(files[2].read_text())["recipe"] == "lm-tiny"
    assert Image.open(files[4]).size == (1440, 800)
    first = files[3].read_bytes()
    write_report(result, tmp_path / "new" / "folder", [further_chart()])
    assert files[3].read_bytes() == first  # nothing in it depends on when or where it was made


def test_a_write_that_fails_leaves_what_was_there(result, tmp_path, monkeypatch):
    write_report(result, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replace = os.replace

    def fails(source, target):
        if str(target).endswith(".html"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UsageError, match=r"cannot write to .*: No space left on device"):
        write_report(answer(study({"default": 1.7, "position=ALiBi": 1.8})), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert after["comparison.html"] == before["comparison.html"]


def test_a_folder_that_cannot_be_made_is_refused(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        write_report(result, tmp_path / "file" / "below")


def test_hundreds_of_runs_take_little_time(tmp_path):
    import time

    from fabricate import lay

    from zoo.compare.run_records import read_records

    for index in range(10):
        for seed in range(1, 11):
            lay(ledger(f"a={index}" if index else "default", seed, 1.7 + 0.01 * math.sin(31 * seed + index)), tmp_path)
    start = time.process_time()
    result = answer(read_records(tmp_path))
    assert len(result.rows) == 10
    assert time.process_time() - start < 2.0
