"""Trackers hold what TensorBoard's files hold; `zoo.fit` and `zoo.compare` do what the commands do."""

import csv
import errno
import json
import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import zoo
from tests import forks
from zoo.cli import main
from zoo.errors import UsageError
from zoo.logging import trackers
from zoo.logging.trackers import CSVFigures, choose_trackers, read_identity

OPTIONS = {
    "data": "TextFiles", "data.path": "text.txt", "data.tokenizer": "bytes", "data.max_length": 16, "model.dim": 16,
    "model.depth": 1, "model.heads": 2, "trainer.max_steps": 20, "trainer.val_check_interval": 10,
    "trainer.log_every_n_steps": 5, "trainer.accelerator": "cpu", "trainer.precision": "32-true",
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a text, in which no tracker reports anything to a service."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "ZOO_TRACKERS"):
        monkeypatch.delenv(name, raising=False)
    Path("text.txt").write_text("the cat sat on the mat. " * 400)
    return tmp_path


def scalars_of_tensorboard(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return sorted((name, event.step, round(event.value, 4)) for name in names for event in events.Scalars(name))


def scalars_of_csv(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return sorted((row["name"], int(row["step"]), round(float(row["value"]), 4)) for row in csv.DictReader(file))


def approximately(rows):
    return [(name, step, pytest.approx(value, abs=2e-4, rel=1e-5)) for name, step, value in rows]


def test_each_tracker_holds_what_tensorboard_holds(place, monkeypatch):
    pytest.importorskip("wandb", reason="a tracker")
    mlflow = pytest.importorskip("mlflow", reason="a tracker")
    pytest.importorskip("sqlalchemy", reason="MLflow's database")
    run = zoo.fit("lm-tiny", OPTIONS, trackers=("csv", "wandb", "mlflow"))
    expected = scalars_of_tensorboard(run.folder)
    assert {name for name, _, _ in expected} >= {"train/loss", "val/loss", "val_by_tokens/loss", "best/loss"}
    assert scalars_of_csv(run.folder) == approximately(expected)
    with (run.folder / "options.csv").open(newline="") as file:
        options = {row["name"]: row["value"] for row in csv.DictReader(file)}
    assert (options["dim"], options["position"], options["config.model.lr"]) == ("16", "RoPE", "0.003")

    client = mlflow.MlflowClient(f"sqlite:///{place}/runs/mlflow.db")
    key = read_identity(run.folder, "mlflow")
    logged = client.get_run(key)
    figures = [
        (name, metric.step, round(metric.value, 4))
        for name in logged.data.metrics for metric in client.get_metric_history(key, name)
    ]  # fmt: skip
    assert sorted(figures) == approximately(expected)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["dim"] == "16"
    assert logged.data.params["config.model.lr"] == "0.003"
    assert logged.info.run_name == "/".join(run.folder.parts[-2:])

    figures, config = read_wandb(place / "runs" / "wandb", read_identity(run.folder, "wandb"))
    assert sorted(figures) == approximately(expected)
    assert config["dim"] == 16
    with pytest.raises(UsageError, match="overwrite"):
        zoo.fit("lm-tiny", OPTIONS)
    assert zoo.fit("lm-tiny", OPTIONS, existing="resume").figures["val/loss"] == run.figures["val/loss"]
    assert run.load().tokenizer.vocab_size > 0


def read_wandb(folder, key):
    """The figures and options in W&B's files of a run that was not sent."""
    from wandb.proto import wandb_internal_pb2

    figures, config = [], {}
    for file in sorted(folder.glob(f"*run-*-{key}/run-{key}.wandb")):
        for content in log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                names = [name for name in items if not name.startswith("_") and name != "trainer/global_step"]
                step = json.loads(items["trainer/global_step"]) if names else None
                figures += [(name, step, round(json.loads(items[name]), 4)) for name in names]
            for source in (record.config, record.run.config):
                config |= {item.key: json.loads(item.value_json) for item in source.update if item.key}
    return figures, config


def log_records(data):
    """The records of a log in LevelDB's format: blocks of 32 KB, in them pieces with checksum, length and kind."""
    place, pieces = 7, []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        pieces.append(data[place + 7 : place + 7 + size])
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its end
            yield b"".join(pieces)
            pieces = []


def test_a_resume_continues_the_same_runs(place):
    """A run is killed after its checkpoint; what it logged after that is not there twice."""
    script = (
        "import os, sys, zoo\n"
        "from zoo.logging.trackers import CSVFigures\n"
        "log = CSVFigures.log_metrics\n"
        "def log_until(self, metrics, step=None):\n"
        "    log(self, metrics, step)\n"
        "    if 'train/loss' in metrics and step >= 15: os._exit(9)\n"
        "CSVFigures.log_metrics = log_until\n"
        f"zoo.fit('lm-tiny', {OPTIONS!r}, trackers=('csv',))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(zoo.__file__).parent.parent)}
    assert forks.run([sys.executable, "-c", script], env=environment, timeout=300).returncode == 9
    folder = next(Path("runs/lm-tiny").glob("*/s1"))
    assert ("train/loss", 15) in {row[:2] for row in scalars_of_csv(folder)}
    run = zoo.fit("lm-tiny", OPTIONS, existing="resume")  # its trackers are those that it has had
    rows = [row for row in scalars_of_csv(run.folder) if row[0].startswith(("train/", "val/", "best/"))]
    assert len({row[:2] for row in rows}) == len(rows)
    expected = [row for row in scalars_of_tensorboard(run.folder) if row[0].startswith(("train/", "val/", "best/"))]
    assert rows == approximately(expected)
    assert [step for name, step, _ in rows if name == "train/loss"] == [5, 10, 15, 20]


def test_a_resume_with_other_options_goes_on_in_the_same_run_of_mlflow(place):
    """MLflow refuses another value of an option: it becomes a tag."""
    mlflow = pytest.importorskip("mlflow", reason="a tracker")
    pytest.importorskip("sqlalchemy", reason="MLflow's database")
    zoo.fit("lm-tiny", OPTIONS, trackers=("mlflow",), name="m")
    changed = OPTIONS | {"model.lr": 0.0007, "trainer.max_steps": 30}
    words = [f"--{key}={value}" for key, value in changed.items()]
    assert main(["fit", "lm-tiny", "--name=m", "--resume", "--accept-changes", *words]) == 0
    client = mlflow.MlflowClient(f"sqlite:///{place}/runs/mlflow.db")
    logged = client.get_run(read_identity(Path("runs/lm-tiny/m/s1"), "mlflow"))
    assert logged.data.params["config.model.lr"] == "0.003"
    assert logged.data.tags["config.model.lr"] == "0.0007"
    assert logged.data.tags["config.trainer.max_steps"] == "30"
    assert max(metric.step for metric in client.get_metric_history(logged.info.run_id, "train/loss")) == 30


def test_a_run_that_goes_on_from_another_one_keeps_what_it_has_logged(place):
    for name, steps in (("a", 10), ("b", 20)):
        zoo.fit("lm-tiny", OPTIONS | {"trainer.max_steps": steps}, name=name)
    before = scalars_of_tensorboard(Path("runs/lm-tiny/a/s1"))
    words = [f"--{key}={value}" for key, value in (OPTIONS | {"trainer.max_steps": 30}).items()]
    other = "runs/lm-tiny/b/s1/checkpoints/last.ckpt"
    assert main(["fit", "lm-tiny", "--name=a", "--resume", "--accept-changes", f"--ckpt_path={other}", *words]) == 0
    assert {row for row in before if row[0] == "train/loss"} <= set(scalars_of_tensorboard(Path("runs/lm-tiny/a/s1")))


def test_what_cannot_be_tracked_is_refused_before_training(place, monkeypatch):
    with pytest.raises(UsageError, match=r"there is no tracker 'wandbb'\. Did you mean 'wandb'"):
        zoo.fit("lm-tiny", OPTIONS, trackers=("wandbb",))
    assert not Path("runs").exists() or not list(Path("runs").glob("*/*/s1/config.yaml"))
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    for name in ("wandb", "mlflow", "aim"):
        with pytest.raises(UsageError, match=f"the tracker {name} needs its package: pip install {name}"):
            choose_trackers(name, place)
    monkeypatch.setenv("ZOO_TRACKERS", "csv")
    assert choose_trackers(None, place) == {"csv": ""}
    assert choose_trackers("", place) == {}


def test_a_run_that_replaces_another_is_a_new_run_in_each_tracker(place, monkeypatch):
    names = ("csv", "wandb", "mlflow", "aim")
    (place / trackers.FOLDER).mkdir()
    for name in names:
        (place / trackers.FOLDER / name).write_text("OLD\n")
    with monkeypatch.context() as patch:
        patch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
        assert choose_trackers("", place) == dict.fromkeys(names, "OLD")  # a resume goes on in them
        assert choose_trackers("aim,mlflow", place, fresh=True) == {"aim": "", "mlflow": ""}
    folder = zoo.fit("lm-tiny", {**OPTIONS, "trainer.max_steps": 2}, trackers=("csv",), name="a").folder
    assert (folder / "metrics.csv").is_file()
    zoo.fit("lm-tiny", {**OPTIONS, "trainer.max_steps": 2}, name="a", existing="overwrite")
    assert not (folder / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"model.dmi": 3}, "Did you mean 'model.dim'"), ({"model.position": "alibbi"}, "alibbi"), ({3: 4}, "is called 3")],
)
def test_wrong_options_are_exceptions(place, options, message):
    with pytest.raises(UsageError, match=message):
        zoo.fit("lm-tiny", {**OPTIONS, **options})
    with pytest.raises(UsageError, match="existing is 'maybe'"):
        zoo.fit("lm-tiny", OPTIONS, existing="maybe")


def test_a_comparison_writes_its_verdict_to_the_trackers(place, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="a tracker")
    pytest.importorskip("sqlalchemy", reason="MLflow's database")
    monkeypatch.setenv("ZOO_TRACKERS", "csv,mlflow")
    answer = zoo.compare("lm-tiny", {"model.position": ["rope", "alibi"]}, OPTIONS, seeds=2)
    assert [row.label for row in answer.rows] == ["RoPE", "ALiBi"]
    for row in answer.rows:
        for record in answer.runs[row.variant].values():
            with (record.path.parent / "comparison.csv").open(newline="") as file:
                words = {line["name"]: line["value"] for line in csv.DictReader(file)}
            assert words["comparison/verdict"] == row.verdict.word
            assert float(words["comparison/loss (last)"]) == pytest.approx(row.mean)
            client = mlflow.MlflowClient(f"sqlite:///{place}/runs/mlflow.db")
            run = client.get_run(read_identity(record.path.parent, "mlflow"))
            assert run.data.tags["comparison/verdict"] == row.verdict.word
            assert run.data.metrics["comparison/loss last"] == pytest.approx(row.mean)
    with pytest.raises(UsageError, match="vary must name an option"):
        zoo.compare("lm-tiny", {}, OPTIONS)


def test_a_verdict_goes_to_the_trackers_that_can_be_reached(tmp_path, monkeypatch, capsys):
    for package in ("wandb", "mlflow", "mlflow.tracking", "aim"):
        monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    folders = [tmp_path / "lm-tiny" / variant / "s1" for variant in ("default", "position=alibi")]
    for folder in folders:
        (folder / "trackers").mkdir(parents=True)
        for name in trackers.PACKAGES:
            (folder / "trackers" / name).write_text("17\n")
    verdict = {"comparison/loss (last)": 2.5, "comparison/verdict": "better"}
    trackers.write_verdicts(dict.fromkeys(folders, verdict))
    for folder in folders:
        lines = ["name,value", "comparison/loss (last),2.5", "comparison/verdict,better"]
        assert (folder / "comparison.csv").read_text().splitlines() == lines
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split()[:4] for line in warnings] == [
        ["warning:", "the", "tracker", name] for name in ("wandb", "mlflow", "aim")
    ]


def test_figures_wait_while_the_disk_is_full(tmp_path, monkeypatch, capsys):
    logger, write = CSVFigures(tmp_path), os.write
    logger.log_metrics({"a": 1.0}, 1)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    for step in (2, 3):
        logger.log_metrics({"a": 1.0}, step)
    monkeypatch.setattr(os, "write", write)
    logger.log_metrics({"a": 1.0}, 4)
    again = CSVFigures(tmp_path)
    again.log_metrics({"a": 1.0}, 5)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["step,name,value", *(f"{step},a,1.0" for step in range(1, 6))]
    warnings = capsys.readouterr().err
    assert warnings.count("metrics.csv cannot be written, and the run goes on: No space left on device") == 1
    assert warnings.count("can be written again: no figure is lost") == 1
