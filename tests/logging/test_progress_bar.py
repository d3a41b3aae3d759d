"""What the progress bar shows, on terminals of several widths."""

import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Timer
from rich.cells import cell_len
from rich.console import Console

from tests.tasks.training import build
from zoo.logging.progress_bar import NARROWEST, WIDEST, Line, StepProgress, clock, fitting, on_terminal
from zoo.training.callbacks import PrintedLines

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A console in memory, and every state of its last line."""

    def __init__(self, width=120):
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=True, width=width, color_system=None)

    @property
    def frames(self):
        return [frame for frame in re.split("[\r\n]", CONTROL.sub("", self.file.getvalue())) if frame.strip()]


def fit(folder, width=120, every=True, ckpt=None, callbacks=(), task="lm", **options):
    """Train a tiny model; the frames that its bar drew, and the trainer."""
    terminal = Terminal(width)
    bar = StepProgress(terminal.console, 1e9 if every else 1e-9)
    usual = {"max_steps": 4, "max_epochs": -1, "limit_val_batches": 0, "num_sanity_val_steps": 0}
    off = {"enable_model_summary": False, "enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
    trainer = Trainer(
        default_root_dir=folder, use_distributed_sampler=False, callbacks=[bar, *callbacks], **usual | off | options
    )
    trainer.fit(*build(task, 4, folder), ckpt_path=ckpt)
    return terminal, trainer


def steps(frames):
    return list(dict.fromkeys(match[1] for frame in frames if (match := re.match(r"step ([\d,/]+)", frame))))


@pytest.mark.parametrize(
    ("width", "fields"),
    [(12, 0), (24, 1), (80, 3), (120, 3)],
)
def test_the_line_fits_the_terminal(tmp_path, width, fields):
    frames = fit(tmp_path, width)[0].frames
    assert max(map(len, frames)) <= width
    assert steps(frames) == ["1/4", "2/4", "3/4", "4/4"]
    pattern = [r"loss \d\.\d{3}", r"[\d,.]+ tokens/s", r"0:\d\d left"]
    for place, field in enumerate(pattern):
        assert bool(re.search(field, frames[-1])) == (place < fields), frames[-1]
    assert ("━" in frames[-1]) == (width >= 80)


def test_it_is_drawn_as_often_as_it_may_and_at_the_end(tmp_path):
    frames = fit(tmp_path, every=False)[0].frames
    assert steps(frames) == ["1/4", "4/4"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"accumulate_grad_batches": 2, "max_steps": 3}, ["0/3", "1/3", "2/3", "3/3"]),
        ({"max_steps": -1, "max_epochs": 2, "limit_train_batches": 2}, ["1/4", "2/4", "3/4", "4/4"]),
        ({"max_epochs": 9, "limit_train_batches": 1, "max_steps": 2}, ["1/2", "2/2"]),
    ],
)
def test_steps_are_those_of_the_optimiser(tmp_path, options, expected):
    assert steps(fit(tmp_path, **options)[0].frames) == expected


class NewestLosses(Callback):
    """What the newest batch has lost for each of its predictions."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        total, size = pl_module.loss_log.losses[-1]
        self.values.append(f"loss {float(total / size):#.4g}")


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_the_loss_is_that_of_the_newest_batch(tmp_path, accumulate):
    losses = NewestLosses()  # of batches with unequal numbers of tokens
    terminal, _ = fit(tmp_path, accumulate_grad_batches=accumulate, callbacks=[losses], task="translation")
    figures = [match[0] for frame in terminal.frames if (match := re.search(r"loss [\d.]+", frame))]
    assert set(figures) <= set(losses.values)
    assert losses.values[-1] in figures


def test_a_resumed_run_counts_on(tmp_path):
    _, trainer = fit(tmp_path)
    trainer.save_checkpoint(tmp_path / "four.ckpt", weights_only=False)
    frames = fit(tmp_path, ckpt=tmp_path / "four.ckpt", max_steps=6)[0].frames
    assert steps(frames) == ["5/6", "6/6"]


def test_a_validation_is_shown_and_its_figure_stays(tmp_path):
    options = {"limit_val_batches": 2, "val_check_interval": 2, "num_sanity_val_steps": 1, "limit_train_batches": 4}
    terminal, _ = fit(tmp_path, **options, callbacks=[PrintedLines()])
    frames = terminal.frames
    assert any(frame.startswith("step 0 ") and "sanity check 1/1" in frame for frame in frames)
    assert [n for n in (1, 2) if any(re.match(rf"step 2/4 .*validating {n}/2 · loss", frame) for frame in frames)] == [
        1,
        2,
    ]
    assert not any("validating" in frame for frame in frames if frame.startswith("step 3/4"))
    assert re.search(r"left · val/loss \d", frames[-1])


def test_what_is_printed_stands_above_the_bar(tmp_path, capsys):
    terminal = Terminal(80)
    bar = StepProgress(terminal.console)
    bar._start()
    stream = sys.stdout
    print("step 2/4 · val/loss 3.1")
    bar._stop()
    assert stream is not sys.stdout
    assert "step 2/4 · val/loss 3.1\n" in CONTROL.sub("", terminal.file.getvalue())
    assert capsys.readouterr().out == ""


def test_an_evaluation_counts_its_batches(tmp_path):
    terminal = Terminal(60)
    module, data = build("lm", 4, tmp_path)
    bar = StepProgress(terminal.console, 1e9)
    options = {"logger": False, "accelerator": "cpu", "use_distributed_sampler": False, "callbacks": [bar]}
    Trainer(default_root_dir=tmp_path, limit_test_batches=2, **options).test(module, data, verbose=False)
    assert [n for n in (1, 2) if any(frame.startswith(f"testing {n}/2 ━") for frame in terminal.frames)] == [1, 2]


def test_a_run_that_fails_gives_the_terminal_back(tmp_path, monkeypatch):
    terminal, before = Terminal(), sys.stdout
    module, data = build("lm", 4, tmp_path)
    monkeypatch.setattr(module, "training_step", lambda batch, batch_idx: 1 / 0)
    options = {"logger": False, "accelerator": "cpu", "enable_checkpointing": False, "use_distributed_sampler": False}
    bar = StepProgress(terminal.console)
    with pytest.raises(ZeroDivisionError):
        Trainer(default_root_dir=tmp_path, callbacks=[bar], **options, max_steps=2).fit(module, data)
    assert terminal.file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor
    assert sys.stdout is before


@pytest.mark.parametrize(
    ("total", "origin", "timer", "expected"),
    [
        (100, (90.0, 20), None, 60 * 10 / 20), (100, (90.0, 40), None, None), (None, (90.0, 20), None, None),
        (100, (90.0, 20), 12.0, 12.0), (100, (90.0, 20), 99.0, 30.0), (None, None, -1.0, 0.0),
        (30, (90.0, 20), None, 0.0),
    ],
)  # fmt: skip
def test_time_left_is_that_of_the_steps_or_of_the_limit(monkeypatch, total, origin, timer, expected):
    monkeypatch.setattr("zoo.logging.progress_bar.time.monotonic", lambda: 100.0)
    limit = Timer(duration={"seconds": 0})
    monkeypatch.setattr(limit, "time_remaining", lambda: timer)
    bar = StepProgress()
    bar._trainer = SimpleNamespace(global_step=40, callbacks=[limit, bar])
    bar._total, bar._origin = total, origin
    assert bar.seconds_left() == expected


def test_speed_is_that_of_the_newest_drawings():
    bar = StepProgress()
    module = SimpleNamespace(tokens_seen=1000)
    bar._measure(10.0, module)
    assert bar._rate == 0.0
    module.tokens_seen = 3000
    bar._measure(14.0, module)
    assert bar._rate == 500.0
    bar._live = SimpleNamespace()
    bar.on_validation_start(None, module)
    bar._measure(99.0, module)
    assert bar._rate == 500.0  # a validation took the time in between
    module.tokens_seen = 3100
    bar._measure(100.0, module)
    assert bar._rate == 100.0


def test_a_loss_that_is_not_a_number_is_shown(tmp_path):
    bar = StepProgress()
    module = SimpleNamespace(unit="image", monitored_metrics={"top1": "max"})
    bar._trainer = SimpleNamespace(
        global_step=1200, callbacks=[], state=SimpleNamespace(fn="fit"), lightning_module=module,
        progress_bar_metrics={"val/top1": 0.5},
    )  # fmt: skip
    bar._loss, bar._rate = math.nan, 12.3456
    assert bar._line().fields == ["step 1,200", "loss nan", "12.3 images/s", "val/top1 0.5"]
    assert bar._line().share == 0.0


@given(st.lists(st.text("aß語", min_size=1, max_size=20), min_size=1, max_size=7), st.integers(1, 200))
def test_a_line_is_never_wider_than_the_terminal(fields, columns):
    fitting_fields, strip = fitting(fields, columns)
    assert fitting_fields == fields[: len(fitting_fields)]
    assert strip == 0 or NARROWEST <= strip <= WIDEST
    screen = Console(file=io.StringIO(), force_terminal=True, width=columns, color_system=None)
    screen.print(Line(fields, 0.5), end="")
    lines = [line for line in CONTROL.sub("", screen.file.getvalue()).split("\n") if line]
    assert len(lines) == 1
    assert cell_len(lines[0]) <= columns
    if cell_len(fields[0]) <= columns:
        assert " · ".join(fitting_fields[1:]) in lines[0]


def test_times_are_written_as_on_a_clock():
    assert [clock(seconds) for seconds in (0.4, 59.6, 750, 3750, 360000)] == [
        "0:00", "1:00", "12:30", "1:02:30", "100:00:00",
    ]  # fmt: skip


def test_there_is_no_bar_in_a_pipe(monkeypatch):
    assert on_terminal() == []
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert [type(one) for one in on_terminal()] == [StepProgress]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert on_terminal() == []


def in_terminal(words, columns, folder):
    """Run a command on a pseudo-terminal; everything that it wrote there."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        words, stdin=follower, stdout=follower, stderr=follower, cwd=folder, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    text = b""
    with os.fdopen(leader, "rb", 0) as stream:
        while True:
            try:
                piece = stream.read(65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
    assert child.wait() == 0, text.decode()
    return text.decode()


@pytest.mark.campaign
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_real_run_on_a_terminal(tmp_path, columns):
    options = "--model.dim 16 --model.depth 1 --model.heads 2 --data.size 400 --trainer.val_check_interval 3"
    words = f"fit vit-glyphs {options} --trainer.max_steps 6 --trainer.limit_val_batches 1".split()
    text = in_terminal([sys.executable, "-m", "zoo", *words], columns, tmp_path)
    lines = [CONTROL.sub("", line) for line in re.split("\r\x1b\\[2K", text)[1:]]
    frames = [line.strip("\r\n") for piece in lines for line in piece.split("\n") if line.startswith("step ")]
    bars = [frame for frame in frames if "· val/" not in frame[:20]]
    assert max(map(len, bars)) <= columns
    assert bars[-1].startswith("step 6/6 ━" if columns >= 80 else "step 6/6 loss ")  # 40 columns have no room for a bar
    assert "step 6/6 · val/" in text
    assert "Epoch" not in text
    log = next(tmp_path.glob("runs/*/*/s1/output.log")).read_text()
    assert log.count("step 6/6 · val/") == 1
    assert "━" not in log
