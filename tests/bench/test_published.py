"""The ledger: rows are complete, what cannot be run says so, and intervals decide."""

import json
import random
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench import adding, published
from bench.published import Row

ROWS = published.read_rows()


def row(**options):
    defaults = {"source": "someone", "link": "https://example.org", "setting": "small", "unit": "nats", "printed": 2.0}
    return Row("row", **defaults | {"tolerance": 0.1} | options)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_short_and_can_be_run_or_says_why_not(name):
    entry = ROWS[name]
    assert len((published.ROWS / f"{name}.yaml").read_text("utf-8").splitlines()) <= 40
    assert bool(entry.fit) != bool(entry.missing)
    for arm in entry.split().values() if entry.fit else ():
        words = shlex.split(arm.fit)
        assert isinstance(arm.printed, int if entry.ordered else float)
        assert entry.ordered != (entry.tolerance > 0)
        assert "--seed" not in words
        files = [entry.shuffle, *(f"{folder}/" for folder in entry.words[:1])]
        used = (*words, *(f"{{data}}/{name}" for name in files if name))
        assert all(any(f"{{data}}/{need}".startswith(word) for word in used) for need in entry.needs)


@pytest.mark.parametrize(("values", "verdict"), [
    ([2.0], "inside"), ([2.1], "inside"), ([2.11], "outside, above"), ([1.5], "outside, below"),
    ([2.4, 2.5, 2.6], "outside, above"), ([1.0, 2.0, 4.0], "inside"), ([1.2, 1.21, 1.22], "outside, below"),
])  # fmt: skip
def test_an_interval_that_meets_the_tolerance_is_inside(values, verdict):
    assert published.judge(row(), values) == verdict


def test_the_interval_is_that_of_student():
    from scipy import stats

    values = [1.0, 1.5, 1.1, 1.9]
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert published.interval(values) == pytest.approx((1.375, *expected))
    assert published.interval([3.0]) == (3.0, 3.0, 3.0)


def test_rows_without_data_or_words_are_left_out_with_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZOO_BENCH_DATA", str(tmp_path))
    with pytest.raises(published.AbsentError, match=r"no a/b\.txt in the folder ZOO_BENCH_DATA"):
        published.words_of(row(fit="lm-tiny", needs=["a/b.txt"]), tmp_path)
    with pytest.raises(published.AbsentError, match="no such model"):
        published.words_of(row(missing="no such model"), tmp_path)
    monkeypatch.delenv("ZOO_BENCH_DATA")
    assert published.main(["nanogpt-cpu", "--runs", str(tmp_path)]) == 1
    assert "nanogpt-cpu: not run: no tinyshakespeare/input.txt" in capsys.readouterr().err


def test_a_shuffled_file_keeps_every_line_once(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("".join(f"name{number}\n" for number in range(101)))
    published.shuffle_lines(path, tmp_path / "split")
    parts = [(tmp_path / "split" / f"{name}.txt").read_text().splitlines() for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [80, 10, 11]
    assert sorted(line for part in parts for line in part) == sorted(path.read_text().splitlines())


def test_a_row_is_trained_over_seeds_and_stands_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "ROWS", tmp_path / "rows")
    (tmp_path / "rows").mkdir()
    entry = row(differs="smaller")
    monkeypatch.setattr(published, "read_rows", lambda: {"row": entry})
    monkeypatch.setattr(published, "train", lambda row, seed, runs, arm: 2.0 + seed / 100)
    assert published.main(["row", "--seeds", "3", "--runs", str(tmp_path)]) == 0
    assert json.loads(entry.results.read_text())["figures"] == {"1": 2.01, "2": 2.02, "3": 2.03}
    text = published.page([entry, replace(row(missing="no data"), name="later")])
    assert "|[row](https://example.org)|small|2.0 nats|2.020 (1.995 to 2.045)|inside|smaller|" in text
    assert text.endswith("Not run: later (no data).\n")


ARMS = {"large": {"printed": 2.0, "fit": "--a 1"}, "small": {"printed": 1.0, "fit": "--a 2"}, "none": {"printed": 0.0}}


def test_each_arm_of_a_row_has_a_figure_beside_its_own_printed_one(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "ROWS", tmp_path)
    entry = row(arms=ARMS, printed="", fit="lm-tiny")
    monkeypatch.setattr(published, "read_rows", lambda: {"row": entry})
    reached = {"--a 1": 2.05, "--a 2": 1.5, "": 0.0}
    monkeypatch.setattr(published, "train", lambda row, seed, runs, arm: reached[row.fit.removeprefix("lm-tiny ")])
    assert published.main(["row", "--seeds", "2", "--runs", str(tmp_path)]) == 0
    cells = [line.split("|") for line in published.page([entry]).splitlines()[-3:]]
    assert [line[2] for line in cells] == ["small: large", "small", "none"]
    assert [line[5] for line in cells] == ["inside", "outside, above", "inside"]
    cells = [line.split("|") for line in published.page([replace(entry, ordered=True)]).splitlines()[-3:]]
    assert [line[5] for line in cells] == ["", "", "same order"]


def test_arms_before_one_that_fails_keep_their_figures(tmp_path, monkeypatch):
    def train(row, seed, runs, arm):
        if arm == "small":
            raise RuntimeError("out of memory")
        return 2.0

    monkeypatch.setattr(published, "ROWS", tmp_path)
    entry = row(arms=ARMS, printed="", fit="lm-tiny")
    monkeypatch.setattr(published, "read_rows", lambda: {"row": entry})
    monkeypatch.setattr(published, "train", train)
    assert published.main(["row", "--seeds", "1", "--runs", str(tmp_path)]) == 1
    assert entry.figures() == {"large": {"1": 2.0}}
    assert len(published.page([entry]).splitlines()) == 7


def test_an_arm_keeps_its_figures_until_it_has_been_trained_again(tmp_path, monkeypatch):
    trained = []

    def train(row, seed, runs, arm):
        if trained == ["large"]:
            raise RuntimeError("stopped")
        trained.append(arm)
        return 3.0

    monkeypatch.setattr(published, "ROWS", tmp_path)
    entry = row(arms=ARMS, printed="", fit="lm-tiny")
    published.write_results(entry, {"small": {"1": 1.0, "2": 1.1}, "large": {"1": 2.0, "2": 2.1}, "gone": {"1": 9.0}})
    monkeypatch.setattr(published, "read_rows", lambda: {"row": entry})
    monkeypatch.setattr(published, "train", train)
    assert published.main(["row", "--seeds", "1", "--runs", str(tmp_path)]) == 1
    assert list(entry.figures().items()) == [("large", {"1": 3.0}), ("small", {"1": 1.0, "2": 1.1})]


@pytest.mark.parametrize("arms", [{}, ARMS], ids=["one", "arms"])
def test_figures_of_other_words_do_not_stand_beside_the_row(arms, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "ROWS", tmp_path)
    entry = row(arms=arms, fit="lm-tiny --trainer.max_steps 5")
    published.write_results(entry, {next(iter(entry.split())): {"1": 2.0}})
    assert entry.figures()
    changed = replace(entry, fit="lm-tiny --trainer.max_steps 6")
    assert changed.figures() == {}
    assert published.page([changed]).endswith("Not run: row.\n")


@pytest.mark.parametrize(("figures", "verdict"), [
    ([[2.0], [1.0], [0.0]], "same order"), ([[2.0], [1.0], [1.5]], "another order"), ([[1.0], [1.0]], "undecided"),
    ([[2.0, 3.0], [1.0, 2.0]], "same order"), ([[2.0, 1.0], [1.0, 3.0]], "undecided"),
    ([[1.0, 2.0], [3.0, 4.0]], "contradicted"),
])  # fmt: skip
def test_arms_in_another_order_contradict_only_where_their_interval_does(figures, verdict):
    assert published.judge_order(figures) == verdict


def test_an_accuracy_is_scaled_so_that_chance_is_zero(tmp_path, monkeypatch):
    def run(words, **options):
        folder = tmp_path / "row" / "arm" / "recipe" / "s1"
        folder.mkdir(parents=True)
        (folder / "ledger.json").write_text(json.dumps({"finished": True, "validations": [{"accuracy": 0.75}]}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(published.subprocess, "run", run)
    entry = row(fit="lm-tiny", metric="accuracy", chance=0.5, factor=100)
    assert published.train(entry, 1, tmp_path, "arm") == 50.0


@pytest.mark.parametrize(("error", "right"), [(0, 100.0), (1, 0.0)])
def test_sums_are_written_digit_by_digit_and_the_last_digit_first(tmp_path, monkeypatch, error, right):
    class Adder:
        """Adds the numbers that it has read, and is wrong by ``error``."""

        def begin(self, capacity):
            self.text = []
            return self

        def step(self, tokens):
            self.text += tokens.T.tolist()
            place = len(self.text) - 2 * adding.DIGITS - 2
            a, b = self.text[: adding.DIGITS], self.text[adding.DIGITS + 1 : 2 * adding.DIGITS + 1]
            rows = [[int("".join(map(str, reversed(digits)))) for digits in zip(*side, strict=True)] for side in (a, b)]
            digits = [(x + y + error) // 10**place % 10 for x, y in zip(*rows, strict=True)]
            return torch.nn.functional.one_hot(torch.tensor(digits), 12)

        def eval(self):
            return self

    monkeypatch.setattr(adding, "load", lambda run: SimpleNamespace(net=Adder()))
    assert adding.exact_sums(tmp_path) == right
    pairs, draw = adding.pairs_to_add(), random.Random(2025)
    assert len(pairs) == 10_010
    assert pairs[10:12] == [(draw.randint(0, 9_999_999_999), draw.randint(0, 9_999_999_999)) for _ in range(2)]


def test_a_run_that_fails_leaves_no_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published, "ROWS", tmp_path)
    entry = row(fit="lm-no-such-recipe")
    monkeypatch.setattr(published, "read_rows", lambda: {"row": entry})
    assert published.main(["row", "--seeds", "1", "--runs", str(tmp_path / "runs")]) == 1
    assert "row: not run: row, seed 1: `zoo fit lm-no-such-recipe" in capsys.readouterr().err
    assert not entry.results.exists()


def test_the_page_is_that_of_the_results():
    assert published.PAGE.read_text(encoding="utf-8") == published.page(list(ROWS.values()))


@pytest.mark.parametrize("words", [["no-such-row"], ["nanogpt-cpu", "--seeds", "0"]])
def test_wrong_words_are_refused(words):
    with pytest.raises(SystemExit):
        published.parse_arguments(words)
