"""Every task that learns from texts trains on tables, by the names of their columns."""

import json

import numpy as np
import pytest

import zoo

pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="writes Parquet")
WORDS = "the cat sat on a mat and saw dogs run far away over hills".split()
TRAINER = {
    "trainer.max_steps": 2, "trainer.val_check_interval": 2, "trainer.accelerator": "cpu", "model.dim": 16,
    "model.depth": 1, "model.heads": 2, "trainer.precision": "32-true", "trainer.enable_progress_bar": False,
}  # fmt: skip
BYTES = {"tokenizer": "bytes", "max_length": 16}
TASKS = {
    "lm-tiny": ("TextFiles", "#body", BYTES),
    "mlm-tiny": ("TextFiles", "#body", BYTES),
    "translation-tiny": ("ParallelFiles", "", {"source": "pair.en", "target": "pair.de", "vocab_size": 300}),
    "topics-tiny": ("LabelledFiles", "", {"columns": {"text": "body", "label": "kind"}, "vocab_size": 300}),
    "roles-tiny": ("TaggedFiles", "", {"columns": {"tokens": "words", "tags": "ner"}, "vocab_size": 300}),
    "dialogue-tiny": ("DialogueFiles", "", {"columns": {"messages": "chat"}, "vocab_size": 300}),
}


def make_row(draw):
    texts = [" ".join(draw.choice(WORDS, 8)) for _ in range(3)]
    chat = [{"role": role, "content": text} for role, text in zip(("system", "user", "assistant"), texts, strict=True)]
    return {
        "body": texts[0], "pair": {"en": texts[1], "de": texts[2]}, "kind": str(draw.choice(["a", "b"])), "chat": chat,
        "words": texts[0].split(), "ner": [str(tag) for tag in draw.choice(["O", "B"], 8)],
    }  # fmt: skip


@pytest.mark.parametrize("recipe", TASKS)
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_a_task_trains_on_a_table(tmp_path, monkeypatch, recipe, name):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = [make_row(draw) for _ in range(120)]
    if name == "rows.parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, column, options = TASKS[recipe]
    key = "data.text" if recipe == "mlm-tiny" else "data"
    own = {
        key: source,
        f"{key}.path": f"{name}{column}",
        **{f"{key}.{option}": value for option, value in options.items()},
    }
    run = zoo.fit(recipe, {**TRAINER, **own})
    assert 0 < run.figures["val/loss"] < 10
