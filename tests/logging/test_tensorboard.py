"""What TensorBoard shows of runs, asked of a TensorBoard that was started on them."""

import itertools
import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.campaigns.chaos.toys import all_scalars
from zoo.compare.tensorboard_command import _free_port
from zoo.logging import event_files
from zoo.logging.tensorboard import RunLogger
from zoo.training.setup import option_values, training_options

ROPE = {"class_path": "zoo.parts.position.RoPE", "init_args": {"base": 500000.0}}
ALIBI = {"class_path": "zoo.parts.position.ALiBi", "init_args": {}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two variants, two seeds each, the last run failed."""
    runs = tmp_path_factory.mktemp("runs")
    for variant, part, status in (("rope", ROPE, "success"), ("position=alibi", ALIBI, "failed")):
        for seed in (1, 2):
            folder = runs / "lm-tiny" / variant / f"s{seed}"
            options = {"dim": 16, "lr": 1e-3, "position": part, "backend": None}
            logger = RunLogger(folder, f"lm-tiny/{variant}", option_values({"init_args": options}))
            for step in (10, 20):
                logger.log_metrics({"val/loss": 3.0 / step + seed, "best/loss": 3.0 / step + seed, "epoch": 0}, step)
            logger.finalize(status)
    port = _free_port(16006)
    words = [sys.executable, "-m", "zoo", "tensorboard", str(runs), "--port", str(port)]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/data"
    finally:
        child.terminate()
        child.wait()


def test_a_resumed_run_is_read_after_its_beginning_whatever_the_clock_and_the_process_are(tmp_path, monkeypatch):
    """A clock that goes back, then stands still, and the same number of the process in each life, as in containers."""
    now = iter([2e9, 1e9, 1e9, 1e9])
    monkeypatch.setattr(event_files, "_numbers", itertools.repeat(0))
    mark: dict[str, int] = {}
    for life in range(4):
        clock = next(now)
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        logger = RunLogger(tmp_path, "a", {}, mark)
        logger.log_metrics({"val/loss": float(life)}, life)
        mark = logger.mark()
        logger.log_metrics({"val/loss": 100.0}, 100)  # after the checkpoint, which the next life takes away
        logger.experiment.flush()
    assert all_scalars(tmp_path)["val/loss"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (100, 100.0)]


def test_a_resumed_run_that_logs_nothing_leaves_its_files_alone(tmp_path):
    first = RunLogger(tmp_path, "a", {})
    first.log_metrics({"val/loss": 1.0}, 1)
    marks = [{}, first.mark()]
    first.log_metrics({"val/loss": 2.0}, 2)
    first.finalize("success")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for mark in marks:
        again = RunLogger(tmp_path, "a", {}, mark)
        again.experiment.flush()  # as Lightning asks each logger for it
        assert again.mark() == mark
        again.finalize("success")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_another_process_logs_is_not_cut_off_by_a_resume_that_is_refused(tmp_path):
    logger = RunLogger(tmp_path, "a", {})
    logger.log_metrics({"val/loss": 1.0}, 1)
    mark = logger.mark()
    logger.log_metrics({"val/loss": 2.0}, 2)
    logger.experiment.flush()
    RunLogger(tmp_path, "a", {}, mark).finalize("failed")  # before it has logged anything
    assert all_scalars(tmp_path)["val/loss"] == [(1, 1.0), (2, 2.0)]


def ask(url, body=None, until=bool):
    """The answer of a started TensorBoard, once it has read the runs."""
    deadline = time.monotonic() + 60
    while True:
        try:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=5))
            if until(answer):
                return answer
        except OSError:
            pass
        assert time.monotonic() < deadline, f"no answer from {url}"
        time.sleep(0.5)


def test_hparams_have_a_column_per_choice_and_a_row_per_variant(server):
    url = f"{server}/plugin/hparams/experiment"
    result = ask(url, {"includeMetrics": True}, lambda answer: len(answer.get("hparamInfos", [])) >= 4)
    assert {info["name"] for info in result["hparamInfos"]} == {"dim", "lr", "position", "backend"}
    metrics = {info["name"]["tag"] for info in result["metricInfos"]}
    assert metrics == {"val/loss", "best/loss"}  # no hp_metric, no epoch
    expected = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"],
        "colParams": [
            {"hparam": "position", "includeInResult": True},
            {"metric": {"group": "", "tag": "best/loss"}, "includeInResult": True},
        ],
        "aggregationType": "AGGREGATION_AVG",
        "startIndex": 0,
        "sliceSize": 10,
    }
    rows = ask(f"{server}/plugin/hparams/session_groups", expected)["sessionGroups"]
    assert {row["name"]: row["hparams"]["position"] for row in rows} == {
        "lm-tiny/rope": "RoPE(base=500000.0)",
        "lm-tiny/position=alibi": "ALiBi",
    }
    for row in rows:
        assert len(row["sessions"]) == 2
        statuses = {session["status"] for session in row["sessions"]}
        assert statuses == {"STATUS_FAILURE" if "alibi" in row["name"] else "STATUS_SUCCESS"}
        best = next(value["value"] for value in row["metricValues"] if value["name"]["tag"] == "best/loss")
        assert best == pytest.approx(3.0 / 20 + 1.5)  # the mean of the last values of both seeds


def test_run_names_are_variants_and_seeds_and_there_is_no_epoch_chart(server):
    tags = ask(f"{server}/plugin/scalars/tags", until=lambda answer: len(answer) >= 4)
    runs = {f"lm-tiny/{variant}/s{seed}" for variant in ("rope", "position=alibi") for seed in (1, 2)}
    assert set(tags) == runs
    assert all(set(result) == {"val/loss", "best/loss"} for result in tags.values())


def test_there_is_a_layout_of_quality_and_cost(server):
    layout = ask(f"{server}/plugin/custom_scalars/layout")
    assert [category["title"] for category in layout["category"]] == ["quality", "cost"]


def test_a_port_that_is_in_use_is_passed_over():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert _free_port(port) > port


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("trainer.gradient_clip_val", 0.5, 0.5),
        ("trainer.gradient_clip_val", 0, 0),
        ("trainer.max_steps", 200, 200),
        ("trainer.precision", "bf16-mixed", "bf16-mixed"),
        ("trainer.strategy", "deepspeed_stage_2", "deepspeed_stage_2"),
        ("trainer.callbacks", [{"class_path": "zoo.training.ema.EMA", "init_args": {"decay": 0.9}}], "EMA(decay=0.9)"),
        ("tune.rank", 8, 8),
        ("compile", True, True),
        ("on_nonfinite", "skip", "skip"),
        ("trainer.devices", 2, None),
        ("trainer.strategy", "ddp", None),
        ("trainer.accumulate_grad_batches", None, None),
        ("model.dim", 8, None),  # a column already
        ("data.batch_size", 8, None),
    ],
)
def test_whatever_may_vary_outside_of_the_model_is_a_column_of_hparams(key, value, expected):
    assert training_options({key: value}) == ({} if expected is None else {key: expected})


@pytest.mark.parametrize("resumes", [1, 2])
def test_the_choices_of_a_run_that_goes_on_are_those_it_goes_on_with(resumes, tmp_path):
    logged = None
    for number in range(resumes + 1):
        logger = RunLogger(tmp_path, "lm-tiny", {"lr": 0.1 / (number + 1), "max_steps": 6.0 * (number + 1)}, logged)
        logger.log_metrics({"val/loss": 1.0}, number)
        logged = logger.mark()
        logger.log_metrics({"val/loss": 9.0}, number + 100)
        logger.finalize("success")
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.name in logged}
        assert all(sizes[name] == size for name, size in logged.items() if name != max(logged))  # marks stay valid
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    content = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    options = {name: value.number_value for name, value in content.session_start_info.hparams.items()}
    assert options == {"lr": 0.1 / (resumes + 1), "max_steps": 6.0 * (resumes + 1)}
    assert [event.step for event in events.Scalars("val/loss")] == [*range(resumes + 1), resumes + 100]
