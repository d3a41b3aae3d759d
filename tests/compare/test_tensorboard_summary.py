"""Which charts TensorBoard pins, and what it calls the runs of a comparison."""

import json

import pytest

from tests.compare.fabricate import lay, ledger, study
from zoo.compare import run_records, tensorboard_summary
from zoo.compare.tensorboard_summary import (
    COLUMNS,
    PINNED,
    headline_tags,
    pinned_tags,
    start_summary,
    tensorboard_folder,
    wrap_markdown,
)
from zoo.compare.verdict import answer
from zoo.errors import UsageError

VARIANTS = {
    "max_steps=9": {}, "position=alibi,max_steps=9": {"position": "ALiBi"},
    "position=rope,base=500,max_steps=9": {"position": "RoPE(base=500)/x"},
}  # fmt: skip


@pytest.fixture
def comparison(tmp_path):
    """Three variants, two seeds each, and the record of their comparison."""
    files = [
        lay(ledger(name, seed, choices=choices), tmp_path) for name, choices in VARIANTS.items() for seed in (1, 2)
    ]
    home = run_records.comparison_path(tmp_path, "lm-tiny", "position")
    run_records.save_record(home, run_records.Record(tuple(f.parent for f in files), "max_steps=9"))
    (home / tensorboard_summary.NAME).mkdir()
    return home


def test_runs_of_a_comparison_are_called_as_in_its_table(comparison):
    with tensorboard_folder(comparison) as (folder, pinned):
        links = {str(path.relative_to(folder)): path.resolve() for path in folder.glob("*/s*")}
        assert sorted(links) == sorted(f"{name}/s{s}" for name in ("RoPE", "ALiBi", "RoPE(base=500)_x") for s in (1, 2))
        assert links["ALiBi/s2"] == comparison.parents[1] / "position=alibi,max_steps=9" / "s2"
        assert (folder / "comparison").resolve() == comparison / tensorboard_summary.NAME
        assert pinned[0] == "val/loss"
        assert "val/bits_per_byte" in pinned
    assert not folder.exists()
    assert len(list(comparison.parents[1].glob("*/s*/ledger.json"))) == 6  # the runs themselves stay


def test_a_summary_replaces_an_earlier_one_and_nothing_else(tmp_path, comparison):
    logs = tmp_path / "out" / "tensorboard" / "0-mine" / "events.out.tfevents.1"
    logs.parent.mkdir(parents=True)
    logs.write_text("of another program")
    for _ in range(2):
        folder, writer = start_summary(logs.parents[2], "comparison", "a table")
        writer.close()
        assert folder.name == "tensorboard-1"
        assert len(list(folder.glob("events*"))) == 1
        assert (
            start_summary(comparison, "comparison", "a table")[0].name == "tensorboard"
        )  # made before, without a mark
    assert logs.read_text() == "of another program"


def test_before_a_run_is_finished_names_are_those_of_the_variants(comparison):
    for path in comparison.parents[1].glob("*/s*/ledger.json"):
        path.unlink()
    with tensorboard_folder(comparison) as (folder, _):
        assert {path.name for path in folder.iterdir()} == {
            "default", "position=alibi", "position=rope,base=500", "comparison",
        }  # fmt: skip


def test_a_damaged_record_is_refused(comparison):
    (comparison / run_records.RUNS_FILE).write_text("{")
    with pytest.raises(UsageError, match="is damaged"), tensorboard_folder(comparison):
        pass


def test_the_headlines_of_every_recipe_are_pinned(tmp_path):
    assert headline_tags(tmp_path) == PINNED
    lay(ledger(), tmp_path)
    lay(ledger(recipe="vit", goals={"top1": "max", "loss": "min"}), tmp_path)
    with tensorboard_folder(tmp_path) as (folder, pinned):
        assert folder == tmp_path
        assert pinned == (
            "val/loss", "val/top1", "val/bits_per_byte", "val_by_tokens/loss", "val_by_tokens/top1", "train/loss",
        )  # fmt: skip
    (tmp_path / "lm-tiny" / "default" / "s1" / "ledger.json").write_text("not json")
    assert headline_tags(tmp_path)[0] == "val/top1"


def test_a_comparison_pins_its_own_goal_first():
    assert pinned_tags("bleu", ["loss", "bleu"]) == (
        "val/bleu", "val_by_tokens/bleu", "val/loss", "cost/tokens_per_s",
    )  # fmt: skip


def test_lines_of_text_are_as_wide_as_the_page_and_tables_stay():
    words = "word " * 60
    row, code = f"| {words} |", f"```bash\n{words}\n```"
    text = wrap_markdown(f"# {words}\n\n{words}\n- {words}\n\n{row}\n\n{code}\n")
    long = [line for line in text.split("\n") if len(line) > COLUMNS]
    assert long == [f"# {words}", row, words]
    assert text.split() == f"# {words} {words} - {words} {row} {code}".split()
    assert json.dumps(text).count("\\n  word") == 2  # the item's lines stay one item


@pytest.mark.parametrize("at", ["last", "best", "last:2"])
def test_the_row_of_a_variant_has_the_figure_that_decides_its_interval_and_its_verdict(tmp_path, at):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    result = answer(study({"default": 1.9, "position=alibi": 1.6, "position=none": 1.9}), at=at)
    assert tensorboard_summary.write_summary(tmp_path, result)[0] == "loss"
    tensorboard_summary.write_summary(tmp_path, result)  # replaces the earlier one
    folders = sorted(path for path in (tmp_path / tensorboard_summary.NAME).iterdir() if path.is_dir())
    assert len(folders) == len(result.rows)
    for folder, row in zip(folders, result.rows, strict=True):
        events = EventAccumulator(str(folder))
        events.Reload()
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
        assert start.group_name == f"{row.variant} (lm-tiny)"  # that of its runs
        assert start.hparams["verdict"].string_value == row.verdict.word
        values = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
        assert values[f"comparison/loss ({at})"] == pytest.approx(row.mean, rel=1e-6)
        if row is not result.base:
            assert values["comparison/interval, low"] == pytest.approx(row.pair.low, rel=1e-5)
            assert values["comparison/interval, high"] == pytest.approx(row.pair.high, rel=1e-5)
            assert values["comparison/difference"] == pytest.approx(row.pair.mean, rel=1e-5)
